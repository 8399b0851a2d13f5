"""The journals as they are now, read once: from here status, explain and the report know what holds M, and why.

`Overview` is what status and report make of them, and what causes are found in. What a partition holds, and the sentence
that says so, is decided where M comes from (`journal/summary.py`). A journal that cannot be read is named, and the
rest is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import msgspec
import numpy as np

from l0gc.collect.attempts import Attempt
from l0gc.collect.pause import Pause
from l0gc.collect.runs import RunEntry
from l0gc.epoch import NO_WATERMARK
from l0gc.errors import CorruptObjectError
from l0gc.formatting import STANDARD_PRICE, Outcome
from l0gc.inspect.laggards import Laggards
from l0gc.inspect.tables import TableHeld
from l0gc.keys import KeyLayout
from l0gc.streamlog.cluster import Handles
from l0gc.streamlog.controller.entries import ALL_TOPICS
from l0gc.streamlog.controller.state import ControllerState, JournalRun, Pin, Topic
from l0gc.streamlog.epoch_source import pins_of, unknown_topic
from l0gc.streamlog.journal.admission import EpochWindow
from l0gc.streamlog.journal.state import JournalState
from l0gc.streamlog.journal.summary import JournalTask, sum_up, summary_of, tasks_of
from l0gc.streamlog.journal.topic import Extent
from l0gc.streamlog.level_one.plan import Window
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
    """All journals of a cluster, after its controller's snapshot; M = `published` was published before."""

    snapshot: ControllerState
    readings: list[Reading] = field(default_factory=list)
    published: int = NO_WATERMARK

    @cached_property
    def watermark(self) -> Watermark:
        """M as the journals and the pins have it, and the first few of those that hold it."""
        return compute(self.snapshot.epoch, [*(r.summary for r in self.readings), *self._pins])

    @cached_property
    def _pins(self) -> Sequence[UnitSummary]:
        return pins_of(self.snapshot, self.published).held

    def pinned(self, epoch: int) -> list[Holder]:
        """The pins that keep M below `epoch`."""
        return [h for pin in self._pins for h in pin.lowest if h.gc_epoch < epoch]

    @property
    def errors(self) -> list[str]:
        """Why journals cannot be read."""
        return [r.error for r in self.readings if r.error]

    def windows(self) -> list[tuple[Window, JournalState]]:
        """The journals that could be read, with the topics that there are."""
        return [
            (Window(r.journal, {t.revision: t for t, _ in self.snapshot.topics_of(r.journal)}), r.state)
            for r in self.readings
            if r.state is not None
        ]

    def dropped_bytes(self, pin: Pin) -> int:
        """The bytes of L1 that were dropped since the pin, which keeps them, and are still there."""
        dropped = [r.state.dropped for r in self.readings if r.state is not None]
        dropped = [rows[(rows["revision"] == pin.topic) | (pin.topic == ALL_TOPICS)] for rows in dropped]
        late = [rows[rows["dropped_epoch"] >= pin.revision] for rows in dropped]
        return sum(int(rows["bytes"].sum() + rows["row_bytes"].sum()) for rows in late)

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
        most = 0
        for r in self.readings:
            revisions = [topic.revision for topic, _ in self.snapshot.topics_of(r.journal)]
            if r.state is None or not revisions or journal not in (None, r.journal):
                continue
            ticks, window = 0, r.state.window if due else r.state.window.slide(self.snapshot.epoch)
            newest = max(self.snapshot.epoch, window.newest)  # it is above the epoch only where the log went back
            while max(min(revisions), window.oldest) <= epoch:
                ticks += 1
                window = window.slide(newest + ticks)
            most = max(most, ticks)
        return most

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

    def given_up(self, limit: int) -> list[HoleFacts]:
        """The first holes, by topic, partition and offset, without what lies before the log starts."""
        found = []
        for window, journal in self.windows():
            for revision, topic in window.topics.items():
                state = journal.topic(revision)
                holes = state.holes[:limit]
                bases = np.maximum(holes["base"], state.values(state.log_start, holes["partition"], 0))
                columns = (holes["partition"].tolist(), bases.tolist(), holes["last"].tolist())
                found += [HoleFacts(topic.name, *numbers) for numbers in zip(*columns, strict=True)]
        return sorted(found, key=lambda h: (h.topic, h.partition, h.first_offset))[:limit]

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


class Cause(msgspec.Struct, frozen=True):
    """Why something stands: a stable code, a sentence, and what to do."""

    cause: str
    detail: str
    remedy: str


