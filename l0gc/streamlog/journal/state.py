"""The journal's state machine (pure): what each entry does, and which epoch each partition may still need.

What makes deletion safe: a partition's bound is the lowest epoch that anything unreconciled in it has, or that anything may
still land at. It follows `previous_applied_epoch`, never `max_applied_epoch` (hazard 1), because a straggler at the
previous epoch may still land; and it never goes down, since nothing is admitted below the window. `M(p)`, the gc epoch, is
its predecessor.

What makes the deletion of L1 safe: an object that leaves the lists of L1 objects (`l1`) is kept among the dropped ones
until it is purged. And no entry names an object that is stamped below the L1 fence: what lies below it, and is not named
after the entry that raised it, never will be (hazard 25). A topic that was closed takes nothing any more, for ever.

Sources: the per-partition replicated state machine and the sliding window of Redpanda Cloud Topics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from l0gc.epoch import MAX_EPOCH, is_epoch, prev
from l0gc.errors import (
    CorruptObjectError,
    EpochRegressionError,
    L0gcError,
    PartitionClosedError,
    StaleReconcilerError,
    UsageError,
)
from l0gc.storage.entry import Landed
from l0gc.streamlog.controller.state import PRODUCER_EXPIRY_MS
from l0gc.streamlog.journal import producers as producer_rules
from l0gc.streamlog.journal.admission import Admission, EpochWindow
from l0gc.streamlog.journal.commits import check_commit, check_expiry, check_merge, lowest_epoch
from l0gc.streamlog.journal.entries import (
    Advance,
    Barrier,
    Closed,
    Expired,
    ExpiredTopic,
    FenceL1,
    GaveUp,
    Merged,
    MergedTopic,
    Objects,
    ProducerState,
    Purged,
    Reconciled,
    ReconciledTopic,
    SetBack,
    decode_journal_entry,
)
from l0gc.streamlog.journal.holes import GIVEN_UP, check_give_up
from l0gc.streamlog.journal.l1 import BELOW, NO_DROPPED, NO_INDEX_ROWS, Changed, Lists, faults, index_rows
from l0gc.streamlog.journal.rows import INDEX_TREE, NAME, Rows, name_low, unpack
from l0gc.streamlog.journal.topic import TopicState

_EXPIRY_STEP_MS: Final = 3_600_000
"""How often producers are searched for old ones, by the log's time; they live for weeks."""


class PartitionLow(NamedTuple):
    """A partition that M may have to wait for. `lowest_epoch` is that of its oldest unreconciled object `key`, if any."""

    partition: int
    gc_epoch: int
    unreconciled_records: int
    lowest_epoch: int | None
    key: str


