"""Reading a topic: L1 up to the last reconciled offset, L0 above it, each record once and in order.

A reader holds no lock, so an object may be reconciled, merged or swept between the reading of the journal that named it and
the read of it (hazard 19). The reader then replays the journal and goes on from the same offset. Only an object that the
journal still names after it was found missing is reported, as what it is: a loss.

Many partitions share the blocks of an L0 object, and a small partition has small L1 objects. So consecutive partitions are
read together, as many as fit the memory: each block is fetched and decoded once, and small objects are fetched at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

import numpy as np

from l0gc import columns
from l0gc.errors import (
    CorruptObjectError,
    ObjectNotFoundError,
    OffsetOutOfRangeError,
    PartitionClosedError,
)
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.controller.state import JournalRun, Topic
from l0gc.streamlog.journal.rows import Rows, distinct
from l0gc.streamlog.journal.topic import L1File, TopicState, UnreconciledObject, l1_file
from l0gc.streamlog.level_one.index import index_key, l1_key, read_index
from l0gc.streamlog.parts import (
    FilePart,
    Found,
    Lost,
    ObjectPart,
    Part,
    RecordSlice,
    by_partition,
    cost_of,
    file_records,
    groups,
    load,
)

WINDOW_BYTES: Final = 32 << 20
"""About so many bytes of records are held at once."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record as it was uploaded; `timestamp_ms` is the log's time at which it landed, since 1970."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes


def read_topic(
    cluster: Cluster, topic: Topic, partitions: Iterable[int] | None = None, start: int | None = None
) -> Iterator[Record]:
    """The records of a topic, one partition after another. See `read_slices`."""
    for partition, base, batch in read_slices(cluster, topic, partitions, start):
        times = columns.raw(batch.column(0)).cast("q")
        keys, values = batch.column(1).to_pylist(), batch.column(2).to_pylist()
        for offset, (time, key, value) in enumerate(zip(times, keys, values, strict=True), base):
            yield Record(partition, offset, time, key, value)


def read_slices(
    cluster: Cluster, topic: Topic, partitions: Iterable[int] | None = None, start: int | None = None
) -> Iterator[RecordSlice]:
    """The records of a topic in order of partition and offset, as far as its journals went when reading began.

    Args:
        partitions: only these.
        start: from this offset on, in each partition; without it, from the log start offset.

    Raises:
        CorruptObjectError: an object does not hold what the journal says, or is missing while the journal still needs it.
        OffsetOutOfRangeError: `start` is below a log start offset, or records were deleted before they could be read.
        PartitionClosedError: the topic was deleted.
    """
    for reader in _readers(cluster, topic, partitions, start):
        yield from reader.read()


def count_records(
    cluster: Cluster, topic: Topic, partitions: Iterable[int] | None = None, start: int | None = None
) -> int:
    """How many records `read_slices` would read now, from the journals alone. Raises as it does."""
    return sum(reader.records for reader in _readers(cluster, topic, partitions, start))


def _readers(cluster: Cluster, topic: Topic, partitions: Iterable[int] | None, start: int | None) -> list[_RunReader]:
    wanted = None if partitions is None else distinct(np.fromiter(partitions, np.int64))
    runs = [run for run in topic.runs() if wanted is None or len(_within(wanted, run))]
    cluster.parallel.map(lambda run: cluster.journal(run.journal).catch_up(), runs)
    return [_RunReader(cluster, topic, run, wanted, start) for run in runs]


def first_at_or_after(cluster: Cluster, topic: Topic, partition: int, start: int, time_ms: int, end: int) -> int:
    """The offset of a partition's first record from `start` on, and below `end`, that is as new as `time_ms`; else `end`.

    Raises:
        See `read_slices`.
    """
    for _, base, batch in read_slices(cluster, topic, [partition], start):
        times = np.frombuffer(columns.raw(batch.column(0)), np.int64)
        found = np.flatnonzero(times >= time_ms)
        if len(found):
            return min(base + int(found[0]), end)
    return end


def _within(partitions: Rows, run: JournalRun) -> Rows:
    """Those of some partitions that are in a run."""
    found: Rows = partitions[(partitions >= run.first) & (partitions < run.first + run.count)]
    return found


class _Gone(Exception):
    """An object is not there any more."""

    def __init__(self, lost: Lost) -> None:
        super().__init__()
        self.lost = lost


@dataclass(frozen=True, slots=True)
class _View:
    """What a journal says of partitions at one time, and what of that is to be read.

    Attributes:
        costs: what the records of each partition take in memory.
    """

    topic: TopicState
    objects: list[ObjectPart]
    files: Rows
    costs: Rows


