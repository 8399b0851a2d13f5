"""What the charts show, summed so that a page has few marks however much a bucket holds (pure).

Nothing is left out: bars add up to what they were made of, and an epoch never shares a bar with one on the other side of M,
so that a bar is either eligible or held as a whole.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from l0gc.collect.gc_steps import SWEEP
from l0gc.collect.record import RunSummary
from l0gc.collect.runs import RunEntry
from l0gc.formatting import dollars_month
from l0gc.watermark.scans import ScanRow, ScanTotals

MOST_BARS: Final = 120
MOST_POINTS: Final = 200
RUNS_ONE_BY_ONE: Final = 40
"""Up to so many runs have a bar each; above that, each day has one."""
MOST_DAYS: Final = 90
MOST_SWEEPS: Final = 200
_DAY_MS: Final = 86_400_000
_PACE_MS: Final = 7 * _DAY_MS
"""A forecast is based on so much of the past, which has each day of a week in it."""
_LEAST_PACE_MS: Final = 3_600_000
"""By less than an hour of it nothing is forecast."""


class EpochBar(msgspec.Struct, frozen=True):
    """The objects of the epochs from `first_epoch` to `last_epoch`; all of them are eligible, or none is.

    Attributes:
        held_by: the partition with the lowest M(p) of those that still may need one of them; empty for none.
        holders: how many do, at most.
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
    """What the run that began at `started_ms` deleted, or all the runs of the day that began then (`runs` of them)."""

    started_ms: int
    objects: int
    bytes: int
    runs: int
    is_day: bool


class Swept(msgspec.Struct, frozen=True):
    """What a sweep that began at `at_ms` deleted."""

    at_ms: int
    objects: int
    bytes: int


class TrendPoint(msgspec.Struct, frozen=True):
    """The garbage at a moment: as a scan saw it, or, with what was deleted, as a sweep left it."""

    ms: int
    objects: int
    bytes: int
    deleted_objects: int = 0
    deleted_bytes: int = 0


class Saved(msgspec.Struct, frozen=True):
    """What the sweeps since `since_ms` deleted, and what it would cost each month if it were still there.

    `at_most`: two runs overlapped, and a store says of an object that is gone already that it was deleted.
    """

    since_ms: int
    runs: int
    objects: int
    bytes: int
    dollars_month: float
    at_most: bool = False


class Forecast(msgspec.Struct, frozen=True):
    """What became garbage a day from `from_ms` to `to_ms`, and what there would be a week from now without a sweep."""

    from_ms: int
    to_ms: int
    objects_day: int
    bytes_day: int
    week_bytes: int
    week_dollars_month: float


def rows_left(rows: Sequence[ScanRow], watermark: int, left: float) -> list[ScanRow]:
    """The rows, where of what may go this share is left: runs say how many objects they deleted, not at which epochs."""

    def of(r: ScanRow) -> ScanRow:
        if r.epoch is None or r.epoch > watermark:
            return r
        return msgspec.structs.replace(r, objects=round(r.objects * left), bytes=round(r.bytes * left))

    return [r for r in map(of, rows) if r.objects]


