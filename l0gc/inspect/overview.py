"""Describe the state of a cluster: the one value that status, explain, doctor, the report and the metrics show.

`Journals` has the content of the logs. `Overview` adds the facts that follow from them and from the rest of the bucket;
`overview_reader.py` fills it in, and `causes.py` draws the conclusions. `journal/summary.py` decides what a partition
holds, and describes it in a sentence. An unreadable journal is named, and the rest is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, ClassVar

import msgspec

from l0gc.collect.deletion import Pause
from l0gc.collect.dropped_l1 import Amounts
from l0gc.collect.history import RunEntry
from l0gc.collect.record import Attempt
from l0gc.epoch import NO_WATERMARK
from l0gc.errors import CorruptObjectError, SetBackError
from l0gc.formatting import STANDARD_PRICE, Outcome
from l0gc.inspect.laggards import Laggards
from l0gc.keys import KeyLayout
from l0gc.storage.entry import Place
from l0gc.streamlog.controller.state import ALL_TOPICS, ControllerState, PartitionRange, Pin, Topic
from l0gc.streamlog.epoch_source import pins_of, unknown_topic
from l0gc.streamlog.journal.admission import EpochWindow
from l0gc.streamlog.journal.rows import is_hole
from l0gc.streamlog.journal.state import JournalState
from l0gc.streamlog.journal.summary import summary_of
from l0gc.streamlog.journal.topic import Extent, Hole, TopicState, UnreconciledObject, l1_file
from l0gc.watermark.compute import Watermark, compute
from l0gc.watermark.publication import PublishedWatermark, check_set_back
from l0gc.watermark.scans import ScanSnapshot, ScanTotals
from l0gc.watermark.source import Holder, UnitSummary

# -- the journals -------------------------------------------------------------------------------------------------------


class JournalReading(msgspec.Struct, frozen=True):
    """A journal: its state, or why it cannot be read.

    The process's handle on the journal shares the state, so do not change it.
    """

    journal: int
    summary: UnitSummary
    state: JournalState | None

    @property
    def error(self) -> str:
        """Return a sentence about why the journal cannot be read; empty if it can be read."""
        return f"{self.summary.unit} cannot be read: {self.summary.error}" if self.summary.error else ""


class Journals(msgspec.Struct, dict=True):
    """All journals of a cluster, read after the controller's snapshot. M = `published` was published before that."""

    snapshot: ControllerState
    readings: list[JournalReading] = []
    published: int = NO_WATERMARK

    @cached_property
    def watermark(self) -> Watermark:
        """Return M according to the journals and the pins, and the first few partitions and pins that hold it."""
        return compute(self.snapshot.epoch, [*(r.summary for r in self.readings), *self._pins])

    @cached_property
    def _pins(self) -> Sequence[UnitSummary]:
        return pins_of(self.snapshot, self.published).held

    @property
    def errors(self) -> list[str]:
        """Return a sentence for each journal that cannot be read."""
        return [r.error for r in self.readings if r.error]

    def states(self) -> Iterator[tuple[int, JournalState]]:
        """Yield the number and the state of each readable journal."""
        return ((r.journal, r.state) for r in self.readings if r.state is not None)

    def topics(self) -> Iterator[tuple[Topic, PartitionRange, TopicState]]:
        """Yield the existing topics with their states in the readable journals."""
        for journal, state in self.states():
            yield from ((topic, r, state.topic(topic.revision)) for topic, r in self.snapshot.topics_of(journal))

    def free_below(self) -> int:
        """Return the lowest epoch that a journal may still admit or a pin keeps. Reconciling releases nothing at or
        above it.
        """
        pins = (p.watermark + 1 for p in self.snapshot.pins.values() if not p.level_one)
        windows = (
            max(topic.revision, state.window.oldest)
            for journal, state in self.states()
            for topic, _ in self.snapshot.topics_of(journal)
            if not state.closed(topic.revision)
        )
        return min([self.snapshot.epoch, *pins, *windows])

    def dropped_bytes(self, pin: Pin) -> int:
        """Return the bytes of L1 that were dropped since the pin was created, and that the pin keeps."""
        kept = 0
        for _, state in self.states():
            rows = state.dropped
            rows = rows[(rows["revision"] == pin.topic) | (pin.topic == ALL_TOPICS)]
            rows = rows[rows["dropped_epoch"] >= pin.revision]
            kept += int(rows["bytes"].sum())
        return kept

    # -- what partitions hold

    def holder(self, topic: Topic, partition: int) -> Holder:
        """Return a partition as a holder of M. Raises `CorruptObjectError` if its journal cannot be read."""
        reading = self.readings[topic.journal_of(partition)]
        if reading.state is None:
            raise CorruptObjectError(reading.error)
        partitions = PartitionRange(reading.journal, partition, 1)
        return summary_of(reading.journal, [(topic, partitions)], reading.state, Place()).lowest[0]

    def extent_of(self, holder: Holder) -> Extent | None:
        """Return the extent that holds a partition's M(p), in the object that the holder names."""
        topic = self.snapshot.topics[holder.topic]
        state = self.readings[topic.journal_of(holder.partition)].state
        extents = state.topic(topic.revision).extents(holder.partition) if state is not None and holder.key else []
        return next((e for e in extents if e.key == holder.key), None)

    def naming(self, key: str) -> list[tuple[int, Topic, UnreconciledObject]]:
        """Return the journals that refer to the L0 object `key`, with the topics and the extents."""
        return [(r.journal, topic, o) for topic, r, state in self.topics() for o in state.objects if o.key == key]

    def partitions_at(self, gc_epoch: int) -> int:
        """Return how many partitions have this M(p)."""
        return sum(r.summary.gc_epochs.get(gc_epoch, 0) for r in self.readings)

    def partitions_below(self, epoch: int) -> int:
        """Return how many partitions may still need `epoch`."""
        return sum(n for r in self.readings for m, n in r.summary.gc_epochs.items() if m < epoch)

    def holders_below(self, epoch: int) -> list[Holder]:
        """Return the first few partitions of each journal that may still need `epoch`, with the lowest M(p)."""
        holders = [h for r in self.readings for h in r.summary.lowest if h.gc_epoch < epoch]
        return sorted(holders, key=lambda h: (h.gc_epoch, h.topic, h.partition))

    def pins_below(self, epoch: int) -> list[Holder]:
        """Return the pins that keep M below `epoch`."""
        return [h for pin in self._pins for h in pin.lowest if h.gc_epoch < epoch]

    def windows_at(self, gc_epoch: int) -> list[EpochWindow]:
        """Return the windows of the journals that have a partition that would stay at `gc_epoch` even if everything
        were reconciled.
        """
        windows = []
        for journal, state in self.states():
            bounds = [max(topic.revision, state.window.oldest) for topic, _ in self.snapshot.topics_of(journal)]
            if min(bounds, default=gc_epoch + 2) <= gc_epoch + 1:
                windows.append(state.window)
        return windows

    def ticks_until_free(self, epoch: int, *, due: bool, journal: int | None = None) -> int:
        """Return after how many ticks no partition may still need `epoch`, if everything is reconciled.

        A journal passes an epoch when housekeeping slides its window: now to the cluster epoch, and then with each
        tick. The result is 0 if the first slide is enough.

        Args:
            due: whether a tick is due now, so that the next housekeeping ticks and slides at once.
            journal: the only journal to consider.
        """
        most = 0
        for number, state in self.states():
            revisions = [topic.revision for topic, _ in self.snapshot.topics_of(number)]
            if not revisions or journal not in (None, number):
                continue
            ticks, window = 0, state.window if due else state.window.slide(self.snapshot.epoch)
            newest = max(self.snapshot.epoch, window.newest)  # above the epoch only if the controller log was set back
            while max(min(revisions), window.oldest) <= epoch:
                ticks += 1
                window = window.slide(newest + ticks)
            most = max(most, ticks)
        return most

    def records(self) -> tuple[int, int, int, int, int]:
        """Return five numbers: the records ever uploaded to existing topics, those not in L1, those given up, the
        holes, and the records that do not fit a value schema.
        """
        totals = [(state.landed, state.totals()) for _, _, state in self.topics()]
        counts = ((landed, t.unreconciled_records, t.lost_records, t.holes, t.misfits) for landed, t in totals)
        records, unreconciled, lost, holes, misfits = (sum(c) for c in zip((0,) * 5, *counts, strict=True))
        return records, unreconciled, lost, holes, misfits

    def given_up(self, limit: int) -> list[Hole]:
        """Return the first holes, by topic, partition and offset."""
        holes = []
        for topic, _, state in self.topics():
            files = map(l1_file, state.l1[is_hole(state.l1)][:limit])
            holes += [Hole.of(topic.id(file.partition), file) for file in files]
        return sorted(holes, key=lambda h: (h.topic, h.partition, h.first_offset))[:limit]

    # -- what no sound cluster holds

    def highest(self) -> tuple[int, str]:
        """Return the highest epoch in any journal, and its place."""
        return max(((r.summary.highest_epoch, r.summary.highest_in) for r in self.readings), default=(-1, ""))

    def unclosed(self, now_ms: int) -> list[str]:
        """Return a sentence about each topic that was deleted long ago and that a journal has not closed yet."""
        return [
            unclosed_text(topic, r.journal)
            for topic in self.snapshot.to_be_closed_by(now_ms)
            for r in (self.readings[j] for j in topic.journals)
            if r.state is not None and not r.state.closed(topic.revision)
        ]

    def forgotten(self) -> str:
        """Return a sentence about a topic that a journal has and that the controller log does not place there; empty if
        there is none.

        Only a restored controller log can cause that.
        """
        live = {t.revision: t for t in self.snapshot.topics.values()}
        for journal, state in self.states():
            unit = f"journal {journal}"
            topics = list(state.topics.values())
            if text := unknown_topic(self.snapshot, unit, ((t.revision, t.topic_id) for t in topics)):
                return text
            for t in topics:
                if t.revision in live and (text := misplacement(journal, live[t.revision], t)):
                    return f"{unit} {text}"
        return ""

    def set_back(self, published: PublishedWatermark | None) -> str:
        """Return a sentence about a journal that was set back since M was published, and the evidence; empty if none
        was (hazard 38).
        """
        return next(filter(None, (set_back_text(published, r.summary) for r in self.readings)), "")


