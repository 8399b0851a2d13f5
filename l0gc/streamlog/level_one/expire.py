"""Delete records by retention or on request: both raise the log start offsets of partitions, and nothing else does.

Retention follows Kafka's rules, with L1 objects as segments. By time: an L1 object is removed once its newest record is
older than the retention, oldest first, up to the first one that must stay. By size: the oldest L1 object is removed as
long as the partition's others are at least as large as the retention. Records that are not in L1 correspond to Kafka's
active segment: retention never deletes them, and they do not count. A manual deletion may extend to the next offset.

Why it is safe: a partition's new start is checked where the entry lands. Nothing is removed from the bucket here: dropped
objects stay until vacuum deletes them.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import msgspec
import numpy as np

from l0gc.errors import CorruptObjectError, StoreError
from l0gc.formatting import Outcome
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.decisions import RetentionSettings
from l0gc.streamlog.controller.state import UNLIMITED, ControllerState, Retention, Topic, by_journal
from l0gc.streamlog.journal.entries import EXPIRE
from l0gc.streamlog.journal.rows import MAX_OFFSET, NUMBER, OFFSET, START, Rows
from l0gc.streamlog.journal.topic import TopicState
from l0gc.streamlog.level_one.edit import Editor
from l0gc.watermark.publication import refuse_if_set_back

NewStarts = Callable[[Topic, TopicState], tuple[Rows, Rows]]
"""Decides which partitions of a topic get a new start, and at which offsets."""


@dataclass(frozen=True, slots=True)
class NewStart:
    """A partition whose start has moved from `previous` to `log_start_offset`."""

    topic: str
    partition: int
    previous: int
    log_start_offset: int


@dataclass(slots=True)
class ExpireResult(Outcome):
    """The deleted records, or those that a dry run would delete.

    Attributes:
        dry_run: Whether nothing was deleted.
        partitions: How many partitions have a new start offset.
        records: How many records were deleted.
        l1_objects: How many L1 objects vacuum may delete as a result.
        bytes: The size of these L1 objects.
        lost: How many partitions were left for the next run, because they changed during this one.
        starts: The first of the partitions: `topic`, `partition`, `log_start_offset` and `previous`, its former
            start.
        errors: Failures in single journals; the others are done, and the exit code is 3.
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


def starts_by_retention(topic: TopicState, retention: Retention, now_ms: int) -> tuple[Rows, Rows]:
    """Return the partitions in which retention deletes records, and their new starts (pure).

    `now_ms` is the time by the store's clock.
    """
    if retention.ms == UNLIMITED and retention.bytes == UNLIMITED:
        return np.empty(0, NUMBER), np.empty(0, OFFSET)
    return _prefixes(topic.all_rows(), retention, now_ms)


def _prefixes(rows: Rows, retention: Retention, now_ms: int) -> tuple[Rows, Rows]:
    """Return the new start of each partition from which L1 objects are removed."""
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


def expire(cluster: ClusterHandles, topic: str | None = None, *, dry_run: bool = False, shown: int = 0) -> ExpireResult:
    """Delete the records of one topic, or of all, that exceed their topic's retention.

    Args:
        dry_run: delete nothing; the result is that of a real run.
        shown: the most partitions that the result names.

    Raises:
        NotFoundError: the topic does not exist.
        EpochRegressionError: a published epoch is above the cluster epoch. A controller log that was set back may have
            lost a longer retention of a topic, so nothing is deleted (hazard 10).
        SafetyError: the time is uncertain; nothing was deleted (hazard 16).
    """
    refuse_if_set_back(cluster)
    state = cluster.controller.snapshot()
    topics = list(state.topics.values()) if topic is None else [state.topic(topic)]
    return _expire(cluster, state, topics, dry_run=dry_run, shown=shown)


def _expire(
    cluster: ClusterHandles, state: ControllerState, topics: Iterable[Topic], *, dry_run: bool, shown: int
) -> ExpireResult:
    """Delete the records that exceed the retention of these topics, according to a state of the controller."""
    as_of_ms = cluster.controller.replica.as_of_ms
    assert as_of_ms is not None
    now_ms = cluster.controller.store_time.settle(as_of_ms)
    work = {t.revision: (t, state.retention(t)) for t in topics if state.retention(t) != Retention()}

    def new_starts(t: Topic, state: TopicState) -> tuple[Rows, Rows]:
        return starts_by_retention(state, work[t.revision][1], now_ms)

    return run_expiry(cluster, [t for t, _ in work.values()], new_starts, dry_run, shown)


class Loss(NamedTuple):
    """How many of a topic's records the next expiry would delete, and how many it has."""

    topic: str
    records: int
    present: int


class Losses(NamedTuple):
    """The records that the next expiry would delete, largest losses first, and why they are unknown for some journals or
    partitions; both for one state of the controller.
    """

    by_topic: list[Loss]
    unknown: list[str]
    state: ControllerState