class HoleFacts(msgspec.Struct, frozen=True):
    """A range of a partition's records that were given up, both ends included."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int

    @property
    def records(self) -> int:
        return self.last_offset + 1 - self.first_offset


class Held(Holder, frozen=True):
    """A partition that M cannot pass. `oldest_ms` is when the L0 object was written that holds it; -1 if none does."""

    oldest_ms: int = -1


class _Evidence(msgspec.Struct, kw_only=True):
    """What causes are found in, and the JSON does not show.

    Attributes:
        interval_ms: how often the cluster epoch should move.
        local_ms: this machine's clock at `as_of_ms`.
        watermark_error: the code of the cause if what is published cannot be used, with the sentence.
        highest: the highest epoch in the published M or a journal, and in which of them.
        forgotten: what a journal holds and the controller's log does not, as a sentence.
        set_back: which journal was set back, and how that shows, as a sentence.
        windows: those of the journals in which M would still stand there if all were reconciled.
        damaged_journals: those of `Overview.errors` that come from what a journal holds, and not from the store.
        damaged: the L0 object that holds M and cannot be read as the log says, as a sentence.
        giving_up: the command that gives up its records in the first partition that it holds.
        damaged_record: why the record of a sweep cannot be read.
        unclosed: topics that were deleted long ago, and that a journal has not closed yet, as sentences.
        left_objects: garbage at the last scan, less what went since; -1 where it is not known.
        held_objects: L0 objects above M at the last scan, by how many ticks from now they are free.
    """

    layout: KeyLayout = KeyLayout()
    local_ms: int = 0
    interval_ms: int = 0
    watermark_error: tuple[str, str] | None = None
    highest: tuple[int, str] = (-1, "")
    forgotten: str = ""
    set_back: str = ""
    windows: Sequence[EpochWindow] = []
    damaged_journals: Sequence[str] = []
    damaged: str = ""
    giving_up: str = ""
    damaged_record: str = ""
    unclosed: Sequence[str] = []
    left_objects: int = -1
    held_objects: dict[int, int] = {}


class PinHeld(msgspec.Struct, frozen=True):
    """What a pin keeps from being deleted, as far as it is known.

    Attributes:
        watermark: M does not pass it; None for a pin of L1 alone.
        l0_bytes: of L0 objects that no partition needed and M did not pass when the bucket was listed last; -1 if unknown.
        l1_bytes: of L1 that was dropped since.
        table: the table whose snapshots it keeps; empty for another pin.
    """

    name: str
    watermark: int | None
    created_ms: int
    expires_ms: int
    why: str
    l0_bytes: int
    l1_bytes: int
    table: str = ""


class Overview(_Evidence, Outcome, kw_only=True):
    """How a cluster stands at `as_of_ms`: what causes are found in, and what status and report show.

    All times are the store's clock, but `local_ms`. Epochs are -1 and times 0 if unknown.

    Attributes:
        cluster_epoch: read after everything that is compared with it; for a cluster with an external log, the one that was
            published with M.
        computable_watermark: M as the journals have it; None for a cluster with an external log.
        lag_ms: how long ago the epoch after M began: what was uploaded since cannot go yet. None if unknown.
        lag_at_least: whether it is longer than that, since that epoch's entry is no longer in the log.
        held_back_by: the first few of the partitions that M stands at; `held_partitions` counts all.
        errors: why journals cannot be read.
        pins: who keeps a state of the cluster readable, and what that holds, oldest first.
        tables: the topics' Iceberg tables, and what their pins hold.
        causes, warnings: why M stands or L0 is not swept, and what is wrong but holds nothing; each with its remedy.
        lost_records: records that were given up, in so many `holes`.
        laggards: the partitions that lag, and what that costs; None where it is not known.
        price_gb_month: dollars for a GB and month.
        epoch_ms: when the cluster epoch began; -1 if it is another system's.
    """

    hidden: ClassVar[frozenset[str]] = frozenset(_Evidence.__struct_fields__)

    cluster_id: str
    external_log: bool
    as_of_ms: int
    cluster_epoch: int
    topics: int
    partitions: int
    watermark: int
    computable_watermark: int | None = None
    lag_ms: int | None = None
    lag_at_least: bool = False
    records: int = 0
    unreconciled_records: int = 0
    lost_records: int = 0
    holes: int = 0
    held_back_by: list[Held] = []
    held_partitions: int = 0
    laggards: Laggards | None = None
    errors: list[str] = []
    pins: list[PinHeld] = []
    tables: list[TableHeld] = []
    paused: Pause | None = None
    causes: list[Cause] = []
    warnings: list[Cause] = []
    next: str = ""
    runs: list[RunEntry] = []
    price_gb_month: float = STANDARD_PRICE
    epoch_ms: int = -1
    attempts: list[Attempt] = []

    def last(self, command: str) -> Attempt | None:
        """The last run of a command, if one is on record."""
        return next((a for a in self.attempts if a.command == command), None)

    def failed(self, command: str) -> Attempt | None:
        """The last run of a command, if it failed."""
        return next((a for a in self.attempts if a.command == command and not a.ok), None)


def unclosed_text(topic: Topic, journal: int) -> str:
    """That a journal has not closed a topic that was deleted long ago."""
    return (
        f"topic {topic.name!r} (revision {topic.revision}) was deleted more than a day ago and is not closed in journal "
        f"{journal}, so its L1 objects stay"
    )


def read_journals(cluster: Handles, snapshot: ControllerState, published: int) -> Journals:
    """Read all journals of a cluster.

    Args:
        published: the published M, which nothing is below; -1 for none.

    Raises:
        StoreUnreachableError: the store is gone, so nothing can be read.
    """

    def read(task: JournalTask) -> Reading:
        return Reading(task.journal, *sum_up(task, cluster.journal(task.journal).replica))

    return Journals(snapshot, cluster.parallel.map(read, tasks_of(snapshot, published)), published)
