"""Retention and deletion of records: both move the log start offsets of partitions up, and nothing else does.

Retention follows Kafka's rules, with L1 objects as segments. By time: an L1 object is removed once its newest record is
older than the retention, oldest first, up to the first that stays. By size: the oldest L1 object is removed while the
partition's others are still as large as the retention. Records that are not in L1 are Kafka's active segment: retention
never deletes them, and they do not count. A manual deletion may go further, up to the next offset.

What makes it safe: where a partition may begin is decided where the entry lands. Nothing is removed from the bucket here:
dropped objects stay until vacuum deletes them. A partition whose list of L1 objects has changed by then is read again.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, NamedTuple

import msgspec
import numpy as np

from l0gc.errors import L0gcError, ObjectNotFoundError, StoreError
from l0gc.formatting import Outcome
from l0gc.keys import PartitionId
from l0gc.streamlog.cluster import Handles
from l0gc.streamlog.controller.decisions import RetentionSettings
from l0gc.streamlog.controller.state import UNLIMITED, ControllerState, Retention, Topic, by_journal
from l0gc.streamlog.journal.entries import EXPIRE
from l0gc.streamlog.journal.rows import (
    INDEX_TREE,
    L1_OBJECT,
    MAX_OFFSET,
    NO_L1_ROWS,
    NUMBER,
    OFFSET,
    START,
    Rows,
    places,
)
from l0gc.streamlog.journal.topic import TopicState
from l0gc.streamlog.level_one.edit import Editor
from l0gc.streamlog.level_one.index import IndexChange, cut_index, joined, read_index
from l0gc.watermark.publication import refuse_if_set_back

_TRIES: Final = 4
"""How many times a partition is read again because its L1 objects were merged or spilled."""

Listed = Callable[[int, Rows], Rows | None]
"""Reads what index objects of a partition list, given their rows; returns None if one cannot be read, so that the
partition is skipped.
"""
NewStarts = Callable[[Topic, TopicState, Listed], tuple[Rows, Rows]]
"""Decides which partitions of a topic get a new start, and where."""


@dataclass(frozen=True, slots=True)
class NewStart:
    """A partition that begins at `log_start_offset` now, and began at `previous` before."""

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
    """Return the partitions in which retention deletes something, and their new starts.

    It is pure but for `listed`, which is called only for partitions whose oldest L1 object is inside an index object and
    is to be removed. `now_ms` is by the store's clock.
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
    """Return whether the oldest L1 object is removed, without which the partition has this many bytes."""
    return (retention.ms != UNLIMITED and now_ms - newest_ms > retention.ms) or (
        retention.bytes != UNLIMITED and without >= retention.bytes
    )


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


def expire(cluster: Handles, topic: str | None = None, *, dry_run: bool = False, shown: int = 0) -> ExpireResult:
    """Delete what exceeds its topic's retention, of one topic or of all.

    Args:
        dry_run: delete nothing; the result is what a run would do.
        shown: how many partitions the result names at most.

    Raises:
        NotFoundError: the topic does not exist.
        EpochRegressionError: what is published is above the cluster epoch. A controller log that went back may have lost
            a longer retention of a topic, so nothing is deleted (hazard 10).
        SafetyError: the time is uncertain; nothing was deleted (hazard 16).
    """
    refuse_if_set_back(cluster)
    state = cluster.controller.snapshot()
    topics = list(state.topics.values()) if topic is None else [state.topic(topic)]
    return _expire(cluster, state, topics, dry_run=dry_run, shown=shown)


def _expire(
    cluster: Handles, state: ControllerState, topics: Iterable[Topic], *, dry_run: bool, shown: int
) -> ExpireResult:
    """Delete what is beyond the retention that a state of the controller gives these topics."""
    as_of_ms = cluster.controller.replica.as_of_ms
    assert as_of_ms is not None
    now_ms = cluster.controller.store_time.settle(as_of_ms)
    work = {t.revision: (t, state.retention(t)) for t in topics if state.retention(t) != Retention()}

    def wanted(t: Topic, known: TopicState, listed: Listed) -> tuple[Rows, Rows]:
        return starts_by_retention(known, work[t.revision][1], now_ms, listed)

    return run_expiry(cluster, [t for t, _ in work.values()], wanted, dry_run, shown)


class Loss(NamedTuple):
    """The number of a topic's records that the next expiry would delete, and of all its records."""

    topic: str
    records: int
    there: int


