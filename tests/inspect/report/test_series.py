"""The sums that the charts show: nothing is lost, and nothing is added, however few the marks are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from l0gc.inspect.report.series import (
    MOST_DAYS,
    MOST_POINTS,
    RUNS_ONE_BY_ONE,
    Swept,
    day_of,
    deleted_bars,
    epoch_bars,
    forecast,
    rows_left,
    saved,
    sweeps_since,
    thinned,
    trend_points,
)
from l0gc.watermark.scans import ScanRow
from tests.inspect.report.support import DAY_MS, run_entry, totals

epochs = st.one_of(st.integers(0, 500), st.integers(0, 2**62))


@st.composite
def scan_rows(draw: st.DrawFn) -> list[ScanRow]:
    found = sorted(draw(st.sets(epochs, min_size=1, max_size=60)))
    amounts = st.integers(1, 10**12)
    return [ScanRow(e, draw(amounts), draw(amounts), draw(amounts)) for e in found]


@given(scan_rows(), st.one_of(st.integers(-1, 600), st.integers(-1, 2**62)), st.integers(2, 130))
def test_bars_of_epochs_keep_the_totals_and_never_span_m(rows: list[ScanRow], m: int, most: int) -> None:
    bars = epoch_bars(rows, m, most)
    assert 1 <= len(bars) <= most
    assert sum(b.objects for b in bars) == sum(r.objects for r in rows)
    assert sum(b.bytes for b in bars) == sum(r.bytes for r in rows)
    assert sum(b.objects for b in bars if b.eligible) == sum(
        r.objects for r in rows if r.epoch is not None and r.epoch <= m
    )
    for b in bars:
        assert b.last_epoch <= m if b.eligible else b.first_epoch > m
        assert b.oldest_ms == min(
            r.oldest_ms for r in rows if r.epoch is not None and b.first_epoch <= r.epoch <= b.last_epoch
        )
    ends = [e for b in bars for e in (b.first_epoch, b.last_epoch)]
    assert ends == sorted(ends)
    assert (ends[0], ends[-1]) == (rows[0].epoch, rows[-1].epoch)


@given(scan_rows(), st.integers(-1, 600))
def test_each_epoch_has_its_own_bar_where_there_is_room(rows: list[ScanRow], m: int) -> None:
    span = (rows[-1].epoch or 0) - (rows[0].epoch or 0) + 1
    bars = epoch_bars(rows, m, 120)
    assert (len(bars) == len(rows)) or span > 120


def test_a_bar_names_who_holds_it_and_leaves_out_what_is_no_l0_key() -> None:
    rows = [ScanRow(1, 1, 1, 9), ScanRow(2, 2, 2, 8, "t/0", 1), ScanRow(3, 4, 4, 7, "t/0", 5), ScanRow(None, 8, 8, 1)]
    held = epoch_bars(rows, 1, 2)[1]
    assert (held.held_by, held.holders, held.objects, held.oldest_ms) == ("t/0", 5, 6, 7)
    assert epoch_bars([ScanRow(None, 8, 8, 1)], 1) == []


def test_few_runs_have_a_bar_each_and_many_share_their_days() -> None:
    few = [run_entry(n * DAY_MS // 4, deleted=n) for n in range(RUNS_ONE_BY_ONE)]
    killed = run_entry(5, deleted=None)
    assert [b.objects for b in deleted_bars([*few, killed])] == list(range(RUNS_ONE_BY_ONE))
    many = [run_entry(n * DAY_MS // 4, deleted=n) for n in range(RUNS_ONE_BY_ONE * 2)]
    days = deleted_bars(many)
    assert sum(b.objects for b in days) == sum(range(RUNS_ONE_BY_ONE * 2))
    assert {b.runs for b in days} == {4}
    assert [b.started_ms for b in days] == [n * DAY_MS for n in range(20)]
    assert len(deleted_bars([run_entry(n * DAY_MS, deleted=1) for n in range(200)])) == MOST_DAYS


def test_a_day_begins_at_midnight_utc() -> None:
    assert day_of(DAY_MS * 20_000 + 1) == day_of(DAY_MS * 20_001 - 1) == DAY_MS * 20_000


@given(
    st.lists(
        st.tuples(st.integers(0, 10**13), st.integers(0, 10**15)), min_size=1, max_size=50, unique_by=lambda t: t[0]
    ),
    st.integers(2, 20),
)
def test_a_thinned_trend_keeps_the_newest_scan_and_the_highest_peak(points: list[tuple[int, int]], most: int) -> None:
    scans = [totals(ms, eligible_bytes=size) for ms, size in sorted(points)]
    kept = thinned(scans, most)
    assert len(kept) <= most
    assert kept[-1] == scans[-1]
    assert max(t.eligible_bytes for t in kept) == max(t.eligible_bytes for t in scans)
    times = [t.taken_ms for t in kept]
    assert times == sorted(times)


def test_a_short_trend_is_shown_as_it_is() -> None:
    scans = [totals(ms) for ms in range(MOST_POINTS)]
    assert thinned(scans) == scans


def test_a_day_without_a_run_has_its_place() -> None:
    days = [0, 1, 5]
    bars = deleted_bars([run_entry(d * DAY_MS + n * 60_000, 2) for d in days for n in range(20)])
    assert [(b.started_ms // DAY_MS, b.objects) for b in bars] == [(0, 40), (1, 40), (2, 0), (3, 0), (4, 0), (5, 40)]


def test_a_sweep_leaves_what_the_scan_before_it_saw_less_what_it_deleted() -> None:
    scans = [totals(10, eligible_objects=9, eligible_bytes=90), totals(30, eligible_objects=4, eligible_bytes=40)]
    points = trend_points(scans, [Swept(5, 1, 1), Swept(20, 7, 70), Swept(25, 5, 5)])
    assert [(p.ms, p.objects, p.bytes, p.deleted_objects) for p in points] == [
        (10, 9, 90, 0), (20, 2, 20, 7), (25, 0, 15, 5), (30, 4, 40, 0),
    ]  # fmt: skip


def test_the_forecast_counts_what_was_deleted_as_what_had_come() -> None:
    scans = [totals(n * DAY_MS, eligible_objects=10, eligible_bytes=100 << 30) for n in range(1, 4)]
    runs = [run_entry(DAY_MS + 1, 5), run_entry(2 * DAY_MS, 5), run_entry(9 * DAY_MS, 50), run_entry(DAY_MS, None)]
    found = forecast(scans, runs, 30, 1.0)
    assert found is not None
    assert (found.from_ms, found.to_ms, found.objects_day, found.bytes_day) == (DAY_MS, 3 * DAY_MS, 5, 50)
    assert found.week_bytes == 30 + 7 * 50
    assert forecast(scans[:1], runs, 0, 1.0) is None
    assert forecast([], [], 0, 1.0) is None
    assert forecast([totals(0), totals(3_000_000)], [], 0, 1.0) is None  # less than an hour


def test_a_forecast_is_based_on_the_last_week() -> None:
    scans = [totals(0, eligible_bytes=0), *(totals(n * DAY_MS, eligible_bytes=n * 7) for n in range(20, 31))]
    found = forecast(scans, [], 0, 1.0)
    assert found is not None
    assert (found.from_ms, found.bytes_day) == (23 * DAY_MS, 7)


def test_what_was_saved_is_all_that_the_runs_deleted() -> None:
    assert saved([run_entry(0, None), run_entry(5, 0)], 1.0) is None
    found = saved([run_entry(7_000, 1 << 30), run_entry(5_000, 0), run_entry(3_000, 1)], 2.0)
    assert found is not None
    assert (found.since_ms, found.runs, found.objects) == (3_000, 2, (1 << 30) + 1)
    assert found.dollars_month == pytest.approx(20.0)


def test_what_overlapping_runs_deleted_is_an_upper_bound() -> None:
    one, other = run_entry(1_000, 5), run_entry(1_000, 4)
    for runs, at_most in (([one], False), ([one, other], True)):
        found = saved(runs, 1.0)
        assert found is not None
        assert found.at_most == at_most


@given(scan_rows(), st.integers(-1, 600))
def test_what_was_deleted_since_the_scan_is_in_no_bar(rows: list[ScanRow], m: int) -> None:
    held = [r for r in rows if r.epoch is not None and r.epoch > m]
    assert rows_left(rows, m, 0.0) == held
    assert rows_left(rows, m, 1.0) == rows
    half = rows_left(rows, m, 0.5)
    assert [r for r in half if r in held] == held
    assert sum(r.objects for r in half) <= sum(r.objects for r in rows)


def test_of_very_many_sweeps_the_newest_are_marked() -> None:
    runs = [run_entry(n * 1_000, 1) for n in range(300)]
    assert [s.at_ms for s in sweeps_since(runs, 50_000)] == [n * 1_000 for n in range(100, 300)]
    assert len(sweeps_since(runs, 299_000)) == 1