def losses(cluster: ClusterHandles, name: str | None, settings: RetentionSettings) -> Losses:
    """Return the records that the next expiry would delete from topics that keep less under these settings.

    Args:
        name: the topic that gets the settings; None for the cluster, and so for all topics without their own.

    Raises:
        The errors of `expire`.
    """
    refuse_if_set_back(cluster)
    before = cluster.controller.snapshot()
    if name is None:
        kept = settings.over(before.retention_ms, before.retention_bytes)
        ms, size = (UNLIMITED if value is None else value for value in kept)
        after = msgspec.structs.replace(before, retention_ms=ms, retention_bytes=size)
    else:
        topic = before.topic(name)
        own = settings.over(topic.retention_ms, topic.retention_bytes)
        altered = msgspec.structs.replace(topic, retention_ms=own[0], retention_bytes=own[1])
        after = msgspec.structs.replace(before, topics=before.topics | {name: altered})
    changed = [t for t in after.topics.values() if after.retention(t) != before.retention(before.topics[t.name])]
    records_by_topic = Counter[str]()
    planned = _expire(cluster, after, changed, dry_run=True, shown=sys.maxsize)
    for start in planned.starts:
        records_by_topic[start.topic] += start.log_start_offset - start.previous

    def present(topic: Topic) -> int:
        records = 0
        for journal in topic.journals:
            with suppress(CorruptObjectError, StoreError):  # journals that cannot be read are among the errors
                records += cluster.journal(journal).state.topic(topic.revision).totals().records
        return records

    return Losses(
        [Loss(name, records, present(after.topics[name])) for name, records in records_by_topic.most_common()],
        planned.errors,
        before,
    )


def run_expiry(
    cluster: ClusterHandles, topics: list[Topic], new_starts: NewStarts, dry_run: bool, shown: int
) -> ExpireResult:
    """Move log start offsets in every journal that has any of the topics.

    A failure in one journal affects only that journal.
    """
    result = ExpireResult(dry_run=dry_run)

    def one(part: tuple[int, list[Topic]]) -> ExpireResult:
        run = _Expiry(cluster, *part, new_starts, dry_run, shown)
        with run.recording_errors(StoreError):
            run.run()
        return run.result

    for done in cluster.parallel.map(one, by_journal(topics).items()):
        result.add(done, "partitions", "records", "l1_objects", "bytes", "lost", "starts", "errors")
    del result.starts[shown:]
    return result


class _Expiry(Editor):
    """The new starts in one journal."""

    def __init__(
        self,
        cluster: ClusterHandles,
        journal: int,
        topics: Sequence[Topic],
        new_starts: NewStarts,
        dry_run: bool,
        shown: int,
    ) -> None:
        self._cluster, self._new_starts, self._dry_run, self._shown = cluster, new_starts, dry_run, shown
        self.result = ExpireResult()
        super().__init__(cluster.journal(journal), {t.revision: t for t in topics}, self.result.errors)

    def run(self) -> None:
        """Move the starts."""
        states = self.states()
        starts = {revision: moved for revision, state in states.items() if len(moved := self._starts(state))}
        changes = ((revision, {"starts": rows}) for revision, rows in starts.items())
        landed = self.land(EXPIRE, self._cluster.controller.epoch(), changes, dry_run=self._dry_run)
        for revision, rows in starts.items():
            self._count(states[revision], rows, landed.has(revision, rows["partition"]))
        self.result.l1_objects += len(landed.dropped)
        self.result.bytes += int(landed.dropped["bytes"].sum())

    def _starts(self, state: TopicState) -> Rows:
        """Return the new starts of a topic's partitions, as rows of `START`."""
        partitions, starts = self._new_starts(self.topics[state.revision], state)
        new = np.empty(len(partitions), START)
        new["partition"], new["offset"] = partitions, starts
        return new

    def _count(self, before: TopicState, starts: Rows, moved: Rows) -> None:
        """Count the partitions that now begin at `starts`, and, as lost, those that still begin before."""
        with self.handle.replica.lock:
            topic = self.handle.state.topic(before.revision)
            begins = topic.values(topic.log_start, starts["partition"], MAX_OFFSET)
        self.result.lost += int((~moved & (begins < starts["offset"])).sum())
        starts = starts[moved]
        previous = before.values(before.log_start, starts["partition"], 0)
        self.result.partitions += len(starts)
        self.result.records += int((starts["offset"] - previous).sum())
        first = slice(0, max(0, self._shown - len(self.result.starts)))
        name = self.topics[before.revision].name
        for (p, new), old in zip(starts[first].tolist(), previous[first].tolist(), strict=True):
            self.result.starts.append(NewStart(name, p, old, new))
