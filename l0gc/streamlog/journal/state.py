"""The journal's state machine (pure): what each entry does, and which epoch each partition may still need.

What makes deletion safe: a partition's bound is the lowest epoch that anything unreconciled in it has, or that anything may
still land at. It follows `previous_applied_epoch`, never `max_applied_epoch` (hazard 1), because a straggler at the previous
epoch may still land; and it never goes down, since nothing is admitted below the window. `M(p)`, the gc epoch, is its
predecessor. A partition that nothing has landed in needs no entry: its topic's revision and the window say all.

Sources: the per-partition replicated state machine and the sliding window of Redpanda Cloud Topics. A journal with one
partition is exactly that machine; many partitions share the window, the producers and the appends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec
import numpy as np

from l0gc.epoch import is_epoch, prev
from l0gc.errors import CorruptObjectError, L0gcError, PartitionClosedError, StaleReconcilerError, UsageError
from l0gc.storage.log import Landed
from l0gc.streamlog.controller.state import PRODUCER_EXPIRY_MS
from l0gc.streamlog.journal import producers as producer_rules
from l0gc.streamlog.journal.admission import Admission
from l0gc.streamlog.journal.entries import (
    Advance,
    Barrier,
    Closed,
    JournalEntry,
    Objects,
    ProducerState,
    Reconciled,
    ReconciledTopic,
)
from l0gc.streamlog.journal.rows import Rows
from l0gc.streamlog.journal.topic import Extent, L1File, PartitionView, TopicState, TopicTotals
from l0gc.streamlog.journal.window import EpochWindow

_EXPIRY_STEP_MS: Final = 3_600_000
"""How often producers are looked through for old ones, by the log's time; they live for weeks."""


class PartitionLow(NamedTuple):
    """A partition that M may have to wait for. `lowest_epoch` is that of its oldest unreconciled object `key`, if any."""

    partition: int
    gc_epoch: int
    unreconciled_records: int
    lowest_epoch: int | None
    key: str


@dataclass(slots=True)
class JournalState:
    """A journal as of one log offset."""

    max_applied_epoch: int = 0
    previous_applied_epoch: int = 0
    window_offset: int = -1
    topics: dict[int, TopicState] = field(default_factory=dict)
    producers: dict[int, ProducerState] = field(default_factory=dict)
    time_ms: int = 0
    expired_ms: int = 0
    last_reconciled_log_offset: int = -1

    @property
    def window(self) -> EpochWindow:
        """The applied window."""
        return EpochWindow(self.previous_applied_epoch, self.max_applied_epoch)

    # -- what a partition may still need ------------------------------------------------------------------------------

    def bound(self, revision: int, partition: int) -> int:
        """The lowest epoch that the partition may still need; every epoch below it is done with, as far as it goes."""
        return int(self.bounds(revision, partition, 1)[0])

    def gc_epoch(self, revision: int, partition: int) -> int:
        """M(p): as far as this partition goes, objects at this epoch and below may be deleted."""
        return prev(self.bound(revision, partition))

    def bounds(self, revision: int, first: int, count: int) -> Rows:
        """`bound` of the topic's partitions `first` to `first + count - 1`."""
        topic = self.topics.get(revision)
        if topic is None:
            epochs = np.full(count, self.previous_applied_epoch, np.int64)
        else:
            epochs = topic.lowest_epochs(first, count, self.previous_applied_epoch)
        bounds: Rows = np.maximum(epochs, revision)
        return bounds

    def lowest(self, revision: int, first: int, count: int, limit: int) -> list[PartitionLow]:
        """Of the topic's partitions `first` to `first + count - 1` those with the lowest M(p), ties by number.

        Args:
            limit: how many at the most.
        """
        topic = self.topics.get(revision)
        bounds = self.bounds(revision, first, count)
        order = np.argsort(bounds, kind="stable")[:limit]
        oldest = {} if topic is None else topic.oldest_objects(np.sort(order + first))
        low = []
        for i in order:
            partition, o = first + int(i), oldest.get(first + int(i))
            records = 0 if topic is None else topic.view(partition).unreconciled_records
            where = (o.epoch, o.key) if o is not None else (None, "")
            low.append(PartitionLow(partition, prev(int(bounds[i])), records, *where))
        return low

    @property
    def min_epoch_lower_bound(self) -> int:
        """Every epoch below it is done with as far as the whole journal goes, whatever topics it has."""
        epochs = [o.epoch for t in self.topics.values() for o in t.objects]
        return min([self.previous_applied_epoch, *epochs])

    # -- views ----------------------------------------------------------------------------------------------------------

    def partition(self, revision: int, partition: int) -> PartitionView:
        """A partition's offsets; those of an empty one if nothing has landed in it."""
        topic = self.topics.get(revision)
        return PartitionView() if topic is None else topic.view(partition)

    def totals(self, revision: int) -> TopicTotals:
        """Sums over the topic's partitions here."""
        topic = self.topics.get(revision)
        return TopicTotals() if topic is None else topic.totals()

    def extents(self, revision: int, partition: int) -> list[Extent]:
        """The unreconciled extents of a partition, in order of offset."""
        topic = self.topics.get(revision)
        return [] if topic is None else topic.extents(partition)

    def files(self, revision: int, partition: int) -> list[L1File]:
        """The newest L1 objects of a partition, in order of offset."""
        topic = self.topics.get(revision)
        return [] if topic is None else topic.files(partition)

    def closed(self, revision: int) -> bool:
        """Whether the topic was deleted, as far as this journal has heard."""
        topic = self.topics.get(revision)
        return topic is not None and topic.closed


