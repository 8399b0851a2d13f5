"""The journals as they are now, read once: from here status, explain and the report know what holds M, and why.

What a partition holds, and the sentence that says so, is decided where M comes from (`journal/summary.py`). A journal that
cannot be read is named, and the rest is shown.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from l0gc.errors import CorruptObjectError, ObjectNotFoundError
from l0gc.storage.objectstore import Head, ObjectStore
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.controller.state import ControllerState, JournalRun, Topic
from l0gc.streamlog.epoch_source import unknown_topic
from l0gc.streamlog.journal.admission import EpochWindow
from l0gc.streamlog.journal.state import JournalState
from l0gc.streamlog.journal.summary import JournalTask, sum_up, summary_of, tasks_of
from l0gc.streamlog.journal.topic import Extent
from l0gc.watermark.compute import Watermark, compute
from l0gc.watermark.source import Holder, UnitSummary


@dataclass(frozen=True, slots=True)
class Reading:
    """One journal: its state, or why it cannot be read.

    The state is shared with the process's handle on the journal: do not change it.
    """

    journal: int
    summary: UnitSummary
    state: JournalState | None

    @property
    def error(self) -> str:
        """Why it cannot be read, with its name; empty if it can be."""
        return f"{self.summary.unit} cannot be read: {self.summary.error}" if self.summary.error else ""


@dataclass
class Journals:
    """All journals of a cluster, after its controller's snapshot."""

    snapshot: ControllerState
    readings: list[Reading] = field(default_factory=list)

    @cached_property
    def watermark(self) -> Watermark:
        """M as the journals have it, and the first few of those that hold it."""
        return compute(self.snapshot.epoch, [r.summary for r in self.readings])

    @property
    def errors(self) -> list[str]:
        """Why journals cannot be read."""
        return [r.error for r in self.readings if r.error]

    def holder(self, topic: Topic, partition: int) -> Holder:
        """What one partition holds. Raises `CorruptObjectError`: its journal cannot be read."""
        reading = self.readings[topic.journal_of(partition)]
        if reading.state is None:
            raise CorruptObjectError(reading.error)
        run = JournalRun(reading.journal, partition, 1)
        return summary_of(reading.journal, [(topic, run)], reading.state, -1).lowest[0]

    def extent_of(self, holder: Holder) -> Extent | None:
        """The extent that keeps a partition where it is, in the object that the holder names."""
        topic = self.snapshot.topics[holder.topic]
        state = self.readings[topic.journal_of(holder.partition)].state
        found = state.topic(topic.revision).extents(holder.partition) if state is not None and holder.key else []
        return next((e for e in found if e.key == holder.key), None)

    def at(self, gc_epoch: int) -> int:
        """How many partitions have this M(p)."""
        return sum(r.summary.gc_epochs.get(gc_epoch, 0) for r in self.readings)

    def below(self, epoch: int) -> int:
        """How many partitions may still need `epoch`."""
        return sum(n for r in self.readings for m, n in r.summary.gc_epochs.items() if m < epoch)

    def lowest(self, epoch: int) -> list[Holder]:
        """Those with the lowest M(p) of the partitions that may still need `epoch`: the first few of each journal."""
        held = [h for r in self.readings for h in r.summary.lowest if h.gc_epoch < epoch]
        return sorted(held, key=lambda h: (h.gc_epoch, h.topic, h.partition))

    def windows_at(self, gc_epoch: int) -> list[EpochWindow]:
        """The windows of the journals with a partition that would stay at `gc_epoch`, were all of it reconciled."""
        found = []
        for r in self.readings:
            if r.state is not None:
                topics = self.snapshot.topics_of(r.journal)
                bounds = [max(topic.revision, r.state.window.oldest) for topic, _ in topics]
                if min(bounds, default=gc_epoch + 2) <= gc_epoch + 1:
                    found.append(r.state.window)
        return found

    def ticks_until_free(self, epoch: int, *, due: bool, journal: int | None = None) -> int:
        """How many ticks from now no partition may still need `epoch`, once all of it is reconciled.

        A journal leaves an epoch behind by its window, which slides with housekeeping: now, to the cluster epoch, and then
        with each tick. 0 if the first of these is enough.

        Args:
            due: whether a tick is due now, so that the next housekeeping does both at once.
            journal: the only one that matters.
        """
        found = [0]
        for r in self.readings:
            revisions = [topic.revision for topic, _ in self.snapshot.topics_of(r.journal)]
            if r.state is not None and revisions and journal in (None, r.journal):
                found.append(_ticks(r.state.window, min(revisions), epoch, self.snapshot.epoch, due=due))
        return max(found)

    def records(self) -> tuple[int, int, int, int]:
        """How many records were ever uploaded into the topics there are, how many of them are not in L1, and how many were
        given up, in how many holes."""
        totals = [
            r.state.topic(topic.revision).totals()
            for r in self.readings
            if r.state is not None
            for topic, _ in self.snapshot.topics_of(r.journal)
        ]
        counts = ((t.records, t.unreconciled_records, t.lost_records, t.holes) for t in totals)
        records, unreconciled, lost, holes = (sum(c) for c in zip((0, 0, 0, 0), *counts, strict=True))
        return records, unreconciled, lost, holes

    def highest(self) -> tuple[int, str]:
        """The highest epoch that a journal knows, and which one does."""
        return max(((r.summary.highest_epoch, r.summary.highest_in) for r in self.readings), default=(-1, ""))

    def unclosed(self, now_ms: int) -> list[str]:
        """The topics that were deleted long ago, and that a journal has not closed yet; as sentences."""
        return [
            unclosed_text(topic, r.journal)
            for topic in self.snapshot.to_be_closed_by(now_ms)
            for r in (self.readings[j] for j in topic.journals)
            if r.state is not None and not r.state.closed(topic.revision)
        ]

    def forgotten(self) -> str:
        """The topic that a journal holds and the controller does not know, as only a restored log can leave it; or empty."""
        read = ((r.summary.unit, r.state.topics.values()) for r in self.readings if r.state is not None)
        unknown = (
            unknown_topic(self.snapshot, unit, ((t.revision, t.topic_id) for t in topics)) for unit, topics in read
        )
        return next(filter(None, unknown), "")


