"""Parse values into typed columns, by a topic's value schema (pure).

A record's columns depend only on its own bytes and the schema, never on its neighbours. `fits` defines what fits. pyarrow
parses whole batches, which is faster, and is trusted only if its result cannot differ from that of `fits`. So each value
must begin with `{` and end with `}`, and there must be as many rows as values. All bytes must be UTF-8, and no value may
be nested too deeply for a parser's stack. No number may be `NaN` or out of its type's range, and all times and days must
have the same form. If pyarrow is not trusted with a batch, the batch is parsed again in pieces, without the values that
msgspec finds not to fit. Pieces with which pyarrow is still not trusted are fitted value by value. So msgspec's findings
affect only the speed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Final, TypedDict

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from l0gc import columns
from l0gc.streamlog.controller.value_schema import (
    VALUE_ERROR,
    VALUE_ERROR_ID,
    ValueColumn,
    ValueSchema,
    each_column,
)
from l0gc.streamlog.values.fits import FLOAT_MAX, MAX_NESTING, fitter

BATCH_ROWS: Final = 65_536
BATCH_BYTES: Final = 32 << 20
"""The most values, and the most bytes of them, that are parsed at once."""
PIECE_ROWS: Final = 256
"""How many values are parsed again together if pyarrow is not trusted with their batch."""
_ID: Final = b"PARQUET:field_id"
_OPENS: Final = ord("{")
_NOTHING: Final = columns.scalar("")
_NEWLINE: Final = columns.scalar("\n")
_BIT: Final = 0x20
"""With this bit, `[` is `{`, and no other byte is."""
_NON_FINITE: Final = r"[:,\[\s]-?(?:NaN|Inf)"
_EXPONENT: Final = r"[0-9.][eE][+-]?[0-9]{3}"
"""A long exponent: pyarrow ends the process for a decimal with a large negative one."""
_DAY: Final = r"^(?:[1-9]\d{3}|0[1-9]\d\d|00[1-9]\d|000[1-9])-\d\d-\d\d"
_TIME: Final = _DAY + r"[T ]\d\d:\d\d:\d\d(?:\.\d+)?"
_FINER: Final = r"(\.\d{6})\d+"
"""A time with more digits than a column has."""
_FORM: Final = {"date": _DAY + "$", "timestamp": _TIME + "$", "timestamptz": _TIME + r"(?:Z|[+-]\d\d:\d\d)$"}
_RANGE: Final = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""The years 1 to 9999, in microseconds."""
_TYPES: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "string": pa.string(),
}
_SCREEN: Final[Mapping[str, Any]] = {"boolean": bool, "int": int, "long": int, "float": float, "double": float}
_MOST_DIGITS: Final = 76
"""The precision with which decimals are read: pyarrow checks a number's digits before it adds the column's zeros."""


