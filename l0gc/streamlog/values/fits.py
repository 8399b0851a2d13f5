"""Decide which fields of a value fit a schema's columns, one value at a time (pure). This is the only definition of
fitting.

A value is a JSON object in UTF-8, nested at most `MAX_NESTING` deep; if a field occurs twice, the last one counts. Nothing
is coerced. Only a field that does not fit becomes null, and its path and the reason are reported; the value that contains
it keeps all other fields. `parse.py` parses whole batches faster, and is trusted only if its result cannot differ.

Integers have neither a fraction nor an exponent. A double is the one nearest to the text, and a float is that double,
rounded. Decimals come from numbers or strings, and are not rounded. Times are RFC 3339, cut to microseconds; a
`timestamptz` has an offset, a `timestamp` has none, and both lie in the years 1 to 9999 of UTC.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any, Final, NamedTuple

import msgspec

from l0gc.streamlog.controller.value_schema import ValueColumn

MAX_NESTING: Final = 200
"""A value that is nested more deeply fits no schema, since parsers need stack for each level."""
MAX_ERROR: Final = 200
FLOAT_MAX: Final = (2 - 2**-23) * 2.0**127
_BOUNDS: Final = {"int": 2**31, "long": 2**63}
_LONGEST: Final = 20
"""The characters of the longest integer that may fit."""
_EXPONENT: Final = 6
"""The digits of an exponent that may fit."""
_INTEGER: Final = re.compile(rb"-?[0-9]+")
_DECIMAL: Final = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?)([0-9]+))?")
_DATE: Final = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_TIME: Final = re.compile(
    _DATE.pattern + r"[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?([Zz]|([+-])([0-9]{2}):([0-9]{2}))?"
)
_TEXT: Final = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BRACKET: Final = re.compile(rb"[\[\]{}]")
_KINDS: Final = {b'"': "string", b"{": "object", b"[": "array", b"t": "boolean", b"f": "boolean", b"n": "null"}
_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ELEMENTS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_STRING: Final = msgspec.json.Decoder(str)


class Misfit(ValueError):
    """Why a value does not fit."""


class Fitted(NamedTuple):
    """The fields of a value that fit, by name, and why others do not fit; "" if all fit."""

    fields: dict[str, Any]
    error: str


_Where = tuple[Any, str]
"""The path of a value: the path of the value that contains it, and the last part."""
_Misfits = list[tuple[_Where, str]]
_Reader = Callable[[bytes, _Where, _Misfits], Any]
"""Returns the value of a JSON text in its column's type. Raises `Misfit`, or adds the misfits of nested values."""
_TOP: Final[_Where] = (None, "$")


def fitter(columns: Iterable[ValueColumn]) -> Callable[[bytes], Fitted]:
    """Return a function that fits a value into these columns."""
    top = ValueColumn(0, "", "struct", tuple(columns))
    read = _reader(top)

    def fit(value: bytes) -> Fitted:
        misfits: _Misfits = []
        try:
            value.decode()
            if _depth(value) > MAX_NESTING:
                raise Misfit(f"JSON that is nested more than {MAX_NESTING} deep")
            fields = read(value, _TOP, misfits)
        except Misfit as e:
            return Fitted({}, _misfit(top, value.lstrip(), e))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
            return Fitted({}, str(e)[:MAX_ERROR])
        return Fitted(fields, "; ".join(f"{why} - at `{_path(where)}`" for where, why in misfits)[:MAX_ERROR])

    return fit


def time_of(text: str) -> datetime.datetime:
    """Parse a time of RFC 3339, cut to microseconds. If it has an offset, the result is in UTC; if not, it has no zone.

    Raises `Misfit`.
    """
    match = _TIME.fullmatch(text)
    if match is None:
        raise Misfit("a string that is not a time of RFC 3339")
    *numbers, fraction, zone, sign, hours, minutes = match.groups()
    try:
        time = datetime.datetime(*map(int, [*numbers, (fraction or "")[:6].ljust(6, "0")]))  # type: ignore[arg-type]
    except ValueError:
        raise Misfit("a time that does not exist") from None
    if zone is None:
        return time
    if sign is not None:
        if int(hours) > 23 or int(minutes) > 59:
            raise Misfit("a time with an offset that does not exist")
        ahead = datetime.timedelta(hours=int(hours), minutes=int(minutes))
        try:
            time += -ahead if sign == "+" else ahead
        except OverflowError:
            raise Misfit("a time that is not in the years 1 to 9999 of UTC") from None
    return time.replace(tzinfo=datetime.UTC)


def date_of(text: str) -> datetime.date:
    """Parse a day of RFC 3339. Raises `Misfit`."""
    match = _DATE.fullmatch(text)
    if match is None:
        raise Misfit("a string that is not a day like 2024-01-31")
    try:
        return datetime.date(*map(int, match.groups()))
    except ValueError:
        raise Misfit("a day that does not exist") from None


def _path(where: _Where | None) -> str:
    return "" if where is None else _path(where[0]) + where[1]


def _kind(text: bytes) -> str:
    return _KINDS.get(text[:1], "number")


