"""What whoever is on call wants to know first: M, how old it is, what holds it back and why, and what to do next.

Read from the partitions' own logs and beside them from the reports, so that what a report does not say yet shows as a
difference. What is made of it is decided in `causes.py`. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import msgspec

from l0gc.collect.attempts import Attempt, read_attempts
from l0gc.collect.pause import Pause, read_pause
from l0gc.collect.runs import RunEntry, newest_runs
from l0gc.errors import ClusterMismatchError, CorruptObjectError, ObjectNotFoundError
from l0gc.inspect.causes import (
    DAMAGED,
    FOREIGN,
    NORMAL_LAG,
    Cause,
    DamagedObject,
    Facts,
    find_causes,
    find_warnings,
    held_by_data,
    next_step,
)
from l0gc.keys import PUBLISHED_WATERMARK, KeyLayout, PartitionId
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.controller.state import ControllerState
from l0gc.streamlog.ingest.extents import decode
from l0gc.streamlog.journal.entries import Unreconciled
from l0gc.watermark.compact import read_folder
from l0gc.watermark.compute import HELD_BACK_SHOWN, PartitionReport, compute, gc_epoch_of
from l0gc.watermark.lowest import compute_of, lowest, partitions_table
from l0gc.watermark.publication import PublishedWatermark, read_published
from l0gc.watermark.reports import highest_of, report_of

RUNS_SHOWN: Final = 3
MOST_REPORT_FILES: Final = 200
"""Reading more reports than that would take longer than anybody waits; compute-watermark compacts them."""

BY_DATA: Final = "unreconciled"
BY_WINDOW: Final = "idle"
BY_LOG: Final = "log_broken"
BY_REPORT: Final = "stale_report"
WITHOUT_REPORT: Final = "no_report"


class Held(msgspec.Struct, frozen=True):
    """A partition that M cannot pass. `oldest_ms` is when the L0 object was written that holds it; -1 if none does."""

    topic: str
    partition: int
    gc_epoch: int
    kind: str
    reason: str
    unreconciled_records: int = 0
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


@dataclass(slots=True)
class Status:
    """The cluster at `as_of_ms`, the store's clock, as all times are. Epochs are -1 where there is none.

    Attributes:
        cluster_epoch: for a system with its own log, the one that was published with M.
        epoch_ms: when it began; -1 where it is another system's.
        computable, reported: M as the logs and as the reports have it; None where neither was read.
        lag_ms: how long ago the epoch behind M began: what was uploaded since cannot go yet. None where nobody knows.
        lag_at_least: whether it is longer than that, since that epoch's entry is no longer in the log.
    """

    cluster_id: str
    external_log: bool
    as_of_ms: int
    cluster_epoch: int
    epoch_ms: int
    topics: int
    partitions: int
    watermark: int
    published_ms: int
    computable: int | None
    reported: int | None
    lag_ms: int | None
    lag_at_least: bool
    records: int
    unreconciled_records: int
    garbage: Garbage
    held: list[Held]
    errors: list[str]
    runs: list[RunEntry]
    attempts: list[Attempt]
    pause: Pause | None
    causes: list[Cause]
    warnings: list[Cause]
    next_step: str

    @property
    def lag_epochs(self) -> int:
        return self.cluster_epoch - self.watermark


def status(cluster: Cluster) -> Status:
    """The cluster as it is now.

    Raises:
        NotInitialisedError: there is no cluster here.
        CorruptObjectError: the controller's log cannot be read, so nothing is known.
    """
    state = cluster.controller.snapshot()
    now_ms, local_ms = cluster.store.now_ms(), cluster.runtime.clock.now_ms()
    published, watermark_error = _published(cluster, state.cluster_id)
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
    logs = _Logs() if state.external_log else _look(cluster, state, facts, published)
    causes = find_causes(facts)
    theirs = published.cluster_epoch if published is not None else -1
    lag_ms, at_least = _lag(cluster, facts, published)
    return Status(
        state.cluster_id,
        state.external_log,
        now_ms,
        theirs if state.external_log else state.epoch,
        -1 if state.external_log else state.time_ms,
        len(state.topics),
        len(state.partitions()),
        facts.watermark,
        published.published_at_ms if published is not None else -1,
        facts.computable,
        facts.reported,
        lag_ms,
        at_least,
        sum(r.next_offset for r in logs.reports.values()),
        facts.unreconciled_records,
        garbage,
        logs.held,
        logs.errors,
        runs,
        list(attempts.values()),
        pause,
        causes,
        find_warnings(facts),
        next_step(facts, causes),
    )


def _published(cluster: Cluster, cluster_id: str) -> tuple[PublishedWatermark | None, tuple[str, str] | None]:
    """What is published; or why that is nothing to go by."""
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
    for run in runs:
        if run.summary is not None and run.started_ms + 1000 > found.as_of_ms:  # a run's name holds whole seconds
            found.deleted_objects += run.summary.deleted
            found.deleted_bytes += run.summary.bytes
    return found


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


# -- the partitions -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Logs:
    """What the partitions' logs say, and which partitions hold M."""

    reports: dict[PartitionId, PartitionReport] = field(default_factory=dict)
    held: list[Held] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    broken: list[PartitionId] = field(default_factory=list)


