"""What a report says, gathered from the bucket: the logs, the scan snapshots, the records of runs. Changes nothing.

What can be missing or damaged without an end to everything (a partition's log, a scan, a run's record) is told on the page,
and the rest is shown all the same. Only the controller's log must be readable: without it nothing is known.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from l0gc.collect.pause import Pause
from l0gc.collect.record import RunSummary
from l0gc.collect.runs import RunEntry, list_runs
from l0gc.errors import ClusterMismatchError, CorruptObjectError, ObjectNotFoundError, UsageError
from l0gc.figures import STANDARD_PRICE, dollars_month
from l0gc.inspect.causes import Cause
from l0gc.inspect.report.series import DeletedBar, EpochBar, deleted_bars, epoch_bars, thinned
from l0gc.inspect.status import status
from l0gc.inspect.verify.findings import Finding
from l0gc.keys import PartitionId
from l0gc.streamlog.cluster import Cluster
from l0gc.watermark.compute import PartitionReport, Watermark, compute, gc_epoch_of, reason_of
from l0gc.watermark.reports import report_of
from l0gc.watermark.scans import ScanSnapshot, ScanTotals, list_scans, oldest_ms, read_scan, read_trend

SHOWN_BEHIND: Final = 20
SHOWN_RUNS: Final = 20
SHOWN_FINDINGS: Final = 50
SCANS_READ: Final = 500
"""A week of them, where M is computed every 20 minutes."""
RUNS_READ: Final = 1000
_SCANS_TRIED: Final = 5

_HELD_BY_OWN_LOG: Final = "by that system's report when M was computed; it moves when that reports a higher gc epoch"


class HeldBack(msgspec.Struct, frozen=True):
    """A partition that M cannot pass, why, and what to do."""

    topic: str
    partition: int
    gc_epoch: int
    reason: str


class PartitionLag(msgspec.Struct, frozen=True):
    """How far a partition's gc epoch is behind the cluster epoch, by its own log."""

    topic: str
    partition: int
    gc_epoch: int
    lag_epochs: int
    unreconciled_records: int
    reason: str


class Garbage(msgspec.Struct, frozen=True, kw_only=True):
    """What the newest scan saw, by the M that is published now.

    Attributes:
        as_of_ms: when the scan ended; what runs that began since then have deleted is in `deleted_objects`.
        source: what was read: `listing` or `inventory`.
        left_objects: eligible and not deleted since, as far as is known: the garbage now.
        dollars_month: what that costs a month.
        held_objects: L0 objects above M.
        oldest_held_ms: when the oldest of those was written; None if there is none. So is `oldest_eligible_ms`.
        merged_epochs: the scan has so many of the oldest epochs in one row; 0 if each has its own.
    """

    as_of_ms: int
    source: str
    eligible_objects: int
    eligible_bytes: int
    deleted_objects: int
    deleted_bytes: int
    left_objects: int
    left_bytes: int
    dollars_month: float
    held_objects: int
    held_bytes: int
    held_dollars_month: float
    oldest_eligible_ms: int | None
    oldest_held_ms: int | None
    unparsable: int
    unparsable_samples: list[str]
    merged_epochs: int


class Run(msgspec.Struct, frozen=True):
    """A sweep; `summary` is None if it was killed, or runs still."""

    run_id: str
    started_ms: int
    summary: RunSummary | None