def set_back_text(published: PublishedWatermark | None, summary: UnitSummary) -> str:
    """Return the evidence that a journal was set back to an older copy of its log; empty if it was not."""
    try:
        check_set_back(published, summary)
    except SetBackError as e:
        return str(e)
    return ""


def unclosed_text(topic: Topic, journal: int) -> str:
    """Return a sentence about a topic that was deleted long ago and that a journal has not closed."""
    return (
        f"topic {topic.name!r} (revision {topic.revision}) was deleted more than a day ago and is not closed in journal "
        f"{journal}, so its L1 objects stay"
    )


def misplacement(journal: int, topic: Topic, state: TopicState) -> str:
    """Return why the topic or some of its partitions do not belong in the journal; empty if they all do."""
    placed = topic.range_in(journal)
    if placed is None:
        first_journals = ", ".join(str(j) for j in topic.journals[:5]) + (
            " and others" if len(topic.journals) > 5 else ""
        )
        noun = "journal" if len(topic.journals) == 1 else "journals"
        return f"holds topic {topic.name!r}, which the controller has placed in {noun} {first_journals}"
    numbers = state.partitions
    if len(numbers) and (numbers[0] < placed.first or numbers[-1] >= placed.end):
        outside = numbers[0] if numbers[0] < placed.first else numbers[-1]
        return (
            f"holds partition {outside} of topic {topic.name!r}, and the controller has placed partitions {placed.first} to "
            f"{placed.end - 1} there"
        )
    return ""