def epoch_bars(rows: Sequence[ScanRow], watermark: int, most: int = MOST_BARS) -> list[EpochBar]:
    """The rows of L0 objects as at most `most` bars, lowest epoch first; all of them span as many epochs.

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
    """What the runs deleted, oldest first: a bar for each run that ended, or for each of the last days, also one without."""
    ended = [(r.started_ms, r.summary) for r in runs if r.summary is not None]
    if len(ended) <= RUNS_ONE_BY_ONE:
        return [DeletedBar(at, s.deleted, s.bytes, 1, False) for at, s in ended]
    days: dict[int, DeletedBar] = {}
    for at, s in ended:
        day = day_of(at)
        so_far = days.get(day) or DeletedBar(day, 0, 0, 0, True)
        days[day] = DeletedBar(day, so_far.objects + s.deleted, so_far.bytes + s.bytes, so_far.runs + 1, True)
    last = max(days)
    first = max(min(days), last - (MOST_DAYS - 1) * _DAY_MS)
    return [days.get(day) or DeletedBar(day, 0, 0, 0, True) for day in range(first, last + 1, _DAY_MS)]


def day_of(ms: int) -> int:
    """When the day (UTC) of a moment began."""
    return ms - ms % _DAY_MS


def thinned(scans: Sequence[ScanTotals], most: int = MOST_POINTS) -> list[ScanTotals]:
    """At most `most` of the scans, oldest first: of each stretch of time the one with the most garbage, and the newest."""
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


def sweeps_of(runs: Iterable[RunEntry]) -> list[Swept]:
    """The sweeps that ended and deleted anything of L0; a vacuum deletes other things."""
    return [Swept(s.started_ms, s.deleted, s.bytes) for s in _deletions(runs) if s.command == SWEEP]


def _deletions(runs: Iterable[RunEntry]) -> list[RunSummary]:
    return [r.summary for r in runs if r.summary is not None and r.summary.deleted]


def sweeps_since(runs: Iterable[RunEntry], since_ms: int) -> list[Swept]:
    """The sweeps that began at `since_ms` or later, oldest first; of very many, the newest."""
    return sorted((s for s in sweeps_of(runs) if s.at_ms >= since_ms), key=lambda s: s.at_ms)[-MOST_SWEEPS:]


def saved(runs: Iterable[RunEntry], price_gb_month: float) -> Saved | None:
    """What all of the runs deleted, of L0 and of the rest; None if that is nothing."""
    found = sorted(_deletions(runs), key=lambda s: s.started_ms)
    if not found:
        return None
    size = sum(s.bytes for s in found)
    cost = round(dollars_month(size, price_gb_month), 6)
    overlap = any(after.started_ms < before.ended_ms for before, after in pairwise(found))
    return Saved(found[0].started_ms, len(found), sum(s.deleted for s in found), size, cost, overlap)


def forecast(
    scans: Sequence[ScanTotals], runs: Iterable[RunEntry], left_bytes: int, price_gb_month: float
) -> Forecast | None:
    """The pace at which garbage came in the last week, and where that leads.

    The garbage that arose between two scans is its growth plus what was deleted between them.

    Args:
        scans: oldest first.
        left_bytes: the garbage now.
    """
    near = [s for s in scans if s.taken_ms >= scans[-1].taken_ms - _PACE_MS]
    if not near or (length := near[-1].taken_ms - near[0].taken_ms) < _LEAST_PACE_MS:
        return None
    swept = [s for s in sweeps_of(runs) if near[0].taken_ms <= s.at_ms < near[-1].taken_ms]
    objects = near[-1].eligible_objects - near[0].eligible_objects + sum(s.objects for s in swept)
    size = near[-1].eligible_bytes - near[0].eligible_bytes + sum(s.bytes for s in swept)
    a_day = max(0, size) * _DAY_MS // length
    week = left_bytes + 7 * a_day
    return Forecast(
        near[0].taken_ms,
        near[-1].taken_ms,
        max(0, objects) * _DAY_MS // length,
        a_day,
        week,
        round(dollars_month(week, price_gb_month), 6),
    )


def trend_points(scans: Sequence[ScanTotals], sweeps: Sequence[Swept]) -> list[TrendPoint]:
    """Scans and sweeps on one line, oldest first: a sweep leaves what the scan before it saw, less what it deleted."""
    points: list[TrendPoint] = []
    moments = [(t.taken_ms, t) for t in scans] + [(s.at_ms, s) for s in sweeps]
    for ms, seen in sorted(moments, key=lambda m: m[0]):
        if isinstance(seen, ScanTotals):
            points.append(TrendPoint(ms, seen.eligible_objects, seen.eligible_bytes))
        elif points:
            before = points[-1]
            points.append(
                TrendPoint(
                    ms,
                    max(0, before.objects - seen.objects),
                    max(0, before.bytes - seen.bytes),
                    seen.objects,
                    seen.bytes,
                )
            )
    return points