@dataclass(slots=True)
class JournalState:
    """A journal as of one log offset.

    Attributes:
        topics: those that are not closed, by revision.
        closed_revisions: those of the closed ones, ascending.
        l1_fence: no L1 or index object that is stamped below it is named any more.
        dropped: objects that are not named any more and not purged, as rows of `DROPPED`, in the order of the log.
        set_backs: how often the log was set back to an older copy and accepted as it was.
        kept_below: what is stamped below it may have been named by what was lost then, and is never an orphan.
    """

    max_applied_epoch: int = 0
    previous_applied_epoch: int = 0
    window_offset: int = -1
    topics: dict[int, TopicState] = field(default_factory=dict)
    producers: dict[int, ProducerState] = field(default_factory=dict)
    time_ms: int = 0
    expired_ms: int = 0
    last_reconciled_log_offset: int = -1
    closed_revisions: Rows = field(default_factory=lambda: np.empty(0, np.int64))
    l1_fence: int = 0
    dropped: Rows = field(default_factory=NO_DROPPED.copy)
    set_backs: int = 0
    kept_below: int = 0

    @property
    def window(self) -> EpochWindow:
        """The applied window."""
        return EpochWindow(self.previous_applied_epoch, self.max_applied_epoch)

    # -- what a partition may still need ------------------------------------------------------------------------------

    def bounds(self, revision: int, first: int, count: int) -> Rows:
        """For each of the topic's partitions `first` to `first + count - 1` the lowest epoch that it may still need."""
        epochs = self.topic(revision).lowest_epochs(first, count, self.previous_applied_epoch)
        bounds: Rows = np.maximum(epochs, revision)
        return bounds

    def lowest(self, revision: int, first: int, count: int, limit: int) -> list[PartitionLow]:
        """At most `limit` of the topic's partitions `first` to `first + count - 1`: those with the lowest M(p), ties by
        number."""
        topic = self.topic(revision)
        bounds = self.bounds(revision, first, count)
        order = np.argsort(bounds, kind="stable")[:limit]
        oldest = topic.oldest_objects(np.sort(order + first))
        low = []
        for i in order:
            partition, o = first + int(i), oldest.get(first + int(i))
            records = topic.view(partition).unreconciled_records
            where = (o.epoch, o.key) if o is not None else (None, "")
            low.append(PartitionLow(partition, prev(int(bounds[i])), records, *where))
        return low

    # -- views ----------------------------------------------------------------------------------------------------------

    def topic(self, revision: int) -> TopicState:
        """What the journal keeps of a topic; a new, empty state if nothing has landed in it."""
        return self.topics.get(revision) or TopicState(revision, "")

    def closed(self, revision: int) -> bool:
        """Whether this journal has recorded the topic's deletion."""
        at = int(np.searchsorted(self.closed_revisions, revision))
        return at < len(self.closed_revisions) and int(self.closed_revisions[at]) == revision

    @property
    def highest_revision(self) -> int:
        """The highest revision of a topic that the journal has recorded, even if closed; -1 without topics."""
        closed: list[int] = self.closed_revisions[-1:].tolist()
        return max([-1, *self.topics, *closed])

    # -- L1 that nothing names any more -----------------------------------------------------------------------------------

    def dropped_of(self, revision: int) -> Rows:
        """What the topic has dropped and not purged, as rows of `DROPPED`."""
        return np.asarray(self.dropped[self.dropped["revision"] == revision])

    def has_dropped(self, revision: int) -> bool:
        """Whether anything of the topic is dropped and not purged."""
        return bool((self.dropped["revision"] == revision).any())

    def is_dropped_before(self, time_ms: int, epoch: int | Rows) -> NDArray[np.bool_]:
        """For each row of `dropped`: whether that was by a time of the log, with at most `epoch`, one for all or each."""
        time, at = self.dropped["dropped_ms"], self.dropped["dropped_epoch"]
        return np.logical_and(time <= time_ms, at <= epoch)

    def names(self, revision: int) -> set[bytes]:
        """The names of all L1 and index objects that the state has of a topic, named or dropped.

        What index objects list is not among them: see `indexes_over`.
        """
        topic = self.topic(revision)
        return {bytes(name) for rows in (self.dropped_of(revision), topic.l1, topic.index) for name in rows["name"]}

    def indexes_over(self, revision: int, partition: int, base: int, last: int) -> Rows:
        """The index objects, as rows of `INDEX_ROW`, named or dropped with all that they list, that may list an L1 object
        of these records."""
        trees = self.dropped_of(revision)
        trees = trees[(trees["kind"] == INDEX_TREE) & (trees["partition"] == partition)]
        rows = np.concatenate([index_rows(trees), self.topic(revision).index_of(partition)])
        found: Rows = rows[(rows["base"] <= base) & (rows["last"] >= last)]
        return found


def apply(state: JournalState, entry: Landed, where: str) -> None:
    """Change `state` by `entry`. An entry that admission would have refused is corrupt, and changes nothing."""
    e, time_ms = decode_journal_entry(entry.payload, where), max(state.time_ms, entry.time_ms)
    try:
        match e:
            case Objects():
                _apply_objects(state, e, entry.offset, time_ms)
            case Advance():
                check_epoch(e.epoch)
                _set_window(state, state.window.slide(e.epoch), entry.offset)
            case Barrier():
                check_epoch(e.epoch)
                if e.epoch < state.max_applied_epoch:
                    raise UsageError(f"a barrier at {e.epoch} would lower the window {state.window}")
                _set_window(state, EpochWindow(e.epoch, e.epoch), entry.offset)
            case Reconciled():
                _apply_l1(state, e, lambda t: refusals(state, t, e.log_offset), TopicState.reconcile, time_ms)
                state.last_reconciled_log_offset = max(state.last_reconciled_log_offset, e.log_offset)
            case Merged():
                _apply_l1(state, e, lambda t: merge_refusals(state, t), TopicState.merge, time_ms)
            case Expired():
                _apply_l1(state, e, lambda t: expiry_refusals(state, t), TopicState.expire, time_ms)
            case FenceL1():
                check_epoch(e.epoch)
                if e.epoch <= state.l1_fence:
                    raise UsageError(f"the L1 fence is at {state.l1_fence}, and {e.epoch} would not raise it")
                state.l1_fence = e.epoch
            case Purged():
                purged = purged_rows(state, e)
                if not purged.any():
                    raise UsageError("it purges nothing that was dropped")
                state.dropped = state.dropped[~purged]
            case Closed():
                _apply_closed(state, e, time_ms)
            case GaveUp():
                state.topics[e.revision].give_up(check_give_up(state.topics, e, f"revision {e.revision}"))
            case SetBack():
                _apply_set_back(state, e, entry.offset)
    except (L0gcError, ValueError) as error:
        raise CorruptObjectError(f"{where} should never have landed: {error}") from error
    state.time_ms = time_ms
    if state.time_ms - state.expired_ms >= _EXPIRY_STEP_MS:
        producer_rules.forget_unused(state.producers, state.time_ms - PRODUCER_EXPIRY_MS)
        state.expired_ms = state.time_ms