class Findings(msgspec.Struct, frozen=True):
    """What `l0gc verify --json` printed. `findings` may be fewer than `total`."""

    findings: list[Finding]
    total: int
    deep: bool
    cluster_epoch: int


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster at `as_of_ms`, by the store's clock, as all times are.

    Attributes:
        cluster_epoch: of a system that keeps its own log the one that was published with M; -1 if none was.
        watermark: the published M, -1 for none; `published_ms` is when.
        causes, warnings: why M stands or L0 is not swept, and what is wrong and holds nothing; each with its remedy.
        lag_ms: how long ago the epoch behind M began; None where nobody knows. `lag_at_least`: it is longer than that.
        computable_watermark: M as the partitions' logs have it now; None for a system that keeps its own log.
        lag_epochs: None where there is no M or no epoch to be behind.
        behind: the partitions with the most lag; `others_behind` counts the rest, of which none is more than
            `others_lag` behind.
        garbage: None if no scan is there.
        epochs: what that scan saw, as bars.
        trend: scans, oldest first; of very many, those that show the peaks.
        runs: the newest last; `runs_total` are on record.
        deleted: what runs deleted, as bars.
        errors: logs that cannot be read.
        notes: what else could not be read, and what is missing therefore.
    """

    cluster_id: str
    url: str
    as_of_ms: int
    external_log: bool
    cluster_epoch: int
    topics: int
    partitions: int
    watermark: int
    published_ms: int | None
    computable_watermark: int | None
    lag_epochs: int | None
    lag_ms: int | None
    lag_at_least: bool
    causes: list[Cause]
    warnings: list[Cause]
    next: str
    paused: Pause | None
    held_back_by: list[HeldBack]
    behind: list[PartitionLag]
    others_behind: int
    others_lag: int
    price_gb_month: float
    garbage: Garbage | None
    epochs: list[EpochBar]
    trend: list[ScanTotals]
    runs: list[Run]
    runs_total: int
    deleted: list[DeletedBar]
    findings: Findings | None
    errors: list[str]
    notes: list[str]


# Built at import, by one thread: msgspec learns a type at its first use, and two threads doing that at once crash it.
_FINDINGS: Final = msgspec.json.Decoder(Findings)


def findings_of(body: bytes, source: str) -> Findings:
    """The result of a verify run. Raises `UsageError`, naming `source`, if `body` is none."""
    try:
        return _FINDINGS.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        raise UsageError(f"{source} is not what l0gc verify --json prints: {e}") from e


def gather(
    cluster: Cluster, url: str, *, price_gb_month: float = STANDARD_PRICE, findings: Findings | None = None
) -> Facts:
    """Look at everything once.

    Args:
        url: where the cluster is, for the page.
        price_gb_month: dollars for a GB and month.

    Raises:
        NotInitialisedError: there is no cluster.
        CorruptObjectError: the controller's log cannot be read.
    """
    store, notes = cluster.store, list[str]()
    told = status(cluster)
    state = cluster.controller.snapshot()
    epoch, watermark = told.cluster_epoch, told.watermark
    partitions = state.partitions()
    reports, errors = _reports(cluster, state.cluster_id, partitions)
    now = None if state.external_log else compute(epoch, partitions, reports)
    runs, runs_total = _runs(cluster, notes)
    scan = _newest_scan(cluster, state.cluster_id, notes)
    trend = read_trend(store, cluster.parallel, state.cluster_id, SCANS_READ)
    garbage = garbage_of(scan, watermark, runs, price_gb_month) if scan is not None else None
    behind = lags(epoch, partitions, reports)
    return Facts(
        cluster_id=state.cluster_id,
        url=url,
        as_of_ms=store.now_ms(),
        external_log=state.external_log,
        cluster_epoch=epoch,
        topics=len(state.topics),
        partitions=len(partitions),
        watermark=watermark,
        published_ms=told.published_ms if told.published_ms >= 0 else None,
        computable_watermark=now.watermark if now is not None else None,
        lag_epochs=max(0, told.lag_epochs) if told.published_ms >= 0 and epoch >= 0 else None,
        lag_ms=told.lag_ms,
        lag_at_least=told.lag_at_least,
        causes=told.causes,
        warnings=told.warnings,
        next=told.next_step,
        paused=told.pause,
        held_back_by=_held_back(now, scan, watermark),
        behind=behind[:SHOWN_BEHIND],
        others_behind=len(partitions) - len(behind[:SHOWN_BEHIND]),
        others_lag=behind[SHOWN_BEHIND].lag_epochs if len(behind) > SHOWN_BEHIND else 0,
        price_gb_month=price_gb_month,
        garbage=garbage,
        epochs=epoch_bars(scan.rows, watermark) if scan is not None else [],
        trend=thinned(trend.scans),
        runs=[Run(r.run_id, r.started_ms, r.summary) for r in runs[-SHOWN_RUNS:]],
        runs_total=runs_total,
        deleted=deleted_bars(runs),
        findings=None if findings is None else _fewer(findings),
        errors=errors,
        notes=notes + _trend_notes(trend.skipped),
    )


def _reports(
    cluster: Cluster, cluster_id: str, partitions: Sequence[PartitionId]
) -> tuple[dict[PartitionId, PartitionReport], list[str]]:
    """What each partition's log says, as `status` has just read it; and what is wrong with those that cannot be read."""
    errors: list[str] = []

    def look(p: PartitionId) -> PartitionReport | None:
        handle = cluster.partition(p)
        try:
            return report_of(cluster_id, p, handle.state, handle.replica.offset)
        except CorruptObjectError as e:
            errors.append(str(e))
            return None

    return {r.id: r for r in cluster.parallel.map(look, partitions) if r is not None}, sorted(errors)


