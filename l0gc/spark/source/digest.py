"""The digest of a batch's rows, by which a batch that is repeated under its number is compared with the one that landed.

It is the sum of a hash of each row, modulo 2^64: the same rows have the same digest, in whatever order they come and however
they are cut into tasks and objects. A row's hash covers its topic, value and key, and the partition that it names, but not
the one that it was dealt to, which may differ in a replay. It finds mistakes; it does not withstand somebody who searches
for two batches with the same digest.

The hash is a polynomial over the row's words of eight bytes, which numpy computes for thousands of rows together. A function
that is called for each row would cost a third of what the rest of a task's work costs.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from l0gc import columns
from l0gc.streamlog.journal.rows import Rows

_Words = npt.NDArray[np.uint64]
_MASK: Final = (1 << 64) - 1
_BASE: Final = 0x9E3779B97F4A7C15
"""The polynomial's base. It is odd, so it has an inverse modulo 2^64, and one changed word always changes the polynomial."""
_CHUNK_WORDS: Final = 1 << 15
"""About so many words are computed together, which stay in the processor's cache."""
_PADS: Final = pa.BinaryArray.from_buffers(
    pa.binary(), 8, [None, pa.py_buffer(np.cumsum(np.arange(-1, 8)).astype(np.int32) + 1), pa.py_buffer(bytes(28))]
)
"""What fills a value or a key up to whole words; their lengths are hashed, too. `pa.array` would import pandas."""


def digest_of(topic: str, values: pa.Array, keys: pa.Array, named: Rows) -> int:
    """The digest of these rows of a topic; `named` has the partition that each row names, -1 where it names none."""
    salt = np.uint64((zlib.crc32(topic.encode()) << 32 | len(topic)) * _BASE & _MASK)
    without_key = keys.is_null().to_numpy(zero_copy_only=False)
    value_lengths, key_lengths = lengths_of(values), np.where(without_key, 0, lengths_of(keys))
    hashes = _mixed(salt + _unsigned(named))
    for of_row in (np.where(without_key, -1, key_lengths), value_lengths):
        hashes = _mixed(hashes + _unsigned(of_row))
    joined = [values, _PADS.take(columns.numbers(-value_lengths & 7))]
    if key_lengths.any():
        joined += [keys, _PADS.take(columns.numbers(-key_lengths & 7))]
    filled = pc.binary_join_element_wise(*joined, _PADS[0], null_handling="replace", null_replacement="")
    lengths = lengths_of(filled) >> 3
    ends, words = np.cumsum(lengths), np.frombuffer(filled.buffers()[2] or b"", "<u8", int(lengths.sum()))
    for first, end in _chunks(ends):
        before = int(ends[first - 1]) if first else 0
        hashes[first:end] += _polynomials(words[before : int(ends[end - 1])], ends[first:end] - before)
    return int(_mixed(hashes).sum(dtype=np.uint64))


def lengths_of(column: pa.Array) -> Rows:
    """The bytes of each value, none of a null."""
    offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
    lengths: Rows = np.diff(offsets).astype(np.int64)
    return lengths


def _unsigned(values: Rows) -> _Words:
    return values.astype(np.uint64)


def _chunks(ends: Rows) -> Iterator[tuple[int, int]]:
    """Runs of rows of which each has about `_CHUNK_WORDS` words; `ends` says at which word each row ends."""
    first = 0
    while first < len(ends):
        before = int(ends[first - 1]) if first else 0
        end = max(first + 1, int(np.searchsorted(ends, before + _CHUNK_WORDS)))
        yield first, end
        first = end


def _polynomials(words: _Words, ends: Rows) -> _Words:
    """The polynomial over the words of each row, which ends at the word in `ends`."""
    powers, inverses = _powers(1 << max(_CHUNK_WORDS, len(words)).bit_length())
    terms = words >> np.uint64(32)  # so that a difference is never in the highest bits alone
    terms ^= words
    terms *= powers[: len(words)]
    sums = np.zeros(len(words) + 1, np.uint64)
    np.cumsum(terms, out=sums[1:])
    starts = np.concatenate([[0], ends[:-1]])
    polynomials: _Words = (sums[ends] - sums[starts]) * inverses[starts]
    return polynomials


@lru_cache(2)
def _powers(count: int) -> tuple[_Words, _Words]:
    """The first powers of the base, and their inverses."""
    both = []
    for base in (_BASE, pow(_BASE, -1, 1 << 64)):
        factors = np.full(count, base, np.uint64)
        factors[0] = 1
        both.append(np.cumprod(factors, dtype=np.uint64))
    return both[0], both[1]


def _mixed(x: _Words) -> _Words:
    """Each number's bits, spread over the whole number (the finalizer of SplitMix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
