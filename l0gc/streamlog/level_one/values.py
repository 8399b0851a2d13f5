"""Parses values into typed columns, by a topic's value schema (pure).

A record's columns depend only on its own bytes and the schema, never on its neighbours. msgspec decides what fits, and its
message names the field. pyarrow parses whole batches at its own speed, and is trusted only if it can neither be laxer than
msgspec nor shift a row. So each value must begin with `{` and end with `}`, and there must be as many rows as values. All
of it must be UTF-8, and nothing nested too deeply for a parser's stack. No number may be `NaN` or out of its type's range,
and times and days must have msgspec's form. Otherwise each value is checked alone, and those that fit are parsed again, or
taken from msgspec.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from decimal import Context, Decimal
from functools import cache
from typing import Annotated, Any, Final, TypedDict

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

BATCH_ROWS: Final = 65_536
BATCH_BYTES: Final = 32 << 20
"""The number of values, and their bytes, that are parsed at once."""
MAX_NESTING: Final = 200
"""A value that is nested more deeply fits no schema; parsers take stack for each level."""
MAX_ERROR: Final = 200
_ID: Final = b"PARQUET:field_id"
_FLOAT_MAX: Final = float(np.finfo(np.float32).max)
_OPENS: Final = ord("{")
_BIT: Final = 0x20
"""With this bit, `[` is `{`, and no other byte is."""
_NON_FINITE: Final = r"[:,\[\s]-?(?:NaN|Inf)"
_EXPONENT: Final = r"[0-9.][eE][+-]?[0-9]{3}"
"""pyarrow ends the process for a decimal with a large negative exponent."""
_TEXT: Final = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BRACKET: Final = re.compile(rb"[\[\]{}]")
_DAY: Final = r"^(?:[1-9]\d{3}|0[1-9]\d\d|00[1-9]\d|000[1-9])-\d\d-\d\d"
_TIME: Final = _DAY + r"[T ]\d\d:\d\d:\d\d(?:\.\d{1,6})?"
_FORM: Final = {"date": _DAY + "$", "timestamp": _TIME + "$", "timestamptz": _TIME + r"(?:Z|[+-]\d\d:\d\d)$"}
_YEARS: Final = (datetime.datetime(1, 1, 2, tzinfo=datetime.UTC), datetime.datetime(9999, 12, 30, tzinfo=datetime.UTC))
"""Between these a time stays a time in every zone."""
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_RANGE: Final = tuple((at - _EPOCH) // datetime.timedelta(microseconds=1) for at in _YEARS)
_SIMPLE: Final = {
    "boolean": (pa.bool_(), bool),
    "int": (pa.int32(), Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]),
    "long": (pa.int64(), Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]),
    "float": (pa.float32(), Annotated[float, msgspec.Meta(ge=-_FLOAT_MAX, le=_FLOAT_MAX)]),
    "double": (pa.float64(), float),
    "date": (pa.date32(), datetime.date),
    "timestamp": (pa.timestamp("us"), Annotated[datetime.datetime, msgspec.Meta(tz=False)]),
    "timestamptz": (pa.timestamp("us", "UTC"), Annotated[datetime.datetime, msgspec.Meta(tz=True)]),
    "string": (pa.string(), str),
}
_DIGITS: Final = Context(prec=40)
_MISFITS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError, OverflowError)


class ValueParser:
    """Parses values by one schema. `fields` are the columns that it makes: the schema's, with their ids, and `value_error`.

    `paths` are Parquet's names of what holds their values.
    """

    def __init__(self, schema: ValueSchema) -> None:
        self.number = schema.number
        self._columns = schema.columns
        self._decimals = any(c.decimal for c in each_column(schema.columns))
        self._checked = [c for c in schema.columns if any(n.decimal or n.type in _FORM for n in each_column([c]))]
        typed = [_field(c, c.column) for c in schema.columns]
        self.fields: Final = pa.schema(
            [*typed, pa.field(VALUE_ERROR, pa.string(), metadata={_ID: str(VALUE_ERROR_ID)})]
        )
        self.paths: Final = [*(path for c in schema.columns for path in _leaves(c, c.column)), VALUE_ERROR]
        self._read = pa.schema([pa.field(c.name, _read_type(c)) for c in schema.columns])
        self._judge = msgspec.json.Decoder(_judged_type(ValueColumn(0, "", "struct", schema.columns)))
        self._type = pa.struct([pa.field(c.name, _type(c)) for c in schema.columns])

    def parse(self, values: pa.Array) -> list[pa.Array]:
        """Return the columns of `fields`, with a row for each value, a byte string that is not null."""
        parts = [self._parse(some) for some in _batches(values)]
        if not parts:
            return [pa.nulls(0, f.type) for f in self.fields]
        return [pa.concat_arrays(some) for some in zip(*parts, strict=True)]

    def _parse(self, values: pa.Array) -> list[pa.Array]:
        if (found := self._fast(values)) is not None:
            return [*found, pa.nulls(len(values), pa.string())]
        errors = [self._error(v) for v in values.to_pylist()]
        fits = np.fromiter((e is None for e in errors), np.bool_, len(errors))
        good = values.filter(pa.array(fits))
        found = self._fast(good, judged=True) or self._slow(good)
        places = np.where(fits, np.cumsum(fits) - 1, -1)
        where = pa.Array.from_buffers(
            pa.int64(), len(places), [columns.bitmap(fits), pa.py_buffer(places.astype("<i8"))]
        )
        return [*(c.take(where) for c in found), pa.array(errors, pa.string())]

    def _fast(self, values: pa.Array, *, judged: bool = False) -> list[pa.Array] | None:
        """Return the columns by pyarrow; None if one of the values may not fit, or may differ from msgspec's.

        Args:
            judged: they all fit, so none has a number that is not one, or is nested too deeply.
        """
        if not len(values):
            return [pa.nulls(0, f.type) for f in list(self.fields)[:-1]]
        try:
            texts = values.cast(pa.string())
            lines = pc.binary_join_element_wise(texts, "", "\n")
            framed = pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))
            body = lines.buffers()[2]
            if not pc.all(framed).as_py() or (self._decimals and _any_matches(texts, _EXPONENT)):
                return None
            if not judged and (_any_matches(texts, _NON_FINITE) or _may_be_deep(lines)):
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
            return [_cast(read.column(c.name).combine_chunks(), c) for c in self._columns]
        except pa.ArrowException:
            return None

    def _slow(self, values: pa.Array) -> list[pa.Array]:
        """Return the columns by msgspec, of values that all fit."""
        of_all = ValueColumn(0, "", "struct", self._columns)
        judged = (self._judge.decode(v) for v in values.to_pylist())
        found = pa.array([_scaled(v, of_all) if self._decimals else v for v in judged], self._type)
        return [found.field(i) for i in range(found.type.num_fields)]

    def _error(self, value: bytes) -> str | None:
        """Return why a value does not fit; None if it does."""
        try:
            value.decode()
            if _depth(value) > MAX_NESTING:
                return f"JSON is nested more than {MAX_NESTING} deep"
            found = self._judge.decode(value)
            for c in self._checked:
                _check(found.get(c.name), c, f"$.{c.name}")
        except _MISFITS as e:
            return str(e)[:MAX_ERROR]
        return None


@cache
def parser_of(schema: ValueSchema) -> ValueParser:
    """Return the parser of a schema; one for each, since it takes some time to make."""
    return ValueParser(schema)


def _batches(values: pa.Array) -> Iterator[pa.Array]:
    """Yield the values in lists that are parsed together."""
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
    return pa.field(name, _type(c), metadata={_ID: str(c.id)})


def _type(c: ValueColumn) -> pa.DataType:
    """Return the type of a column in L1, with the ids of what is nested in it."""
    if c.type == "list":
        return pa.list_(_field(c.children[0], c.children[0].name))
    if c.type == "struct":
        return pa.struct([_field(child, child.name) for child in c.children])
    return pa.decimal128(*c.decimal) if c.decimal else _SIMPLE[c.type][0]


def _leaves(c: ValueColumn, path: str) -> Iterator[str]:
    """Yield Parquet's names of the columns that hold a column's values."""
    if not c.children:
        yield path
    for child in c.children:
        yield from _leaves(child, f"{path}.list.{child.name}" if c.type == "list" else f"{path}.{child.name}")


def _read_type(c: ValueColumn) -> pa.DataType:
    """Return the type for pyarrow's reader, which is laxer than msgspec about times, days and the bounds of floats."""
    if c.type == "list":
        return pa.list_(_read_type(c.children[0]))
    if c.type == "struct":
        return pa.struct([pa.field(child.name, _read_type(child)) for child in c.children])
    return pa.string() if c.type in _FORM else pa.float64() if c.type == "float" else _type(c)


