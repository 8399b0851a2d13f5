"""Turn the rows of a write's task into L0 objects, which are durable and which no journal names yet.

This is safe, because an object that is never appended becomes garbage once its epoch has passed. Therefore a task may
fail, run twice, or run next to a copy of itself; only objects that its message names and the driver commits (`sink.py`)
are ever read.

A row's partition is given by its column `partition`, or else by its key. Rows with neither are spread round-robin, and
all of those in a micro-batch go to one journal. Therefore a replayed micro-batch, even if it is cut into other tasks,
has the same rows for each journal.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from l0gc import columns
from l0gc.errors import UsageError
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import ControllerState, Topic
from l0gc.streamlog.ingest.extents import RECORD_OVERHEAD, Records, check_records, pack_records
from l0gc.streamlog.ingest.headers_and_times import (
    NO_TIME,
    header_bytes,
    headers_of,
    optional_of,
    sums_of,
    times_of,
)
from l0gc.streamlog.ingest.landing import WrittenObject, write_object
from l0gc.streamlog.ingest.placement import partition_of_key
from l0gc.streamlog.ingest.records import encoded
from l0gc.streamlog.journal.rows import Rows

_Hashes = npt.NDArray[np.uint64]
_ROWS: Final = 1 << 16
"""The number of rows that are processed together."""
_PACKED_AHEAD: Final = 2
_DIGESTED: Final = 1 << 12
"""The number of rows whose digest is computed together, in the processor's cache."""
_BASE: Final = 0x9E3779B97F4A7C15
"""The base of a polynomial. It is odd, so it has an inverse modulo 2^64, and a single changed word always changes the
polynomial.
"""
_PADS: Final = pa.BinaryArray.from_buffers(
    pa.binary(), 8, [None, pa.py_buffer(np.cumsum(np.arange(-1, 8)).astype(np.int32) + 1), pa.py_buffer(bytes(28))]
)
"""The bytes that fill a value up to whole words. `pa.array` would import pandas."""
_HELD: Final = ("key", "value", "partition")
"""The columns of waiting rows, to which `create_time` and `headers` are added if the rows have them."""


@dataclass(slots=True)
class _HeldRows:
    """The rows of a topic that wait for their object."""

    topic: Topic
    rows: list[pa.RecordBatch] = field(default_factory=list)
    size: int = 0