class _RunReader:
    """Reads those partitions of a topic that one journal keeps."""

    def __init__(self, cluster: Cluster, topic: Topic, run: JournalRun, wanted: Rows | None, start: int | None) -> None:
        self._cluster, self._topic, self._start = cluster, topic, start
        self._journal = cluster.journal(run.journal)
        known = self._known()
        chosen = _within(known.partitions, run).astype(np.int64)
        if wanted is not None:
            chosen = chosen[np.isin(chosen, wanted)]
        starts = self._starts_of(known, chosen)
        ends = known.next_offsets[np.searchsorted(known.partitions, chosen)]
        self._partitions, self._starts, self._ends = (column[ends > starts] for column in (chosen, starts, ends))
        self._index = 0  # the partition that is being read; `_starts` has the record that is next
        self._begun = False

    @property
    def records(self) -> int:
        """How many are left to read."""
        return int((self._ends - self._starts).sum())

    # -- what the journal says ----------------------------------------------------------------------------------------

    def _known(self) -> TopicState:
        """A copy of the topic's state, which does not change while it is read."""
        with self._journal.replica.lock:
            state = self._journal.state
            if state.closed(self._topic.revision):
                raise self._deleted()
            topic = state.topics.get(self._topic.revision, TopicState(self._topic.revision, ""))
            return replace(
                topic,
                next_offsets=topic.next_offsets.copy(),
                reconciled=topic.reconciled.copy(),
                log_start=topic.log_start.copy(),
                objects=list(topic.objects),
            )

    def _deleted(self) -> PartitionClosedError:
        return PartitionClosedError(f"topic {self._topic.name!r} (revision {self._topic.revision}) was deleted")

    def _starts_of(self, known: TopicState, partitions: Rows) -> Rows:
        """Where reading begins. Raises `OffsetOutOfRangeError` if that is below a log start offset."""
        log_starts: Rows = known.log_start[np.searchsorted(known.partitions, partitions)]
        if self._start is None:
            return log_starts
        starts = np.full(len(partitions), self._start, np.int64)
        self._check_log_starts(partitions, starts, log_starts)
        return starts

    def _check_log_starts(self, partitions: Rows, offsets: Rows, log_starts: Rows) -> None:
        for at in np.flatnonzero(offsets < log_starts):
            raise OffsetOutOfRangeError(
                f"record {offsets[at]} of partition {self._topic.name}/{partitions[at]} was deleted; the first one that is "
                f"there has offset {log_starts[at]}"
            )

    def _view(self) -> _View:
        """What is to be read, from where the reader has come to."""
        topic = self._known()
        left = self._partitions[self._index :]
        log_starts = topic.log_start[np.searchsorted(topic.partitions, left)]
        begun = len(left) if self._start is not None else int(self._begun)
        self._check_log_starts(left[:begun], self._starts[self._index :][:begun], log_starts[:begun])
        self._starts[self._index :] = np.maximum(self._starts[self._index :], log_starts)
        costs = np.zeros(len(self._partitions))
        objects = [self._needed(o, costs) for o in topic.objects]
        files = topic.l1[self._wanted(topic.l1, topic.l1["last"])]
        np.add.at(costs, self._at(files), cost_of(files["bytes"].astype(np.float64)))
        index = topic.index[self._wanted(topic.index, topic.index["last"])]
        np.add.at(costs, self._at(index), cost_of(index["bytes"].astype(np.float64)))
        return _View(topic, [o for o in objects if len(o.extents)], files, costs)

    def _at(self, rows: Rows) -> Rows:
        return np.searchsorted(self._partitions, rows["partition"])

    def _wanted(self, rows: Rows, last: Rows) -> Rows:
        """Which of these extents or L1 objects hold records that are to be read, given their last ones."""
        at = self._at(rows)
        at[at == len(self._partitions)] = 0
        mine: Rows = self._partitions[at] == rows["partition"]
        return mine & (at >= self._index) & (last >= self._starts[at]) & (rows["base"] < self._ends[at])

    def _needed(self, o: UnreconciledObject, costs: Rows) -> ObjectPart:
        """What is to be read of an object. Its costs are added."""
        rows = o.extents[self._wanted(o.extents, o.extents["base"] + o.extents["records"] - 1)]
        records = np.ones(len(o.blocks))
        np.maximum.at(records, o.extents["block"], o.extents["row"].astype(np.int64) + o.extents["records"])
        shares = rows["records"] / records[rows["block"]] * o.blocks["length"][rows["block"]]
        costs[self._at(rows)] += cost_of(shares)
        return ObjectPart(o, rows)

    # -- reading ------------------------------------------------------------------------------------------------------

    def read(self) -> Iterator[RecordSlice]:
        """The records, each once and in order, whatever happens to the objects meanwhile."""
        while self._index < len(self._partitions):
            view = self._view()
            try:
                for first, end in self._windows(view.costs):
                    for found in self._read_window(view, first, end):
                        yield from self._due(found)
                    self._go_to(end)
            except _Gone as gone:
                self._journal.catch_up()
                self._check_not_lost(gone.lost)

    def _windows(self, costs: Rows) -> Iterator[tuple[int, int]]:
        """The partitions that are left, as many together as fit the memory, or one that does not."""
        total = np.concatenate(([0.0], np.cumsum(costs)))
        first = self._index
        while first < len(self._partitions):
            end = max(int(np.searchsorted(total, total[first] + WINDOW_BYTES, "right")) - 1, first + 1)
            yield first, end
            first = end

    def _go_to(self, index: int) -> None:
        """The partitions before this one are read. Raises `CorruptObjectError` if one is not, to its end."""
        while self._index < index:
            if self._starts[self._index] < self._ends[self._index]:
                raise self._hole()
            self._index, self._begun = self._index + 1, False

    def _hole(self) -> CorruptObjectError:
        partition, offset = self._partitions[self._index], self._starts[self._index]
        return CorruptObjectError(
            f"partition {self._topic.name}/{partition}: record {offset} is in no object that the journal names"
        )

    def _due(self, found: Found) -> Iterator[RecordSlice]:
        """What was found, from the record on that is next, up to the end of the partition as it was."""
        self._go_to(int(np.searchsorted(self._partitions, found.partition)))
        if isinstance(found, Lost):
            raise _Gone(found) if isinstance(found.error, ObjectNotFoundError) else found.error
        offset, end = int(self._starts[self._index]), int(self._ends[self._index])
        if found.base_offset > offset:
            raise self._hole()
        n = min(end, found.base_offset + found.batch.num_rows) - offset
        if n > 0:
            self._starts[self._index] += n
            self._begun = True
            yield RecordSlice(found.partition, offset, found.batch.slice(offset - found.base_offset, n))

    def _check_not_lost(self, lost: Lost) -> None:
        """Raises `CorruptObjectError` if the journal still needs an object that is gone."""
        known = self._known()
        p = self._topic.id(lost.partition)
        offset = max(lost.base_offset, int(self._starts[self._index]))
        named = {e.key for e in known.extents(lost.partition) if e.last_offset >= offset}
        named |= {index_key(p, row) for row in known.index_of(lost.partition) if row["last"] >= offset}
        with suppress(_Gone):  # then the index object is read next
            named |= {l1_key(p, f) for f in self._listed(known, lost.partition, offset)}
        if lost.key not in named:
            return
        state = self._cluster.controller.snapshot()
        live = state.topics.get(self._topic.name)
        if live is None or (live.revision, live.topic_id) != (self._topic.revision, self._topic.topic_id):
            raise self._deleted()
        raise CorruptObjectError(
            f"{lost.error}, though partition {p} needs it for record {offset}; restore that object from a version"
        ) from lost.error

    # -- objects ------------------------------------------------------------------------------------------------------

    def _read_window(self, view: _View, first: int, end: int) -> Iterator[Found]:
        """What is in L1 and L0 of these partitions, in order. Of a single one, only so much at once as fits the memory."""
        lower, upper = int(self._partitions[first]), int(self._partitions[end - 1]) + 1
        try:
            parts: list[Part] = [*self._files(view, lower, upper), *_objects(view, lower, upper)]
        except _Gone as gone:
            yield gone.lost
            return
        if not parts:
            return  # all of these records were deleted meanwhile
        in_turn = [parts] if end - first > 1 else groups(parts, WINDOW_BYTES)
        for group in in_turn:
            if isinstance(part := group[0], FilePart) and part.cost > WINDOW_BYTES:
                yield from file_records(self._cluster.store, part)
                continue
            loaded = self._cluster.parallel.map(lambda part: load(self._cluster.store, part), group)
            yield from by_partition(list(chain.from_iterable(loaded)))

    def _files(self, view: _View, lower: int, upper: int) -> Iterator[FilePart]:
        """The L1 objects of some partitions, by partition. Raises `_Gone` if an index object is not there any more."""
        inside = view.files[(view.files["partition"] >= lower) & (view.files["partition"] < upper)]
        index = view.topic.index
        indexed = distinct(index["partition"][(index["partition"] >= lower) & (index["partition"] < upper)]).tolist()
        if indexed:
            inside = inside[~np.isin(inside["partition"], indexed)]
        files = [l1_file(row) for row in inside]
        for partition in indexed:
            at = int(np.searchsorted(self._partitions, partition))
            if at < len(self._partitions) and self._partitions[at] == partition:
                listed = self._listed(view.topic, partition, int(self._starts[at]))
                files += [f for f in listed if f.base_offset < self._ends[at]]
        for f in sorted(files, key=lambda f: (f.partition, f.base_offset)) if indexed else files:
            start = int(self._starts[np.searchsorted(self._partitions, f.partition)])
            yield FilePart(l1_key(self._topic.id(f.partition), f), f, start)

    def _listed(self, known: TopicState, partition: int, start: int) -> list[L1File]:
        """The L1 objects of a partition with records from `start` on. Raises `_Gone` as `_files` does."""
        p, files = self._topic.id(partition), known.files(partition)
        for row in reversed(known.index_of(partition)):
            if row["last"] >= start:
                try:
                    older = read_index(self._cluster.store, p, np.array([row]))
                except ObjectNotFoundError as e:
                    raise _Gone(Lost(partition, start, index_key(p, row), e)) from e
                files = [*map(l1_file, older), *files]
        return [f for f in files if f.last_offset >= start]


def _objects(view: _View, lower: int, upper: int) -> Iterator[ObjectPart]:
    """What is to be read of L0 objects for some partitions, in order of offset."""
    for o in view.objects:
        partitions = o.extents["partition"]
        inside = o.extents[(partitions >= lower) & (partitions < upper)]
        if len(inside):
            yield ObjectPart(o.object, inside)