def _reader(c: ValueColumn) -> _Reader:
    """Return a function that reads a column's values."""
    if c.type == "struct":
        return _struct(c.children)
    if c.type == "list":
        return _list(c.children[0])
    convert = _decimal(*c.decimal) if c.decimal else _SIMPLE[c.type]
    return lambda text, where, misfits: convert(text)


def _misfit(c: ValueColumn, text: bytes, why: Misfit) -> str:
    expected = {"struct": "object", "list": "array"}.get(c.type, c.type)
    return f"Expected `{expected}`, got {str(why) or f'`{_kind(text)}`'}"


def _struct(columns: tuple[ValueColumn, ...]) -> _Reader:
    readers = [(c.name, _reader(c), c) for c in columns]

    def read(text: bytes, where: _Where, misfits: _Misfits) -> dict[str, Any]:
        try:
            fields = _FIELDS.decode(text)
        except msgspec.ValidationError:
            raise Misfit from None
        fields_read = dict[str, Any]()
        for name, field, c in readers:
            raw = fields.get(name)
            if raw is None or (given := bytes(raw)) == b"null":
                continue
            at = where, f".{name}"
            try:
                fields_read[name] = field(given, at, misfits)
            except Misfit as e:
                misfits.append((at, _misfit(c, given, e)))
        return fields_read

    return read


def _list(element: ValueColumn) -> _Reader:
    read_one = _reader(element)

    def read(text: bytes, where: _Where, misfits: _Misfits) -> list[Any]:
        try:
            elements = _ELEMENTS.decode(text)
        except msgspec.ValidationError:
            raise Misfit from None
        items = list[Any]()
        for number, raw in enumerate(elements):
            value = None
            if (given := bytes(raw)) != b"null":
                at = where, f"[{number}]"
                try:
                    value = read_one(given, at, misfits)
                except Misfit as e:
                    misfits.append((at, _misfit(element, given, e)))
            items.append(value)
        return items

    return read


# -- simple values: from the text of a JSON value; a `Misfit` describes what it is instead ---------------------------------


def _text(given: bytes) -> str:
    if given[:1] != b'"':
        raise Misfit
    return _STRING.decode(given) if b"\\" in given else given[1:-1].decode()


def _boolean(given: bytes) -> bool:
    if given not in {b"true", b"false"}:
        raise Misfit
    return given == b"true"


def _integer(bound: int) -> Callable[[bytes], int]:
    def read(given: bytes) -> int:
        if not _INTEGER.fullmatch(given):
            raise Misfit("a number with a fraction or an exponent" if _kind(given) == "number" else "")
        if len(given) > _LONGEST or not -bound <= (value := int(given)) < bound:
            raise Misfit("a number out of its range")
        return value

    return read


def _double(most: float) -> Callable[[bytes], float]:
    def read(given: bytes) -> float:
        if _kind(given) != "number":
            raise Misfit
        if not abs(value := float(given)) <= most:
            raise Misfit("a number out of its range")
        return value

    return read


def _decimal(precision: int, scale: int) -> Callable[[bytes], Decimal]:
    def read(given: bytes) -> Decimal:
        text = given.decode() if (kind := _kind(given)) == "number" else _text(given)
        match = _DECIMAL.fullmatch(text)
        if match is None or not (match[2] or match[3]):
            raise Misfit("a string that is not a number" if kind == "string" else "")
        sign, whole, fraction, minus, exponent = (part or "" for part in match.groups())
        figures = (whole + fraction).lstrip("0")
        digits = figures.rstrip("0")
        if not digits:
            return Decimal((0, (0,), -scale))
        power = exponent.lstrip("0") or "0"
        if len(power) > _EXPONENT:
            raise Misfit("more digits than it has")
        zeros = len(figures) - len(digits) - len(fraction) + (-int(power) if minus == "-" else int(power)) + scale
        if zeros < 0 or len(digits) + zeros > precision:
            raise Misfit("more digits than it has")
        return Decimal((int(sign == "-"), tuple(map(int, digits + "0" * zeros)), -scale))

    return read


def _date(given: bytes) -> datetime.date:
    return date_of(_text(given))


def _timestamp(given: bytes) -> datetime.datetime:
    if (time := time_of(_text(given))).tzinfo is not None:
        raise Misfit("a time with an offset from UTC")
    return time


def _timestamptz(given: bytes) -> datetime.datetime:
    if (time := time_of(_text(given))).tzinfo is None:
        raise Misfit("a time without an offset from UTC")
    return time


_SIMPLE: Final[dict[str, Callable[[bytes], Any]]] = {
    "boolean": _boolean,
    **{name: _integer(bound) for name, bound in _BOUNDS.items()},
    "float": _double(FLOAT_MAX),
    "double": _double(float.fromhex("0x1.fffffffffffffp+1023")),
    "date": _date,
    "timestamp": _timestamp,
    "timestamptz": _timestamptz,
    "string": _text,
}


def _depth(value: bytes) -> int:
    """Return how deeply a value is nested; 0 if it certainly has at most `MAX_NESTING` levels."""
    if value.count(b"[") + value.count(b"{") <= MAX_NESTING:
        return 0
    deepest = depth = 0
    for bracket in _BRACKET.finditer(_TEXT.sub(b"", value)):
        depth += 1 if bracket[0] in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest
