"""Retention and deletion of records: both move the log start offsets of partitions up, and nothing else does.

Retention follows Kafka's rules, where a segment is an L1 object. By time: an L1 object leaves once its newest record is
older than the retention, oldest first, up to the first that stays. By size: while a partition's L1 objects would still be
as large as the retention without the oldest one, that one leaves. Records that are not in L1 are Kafka's active segment:
retention never deletes them, and they do not count. A deletion by hand may go further, up to the next offset.

What makes it safe: where a partition may begin is decided where the entry lands. Nothing is removed from the bucket here:
dropped objects stay until vacuum takes them. A partition whose list of L1 objects has changed by then is read anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Final, TypeVar

import numpy as np

from l0gc.errors import CorruptObjectError, L0gcError, ObjectNotFoundError, ProtocolError, StoreError
from l0gc.formatting import Outcome
from l0gc.keys import PartitionId
from l0gc.streamlog.cluster import Handles
from l0gc.streamlog.controller.state import UNLIMITED, Retention, Topic, by_journal
from l0gc.streamlog.journal.entries import EXPIRE, Edit, EditedTopic
from l0gc.streamlog.journal.rows import NO_L1_ROWS, NUMBER, OFFSET, START, Rows, places
from l0gc.streamlog.journal.topic import TopicState
from l0gc.streamlog.level_one.index import UNREADABLE, IndexChange, cut_index, joined, read_index
from l0gc.watermark.publication import refuse_if_set_back

T = TypeVar("T")

_TRIES: Final = 4
"""How many times a partition is read anew because its L1 objects were merged or spilled."""

Listed = Callable[[int, Rows], Rows | None]
"""Reads what index objects of a partition list, given their rows; None if one cannot be read: the partition is left out."""
NewStarts = Callable[[Topic, TopicState, Listed], tuple[Rows, Rows]]
"""Decides which partitions of a topic are to begin elsewhere, and where."""


@dataclass(frozen=True, slots=True)
class NewStart:
    """A partition that begins at `log_start_offset` now, and began at `previous` before."""

    topic: str
    partition: int
    previous: int
    log_start_offset: int


@dataclass(slots=True)
class ExpireResult(Outcome):
    """What was deleted, or would be in a dry run.

    Attributes:
        dry_run: Whether nothing was deleted.
        partitions: How many partitions have a new start offset.
        records: How many records were deleted.
        l1_objects: L1 objects that vacuum may take for it.
        bytes: Their size.
        lost: Partitions left for the next run, because they changed during this one.
        starts: The first of the partitions: `topic`, `partition`, `log_start_offset` and `previous`, where it began
            before.
        errors: What went wrong in single journals; the others are done, and the exit code is 3.
    """

    partitions: int = 0
    records: int = 0
    l1_objects: int = 0
    bytes: int = 0
    lost: int = 0
    starts: list[NewStart] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    dry_run: bool = field(default=False, compare=False)
    unfinished: ClassVar[str] = "not all records could be deleted, the rest is done"


# -- where partitions are to begin ----------------------------------------------------------------------------------------


def starts_by_retention(topic: TopicState, retention: Retention, now_ms: int, listed: Listed) -> tuple[Rows, Rows]:
    """The partitions of which retention deletes something, and where they are to begin (pure but for `listed`, which is
    called only for partitions whose oldest L1 object, which an index object lists, is to leave). `now_ms` is by the store's
    clock.
    """
    if (retention.ms == UNLIMITED and retention.bytes == UNLIMITED) or not len(topic.partitions):
        return np.empty(0, NUMBER), np.empty(0, OFFSET)
    index = topic.index
    heads = np.flatnonzero(np.r_[True, index["partition"][1:] != index["partition"][:-1]][: len(index)])
    sizes = np.zeros(len(topic.partitions), np.int64)
    for some in (topic.l1, index):
        np.add.at(sizes, np.searchsorted(topic.partitions, some["partition"]), some["bytes"])
    rows = [topic.l1[~np.isin(topic.l1["partition"], index["partition"][heads])]]
    for head in index[heads]:
        partition = int(head["partition"])
        size = int(sizes[np.searchsorted(topic.partitions, partition)])
        if _leaves(int(head["head_timestamp"]), size - int(head["head_bytes"]), retention, now_ms):
            older = listed(partition, topic.index_of(partition))
            if older is None:
                continue
            both = np.concatenate([older, topic.l1_of(partition)])
            rows.append(both[both["last"] >= topic.view(partition).log_start_offset])
    partitions, starts = _prefixes(np.concatenate(rows), retention, now_ms)
    order = np.argsort(partitions, kind="stable")
    return partitions[order].astype(NUMBER), starts[order]


def _leaves(newest_ms: int, without: int, retention: Retention, now_ms: int) -> bool:
    """Whether the oldest L1 object leaves, without which the partition has so many bytes."""
    return (retention.ms != UNLIMITED and now_ms - newest_ms > retention.ms) or (
        retention.bytes != UNLIMITED and without >= retention.bytes
    )


def _prefixes(rows: Rows, retention: Retention, now_ms: int) -> tuple[Rows, Rows]:
    """For each partition of which L1 objects leave: where it begins then."""
    if not len(rows):
        return rows["partition"], rows["base"]
    begins = np.flatnonzero(np.r_[True, rows["partition"][1:] != rows["partition"][:-1]])
    lengths = np.diff(np.r_[begins, len(rows)])
    gone = np.zeros(len(rows), bool)
    if retention.ms != UNLIMITED:
        stays = np.cumsum(now_ms - rows["max_timestamp"] <= retention.ms)
        before = np.r_[0, stays][begins]
        gone |= stays == np.repeat(before, lengths)
    if retention.bytes != UNLIMITED:
        up_to = np.cumsum(rows["bytes"])
        ends = up_to[begins + lengths - 1]
        gone |= np.repeat(ends, lengths) - up_to >= retention.bytes
    last = gone & np.r_[~gone[1:] | (rows["partition"][1:] != rows["partition"][:-1]), True]
    return rows["partition"][last], rows["last"][last] + 1


# -- runs -----------------------------------------------------------------------------------------------------------------


def expire(cluster: Handles, topic: str | None = None, *, dry_run: bool = False, shown: int = 0) -> ExpireResult:
    """Delete what is beyond its topic's retention, of one topic or of all.

    Args:
        dry_run: delete nothing; the result is what a run would do.
        shown: at most how many partitions the result names.

    Raises:
        NotFoundError: there is no such topic.
        EpochRegressionError: what is published is above the cluster epoch. A controller log that went back may have
            forgotten that a topic is to keep its records for longer, so nothing is deleted (hazard 10).
        SafetyError: the time is uncertain; nothing was deleted (hazard 16).
    """
    refuse_if_set_back(cluster)
    state = cluster.controller.snapshot()
    as_of_ms = cluster.controller.replica.as_of_ms
    assert as_of_ms is not None
    now_ms = cluster.controller.store_time.settle(as_of_ms)
    topics = list(state.topics.values()) if topic is None else [state.topic(topic)]
    work = {t.revision: (t, state.retention(t)) for t in topics if state.retention(t) != Retention()}

    def wanted(t: Topic, known: TopicState, listed: Listed) -> tuple[Rows, Rows]:
        return starts_by_retention(known, work[t.revision][1], now_ms, listed)

    return run_expiry(cluster, [t for t, _ in work.values()], wanted, dry_run, shown)


def run_expiry(cluster: Handles, topics: list[Topic], wanted: NewStarts, dry_run: bool, shown: int) -> ExpireResult:
    """Move log start offsets in every journal that keeps some of the topics.

    What fails for one journal concerns that one alone, and an index object that cannot be read its partition alone.
    """
    result = ExpireResult(dry_run=dry_run)

    def one(part: tuple[int, list[Topic]]) -> ExpireResult:
        journal, of_journal = part
        run = _JournalRun(cluster, journal, of_journal, wanted, dry_run, shown)
        try:
            run.run()
        except (CorruptObjectError, ObjectNotFoundError, ProtocolError, StoreError) as e:
            run.result.errors.append(f"journal {journal}: {e}")
        return run.result

    for done in cluster.parallel.map(one, by_journal(topics).items()):
        result.add(done, "partitions", "records", "l1_objects", "bytes", "lost", "starts", "errors")
    del result.starts[shown:]
    return result


def left_out(p: PartitionId, error: L0gcError) -> str:
    """Why nothing of a partition was deleted, and the way out."""
    return (
        f"partition {p}: {error}; its records stay until that object is restored from a version or a backup, or they are "
        "given up (docs/operations.md)"
    )


class _JournalRun:
    """Moves log start offsets in one journal."""

    def __init__(
        self, cluster: Handles, journal: int, topics: Sequence[Topic], wanted: NewStarts, dry_run: bool, shown: int
    ) -> None:
        self._cluster, self._topics, self._wanted, self._dry_run, self._shown = cluster, topics, wanted, dry_run, shown
        self._handle = cluster.journal(journal)
        self._unreadable: dict[PartitionId, L0gcError] = {}
        self.result = ExpireResult()

    def run(self) -> None:
        for _ in range(_TRIES):
            self.result.lost = 0
            self._unreadable.clear()
            for topic in self._topics:
                with self._handle.replica.lock:
                    known = self._handle.catch_up().topics.get(topic.revision)
                    if known is None or known.topic_id != topic.topic_id:
                        continue
                    known = replace(known, log_start=known.log_start.copy(), next_offsets=known.next_offsets.copy())
                partitions, starts = self._wanted(topic, known, partial(self._read, topic))
                if len(partitions):
                    self.result.lost += self._move(topic, known, partitions, starts)
            # An index object that is gone may have been replaced, and vacuumed, since the state was read.
            gone = any(isinstance(e, ObjectNotFoundError) for e in self._unreadable.values())
            if self._dry_run or not (self.result.lost or gone):
                break
        self.result.errors += [
            left_out(p, e) for p, e in sorted(self._unreadable.items(), key=lambda item: item[0].path)
        ]

    def _read(self, topic: Topic, partition: int, index: Rows) -> Rows | None:
        """See `Listed`."""
        return self._attempt(topic.id(partition), lambda: read_index(self._cluster.store, topic.id(partition), index))

    def _attempt(self, p: PartitionId, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except UNREADABLE as e:
            self._unreadable[p] = e
            return None

    def _move(self, topic: Topic, known: TopicState, partitions: Rows, starts: Rows) -> int:
        """Let these partitions begin at `starts`; returns how many were refused because they have changed by then."""
        change, dropped = self._cut(topic, known, partitions, starts)
        readable = ~np.isin(partitions, [p.partition for p in self._unreadable if p.revision == topic.revision])
        partitions, starts = partitions[readable], starts[readable]
        if not len(partitions):
            return 0
        before = known.log_start[np.searchsorted(known.partitions, partitions)].copy()
        refused = [] if self._dry_run else self._land(topic, partitions, starts, change, dropped)
        moved = ~np.isin(partitions, refused)
        self._count(topic, partitions[moved], before[moved], starts[moved], (known.l1, known.index, dropped))
        return len(refused)

    def _land(self, topic: Topic, partitions: Rows, starts: Rows, change: IndexChange, dropped: Rows) -> list[int]:
        """Returns the partitions that were refused, and do not begin there, or further on, anyway."""
        new = np.empty(len(partitions), START)
        new["partition"], new["offset"] = partitions, starts
        indexes = {"indexes": change.indexes, "removed_indexes": change.replaced}
        edited = EditedTopic.of(topic.revision, topic.topic_id, removed=dropped, starts=new, **indexes)
        refused = self._handle.land(Edit(EXPIRE, self._cluster.controller.epoch(), [edited]))
        with self._handle.replica.lock:
            begins = self._handle.state.topic(topic.revision).view
            return [
                p
                for p, start in zip(partitions.tolist(), starts.tolist(), strict=True)
                if (topic.revision, p) in refused and begins(p).log_start_offset < start
            ]

    def _cut(self, topic: Topic, known: TopicState, partitions: Rows, starts: Rows) -> tuple[IndexChange, Rows]:
        """What happens to the index objects that the starts cut, and what L1 objects they no longer list."""
        at, there = places(partitions, known.index["partition"])
        start = starts[at]
        rows = known.index[there & (known.index["base"] < start) & (known.index["last"] >= start)]
        epoch = self._cluster.controller.epoch()
        store, runtime = self._cluster.store, self._cluster.runtime

        def one(row: Rows) -> tuple[IndexChange, Rows] | None:
            p, index = topic.id(int(row["partition"])), np.array([row])
            begin = int(starts[np.searchsorted(partitions, row["partition"])])
            return self._attempt(p, lambda: cut_index(store, p, index, begin, epoch, runtime, dry_run=self._dry_run))

        done = [found for found in self._cluster.parallel.map(one, list(rows)) if found is not None]
        return joined([c for c, _ in done]), np.concatenate([NO_L1_ROWS, *(gone for _, gone in done)])

    def _count(
        self, topic: Topic, partitions: Rows, before: Rows, starts: Rows, lists: tuple[Rows, Rows, Rows]
    ) -> None:
        result = self.result
        result.partitions += len(partitions)
        result.records += int((starts - before).sum())
        if len(partitions):
            for rows in lists:
                at, there = places(partitions, rows["partition"])
                gone = rows[there & (rows["last"] < starts[at])]
                result.l1_objects += int(gone["rows"].sum()) if rows is lists[1] else len(gone)
                result.bytes += int(gone["bytes"].sum())
        some = slice(0, max(0, self._shown - len(result.starts)))
        for p, old, new in zip(*(c[some].tolist() for c in (partitions, before, starts)), strict=True):
            result.starts.append(NewStart(topic.name, p, old, new))
