"""Propose a value schema from records, and name each field that cannot become a column (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

import msgspec

from l0gc.errors import UsageError
from l0gc.streamlog.controller.value_schema import MAX_DEPTH, ValueColumn, evolved
from l0gc.streamlog.values.fits import Misfit, date_of, time_of

_LIST: Final = "list"
_STRUCT: Final = "struct"
_ELEMENT: Final = "element"
_MIXED: Final = "mixed"
_UNKNOWN: Final = "unknown"
_INTEGERS: Final = ("long", "decimal(20, 0)", "decimal(38, 0)")
"""The types of integers, each wider than the one before."""


class LeftOut(msgspec.Struct, frozen=True):
    """A field of the records that gets no column, and why."""

    field: str
    reason: str


def inferred(values: Iterable[bytes]) -> tuple[tuple[ValueColumn, ...], list[LeftOut]]:
    """Return the columns that fit the values, which are JSON objects, and the fields that get no column.

    A field that is always null becomes a string. Values that are not objects are ignored.
    """
    column = ValueColumn(0, "", _UNKNOWN)
    for value in values:
        try:
            record = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            continue
        if isinstance(record, dict):
            column = _joined(column, _shape("", record, 1))
    left_out: list[LeftOut] = []
    proposed = _proposed(column, "", left_out)
    return () if proposed is None else proposed.children, left_out


def _shape(name: str, value: Any, depth: int) -> ValueColumn:
    match value:
        case None:
            return ValueColumn(0, name, _UNKNOWN)
        case bool():
            return ValueColumn(0, name, "boolean")
        case int():
            return ValueColumn(0, name, _integer_type(value))
        case float():
            return ValueColumn(0, name, "double")
        case str():
            return ValueColumn(0, name, _text_type(value))
        case _ if depth > MAX_DEPTH:
            return ValueColumn(0, name, _MIXED)
        case list():
            element = ValueColumn(0, _ELEMENT, _UNKNOWN)
            for v in value:
                element = _joined(element, _shape(_ELEMENT, v, depth + 1))
            return ValueColumn(0, name, _LIST, (element,))
    fields = tuple(_shape(n, v, depth + 1) for n, v in value.items())
    return ValueColumn(0, name, _STRUCT, fields)


def _integer_type(value: int) -> str:
    """Return a type that holds an integer exactly: a double would round an id above 2^53."""
    if -(2**63) <= value < 2**63:
        return "long"
    return "decimal(20, 0)" if abs(value) < 10**20 else "decimal(38, 0)" if abs(value) < 10**38 else _MIXED


def _text_type(value: str) -> str:
    with suppress(Misfit):
        return "timestamp" if time_of(value).tzinfo is None else "timestamptz"
    with suppress(Misfit):
        date_of(value)
        return "date"
    return "string"


def _joined(a: ValueColumn, b: ValueColumn) -> ValueColumn:
    """Return a shape that fits both."""
    if _UNKNOWN in {a.type, b.type}:
        return b if a.type == _UNKNOWN else a
    if a.type == b.type == _STRUCT:
        fields = {c.name: c for c in a.children}
        for c in b.children:
            fields[c.name] = _joined(fields[c.name], c) if c.name in fields else c
        return ValueColumn(0, a.name, _STRUCT, tuple(fields.values()))
    if a.type == b.type == _LIST:
        return ValueColumn(0, a.name, _LIST, (_joined(a.children[0], b.children[0]),))
    kinds = {a.type, b.type}
    if len(kinds) == 1:
        return a
    if kinds <= {*_INTEGERS}:
        return max(a, b, key=lambda c: _INTEGERS.index(c.type))
    if kinds <= {*_INTEGERS, "double"}:
        return ValueColumn(0, a.name, "double")
    return ValueColumn(0, a.name, "string" if kinds <= {"string", "date", "timestamp", "timestamptz"} else _MIXED)


def _proposed(shape: ValueColumn, where: str, left_out: list[LeftOut]) -> ValueColumn | None:
    """Return a shape without the parts that cannot become columns; None if nothing is left."""

    if shape.type == _MIXED:
        left_out.append(LeftOut(where, "has values of several types, or values that no column can hold"))
        return None
    if shape.type == _UNKNOWN:
        return ValueColumn(0, shape.name, "string")
    if shape.type not in {_LIST, _STRUCT}:
        return shape
    if not shape.children or [c.type for c in shape.children if c.name == _ELEMENT and shape.type == _LIST] == [
        _UNKNOWN
    ]:
        left_out.append(LeftOut(where, "is always empty"))
        return None
    kept = list[ValueColumn]()
    for child in shape.children:
        path = f"{where}.{child.name}" if where else child.name
        if (c := _proposed(child, path, left_out)) is None:
            continue
        try:
            evolved(None, [*kept, c])
        except UsageError as e:
            left_out.append(LeftOut(path, str(e)))
            continue
        kept.append(c)
    return ValueColumn(0, shape.name, shape.type, tuple(kept)) if kept else None
