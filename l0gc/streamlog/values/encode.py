"""Turn rows with a topic's typed columns into values: JSON objects that parse into the same columns (pure).

Nothing is lost: a column is accepted only if its type holds the same kind of value, and each of its values fits the
schema's type. NaN and infinity, which JSON does not have, are refused with the column's name, and so is a time with a
fraction of a microsecond. Numbers and decimals keep their digits, and times keep their microseconds. Null fields are
omitted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from l0gc.errors import UsageError
from l0gc.streamlog.controller.value_schema import ValueColumn, ValueSchema
from l0gc.streamlog.values.fits import FLOAT_MAX
from l0gc.streamlog.values.parse import type_of

_ENCODER: Final = msgspec.json.Encoder(decimal_format="number")
_REALS: Final = frozenset({"float", "double"})


def values_of(batch: pa.RecordBatch, schema: ValueSchema, name: str) -> list[bytes]:
    """Return the value of each row. Columns that the schema does not have are omitted.

    Args:
        name: the name of the rows in errors.

    Raises:
        UsageError: a column does not fit the schema without a loss.
    """
    present = [c for c in schema.columns if c.column in batch.schema.names]
    columns = [_exact(batch.column(c.column), c, f"column {c.column!r} of {name}") for c in present]
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    return [_ENCODER.encode({c.name: v for c, v in zip(present, row, strict=True) if v is not None}) for row in rows]


def _exact(given: pa.Array, c: ValueColumn, where: str) -> pa.Array:
    """Return a column in the schema's type, with the names that its fields have in values."""
    kind = given.type
    if kinds.is_dictionary(kind):
        given = pa.DictionaryArray.from_arrays(given.indices, _plain(given.dictionary))
        return _exact(given.dictionary_decode(), c, where)
    if kinds.is_null(kind):
        return pa.nulls(len(given), type_of(c))
    if not _is_kind(kind, c):
        raise UsageError(f"{where} is {kind}, and the topic's value schema has {c.type}: cast it, or leave it out")
    if c.type == "struct":
        return _struct(given, c, where)
    if c.type == "list":
        given = given if kinds.is_list(kind) else given.cast(pa.list_(kind.value_type))
        inner = _exact(given.flatten(), c.children[0], where)
        sizes = pc.fill_null(pc.list_value_length(given), 0).to_pylist()
        offsets = [0]
        for size in sizes:
            offsets.append(offsets[-1] + size)
        mask = given.is_null() if given.null_count else None
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), inner, mask=mask)
    if c.type in _REALS and kinds.is_floating(kind):
        _check_finite(given, c, where)
        return given  # unchanged: the column will hold the same number, rounded if it is a float
    try:
        return given.cast(type_of(c))
    except pa.ArrowException as e:
        text = " ".join(str(e).split())
        raise UsageError(f"{where} does not fit {c.type}, which the topic's value schema has: {text}") from e


def _plain(texts: pa.Array) -> pa.Array:
    """Return Polars' strings in the type that Arrow's functions accept."""
    return texts.cast(pa.string()) if kinds.is_string_view(texts.type) else texts


def _struct(given: pa.Array, c: ValueColumn, where: str) -> pa.Array:
    names = [f.name for f in given.type]
    children = {child.name: child for child in c.children}
    if odd := next((n for n in names if n not in children), None):
        raise UsageError(
            f"{where} has a field {odd!r}, which is not in the topic's value schema: leave it out, or add it"
        )
    inner = [
        _exact(column, children[n], f"field {n!r} of {where}") for n, column in zip(names, given.flatten(), strict=True)
    ]
    return pa.StructArray.from_arrays(inner, names, mask=given.is_null() if given.null_count else None)


def _check_finite(given: pa.Array, c: ValueColumn, where: str) -> None:
    if pc.any(pc.invert(pc.is_finite(given))).as_py():
        raise UsageError(f"{where} has NaN or infinity, which JSON cannot express: use null")
    most = max((abs(v) for v in pc.min_max(given).as_py().values() if v is not None), default=0)
    if c.type == "float" and most > FLOAT_MAX:
        raise UsageError(f"{where} has a number beyond a float, which the topic's value schema has: make it a double")


_KINDS: Final[Mapping[str, Callable[[pa.DataType], bool]]] = {
    "boolean": kinds.is_boolean,
    **dict.fromkeys(("int", "long", "float", "double"), lambda k: kinds.is_integer(k) or kinds.is_floating(k)),
    "date": kinds.is_date,
    "timestamp": lambda k: kinds.is_timestamp(k) and k.tz is None,
    "timestamptz": lambda k: kinds.is_timestamp(k) and k.tz is not None,
    "string": lambda k: kinds.is_string(k) or kinds.is_large_string(k) or kinds.is_string_view(k),
    "list": lambda k: kinds.is_list(k) or kinds.is_large_list(k) or kinds.is_fixed_size_list(k),
    "struct": kinds.is_struct,
}
"""For each type of a column, whether an Arrow type holds values of the same kind; a decimal accepts decimals and
integers.
"""


def _is_kind(kind: pa.DataType, c: ValueColumn) -> bool:
    if c.decimal:
        return bool(kinds.is_decimal(kind) or kinds.is_integer(kind))
    return bool(_KINDS[c.type](kind))