def check_epoch(epoch: int) -> None:
    """Raises `UsageError` if `epoch` cannot be one."""
    if not is_epoch(epoch):
        raise UsageError(f"{epoch} is not an epoch")


def _apply_objects(state: JournalState, e: Objects, offset: int, time_ms: int) -> None:
    admission = Admission(state.window, state.topics, state.producers, state.closed)
    if not e.objects:
        raise UsageError("it has no objects")
    for o in e.objects:
        if admission.admit(o) is not None:
            raise UsageError(f"the object {o.key} has landed before")
    for o in e.objects:
        state.topics.setdefault(o.revision, TopicState(o.revision, o.topic_id)).land(o, offset, time_ms)
        if o.producer is not None:
            producer_rules.record(state.producers, o.producer, offset, time_ms)
        _set_window(state, state.window.slide(o.epoch), offset)


def _set_window(state: JournalState, window: EpochWindow, offset: int) -> None:
    if window != state.window:
        state.previous_applied_epoch, state.max_applied_epoch = window.oldest, window.newest
        state.window_offset = offset


def _apply_l1(
    state: JournalState,
    e: Reconciled | Merged | Expired,
    refused: Callable[[Any], dict[int, str]],
    take: Callable[[TopicState, Any], Changed],
    time_ms: int,
) -> None:
    """Nothing is taken before all topics are found right."""
    check_stamps(state, e)
    for t in e.topics:
        if found := refused(t):
            raise StaleReconcilerError("; ".join(f"partition {p}: {why}" for p, why in sorted(found.items())))
    for t in e.topics:
        _drop(state, t.revision, take(state.topics[t.revision], t), time_ms, getattr(e, "epoch", 0))


def _drop(state: JournalState, revision: int, result: Changed, time_ms: int, epoch: int = 0) -> None:
    epoch = max(epoch, state.max_applied_epoch)
    state.dropped = np.concatenate([state.dropped, result.dropped(revision, time_ms, epoch)])


def _apply_closed(state: JournalState, e: Closed, time_ms: int) -> None:
    """Nothing is closed before all topics are found right."""
    revisions = [t.revision for t in e.topics]
    if not revisions or len(set(revisions)) != len(revisions):
        raise UsageError("it closes no topic, or one twice")
    for epoch in (*revisions, e.epoch):
        check_epoch(epoch)
    for t in e.topics:
        topic = state.topics.get(t.revision)
        if topic is not None and t.topic_id not in ("", topic.topic_id):
            raise UsageError(f"the topic with revision {t.revision} is another one")
    for revision in revisions:
        topic = state.topics.pop(revision, None)
        if topic is not None:
            _drop(state, revision, Changed(Lists(), topic.l1, NO_INDEX_ROWS, topic.index), time_ms, e.epoch)
    state.closed_revisions = np.union1d(state.closed_revisions, np.array(revisions, np.int64))


def _apply_set_back(state: JournalState, e: SetBack, offset: int) -> None:
    check_epoch(e.epoch)
    if e.epoch < max(state.max_applied_epoch, state.l1_fence) or e.times <= state.set_backs:
        raise UsageError(f"epoch {e.epoch} is not fresh, or the log was accepted {state.set_backs} times before")
    _set_window(state, EpochWindow(e.epoch, e.epoch), offset)
    state.l1_fence = state.kept_below = e.epoch
    state.set_backs = e.times


