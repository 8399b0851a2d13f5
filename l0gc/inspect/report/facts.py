"""Collect the content of a report: the overview, and a summary of scans and runs whose size does not grow with the
bucket.

Nothing is omitted: bars add up to their sources. Epochs on different sides of M never share a bar, so a bar is eligible
or held as a whole. If a journal, a scan or a run's record is missing or damaged, the page names it and shows the rest.
Only the controller's log must be readable. Nothing is changed.
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
"""A time in which a working scheduler runs `l0gc gc` dozens of times."""
SHOWN_RUNS: Final = 20
SHOWN_BEHIND: Final = HELD_BACK_SHOWN
SHOWN_TOPICS: Final = 50
SHOWN_FINDINGS: Final = 50
SHOWN_HOLES: Final = 50
SCANS_READ: Final = 500
"""The number of scans in a week, if M is computed every 20 minutes."""
RUNS_READ: Final = 1000
MOST_BARS: Final = 120
MOST_POINTS: Final = 200
RUNS_ONE_BY_ONE: Final = 40
"""The largest number of runs that have a bar each. If there are more runs, each day has a bar."""
MOST_DAYS: Final = 90
MOST_SWEEPS: Final = 200
_DAY_MS: Final = 86_400_000
_PACE_MS: Final = 7 * _DAY_MS
"""The period of the past on which a forecast is based, which covers each day of a week."""
_LEAST_PACE_MS: Final = 3_600_000
"""The shortest period on which a forecast can be based."""


class Verdict(msgspec.Struct, frozen=True):
    """The state of the cluster: `state` is `healthy`, `waiting` or `needs_you`, and `sentence` explains it.

    `cause` is the code of the cause that the sentence names; empty if it names none.
    """

    state: str = HEALTHY
    sentence: str = ""
    cause: str = ""


class TopicFacts(msgspec.Struct, frozen=True):
    """A topic, according to its journals. The numbers exclude `unread` journals, which cannot be read.

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
    """The objects of the epochs from `first_epoch` to `last_epoch`, of which all or none are eligible.

    Attributes:
        held_by: the partition with the lowest M(p) that may still need these objects; empty if there is none.
        holders: an upper bound of the number of partitions that may still need these objects.
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
    """The objects deleted by the run that began at `started_ms`, or by all `runs` of the day that began at that time."""

    started_ms: int
    objects: int
    bytes: int
    runs: int
    is_day: bool


class TrendPoint(msgspec.Struct, frozen=True):
    """The garbage at a moment: as a scan counted it, or as a sweep left it, with the number of deleted objects."""

    ms: int
    objects: int
    bytes: int
    deleted_objects: int = 0
    deleted_bytes: int = 0


class Savings(msgspec.Struct, frozen=True):
    """The objects that runs since `since_ms` deleted, and their monthly cost if they still existed.

    `at_most` means that two runs overlapped, so objects may count twice, since a store reports a missing object as
    deleted.
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
    """A cluster's overview, and the other content of the page.

    Attributes:
        verdict: The `state`, which is `healthy`, `waiting` (the next runs of `l0gc gc` are enough) or `needs_you`; a
            `sentence`; and the code of the `cause`.
        overview: All fields of [`l0gc status`](#l0gc-status), with the last 20 runs.
        url: The URL of the cluster.
        endpoint_url: The S3 server, if one was given; otherwise null.
        given_up: The first 50 ranges of records that were [given up](#l0gc-give-up), each with `topic`, `partition`,
            `first_offset`, `last_offset`, and the `key` of the L1 object without rows.
        behind: The 10 partitions with the most lag, each as in `held_back_by`, without `oldest_ms`.
        others_behind: The number of other partitions.
        others_lag: The largest lag of the other partitions, in epochs.
        by_topic: The 50 topics with the most unreconciled records, each with `topic`, `partitions`, `journals`,
            `unread` (the number of journals that cannot be read, which the other numbers exclude), `records`,
            `unreconciled_records`, `l1_objects` and `gc_epoch` (the lowest M(p)).
        epochs: The bars of the chart, at most 120, each with `first_epoch`, `last_epoch`, `objects`, `bytes`,
            `eligible`, `oldest_ms`, `held_by` (a partition) and `holders` (a number).
        trend: The garbage at each of at most 200 scans (if there are more, those with the most garbage), and after each
            of the newest 200 sweeps, oldest first: `ms`, `objects`, `bytes`; after a sweep also `deleted_objects` and
            `deleted_bytes`.
        saved: The deletions of the newest 1,000 runs: `since_ms`, `runs`, `objects`, `bytes`, and `dollars_month`, the
            cost if the objects still existed; `at_most` is true if runs overlapped, so that both may count the same
            object. Null if nothing was deleted.
        forecast: The new garbage per day from `from_ms` to `to_ms`, at most a week, according to scans and deletions:
            `objects_day` and `bytes_day`; and the garbage after a week without a sweep: `week_bytes` and
            `week_dollars_month`. Null if the data covers less than an hour.
        runs_total: The number of runs on record.
        deleted: The bars of deletions: one for each run, or for each day (`is_day`) if there are more than 40 runs.
        shadow: The deletions that shadow runs would have made, as in the output of [verify --shadow](#l0gc-verify) that
            `--findings` names, or else according to their records, without the result of a check. Null if there are no
            shadow runs.
        findings: The content of `--findings`, as `l0gc verify --json` prints it; null without this option.
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
    """Return the output of `l0gc verify --json` from a file. Raises `UsageError` if the file cannot be read or has
    other content.
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
        url, endpoint_url: the address of the cluster, for the page.
        price_gb_month: dollars per GB and month.

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
    if any(topic.totals().holes for *_, topic in o.logs.topics()):  # holes are among the L1 rows
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

    Causes and remedies are those of `causes.py`, which `status` also shows. This function adds whether an operator has
    to act. A cause that the next runs of `l0gc gc` end is waiting. A cause that has waited for more than a day, or that
    no run ends, needs an operator.
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
    """Return the partitions with the most lag, the number of others, and the largest lag of the others (pure)."""
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
    """Return the rows with eligible objects reduced to this share, since runs record the number of deletions, but not
    their epochs.
    """

    def of(r: ScanRow) -> ScanRow:
        if r.epoch is None or r.epoch > watermark:
            return r
        return msgspec.structs.replace(r, objects=round(r.objects * left), bytes=round(r.bytes * left))

    return [r for r in map(of, rows) if r.objects]