def ahead_text(where: str, epoch: int, cluster_epoch: int) -> str:
    """Return a sentence about an epoch that the cluster has not reached (hazard 10)."""
    return f"{where} is at epoch {epoch}, above the cluster epoch {cluster_epoch}"


# -- the overview -------------------------------------------------------------------------------------------------------


class Cause(msgspec.Struct, frozen=True):
    """A reason why M or the sweep does not move: a stable code, a sentence, and a remedy."""

    cause: str
    detail: str
    remedy: str


class DatedHolder(Holder, frozen=True):
    """A partition that M cannot pass. `oldest_ms` is when the L0 object that holds it was written; -1 if there is none."""

    oldest_ms: int = -1


class Garbage(ScanTotals, Outcome, frozen=True, kw_only=True):
    """The garbage of the newest scan, according to the currently published M.

    Attributes:
        deleted_objects: the objects that sweeps that began since then have deleted and `undelete` has not brought back.
        left_objects: the eligible objects that are not known to be deleted since: the current garbage.
        dollars_month: the monthly cost of the current garbage.
        held_objects: L0 objects above M.
    """

    deleted_objects: int
    deleted_bytes: int
    left_objects: int
    left_bytes: int
    dollars_month: float
    held_objects: int
    held_bytes: int
    held_dollars_month: float


