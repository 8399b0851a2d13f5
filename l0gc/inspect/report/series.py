"""What the charts show, summed so that a page has few marks however much a bucket holds (pure).

Nothing is left out: bars add up to what they were made of, and an epoch never shares a bar with one on the other side of M,
so that a bar is either eligible or held as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from l0gc.collect.runs import RunEntry
from l0gc.watermark.scans import ScanRow, ScanTotals

MOST_BARS: Final = 120
MOST_POINTS: Final = 200
RUNS_ONE_BY_ONE: Final = 40
"""Up to so many runs have a bar each; above that, each day has one."""
MOST_DAYS: Final = 90


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


def epoch_bars(rows: Sequence[ScanRow], watermark: int, most: int = MOST_BARS) -> list[EpochBar]:
    """The rows of L0 objects as at most `most` bars, lowest epoch first; all of them span as many epochs.

    Args:
        rows: by epoch, rising; those without one are left out.
        watermark: the M to go by.
        most: two at least, one for each side of M.
    """
    epochs = [(r.epoch, r) for r in rows if r.epoch is not None]
    if not epochs:
        return []
    low, high = epochs[0][0], epochs[-1][0]
    width = _width(low, high, watermark, most)
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


def _width(low: int, high: int, watermark: int, most: int) -> int:
    """How many epochs a bar spans: the fewest with which there are no more than `most` bars, on both sides of M."""
    least, enough = 1, high - low + 1
    while least < enough:
        width = (least + enough) // 2
        if (high - watermark - 1) // width - (low - watermark - 1) // width < most:
            enough = width
        else:
            least = width + 1
    return least


def deleted_bars(runs: Iterable[RunEntry]) -> list[DeletedBar]:
    """What the runs deleted, oldest first: a bar for each run that ended, or for each of the last days."""
    ended = [(r.started_ms, r.summary) for r in runs if r.summary is not None]
    if len(ended) <= RUNS_ONE_BY_ONE:
        return [DeletedBar(at, s.deleted, s.bytes, 1, False) for at, s in ended]
    days: dict[int, DeletedBar] = {}
    for at, s in ended:
        day = day_of(at)
        so_far = days.get(day) or DeletedBar(day, 0, 0, 0, True)
        days[day] = DeletedBar(day, so_far.objects + s.deleted, so_far.bytes + s.bytes, so_far.runs + 1, True)
    return [days[day] for day in sorted(days)[-MOST_DAYS:]]


def day_of(ms: int) -> int:
    """When the day (UTC) of a moment began."""
    day = datetime.fromtimestamp(ms / 1000, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return int(day.timestamp() * 1000)


def thinned(scans: Sequence[ScanTotals], most: int = MOST_POINTS) -> list[ScanTotals]:
    """At most `most` of the scans, oldest first: of each stretch of time the one with the most garbage, and the newest."""
    if len(scans) <= most:
        return list(scans)
    first, last = scans[0].run_ms, scans[-1].run_ms
    stretch = (last - first) // (most - 1) + 1
    peaks: dict[int, ScanTotals] = {}
    for scan in scans[:-1]:
        number = (scan.run_ms - first) // stretch
        if number not in peaks or scan.eligible_bytes > peaks[number].eligible_bytes:
            peaks[number] = scan
    return [*peaks.values(), scans[-1]]