def _judged_type(c: ValueColumn) -> Any:
    if c.type == "list":
        return list[_judged_type(c.children[0]) | None]  # type: ignore[misc]
    if c.type == "struct":
        return TypedDict("Value", {f.name: _judged_type(f) | None for f in c.children}, total=False)  # type: ignore[operator]
    return Decimal if c.decimal else _SIMPLE[c.type][1]


def _cast(found: pa.Array, c: ValueColumn) -> pa.Array:
    """Return a column that pyarrow has read, in its own type. Raises `ArrowInvalid` if msgspec may differ."""
    if c.type == "list":
        inner = _cast(found.values, c.children[0])
        return pa.Array.from_buffers(_type(c), len(found), found.buffers()[:2], found.null_count, children=[inner])
    if c.type == "struct":
        inner = [_cast(found.field(i), child) for i, child in enumerate(c.children)]
        return pa.Array.from_buffers(_type(c), len(found), found.buffers()[:1], found.null_count, children=inner)
    if c.type in {"float", "double"}:
        bounds = pc.min_max(found).as_py()  # of those that are numbers; infinity is one
        if c.type == "float" and any(abs(v) > _FLOAT_MAX for v in bounds.values() if v is not None):
            raise pa.ArrowInvalid("a number is out of range")
        if pc.any(pc.invert(pc.is_finite(found))).as_py():
            raise pa.ArrowInvalid("a number is not finite")
    if c.type in _FORM:
        if pc.any(pc.invert(pc.match_substring_regex(found, _FORM[c.type]))).as_py():
            raise pa.ArrowInvalid("a time has another form")
        found = found.cast(_SIMPLE[c.type][0])
        times = pc.min_max(found.view(pa.int64())).as_py() if c.type != "date" else {}
        if any(not _RANGE[0] <= v <= _RANGE[1] for v in times.values() if v is not None):
            raise pa.ArrowInvalid("a time is too near the end of time")
    return found.cast(_type(c))