class PinCost(msgspec.Struct, frozen=True):
    """The objects that a pin keeps from being deleted, if known.

    Attributes:
        watermark: the epoch that M does not pass; None for a pin of L1 only.
        l0_bytes: the bytes of L0 objects that no partition needed and M had not passed when the bucket was last listed;
            -1 if unknown.
        l1_bytes: the bytes of L1 that was dropped since.
        table: the table whose snapshots the pin keeps; empty for other pins.
    """

    name: str
    watermark: int | None
    created_ms: int
    expires_ms: int
    why: str
    l0_bytes: int
    l1_bytes: int
    table: str = ""


class TableState(msgspec.Struct, frozen=True):
    """A topic's table, and the L1 that its pins keep for readers of its snapshots.

    Attributes:
        pins: the number of pins in effect. Without a pin, nothing keeps the objects that the table names.
        pinned_ms: when the newest pin was created, which is about when the table was last synced; -1 without a pin.
        expires_ms: when the newest pin ends, unless a sync follows; -1 without a pin.
        l1_bytes: the bytes of L1 that was dropped since the oldest pin was created.
        overdue: whether the table should have been synced long ago, or its topic was deleted.
        sentence: the state as a sentence.
        remedy: the command to run if it is overdue; otherwise empty.
    """

    topic: str
    table: str
    catalog: str
    pins: int = 0
    pinned_ms: int = -1
    expires_ms: int = -1
    l1_bytes: int = 0
    overdue: bool = False
    sentence: str = ""
    remedy: str = ""