def _look(cluster: Cluster, state: ControllerState, facts: Facts, published: PublishedWatermark | None) -> _Logs:
    """Look at logs and reports, and complete `facts`."""
    logs, ids = _Logs(), state.partitions()

    def read(p: PartitionId) -> PartitionReport | None:
        handle = cluster.partition(p)
        try:
            return report_of(state.cluster_id, p, handle.catch_up(), handle.replica.offset)
        except CorruptObjectError as e:
            logs.errors.append(str(e))
            logs.broken.append(p)
            return None

    logs.reports = {r.id: r for r in cluster.parallel.map(read, ids) if r is not None}
    logs.errors.sort()
    logs.broken.sort(key=str)
    facts.computable = compute(state.epoch, ids, logs.reports).watermark
    facts.lowest = [r for r in logs.reports.values() if r.gc_epoch == facts.computable < state.epoch]
    facts.broken = logs.errors
    facts.unreconciled_records = sum(r.next_offset - 1 - r.last_reconciled_offset for r in logs.reports.values())
    if published is not None:
        facts.highest = max(published.watermark, published.cluster_epoch), f"what is in {PUBLISHED_WATERMARK}"
    low = _read_reports(cluster, state, facts)
    # Read last, so that what was written meanwhile is not taken for what another log has left here.
    facts.epoch = cluster.controller.snapshot().epoch
    objects = _Objects(cluster, facts)
    logs.held = _held_by_logs(facts, logs, objects)
    failed = facts.attempts.get("reconcile")
    if facts.epoch - facts.computable > NORMAL_LAG or (failed is not None and not failed.ok):
        facts.damaged = objects.damaged()
    if facts.reported is not None and facts.reported < facts.computable:
        logs.held = _held_by_reports(low, logs)
    return logs


def _read_reports(cluster: Cluster, state: ControllerState, facts: Facts) -> dict[PartitionId, PartitionReport | None]:
    """Look at the reports; returns the partitions that M as they have it is decided by."""
    try:
        best = read_folder(cluster.store, cluster.runtime, cluster.parallel, MOST_REPORT_FILES)
    except CorruptObjectError as e:
        facts.damaged_report = str(e)
        return {}
    if best is None:
        return {}
    if best.num_rows:
        facts.highest = max(facts.highest, highest_of(best))
    partitions = partitions_table(state.partitions())
    facts.reported = compute_of(state.epoch, partitions, best).watermark
    low = {p: r for p, r in lowest(partitions, best, HELD_BACK_SHOWN).items() if gc_epoch_of(p, r) == facts.reported}
    facts.unreported = [str(p) for p, r in low.items() if r is None]
    facts.stale = [str(p) for p, r in low.items() if r is not None]
    return low