def lags(
    cluster_epoch: int, partitions: Iterable[PartitionId], reports: Mapping[PartitionId, PartitionReport]
) -> list[PartitionLag]:
    """The partitions with the most lag, one more than is shown; the lowest gc epoch first (pure)."""

    def order(p: PartitionId) -> tuple[int, str, int]:
        return gc_epoch_of(p, reports.get(p)), p.topic, p.partition

    found = []
    for p in heapq.nsmallest(SHOWN_BEHIND + 1, partitions, key=order):
        report = reports.get(p)
        gc_epoch = gc_epoch_of(p, report)
        unreconciled = report.next_offset - 1 - report.last_reconciled_offset if report is not None else 0
        reason = reason_of(report) if report is not None else "its log cannot be read; it holds M where it was created"
        found.append(PartitionLag(p.topic, p.partition, gc_epoch, cluster_epoch - gc_epoch, unreconciled, reason))
    return found


def _held_back(now: Watermark | None, scan: ScanSnapshot | None, watermark: int) -> list[HeldBack]:
    """Who M waits for; of a system with its own log what the newest scan remembers."""
    if now is not None:
        return [HeldBack(h.topic, h.partition, h.gc_epoch, h.reason) for h in now.held_back_by]
    held = next((r for r in scan.epochs if r.held_by), None) if scan is not None else None
    if held is None:
        return []
    topic, _, partition = held.held_by.rpartition("/")
    return [HeldBack(topic, int(partition) if partition.isdecimal() else -1, watermark, _HELD_BY_OWN_LOG)]


def garbage_of(scan: ScanSnapshot, watermark: int, runs: Sequence[RunEntry], price_gb_month: float) -> Garbage:
    """What a scan says by the M of now, and by what was deleted since (pure)."""
    eligible = [r for r in scan.epochs if r.epoch is not None and r.epoch <= watermark]
    held = [r for r in scan.epochs if r.epoch is not None and r.epoch > watermark]
    totals = scan.totals
    # A run's name holds whole seconds, so one that seems to have begun a moment before the scan's end may be later.
    since = [r.summary for r in runs if r.summary is not None and r.started_ms + 1000 > totals.taken_ms]
    objects, size = sum(r.objects for r in eligible), sum(r.bytes for r in eligible)
    deleted, deleted_bytes = sum(s.deleted for s in since), sum(s.bytes for s in since)
    left_bytes = max(0, size - deleted_bytes)
    held_bytes = sum(r.bytes for r in held)
    return Garbage(
        as_of_ms=totals.taken_ms,
        source=totals.source,
        eligible_objects=objects,
        eligible_bytes=size,
        deleted_objects=deleted,
        deleted_bytes=deleted_bytes,
        left_objects=max(0, objects - deleted),
        left_bytes=left_bytes,
        dollars_month=round(dollars_month(left_bytes, price_gb_month), 6),
        held_objects=sum(r.objects for r in held),
        held_bytes=held_bytes,
        held_dollars_month=round(dollars_month(held_bytes, price_gb_month), 6),
        oldest_eligible_ms=oldest_ms(eligible),
        oldest_held_ms=oldest_ms(held),
        unparsable=totals.unparsable,
        unparsable_samples=totals.unparsable_samples,
        merged_epochs=totals.merged_epochs,
    )


def _runs(cluster: Cluster, notes: list[str]) -> tuple[list[RunEntry], int]:
    try:
        return list_runs(cluster.store, RUNS_READ, parallel=cluster.parallel)
    except (CorruptObjectError, ObjectNotFoundError) as e:
        notes.append(f"no run is shown: {e}")
        return [], 0


def _newest_scan(cluster: Cluster, cluster_id: str, notes: list[str]) -> ScanSnapshot | None:
    """The newest scan that can be read, of the last few."""
    for key in reversed(list_scans(cluster.store)[-_SCANS_TRIED:]):
        try:
            return read_scan(cluster.store, key, cluster_id)
        except ObjectNotFoundError:
            continue  # it has expired since it was listed
        except (CorruptObjectError, ClusterMismatchError) as e:
            notes.append(f"an older scan is shown, or none: {e}")
    return None


def _trend_notes(skipped: int) -> list[str]:
    return (
        [f"{skipped} scan snapshots cannot be read, or are another cluster's; the trend goes without"]
        if skipped
        else []
    )


def _fewer(findings: Findings) -> Findings:
    return msgspec.structs.replace(findings, findings=findings.findings[:SHOWN_FINDINGS])