class Stager:
    """Turns the rows of one task into L0 objects.

    Args:
        topic: the topic of all rows; by default, each row names its topic.
        turn: the number of the batch if it may be replayed; otherwise None.
        pool: the executor that packs and writes objects.
        first: the partition at which the round-robin for rows without partition and key begins.
        object_bytes: the size of the records at which an L0 object is closed.
    """

    def __init__(
        self,
        cluster: ClusterHandles,
        topic: str | None,
        pool: Executor,
        *,
        turn: int | None,
        first: int,
        object_bytes: int,
    ) -> None:
        self._cluster, self._default, self._pool = cluster, topic, pool
        self._turn, self._next, self._object_bytes = turn, first, object_bytes
        self._state: ControllerState = cluster.controller.snapshot()
        self._held: dict[str, _HeldRows] = {}

    def run(self, batches: Iterable[pa.RecordBatch]) -> list[WrittenObject]:
        """Write all rows, and return the objects in the order of the rows.

        Raises:
            UsageError: a row has no value or no topic, or names a partition that its topic does not have.
            NotFoundError: a topic does not exist.
        """
        staged: list[WrittenObject] = []
        waiting: deque[Future[WrittenObject]] = deque()
        for topic_rows in self._full(batches):
            waiting.append(self._pool.submit(self._write, topic_rows))
            if len(waiting) > _PACKED_AHEAD:
                staged.append(waiting.popleft().result())
        return staged + [w.result() for w in waiting]

    def _full(self, batches: Iterable[pa.RecordBatch]) -> Iterator[_HeldRows]:
        for whole in batches:
            for at in range(0, whole.num_rows, _ROWS):
                for topic, rows in self._by_topic(whole.slice(at, _ROWS)):
                    yield from self._take(topic, rows)
        yield from self._held.values()

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[Topic, pa.RecordBatch]]:
        names = columns.named(batch, "topic")
        if self._default is not None or names is None:
            yield self._topic(self._default), batch
            return
        encoded = names.dictionary_encode(null_encoding="encode")
        of = encoded.indices.to_numpy()
        for number, name in enumerate(encoded.dictionary.to_pylist()):
            rows = np.flatnonzero(of == number)
            yield self._topic(name), batch if len(rows) == batch.num_rows else batch.take(columns.numbers(rows))

    def _topic(self, name: str | None) -> Topic:
        if name is None:
            raise UsageError("a row names no topic: give option topic, or a value in the column topic")
        return self._state.topic(name)

    def _take(self, topic: Topic, batch: pa.RecordBatch) -> Iterator[_HeldRows]:
        """Buffer rows of a topic, and yield the rows of each object that they fill."""
        value, key = columns.binary_of(batch, "value"), columns.binary_of(batch, "key")
        if value is None:
            row_name = f"a row for topic {topic.name!r}"
            value = columns.binary(encoded(row_name, batch, topic.value_schema))
        elif value.null_count:
            raise UsageError(f"a row for topic {topic.name!r} has no value: a record's value cannot be null")
        keys = key if key is not None else pa.nulls(batch.num_rows, pa.binary())
        more = optional_of(batch, f"a row for topic {topic.name!r}")
        sizes = columns.lengths(value)
        sizes += columns.lengths(keys)
        if "headers" in more:
            sizes += header_bytes(more["headers"])
        check_records(sizes)
        partitions = columns.numbers(self._partitions(topic, self._named(topic, batch), keys))
        rows = pa.RecordBatch.from_arrays([keys, value, partitions, *more.values()], names=[*_HELD, *more])
        ends = np.cumsum(sizes + RECORD_OVERHEAD)
        first, before = 0, 0
        while first < rows.num_rows:
            topic_rows = self._held.setdefault(topic.name, _HeldRows(topic))
            end = min(int(np.searchsorted(ends, before + self._object_bytes - topic_rows.size)) + 1, rows.num_rows)
            topic_rows.rows.append(rows.slice(first, end - first))
            topic_rows.size += int(ends[end - 1]) - before
            first, before = end, int(ends[end - 1])
            if topic_rows.size >= self._object_bytes:
                yield self._held.pop(topic.name)

    # -- partitions ---------------------------------------------------------------------------------------------------

    def _named(self, topic: Topic, batch: pa.RecordBatch) -> Rows:
        n = batch.num_rows
        chosen, column = np.full(n, -1, np.int64), columns.named(batch, "partition")
        if column is not None and column.null_count < n:
            given = column.is_valid().to_numpy(zero_copy_only=False)
            chosen[given] = column.drop_null().cast(pa.int64()).to_numpy()
            wrong = given & ((chosen < 0) | (chosen >= topic.partitions))
            if wrong.any():
                raise UsageError(
                    f"a row names partition {chosen[wrong][0]} of topic {topic.name!r}, which has the partitions 0 to "
                    f"{topic.partitions - 1}"
                )
        return chosen

    def _partitions(self, topic: Topic, named: Rows, keys: pa.Array) -> Rows:
        """Return the partition of each row: the partition that it names, that of its key, or the next one in the
        round-robin.
        """
        chosen = named
        if keys.null_count < len(keys):
            encoded = keys.dictionary_encode(null_encoding="encode")
            by_key = [
                -1 if k is None else partition_of_key(k, topic.partitions) for k in encoded.dictionary.to_pylist()
            ]
            chosen = np.where(named < 0, np.array(by_key, np.int64)[encoded.indices.to_numpy()], named)
        dealt = np.flatnonzero(chosen < 0)
        if not len(dealt):
            return chosen
        first, count = 0, topic.partitions
        if self._turn is not None:
            partition_range = topic.partition_ranges()[self._turn % len(topic.journals)]
            first, count = partition_range.first, partition_range.count
        chosen = chosen.copy()
        chosen[dealt] = first + (self._next + np.arange(len(dealt))) % count
        self._next += len(dealt)
        return chosen

    # -- objects ------------------------------------------------------------------------------------------------------

    def _write(self, topic_rows: _HeldRows) -> WrittenObject:
        topic, rows = topic_rows.topic, pa.concat_batches(topic_rows.rows)
        order = np.argsort(_numbers(rows, "partition"), kind="stable")
        rows = rows.take(columns.numbers(order))
        partitions = _numbers(rows, "partition")
        sizes, values = columns.uncut(rows.column("value"))
        keys = rows.column("key").to_pylist()
        times, headers = _times(rows), columns.named(rows, "headers")
        packed = pack_records(topic, Records(partitions, sizes, values, keys, times, headers))
        o = write_object(self._cluster, topic, packed)
        digests: dict[int, int] = {}
        for partition_range in topic.partition_ranges():
            first, end = np.searchsorted(partitions, (partition_range.first, partition_range.end)).tolist()
            parts = (rows.slice(at, min(_DIGESTED, end - at)) for at in range(first, end, _DIGESTED))
            digests[partition_range.journal] = sum(_digest(topic.name, p) for p in parts)
        return WrittenObject(o.object, o.topic, o.left, digests=digests)


