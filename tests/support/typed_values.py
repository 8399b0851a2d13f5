"""Draws value schemas, and records at the edges of their types."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final

NAMES: Final = (
    *(
        "id",
        "Id",
        "x",
        "größe",
        "価格",
        "имя",
        "שם",
        "\U0001d4b3",
        "é",
        "e\u0301",
        "a b",
        "a-b",
        "key",
        "Value",
        "offset",
        "'",
        '"',
    ),
    *("\\", "$", "ß", "SS", "İ", "i", "0", "NaN", "null", "_", "😀"),
)
SIMPLE: Final = ("boolean", "int", "long", "float", "double", "date", "timestamp", "timestamptz", "string")
_WHOLE: Final = [0, 1, -1, *(s * 2**b + d for b in (31, 32, 53, 63, 64) for d in (-1, 0, 1) for s in (1, -1)), 10**40]
_NUMBERS: Final = (
    *map(str, _WHOLE), "-0", "-0.0", "0e5", "0E-400", "1e2", "1E+2", "7.0", "0.1", "1e-7", "5e-324", "2e-324", "1e-45",
    "1.7976931348623157e308", "1.7976931348623159e308", "1e309", "-1e999", "3.4028234663852886e38", "3.4028235677973366e38",
    "16777217", "16777217.0000001", "9007199254740993", "0.30000000000000004", "123456789.123456789", "1e22", "1e23",
    "1e99999999999999999999", "0e99999999999999999999", "1e-99999999999999999999", "0." + "0" * 50 + "1", "1" + "0" * 30,
)  # fmt: skip
_TEXTS: Final = (
    *(
        "",
        "a",
        "ä",
        "名",
        "\0",
        "\n",
        "\u2028",
        "NaN",
        "Infinity",
        ": NaN",
        "-Inf",
        "null",
        "true",
        "{}",
        "[",
        '"',
        "\\",
    ),
    *("1", " 1", "1 ", "1_0", "+1", "1.", ".5", ".", "-", "1e2", "1e", "0x1", "\uff11", "1,0", "٣", "-0", "00.10"),
)
_DAYS: Final = (
    *("0001-01-01", "9999-12-31", "1970-01-01", "1969-12-31", "2024-02-29", "2023-02-29", "0000-01-01", "2024-13-01"),
    *(
        "2024-00-10",
        "2024-1-1",
        "20240101",
        "10000-01-01",
        "-001-01-01",
        "2000-02-29",
        "1900-02-29",
        "\uff12024-01-01",
        "0004-02-29",
    ),
)
_CLOCKS: Final = (
    *("00:00:00", "23:59:59", "23:59:60", "24:00:00", "12:60:00", "10:00", "23:59:59.999999", "23:59:59.9999999"),
    *(
        "10:00:00.1",
        "10:00:00.123456789",
        "10:00:00.",
        "10:00:00,5",
        "01:02:03.000001",
        "10:00:00.000",
        "00:00:00.0000001",
    ),
)
_ZONES: Final = (
    *(
        "",
        "Z",
        "z",
        "+00:00",
        "-00:00",
        "+01:00",
        "-23:59",
        "+23:59",
        "+24:00",
        "+01:60",
        "+0100",
        "+01",
        " Z",
        "+14:00",
    ),
    *("+99:99", "[Europe/Berlin]", "Z "),
)


def a_kind(r: Random, depth: int = 0) -> Any:
    """Draw a type in Iceberg's JSON."""
    kind = r.choice((*SIMPLE, "decimal", "decimal", "struct", "list") if depth < 3 else (*SIMPLE, "decimal"))
    if kind == "decimal":
        precision = r.choice((1, 2, 9, 10, 18, 19, 37, 38, r.randint(1, 38)))
        return f"decimal({precision}, {r.choice((0, precision, r.randint(0, precision)))})"
    if kind == "list":
        return {"type": "list", "element": a_kind(r, depth + 1)}
    if kind == "struct":
        return {"type": "struct", "fields": fields_of(r, 3, depth + 1)}
    return kind


def fields_of(r: Random, most: int, depth: int = 0) -> list[dict[str, Any]]:
    """Draw fields whose names differ in more than case."""
    names = {name.lower(): name for name in r.sample(NAMES, r.randint(1, most))}
    return [{"name": name, "type": a_kind(r, depth)} for name in names.values()]


def _time(r: Random, zones: tuple[str, ...]) -> str:
    return r.choice(_DAYS) + r.choice("TTTt ") + r.choice(_CLOCKS) + r.choice(zones)


