"""Collect the content of a report: the overview, and a summary of scans and runs with few marks, whatever the bucket
holds.

Nothing is left out: bars add up to their sources. An epoch never shares a bar with one on the other side of M, so a bar
is either eligible or held as a whole. If a journal, a scan or a run's record is missing or damaged, the page names it and
shows the rest. Only the controller's log must be readable. Nothing is changed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec

from l0gc.collect.gc_steps import SWEEP
from l0gc.collect.history import RunEntry, is_whole, list_runs
from l0gc.collect.record import RunSummary
from l0gc.decoding import UNDECODABLE
from l0gc.errors import CorruptObjectError, UsageError
from l0gc.formatting import STANDARD_PRICE, Outcome, count, dollars_month, size, span
from l0gc.inspect.causes import PAUSED, WAITS_FOR
from l0gc.inspect.overview import Cause, Journals, Overview
from l0gc.inspect.overview_reader import read_journals, read_overview
from l0gc.inspect.verify.findings import ShadowProof, VerifyResult
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.journal.topic import Hole
from l0gc.watermark.scans import ScanRow, ScanTotals, read_trend
from l0gc.watermark.source import HELD_BACK_SHOWN, Holder, UnitSummary

HEALTHY: Final = "healthy"
WAITING: Final = "waiting"
NEEDS_YOU: Final = "needs_you"

LATE_MS: Final = 86_400_000
"""By then a working scheduler has run `l0gc gc` dozens of times."""
SHOWN_RUNS: Final = 20
SHOWN_BEHIND: Final = HELD_BACK_SHOWN
SHOWN_TOPICS: Final = 50
SHOWN_FINDINGS: Final = 50
SHOWN_HOLES: Final = 50
SCANS_READ: Final = 500
"""A week of scans, if M is computed every 20 minutes."""
RUNS_READ: Final = 1000
MOST_BARS: Final = 120
MOST_POINTS: Final = 200
RUNS_ONE_BY_ONE: Final = 40
"""Up to this many runs have a bar each; above that, each day has one."""
MOST_DAYS: Final = 90
MOST_SWEEPS: Final = 200
_DAY_MS: Final = 86_400_000
_PACE_MS: Final = 7 * _DAY_MS
"""A forecast uses this much of the past, which covers each day of a week."""
_LEAST_PACE_MS: Final = 3_600_000
"""With less than an hour of data there is no forecast."""


class Verdict(msgspec.Struct, frozen=True):
    """`state` is `healthy`, `waiting` or `needs_you`; `sentence` explains it.

    `cause` is the code of the cause that it names, empty for none.
    """

    state: str = HEALTHY
    sentence: str = ""
    cause: str = ""


class TopicFacts(msgspec.Struct, frozen=True):
    """A topic, according to its journals; `unread` of these cannot be read, and are not in the numbers.

    `gc_epoch` is the lowest M(p) of its partitions.
    """

    topic: str
    partitions: int
    journals: int
    unread: int
    records: int
    unreconciled_records: int
    l1_objects: int
    gc_epoch: int


class EpochBar(msgspec.Struct, frozen=True):
    """The objects of the epochs from `first_epoch` to `last_epoch`; either all of them are eligible, or none.

    Attributes:
        held_by: the partition with the lowest M(p) among those that may still need these objects; empty if there is none.
        holders: at most how many partitions may.
    """

    first_epoch: int
    last_epoch: int
    objects: int
    bytes: int
    eligible: bool
    oldest_ms: int
    held_by: str = ""
    holders: int = 0


class DeletedBar(msgspec.Struct, frozen=True):
    """The objects deleted by the run that began at `started_ms`, or by all `runs` of the day that began then."""

    started_ms: int
    objects: int
    bytes: int
    runs: int
    is_day: bool


class TrendPoint(msgspec.Struct, frozen=True):
    """The garbage at a moment: as a scan saw it, or, with what was deleted, as a sweep left it."""

    ms: int
    objects: int
    bytes: int
    deleted_objects: int = 0
    deleted_bytes: int = 0


class Savings(msgspec.Struct, frozen=True):
    """The objects that runs since `since_ms` deleted, and what they would cost each month if they still existed.

    `at_most`: two runs overlapped, and a store also reports an already deleted object as deleted.
    """

    since_ms: int
    runs: int
    objects: int
    bytes: int
    dollars_month: float
    at_most: bool = False


class Forecast(msgspec.Struct, frozen=True):
    """The garbage per day from `from_ms` to `to_ms`, and the total after a week without a sweep."""

    from_ms: int
    to_ms: int
    objects_day: int
    bytes_day: int
    week_bytes: int
    week_dollars_month: float


class Report(msgspec.Struct, Outcome, kw_only=True):
    """A cluster's overview, and what else the page shows.

    Attributes:
        verdict: `state`: `healthy`, `waiting` for what the next runs of `l0gc gc` end, or `needs_you`; `sentence`; and
            `cause`, its code.
        overview: Everything that [`l0gc status`](#l0gc-status) has, with the last 20 runs.
        url: Where it is.
        endpoint_url: The S3 server that was named for it; null for none.
        given_up: The first 50 ranges of records that were [given up](#l0gc-give-up), each with `topic`, `partition`,
            `first_offset`, `last_offset`, and the `key` of the L1 object without rows.
        behind: The 10 partitions with the most lag, each as in `held_back_by`, without `oldest_ms`.
        others_behind: How many partitions there are besides.
        others_lag: The most lag of those, in epochs.
        by_topic: The 50 topics with the most unreconciled records, each with `topic`, `partitions`, `journals` and how
            many of them are `unread` (they cannot be read, and are not in the numbers), `records`,
            `unreconciled_records`, `l1_objects` and `gc_epoch` (the lowest M(p)).
        epochs: The bars of the chart, at most 120, each with `first_epoch`, `last_epoch`, `objects`, `bytes`,
            `eligible`, `oldest_ms`, `held_by` (a partition) and `holders` (how many).
        trend: The garbage at each of at most 200 scans, of more those with the most, and after each of the newest 200
            sweeps, oldest first: `ms`, `objects`, `bytes`; after a sweep also `deleted_objects` and `deleted_bytes`.
        saved: What the newest 1,000 runs deleted: `since_ms`, `runs`, `objects`, `bytes`, and `dollars_month`, what it
            would cost if it were there; `at_most` where runs overlapped, and each counts an object that both deleted.
            Null if that is nothing.
        forecast: What became garbage from `from_ms` to `to_ms`, a week at most, by scans and deletions: `objects_day`,
            `bytes_day`; and what there is in a week without a sweep: `week_bytes`, `week_dollars_month`. Null for less
            than an hour.
        runs_total: How many are on record.
        deleted: The bars of what runs deleted: of each run, or of each day (`is_day`) if there are more than 40.
        shadow: What shadow runs would have deleted, as [verify --shadow](#l0gc-verify) printed it into `--findings`; without
            that, by their records, and nothing of what was read. Null without such runs.
        findings: What `--findings` held, as `l0gc verify --json` has it; null without it.
    """

    hidden: ClassVar[frozenset[str]] = frozenset({"html"})
    derived: ClassVar[tuple[str, ...]] = ("runs_total",)

    overview: Overview
    url: str
    endpoint_url: str | None = None
    verdict: Verdict = Verdict()
    behind: list[Holder]
    others_behind: int
    others_lag: int
    by_topic: list[TopicFacts]
    given_up: list[Hole]
    epochs: list[EpochBar]
    trend: list[TrendPoint]
    saved: Savings | None
    forecast: Forecast | None
    deleted: list[DeletedBar]
    findings: VerifyResult | None
    shadow: ShadowProof | None = None
    html: str = ""

    @property
    def runs(self) -> list[RunEntry]:
        """Return the newest runs, which the page lists."""
        return self.overview.runs[-SHOWN_RUNS:]

    @property
    def runs_total(self) -> int:
        return self.overview.runs_total

    def to_json(self) -> dict[str, Any]:
        """Return the fields, with as many runs as the page lists."""
        runs = {"runs": [r.to_json() for r in self.runs]}
        return super().to_json() | {"overview": self.overview.to_json() | runs}


_FINDINGS: Final = msgspec.json.Decoder(VerifyResult)


def read_findings(path: Path) -> VerifyResult:
    """Return the output of `l0gc verify --json` from a file. Raises `UsageError` if it cannot be read, or holds
    something else.
    """
    try:
        return _FINDINGS.decode(path.read_bytes())
    except OSError as e:
        raise UsageError(f"cannot read the findings in {path}: {e.strerror}") from e
    except UNDECODABLE as e:
        raise UsageError(f"{path} is not what l0gc verify --json prints: {e}") from e


def gather(
    cluster: ClusterHandles,
    url: str,
    *,
    endpoint_url: str | None = None,
    price_gb_month: float = STANDARD_PRICE,
    findings: VerifyResult | None = None,
) -> Report:
    """Read everything once.

    Args:
        url, endpoint_url: where the cluster is, for the page.
        price_gb_month: dollars for a GB and month.

    Raises:
        NotInitialisedError: no cluster exists here.
        CorruptObjectError: the controller's log cannot be read.
    """
    o = read_overview(cluster, price_gb_month, runs=RUNS_READ)
    scans, skipped = read_trend(cluster.store, cluster.parallel, o.cluster_id, SCANS_READ)
    if skipped:
        o.notes.append(f"{skipped} scan snapshots cannot be read, or are another cluster's; the trend omits them")
    bars = list[EpochBar]()
    if o.scan is not None and o.garbage is not None:
        left = o.garbage.left_objects / max(1, o.garbage.eligible_objects)
        bars = epoch_bars(rows_left(o.scan.rows, o.watermark, left), o.watermark)
    behind, others, others_lag = lags(o.cluster_epoch, [r.summary for r in o.logs.readings])
    left_bytes = o.garbage.left_bytes if o.garbage is not None else 0
    given_up = list[Hole]()
    if any(topic.totals().holes for *_, topic in o.logs.topics()):  # they are among the L1 rows
        given_up = read_journals(cluster, o.logs.snapshot, o.watermark, whole=True).given_up(SHOWN_HOLES)
    report = Report(
        overview=o,
        url=url,
        endpoint_url=endpoint_url,
        behind=behind,
        others_behind=others,
        others_lag=others_lag,
        by_topic=[] if o.external_log else by_topic(o.logs),
        given_up=given_up,
        epochs=bars,
        trend=trend_points(thinned(scans), sweeps_of(o.runs)),
        saved=saved(o.runs, price_gb_month),
        forecast=forecast(scans, o.runs, left_bytes, price_gb_month),
        deleted=deleted_bars(o.runs),
        findings=findings and msgspec.structs.replace(findings, findings=findings.findings[:SHOWN_FINDINGS]),
    )
    report.shadow = findings.shadow if findings is not None else None
    if report.shadow is None:
        try:
            runs, _ = list_runs(cluster.store, RUNS_READ, parallel=cluster.parallel, shadow=True)
            report.shadow = shadow_of(runs, cluster.identity().layout.shards, o.as_of_ms)
        except CorruptObjectError as e:
            o.notes.append(f"{e}; what shadow runs would have deleted is unknown")
    report.verdict = verdict(o, findings)
    return report


def verdict(o: Overview, findings: VerifyResult | None) -> Verdict:
    """Return the state of the cluster (pure).

    Causes and remedies are those of `causes.py`, which `status` also shows. This adds whether somebody has to act. A
    cause that the next runs of `l0gc gc` end is waiting. A cause that has waited for longer than a day, or that no run
    ends, needs a person.
    """
    acute = next((c for c in o.causes if c.cause not in WAITS_FOR), None)
    if acute is not None:
        return Verdict(NEEDS_YOU, _sentence(acute, len(o.causes)), acute.cause)
    if findings is not None and findings.total:
        return Verdict(
            NEEDS_YOU, f"l0gc verify has {count(findings.total, 'finding')}; what is damaged is named below."
        )
    first = o.causes[0] if o.causes else None
    if first is not None and first.cause != PAUSED and o.lag_ms is not None and o.lag_ms > LATE_MS:
        return Verdict(NEEDS_YOU, f"M has stood for {span(o.lag_ms)}: {_sentence(first, len(o.causes))}", first.cause)
    if o.warnings:
        warning = o.warnings[0]
        return Verdict(NEEDS_YOU, f"nothing is held back, but {warning.detail}.", warning.cause)
    if first is not None:
        return Verdict(WAITING, f"for {WAITS_FOR[first.cause]}: {_sentence(first, len(o.causes))}", first.cause)
    if o.watermark < 0:
        return Verdict(WAITING, "for the first M: none is published yet, so nothing may go.")
    if o.garbage is None:
        return Verdict(
            HEALTHY, "M follows the cluster epoch. What the bucket holds is unknown, since it was never listed."
        )
    if not o.left_objects:
        held_objects = o.garbage.held_objects
        rest = f"{count(held_objects, 'object')} may still be needed" if held_objects else "L0 is empty"
        if not held_objects and o.unreconciled_records:
            uploaded = count(o.unreconciled_records, "record")
            rest = f"L0 was empty when it was listed, and {uploaded} in it wait for l0gc reconcile"
        return Verdict(HEALTHY, f"no garbage is left; {rest}.")
    left = f"{count(o.left_objects, 'object')} ({size(o.garbage.left_bytes)})"
    swept = o.last("sweep")
    if swept is not None and swept.shadow:
        return Verdict(WAITING, f"for sweeps that delete: {left} may go, and sweeps are shadow runs.")
    since_sweep_ms = o.as_of_ms - o.runs[-1].started_ms if o.runs else None
    if since_sweep_ms is None or since_sweep_ms > LATE_MS:
        last = "none is on record" if since_sweep_ms is None else f"the last one began {span(since_sweep_ms)} ago"
        return Verdict(WAITING, f"for l0gc sweep: {left} may go, and {last}.")
    return Verdict(HEALTHY, f"the next sweep may delete {left}.")


def _sentence(cause: Cause, total: int) -> str:
    more = f" And {count(total - 1, 'other cause')}, below." if total > 1 else ""
    return f"{cause.detail}.{more}"


# -- partitions and topics ----------------------------------------------------------------------------------------------


def lags(cluster_epoch: int, units: Sequence[UnitSummary]) -> tuple[list[Holder], int, int]:
    """Return the partitions with the most lag, how many others there are, and the largest lag of those (pure)."""
    low = sorted((h for u in units for h in u.lowest if h.topic), key=lambda h: (h.gc_epoch, h.topic, h.partition))
    shown = low[:SHOWN_BEHIND]
    rest: Counter[int] = Counter()
    for u in units:
        rest.update(u.gc_epochs)
    rest.subtract(h.gc_epoch for h in shown)
    rest = +rest
    return shown, rest.total(), cluster_epoch - min(rest, default=cluster_epoch)


def by_topic(journals: Journals) -> list[TopicFacts]:
    """Return the topics with the most unreconciled records (pure)."""
    facts = []
    for topic in journals.snapshot.topics.values():
        read = [(r, s) for r in topic.partition_ranges() if (s := journals.readings[r.journal].state) is not None]
        totals = [s.topic(topic.revision).totals() for _, s in read]
        low = [s.lowest(topic.revision, r.first, r.count, 1)[0].gc_epoch for r, s in read]
        facts.append(
            TopicFacts(
                topic.name,
                topic.partitions,
                len(topic.journals),
                len(topic.journals) - len(read),
                sum(t.records for t in totals),
                sum(t.unreconciled_records for t in totals),
                sum(t.l1_objects for t in totals),
                min(low, default=-1),
            )
        )
    return sorted(facts, key=lambda t: (-t.unreconciled_records, t.topic))[:SHOWN_TOPICS]


# -- bars and lines -----------------------------------------------------------------------------------------------------


def rows_left(rows: Sequence[ScanRow], watermark: int, left: float) -> list[ScanRow]:
    """Return the rows, with eligible objects reduced to this share: runs record how many they deleted, not at which
    epochs.
    """

    def of(r: ScanRow) -> ScanRow:
        if r.epoch is None or r.epoch > watermark:
            return r
        return msgspec.structs.replace(r, objects=round(r.objects * left), bytes=round(r.bytes * left))

    return [r for r in map(of, rows) if r.objects]


def epoch_bars(rows: Sequence[ScanRow], watermark: int, most: int = MOST_BARS) -> list[EpochBar]:
    """Return the rows of L0 objects as at most `most` bars of equally many epochs, lowest epoch first.

    Args:
        rows: by epoch, rising; those without one are left out.
        watermark: the M to use.
        most: two at least, one for each side of M.
    """
    epochs = [(r.epoch, r) for r in rows if r.epoch is not None]
    if not epochs:
        return []
    low, high = epochs[0][0], epochs[-1][0]
    # How many epochs a bar spans: the fewest with which there are no more than `most` bars, on both sides of M.
    width = 1 + bisect_left(
        range(1, high - low + 1), True, key=lambda w: (high - watermark - 1) // w - (low - watermark - 1) // w < most
    )
    bars: dict[int, EpochBar] = {}
    for e, r in epochs:
        # Counted from M + 1, which therefore begins a bar.
        number = (e - watermark - 1) // width
        first = number * width + watermark + 1
        so_far = bars.get(number) or EpochBar(
            max(low, first), min(high, first + width - 1), 0, 0, e <= watermark, r.oldest_ms
        )
        bars[number] = msgspec.structs.replace(
            so_far,
            objects=so_far.objects + r.objects,
            bytes=so_far.bytes + r.bytes,
            oldest_ms=min(so_far.oldest_ms, r.oldest_ms),
            held_by=so_far.held_by or r.held_by,
            holders=max(so_far.holders, r.holders),
        )
    return list(bars.values())


def deleted_bars(runs: Iterable[RunEntry]) -> list[DeletedBar]:
    """Return what the runs deleted, oldest first: a bar for each finished run, or for each of the last days, also
    empty ones.
    """
    ended = [(r.started_ms, r.summary) for r in runs if r.summary is not None]
    if len(ended) <= RUNS_ONE_BY_ONE:
        return [DeletedBar(at, s.objects, s.bytes, 1, False) for at, s in ended]
    days: dict[int, DeletedBar] = {}
    for at, s in ended:
        day = at - at % _DAY_MS
        so_far = days.get(day) or DeletedBar(day, 0, 0, 0, True)
        days[day] = DeletedBar(day, so_far.objects + s.objects, so_far.bytes + s.bytes, so_far.runs + 1, True)
    last = max(days)
    first = max(min(days), last - (MOST_DAYS - 1) * _DAY_MS)
    return [days.get(day) or DeletedBar(day, 0, 0, 0, True) for day in range(first, last + 1, _DAY_MS)]


def thinned(scans: Sequence[ScanTotals], most: int = MOST_POINTS) -> list[ScanTotals]:
    """Return at most `most` of the scans, oldest first: the one with the most garbage of each period, and the newest."""
    if len(scans) <= most:
        return list(scans)
    first, last = scans[0].taken_ms, scans[-1].taken_ms
    stretch = (last - first) // (most - 1) + 1
    peaks: dict[int, ScanTotals] = {}
    for scan in scans[:-1]:
        number = (scan.taken_ms - first) // stretch
        if number not in peaks or scan.eligible_bytes > peaks[number].eligible_bytes:
            peaks[number] = scan
    return [*peaks.values(), scans[-1]]


def sweeps_of(runs: Iterable[RunEntry]) -> list[RunSummary]:
    """Return the sweeps that ended and deleted anything of L0, oldest first; a vacuum deletes other things."""
    return sorted((s for s in _deletions(runs) if s.command == SWEEP), key=lambda s: s.started_ms)


def _deletions(runs: Iterable[RunEntry]) -> list[RunSummary]:
    return [r.summary for r in runs if r.summary is not None and r.summary.objects]


def saved(runs: Iterable[RunEntry], price_gb_month: float) -> Savings | None:
    """Return how much all of the runs deleted, L0 and other kinds; None if they deleted nothing."""
    deletions = sorted(_deletions(runs), key=lambda s: s.started_ms)
    if not deletions:
        return None
    total = sum(s.bytes for s in deletions)
    cost = round(dollars_month(total, price_gb_month), 6)
    overlap = any(after.started_ms < before.ended_ms for before, after in pairwise(deletions))
    return Savings(deletions[0].started_ms, len(deletions), sum(s.objects for s in deletions), total, cost, overlap)


def shadow_of(runs: Iterable[RunEntry], shards: int, now_ms: int) -> ShadowProof | None:
    """Return how much shadow runs have recorded, each object once: a complete run repeats an earlier partial one (pure)."""
    whole = [s for r in runs if (s := r.summary) is not None and is_whole(s, shards)]
    if not whole:
        return None
    objects, total = sum(s.objects for s in whole), sum(s.bytes for s in whole)
    shadow = ShadowProof(len(whole), whole[0].started_ms, now_ms, objects, total)
    shadow.sum_up("l0gc verify --shadow shows whether one was needed")
    return shadow


def forecast(
    scans: Sequence[ScanTotals], runs: Iterable[RunEntry], left_bytes: int, price_gb_month: float
) -> Forecast | None:
    """Return how fast garbage grew in the last week, and where that leads.

    The garbage that arose between two scans is its growth plus what was deleted between them.

    Args:
        scans: oldest first.
        left_bytes: the garbage now.
    """
    near = [s for s in scans if s.taken_ms >= scans[-1].taken_ms - _PACE_MS]
    if not near or (length := near[-1].taken_ms - near[0].taken_ms) < _LEAST_PACE_MS:
        return None
    swept = [s for s in sweeps_of(runs) if near[0].taken_ms <= s.started_ms < near[-1].taken_ms]
    objects = near[-1].eligible_objects - near[0].eligible_objects + sum(s.objects for s in swept)
    growth = near[-1].eligible_bytes - near[0].eligible_bytes + sum(s.bytes for s in swept)
    a_day = max(0, growth) * _DAY_MS // length
    week = left_bytes + 7 * a_day
    return Forecast(
        near[0].taken_ms,
        near[-1].taken_ms,
        max(0, objects) * _DAY_MS // length,
        a_day,
        week,
        round(dollars_month(week, price_gb_month), 6),
    )


def trend_points(scans: Sequence[ScanTotals], sweeps: Sequence[RunSummary]) -> list[TrendPoint]:
    """Return scans, and the newest sweeps after the first of them, in one series, oldest first.

    A sweep leaves what the scan before it saw, minus what it deleted.
    """
    points: list[TrendPoint] = []
    moments: list[tuple[int, ScanTotals | RunSummary]] = [(t.taken_ms, t) for t in scans]
    moments += [(s.started_ms, s) for s in sweeps[-MOST_SWEEPS:]]
    for ms, seen in sorted(moments, key=lambda m: m[0]):
        if isinstance(seen, ScanTotals):
            points.append(TrendPoint(ms, seen.eligible_objects, seen.eligible_bytes))
        elif points:
            left = max(0, points[-1].objects - seen.objects), max(0, points[-1].bytes - seen.bytes)
            points.append(TrendPoint(ms, *left, seen.objects, seen.bytes))
    return points
