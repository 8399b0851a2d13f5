"""Arrow columns from Python lists, built from buffers, and rows grouped by a column.

pyarrow's own conversion imports pandas first, and so does its grouping; that costs a command 0.2 s and 40 MiB.
Nothing here decides anything; it belongs below the packages that read and write Arrow and Parquet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

T = TypeVar("T")

_NO_ROWS: Final = np.empty(0, np.int32)


def integers(values: Sequence[int | None], kind: pa.DataType | None = None) -> pa.Array:
    """A column of 64-bit integers, or of `kind`, which has to be as wide (a timestamp)."""
    filled, valid = _split(values, 0)
    return pa.Array.from_buffers(
        kind or pa.int64(), len(values), [valid, pa.py_buffer(np.fromiter(filled, np.int64, len(values)))]
    )


def numbers(values: Any) -> pa.Array:
    """A column of 64-bit integers from numpy's; those of another width are converted."""
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values, np.int64))])


def repeated(value: int, times: int, kind: pa.DataType | None = None) -> pa.Array:
    """One 64-bit value, so many times."""
    return pa.Array.from_buffers(kind or pa.int64(), times, [None, pa.py_buffer(np.full(times, value, np.int64))])


def binary(values: Sequence[bytes | None]) -> pa.Array:
    """A column of byte strings, below 2 GiB in all."""
    return _variable(pa.binary(), values)


def strings(values: Sequence[str]) -> pa.Array:
    """A column of text, below 2 GiB in all."""
    return _variable(pa.string(), [v.encode() for v in values])


def scalar(value: int | str) -> pa.Scalar:
    """A value for Arrow's functions; they would convert one of Python's as they convert a list."""
    return (strings([value]) if isinstance(value, str) else integers([value]))[0]


def raw(column: pa.Array) -> memoryview:
    """The bytes of a column of 64-bit integers; a value that is null may be any."""
    if not len(column):
        return memoryview(b"")
    return memoryview(column.buffers()[1])[column.offset * 8 : (column.offset + len(column)) * 8]


class Groups:
    """Rows grouped by the values of a column of 64-bit integers, in the order in which those appear.

    Attributes:
        values: the value of each group; null is one, too.
    """

    def __init__(self, column: pa.Array) -> None:
        encoded = column.dictionary_encode(null_encoding="encode")
        self.values: pa.Array = encoded.dictionary
        self._of = np.frombuffer(encoded.indices.buffers()[1], np.int32, len(column)) if len(column) else _NO_ROWS

    def counts(self) -> pa.Array:
        """The rows of each group."""
        return numbers(np.bincount(self._of, minlength=len(self.values)).astype(np.int64))

    def sums(self, column: pa.Array) -> pa.Array:
        """The sum of 64-bit integers in each group."""
        sums = np.zeros(len(self.values), np.int64)
        np.add.at(sums, self._of, np.frombuffer(raw(column), np.int64))
        return numbers(sums)

    def least(self, column: pa.Array) -> pa.Array:
        """The smallest of 64-bit integers in each group."""
        least = np.full(len(self.values), np.iinfo(np.int64).max)
        np.minimum.at(least, self._of, np.frombuffer(raw(column), np.int64))
        return numbers(least)

    def first(self) -> pa.Array:
        """The number of the first row of each group."""
        first = np.empty(len(self.values), np.int64)
        first[self._of[::-1]] = np.arange(len(self._of) - 1, -1, -1)  # of several the last one written stays
        return numbers(first)


def _variable(kind: pa.DataType, values: Sequence[bytes | None]) -> pa.Array:
    filled, valid = _split(values, b"")
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, filled), np.int32, len(values)), out=offsets[1:])
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(offsets), pa.py_buffer(b"".join(filled))])


def _split(values: Sequence[T | None], missing: T) -> tuple[Sequence[T], pa.Buffer | None]:
    """The values with `missing` for None, and the bitmap of those that are not None, if any is."""
    if None not in values:
        return values, None  # type: ignore[return-value]
    here = np.fromiter((v is not None for v in values), np.bool_, len(values))
    return [missing if v is None else v for v in values], pa.py_buffer(np.packbits(here, bitorder="little"))