def losses(cluster: Handles, name: str | None, settings: RetentionSettings) -> list[Loss]:
    """Return what the next expiry would delete of topics that keep less with these settings, the most first.

    Args:
        name: the topic that gets the settings; None for the cluster, and with it all topics without their own.

    Raises:
        What `expire` raises.
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
    found = Counter[str]()
    for start in _expire(cluster, after, changed, dry_run=True, shown=sys.maxsize).starts:
        found[start.topic] += start.log_start_offset - start.previous

    def there(topic: Topic) -> int:
        states = (cluster.journal(journal).state for journal in topic.journals)
        return sum(s.topic(topic.revision).totals().records for s in states)

    return [Loss(name, records, there(after.topics[name])) for name, records in found.most_common()]


def run_expiry(cluster: Handles, topics: list[Topic], wanted: NewStarts, dry_run: bool, shown: int) -> ExpireResult:
    """Move log start offsets in every journal that has some of the topics.

    A failure in one journal affects only that journal, and an unreadable index object affects only its partition.
    """
    result = ExpireResult(dry_run=dry_run)

    def one(part: tuple[int, list[Topic]]) -> ExpireResult:
        run = _Expiry(cluster, *part, wanted, dry_run, shown)
        with run.alone(StoreError):
            run.run()
        return run.result

    for done in cluster.parallel.map(one, by_journal(topics).items()):
        result.add(done, "partitions", "records", "l1_objects", "bytes", "lost", "starts", "errors")
    del result.starts[shown:]
    return result


def left_out(p: PartitionId, error: L0gcError) -> str:
    return (
        f"partition {p}: {error}; its records stay until that object is restored from a version or a backup, or they are "
        "given up (docs/operate-lost.md)"
    )


class _Expiry(Editor):
    """The new starts in one journal."""

    def __init__(
        self, cluster: Handles, journal: int, topics: Sequence[Topic], wanted: NewStarts, dry_run: bool, shown: int
    ) -> None:
        self._cluster, self._wanted, self._dry_run, self._shown = cluster, wanted, dry_run, shown
        self.result = ExpireResult()
        super().__init__(cluster.journal(journal), {t.revision: t for t in topics}, self.result.errors)

    def run(self) -> None:
        """Move the starts; a partition that has changed by the time its edit lands is read again."""
        for _ in range(_TRIES):
            self.result.lost = 0
            self.unreadable.clear()
            epoch = self._cluster.controller.epoch()
            states = self.states()
            changes = {
                r: change for r, known in states.items() if len((change := self._change(known, epoch))["starts"])
            }
            landed = self.land(EXPIRE, epoch, changes.items(), dry_run=self._dry_run)
            for revision, change in changes.items():
                self._count(states[revision], change["starts"], landed.has(revision, change["starts"]["partition"]))
            for kind, objects, size in ((L1_OBJECT, None, "bytes"), (INDEX_TREE, "rows", "row_bytes")):
                gone = landed.dropped[landed.dropped["kind"] == kind]
                self.result.l1_objects += len(gone) if objects is None else int(gone[objects].sum())
                self.result.bytes += int(gone[size].sum())
            # An index object that is gone may have been replaced, and vacuumed, since the state was read.
            gone_index = any(isinstance(e, ObjectNotFoundError) for _, e in self.unreadable)
            if self._dry_run or not (self.result.lost or gone_index):
                break
        self.result.errors += [left_out(p, e) for p, e in sorted(self.unreadable, key=lambda item: item[0].path)]

    def _change(self, known: TopicState, epoch: int) -> dict[str, Rows]:
        """Return the columns of the change that moves the starts of a topic's partitions.

        It cuts index objects, and names the L1 objects that these no longer list. It omits a partition with an object
        that cannot be read.
        """
        topic = self.topics[known.revision]
        store, runtime = self._cluster.store, self._cluster.runtime

        def listed(partition: int, index: Rows) -> Rows | None:
            p = topic.id(partition)
            return self.attempt(p, lambda: read_index(store, p, index))

        partitions, starts = self._wanted(topic, known, listed)
        if not len(partitions):
            return {"starts": np.empty(0, START)}
        at, there = places(partitions, known.index["partition"])
        rows = known.index[there & (known.index["base"] < starts[at]) & (known.index["last"] >= starts[at])]

        def cut(row: Rows) -> tuple[IndexChange, Rows] | None:
            p, index = topic.id(int(row["partition"])), np.array([row])
            begin = int(starts[np.searchsorted(partitions, row["partition"])])
            return self.attempt(p, lambda: cut_index(store, p, index, begin, epoch, runtime, dry_run=self._dry_run))

        done = [found for found in self._cluster.parallel.map(cut, list(rows)) if found is not None]
        readable = ~np.isin(partitions, [p.partition for p, _ in self.unreadable if p.revision == topic.revision])
        new = np.empty(int(readable.sum()), START)
        new["partition"], new["offset"] = partitions[readable], starts[readable]
        removed = np.concatenate([NO_L1_ROWS, *(gone for _, gone in done)])
        return {"removed": removed, "starts": new, **joined(change for change, _ in done)._asdict()}

    def _count(self, before: TopicState, starts: Rows, moved: Rows) -> None:
        """Count the partitions that now begin at `starts`, and those that begin before."""
        with self.handle.replica.lock:
            topic = self.handle.state.topic(before.revision)
            begins = topic.values(topic.log_start, starts["partition"], MAX_OFFSET)
        self.result.lost += int((~moved & (begins < starts["offset"])).sum())
        starts = starts[moved]
        previous = before.values(before.log_start, starts["partition"], 0)
        self.result.partitions += len(starts)
        self.result.records += int((starts["offset"] - previous).sum())
        some = slice(0, max(0, self._shown - len(self.result.starts)))
        name = self.topics[before.revision].name
        for (p, new), old in zip(starts[some].tolist(), previous[some].tolist(), strict=True):
            self.result.starts.append(NewStart(name, p, old, new))