class ValueParser:
    """Parses values by one schema. `fields` are the resulting columns: the schema's, with their ids, and `value_error`.
    `paths` are Parquet's names of the columns that hold their values.
    """

    def __init__(self, schema: ValueSchema) -> None:
        self.number = schema.number
        self._columns = schema.columns
        self._decimals = any(c.decimal for c in each_column(schema.columns))
        typed = [_field(c, c.column) for c in schema.columns]
        self.fields: Final = pa.schema(
            [*typed, pa.field(VALUE_ERROR, pa.string(), metadata={_ID: str(VALUE_ERROR_ID)})]
        )
        self.paths: Final = [*(path for c in schema.columns for path in _leaves(c, c.column)), VALUE_ERROR]
        self._read = pa.schema([pa.field(c.name, _read_type(c)) for c in schema.columns])
        self._fit = fitter(schema.columns)
        self._screen = msgspec.json.Decoder(_screen_type(ValueColumn(0, "", "struct", schema.columns)))
        self._type = pa.struct([pa.field(c.name, type_of(c)) for c in schema.columns])

    def parse(self, values: pa.Array) -> list[pa.Array]:
        """Return the columns of `fields`, with a row for each value; values are byte strings, none of them null."""
        return self._joined(self._parse(batch) for batch in _batches(values))

    def _joined(self, parts: Iterable[list[pa.Array]]) -> list[pa.Array]:
        columns = [*zip(*parts, strict=True)]
        return [pa.concat_arrays(chunks) for chunks in columns] or [pa.nulls(0, f.type) for f in self.fields]

    def _parse(self, values: pa.Array) -> list[pa.Array]:
        if (together := self._together(values)) is not None:
            return together
        likely = np.fromiter(map(self._seems_to_fit, values.to_pylist()), np.bool_, len(values))
        rest = values.filter(pa.array(likely))
        pieces = (rest.slice(at, PIECE_ROWS) for at in range(0, len(rest), PIECE_ROWS))
        parts = [self._together(piece) or self._alone(piece) for piece in pieces]
        places = np.empty(len(values), np.int64)
        places[np.argsort(~likely, kind="stable")] = np.arange(len(values))
        unlikely = self._alone(values.filter(pa.array(~likely)))
        return [column.take(columns.numbers(places)) for column in self._joined([*parts, unlikely])]

    def _seems_to_fit(self, value: bytes) -> bool:
        try:
            self._screen.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        return True

    def _together(self, values: pa.Array) -> list[pa.Array] | None:
        """Return the columns as pyarrow parses them; None if it may differ from `fits` in any value."""
        try:
            texts = values.cast(pa.string())
            lines = pc.binary_join_element_wise(texts, _NOTHING, _NEWLINE)
            framed = pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))
            body = lines.buffers()[2]
            if not pc.all(framed).as_py() or (self._decimals and _any_matches(texts, _EXPONENT)):
                return None
            if _any_matches(texts, _NON_FINITE) or _may_be_deep(lines):
                return None
            read = pj.read_json(
                pa.BufferReader(body),
                read_options=pj.ReadOptions(use_threads=False, block_size=body.size + 1),
                parse_options=pj.ParseOptions(
                    explicit_schema=self._read, newlines_in_values=True, unexpected_field_behavior="ignore"
                ),
            )
            if len(read) != len(values):
                return None
            columns = [_cast(read.column(c.name).combine_chunks(), c) for c in self._columns]
        except pa.ArrowException:
            return None
        return [*columns, pa.nulls(len(values), pa.string())]

    def _alone(self, values: pa.Array) -> list[pa.Array]:
        """Return the columns as `fits` decides, value by value."""
        fitted = [self._fit(value) for value in values.to_pylist()]
        parsed = pa.array([f.fields for f in fitted], self._type)
        errors = pa.array([f.error or None for f in fitted], pa.string())
        return [*(parsed.field(i) for i in range(parsed.type.num_fields)), errors]


@cache
def parser_of(schema: ValueSchema) -> ValueParser:
    """Return the parser of a schema, which is cached, since creating one takes time."""
    return ValueParser(schema)


def _batches(values: pa.Array) -> Iterator[pa.Array]:
    """Yield the values in groups that are parsed together."""
    sizes, _ = columns.uncut(values)
    ends = np.cumsum(sizes, dtype=np.int64)
    at = 0
    while at < len(values):
        before = int(ends[at - 1]) if at else 0
        most = int(np.searchsorted(ends, before + BATCH_BYTES, "right"))
        end = min(max(most, at + 1), at + BATCH_ROWS, len(values))
        yield values.slice(at, end - at)
        at = end


# -- types ----------------------------------------------------------------------------------------------------------------


def _field(c: ValueColumn, name: str) -> pa.Field:
    return pa.field(name, type_of(c), metadata={_ID: str(c.id)})


def type_of(c: ValueColumn) -> pa.DataType:
    """Return the type of a column in L1, with the ids of its nested columns."""
    if c.type == "list":
        return pa.list_(_field(c.children[0], c.children[0].name))
    if c.type == "struct":
        return pa.struct([_field(child, child.name) for child in c.children])
    return pa.decimal128(*c.decimal) if c.decimal else _TYPES[c.type]


