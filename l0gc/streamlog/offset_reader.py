"""Read ranges of offsets: L1 first, then the L0 objects above it, each record once, each partition in order.

A caller names offsets, not objects. The journal's current state shows where they lie, so an object that was reconciled,
merged or swept earlier has no effect (hazard 19). If an object is deleted between that look and the read, the reader looks
again and continues with the next record of each partition. An object is reported as lost only if the journal still names
it after it was found missing. A hole, which covers given-up offsets, is reported, and ends the reading unless the caller
skips it.

If only offsets are requested, for example for a count, the journal has them, and no object is read.

In a partition, all of L1 lies below all of L0, and the journal's objects are in order of offset. So the partitions' own L1
objects are read one after another, then each shared L1 object and each L0 object once for all partitions. If a partition
has its own objects above rows of shared ones, these follow in another pass, and a shared object is read only once all of
its partitions have reached it. Memory holds only the objects that are fetched ahead.

The columns of a value schema are read only from L1 objects whose footers have this schema's number. For all other records
they are parsed from the values, as in a reconcile. A schema's number is never assigned again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from l0gc import columns
from l0gc.errors import CorruptObjectError, ObjectNotFoundError, RecordsLostError, UsageError
from l0gc.events import event
from l0gc.storage.parallel import Parallel
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.ingest.extents import decode_block, fetch_blocks, select
from l0gc.streamlog.ingest.headers_and_times import column_of
from l0gc.streamlog.journal.handle import JournalHandle
from l0gc.streamlog.journal.rows import Rows
from l0gc.streamlog.journal.topic import STAMPED, TopicState, UnreconciledObject, l1_key
from l0gc.streamlog.level_one import parquet
from l0gc.streamlog.topic_view import deleted, objects_within, topic_copy
from l0gc.streamlog.values.parse import parser_of

_log: Final = logging.getLogger(__name__)
_OFFSETS: Final = 1 << 17
"""The most offsets in one piece, if only offsets are requested."""
_NOT_TYPED: Final = {*parquet.L1_FILE.names, "topic"}


@dataclass(slots=True)
class Counters:
    """Counts of the objects, row groups and bytes that a read fetched, of the row groups of L1 that it skipped, and of its
    records.
    """

    l0_objects: int = 0
    l1_objects: int = 0
    row_groups: int = 0
    row_groups_skipped: int = 0
    bytes: int = 0
    records: int = 0


class Piece(NamedTuple):
    """Records that were read together: the requested columns and their offsets.

    `partition` is one number for all records, or one for each, in ascending order.
    """

    partition: int | Rows
    batch: pa.RecordBatch


def as_rows(topic: Topic, piece: Piece, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of `schema`, including the topic's name, for records that were read with these names.

    Raises:
        UsageError: the topic no longer has one of the columns with that type.
    """
    records, arrays = piece.batch.num_rows, list[pa.Array]()
    for f in schema:
        if f.name not in _NOT_TYPED:
            if f.name not in piece.batch.schema.names or piece.batch.column(f.name).type != f.type:
                raise UsageError(
                    f"topic {topic.name!r} has no column {f.name!r} of type {f.type}: its value schema was altered since "
                    "the read was prepared; load again"
                )
            array = piece.batch.column(f.name)
        elif f.name == "partition":
            numbers = np.ascontiguousarray(np.broadcast_to(piece.partition, records), np.int32)
            array = pa.Array.from_buffers(pa.int32(), records, [None, pa.py_buffer(numbers)])
        else:
            array = pa.repeat(columns.scalar(topic.name), records) if f.name == "topic" else piece.batch.column(f.name)
        arrays.append(array if array.type == f.type else array.cast(f.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class OnDeleted(Protocol):
    """Handles records that were deleted before they could be read: raises, or returns to skip them."""

    def __call__(self, partition: int, offset: int, end: int, log_start: int, *, begun: bool) -> None:
        """Called if `offset` was next; the range ends before `end`, and `begun` is whether some of it was read."""
        ...


class _GoneError(Exception):
    """An object is missing that should hold a record of the partition in row `at`."""

    def __init__(self, at: int, offset: int, error: ObjectNotFoundError) -> None:
        super().__init__(str(error))
        self.at, self.offset, self.error = at, offset, error


@contextmanager
def _holding(at: int, offset: int) -> Iterator[None]:
    try:
        yield
    except ObjectNotFoundError as e:
        raise _GoneError(at, offset, e) from e


class OffsetReader:
    """Reads a range of offsets from each of several partitions of one journal.

    Args:
        journal: a handle that has caught up recently.
        ranges: rows of `RANGE`, one for each partition, in order.
        names: the requested columns of L1 and of the topic's value schema; the offset is always included.
        parallel: fetches and decodes ahead; if it has no threads, objects are fetched one after another.
        without_holes: the option with which a user skips holes, for the error; if empty, holes are skipped with a warning.
    """

    def __init__(
        self,
        cluster: ClusterHandles,
        journal: JournalHandle,
        topic: Topic,
        ranges: Rows,
        on_deleted: OnDeleted,
        *,
        names: Sequence[str],
        parallel: Parallel,
        without_holes: str = "",
    ) -> None:
        self._without_holes = without_holes
        self._cluster, self._journal, self._topic, self._parallel = cluster, journal, topic, parallel
        self._partitions, self._ends = ranges["partition"].astype(np.int64), ranges["last"] + 1
        self._starts, self._next = ranges["base"], ranges["base"].copy()
        self._on_deleted = on_deleted
        stored = [f for f in parquet.L1_COLUMNS if f.name in names or f.name == "offset"]
        self._parser = None if topic.value_schema is None else parser_of(topic.value_schema)
        self._typed = [] if self._parser is None else [f for f in self._parser.fields if f.name in names]
        self._schema = pa.schema([*stored, *self._typed])
        self._names = [f.name for f in stored]
        self._names_to_parse = [*self._names, *({"value"} - {*names} if self._typed else [])]
        self._only_offsets = len(self._schema) == 1
        self._missed = ""
        self.counters = Counters()

    def read(self) -> Iterator[Piece]:
        """Yield the records, in order within each partition.

        Raises:
            CorruptObjectError: an object differs from the journal's record, or is missing while the journal needs it.
            PartitionClosedError: the topic was deleted.
            RecordsLostError: records were given up.
        """
        while (self._next < self._ends).any():
            state, before = self._known(), self._next.copy()
            try:
                yield from self._from_l1(state)
                yield from self._from_blocks(state, np.all)
                if (self._next == before).all():  # no partition can continue: the objects wait for one another
                    yield from self._from_blocks(state, np.any)
            except _GoneError as gone:
                self._check_not_lost(gone)
                self._journal.catch_up()
                continue
            for at in np.flatnonzero(self._next < self._ends).tolist() if (self._next == before).all() else ():
                raise self._gap(at)

    # -- the journal's state ------------------------------------------------------------------------------------------

    def _known(self) -> TopicState:
        """Return the journal's current state; skip deleted records of the ranges, if the caller accepts that."""
        state = topic_copy(self._journal, self._topic)
        log_starts = state.values(state.log_start, self._partitions, 0)
        lost = (self._next < log_starts) & (self._next < self._ends)
        for at in np.flatnonzero(lost).tolist():
            offsets = (int(column[at]) for column in (self._partitions, self._next, self._ends, log_starts))
            self._on_deleted(*offsets, begun=bool(self._next[at] > self._starts[at]))
        self._next = np.where(lost, np.minimum(log_starts, self._ends), self._next)
        return state

    def _check_not_lost(self, gone: _GoneError) -> None:
        """Raise an error if an object is missing for the second time, although the journal was read in between: it is
        lost.
        """
        if self._missed != str(gone):
            self._missed = str(gone)
            return
        live = self._cluster.controller.snapshot().topics.get(self._topic.name)
        if live is None or (live.revision, live.topic_id) != (self._topic.revision, self._topic.topic_id):
            raise deleted(self._topic)
        offset, name, partition = (
            max(gone.offset, int(self._next[gone.at])),
            self._topic.name,
            self._partitions[gone.at],
        )
        way = topic_copy(self._journal, self._topic).how_to_give_up(int(partition), offset)
        raise CorruptObjectError(
            f"{gone}, though topic {name!r} needs it for partition {name}/{partition} at record {offset}; restore that "
            f"object from a version{f', or give its records up: {way}' if way else ''}"
        ) from gone.error

    def _gap(self, at: int) -> CorruptObjectError:
        return CorruptObjectError(
            f"partition {self._topic.name}/{self._partitions[at]}: record {self._next[at]} is in no object that the journal "
            "names"
        )

    def _miss(self, at: int, last: int) -> None:
        """Skip given-up records, from the next record up to `last`. Raises `RecordsLostError` if the caller does not
        accept that.
        """
        first, end = int(self._next[at]), min(int(self._ends[at]), last + 1)
        if first < end:
            lost = (
                f"the records {first} to {end - 1} of partition {self._topic.name}/{self._partitions[at]} were given up"
            )
            if self._without_holes:
                raise RecordsLostError(
                    f"{lost}, since they could not be read; leave them out with {self._without_holes}"
                )
            _log.warning("%s; they are left out", lost, extra=event("hole"))
            self._next[at] = end

    # -- L1 ------------------------------------------------------------------------------------------------------------

    def _from_l1(self, state: TopicState) -> Iterator[Piece]:
        store = self._cluster.store

        def needless(numbered: tuple[int, parquet.WantedFile]) -> bool:
            return numbered[1].file.is_hole or self._only_offsets

        def opened(numbered: tuple[int, parquet.WantedFile]) -> tuple[int, parquet.OpenL1File]:
            at, w = numbered
            with _holding(at, w.file.base_offset):
                return at, parquet.OpenL1File(w, None, None) if needless(numbered) else parquet.open_l1(store, w)

        def parts() -> Iterator[tuple[int, parquet.OpenL1File, parquet.L1Chunk | None]]:
            for at, o in self._parallel.fetch_ahead(
                opened, self._files(state), lambda numbered: not needless(numbered)
            ):
                groups = parquet.wanted_groups(o)
                self.counters.l1_objects += o.metadata is not None
                self.counters.row_groups += len(groups)
                self.counters.row_groups_skipped += len(o.groups) - len(groups)
                for chunk in parquet.chunks(o, groups):
                    yield at, o, chunk
                yield at, o, None

        def fetched(
            part: tuple[int, parquet.OpenL1File, parquet.L1Chunk | None],
        ) -> tuple[int, parquet.OpenL1File, parquet.L1Chunk | None]:
            at, o, chunk = part
            with _holding(at, o.wanted.file.base_offset):
                return at, o, None if chunk is None else parquet.fetch_chunk(store, chunk, self._names_in(o))

        def weigh(part: tuple[int, parquet.OpenL1File, parquet.L1Chunk | None]) -> int:
            _, o, chunk = part
            return 0 if chunk is None or o.body is not None else chunk.bytes

        def groups() -> Iterator[tuple[int, parquet.OpenL1File, parquet.L1Chunk | None]]:
            for at, o, chunk in self._parallel.fetch_ahead(fetched, parts(), weigh):
                if chunk is None:
                    yield at, o, None
                    continue
                self.counters.bytes += sum(len(body) for _, body in chunk.pieces)
                for group in chunk.groups:
                    yield at, o, parquet.L1Chunk(o, [group], chunk.pieces)

        def decoded(
            part: tuple[int, parquet.OpenL1File, parquet.L1Chunk | None],
        ) -> tuple[int, parquet.OpenL1File, list[tuple[int, pa.RecordBatch]] | None]:
            at, o, chunk = part
            if chunk is None:
                return at, o, None
            with _holding(at, o.wanted.file.base_offset):  # it may be fetched again
                batches = parquet.decode_fetched(store, chunk, self._names_in(o))
            return at, o, [(base, self._with_typed(batch)) for base, batch in batches]

        for at, o, batches in self._parallel.compute_ahead(
            decoded, groups(), lambda part: part[2] is not None and part[1].body is None
        ):
            file = o.wanted.file
            if file.base_offset > self._next[at]:
                raise self._gap(at)
            if batches is None and file.is_hole:
                self._miss(at, file.last_offset)
            elif self._only_offsets:
                yield from self._offsets(at, min(int(self._ends[at]), file.last_offset + 1))
            elif batches is None:
                self._next[at] = max(self._next[at], min(self._ends[at], file.last_offset + 1))
            for base, batch in batches or ():
                first = max(int(self._next[at]), base)
                n = min(int(self._ends[at]), base + batch.num_rows) - first
                if n > 0:
                    self._next[at] = first + n
                    yield self._piece(int(self._partitions[at]), batch.slice(first - base, n))

    def _names_in(self, o: parquet.OpenL1File) -> list[str]:
        """Return the columns to fetch from an object: the typed ones, or else the values from which they are parsed."""
        if self._parser is None or parquet.schema_number(o.metadata) != self._parser.number:
            return self._names_to_parse
        return [*self._schema.names]

    def _with_typed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch with the requested columns of the value schema, parsed from its values unless it has them."""
        if self._parser is None or not self._typed or self._typed[0].name in batch.schema.names:
            return batch
        parsed = dict(zip(self._parser.fields.names, self._parser.parse(batch.column("value")), strict=True))
        for f in self._typed:
            batch = batch.append_column(f, parsed[f.name])
        return batch

    def _offsets(self, at: int, end: int) -> Iterator[Piece]:
        """Yield the offsets of a partition from its next record to `end`, end excluded."""
        while (first := int(self._next[at])) < end:
            self._next[at] = last = min(first + _OFFSETS, end)
            offsets = columns.numbers(np.arange(first, last))
            yield self._piece(int(self._partitions[at]), pa.record_batch([offsets], names=self._schema.names))

    def _files(self, state: TopicState) -> Iterator[tuple[int, parquet.WantedFile]]:
        """Yield the requested L1 objects and holes, partition by partition in order of offset, up to the first row of a
        shared object.
        """
        reconciled = state.values(state.reconciled, self._partitions, -1)
        for at in np.flatnonzero((self._next < self._ends) & (self._next <= reconciled)).tolist():
            start, end = int(self._next[at]), int(self._ends[at])
            p, following = self._topic.id(int(self._partitions[at])), start
            for f in state.files(p.partition, start):
                if f.base_offset >= end or f.base_offset > following:
                    break
                following = f.last_offset + 1
                yield at, parquet.WantedFile(l1_key(p, f), f, start, end)

    # -- shared L1 objects, and L0 -------------------------------------------------------------------------------------

    def _from_blocks(self, state: TopicState, is_due: Callable[[Rows], np.bool]) -> Iterator[Piece]:
        """Yield the records of each object that `is_due` accepts; its argument shows which extents of the object come
        next.
        """
        fetched = self._parallel.fetch_ahead(
            self._fetched, self._with_blocks(state, is_due), lambda o: 0 if self._only_offsets else o.bytes
        )
        for needed, fetched_bytes, batch in self._parallel.compute_ahead(self._decoded, fetched):
            self.counters.l0_objects += not self._only_offsets and needed.time_ms != STAMPED
            self.counters.l1_objects += not self._only_offsets and needed.time_ms == STAMPED
            self.counters.bytes += fetched_bytes
            at = self._rows_of(needed)
            gaps = np.flatnonzero(needed.extents["base"] > self._next[at])
            if len(gaps):
                raise self._gap(int(at[gaps[0]]))
            partitions = np.repeat(needed.extents["partition"].astype(np.int32), needed.extents["records"])
            piece = self._piece(partitions, batch)
            self._next[at] = needed.extents["base"] + needed.extents["records"]
            yield piece

    def _with_blocks(self, state: TopicState, is_due: Callable[[Rows], np.bool]) -> Iterator[UnreconciledObject]:
        """Yield the requested shared L1 objects and L0 objects, each with the extents that come next in their partitions."""
        # Later objects are looked up before earlier ones are read.
        objects = [*state.shared_objects(self._topic.name, self._journal.journal), *state.objects]
        following = self._next.copy()
        for o in objects_within(objects, self._partitions, following.copy(), self._ends):
            at = self._rows_of(o)
            follows = o.extents["base"] == following[at]
            if is_due(follows):
                extents = o.extents[follows]
                following[at[follows]] = extents["base"] + extents["records"]
                yield msgspec.structs.replace(o, extents=extents)

    def _rows_of(self, needed: UnreconciledObject) -> Rows:
        """Return the rows of the reader's partitions to which the extents belong."""
        return np.searchsorted(self._partitions, needed.extents["partition"])

    def _fetched(self, needed: UnreconciledObject) -> tuple[UnreconciledObject, list[bytes]]:
        if self._only_offsets:
            return needed, []
        blocks = [needed.block(n) for n in needed.needed]
        with _holding(int(self._rows_of(needed)[0]), int(needed.extents["base"][0])):
            return needed, fetch_blocks(self._cluster.store, needed.key, blocks)

    def _decoded(
        self, fetched: tuple[UnreconciledObject, list[bytes]]
    ) -> tuple[UnreconciledObject, int, pa.RecordBatch]:
        """Return an object, how many of its bytes were fetched, and its records."""
        needed, bodies = fetched
        extents = needed.extents
        batches: list[pa.RecordBatch] = []
        for number, body in zip(needed.needed if bodies else (), bodies, strict=True):
            of_block = extents[extents["block"] == number]
            at_least = int((of_block["row"].astype(np.int64) + of_block["records"]).max())
            batches.append(select(decode_block(body, needed.key, needed.block(number), at_least), of_block))
        # Blocks are in the order of the extents, and so are the rows.
        counts = extents["records"].astype(np.int64)
        begins = np.cumsum(counts) - counts
        total = int(counts.sum())
        in_blocks = (*parquet.WHOLE_RECORD, *(["epoch"] if needed.time_ms == STAMPED else []))
        of_records = (f for f in parquet.L1_COLUMNS if f.name in in_blocks and f.name in self._names_to_parse)
        stored = {f.name: pa.concat_arrays([column_of(b, f) for b in batches]) for f in of_records}
        stored["offset"] = columns.numbers(np.repeat(extents["base"] - begins, counts) + np.arange(total))
        stored.setdefault("epoch", columns.repeated(needed.epoch, total))
        arrays = [stored[name] for name in self._names_to_parse]
        batch = pa.RecordBatch.from_arrays(arrays, names=self._names_to_parse)
        return needed, sum(map(len, bodies)), self._with_typed(batch)

    # -- both ------------------------------------------------------------------------------------------------------------

    def _piece(self, partition: int | Rows, batch: pa.RecordBatch) -> Piece:
        self.counters.records += batch.num_rows
        stored = [column_of(batch, f) for f in self._schema]
        arrays = [c if c.type == f.type else c.cast(f.type) for c, f in zip(stored, self._schema, strict=True)]
        return Piece(partition, pa.RecordBatch.from_arrays(arrays, schema=self._schema))
