"""What a task of a write does: its rows become L0 objects, which are durable, and which no journal knows yet.

That is harmless: an object that is never appended is garbage as soon as its epoch has passed. So a task may fail, run twice,
or run next to a copy of itself, and only what its message names, and the driver commits (`commit.py`), is ever read.

Which partition a row goes to follows from the row: the column `partition`, else its key. Rows that have neither are dealt to
the partitions round-robin, and those of one micro-batch all lie in one journal. So a micro-batch that is replayed, perhaps
cut into other tasks, brings each journal the same rows again.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from l0gc import columns
from l0gc.errors import BadRecordError
from l0gc.spark.source.digest import digest_of, lengths_of
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.controller.state import ControllerState, Topic
from l0gc.streamlog.ingest.extents import RECORD_OVERHEAD, Records, pack_for, placeholder
from l0gc.streamlog.ingest.inputs import MAX_RECORD_BYTES
from l0gc.streamlog.journal.entries import ObjectExtents
from l0gc.streamlog.journal.rows import NUMBER, Rows

_ROWS: Final = 1 << 16
"""So many rows are looked at together."""
_PACKED_AHEAD: Final = 2


@dataclass(frozen=True, slots=True)
class StagedObject:
    """An L0 object that is in the store, the entry that each journal gets for it, and the digest of its rows."""

    key: str
    epoch: int
    topic: str
    records: int
    bytes: int
    parts: Mapping[int, ObjectExtents]
    digest: int


@dataclass(slots=True)
class _HeldRows:
    """The rows of a topic that wait for their object."""

    topic: Topic
    keys: list[pa.Array] = field(default_factory=list)
    values: list[pa.Array] = field(default_factory=list)
    partitions: list[Rows] = field(default_factory=list)
    named: list[Rows] = field(default_factory=list)
    size: int = 0


class Stager:
    """Turns the rows of one task into L0 objects.

    Args:
        topic: that of rows that name none.
        turn: of a batch that may be replayed its number, else None.
        pool: packs and writes.
        first: where the turn of rows begins that have neither partition nor key.
        object_bytes: size of the records at which an L0 object is closed.
    """

    def __init__(
        self,
        cluster: Cluster,
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

    def run(self, batches: Iterable[pa.RecordBatch]) -> list[StagedObject]:
        """Write all rows; the objects in the order of the rows.

        Raises:
            BadRecordError: a row has no value, or names no topic, or a partition that its topic does not have.
            TopicNotFoundError: there is no such topic.
        """
        staged: list[StagedObject] = []
        waiting: deque[Future[StagedObject]] = deque()
        for held in self._full(batches):
            waiting.append(self._pool.submit(self._write, held))
            if len(waiting) > _PACKED_AHEAD:
                staged.append(waiting.popleft().result())
        return staged + [w.result() for w in waiting]

    def _full(self, batches: Iterable[pa.RecordBatch]) -> Iterator[_HeldRows]:
        for whole in batches:
            if not whole.num_rows:
                continue
            for at in range(0, whole.num_rows, _ROWS):
                batch = whole.slice(at, _ROWS)
                for topic, rows in self._by_topic(batch):
                    yield from self._take(topic, rows)
        yield from (held for held in self._held.values() if held.values)

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[Topic, pa.RecordBatch]]:
        names = _column(batch, "topic")
        if names is None:
            yield self._topic(self._default), batch
            return
        encoded = names.dictionary_encode(null_encoding="encode")
        of = np.frombuffer(encoded.indices.buffers()[1], np.int32)[encoded.indices.offset :][: len(names)]
        for number, name in enumerate(encoded.dictionary.to_pylist()):
            rows = np.flatnonzero(of == number)
            topic = self._topic(name if name is not None else self._default)
            yield topic, batch if len(rows) == batch.num_rows else batch.take(columns.numbers(rows))

    def _topic(self, name: str | None) -> Topic:
        if name is None:
            raise BadRecordError("a row names no topic: give option topic, or a value in the column topic")
        return self._state.topic(name)

    def _take(self, topic: Topic, batch: pa.RecordBatch) -> Iterator[_HeldRows]:
        """Hold rows of a topic; yields what is full with them."""
        value, key = _binary(batch, "value"), _binary(batch, "key")
        assert value is not None
        if value.null_count:
            raise BadRecordError(f"a row for topic {topic.name!r} has no value: a record's value cannot be null")
        keys = key if key is not None else pa.nulls(batch.num_rows, pa.binary())
        sizes = lengths_of(value)
        if len(sizes) and sizes.max() > MAX_RECORD_BYTES:
            raise BadRecordError(
                f"a value of {sizes.max()} bytes is longer than the {MAX_RECORD_BYTES} that a record may have"
            )
        named = self._named(topic, batch)
        partitions = self._partitions(topic, named, keys)
        ends = np.cumsum(sizes + RECORD_OVERHEAD + lengths_of(keys))
        first, before = 0, 0
        while first < batch.num_rows:
            held = self._held.setdefault(topic.name, _HeldRows(topic))
            end = min(int(np.searchsorted(ends, before + self._object_bytes - held.size)) + 1, batch.num_rows)
            held.keys.append(keys.slice(first, end - first))
            held.values.append(value.slice(first, end - first))
            held.partitions.append(partitions[first:end])
            held.named.append(named[first:end])
            held.size += int(ends[end - 1]) - before
            first, before = end, int(ends[end - 1])
            if held.size >= self._object_bytes:
                yield self._held.pop(topic.name)

    # -- partitions ---------------------------------------------------------------------------------------------------

    def _named(self, topic: Topic, batch: pa.RecordBatch) -> Rows:
        """The partition that each row names, -1 where it names none."""
        n = batch.num_rows
        chosen, column = np.full(n, -1, np.int64), _column(batch, "partition")
        if column is not None and column.null_count < n:
            given = column.is_valid().to_numpy(zero_copy_only=False)
            chosen[given] = column.drop_null().cast(pa.int64()).to_numpy()
            wrong = given & ((chosen < 0) | (chosen >= topic.partitions))
            if wrong.any():
                raise BadRecordError(
                    f"a row names partition {chosen[wrong][0]} of topic {topic.name!r}, which has the partitions 0 to "
                    f"{topic.partitions - 1}"
                )
        return chosen

    def _partitions(self, topic: Topic, named: Rows, keys: pa.Array) -> Rows:
        chosen, n = named, len(named)
        open_ = chosen < 0
        if not open_.any():
            return chosen.astype(NUMBER)
        if keys.null_count < n:
            encoded = keys.dictionary_encode(null_encoding="encode")
            places = [-1 if k is None else zlib.crc32(k) % topic.partitions for k in encoded.dictionary.to_pylist()]
            by_key = np.array(places, np.int64)[encoded.indices.to_numpy()]
            chosen = np.where(open_, by_key, chosen)
            open_ = chosen < 0
        if open_.any():
            first, count = 0, topic.partitions
            if self._turn is not None:
                run = topic.runs()[self._turn % len(topic.journals)]
                first, count = run.first, run.count
            turns = self._next + np.arange(int(open_.sum()))
            self._next += len(turns)
            chosen = chosen.copy()
            chosen[open_] = first + turns % count
        return chosen.astype(NUMBER)

    # -- objects ------------------------------------------------------------------------------------------------------

    def _write(self, held: _HeldRows) -> StagedObject:
        topic, partitions = held.topic, np.concatenate(held.partitions)
        values, keys = pa.concat_arrays(held.values), pa.concat_arrays(held.keys)
        digest = digest_of(topic.name, values, keys, np.concatenate(held.named))
        order = np.argsort(partitions, kind="stable")
        values, keys = (column.take(columns.numbers(order)) for column in (values, keys))
        records = Records(partitions[order], lengths_of(values), values.to_pylist(), keys.to_pylist())
        used, packed = pack_for(topic, records)
        epoch = self._cluster.controller.epoch(at_least=topic.revision)
        key = self._cluster.write_l0(packed.body, epoch)
        runs = topic.runs()
        parts = {runs[n].journal: placeholder(topic, key, epoch, p) for n, p in zip(used, packed.parts, strict=True)}
        return StagedObject(key, epoch, topic.name, len(records.values), len(packed.body), parts, digest)


def _column(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    """A column by its name, whatever its case."""
    at = [i for i, n in enumerate(batch.schema.names) if n.lower() == name]
    return batch.column(at[0]) if at else None


def _binary(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    column = _column(batch, name)
    return column if column is None or column.type == pa.binary() else column.cast(pa.binary())