def _times(rows: pa.RecordBatch) -> Rows | None:
    times = columns.named(rows, "create_time")
    return None if times is None else times_of(times)


def _digest(topic: str, rows: pa.RecordBatch) -> int:
    return digest_of(topic, rows.column("value"), rows.column("key"), _times(rows), columns.named(rows, "headers"))


def _numbers(rows: pa.RecordBatch, name: str) -> Rows:
    return np.frombuffer(columns.raw(rows.column(name)), np.int64)


# -- the digest of rows ---------------------------------------------------------------------------------------------------


def digest_of(
    topic: str,
    values: pa.Array,
    keys: pa.Array,
    times: Rows | None = None,
    headers: pa.Array | None = None,
) -> int:
    """Return the digest of rows of a topic, by which a batch that is repeated under its number is compared with the
    landed one. It detects mistakes, but not an attacker who searches for two batches with the same digest.

    It is the sum of a hash of each row, modulo 2^64, so the same rows have the same digest in any order, and however
    they are cut into tasks and objects. A row's hash covers its topic, value, key, create time and headers, but not its
    partition, which a replay may choose anew, since the column may be `rand()`. A function called for each row would
    cost a third as much as the rest of a task's work.

    Args:
        times, headers: a row without them has the same hash as in versions that did not support them.
    """
    # An earlier version also hashed the partition; this is its seed for no partition (-1).
    seed = (zlib.crc32(topic.encode()) << 32 | len(topic)) - 1
    hashes = _hashes(np.full(len(values), seed, np.uint64), values, keys)
    if times is not None:
        hashes += np.where(times == NO_TIME, np.uint64(0), _mixed(times.astype(np.uint64) + np.uint64(1)))
    if headers is not None:
        counts, header_keys, header_values = headers_of(headers)
        ends = np.cumsum(counts)
        ordinals = np.arange(len(header_keys)) - np.repeat(ends - counts, counts)
        each = _mixed(_hashes(ordinals.astype(np.uint64), header_keys.cast(pa.binary()), header_values))
        hashes = np.where(counts > 0, _mixed(hashes) + sums_of(each, counts), hashes)
    return int(_mixed(hashes).sum(dtype=np.uint64))


def _hashes(seeds: _Hashes, values: pa.Array, keys: pa.Array) -> _Hashes:
    """Return a hash of each value with its key. Both may be null."""
    hashes = _mixed(seeds)
    without_key, without_value = ~columns.is_valid(keys), ~columns.is_valid(values)
    value_lengths, key_lengths = (
        np.where(without_value, 0, columns.lengths(values)),
        np.where(without_key, 0, columns.lengths(keys)),
    )
    for of_row in (np.where(without_key, -1, key_lengths), np.where(without_value, -1, value_lengths)):
        hashes = _mixed(hashes + of_row.astype(np.uint64))
    joined = [values, _PADS.take(columns.numbers(-value_lengths & 7))]
    if key_lengths.any():
        joined += [keys, _PADS.take(columns.numbers(-key_lengths & 7))]
    filled = pc.binary_join_element_wise(*joined, _PADS[0], null_handling="replace", null_replacement="")
    ends = np.cumsum(columns.lengths(filled) >> 3)
    hashes += _polynomials(np.frombuffer(filled.buffers()[2] or b"", "<u8", int(ends[-1]) if len(ends) else 0), ends)
    return hashes


def _polynomials(words: _Hashes, ends: Rows) -> _Hashes:
    """Return the polynomial over the words of each row, whose end is in `ends`."""
    powers, inverses = _powers(1 << len(words).bit_length())
    terms = words >> np.uint64(32)  # so that a difference is never only in the highest bits
    terms ^= words
    terms *= powers[: len(words)]
    sums = np.zeros(len(words) + 1, np.uint64)
    np.cumsum(terms, out=sums[1:])
    starts = np.concatenate([[0], ends[:-1]])
    polynomials: _Hashes = (sums[ends] - sums[starts]) * inverses[starts]
    return polynomials


@lru_cache(2)
def _powers(count: int) -> tuple[_Hashes, _Hashes]:
    """Return the first powers of the base, and their inverses."""
    bases = (_BASE, pow(_BASE, -1, 1 << 64))
    powers, inverses = (np.cumprod(np.full(count, base, np.uint64), dtype=np.uint64) for base in bases)
    return powers, inverses


def _mixed(x: _Hashes) -> _Hashes:
    """Return numbers in which each bit affects all bits (the finalizer of SplitMix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
