"""The state of a journal's machine, and the epoch that each partition may still need (pure).

Why deletion is safe: a partition's bound is the lowest epoch of any object that is unreconciled in it or may still land in
it. It follows `previous_applied_epoch`, never `max_applied_epoch` (hazard 1), because a straggler at the previous epoch
may still land. It never goes down, since nothing is admitted below the window. `M(p)`, the gc epoch, is its predecessor.

Why the deletion of L1 objects is safe: an object that leaves the lists of L1 objects (`edits`) is kept among the dropped
ones until it is purged. No entry lists an object stamped below the L1 fence: if it is not listed after the entry that
raised the fence, it never will be (hazard 25). A closed topic never accepts anything again.

Sources: the per-partition replicated state machine and the sliding window of Redpanda Cloud Topics.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from l0gc.epoch import prev
from l0gc.streamlog.journal.admission import EpochWindow
from l0gc.streamlog.journal.entries import Purged
from l0gc.streamlog.journal.producers import ProducerState
from l0gc.streamlog.journal.rows import NAME, NO_DROPPED, NO_NUMBERS, Rows, indices_in, unpack
from l0gc.streamlog.journal.shared import UNLANDED, SharedObject
from l0gc.streamlog.journal.topic import TopicState


class PartitionLow(NamedTuple):
    """A partition that M may have to wait for. `lowest_epoch` is that of its oldest unreconciled object `key`, if any."""

    partition: int
    gc_epoch: int
    unreconciled_records: int
    lowest_epoch: int | None
    key: str


class JournalState(msgspec.Struct):
    """A journal as of one log offset.

    Attributes:
        topics: the topics that are not closed, by revision.
        closed_revisions: the revisions of closed topics, ascending.
        l1_fence: later entries list no L1 object that is stamped below it.
        dropped: L1 objects that are no longer listed and not yet purged, as rows of `DROPPED`, in the order of the log.
        set_backs: how often the log was set back to an older copy and accepted as it was.
        kept_below: an object that is stamped below it is never an orphan, since the lost entries may have listed it.
    """

    max_applied_epoch: int = 0
    previous_applied_epoch: int = 0
    window_offset: int = -1
    topics: dict[int, TopicState] = {}
    producers: dict[int, ProducerState] = {}
    time_ms: int = 0
    expired_ms: int = 0
    closed_revisions: Rows = msgspec.field(default_factory=lambda: np.empty(0, np.int64))
    l1_fence: int = 0
    dropped: Rows = msgspec.field(default_factory=NO_DROPPED.copy)
    set_backs: int = 0
    kept_below: int = 0

    @property
    def window(self) -> EpochWindow:
        return EpochWindow(self.previous_applied_epoch, self.max_applied_epoch)

    # -- what a partition may still need ------------------------------------------------------------------------------

    def bounds(self, revision: int, first: int, count: int) -> Rows:
        """Return the lowest epoch that each of the topic's partitions `first` to `first + count - 1` may still need."""
        epochs = self.topic(revision).lowest_epochs(first, count, self.previous_applied_epoch)
        bounds: Rows = np.maximum(epochs, revision)
        return bounds

    def lowest(self, revision: int, first: int, count: int, limit: int) -> list[PartitionLow]:
        """Return at most `limit` of the topic's partitions `first` to `first + count - 1`, those with the lowest M(p).

        Ties are ordered by partition.
        """
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
        """Return the journal's state of a topic; a new, empty one if nothing has landed in it."""
        return self.topics.get(revision) or TopicState(revision, "")

    def closed(self, revision: int) -> bool:
        at = int(np.searchsorted(self.closed_revisions, revision))
        return at < len(self.closed_revisions) and int(self.closed_revisions[at]) == revision

    @property
    def highest_revision(self) -> int:
        """Return the highest revision of a topic that the journal has recorded, even if closed; -1 if there is none."""
        closed: list[int] = self.closed_revisions[-1:].tolist()
        return max([-1, *self.topics, *closed])

    # -- L1 that nothing names any more -----------------------------------------------------------------------------------

    def dropped_of(self, revision: int) -> Rows:
        """Return the topic's dropped objects that are not purged yet, as rows of `DROPPED`."""
        return np.asarray(self.dropped[self.dropped["revision"] == revision])

    def has_dropped(self, revision: int) -> bool:
        return bool((self.dropped["revision"] == revision).any())

    def is_dropped_before(self, time_ms: int, epoch: int | Rows) -> NDArray[np.bool_]:
        """Return which rows of `dropped` were dropped at or before `time_ms` of the log's time and at or below `epoch`
        (one for all, or one each), and cannot be named by a repeated commit.
        """
        time, at = self.dropped["dropped_ms"], self.dropped["dropped_epoch"]
        return (time <= time_ms) & (at <= epoch) & ~self.may_be_named()

    def may_be_named(self) -> NDArray[np.bool_]:
        """Return which rows of `dropped` a repeated commit may name for a partition that was refused before: shared
        objects, until the L1 fence passes their stamps (hazard 26). Other objects have one partition, which has moved
        on.
        """
        return (self.dropped["partition"] < 0) & (self.dropped["epoch"] >= self.l1_fence)

    def has_named(self, revision: int, rows: Rows) -> Rows:
        """Return which L1 objects, given as rows of `L1_ROW` of the topic, the state lists or has dropped."""
        dropped = self.dropped_of(revision)
        was_dropped = np.isin(_sortable(rows["name"]), _sortable(dropped["name"][dropped["partition"] >= 0]))
        topic = self.topics.get(revision)
        return was_dropped if topic is None else was_dropped | topic.l1_list.has(rows)

    def has_landed(self, revision: int, o: SharedObject) -> Rows:
        """Return the partitions whose rows of a shared object are known to have landed; none if the topic does not list
        the object, since nothing proves it once the object is dropped.
        """
        listed = (shared for shared in self.topic(revision).shared if shared.name == o.name)
        return next((shared.rows["partition"][shared.flags != UNLANDED] for shared in listed), NO_NUMBERS)


def purged_rows(state: JournalState, e: Purged) -> Rows:
    """Return which of the dropped objects the entry purges. Raises `UsageError` if its names cannot be read."""
    names = np.sort(_sortable(unpack(e.names, NAME)))
    return indices_in(names, _sortable(state.dropped["name"]))[1]


def _sortable(names: Rows) -> Rows:
    """Return UUIDs in a form that numpy sorts. All have the same length, so trailing zeros make no difference."""
    return np.ascontiguousarray(names).view("S16")