def check_stamps(state: JournalState, e: Reconciled | Merged | Expired) -> None:
    """Whether an entry may name what it names: its own stamp and those of the objects are not below the L1 fence.

    Raises:
        StaleReconcilerError: one is below it: a vacuum may be deleting the objects (hazard 25), or it is not an epoch.
        UsageError: it has no topic, or one twice.
    """
    if not e.topics or len({t.revision for t in e.topics}) != len(e.topics):
        raise UsageError("it names no topic, or one twice")
    match e:
        case Reconciled():
            lowest = lowest_epoch(e.epoch, *(check_commit(t)[1] for t in e.topics))
        case Merged():
            lowest = lowest_epoch(e.epoch, *(check_merge(t) for t in e.topics))
        case Expired():
            lowest = lowest_epoch(MAX_EPOCH, *(check_expiry(t).change for t in e.topics))
    if lowest < state.l1_fence:
        raise StaleReconcilerError(
            f"what the run wrote is stamped with epoch {lowest}, and vacuum has fenced off all below {state.l1_fence}; "
            "nothing of it counts: run it again"
        )
    check_epoch(lowest)


def refusals(state: JournalState, t: ReconciledTopic, log_offset: int) -> dict[int, str]:
    """Which partitions of a reconciler's commit are not where it began, and why (hazard 9).

    Raises:
        PartitionClosedError: the topic is gone, or nothing has ever landed in it.
        StaleReconcilerError: the commit does not hold what it says, for whatever state.
    """
    topic = _topic(state, t.revision)
    ranges, change = check_commit(t)
    partitions = ranges["partition"]
    last = topic.values(topic.reconciled, partitions, -1)
    moved = ~np.isin(partitions, topic.partitions) | (ranges["base"] != last + 1)
    refused = {
        int(row["partition"]): f"records up to {done} are reconciled already, so {row['base']} is not next"
        for row, done in zip(ranges[moved], last[moved].tolist(), strict=True)
    }
    for partition in partitions[~topic.end_with_extent(ranges, log_offset)].tolist():
        refused.setdefault(partition, "its last record is not the last of an object")
    refused |= dict.fromkeys(partitions[topic.given_up(ranges)].tolist(), GIVEN_UP)
    lists, garbage = topic.lists_of(partitions), state.dropped_of(t.revision)
    return faults(lists, partitions, change, garbage, ranges["last"], last + 1) | refused


def merge_refusals(state: JournalState, t: MergedTopic) -> dict[int, str]:
    """Which partitions of a merge have moved on, and why (hazard 24). See `refusals`."""
    topic, change = _topic(state, t.revision), check_merge(t)
    partitions, files = change.merged, change.files
    ends = topic.values(topic.reconciled, partitions, -1)
    below = files["partition"][files["last"] < topic.values(topic.log_start, files["partition"], 0)]
    firsts = np.full(len(partitions), -1, np.int64)
    refused = faults(topic.lists_of(partitions), partitions, change, state.dropped_of(t.revision), ends, firsts)
    return dict.fromkeys(below.tolist(), BELOW) | refused


def expiry_refusals(state: JournalState, t: ExpiredTopic) -> dict[int, str]:
    """Which partitions of an expiry cannot begin there, and why. See `refusals`.

    Raises:
        EpochRegressionError: another topic has that revision here, which only a restored controller log can cause.
        UsageError: the expiry cannot be meant.
    """
    topic = _topic(state, t.revision)
    if topic.topic_id != t.topic_id:
        raise EpochRegressionError(
            f"revision {t.revision} belongs to another topic in this journal: the controller log looks restored from a "
            "backup, and gave it a second time; nothing of it was deleted"
        )
    partitions, starts, change = check_expiry(t)
    ends = topic.reconciled_after(partitions, starts)
    refused = faults(topic.lists_of(partitions), partitions, change, state.dropped_of(t.revision), ends, None, starts)
    following, begins = (topic.values(c, partitions, 0) for c in (topic.next_offsets, topic.log_start))
    for at in np.flatnonzero(starts > following).tolist():
        refused[int(partitions[at])] = f"it has no record {starts[at] - 1}: the next one will be {following[at]}"
    for at in np.flatnonzero(starts <= begins).tolist():
        refused[int(partitions[at])] = f"it begins at record {begins[at]} already"
    return refused


def purged_rows(state: JournalState, e: Purged) -> Rows:
    """Which of the dropped objects the entry purges. Raises `UsageError` if its names cannot be read."""
    names = unpack(e.names, NAME)
    found = np.isin(name_low(state.dropped["name"]), name_low(names))
    gone = {bytes(n) for n in names}
    for at in np.flatnonzero(found):
        found[at] = bytes(state.dropped["name"][at]) in gone
    return found


def _topic(state: JournalState, revision: int) -> TopicState:
    topic = state.topics.get(revision)
    if topic is None:
        raise PartitionClosedError(f"the topic with revision {revision} was deleted, or is not in this journal")
    return topic
