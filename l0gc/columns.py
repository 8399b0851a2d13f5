"""Build Arrow columns from Python lists and from buffers.

pyarrow's own conversion imports pandas first, which costs a command 0.2 s and 40 MiB. This module makes no decisions.
The packages that read and write Arrow and Parquet build on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa


def integers(values: Sequence[int]) -> pa.Array:
    """Return a column of 64-bit integers."""
    return numbers(np.fromiter(values, np.int64, len(values)))


def numbers(values: Any) -> pa.Array:
    """Return a column of 64-bit integers from a numpy array; convert integers of other widths."""
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values, np.int64))])


def repeated(value: int, times: int, kind: pa.DataType | None = None) -> pa.Array:
    """Return a column that repeats one number, as 64-bit integers by default or as another integer or time type."""
    kind = kind or pa.int64()
    return pa.Array.from_buffers(kind, times, [None, pa.py_buffer(np.full(times, value, f"<i{kind.byte_width}"))])


def binary(values: Sequence[bytes | None]) -> pa.Array:
    """Return a column of byte strings, less than 2 GiB in total."""
    return cut([-1 if v is None else len(v) for v in values], pa.py_buffer(b"".join(filter(None, values))))


def cut(sizes: Any, data: pa.Buffer, kind: pa.DataType | None = None) -> pa.Array:
    """Return a column of byte strings, or of `kind`, cut from consecutive slices of `data`, less than 2 GiB in total.

    A negative size stands for null.
    """
    sizes = np.asarray(sizes, np.int32)
    valid = sizes >= 0
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(np.where(valid, sizes, 0), out=offsets[1:])
    return pa.Array.from_buffers(kind or pa.binary(), len(sizes), [bitmap(valid), pa.py_buffer(offsets), data])


def uncut(column: pa.Array) -> tuple[Any, memoryview]:
    """Return the sizes of a column's byte strings, -1 for null, and their bytes, one after another."""
    sizes = np.diff(np.frombuffer(column.buffers()[1], np.int32)[column.offset :][: len(column) + 1])
    if column.null_count:
        sizes[~is_valid(column)] = -1
        column = column.drop_null()  # a null may have bytes
    if not len(column):
        return sizes, memoryview(b"")
    _, offsets, content = column.buffers()
    ends = np.frombuffer(offsets, np.int32)[column.offset :]
    return sizes, memoryview(content or b"")[int(ends[0]) : int(ends[len(column)])]


def lengths(column: pa.Array) -> Any:
    """Return the sizes of a column's byte strings, 0 for null."""
    sizes = np.diff(np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1])
    return sizes.astype(np.int64) if not column.null_count else np.where(is_valid(column), sizes, 0).astype(np.int64)


def bitmap(valid: Any) -> pa.Buffer | None:
    """Return a column's validity bitmap, in which each bit is set if its value is not null; None if no value is null."""
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def is_valid(column: pa.Array) -> Any:
    """Return which values of a column are not null."""
    if not column.null_count:
        return np.ones(len(column), np.bool_)
    if (bitmap_of := column.buffers()[0]) is None:  # the column's type is null
        return np.zeros(len(column), np.bool_)
    bits = np.unpackbits(np.frombuffer(bitmap_of, np.uint8), bitorder="little")  # to_numpy imports pandas
    return bits[column.offset : column.offset + len(column)].astype(np.bool_)


def valid_only(values: Any, valid: Any, kind: pa.DataType) -> pa.Array:
    """Return a column of 64-bit values of `kind`, with null wherever `valid` is false."""
    data = pa.py_buffer(np.ascontiguousarray(values, np.int64))
    return pa.Array.from_buffers(kind, len(values), [bitmap(valid), data])


def strings(values: Sequence[str]) -> pa.Array:
    """Return a column of text, less than 2 GiB in total."""
    text = "".join(values)
    each: Iterable[str | bytes] = values if text.isascii() else (v.encode() for v in values)
    return cut(np.fromiter(map(len, each), np.int32, len(values)), pa.py_buffer(text.encode()), pa.string())


def named(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    """Return the column of this name, ignoring case."""
    at = [i for i, n in enumerate(batch.schema.names) if n.lower() == name]
    return batch.column(at[0]) if at else None


def binary_of(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    """Return the column of this name as byte strings, even if it holds text."""
    column = named(batch, name)
    return column if column is None or column.type == pa.binary() else column.cast(pa.binary())


def scalar(value: int | str | bytes) -> pa.Scalar:
    """Return a value as an Arrow scalar. Arrow's functions would convert a Python value as slowly as a list."""
    if isinstance(value, bytes):
        return binary([value])[0]
    return (strings([value]) if isinstance(value, str) else integers([value]))[0]


def raw(column: pa.Array) -> memoryview:
    """Return the bytes of a column of 64-bit integers; the bytes of a null value are undefined."""
    if not len(column):
        return memoryview(b"")
    return memoryview(column.buffers()[1])[column.offset * 8 : (column.offset + len(column)) * 8]