def _decimal(r: Random, kind: str) -> str:
    precision, scale = map(int, kind[8:-1].split(","))
    digits = r.choice((1, precision - 1, precision, precision + 1, precision + 2, 2 * precision, 76, 77))
    whole = str(r.choice((10**digits - 1, 10**digits, r.randrange(10 ** max(digits, 1)))))
    point = r.choice((0, scale, scale - 1, scale + 1))
    text = whole if point <= 0 else f"{whole.rjust(point + 1, '0')[:-point]}.{whole.rjust(point + 1, '0')[-point:]}"
    text += r.choice(("", "", "", "e1", "E-1", "e+10", "e38", "e-38", "e76", "e99", "e-99", "e100", "e00001"))
    text = r.choice(("", "-")) + text
    return text if r.random() < 0.6 else json.dumps(text)


def _good(r: Random, kind: str) -> str:
    if kind.startswith("decimal"):
        precision, scale = map(int, kind[8:-1].split(","))
        whole = str(r.randrange(10 ** r.randint(1, precision))).rjust(scale + 1, "0")
        return f"{whole[:-scale]}.{whole[-scale:]}" if scale else whole
    day = f"{r.choice((1, 4, 1969, 2024, 9999, r.randint(1, 9999))):04}-{r.randint(1, 12):02}-{r.randint(1, 28):02}"
    fraction = r.choice(("", f".{r.randint(0, 10**9)}"))
    time = f"{day}T{r.randint(0, 23):02}:{r.randint(0, 59):02}:{r.randint(0, 59):02}{fraction}"
    bits = {"int": 31, "long": 63}.get(kind, 80)
    makers: Mapping[str, Callable[[], Any]] = {
        "boolean": lambda: r.choice(("true", "false")),
        "int": lambda: r.choice((r.randint(-(2**31), 2**31 - 1), -(2**bits), 2**bits - 1, "-0")),
        "long": lambda: r.choice((r.randint(-(2**63), 2**63 - 1), -(2**bits), 2**bits - 1)),
        "float": lambda: r.choice(
            (repr(r.uniform(-1e38, 1e38)), repr(r.random()), "-0.0", "-0", "16777217", "3.5e-42")
        ),
        "double": lambda: r.choice(
            (repr(r.uniform(-1e308, 1e308)), repr(r.random()), "-0", 2**53 + 1, 10**40, "1e-310")
        ),
        "date": lambda: f'"{day}"',
        "timestamp": lambda: f'"{time}"',
        "timestamptz": lambda: f'"{time}{r.choice(("Z", "+00:00", "-08:00", "+05:45"))}"',
        "string": lambda: json.dumps(r.choice(_TEXTS), ensure_ascii=r.random() < 0.5),
    }
    return str(makers[kind]())


def a_value(r: Random, kind: Any, odd: float) -> str:
    """Draw the text of a value, which with probability `odd` need not fit."""
    if r.random() < 0.1:
        return "null"
    strange = r.random() < odd
    if isinstance(kind, dict) and not (strange and r.random() < 0.2):
        if kind["type"] == "list":
            return f"[{', '.join(a_value(r, kind['element'], odd) for _ in range(r.randint(0, 3)))}]"
        return a_record(r, kind["fields"], odd)
    if not strange:
        return _good(r, kind)
    if isinstance(kind, str) and kind.startswith("decimal") and r.random() < 0.7:
        return _decimal(r, kind)
    if isinstance(kind, str) and kind in {"date", "timestamp", "timestamptz"} and r.random() < 0.7:
        return json.dumps(r.choice(_DAYS) if kind == "date" else _time(r, _ZONES))
    return r.choice(
        (
            r.choice(_NUMBERS),
            json.dumps(r.choice(_TEXTS), ensure_ascii=r.random() < 0.5),
            r.choice(
                ("true", "false", "[]", "{}", "[1]", '{"a": 1}', "NaN", "-Infinity", '"\\ud800"', '"\\ud83d\\ude00"')
            ),
            json.dumps(_time(r, _ZONES)),
        )
    )


def a_record(r: Random, fields: list[dict[str, Any]], odd: float) -> str:
    """Draw the text of an object with some of the fields, and others."""
    parts = [(f["name"], a_value(r, f["type"], odd)) for f in fields if r.random() < 0.9]
    if r.random() < odd:
        extra = r.choice(NAMES)
        if extra not in {name for name, _ in parts} or r.random() < 0.3:
            parts.append((extra, a_value(r, a_kind(r, 2), odd)))
    if r.random() < 0.2:
        r.shuffle(parts)
    pairs = (f"{json.dumps(name, ensure_ascii=r.random() < 0.5)}:{value}" for name, value in parts)
    return "{" + r.choice((", ", ",")).join(pairs) + "}"


def a_line(r: Random, fields: list[dict[str, Any]], odd: float) -> bytes:
    """Draw a record, which in rare cases is not an object."""
    line = a_record(r, fields, odd).encode()
    if r.random() < odd / 20:
        cut = r.randrange(len(line) + 1)
        line = r.choice(
            (b"", b"null", b"[1]", b"7", b"\xff{}", line[:cut], line + b"}", line + line, b" " + line, line + b"\n")
        )
    return line