class Overview(msgspec.Struct, Outcome, kw_only=True):
    """The state of the cluster at `as_of_ms`, and the evidence for the causes, which the JSON omits.

    Attributes:
        cluster_id: The cluster's id.
        external_log: Whether its epochs come from another system.
        as_of_ms: When the cluster was read, by the store's clock, as are all times here.
        cluster_epoch: The cluster epoch; for another system, the epoch that was published with M, or -1 if none was.
        epoch_ms: When the cluster epoch began; -1 for another system's.
        topics: The number of topics.
        partitions: The number of partitions.
        journals: The number of journals that keep the partitions.
        watermark: The published M; -1 if it does not exist or cannot be used.
        published_ms: When M was published; -1 if it never was.
        computable_watermark: The M that a computation would give now; null for another system's log.
        lag_epochs: `cluster_epoch - watermark`, or, while `idle`, `cluster_epoch - computable_watermark`.
        idle: Whether no L0 object has landed since `l0gc gc` last computed M, and none was held at that time. A
            computation of M would then release nothing, and `l0gc gc` skips it.
        lag_ms: How long ago the first epoch of the lag began; null if that is unknown.
        lag_at_least: Whether that was longer ago than `lag_ms`.
        records: The number of records ever uploaded to the existing topics.
        unreconciled_records: The number of these records that are still in L0.
        unreconciled_bytes: The size of the unreconciled records in L0.
        lost_records: The number of records that were [given up](#l0gc-give-up).
        holes: The number of ranges of records that were given up.
        misfits: The number of records that did not fit their topic's value schema when they were lifted. Their
            `value_error` is not null.
        garbage: The objects in the newest scan; null if there is no scan. It has `taken_ms`, `objects` and `bytes`;
            `eligible_objects` and `eligible_bytes` according to the published M; `deleted_objects` and `deleted_bytes`,
            which sweeps have deleted since and `undelete` has not brought back; `left_objects`, `left_bytes` and their
            `dollars_month`; `held_objects`, `held_bytes` and `held_dollars_month`; `oldest_eligible_ms` and
            `oldest_held_ms`; `unparsable` keys, `unparsable_bytes` and `unparsable_samples`; `merged_epochs`, the
            number of epochs that share one row in the scan; and the scan's `cluster_id`, `watermark` and
            `cluster_epoch`.
        price_gb_month: The price by which dollars are computed.
        held_back_by: Up to ten partitions that M cannot pass, each with `topic`, `partition`, `gc_epoch`, `kind`
            (`unreconciled`, `idle`, `unreadable` or `pinned`), `reason`, `unreconciled_records`, `key` (the L0 object
            that holds M(p); empty if none does) and `oldest_ms` (when that object was written; -1 if none holds it). An
            unreadable journal is represented by the first partition of its oldest topic; a pin has no partition.
        held_partitions: The number of all partitions that M cannot pass.
        laggards: The partitions that lag, as described below; null if a journal cannot be read or was set back, and for
            another system's log.
        l1: The L1 objects: `live_objects` and `live_bytes` are listed in journals; `dropped_objects` and
            `dropped_bytes` were dropped but still exist. `dead_bytes` of the live bytes belong to rows that are no
            longer listed in shared objects.
        pins: The pins, oldest first, each with `name`, `watermark` (null for a pin of L1 only), `created_ms`,
            `expires_ms`, `why`, `l0_bytes` (L0 objects that no partition needed and the pin kept, according to the last
            scan; -1 if unknown), `l1_bytes` (L1 objects that were dropped since) and `table` (the table whose snapshots
            the pin keeps, if any).
        tables: The topics' tables, each with `topic`, `table`, `catalog`, `pins` (the number of its pins in effect),
            `pinned_ms` (when the newest pin was created, which is about when the table was last synced; -1 without a
            pin), `expires_ms` (when that pin ends), `l1_bytes` (L1 objects that were dropped since the oldest pin),
            `overdue` (whether the table should have been synced long ago, or its topic was deleted), `sentence` and
            `remedy`.
        errors: A sentence for each journal that cannot be read.
        notes: Sentences about anything else that could not be read and is not shown.
        attempts: The last run of each job, with `command`, `ok`, `exit_code`, `error`, `ended_ms` and `part` (whether
            it covered a part of the cluster, and no run for the whole is on record); for a sweep also `shadow`, and
            `leaves_s`, which is how long it leaves objects that M allows (`--grace`, `--min-age`).
        runs: The last three sweeps on record, as in `l0gc runs list`.
        paused: The pause with `why`, `by` and `since_ms`; null if sweeps are not paused.
        causes: The causes that hold M or the sweep, each with `cause` (a stable code), `detail` and `remedy`; empty if
            nothing is wrong.
        warnings: Problems that hold nothing, with the same fields.
        next: The next step: commands, the preparation that they need, or `nothing`.
        logs: the journals that were read; empty for another system's log.
        scan: the newest scan snapshot that can be read.
        runs_total: the number of runs on record; -1 if only the newest were read.
        interval_ms: how often the cluster epoch should move.
        local_ms: this machine's clock at `as_of_ms`.
        watermark_error: the code and the sentence of the cause if the published M cannot be used.
        highest: the highest epoch in `published.json` or a journal, and its place.
        forgotten: a sentence about a topic that a journal has and the controller's log lacks.
        set_back: a sentence about a journal that was set back, with the evidence.
        windows: the windows of the journals that would still hold M if everything were reconciled.
        damaged_journals: those of `errors` that the content of a journal causes, and not the store.
        damaged: a sentence about the L0 object that holds M and does not match the log.
        giving_up: the command that gives up that object's records in the first partition that it holds.
        damaged_record: why the record of a run cannot be read.
        pause_unknown: whether the store refused to read the pause.
        refused_attempts: the jobs for which the store refused to read the last run.
        unclosed: a sentence about each topic that was deleted long ago and that a journal has not closed yet.
        held_objects: the L0 objects above M at the last scan, by the number of ticks until they are free.
    """

    hidden: ClassVar[frozenset[str]] = frozenset({
        "logs", "scan", "runs_total", "layout", "local_ms", "interval_ms", "watermark_error", "highest", "forgotten",
        "set_back", "windows", "damaged_journals", "damaged", "giving_up", "damaged_record", "pause_unknown",
        "refused_attempts", "unclosed", "held_objects",
    })  # fmt: skip

    cluster_id: str
    external_log: bool
    as_of_ms: int
    cluster_epoch: int
    epoch_ms: int = -1
    topics: int
    partitions: int
    journals: int = 0
    watermark: int
    published_ms: int = -1
    computable_watermark: int | None = None
    idle: bool = False
    lag_ms: int | None = None
    lag_at_least: bool = False
    records: int = 0
    unreconciled_records: int = 0
    unreconciled_bytes: int = 0
    lost_records: int = 0
    holes: int = 0
    misfits: int = 0
    held_back_by: list[DatedHolder] = []
    held_partitions: int = 0
    laggards: Laggards | None = None
    garbage: Garbage | None = None
    price_gb_month: float = STANDARD_PRICE
    l1: Amounts = Amounts()
    pins: list[PinCost] = []
    tables: list[TableState] = []
    errors: list[str] = []
    notes: list[str] = []
    attempts: list[Attempt] = []
    runs: list[RunEntry] = []
    paused: Pause | None = None
    causes: list[Cause] = []
    warnings: list[Cause] = []
    next: str = ""
    logs: Journals = msgspec.field(default_factory=lambda: Journals(ControllerState()))
    scan: ScanSnapshot | None = None
    runs_total: int = -1
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
    pause_unknown: bool = False
    refused_attempts: Sequence[str] = []
    unclosed: Sequence[str] = []
    held_objects: dict[int, int] = {}

    @property
    def lag_epochs(self) -> int:
        return self.cluster_epoch - self.lowest_held

    @property
    def lowest_held(self) -> int:
        """Return the M from which the lag is measured."""
        return self.computable_watermark if self.idle and self.computable_watermark is not None else self.watermark

    @property
    def left_objects(self) -> int:
        """Return the number of objects that may be deleted now, if known."""
        return self.garbage.left_objects if self.garbage is not None else 0

    def last(self, command: str) -> Attempt | None:
        """Return the last run of a command, if one is on record."""
        return next((a for a in self.attempts if a.command == command), None)

    def failed(self, command: str) -> Attempt | None:
        """Return the last run of a command, if it failed. A run that a signal stopped did not fail."""
        return next((a for a in self.attempts if a.command == command and a.ended == "failed"), None)

    def to_json(self) -> dict[str, Any]:
        """Return the fields and the derived values."""
        return super().to_json() | {
            "lag_epochs": self.lag_epochs,
            "attempts": [msgspec.to_builtins(a) | {"ok": a.ok} for a in self.attempts],
        }
