"""The content of a report, gathered from the bucket: status, with the journals, the scan snapshots, the records of runs.

If a journal, a scan or a run's record is missing or damaged, the page names it, and shows the rest. Only the controller's
log must be readable: without it nothing is known. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from l0gc.collect.record import RunSummary
from l0gc.collect.runs import RunEntry, list_runs
from l0gc.decoding import UNDECODABLE, json_decoder
from l0gc.errors import ClusterMismatchError, CorruptObjectError, ObjectNotFoundError, UsageError
from l0gc.formatting import STANDARD_PRICE, dollars_month
from l0gc.inspect.journals import Journals, read_journals
from l0gc.inspect.report.series import (
    DeletedBar,
    EpochBar,
    Forecast,
    Saved,
    Swept,
    deleted_bars,
    epoch_bars,
    forecast,
    saved,
    sweeps_since,
    thinned,
)
from l0gc.inspect.report.topics import PartitionLag, TopicFacts, by_topic, lags
from l0gc.inspect.report.verdict import Verdict, verdict
from l0gc.inspect.status import Held, Overview, Status, deleted_since, status
from l0gc.inspect.verify.findings import Finding
from l0gc.streamlog.cluster import Cluster
from l0gc.watermark.scan_keys import list_scans
from l0gc.watermark.scans import ScanSnapshot, ScanTotals, oldest_ms, read_scan, read_trend

SHOWN_RUNS: Final = 20
SHOWN_FINDINGS: Final = 50
SCANS_READ: Final = 500
"""A week of them, where M is computed every 20 minutes."""
RUNS_READ: Final = 1000
_SCANS_TRIED: Final = 5

_HELD_BY_EXTERNAL_LOG: Final = (
    "by that system's report when M was computed; it moves when that reports a higher gc epoch"
)


class HeldBack(msgspec.Struct, frozen=True):
    """A partition that M cannot pass, why, and what to do."""

    topic: str
    partition: int
    gc_epoch: int
    reason: str


class GarbageFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What the newest scan saw, by the M that is published now.

    Attributes:
        as_of_ms: when the scan ended; what runs that began since then have deleted is in `deleted_objects`.
        source: what was read: `listing` or `inventory`.
        left_objects: eligible and not known to be deleted since: the garbage now.
        dollars_month: what that costs a month.
        held_objects: L0 objects above M.
        oldest_held_ms: when the oldest of those was written; None without one. `oldest_eligible_ms` likewise.
        merged_epochs: how many of the oldest epochs the scan has in one row; 0 if each has its own.
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


class SweepRow(msgspec.Struct, frozen=True):
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


class ReportFacts(Overview, kw_only=True):
    """How a cluster stands, and what else the page shows.

    Attributes:
        verdict: how the cluster stands, in a sentence.
        published_ms: when M was published; None for none.
        lag_epochs: None without an M or an epoch to compare it with.
        held_back_by: the first few of the partitions that M stands at.
        behind: the partitions with the most lag; `others_behind` counts the rest, none of which lags by more than
            `others_lag`.
        by_topic: the topics with the most unreconciled records; `topics` counts all of them.
        garbage: None if no scan is there.
        epochs: what that scan saw, as bars.
        trend: scans, oldest first; of very many, those that show the peaks.
        sweeps: what was deleted since the first of those scans, oldest first.
        saved: what the sweeps on record have deleted; None without any.
        forecast: what becomes garbage; None if too little is known.
        runs: the newest last; `runs_total` are on record.
        deleted: what runs deleted, as bars.
        notes: what else could not be read, and what is therefore missing.
    """

    verdict: Verdict = Verdict()
    url: str
    published_ms: int | None
    lag_epochs: int | None
    held_back_by: list[HeldBack]
    behind: list[PartitionLag]
    others_behind: int
    others_lag: int
    by_topic: list[TopicFacts]
    garbage: GarbageFigures | None
    epochs: list[EpochBar]
    trend: list[ScanTotals]
    sweeps: list[Swept]
    saved: Saved | None
    forecast: Forecast | None
    runs: list[SweepRow]
    runs_total: int
    deleted: list[DeletedBar]
    findings: Findings | None
    notes: list[str]


_FINDINGS: Final = json_decoder(Findings)


def read_findings(path: Path) -> Findings:
    """What `l0gc verify --json` printed into a file. Raises `UsageError` if it cannot be read, or holds something else."""
    try:
        return findings_of(path.read_bytes(), str(path))
    except OSError as e:
        raise UsageError(f"cannot read the findings in {path}: {e.strerror}") from e


def findings_of(body: bytes, source: str) -> Findings:
    """The result of a verify run. Raises `UsageError`, naming `source`, if `body` does not hold one."""
    try:
        return _FINDINGS.decode(body)
    except UNDECODABLE as e:
        raise UsageError(f"{source} is not what l0gc verify --json prints: {e}") from e


def gather(
    cluster: Cluster, url: str, *, price_gb_month: float = STANDARD_PRICE, findings: Findings | None = None
) -> ReportFacts:
    """Look at everything once.

    Args:
        url: where the cluster is, for the page.
        price_gb_month: dollars for a GB and month.

    Raises:
        NotInitialisedError: no cluster exists here.
        CorruptObjectError: the controller's log cannot be read.
    """
    store, notes = cluster.store, list[str]()
    known = status(cluster, price_gb_month)
    state = cluster.controller.snapshot()
    epoch, watermark = known.cluster_epoch, known.watermark
    journals = Journals(state) if state.external_log else read_journals(cluster, state, watermark)
    runs, runs_total = _runs(cluster, notes)
    scan = _newest_scan(cluster, state.cluster_id, notes)
    trend = read_trend(store, cluster.parallel, state.cluster_id, SCANS_READ)
    if trend.skipped:
        notes.append(f"{trend.skipped} scan snapshots cannot be read, or are another cluster's; the trend goes without")
    garbage = garbage_of(scan, watermark, runs, price_gb_month) if scan is not None else None
    behind, others, others_lag = lags(epoch, [r.summary for r in journals.readings])
    facts = ReportFacts(
        **{name: getattr(known, name) for name in Overview.__struct_fields__ if name != "lag_ms"},
        lag_ms=lag_of(known, garbage),
        url=url,
        published_ms=known.published_ms if known.published_ms >= 0 else None,
        lag_epochs=max(0, known.lag_epochs) if known.published_ms >= 0 and epoch >= 0 else None,
        held_back_by=_held_in_scan(scan, watermark) if state.external_log else _held_back(known.held),
        behind=behind,
        others_behind=others,
        others_lag=others_lag,
        by_topic=[] if state.external_log else by_topic(epoch, journals),
        garbage=garbage,
        epochs=epoch_bars(scan.rows, watermark) if scan is not None else [],
        trend=thinned(trend.scans),
        sweeps=sweeps_since(runs, trend.scans[0].taken_ms) if trend.scans else [],
        saved=saved(runs, price_gb_month),
        forecast=forecast(trend.scans, runs, garbage.left_bytes if garbage is not None else 0, price_gb_month),
        runs=[SweepRow(r.run_id, r.started_ms, r.summary) for r in runs[-SHOWN_RUNS:]],
        runs_total=runs_total,
        deleted=deleted_bars(runs),
        findings=findings and msgspec.structs.replace(findings, findings=findings.findings[:SHOWN_FINDINGS]),
        notes=notes,
    )
    return msgspec.structs.replace(facts, verdict=_verdict(facts))


def lag_of(known: Status, garbage: GarbageFigures | None) -> int | None:
    """How long M has stood. Where the log has forgotten, the oldest object that is held says more: it is above M (pure)."""
    if not known.lag_at_least or known.lag_ms is None or garbage is None or garbage.oldest_held_ms is None:
        return known.lag_ms
    return max(known.lag_ms, known.as_of_ms - garbage.oldest_held_ms)


def _verdict(f: ReportFacts) -> Verdict:
    return verdict(
        f.causes,
        f.warnings,
        f.findings.total if f.findings is not None else 0,
        watermark=f.watermark,
        lag_ms=f.lag_ms,
        left=(f.garbage.left_objects, f.garbage.left_bytes) if f.garbage is not None else None,
        held_objects=f.garbage.held_objects if f.garbage is not None else 0,
        since_sweep_ms=f.as_of_ms - f.runs[-1].started_ms if f.runs else None,
    )


def _held_back(held: Sequence[Held]) -> list[HeldBack]:
    return [HeldBack(h.holder.topic, h.holder.partition, h.holder.gc_epoch, h.holder.reason) for h in held]


def _held_in_scan(scan: ScanSnapshot | None, watermark: int) -> list[HeldBack]:
    """Which partition of an external log M waits for, as the newest scan has it."""
    held = next((r for r in scan.epochs if r.held_by), None) if scan is not None else None
    if held is None:
        return []
    topic, _, partition = held.held_by.rpartition("/")
    number = int(partition) if partition.isdecimal() else -1
    return [HeldBack(topic, number, watermark, _HELD_BY_EXTERNAL_LOG)]


def garbage_of(scan: ScanSnapshot, watermark: int, runs: Sequence[RunEntry], price_gb_month: float) -> GarbageFigures:
    """What a scan says by the M of now, and by what was deleted since (pure)."""
    eligible = [r for r in scan.epochs if r.epoch is not None and r.epoch <= watermark]
    held = [r for r in scan.epochs if r.epoch is not None and r.epoch > watermark]
    totals = scan.totals
    objects, size = sum(r.objects for r in eligible), sum(r.bytes for r in eligible)
    deleted, deleted_bytes = deleted_since(runs, totals.taken_ms)
    left_bytes = max(0, size - deleted_bytes)
    held_bytes = sum(r.bytes for r in held)
    return GarbageFigures(
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