# Built at import, by one thread: msgspec learns a type at its first use, and two threads doing that at once crash it.
_ENTRY: Final = msgspec.msgpack.Decoder(JournalEntry)


def decode_entry(payload: bytes, where: str) -> JournalEntry:
    """The entry in a log entry's payload. Raises `CorruptObjectError`, naming `where`."""
    try:
        entry: JournalEntry = _ENTRY.decode(payload)
        return entry
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptObjectError(f"{where} cannot be read: {error}") from error


def apply(state: JournalState, entry: Landed, where: str) -> None:
    """Change `state` by `entry`. An entry that admission would have refused is corrupt, and changes nothing."""
    e = decode_entry(entry.payload, where)
    try:
        match e:
            case Objects():
                _apply_objects(state, e, entry)
            case Advance():
                check_epoch(e.epoch)
                _set_window(state, state.window.slide(e.epoch), entry.offset)
            case Barrier():
                check_epoch(e.epoch)
                if e.epoch < state.max_applied_epoch:
                    raise UsageError(f"a barrier at {e.epoch} would lower the window {state.window}")
                _set_window(state, EpochWindow(e.epoch, e.epoch), entry.offset)
            case Reconciled():
                _apply_reconciled(state, e)
            case Closed():
                check_epoch(e.revision)
                topic = state.topics.get(e.revision) or TopicState(e.revision, e.topic_id)
                if e.topic_id and topic.topic_id != e.topic_id:
                    raise UsageError(f"the topic with revision {e.revision} is another one")
                state.topics.setdefault(e.revision, topic).close()
    except (L0gcError, ValueError) as error:
        raise CorruptObjectError(f"{where} should never have landed: {error}") from error
    state.time_ms = max(state.time_ms, entry.time_ms)
    if state.time_ms - state.expired_ms >= _EXPIRY_STEP_MS:
        producer_rules.expire(state.producers, state.time_ms - PRODUCER_EXPIRY_MS)
        state.expired_ms = state.time_ms


def check_epoch(epoch: int) -> None:
    """Raises `UsageError` if `epoch` cannot be one."""
    if not is_epoch(epoch):
        raise UsageError(f"{epoch} is no epoch")


def _apply_objects(state: JournalState, e: Objects, entry: Landed) -> None:
    admission = Admission(state.window, state.topics, state.producers)
    if not e.objects:
        raise UsageError("there are no objects in it")
    for o in e.objects:
        if admission.admit(o) is not None:
            raise UsageError(f"the object {o.key} has landed before")
    for o in e.objects:
        state.topics.setdefault(o.revision, TopicState(o.revision, o.topic_id)).land(o, entry.offset)
        if o.producer is not None:
            producer_rules.record(state.producers, o.producer, entry.offset, entry.time_ms)
        _set_window(state, state.window.slide(o.epoch), entry.offset)


def _set_window(state: JournalState, window: EpochWindow, offset: int) -> None:
    if window != state.window:
        state.previous_applied_epoch, state.max_applied_epoch = window.oldest, window.newest
        state.window_offset = offset


def _apply_reconciled(state: JournalState, e: Reconciled) -> None:
    check_epoch(e.epoch)
    if not e.topics or len({t.revision for t in e.topics}) != len(e.topics):
        raise UsageError("it reconciles no topic, or one twice")
    for t in e.topics:
        refused = refusals(state, t, e.log_offset)
        if refused:
            raise StaleReconcilerError("; ".join(f"partition {p}: {why}" for p, why in sorted(refused.items())))
    for t in e.topics:
        state.topics[t.revision].reconcile(t)
    state.last_reconciled_log_offset = max(state.last_reconciled_log_offset, e.log_offset)


def refusals(state: JournalState, t: ReconciledTopic, log_offset: int) -> dict[int, str]:
    """Which partitions of a reconciler's commit cannot land, and why. See `TopicState.refusals`.

    Raises:
        PartitionClosedError: the topic is gone, or nothing has ever landed in it.
    """
    topic = state.topics.get(t.revision)
    if topic is None or topic.closed:
        raise PartitionClosedError(f"the topic with revision {t.revision} was deleted, or is not in this journal")
    return topic.refusals(t, log_offset)
