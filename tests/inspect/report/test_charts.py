"""Charts: every mark is within its chart, scales rise, and M stands between what may go and what stays."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from l0gc.inspect.report.charts import (
    Chart,
    Scale,
    deleted_chart,
    epochs_chart,
    height_scale,
    nice_step,
    time_ticks,
    trend_chart,
)
from l0gc.inspect.report.series import DeletedBar, EpochBar, TrendPoint, epoch_bars
from l0gc.watermark.scans import ScanRow
from tests.inspect.report.support import DAY_MS
from tests.inspect.report.test_series import scan_rows

numbers = st.one_of(st.integers(0, 1000), st.integers(0, 2**62))
moments = st.integers(0, 4_000_000_000_000)


def check_within(c: Chart) -> None:
    """Bars may pass the edge by what rounding makes of it, and not by more."""
    for t in [*c.x_ticks, *c.y_ticks, *([c.line] if c.line else [])]:
        assert 0 <= t.at <= 100
        assert t.anchor in {"start", "middle", "end"}
    for b in c.bars:
        assert b.x >= 0
        assert b.y >= 0
        assert b.width >= 0
        assert b.height >= 0
        assert b.x + b.width <= 100.01
        assert b.y + b.height == pytest.approx(100, abs=0.01)
    for p in c.points:
        assert 0 <= p.x <= 100
        assert 0 <= p.y <= 100
    assert len(c.y_ticks) <= 6


@given(scan_rows(), st.one_of(st.integers(-1, 600), st.integers(-1, 2**62)))
def test_the_chart_of_epochs_stays_within_its_edges(rows: list[ScanRow], m: int) -> None:
    bars = epoch_bars(rows, m)
    c = epochs_chart(bars, m, lambda b: "")
    check_within(c)
    assert len(c.bars) == len(bars)
    assert len(c.x_ticks) <= 7
    assert c.line is not None
    for mark, b in zip(c.bars, bars, strict=True):
        assert mark.height > 0
        # Each thousandth of a per cent may be rounded either way.
        assert mark.x + mark.width <= c.line.at + 0.01 if b.eligible else mark.x >= c.line.at - 0.01


@given(st.lists(numbers, min_size=1, max_size=120))
def test_taller_bars_are_of_more_objects(amounts: list[int]) -> None:
    bars = [DeletedBar(n * DAY_MS, amount, 0, 1, True) for n, amount in enumerate(amounts)]
    c = deleted_chart(bars, lambda b: "")
    check_within(c)
    heights = sorted(zip(amounts, (b.height for b in c.bars), strict=True))
    assert all(low[1] <= high[1] for low, high in pairwise(heights))
    assert all((height > 0) == (amount > 0) for amount, height in heights)
    assert len(c.x_ticks) <= 8


@pytest.mark.parametrize("n", [1, 2, 7, 8, 30, 120])
def test_bars_of_deletions_spread_over_the_whole_width_and_the_newest_has_its_label(n: int) -> None:
    c = deleted_chart([DeletedBar(i * DAY_MS, 5, 0, 1, True) for i in range(n)], lambda b: "")
    left, right = c.bars[0].x, 100 - c.bars[-1].x - c.bars[-1].width
    assert left == pytest.approx(right, abs=0.01)
    assert max(b.width for b in c.bars) < 10
    last = c.bars[-1]
    assert c.x_ticks[-1].at == pytest.approx(last.x + last.width / 2, abs=0.01)


def test_a_sweep_has_a_mark_on_the_line_of_its_own() -> None:
    points = [TrendPoint(0, 9, 90), TrendPoint(10, 2, 20, 7, 70)]
    c = trend_chart("a", points, lambda p: p.objects, lambda p: f"{p.deleted_objects} deleted")
    assert [(p.kind, p.title) for p in c.points] == [("dot", "0 deleted"), ("swept", "7 deleted")]


@given(st.lists(st.tuples(moments, numbers), min_size=1, max_size=50), st.booleans())
def test_a_trend_goes_from_left_to_right_within_its_edges(values: list[tuple[int, int]], binary: bool) -> None:
    points = [TrendPoint(ms, n, n) for ms, n in sorted(values)]
    c = trend_chart("a", points, lambda p: p.bytes, lambda p: "", binary=binary)
    check_within(c)
    assert [p.x for p in c.points] == sorted(p.x for p in c.points)
    assert 1 <= len(c.x_ticks) <= 6


@given(st.floats(-1e9, 1e9), st.floats(1, 1e12), st.lists(st.floats(-2e12, 2e12), min_size=2, max_size=9))
def test_a_scale_rises_and_ends_at_its_ends(low: float, span: float, values: list[float]) -> None:
    scale = Scale(low, low + span)
    places = [scale.at(v) for v in sorted(values)]
    assert places == sorted(places)
    assert all(0 <= p <= 100 for p in places)
    assert (scale.at(low), scale.at(low + span)) == (0, 100)


@given(numbers, st.booleans())
def test_a_step_is_round_and_the_smallest_that_is_enough(span: int, binary: bool) -> None:
    step = nice_step(span, 5, binary=binary)
    assert step * 5 >= span
    assert step == 1 or step * 5 / (2 if binary else 2.5) < span
    digits = str(step).rstrip("0")
    assert step & (step - 1) == 0 if binary else digits in {"1", "2", "5"}


def test_ticks_begin_at_zero_and_cover_the_highest_value() -> None:
    _, ticks = height_scale([7, 93])
    assert [(t.label, t.at) for t in ticks] == [("0", 100), ("20", 80), ("40", 60), ("60", 40), ("80", 20), ("100", 0)]
    assert [t.label for t in height_scale([0])[1]] == ["0", "1"]


@pytest.mark.parametrize(
    ("m", "label", "at"),
    [
        (-1, "\N{LEFTWARDS ARROW} no M is published", 0),
        (3, "\N{LEFTWARDS ARROW} M = 3", 0),
        (9, "M = 9", 0),
        (14, "M = 14", 50),
        (19, "M = 19", 100),
        (30, "M = 30 \N{RIGHTWARDS ARROW}", 100),
    ],
)
def test_m_stands_after_its_epoch_or_at_the_edge_with_an_arrow(m: int, label: str, at: float) -> None:
    bars = [EpochBar(e, e, 1, 1, e <= m, 0) for e in range(10, 20)]
    line = epochs_chart(bars, m, lambda b: "").line
    assert line is not None
    assert (line.label, line.at) == (label, at)


def test_moments_on_the_axis_are_round_ones() -> None:
    start = 20_000 * DAY_MS
    assert [t.label for t in time_ticks(Scale(start + 1, start + 4 * DAY_MS))] == ["5 Oct", "6 Oct", "7 Oct", "8 Oct"]
    hours = time_ticks(Scale(start + 3_600_000, start + 5 * 3_600_000))
    assert [t.label for t in hours] == [f"4 Oct 0{h}:00" for h in range(1, 6)]
    assert (hours[0].anchor, hours[-1].anchor) == ("start", "end")
    assert [t.minor for t in hours] == [False, True, False, True, False]