def head_of(store: ObjectStore, key: str) -> Head | None:
    """The metadata of an object; None if it is not there."""
    try:
        return store.head(key)
    except ObjectNotFoundError:
        return None


def unclosed_text(topic: Topic, journal: int) -> str:
    """That a journal has not closed a topic that was deleted long ago."""
    return (
        f"topic {topic.name!r} (revision {topic.revision}) was deleted more than a day ago and is not closed in journal "
        f"{journal}, so its L1 objects stay"
    )


def _ticks(window: EpochWindow, revision: int, epoch: int, cluster_epoch: int, *, due: bool) -> int:
    """The same for a journal, `revision` being the lowest of its topics, below which nothing is needed anyway."""
    ticks = 0
    if not due:
        window = window.slide(cluster_epoch)
    cluster_epoch = max(cluster_epoch, window.newest)  # it is lower only where its log went back
    while max(revision, window.oldest) <= epoch:
        ticks += 1
        window = window.slide(cluster_epoch + ticks)
    return ticks


def read_journals(cluster: Cluster, snapshot: ControllerState, published: int) -> Journals:
    """Read all journals of a cluster.

    Args:
        published: the published M, which nothing is below; -1 for none.

    Raises:
        StoreUnreachableError: the store is gone, so nothing can be read.
    """

    def read(task: JournalTask) -> Reading:
        return Reading(task.journal, *sum_up(task, cluster.journal(task.journal).replica))

    return Journals(snapshot, cluster.parallel.map(read, tasks_of(snapshot, published)))
