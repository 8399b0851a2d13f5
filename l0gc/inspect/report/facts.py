"""The content of a report, gathered from the bucket: status, with the journals, the scan snapshots, the records of runs.

If a journal, a scan or a run's record is missing or damaged, the page names it, and shows the rest. Only the controller's
log must be readable: without it nothing is known. Changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final

import msgspec

from l0gc.collect.runs import RunEntry, list_runs
from l0gc.decoding import UNDECODABLE
from l0gc.errors import CorruptObjectError, ObjectNotFoundError, UsageError
from l0gc.formatting import STANDARD_PRICE, count, dollars_month, size, span
from l0gc.inspect.causes import IDLE_WINDOW, NOT_COMPUTED, PAUSED, UNRECONCILED_DATA
from l0gc.inspect.journals import Cause, Held, HoleFacts, Journals, Overview
from l0gc.inspect.report.series import (
    DeletedBar,
    EpochBar,
    Forecast,
    Saved,
    Swept,
    deleted_bars,
    epoch_bars,
    forecast,
    rows_left,
    saved,
    sweeps_since,
    thinned,
)
from l0gc.inspect.status import Status, deleted_since, newest_scan, status_and_journals
from l0gc.inspect.verify.findings import VerifyResult
from l0gc.streamlog.cluster import Handles
from l0gc.watermark.scans import ScanSnapshot, ScanTotals, oldest_ms, read_trend
from l0gc.watermark.source import HELD_BACK_SHOWN, REPORTED, Holder, UnitSummary

HEALTHY: Final = "healthy"
WAITING: Final = "waiting"
NEEDS_YOU: Final = "needs_you"

LATE_MS: Final = 86_400_000
"""A scheduler that works has run `l0gc gc` dozens of times by then."""
_WAITS_FOR: Final = {
    UNRECONCILED_DATA: "l0gc reconcile",
    IDLE_WINDOW: "l0gc housekeep",
    NOT_COMPUTED: "l0gc compute-watermark",
    PAUSED: "l0gc resume",
}

SHOWN_RUNS: Final = 20
SHOWN_BEHIND: Final = HELD_BACK_SHOWN
SHOWN_TOPICS: Final = 50
SHOWN_FINDINGS: Final = 50
SHOWN_HOLES: Final = 50
SCANS_READ: Final = 500
"""A week of them, where M is computed every 20 minutes."""
RUNS_READ: Final = 1000

_HELD_BY_EXTERNAL_LOG: Final = (
    "by that system's report when M was computed; it moves when that reports a higher gc epoch"
)


class Verdict(msgspec.Struct, frozen=True):
    """`state` is `healthy`, `waiting` or `needs_you`; `sentence` says what is well, what it waits for, or why.

    `cause` is the code of the cause that it names, empty for none.
    """

    state: str = HEALTHY
    sentence: str = ""
    cause: str = ""


class PartitionLag(Holder, frozen=True):
    """How far a partition's gc epoch, from its journal, lags the cluster epoch."""

    lag_epochs: int = 0


class TopicFacts(msgspec.Struct, frozen=True):
    """A topic, as its journals have it; `unread` of these cannot be read, and are not in the numbers."""

    topic: str
    partitions: int
    journals: int
    unread: int
    records: int
    unreconciled_records: int
    l1_objects: int
    gc_epoch: int
    lag_epochs: int


