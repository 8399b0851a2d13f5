"""A reference for typed columns that shares no code with l0gc: it uses Python's json, decimal and datetime, and no
Arrow.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal, localcontext
from typing import Any, Final

DEEPEST: Final = 200
NO: Final = object()
"""Stands in for a value that does not fit."""
_WHOLE: Final = {"int": 32, "long": 64}


class Number(str):
    """A number as its record spells it."""


def _never(text: str) -> Any:
    raise ValueError(text)


def expected_columns(value: bytes, fields: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the columns of a value, by the types in Iceberg's JSON, and whether the whole value fits."""
    nothing = dict.fromkeys(fields)
    try:
        record = json.loads(value.decode(), parse_int=Number, parse_float=Number, parse_constant=_never)
    except (ValueError, RecursionError):
        return nothing, False
    if not isinstance(record, dict) or _lone_surrogate(value.decode()) or _deep(record) > DEEPEST:
        return nothing, False
    misfits: list[Any] = []
    return _struct(record, fields, misfits), not misfits


def _lone_surrogate(text: str) -> bool:
    """Return whether half of a surrogate pair is escaped alone, even in a string that a later one replaces."""
    if "\\u" not in text and "\\U" not in text:
        return False
    escapes = re.sub(r"\\[^u]", "", text)
    rest = re.sub(r"\\u[dD][89abAB]..\\u[dD][c-fC-F]..", "", escapes)
    return re.search(r"\\u[dD][89a-fA-F]..", rest) is not None


def _deep(value: Any) -> int:
    level, depth = [value], 0
    while level := [v for v in level if isinstance(v, dict | list)]:
        depth += 1
        level = [inner for v in level for inner in (v.values() if isinstance(v, dict) else v)]
    return depth


def _struct(record: Mapping[str, Any], fields: Mapping[str, Any], misfits: list[Any]) -> dict[str, Any]:
    return {name: _fitted(record.get(name), kind, misfits) for name, kind in fields.items()}


def _fitted(value: Any, kind: Any, misfits: list[Any]) -> Any:
    if value is None:
        return None
    found: Any = NO
    if isinstance(kind, dict) and kind["type"] == "struct":
        if isinstance(value, dict):
            return _struct(value, {f["name"]: f["type"] for f in kind["fields"]}, misfits)
    elif isinstance(kind, dict):
        if isinstance(value, list):
            return [_fitted(v, kind["element"], misfits) for v in value]
    elif kind.startswith("decimal"):
        found = _decimal(value, *map(int, re.findall(r"\d+", kind)))
    else:
        found = _OF[kind](value)
    if found is NO:
        misfits.append(value)
        return None
    return found


def _decimal(value: Any, precision: int, scale: int) -> Any:
    if type(value) not in {Number, str} or not re.fullmatch(
        r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", value
    ):
        return NO
    with localcontext(prec=400, Emin=-999_999_999, Emax=999_999_999) as c:
        c.clear_traps()
        number = Decimal(value)
        if not number.is_finite() or number.adjusted() > 10**5 or number.adjusted() < -(10**5):
            significant = re.split("[eE]", value)[0]
            return NO if re.search("[1-9]", significant) else Decimal(0).scaleb(-scale)
        whole = number.scaleb(scale)
        if whole != whole.to_integral_value() or abs(whole) >= 10**precision:
            return NO
        return Decimal(int(whole)).scaleb(-scale)


def _integer(bits: int) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if type(value) is not Number or set(value) & set(".eE") or len(value) > 30:
            return NO
        return int(value) if -(2 ** (bits - 1)) <= int(value) < 2 ** (bits - 1) else NO

    return read


def _double(value: Any) -> Any:
    return NO if type(value) is not Number or math.isinf(float(value)) else float(value)


def _float(value: Any) -> Any:
    number = _double(value)
    most = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]
    return NO if number is NO or abs(number) > most else struct.unpack("<f", struct.pack("<f", number))[0]


def _time(value: Any, *, zone: bool) -> Any:
    if type(value) is not str or not re.fullmatch(
        r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-5][0-9])?", value
    ):
        return NO
    try:
        found = datetime.fromisoformat(value.upper())
        if (found.tzinfo is not None) != zone or value[11:13] == "24":
            return NO
        return found.astimezone(UTC) if zone else found
    except (ValueError, OverflowError):
        return NO


def _date(value: Any) -> Any:
    try:
        return (
            date.fromisoformat(value) if type(value) is str and re.fullmatch(r"[0-9]{4}(-[0-9]{2}){2}", value) else NO
        )
    except ValueError:
        return NO


_OF: Final[Mapping[str, Callable[[Any], Any]]] = {
    "boolean": lambda v: v if v is True or v is False else NO,
    "string": lambda v: v if type(v) is str else NO,
    "int": _integer(32),
    "long": _integer(64),
    "double": _double,
    "float": _float,
    "date": _date,
    "timestamp": lambda v: _time(v, zone=False),
    "timestamptz": lambda v: _time(v, zone=True),
}