def is_typed(f: pa.Field) -> bool:
    """Return whether a column of L1, or of a reader, was parsed from the values."""
    return f.nullable and int((f.metadata or {}).get(_ID, -1)) >= VALUE_ERROR_ID


def _leaves(c: ValueColumn, path: str) -> Iterator[str]:
    """Yield Parquet's names of the columns that hold a column's values."""
    if not c.children:
        yield path
    for child in c.children:
        yield from _leaves(child, f"{path}.list.{child.name}" if c.type == "list" else f"{path}.{child.name}")


def _read_type(c: ValueColumn) -> pa.DataType:
    """Return the type for pyarrow's reader, which is less strict than `fits` about times, days, and the bounds of
    numbers.
    """
    if c.type == "list":
        return pa.list_(_read_type(c.children[0]))
    if c.type == "struct":
        return pa.struct([pa.field(child.name, _read_type(child)) for child in c.children])
    if c.decimal:
        return pa.decimal256(_MOST_DIGITS, c.decimal[1])
    return pa.string() if c.type in _FORM else pa.float64() if c.type == "float" else type_of(c)


def _screen_type(c: ValueColumn) -> Any:
    """Return a type by which msgspec finds most of the values that do not fit."""
    if c.type == "list":
        return list[_screen_type(c.children[0]) | None]  # type: ignore[misc]
    if c.type == "struct":
        return TypedDict("Value", {f.name: _screen_type(f) | None for f in c.children}, total=False)  # type: ignore[operator]
    return int | float | str if c.decimal else _SCREEN.get(c.type, str)


def _cast(column: pa.Array, c: ValueColumn) -> pa.Array:
    """Convert a column that pyarrow has read to its own type. Raises `ArrowInvalid` if `fits` may differ."""
    if c.type == "list":
        inner = _cast(column.values, c.children[0])
        return pa.Array.from_buffers(type_of(c), len(column), column.buffers()[:2], column.null_count, children=[inner])
    if c.type == "struct":
        inner = [_cast(column.field(i), child) for i, child in enumerate(c.children)]
        return pa.Array.from_buffers(type_of(c), len(column), column.buffers()[:1], column.null_count, children=inner)
    if c.type in {"float", "double"}:
        bounds = pc.min_max(column).as_py()  # ignores NaN, but not infinity
        if c.type == "float" and any(abs(v) > FLOAT_MAX for v in bounds.values() if v is not None):
            raise pa.ArrowInvalid("a number is out of range")
        if pc.any(pc.invert(pc.is_finite(column))).as_py():
            raise pa.ArrowInvalid("a number is not finite")
    if c.type in _FORM:
        if pc.any(pc.invert(pc.match_substring_regex(column, _FORM[c.type]))).as_py():
            raise pa.ArrowInvalid("a time has another form")
        if c.type != "date" and _any_matches(column, _FINER):
            column = pc.replace_substring_regex(column, _FINER, r"\1")
        column = column.cast(type_of(c))
        times = pc.min_max(column.view(pa.int64())).as_py() if c.type != "date" else {}
        if any(not _RANGE[0] <= v <= _RANGE[1] for v in times.values() if v is not None):
            raise pa.ArrowInvalid("a time is before year 1 or after 9999")
    return column.cast(type_of(c))


def _any_matches(texts: pa.Array, pattern: str) -> bool:
    return bool(pc.any(pc.match_substring_regex(texts, pattern)).as_py())


def _may_be_deep(lines: pa.Array) -> bool:
    """Return whether any of the values has so many brackets that it may be nested too deeply."""
    _, ends, body = lines.buffers()
    content = body.to_pybytes()
    if content.count(b"[") + content.count(b"{") < len(lines) + MAX_NESTING:  # each value has at least one
        return False
    opens = np.flatnonzero((np.frombuffer(content, np.uint8) | _BIT) == _OPENS)
    places = np.searchsorted(opens, np.frombuffer(ends, np.int32)[: len(lines) + 1])
    return bool(np.diff(places).max() > MAX_NESTING)