def _held_by_reports(low: dict[PartitionId, PartitionReport | None], logs: _Logs) -> list[Held]:
    """Whom M waits for: partitions whose reports say less than their logs."""
    held = []
    for p, r in low.items():
        now = f"its log allows {logs.reports[p].gc_epoch}" if p in logs.reports else "its log cannot be read"
        kind = WITHOUT_REPORT if r is None else BY_REPORT
        reason = f"no report names it; {now}" if r is None else f"its newest report is old; {now}"
        held.append(Held(p.topic, p.partition, gc_epoch_of(p, r), kind, reason))
    return held


def _held_by_logs(facts: Facts, logs: _Logs, objects: _Objects) -> list[Held]:
    held = [
        Held(p.topic, p.partition, gc_epoch_of(p, None), BY_LOG, "its log cannot be read")
        for p in logs.broken
        if gc_epoch_of(p, None) == facts.computable
    ]
    for r in facts.lowest:
        if len(held) == HELD_BACK_SHOWN:
            break
        if held_by_data(r):
            records = r.next_offset - 1 - r.last_reconciled_offset
            reason = f"{records:,} unreconciled record{'' if records == 1 else 's'}"
            held.append(Held(r.topic, r.partition, r.gc_epoch, BY_DATA, reason, records, objects.written_ms(r.id)))
        else:
            window = f"[{r.previous_applied_epoch}, {r.max_applied_epoch}]"
            reason = f"its window {window} may still take epoch {r.gc_epoch + 1}"
            held.append(Held(r.topic, r.partition, r.gc_epoch, BY_WINDOW, reason))
    return held


class _Objects:
    """The L0 objects that hold partitions: when they were written, and whether they are what the log says.

    One LIST request for each, and one range of the one that reconcile fails on, or else of the first.
    """

    def __init__(self, cluster: Cluster, facts: Facts) -> None:
        self._cluster = cluster
        attempt = facts.attempts.get("reconcile")
        self._named = attempt.error if attempt is not None else ""
        self._found: dict[str, tuple[int, int]] = {}
        self._first: dict[PartitionId, Unreconciled] = {}

    def written_ms(self, p: PartitionId) -> int:
        """When the object was written that holds the first record that is not in L1; -1 if it is gone."""
        u = min(self._cluster.partition(p).replica.state.placeholders, key=lambda u: (u.epoch, u.log_offset))
        self._first[p] = u
        key = u.placeholder.key
        if key not in self._found:
            page = next(iter(self._cluster.store.scan(key)), None)
            self._found[key] = (page.sizes[0], page.modified_ms[0]) if page is not None else (-1, -1)
        return self._found[key][1]

    def damaged(self) -> DamagedObject | None:
        """An object that is not what the log says, if one of those that were looked at is not."""
        for p, u in self._first.items():
            size = self._found[u.placeholder.key][0]
            what = "it is missing" if size < 0 else "it is too short"
            if size < u.placeholder.start + u.placeholder.length and self._still(p, u):
                return DamagedObject(u.placeholder.key, what)
        suspects = [(p, u) for p, u in self._first.items() if u.placeholder.key in self._named]
        for p, u in (suspects or list(self._first.items()))[:1]:
            extent = u.placeholder
            try:
                decode(self._cluster.store.get_ranges(extent.key, [(extent.start, extent.length)])[0], extent)
            except ObjectNotFoundError:
                return DamagedObject(extent.key, "it is missing") if self._still(p, u) else None
            except CorruptObjectError:
                return DamagedObject(extent.key, "it does not match the checksum in the log")
        return None

    def _still(self, p: PartitionId, u: Unreconciled) -> bool:
        """Whether the log refers to it still: it may have been reconciled and swept since."""
        return u in self._cluster.partition(p).catch_up().placeholders
