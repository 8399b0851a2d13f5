"""The facts of the report: missing or damaged ones are named and not raised, sums are exact, and the verdict shows
whether an operator must act, and why.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from l0gc.collect.gc_steps import VACUUM
from l0gc.collect.plan import OBJECTS
from l0gc.collect.record import Attempt, summary_key, write_summary
from l0gc.errors import UsageError
from l0gc.inspect import causes as codes
from l0gc.inspect.overview import Cause
from l0gc.inspect.overview_reader import garbage_of, read_overview
from l0gc.inspect.report import facts as facts_of
from l0gc.inspect.report.facts import (
    HEALTHY,
    LATE_MS,
    MOST_DAYS,
    MOST_POINTS,
    NEEDS_YOU,
    RUNS_ONE_BY_ONE,
    SHOWN_BEHIND,
    SHOWN_TOPICS,
    WAITING,
    Report,
    Verdict,
    deleted_bars,
    epoch_bars,
    forecast,
    gather,
    lags,
    read_findings,
    rows_left,
    saved,
    sweeps_of,
    thinned,
    trend_points,
    verdict,
)
from l0gc.inspect.report.page import render
from l0gc.inspect.verify.findings import Kind, Suspect, VerifyResult, finding_of
from l0gc.keys import SCANS, journal_log
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.delete_records import delete_records
from l0gc.streamlog.housekeep import housekeep
from l0gc.streamlog.level_one.give_up import give_up
from l0gc.watermark.scans import ScanRow, ScanSnapshot, write_scan
from tests.inspect.report.support import DAY_MS, run_entry, scan_rows, summary, totals, unit
from tests.support.memory_store import external_cluster, memory_cluster, publish_m, store_of, topic_in_memory
from tests.support.verify import lift, put

NOW = 1_700_000_000_000
HOUR = 3_600_000


def gathered(cluster: ClusterHandles) -> Report:
    """Gather and render the facts in another process, and check that this changes nothing."""
    before = dict(store_of(cluster).objects)
    facts = gather(memory_cluster(store_of(cluster), seed=9, bootstrap=False), "s3://b/p/")
    assert store_of(cluster).objects == before
    assert "</html>" in render(facts)
    return facts


def scan(cluster: ClusterHandles, taken_ms: int, rows: list[ScanRow], **changes: object) -> str:
    known = totals(taken_ms, cluster_id=cluster.controller.snapshot().cluster_id, **changes)
    return write_scan(cluster.store, cluster.runtime, ScanSnapshot(known, rows))


def test_an_empty_cluster_has_nothing_to_report() -> None:
    facts = gathered(memory_cluster())
    o = facts.overview
    assert (o.cluster_epoch, o.watermark, o.published_ms) == (0, -1, -1)
    assert (o.garbage, facts.epochs, facts.trend, facts.runs, facts.behind) == (None, [], [], [], [])
    assert (o.errors, o.notes, o.held_back_by, facts.by_topic) == ([], [], [], [])
    assert (o.as_of_ms, facts.url) == (NOW, "s3://b/p/")


def test_holes_are_listed_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = topic_in_memory(3)
    lost = [put(cluster, {0: 2, 2: 4}) for _ in range(2)]
    put(cluster, {0: 1, 1: 1, 2: 1})
    assert gathered(cluster).given_up == []
    for key in lost:
        cluster.store.delete([key])
    for key in lost:
        give_up(cluster, "ann", objects=[key])
    delete_records(cluster, "events", 2, before_offset=1)
    facts = gathered(cluster)
    o = facts.overview
    assert [(h.topic, h.partition, h.first_offset, h.last_offset, h.records) for h in facts.given_up] == [
        ("events", 0, 0, 1, 2), ("events", 0, 2, 3, 2), ("events", 2, 0, 3, 4), ("events", 2, 4, 7, 4),
    ]  # fmt: skip
    assert (o.holes, o.lost_records) == (4, 12)
    monkeypatch.setattr(facts_of, "SHOWN_HOLES", 2)
    few = gathered(cluster)
    assert (few.given_up, few.overview.holes) == (facts.given_up[:2], 4)


def test_totals_come_by_topic_those_with_the_most_unreconciled_records_first() -> None:
    cluster = memory_cluster()
    for name, journals in (("idle", 1), ("busy", 2)):
        cluster.controller.create_topic(name, 4, journals)
    put(cluster, {0: 3, 3: 4}, "busy")
    lift(cluster, "busy")
    put(cluster, {1: 2, 2: 1}, "busy")
    facts = gathered(cluster)
    o = facts.overview
    assert (o.records, o.unreconciled_records) == (10, 3)
    assert [
        (t.topic, t.partitions, t.journals, t.records, t.unreconciled_records, t.l1_objects, t.gc_epoch)
        for t in facts.by_topic
    ] == [("busy", 4, 2, 10, 3, 2, 1), ("idle", 4, 1, 0, 0, 0, 0)]
    for n in range(SHOWN_TOPICS):
        cluster.controller.create_topic(f"t-{n}", 1)
    facts = gathered(cluster)
    o = facts.overview
    assert (len(facts.by_topic), o.topics) == (SHOWN_TOPICS, SHOWN_TOPICS + 2)
    assert "And 2 others with fewer unreconciled records" in render(facts)


def test_the_page_lists_the_partitions_with_the_most_lag() -> None:
    found, others, lag = lags(200, [unit("t", {5: 3, 7: 20}, shown=4), unit("u", {6: 1, 9: 2}, shown=3)])
    assert [(p.topic, p.gc_epoch) for p in found] == [
        ("t", 5), ("t", 5), ("t", 5), ("u", 6), ("t", 7), ("u", 9), ("u", 9),
    ]  # fmt: skip
    assert (others, lag) == (19, 193)
    assert lags(200, []) == ([], 0, 0)

    cluster = memory_cluster()
    cluster.controller.create_topic("many", 100)
    facts = gathered(cluster)
    assert (len(facts.behind), facts.others_behind, facts.others_lag) == (SHOWN_BEHIND, 100 - SHOWN_BEHIND, 1)


def test_garbage_is_the_newest_scan_below_m_minus_deletions() -> None:
    rows = [ScanRow(1, 4, 4 << 30, 7), ScanRow(2, 2, 2 << 30, 5), ScanRow(3, 1, 1 << 30, 9), ScanRow(None, 1, 1, 1)]
    runs = [run_entry(10_000, 50), run_entry(30_500, 1), run_entry(40_000, None)]
    g = garbage_of(ScanSnapshot(totals(30_500, unparsable=1), rows), 2, runs, 0.5)
    assert (g.eligible_objects, g.eligible_bytes, g.oldest_eligible_ms) == (6, 6 << 30, 5)
    assert (g.held_objects, g.held_bytes, g.oldest_held_ms, g.held_dollars_month) == (1, 1 << 30, 9, 0.5)
    assert (g.deleted_objects, g.left_objects, g.left_bytes) == (1, 5, (6 << 30) - 10)
    assert g.dollars_month == pytest.approx(3.0)
    gone = garbage_of(ScanSnapshot(totals(5_000), rows), 2, runs, 0.5)
    assert (gone.deleted_objects, gone.left_objects) == (51, 0)


def test_a_vacuums_objects_were_not_l0_garbage_and_count_as_saved() -> None:
    sweep = run_entry(40_000, 1)
    assert sweep.summary is not None
    vacuum = msgspec.structs.replace(
        sweep, summary=msgspec.structs.replace(sweep.summary, command=VACUUM, objects=3, bytes=30)
    )
    g = garbage_of(ScanSnapshot(totals(30_500), [ScanRow(1, 4, 40, 7)]), 2, [sweep, vacuum], 0.5)
    assert (g.deleted_objects, g.left_objects) == (1, 3)
    assert len(sweeps_of([sweep, vacuum])) == 1
    found = saved([sweep, vacuum], 1.0)
    assert found is not None
    assert (found.objects, found.bytes) == (4, 40)


def test_scans_and_runs_become_bars_and_a_trend() -> None:
    cluster = memory_cluster()
    publish_m(cluster, 0, at_ms=NOW - 60_000)
    for n in range(3):
        scan(cluster, NOW - n * 1000, [ScanRow(0, 5, 50, 1), ScanRow(3, 1, 10, 1, "t/0", 1)], eligible_objects=5)
    for n in range(25):
        write_summary(store_of(cluster), summary(NOW - 10**7 + n * 1000, n, n))
    facts = gathered(cluster)
    o = facts.overview
    assert [(b.first_epoch, b.objects, b.eligible) for b in facts.epochs] == [(0, 5, True), (3, 1, False)]
    assert [t.objects for t in facts.trend] == [5, 5, 5]
    assert ([len(facts.runs), o.runs_total], [b.objects for b in facts.deleted]) == (
        [20, 25],
        list(range(25)),
    )
    assert o.garbage is not None
    assert o.garbage.left_objects == 5
    assert facts.saved is not None
    assert (facts.saved.runs, facts.saved.objects) == (24, sum(range(25)))
    assert (facts.verdict.state, facts.verdict.cause) == ("healthy", "")


def test_m_that_was_never_published_leaves_everything_held() -> None:
    cluster = memory_cluster()
    scan(cluster, NOW, [ScanRow(0, 5, 50, 1)], eligible_objects=5)
    facts = gathered(cluster)
    o = facts.overview
    assert o.garbage is not None
    assert (o.garbage.eligible_objects, o.garbage.held_objects) == (0, 5)
    assert "no M is published" in render(facts)


def test_a_damaged_journal_scan_or_record_is_named() -> None:
    cluster = topic_in_memory(2)
    cluster.controller.create_topic("others", 2)
    housekeep(cluster, barrier=True)
    publish_m(cluster, 0, at_ms=NOW - 60_000)
    store = store_of(cluster)
    broken = min(k for k in store.objects if k.startswith(journal_log(0)))
    store.objects[broken].body = b"not an entry"
    scan(cluster, NOW - 5, [ScanRow(0, 5, 50, 1)])
    damaged = scan(cluster, NOW, [ScanRow(0, 6, 60, 1)])
    store.objects[damaged].body = b"no scan"
    store.put(summary_key("20260131T235959Z-0123abcd"), b"no record")
    facts = gathered(cluster)
    o = facts.overview
    assert [broken in e for e in o.errors] == [True]
    assert "damaged_journal" in [c.cause for c in o.causes]
    assert [w.cause for w in o.warnings] == ["damaged_record"]
    assert "cannot be read" in facts.behind[0].reason
    assert [(t.topic, t.unread) for t in facts.by_topic] == [("events", 1), ("others", 0)]
    assert o.garbage is not None
    assert o.garbage.eligible_objects == 5
    assert damaged in o.notes[0]
    assert "1 scan snapshot" in o.notes[1]


def test_only_scans_that_cannot_be_read_are_as_none() -> None:
    cluster = memory_cluster()
    store_of(cluster).put(f"{SCANS}{NOW:015}-00000000-0000-4000-8000-000000000000", b"no scan")
    facts = gathered(cluster)
    o = facts.overview
    assert o.garbage is None
    assert facts.epochs == []


def test_an_external_log_is_described_by_its_publication_and_scan() -> None:
    cluster = external_cluster()
    facts = gathered(cluster)
    o = facts.overview
    assert (o.external_log, o.cluster_epoch) == (True, -1)
    assert o.computable_watermark is None
    publish_m(cluster, 40, 47, NOW - 60_000)
    scan(cluster, NOW, [ScanRow(40, 5, 50, 1), ScanRow(41, 1, 10, 1, "a/b/<i>/3", 2)])
    facts = gathered(cluster)
    o = facts.overview
    assert (o.cluster_epoch, o.watermark, o.lag_epochs) == (47, 40, 7)
    assert [(h.topic, h.partition, h.gc_epoch) for h in o.held_back_by] == [("a/b/<i>", 3, 40)]
    assert o.next == "l0gc sweep"
    assert "Partitions that are behind" not in render(facts)


def test_findings_are_what_verify_prints_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    found = finding_of(Suspect(Kind.L1_MISSING, key="k"))
    printed = {
        "findings": [msgspec.structs.asdict(found)],
        "total": 7,
        "deep": True,
        "cluster_epoch": 3,
        "watermark": 2,
        "other": 1,
    }
    path.write_bytes(msgspec.json.encode(printed))
    read = read_findings(path)
    assert (read.findings, read.total, read.deep, read.cluster_epoch) == ([found], 7, True, 3)
    for body in (b"", b"{}", b"[1]", b"\xff", b"[" * 100_000):
        path.write_bytes(body)
        with pytest.raises(UsageError, match=r"f\.json is not what l0gc verify --json prints"):
            read_findings(path)


def test_shadow_deletions_are_counted_once() -> None:
    cluster = memory_cluster()
    assert gathered(cluster).shadow is None
    for n in range(3):  # the next run contains all of the last one, which was partial
        s = summary(NOW - 3 * DAY_MS + n, 100, n)
        write_summary(
            store_of(cluster), msgspec.structs.replace(s, run_id=f"shadow/{s.run_id}", limited_by=OBJECTS * (n == 2))
        )
    store_of(cluster).clock.ms = NOW
    facts = gathered(cluster)
    assert (facts.saved, facts.runs) == (None, [])
    assert facts.shadow is not None
    said = "200 objects (2.0 KiB) would have gone in 3 d, by 2 shadow runs; "
    assert facts.shadow.sentence == f"{said}l0gc verify --shadow shows whether one was needed"
    assert facts.shadow.sentence in render(facts)
    found = VerifyResult(1, 0, False, shadow=msgspec.structs.replace(facts.shadow, sentence=f"{said}none was needed"))
    page = gather(cluster, "s3://b/p/", findings=found)
    assert f"<p>{said}none was needed.</p>" in render(page)
    damaged = f"l0gc/runs/shadow/{summary(NOW - 3 * DAY_MS, 0).run_id}/run.json"
    cluster.store.put(damaged, b"x")
    notes = gathered(cluster).overview.notes
    assert any(damaged in n and "shadow runs" in n for n in notes)


# -- bars and lines ------------------------------------------------------------------------------------------------------


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


def test_a_bar_names_its_holder_and_excludes_foreign_keys() -> None:
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


def test_a_sweep_leaves_the_previous_scan_minus_its_deletions() -> None:
    scans = [totals(10, eligible_objects=9, eligible_bytes=90), totals(30, eligible_objects=4, eligible_bytes=40)]
    points = trend_points(scans, [summary(5, 1), summary(20, 7), summary(25, 5)])
    assert [(p.ms, p.objects, p.bytes, p.deleted_objects) for p in points] == [
        (10, 9, 90, 0), (20, 2, 20, 7), (25, 0, 0, 5), (30, 4, 40, 0),
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
    assert forecast([totals(0), totals(3_000_000)], [], 0, 1.0) is None  # they span less than an hour


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
    sweeps = sweeps_of([run_entry(n * 1_000, 1) for n in range(300)])
    marked = [p.ms for p in trend_points([totals(0), totals(50_500)], sweeps) if p.deleted_objects]
    assert marked == [n * 1_000 for n in range(100, 300)]


# -- the verdict ---------------------------------------------------------------------------------------------------------

KNOWN = msgspec.structs.replace(read_overview(memory_cluster()), watermark=5, lag_ms=HOUR)
GARBAGE = garbage_of(ScanSnapshot(totals(0), []), 0, [], 1.0)


def of(
    *causes: str,
    warnings: tuple[str, ...] = (),
    findings: int = 0,
    left: tuple[int, int] | None = (0, 0),
    held_objects: int = 0,
    since_sweep_ms: int | None = HOUR,
    **changes: object,
) -> Verdict:
    found = [Cause(c, f"what is with {c}", "l0gc gc") for c in causes]
    warned = [Cause(c, f"what is with {c}", "x") for c in warnings]
    known = {
        "garbage": left
        and msgspec.structs.replace(GARBAGE, left_objects=left[0], left_bytes=left[1], held_objects=held_objects),
        "runs": [] if since_sweep_ms is None else [run_entry(KNOWN.as_of_ms - since_sweep_ms, 1)],
    }
    o = msgspec.structs.replace(KNOWN, causes=found, warnings=warned, **known, **changes)
    return verdict(o, VerifyResult(1, 0, False, total=findings))


WAITS = {codes.UNRECONCILED_DATA, codes.IDLE_WINDOW, codes.NOT_COMPUTED, codes.PAUSED}
WARNS = {codes.LOCAL_CLOCK, codes.DAMAGED_RECORD}


@pytest.mark.parametrize("cause", sorted(set(codes.CODES) - WARNS))
def test_what_the_next_runs_end_waits_and_everything_else_needs_a_person(cause: str) -> None:
    found = of(cause)
    assert (found.state, found.cause) == (WAITING if cause in WAITS else NEEDS_YOU, cause)
    assert f"what is with {cause}." in found.sentence


def test_acute_causes_come_first() -> None:
    found = of(codes.UNRECONCILED_DATA, codes.DAMAGED_OBJECT)
    assert found == Verdict(NEEDS_YOU, "what is with damaged_object. And 1 other cause, below.", codes.DAMAGED_OBJECT)


def test_a_cause_waiting_for_a_day_needs_a_person_unless_paused() -> None:
    late = LATE_MS + HOUR
    found = of(codes.UNRECONCILED_DATA, lag_ms=late)
    assert (found.state, found.sentence) == (NEEDS_YOU, "M has stood for 25 h: what is with unreconciled.")
    assert of(codes.PAUSED, lag_ms=late).state == WAITING
    assert of(codes.PAUSED, lag_ms=late).sentence.startswith("for l0gc resume: ")


def test_a_finding_and_a_warning_need_a_person_though_nothing_is_held() -> None:
    assert of(findings=2).sentence.startswith("l0gc verify has 2 findings")
    assert of(findings=2).state == NEEDS_YOU
    warned = of(warnings=(codes.LOCAL_CLOCK,))
    assert (warned.state, warned.sentence) == (NEEDS_YOU, "nothing is held back, but what is with local_clock.")


@pytest.mark.parametrize(
    ("changes", "state", "sentence"),
    [
        ({}, HEALTHY, "no garbage is left; L0 is empty."),
        (
            {"unreconciled_records": 5},
            HEALTHY,
            "no garbage is left; L0 was empty when it was listed, and 5 records in it wait for l0gc reconcile.",
        ),
        (
            {"left": (1, 1), "attempts": [Attempt("sweep", 0, "", shadow=True)]},
            WAITING,
            "for sweeps that delete: 1 object (1 B) may go, and sweeps are shadow runs.",
        ),
        ({"held_objects": 3}, HEALTHY, "no garbage is left; 3 objects may still be needed."),
        ({"left": (2, 2048)}, HEALTHY, "the next sweep may delete 2 objects (2.0 KiB)."),
        (
            {"left": None},
            HEALTHY,
            "M follows the cluster epoch. What the bucket holds is unknown, since it was never listed.",
        ),
        ({"watermark": -1}, WAITING, "for the first M: none is published yet, so nothing may go."),
        (
            {"left": (1, 1), "since_sweep_ms": None},
            WAITING,
            "for l0gc sweep: 1 object (1 B) may go, and none is on record.",
        ),
        (
            {"left": (1, 1), "since_sweep_ms": 3 * LATE_MS},
            WAITING,
            "for l0gc sweep: 1 object (1 B) may go, and the last one began 3 d ago.",
        ),
    ],
)
def test_without_a_cause_the_garbage_decides(changes: dict[str, object], state: str, sentence: str) -> None:
    assert of(**changes) == Verdict(state, sentence)  # type: ignore[arg-type]
