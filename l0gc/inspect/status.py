"""What an operator on call wants to know first: M, how old it is, what holds it back and why, and what to do next.

Read from the journals themselves (`journals.py`), as M is. `causes.py` draws the conclusions. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from l0gc.collect.attempts import Attempt, read_attempts
from l0gc.collect.pause import Pause, read_pause
from l0gc.collect.record import SWEEP
from l0gc.collect.runs import RunEntry, newest_runs
from l0gc.errors import (
    ClusterMismatchError,
    CorruptObjectError,
    NotFoundError,
    ObjectNotFoundError,
    SetBackError,
    StoreError,
)
from l0gc.formatting import STANDARD_PRICE, Outcome, dollars_month
from l0gc.inspect.causes import (
    DAMAGED,
    FOREIGN,
    NORMAL_LAG,
    Cause,
    DamagedObject,
    Facts,
    find_causes,
    find_warnings,
    next_step,
)
from l0gc.inspect.journals import Journals, read_journals
from l0gc.keys import PUBLISHED_WATERMARK, KeyLayout
from l0gc.storage.objectstore import Head
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.controller.decisions import tick_is_due
from l0gc.streamlog.ingest.extents import decode_block
from l0gc.streamlog.journal.topic import Extent
from l0gc.watermark.publication import PublishedWatermark, check_set_back, read_published
from l0gc.watermark.scan_keys import list_scans
from l0gc.watermark.scans import read_scan
from l0gc.watermark.source import UNRECONCILED, Holder, UnitSummary

RUNS_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Held:
    """A partition that M cannot pass. `oldest_ms` is when the L0 object was written that holds it; -1 if none does."""

    holder: Holder
    oldest_ms: int = -1


@dataclass(slots=True)
class Garbage:
    """What the scan at `as_of_ms` found eligible, and what the last sweeps have deleted since; -1 where nothing is known."""

    objects: int = -1
    bytes: int = -1
    as_of_ms: int = -1
    deleted_objects: int = 0
    deleted_bytes: int = 0

    @property
    def left_bytes(self) -> int:
        return max(0, self.bytes - self.deleted_bytes)


class Overview(msgspec.Struct, Outcome, kw_only=True):
    """How a cluster stands at `as_of_ms`: what `l0gc status` and the page of `l0gc report` have in common.

    All times are the store's clock. Epochs are -1 if unknown.

    Attributes:
        cluster_epoch: for a cluster with an external log, the one that was published with M.
        computable_watermark: M as the journals have it; None for a cluster with an external log.
        lag_ms: how long ago the epoch after M began: what was uploaded since cannot go yet. None if unknown.
        lag_at_least: whether it is longer than that, since that epoch's entry is no longer in the log.
        held_partitions: how many partitions M stands at.
        errors: why journals cannot be read.
        causes, warnings: why M stands or L0 is not swept, and what is wrong but holds nothing; each with its remedy.
        price_gb_month: dollars for a GB and month.
    """

    cluster_id: str
    external_log: bool
    as_of_ms: int
    cluster_epoch: int
    topics: int
    partitions: int
    watermark: int
    computable_watermark: int | None
    lag_ms: int | None
    lag_at_least: bool
    records: int
    unreconciled_records: int
    held_partitions: int
    errors: list[str]
    paused: Pause | None
    causes: list[Cause]
    warnings: list[Cause]
    next: str
    price_gb_month: float


class Status(Overview, kw_only=True):
    """The cluster as it is now.

    Attributes:
        epoch_ms: when its epoch began; -1 if it is another system's.
        held: the first few of the partitions that M stands at.
    """

    epoch_ms: int
    journals: int
    published_ms: int
    garbage: Garbage
    held: list[Held]
    runs: list[RunEntry]
    attempts: list[Attempt]

    @property
    def dollars_month(self) -> float | None:
        """What the garbage that is left costs a month; None if nobody knows."""
        return dollars_month(self.garbage.left_bytes, self.price_gb_month) if self.garbage.objects >= 0 else None

    @property
    def lag_epochs(self) -> int:
        return self.cluster_epoch - self.watermark

    @property
    def held_back_by(self) -> list[Holder]:
        return [h.holder for h in self.held]

    @property
    def eligible_objects(self) -> int:
        return self.garbage.objects

    @property
    def eligible_bytes(self) -> int:
        return self.garbage.bytes

    def to_json(self) -> dict[str, Any]:
        """The fields, and of the garbage and the runs what concerns an operator."""
        fields, g = super().to_json(), self.garbage
        del fields["garbage"], fields["held"]
        return fields | {
            "lag_epochs": self.lag_epochs,
            "dollars_month": None if self.dollars_month is None else round(self.dollars_month, 6),
            "eligible_objects": g.objects,
            "eligible_bytes": g.bytes,
            "eligible_as_of_ms": g.as_of_ms,
            "deleted_since": {"objects": g.deleted_objects, "bytes": g.deleted_bytes},
            "held_back_by": [msgspec.to_builtins(h.holder) | {"oldest_ms": h.oldest_ms} for h in self.held],
            "attempts": [msgspec.to_builtins(a) | {"ok": a.ok} for a in self.attempts],
            "runs": [r.to_json() for r in self.runs],
        }


def status(cluster: Cluster, price_gb_month: float = STANDARD_PRICE) -> Status:
    """The cluster as it is now.

    Raises:
        NotInitialisedError: no cluster exists here.
        CorruptObjectError: the controller's log cannot be read, so nothing is known.
    """
    # What is published comes before what is compared with it: a topic that M was computed without is gone then.
    published, watermark_error = _published(cluster, cluster.controller.snapshot().cluster_id)
    state = cluster.controller.snapshot()
    now_ms, local_ms = cluster.store.now_ms(), cluster.runtime.clock.now_ms()
    layout = KeyLayout(state.key_template, state.shards)
    attempts = read_attempts(cluster.store, cluster.parallel)
    pause = read_pause(cluster.store)
    runs, damaged_record = _runs(cluster, now_ms)
    garbage = _garbage(published, runs)
    facts = Facts(
        layout,
        now_ms,
        local_ms,
        state.epoch,
        state.time_ms,
        int(cluster.epoch_interval_s * 1000),
        external_log=state.external_log,
        watermark=published.watermark if published is not None else -1,
        watermark_error=watermark_error,
        damaged_record=damaged_record,
        eligible_objects=-1 if garbage.objects < 0 else max(0, garbage.objects - garbage.deleted_objects),
        attempts=attempts,
        pause=pause,
    )
    journals = Journals(state)
    held: list[Held] = []
    records = 0
    if not state.external_log:
        journals = read_journals(cluster, state, facts.watermark)
        records, facts.unreconciled_records = journals.records()
        held = _look(cluster, journals, facts, published)
    causes = find_causes(facts)
    if not causes and not state.external_log and published is not None and facts.eligible_objects == 0:
        facts.held_objects = _held_objects(cluster, journals, facts)
    theirs = published.cluster_epoch if published is not None else -1
    lag_ms, at_least = _lag(cluster, facts, published)
    return Status(
        cluster_id=state.cluster_id,
        external_log=state.external_log,
        as_of_ms=now_ms,
        cluster_epoch=theirs if state.external_log else facts.epoch,
        epoch_ms=-1 if state.external_log else facts.epoch_ms,
        topics=len(state.topics),
        partitions=state.partition_count,
        journals=len(state.journals_in_use()),
        watermark=facts.watermark,
        published_ms=published.published_at_ms if published is not None else -1,
        computable_watermark=facts.computable,
        lag_ms=lag_ms,
        lag_at_least=at_least,
        records=records,
        unreconciled_records=facts.unreconciled_records,
        garbage=garbage,
        held=held,
        held_partitions=facts.held_partitions,
        errors=journals.errors,
        runs=runs,
        attempts=list(attempts.values()),
        paused=pause,
        causes=causes,
        warnings=find_warnings(facts),
        next=next_step(facts, causes),
        price_gb_month=price_gb_month,
    )


def _published(cluster: Cluster, cluster_id: str) -> tuple[PublishedWatermark | None, tuple[str, str] | None]:
    """What is published; or why that cannot be used."""
    try:
        return read_published(cluster.store, cluster_id)[0], None
    except ClusterMismatchError as e:
        return None, (FOREIGN, str(e))
    except CorruptObjectError as e:
        return None, (DAMAGED, str(e))


def _runs(cluster: Cluster, now_ms: int) -> tuple[list[RunEntry], str]:
    """The last sweeps; none, and why, if a record of one cannot be read."""
    try:
        return newest_runs(cluster.store, RUNS_SHOWN, now_ms), ""
    except ObjectNotFoundError:
        return [], ""  # a record has expired since it was listed
    except CorruptObjectError as e:
        return [], str(e)


def _garbage(published: PublishedWatermark | None, runs: Iterable[RunEntry]) -> Garbage:
    if published is None or published.eligible_objects < 0:
        return Garbage()
    found = Garbage(published.eligible_objects, published.eligible_bytes, published.published_at_ms)
    found.deleted_objects, found.deleted_bytes = deleted_since(runs, found.as_of_ms)
    return found


def _held_objects(cluster: Cluster, journals: Journals, facts: Facts) -> dict[int, int]:
    """The L0 objects above M, as the last scan saw them, by how many ticks from now they are free.

    Empty without a readable scan.
    """
    held: dict[int, int] = {}
    with suppress(StoreError, NotFoundError, CorruptObjectError, ClusterMismatchError):
        keys = list_scans(cluster.store)
        rows = read_scan(cluster.store, max(keys), journals.snapshot.cluster_id).epochs if keys else []
        due = tick_is_due(facts.now_ms - facts.epoch_ms, facts.interval_ms)
        for r in rows:
            if r.epoch is not None and r.epoch > facts.watermark:
                ticks = journals.ticks_until_free(r.epoch, due=due)
                held[ticks] = held.get(ticks, 0) + r.objects
    return held


def deleted_since(runs: Iterable[RunEntry], since_ms: int) -> tuple[int, int]:
    """The L0 objects, and their bytes, deleted by sweeps that began at `since_ms` or later. Vacuums do not count.

    A run's name says when `gc` began, which counts the garbage itself before it sweeps; its summary says when it swept.
    """
    ended = [r.summary for r in runs if r.summary is not None and r.summary.started_ms >= since_ms]
    swept = [s for s in ended if s.command == SWEEP]
    return sum(s.deleted for s in swept), sum(s.bytes for s in swept)


def _lag(cluster: Cluster, facts: Facts, published: PublishedWatermark | None) -> tuple[int | None, bool]:
    if facts.external_log or facts.watermark > facts.epoch:
        return None, False
    if facts.watermark == facts.epoch:
        return 0, False
    began_ms = None
    with suppress(CorruptObjectError):
        began_ms = cluster.controller.began_ms(facts.watermark + 1)
    if began_ms is not None:
        return max(0, facts.now_ms - began_ms), False
    known = [facts.epoch_ms] + ([published.published_at_ms] if published is not None else [])
    return max(0, facts.now_ms - min(known)), True


# -- the journals ---------------------------------------------------------------------------------------------------------


def _look(cluster: Cluster, journals: Journals, facts: Facts, published: PublishedWatermark | None) -> list[Held]:
    """Complete `facts` by what the journals say; returns what holds M."""
    m = journals.watermark
    facts.computable, facts.holders = m.watermark, m.held_back_by
    if m.watermark < m.cluster_epoch:
        facts.held_partitions = max(journals.at(m.watermark), len(m.held_back_by))
        facts.windows = journals.windows_at(m.watermark)
    facts.damaged_journals = [r.error for r in journals.readings if r.summary.damaged]
    facts.unreadable_journals = [r.error for r in journals.readings if r.error and not r.summary.damaged]
    facts.highest, facts.forgotten = journals.highest(), journals.forgotten()
    facts.unclosed = journals.unclosed(facts.now_ms)
    facts.set_back = next(filter(None, (_set_back(published, r.summary) for r in journals.readings)), "")
    if published is not None:
        known = max(published.watermark, published.cluster_epoch)
        facts.highest = max(facts.highest, (known, f"what is in {PUBLISHED_WATERMARK}"))
    # Read last, so that what was written since is not taken for what another log has left here.
    now = cluster.controller.snapshot()
    facts.epoch, facts.epoch_ms = now.epoch, now.time_ms
    objects = _Objects(cluster, journals, facts)
    failed = facts.attempts.get("reconcile")
    if facts.epoch - m.watermark > NORMAL_LAG or (failed is not None and not failed.ok):
        facts.damaged = objects.damaged()
    return [Held(h, objects.written_ms(h)) for h in m.held_back_by]


def _set_back(published: PublishedWatermark | None, unit: UnitSummary) -> str:
    """Why a journal is refused (hazard 38); empty if it is not."""
    try:
        check_set_back(published, unit)
    except SetBackError as e:
        return str(e)
    return ""


class _Objects:
    """The L0 objects that hold partitions: when they were written, and whether they are what the log says.

    One HEAD request for each, and one block of the one that reconcile fails on, or else of the first.
    """

    def __init__(self, cluster: Cluster, journals: Journals, facts: Facts) -> None:
        self._cluster, self._journals = cluster, journals
        attempt = facts.attempts.get("reconcile")
        self._named = attempt.error if attempt is not None else ""
        by_data = [h for h in journals.watermark.held_back_by if h.kind == UNRECONCILED]
        extents = [(h, journals.extent_of(h)) for h in by_data]
        self._extents = [(h, e) for h, e in extents if e is not None]
        keys = list(dict.fromkeys(e.key for _, e in self._extents))
        self._heads = dict(zip(keys, cluster.parallel.map(self._head, keys), strict=True))

    def _head(self, key: str) -> Head | None:
        try:
            return self._cluster.store.head(key)
        except ObjectNotFoundError:
            return None

    def written_ms(self, holder: Holder) -> int:
        """When the object was written that holds a partition; -1 if none does, or it is gone."""
        head = self._heads.get(holder.key)
        return head.modified_ms if head is not None else -1

    def damaged(self) -> DamagedObject | None:
        """An object that is not what the log says, if one of those that were checked is not."""
        for h, extent in self._extents:
            head = self._heads[extent.key]
            short = head is None or head.size < extent.block.start + extent.block.length
            if short and self._still(h, extent):
                return DamagedObject(extent.key, "it is missing" if head is None else "it is too short")
        suspects = [(h, e) for h, e in self._extents if e.key in self._named]
        for h, extent in (suspects or self._extents)[:1]:
            place = (extent.block.start, extent.block.length)
            try:
                decode_block(self._cluster.store.get_ranges(extent.key, [place])[0], extent.key, extent.block)
            except ObjectNotFoundError:
                return DamagedObject(extent.key, "it is missing") if self._still(h, extent) else None
            except CorruptObjectError:
                return DamagedObject(extent.key, "it does not match the checksum in the log")
        return None

    def _still(self, holder: Holder, extent: Extent) -> bool:
        """Whether the journal refers to it still: it may have been reconciled and swept since."""
        topic = self._journals.snapshot.topics[holder.topic]
        state = self._cluster.journal(topic.journal_of(holder.partition)).catch_up()
        return extent in state.topic(topic.revision).extents(holder.partition)