def epoch_bars(rows: Sequence[ScanRow], watermark: int, most: int = MOST_BARS) -> list[EpochBar]:
    """Return the rows of L0 objects as at most `most` bars of equally many epochs, lowest epoch first.

    Args:
        rows: the rows in order of epoch; those without an epoch are ignored.
        watermark: the M to use.
        most: the largest number of bars, at least two: one for each side of M.
    """
    epochs = [(r.epoch, r) for r in rows if r.epoch is not None]
    if not epochs:
        return []
    low, high = epochs[0][0], epochs[-1][0]
    # A bar spans the fewest epochs with which both sides of M together have at most `most` bars.
    width = 1 + bisect_left(
        range(1, high - low + 1), True, key=lambda w: (high - watermark - 1) // w - (low - watermark - 1) // w < most
    )
    bars: dict[int, EpochBar] = {}
    for e, r in epochs:
        # Bars are counted from M + 1, so that one begins there.
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
    """Return bars of deletions, oldest first: one for each finished run, or for each of the last days, including empty
    days.
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
    """Return at most `most` of the scans, oldest first: the scan with the most garbage in each period, and the newest."""
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
    """Return the sweeps that ended and deleted L0 objects, oldest first; a vacuum deletes other objects."""
    return sorted((s for s in _deletions(runs) if s.command == SWEEP), key=lambda s: s.started_ms)


def _deletions(runs: Iterable[RunEntry]) -> list[RunSummary]:
    return [r.summary for r in runs if r.summary is not None and r.summary.objects]


def saved(runs: Iterable[RunEntry], price_gb_month: float) -> Savings | None:
    """Return the deletions of all the runs, of L0 and other kinds; None if they deleted nothing."""
    deletions = sorted(_deletions(runs), key=lambda s: s.started_ms)
    if not deletions:
        return None
    total = sum(s.bytes for s in deletions)
    cost = round(dollars_month(total, price_gb_month), 6)
    overlap = any(after.started_ms < before.ended_ms for before, after in pairwise(deletions))
    return Savings(deletions[0].started_ms, len(deletions), sum(s.objects for s in deletions), total, cost, overlap)


def shadow_of(runs: Iterable[RunEntry], shards: int, now_ms: int) -> ShadowProof | None:
    """Return the amount that shadow runs have recorded. Each object counts once, since a complete run repeats an
    earlier partial one (pure).
    """
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
    """Return how fast garbage grew in the last week, and the resulting forecast.

    The new garbage between two scans is the growth plus the deletions between them.

    Args:
        scans: the scans, oldest first.
        left_bytes: the bytes of the current garbage.
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
    """Return one series, oldest first, of scans and of the newest sweeps after the first scan.

    A sweep leaves the garbage of the scan before it, minus its deletions.
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
