"""Reading a slice of a topic in a task: L1 first, then the L0 objects above it, each record once, each partition in order.

The plan holds offsets and names no object. The task asks the journal, as it is now, where those offsets lie; so an object
that was reconciled, merged away or swept since the plan costs nothing (hazard 19). Where one goes between that look and the
read, the task looks again and goes on from the record that is next in each partition. Only an object that the journal still
names after it was found missing is a loss, and is reported as one.

In a partition, all that is in L1 lies below all that is not, and the journal's objects are in the order of their offsets. So
a task reads the L1 objects of its partitions one after another, then each L0 object once, for all of them, and holds no more
than what it fetches ahead.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, fields, replace
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa

from l0gc import columns
from l0gc.errors import CorruptObjectError, ObjectNotFoundError, OffsetOutOfRangeError, PartitionClosedError
from l0gc.events import event
from l0gc.spark.source.l1 import Chunk, Opened, Times, WantedFile, chunks, decode, fetch_chunk, open_l1, wanted_groups
from l0gc.spark.source.split import Slice
from l0gc.storage.objectstore import ObjectStore
from l0gc.streamlog.ingest.extents import SCHEMA as RECORDS
from l0gc.streamlog.ingest.extents import decode_block, fetch
from l0gc.streamlog.journal.handle import JournalHandle
from l0gc.streamlog.journal.rows import Rows, distinct
from l0gc.streamlog.journal.state import JournalState
from l0gc.streamlog.journal.topic import TopicState, UnreconciledObject
from l0gc.streamlog.level_one.index import files_of, l1_key

A = TypeVar("A")
B = TypeVar("B")

_log: Final = logging.getLogger(__name__)
_FOOTERS_AHEAD: Final = 8
_CHUNKS_AHEAD: Final = 2
_OBJECTS_AHEAD: Final = 3
THREADS: Final = 4
"""How many of these are fetched at once."""
_STORED: Final = ("key", "value", "offset", "timestamp", "epoch")
_TIME: Final = pa.timestamp("us", tz="UTC")


@dataclass(slots=True)
class Counters:
    """What reading took: objects and row groups that were fetched, their bytes, and what of L1 a filter left out."""

    l0_objects: int = 0
    l1_objects: int = 0
    l1_objects_skipped: int = 0
    row_groups: int = 0
    row_groups_skipped: int = 0
    bytes: int = 0
    records: int = 0


@dataclass(frozen=True, slots=True)
class WantedObject:
    """An L0 object, and those of its extents that are wanted, cut to what is wanted of them."""

    object: UnreconciledObject
    extents: Rows

    @property
    def blocks(self) -> list[int]:
        numbers: list[int] = distinct(self.extents["block"]).tolist()
        return numbers


class _GoneError(Exception):
    """An object is not there any more; `error` names it."""

    def __init__(self, error: ObjectNotFoundError) -> None:
        super().__init__(str(error))
        self.error = error


class SliceReader:
    """Reads one slice.

    Args:
        journal: the journal that the slice's partitions lie in.
        schema: what to give: some of the source's columns, as Spark wants them.
        times: leave out what lies wholly outside.
        pool: fetches ahead.
    """

    def __init__(
        self,
        store: ObjectStore,
        journal: JournalHandle,
        wanted: Slice,
        schema: pa.Schema,
        pool: Executor,
        *,
        times: Times | None = None,
        fail_on_data_loss: bool = True,
    ) -> None:
        self._store, self._journal, self._pool = store, journal, pool
        self._topic, self._schema = wanted.topic, schema
        self._times, self._fail = times, fail_on_data_loss
        ranges = wanted.ranges()
        self._partitions: Rows = ranges["partition"].astype(np.int64)
        self._next: Rows = ranges["base"].copy()
        self._ends: Rows = ranges["last"] + 1
        self._missed = ""
        self._names = [n for n in _STORED if n in schema.names or n == "offset"]
        self.counters = Counters()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The records, in order within each partition.

        Raises (as it is iterated):
            CorruptObjectError: an object does not hold what the journal says, or is missing while the journal needs it.
            OffsetOutOfRangeError: records were deleted before they could be read.
            PartitionClosedError: the topic was deleted.
        """
        while (self._next < self._ends).any():
            self._journal.catch_up()
            known = self._known()
            try:
                yield from self._from_l1(known)
                yield from self._from_l0(known)
            except _GoneError as gone:
                self._check_not_lost(gone)
                continue
            self._check_whole()
        counters = {f.name: getattr(self.counters, f.name) for f in fields(self.counters)}
        _log.info("read a slice of topic %r: %s", self._topic.name, counters, extra=event("slice_read", **counters))

    # -- what the journal says ----------------------------------------------------------------------------------------

    def _known(self) -> TopicState:
        """A copy of the topic's state, which does not change while it is read."""
        with self._journal.replica.lock:
            state = self._journal.state
            if state.closed(self._topic.revision):
                raise PartitionClosedError(
                    f"topic {self._topic.name!r} (revision {self._topic.revision}) was deleted while it was read"
                )
            known = state.topics.get(self._topic.revision, TopicState(self._topic.revision, ""))
            known = replace(known, objects=list(known.objects), reconciled=known.reconciled.copy())
            starts = np.array([known.view(p).log_start_offset for p in self._partitions.tolist()], np.int64)
        lost = (self._next < starts) & (self._next < self._ends)
        for at in np.flatnonzero(lost).tolist():
            message = (
                f"records {self._next[at]} to {min(starts[at], self._ends[at]) - 1} of partition "
                f"{self._topic.name}/{self._partitions[at]} were deleted before they were read"
            )
            if self._fail:
                raise OffsetOutOfRangeError(f"{message}; with option failOnDataLoss=false they are left out")
            _log.warning("%s; they are left out", message, extra=event("data_loss"))
        self._next = np.where(lost, np.minimum(starts, self._ends), self._next)
        return known

    def _check_not_lost(self, gone: _GoneError) -> None:
        """What is missing again, though the journal was asked between, was not replaced: it is lost."""
        if self._missed == str(gone):
            raise CorruptObjectError(
                f"{gone}, though topic {self._topic.name!r} needs it; restore that object from a version"
            ) from gone.error
        self._missed = str(gone)

    def _check_whole(self) -> None:
        for at in np.flatnonzero(self._next < self._ends).tolist():
            raise self._hole(at)

    def _hole(self, at: int) -> CorruptObjectError:
        return CorruptObjectError(
            f"partition {self._topic.name}/{self._partitions[at]}: record {self._next[at]} is in no object that the journal "
            "names"
        )

    # -- L1 ------------------------------------------------------------------------------------------------------------

    def _from_l1(self, known: TopicState) -> Iterator[pa.RecordBatch]:
        def opened() -> Iterator[tuple[int, Opened]]:
            def open_at(wanted: tuple[int, WantedFile]) -> tuple[int, Opened]:
                return wanted[0], open_l1(self._store, wanted[1], self._times)

            yield from self._ahead(open_at, self._files(known), _FOOTERS_AHEAD)

        def wanted() -> Iterator[tuple[int, Opened, Chunk | None]]:
            for at, o in opened():
                groups = wanted_groups(o, self._times)
                self.counters.l1_objects += o.metadata is not None
                self.counters.l1_objects_skipped += o.metadata is None
                self.counters.row_groups += len(groups)
                self.counters.row_groups_skipped += len(o.groups) - len(groups)
                for chunk in chunks(o, groups):
                    yield at, o, chunk
                yield at, o, None

        def fetched(at_chunk: tuple[int, Opened, Chunk | None]) -> tuple[int, Opened, Chunk | None]:
            at, o, chunk = at_chunk
            return at, o, None if chunk is None else fetch_chunk(self._store, chunk, self._names)

        for at, o, chunk in self._ahead(fetched, wanted(), _CHUNKS_AHEAD):
            if o.wanted.file.base_offset > self._next[at]:
                raise self._hole(at)
            if chunk is None:
                self._next[at] = max(self._next[at], min(self._ends[at], o.wanted.file.last_offset + 1))
                continue
            self.counters.bytes += sum(len(body) for _, body in chunk.pieces)
            for base, batch in decode(chunk, self._names):
                first = max(int(self._next[at]), base)
                n = min(int(self._ends[at]), base + batch.num_rows) - first
                if n > 0:
                    self._next[at] = first + n
                    yield self._of_l1(at, batch.slice(first - base, n))

    def _files(self, known: TopicState) -> Iterator[tuple[int, WantedFile]]:
        """The L1 objects that are wanted, partition by partition in order of offset."""
        state = JournalState(topics={known.revision: known})
        for at, partition in enumerate(self._partitions.tolist()):
            start, end = int(self._next[at]), int(self._ends[at])
            if start >= end or start > known.view(partition).last_reconciled_offset:
                continue
            p = self._topic.id(partition)
            try:
                for f in files_of(self._store, p, state, start):
                    if f.base_offset >= end:
                        break
                    if f.last_offset >= start:
                        yield at, WantedFile(l1_key(p, f), f, start, end)
            except ObjectNotFoundError as e:
                raise _GoneError(e) from e

    def _of_l1(self, at: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.counters.records += batch.num_rows
        found = {name: batch.column(name) for name in self._names}
        return self._batch(found, batch.num_rows, np.int32(self._partitions[at]))

    # -- L0 ------------------------------------------------------------------------------------------------------------

    def _from_l0(self, known: TopicState) -> Iterator[pa.RecordBatch]:
        def fetched(wanted: WantedObject) -> tuple[WantedObject, list[bytes]]:
            blocks = [wanted.object.block(n) for n in wanted.blocks]
            return wanted, fetch(self._store, wanted.object.key, [(b.start, b.length) for b in blocks])

        for wanted, bodies in self._ahead(fetched, self._objects(known), _OBJECTS_AHEAD):
            self.counters.l0_objects += 1
            self.counters.bytes += sum(map(len, bodies))
            at = self._places(wanted.extents)
            if (wanted.extents["base"] > self._next[at]).any():
                raise self._hole(int(at[np.argmax(wanted.extents["base"] > self._next[at])]))
            batch = self._of_l0(wanted, bodies)
            self._next[at] = wanted.extents["base"] + wanted.extents["records"]
            yield batch

    def _places(self, extents: Rows) -> Rows:
        return np.searchsorted(self._partitions, extents["partition"])

    def _objects(self, known: TopicState) -> Iterator[WantedObject]:
        """The L0 objects that are wanted, in the order of the log, which is that of the offsets in each partition."""
        starts = self._next.copy()  # fixed, since later objects are looked up before earlier ones are read
        for o in known.objects:
            at = self._places(o.extents)
            at[at == len(self._partitions)] = 0
            first = np.maximum(o.extents["base"], starts[at])
            end = np.minimum(o.extents["base"] + o.extents["records"], self._ends[at])
            inside = (self._partitions[at] == o.extents["partition"]) & (first < end)
            if inside.any():
                cut = o.extents[inside].copy()
                cut["row"] += (first[inside] - cut["base"]).astype(np.int32)
                cut["base"], cut["records"] = first[inside], end[inside] - first[inside]
                yield WantedObject(o, cut)

    def _of_l0(self, wanted: WantedObject, bodies: Sequence[bytes]) -> pa.RecordBatch:
        o, extents = wanted.object, wanted.extents
        found: list[pa.RecordBatch] = []
        for number, body in zip(wanted.blocks, bodies, strict=True):
            mine = extents[extents["block"] == number]
            at_least = int((mine["row"].astype(np.int64) + mine["records"]).max())
            found.append(_rows(decode_block(body, o.key, o.block(number), at_least), mine))
        # An extent's block rises with it, so the rows lie in the order of the extents.
        counts = extents["records"].astype(np.int64)
        begins = np.cumsum(counts) - counts
        total = int(counts.sum())
        self.counters.records += total
        stored = {f.name: pa.concat_arrays([b.column(f.name) for b in found]) for f in RECORDS}
        stored["offset"] = _integers(np.repeat(extents["base"] - begins, counts) + np.arange(total))
        stored["epoch"] = columns.repeated(o.epoch, total)
        return self._batch(stored, total, np.repeat(extents["partition"].astype(np.int32), counts))

    # -- both ------------------------------------------------------------------------------------------------------------

    def _batch(self, stored: dict[str, pa.Array], records: int, partition: Rows | np.int32) -> pa.RecordBatch:
        """Records as Spark wants them, given what is stored of them and their partition."""
        arrays = []
        for f in self._schema:
            if f.name == "partition":
                numbers = np.ascontiguousarray(np.broadcast_to(partition, records), np.int32)
                arrays.append(pa.Array.from_buffers(pa.int32(), records, [None, pa.py_buffer(numbers)]))
            elif f.name == "topic":
                arrays.append(pa.repeat(columns.scalar(self._topic.name), records))
            elif f.name == "timestamp":
                arrays.append(stored["timestamp"].cast(_TIME))
            else:
                arrays.append(stored[f.name])
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _ahead(self, work: Callable[[A], B], items: Iterable[A], depth: int) -> Iterator[B]:
        """What `work` makes of each item, in their order, some of them ahead on the pool."""
        waiting: deque[Future[B]] = deque()
        try:
            for item in items:
                waiting.append(self._pool.submit(work, item))
                if len(waiting) > depth:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except ObjectNotFoundError as e:
            raise _GoneError(e) from e
        finally:
            for future in waiting:
                future.cancel()


def _rows(batch: pa.RecordBatch, extents: Rows) -> pa.RecordBatch:
    """The rows of a block's extents, one after the other."""
    counts = extents["records"].astype(np.int64)
    at = np.cumsum(counts) - counts
    first = int(extents["row"][0])
    if (extents["row"] == at + first).all():
        return batch.slice(first, int(counts.sum()))
    return batch.take(_integers(np.repeat(extents["row"] - at, counts) + np.arange(counts.sum())))


def _integers(values: Rows) -> pa.Array:
    return pa.Array.from_buffers(
        pa.int64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values, dtype=np.int64))]
    )