class GarbageFigures(ScanTotals, frozen=True, kw_only=True):
    """What the newest scan saw, by the M that is published now.

    Attributes:
        deleted_objects: what runs that began since then have deleted.
        left_objects: eligible and not known to be deleted since: the garbage now.
        dollars_month: what that costs a month.
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


class ReportFacts(Overview, kw_only=True):
    """How a cluster stands, and what else the page shows.

    Attributes:
        verdict: how the cluster stands, in a sentence.
        published_ms: when M was published; None for none.
        lag_epochs: None without an M or an epoch to compare it with.
        behind: the partitions with the most lag; `others_behind` counts the rest, none of which lags by more than
            `others_lag`.
        by_topic: the topics with the most unreconciled records; `topics` counts all of them.
        given_up: the first few holes; `holes` counts all.
        garbage: None if no scan is there.
        epochs: what that scan saw and runs have not deleted since, as bars.
        trend: scans, oldest first; of very many, those that show the peaks.
        sweeps: what was deleted since the first of those scans, oldest first.
        saved: what the sweeps on record have deleted; None without any.
        forecast: what becomes garbage; None if too little is known.
        runs: the newest last; `runs_total` are on record.
        deleted: what runs deleted, as bars.
        notes: what else could not be read, and what is therefore missing.
    """

    hidden: ClassVar[frozenset[str]] = Overview.hidden | {"epoch_ms", "attempts"}

    verdict: Verdict = Verdict()
    url: str
    endpoint_url: str | None = None
    published_ms: int | None
    lag_epochs: int | None
    behind: list[PartitionLag]
    others_behind: int
    others_lag: int
    by_topic: list[TopicFacts]
    given_up: list[HoleFacts]
    garbage: GarbageFigures | None
    epochs: list[EpochBar]
    trend: list[ScanTotals]
    sweeps: list[Swept]
    saved: Saved | None
    forecast: Forecast | None
    runs_total: int
    deleted: list[DeletedBar]
    findings: VerifyResult | None
    notes: list[str]


_FINDINGS: Final = msgspec.json.Decoder(VerifyResult)


def read_findings(path: Path) -> VerifyResult:
    """What `l0gc verify --json` printed into a file. Raises `UsageError` if it cannot be read, or holds something else."""
    try:
        return _FINDINGS.decode(path.read_bytes())
    except OSError as e:
        raise UsageError(f"cannot read the findings in {path}: {e.strerror}") from e
    except UNDECODABLE as e:
        raise UsageError(f"{path} is not what l0gc verify --json prints: {e}") from e


def gather(
    cluster: Handles,
    url: str,
    *,
    endpoint_url: str | None = None,
    price_gb_month: float = STANDARD_PRICE,
    findings: VerifyResult | None = None,
) -> ReportFacts:
    """Look at everything once.

    Args:
        url, endpoint_url: where the cluster is, for the page.
        price_gb_month: dollars for a GB and month.

    Raises:
        NotInitialisedError: no cluster exists here.
        CorruptObjectError: the controller's log cannot be read.
    """
    notes = list[str]()
    known, journals = status_and_journals(cluster, price_gb_month)
    epoch, watermark = known.cluster_epoch, known.watermark
    runs, runs_total = _runs(cluster, notes)
    scan = newest_scan(cluster, known.cluster_id, notes)
    trend = read_trend(cluster.store, cluster.parallel, known.cluster_id, SCANS_READ)
    if trend.skipped:
        notes.append(f"{trend.skipped} scan snapshots cannot be read, or are another cluster's; the trend goes without")
    garbage, bars = None, list[EpochBar]()
    if scan is not None:
        garbage = garbage_of(scan, watermark, runs, price_gb_month)
        left = garbage.left_objects / max(1, garbage.eligible_objects)
        bars = epoch_bars(rows_left(scan.rows, watermark, left), watermark)
    behind, others, others_lag = lags(epoch, [r.summary for r in journals.readings])
    shared = {name: getattr(known, name) for name in Overview.__struct_fields__}
    if known.external_log:
        shared["held_back_by"] = _held_in_scan(scan, watermark)
    facts = ReportFacts(
        **shared | {"lag_ms": lag_of(known, garbage), "runs": runs[-SHOWN_RUNS:]},
        url=url,
        endpoint_url=endpoint_url,
        published_ms=known.published_ms if known.published_ms >= 0 else None,
        lag_epochs=max(0, known.lag_epochs) if known.published_ms >= 0 and epoch >= 0 else None,
        behind=behind,
        others_behind=others,
        others_lag=others_lag,
        by_topic=[] if known.external_log else by_topic(epoch, journals),
        given_up=journals.given_up(SHOWN_HOLES),
        garbage=garbage,
        epochs=bars,
        trend=thinned(trend.scans),
        sweeps=sweeps_since(runs, trend.scans[0].taken_ms) if trend.scans else [],
        saved=saved(runs, price_gb_month),
        forecast=forecast(trend.scans, runs, garbage.left_bytes if garbage is not None else 0, price_gb_month),
        runs_total=runs_total,
        deleted=deleted_bars(runs),
        findings=findings and msgspec.structs.replace(findings, findings=findings.findings[:SHOWN_FINDINGS]),
        notes=notes,
    )
    return msgspec.structs.replace(facts, verdict=verdict(facts))


def verdict(f: ReportFacts) -> Verdict:
    """How the cluster stands (pure).

    It decides nothing anew: causes and remedies are those of `causes.py`, which `status` shows. It adds whether somebody
    has to act. A cause that the next runs of `l0gc gc` end is waiting; one that has waited for longer than a day, and any
    that no run ends, needs a person.
    """
    causes, lag_ms, garbage = f.causes, f.lag_ms, f.garbage
    acute = next((c for c in causes if c.cause not in _WAITS_FOR), None)
    if acute is not None:
        return Verdict(NEEDS_YOU, _sentence(acute, len(causes)), acute.cause)
    if f.findings is not None and f.findings.total:
        return Verdict(
            NEEDS_YOU, f"l0gc verify has {count(f.findings.total, 'finding')}; what is damaged is named below."
        )
    if causes and causes[0].cause != PAUSED and lag_ms is not None and lag_ms > LATE_MS:
        return Verdict(
            NEEDS_YOU, f"M has stood for {span(lag_ms)}: {_sentence(causes[0], len(causes))}", causes[0].cause
        )
    if f.warnings:
        warning = f.warnings[0]
        return Verdict(NEEDS_YOU, f"nothing is held back, but {warning.detail}.", warning.cause)
    if causes:
        first = causes[0]
        return Verdict(WAITING, f"for {_WAITS_FOR[first.cause]}: {_sentence(first, len(causes))}", first.cause)
    if f.watermark < 0:
        return Verdict(WAITING, "for the first M: none is published yet, so nothing may go.")
    if garbage is None:
        return Verdict(HEALTHY, "M follows the cluster epoch. What the bucket holds is not known: no scan is there.")
    if not garbage.left_objects:
        held = f"{count(garbage.held_objects, 'object')} may still be needed" if garbage.held_objects else "L0 is empty"
        return Verdict(HEALTHY, f"no garbage is left; {held}.")
    left = f"{count(garbage.left_objects, 'object')} ({size(garbage.left_bytes)})"
    since_sweep_ms = f.as_of_ms - f.runs[-1].started_ms if f.runs else None
    if since_sweep_ms is None or since_sweep_ms > LATE_MS:
        last = "none is on record" if since_sweep_ms is None else f"the last one began {span(since_sweep_ms)} ago"
        return Verdict(WAITING, f"for l0gc sweep: {left} may go, and {last}.")
    return Verdict(HEALTHY, f"the next sweep may delete {left}.")


def _sentence(cause: Cause, total: int) -> str:
    more = f" And {count(total - 1, 'other cause')}, below." if total > 1 else ""
    return f"{cause.detail}.{more}"


def lag_of(known: Status, garbage: GarbageFigures | None) -> int | None:
    """How long M has stood. Where the log has forgotten, the oldest object that is held says more: it is above M (pure)."""
    if not known.lag_at_least or known.lag_ms is None or garbage is None or garbage.oldest_held_ms is None:
        return known.lag_ms
    return max(known.lag_ms, known.as_of_ms - garbage.oldest_held_ms)


def _held_in_scan(scan: ScanSnapshot | None, watermark: int) -> list[Held]:
    """Which partition of an external log M waits for, as the newest scan has it."""
    held = next((r for r in scan.epochs if r.held_by), None) if scan is not None else None
    if held is None:
        return []
    topic, _, partition = held.held_by.rpartition("/")
    number = int(partition) if partition.isdecimal() else -1
    return [Held(topic, number, watermark, REPORTED, _HELD_BY_EXTERNAL_LOG)]


def garbage_of(scan: ScanSnapshot, watermark: int, runs: Sequence[RunEntry], price_gb_month: float) -> GarbageFigures:
    """What a scan says by the M of now, and by what was deleted since (pure)."""
    eligible = [r for r in scan.epochs if r.epoch is not None and r.epoch <= watermark]
    held = [r for r in scan.epochs if r.epoch is not None and r.epoch > watermark]
    objects, size = sum(r.objects for r in eligible), sum(r.bytes for r in eligible)
    deleted = deleted_since(runs, scan.totals.taken_ms)
    left_bytes = max(0, size - deleted.bytes)
    held_bytes = sum(r.bytes for r in held)
    totals = msgspec.structs.replace(
        scan.totals,
        watermark=watermark,
        eligible_objects=objects,
        eligible_bytes=size,
        oldest_eligible_ms=oldest_ms(eligible),
        oldest_held_ms=oldest_ms(held),
    )
    return GarbageFigures(
        **msgspec.structs.asdict(totals),
        deleted_objects=deleted.objects,
        deleted_bytes=deleted.bytes,
        left_objects=max(0, objects - deleted.objects),
        left_bytes=left_bytes,
        dollars_month=round(dollars_month(left_bytes, price_gb_month), 6),
        held_objects=sum(r.objects for r in held),
        held_bytes=held_bytes,
        held_dollars_month=round(dollars_month(held_bytes, price_gb_month), 6),
    )


def _runs(cluster: Handles, notes: list[str]) -> tuple[list[RunEntry], int]:
    try:
        return list_runs(cluster.store, RUNS_READ, parallel=cluster.parallel)
    except (CorruptObjectError, ObjectNotFoundError) as e:
        notes.append(f"no run is shown: {e}")
        return [], 0


def lags(cluster_epoch: int, units: Sequence[UnitSummary]) -> tuple[list[PartitionLag], int, int]:
    """The partitions with the most lag, how many others there are, and the most that one of those lags (pure)."""
    low = sorted((h for u in units for h in u.lowest if h.topic), key=lambda h: (h.gc_epoch, h.topic, h.partition))
    shown = low[:SHOWN_BEHIND]
    rest: Counter[int] = Counter()
    for u in units:
        rest.update(u.gc_epochs)
    rest.subtract(h.gc_epoch for h in shown)
    others = [gc_epoch for gc_epoch, n in rest.items() if n > 0]
    found = [PartitionLag(**msgspec.structs.asdict(h), lag_epochs=cluster_epoch - h.gc_epoch) for h in shown]
    return found, sum(n for n in rest.values() if n > 0), cluster_epoch - min(others, default=cluster_epoch)


def by_topic(cluster_epoch: int, journals: Journals) -> list[TopicFacts]:
    """The topics with the most unreconciled records (pure)."""
    found = []
    for topic in journals.snapshot.topics.values():
        read = [(run, s) for run in topic.runs() if (s := journals.readings[run.journal].state) is not None]
        totals = [s.topic(topic.revision).totals() for _, s in read]
        low = [s.lowest(topic.revision, run.first, run.count, 1)[0].gc_epoch for run, s in read]
        gc_epoch = min(low, default=-1)
        found.append(
            TopicFacts(
                topic.name,
                topic.partitions,
                len(topic.journals),
                len(topic.journals) - len(read),
                sum(t.records for t in totals),
                sum(t.unreconciled_records for t in totals),
                sum(t.l1_objects for t in totals),
                gc_epoch,
                cluster_epoch - gc_epoch,
            )
        )
    return sorted(found, key=lambda t: (-t.unreconciled_records, t.topic))[:SHOWN_TOPICS]