# -- the judge ------------------------------------------------------------------------------------------------------------


def _check(value: Any, c: ValueColumn, where: str) -> None:
    """Raise `ValueError` for a value that msgspec accepts and a column cannot hold."""
    if value is None:
        return
    if c.type == "list":
        for i, v in enumerate(value):
            _check(v, c.children[0], f"{where}[{i}]")
    elif c.type == "struct":
        for child in c.children:
            _check(value.get(child.name), child, f"{where}.{child.name}")
    elif c.type in {"timestamp", "timestamptz"}:
        if not _YEARS[0] <= (value if value.tzinfo else value.replace(tzinfo=datetime.UTC)) <= _YEARS[1]:
            raise ValueError(f"Expected a time in the years 1 to 9999 - at `{where}`")
    elif digits := c.decimal:
        _, figures, exponent = value.as_tuple()
        zeros = exponent + digits[1] if value.is_finite() else 0  # that follow the figures, without the point
        whole = int("".join(map(str, figures))) if value.is_finite() else 1
        fits = value.is_finite() and (
            not whole
            or (zeros >= 0 and len(str(whole)) + zeros <= digits[0])
            or (-len(figures) < zeros < 0 and not whole % 10**-zeros and len(str(whole)) + zeros <= digits[0])
        )
        if not fits:
            raise ValueError(f"Expected `{c.type}` - at `{where}`")


def _depth(value: bytes) -> int:
    """Return how deeply a value is nested."""
    if value.count(b"[") + value.count(b"{") <= MAX_NESTING:
        return 0
    deepest = depth = 0
    for found in _BRACKET.finditer(_TEXT.sub(b"", value)):
        depth += 1 if found[0] in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _any_matches(texts: pa.Array, pattern: str) -> bool:
    return bool(pc.any(pc.match_substring_regex(texts, pattern)).as_py())


def _may_be_deep(lines: pa.Array) -> bool:
    """Return whether one of the values has so many brackets that it may be nested too deeply."""
    _, ends, body = lines.buffers()
    content = body.to_pybytes()
    if content.count(b"[") + content.count(b"{") < len(lines) + MAX_NESTING:  # each has one
        return False
    opens = np.flatnonzero((np.frombuffer(content, np.uint8) | _BIT) == _OPENS)
    places = np.searchsorted(opens, np.frombuffer(ends, np.int32)[: len(lines) + 1])
    return bool(np.diff(places).max() > MAX_NESTING)


def _scaled(value: Any, c: ValueColumn) -> Any:
    """Return a value that fits, with the digits of each decimal written out for Arrow."""
    if value is None:
        return None
    if c.type == "list":
        return [_scaled(v, c.children[0]) for v in value]
    if c.type == "struct":
        return {child.name: _scaled(value.get(child.name), child) for child in c.children}
    return value.quantize(Decimal(1).scaleb(-c.decimal[1]), context=_DIGITS) if c.decimal else value
