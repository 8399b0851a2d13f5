"""What the report gathers: from journals, scans and records, with what is missing or damaged named and not raised."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from l0gc.collect.gc_steps import VACUUM
from l0gc.collect.pause import set_pause
from l0gc.collect.record import summary_key, write_summary
from l0gc.errors import NotInitialisedError, UsageError
from l0gc.inspect.report import facts as facts_of
from l0gc.inspect.report.facts import (
    SHOWN_BEHIND,
    SHOWN_TOPICS,
    ReportFacts,
    garbage_of,
    gather,
    lag_of,
    lags,
    read_findings,
)
from l0gc.inspect.report.page import render
from l0gc.inspect.report.series import saved, sweeps_since
from l0gc.inspect.status import status
from l0gc.inspect.verify.findings import Kind, Suspect, finding_of
from l0gc.keys import PUBLISHED_WATERMARK, SCANS, journal_log
from l0gc.streamlog.cluster import Handles
from l0gc.streamlog.delete_records import delete_records
from l0gc.streamlog.give_up import give_up
from l0gc.streamlog.housekeep import housekeep
from l0gc.watermark.publication import PublishedWatermark, publish
from l0gc.watermark.scans import ScanRow, ScanSnapshot, write_scan
from tests.inspect.report.support import run_entry, summary, totals, unit
from tests.support.memory_store import external_cluster, memory_cluster, publish_m, store_of, topic_in_memory
from tests.support.verify import lift, put

NOW = 1_700_000_000_000


def gathered(cluster: Handles) -> ReportFacts:
    """What another process sees; it changes nothing, and what it sees can be shown."""
    before = dict(store_of(cluster).objects)
    facts = gather(memory_cluster(store_of(cluster), seed=9, bootstrap=False), "s3://b/p/")
    assert store_of(cluster).objects == before
    assert "</html>" in render(facts)
    return facts


def scan(cluster: Handles, taken_ms: int, rows: list[ScanRow], **changes: object) -> str:
    known = totals(taken_ms, cluster_id=cluster.controller.snapshot().cluster_id, **changes)
    return write_scan(cluster.store, cluster.runtime, ScanSnapshot(known, rows))


def test_an_empty_cluster_has_nothing_to_report() -> None:
    facts = gathered(memory_cluster())
    assert (facts.cluster_epoch, facts.watermark, facts.published_ms, facts.lag_epochs) == (0, -1, None, None)
    assert (facts.garbage, facts.epochs, facts.trend, facts.runs, facts.behind) == (None, [], [], [], [])
    assert (facts.errors, facts.notes, facts.held_back_by, facts.by_topic) == ([], [], [], [])
    assert (facts.as_of_ms, facts.url) == (NOW, "s3://b/p/")


def test_without_a_cluster_there_is_no_report() -> None:
    with pytest.raises(NotInitialisedError, match="l0gc init"):
        gather(memory_cluster(bootstrap=False), "s3://b/")


def test_lag_and_what_holds_m_come_from_the_journals() -> None:
    cluster = topic_in_memory(3)
    put(cluster, {0: 1, 1: 1})
    for _ in range(4):
        cluster.controller.advance()
        housekeep(cluster)
    publish_m(cluster, 0, at_ms=NOW - 60_000)
    facts = gathered(cluster)
    assert (facts.cluster_epoch, facts.watermark, facts.computable_watermark, facts.lag_epochs) == (5, 0, 0, 5)
    assert [(p.partition, p.gc_epoch, p.lag_epochs, p.unreconciled_records) for p in facts.behind] == [
        (0, 0, 5, 1), (1, 0, 5, 1), (2, 3, 2, 0),
    ]  # fmt: skip
    assert "l0gc reconcile" in facts.behind[0].reason
    assert [(h.partition, h.gc_epoch) for h in facts.held_back_by] == [(0, 0), (1, 0)]
    assert facts.held_partitions == 2
    assert facts.next.startswith("l0gc reconcile")


def test_holes_are_listed_from_the_log_start_on_and_all_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = topic_in_memory(3)
    lost = [put(cluster, {0: 2, 2: 4}) for _ in range(2)]
    put(cluster, {0: 1, 1: 1, 2: 1})
    assert gathered(cluster).given_up == []
    for key in lost:
        cluster.store.delete([key])
    for partition, records in ((2, (4, 7)), (0, (0, 1)), (2, (0, 3))):
        give_up(cluster, "events", partition, records, "ann")
    delete_records(cluster, "events", 2, before_offset=1)
    facts = gathered(cluster)
    assert [(h.topic, h.partition, h.first_offset, h.last_offset, h.records) for h in facts.given_up] == [
        ("events", 0, 0, 1, 2), ("events", 2, 1, 3, 3), ("events", 2, 4, 7, 4),
    ]  # fmt: skip
    assert (facts.holes, facts.lost_records) == (3, 9)
    monkeypatch.setattr(facts_of, "SHOWN_HOLES", 2)
    few = gathered(cluster)
    assert (few.given_up, few.holes) == (facts.given_up[:2], 3)


def test_totals_come_by_topic_those_with_the_most_unreconciled_records_first() -> None:
    cluster = memory_cluster()
    for name, journals in (("idle", 1), ("busy", 2)):
        cluster.controller.create_topic(name, 4, journals)
    put(cluster, {0: 3, 3: 4}, "busy")
    lift(cluster, "busy")
    put(cluster, {1: 2, 2: 1}, "busy")
    facts = gathered(cluster)
    assert (facts.records, facts.unreconciled_records) == (10, 3)
    assert [
        (t.topic, t.partitions, t.journals, t.records, t.unreconciled_records, t.l1_objects, t.gc_epoch, t.lag_epochs)
        for t in facts.by_topic
    ] == [("busy", 4, 2, 10, 3, 2, 1, 1), ("idle", 4, 1, 0, 0, 0, 0, 2)]
    for n in range(SHOWN_TOPICS):
        cluster.controller.create_topic(f"t-{n}", 1)
    facts = gathered(cluster)
    assert (len(facts.by_topic), facts.topics) == (SHOWN_TOPICS, SHOWN_TOPICS + 2)
    assert "And 2 others with fewer unreconciled records" in render(facts)


def test_the_page_shows_the_partitions_with_the_most_lag_and_counts_the_others() -> None:
    found, others, lag = lags(200, [unit("t", {5: 3, 7: 20}, shown=4), unit("u", {6: 1, 9: 2}, shown=3)])
    assert [(p.topic, p.gc_epoch, p.lag_epochs) for p in found] == [
        ("t", 5, 195), ("t", 5, 195), ("t", 5, 195), ("u", 6, 194), ("t", 7, 193), ("u", 9, 191), ("u", 9, 191),
    ]  # fmt: skip
    assert (others, lag) == (19, 193)
    assert lags(200, []) == ([], 0, 0)

    cluster = memory_cluster()
    cluster.controller.create_topic("many", 100)
    facts = gathered(cluster)
    assert (len(facts.behind), facts.others_behind, facts.others_lag) == (SHOWN_BEHIND, 100 - SHOWN_BEHIND, 1)


def test_garbage_is_what_the_newest_scan_saw_by_the_m_of_now_less_what_was_deleted_since() -> None:
    rows = [ScanRow(1, 4, 4 << 30, 7), ScanRow(2, 2, 2 << 30, 5), ScanRow(3, 1, 1 << 30, 9), ScanRow(None, 1, 1, 1)]
    runs = [run_entry(10_000, 50), run_entry(30_500, 1), run_entry(40_000, None)]
    g = garbage_of(ScanSnapshot(totals(30_500, unparsable=1), rows), 2, runs, 0.5)
    assert (g.eligible_objects, g.eligible_bytes, g.oldest_eligible_ms) == (6, 6 << 30, 5)
    assert (g.held_objects, g.held_bytes, g.oldest_held_ms, g.held_dollars_month) == (1, 1 << 30, 9, 0.5)
    assert (g.deleted_objects, g.left_objects, g.left_bytes) == (1, 5, (6 << 30) - 10)
    assert g.dollars_month == pytest.approx(3.0)
    gone = garbage_of(ScanSnapshot(totals(5_000), rows), 2, runs, 0.5)
    assert (gone.deleted_objects, gone.left_objects) == (51, 0)


def test_objects_that_the_gc_of_a_scan_deleted_are_not_garbage() -> None:
    rows = [ScanRow(1, 4, 40, 7)]
    began, swept = run_entry(10_000, 4), summary(31_000, 4)  # named when gc began, before its own scan
    assert began.summary is not None
    of_gc = msgspec.structs.replace(began.summary, started_ms=swept.started_ms)
    g = garbage_of(ScanSnapshot(totals(30_500), rows), 2, [replace(began, summary=of_gc)], 0.5)
    assert (g.deleted_objects, g.left_objects, g.left_bytes) == (4, 0, 0)


def test_a_vacuums_objects_were_not_l0_garbage_and_count_as_saved() -> None:
    sweep = run_entry(40_000, 1)
    assert sweep.summary is not None
    vacuum = replace(sweep, summary=msgspec.structs.replace(sweep.summary, command=VACUUM, deleted=3, bytes=30))
    g = garbage_of(ScanSnapshot(totals(30_500), [ScanRow(1, 4, 40, 7)]), 2, [sweep, vacuum], 0.5)
    assert (g.deleted_objects, g.left_objects) == (1, 3)
    assert len(sweeps_since([sweep, vacuum], 0)) == 1
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
    assert [(b.first_epoch, b.objects, b.eligible) for b in facts.epochs] == [(0, 5, True), (3, 1, False)]
    assert [t.eligible_objects for t in facts.trend] == [5, 5, 5]
    assert ([len(facts.runs), facts.runs_total], [b.objects for b in facts.deleted]) == ([20, 25], list(range(25)))
    assert facts.garbage is not None
    assert facts.garbage.left_objects == 5
    assert facts.saved is not None
    assert (facts.saved.runs, facts.saved.objects, facts.sweeps) == (24, sum(range(25)), [])
    assert (facts.verdict.state, facts.verdict.cause) == ("healthy", "")


def test_where_the_log_has_forgotten_the_oldest_held_object_says_how_long_m_has_stood() -> None:
    known = msgspec.structs.replace(status(memory_cluster()), lag_ms=60_000, lag_at_least=True)
    rows = [ScanRow(0, 1, 1, 1), ScanRow(1, 1, 1, known.as_of_ms - 90 * 60_000)]
    garbage = garbage_of(ScanSnapshot(totals(NOW), rows), 0, [], 1.0)
    assert lag_of(known, garbage) == 90 * 60_000
    assert lag_of(msgspec.structs.replace(known, lag_at_least=False), garbage) == 60_000
    assert lag_of(known, None) == 60_000


def test_m_that_was_never_published_leaves_everything_held() -> None:
    cluster = memory_cluster()
    scan(cluster, NOW, [ScanRow(0, 5, 50, 1)], eligible_objects=5)
    facts = gathered(cluster)
    assert facts.garbage is not None
    assert (facts.garbage.eligible_objects, facts.garbage.held_objects) == (0, 5)
    assert "no M is published" in render(facts)


def test_a_damaged_journal_scan_or_record_is_named_and_the_rest_is_shown() -> None:
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
    assert [broken in e for e in facts.errors] == [True]
    assert "damaged_journal" in [c.cause for c in facts.causes]
    assert [w.cause for w in facts.warnings] == ["damaged_record"]
    assert "cannot be read" in facts.behind[0].reason
    assert [(t.topic, t.unread) for t in facts.by_topic] == [("events", 1), ("others", 0)]
    assert facts.garbage is not None
    assert facts.garbage.eligible_objects == 5
    assert [damaged in facts.notes[1], "no run is shown" in facts.notes[0]] == [True, True]
    assert "1 scan snapshot" in facts.notes[2]


@pytest.mark.parametrize(("cause", "remedy"), [("foreign_watermark", "remove"), ("damaged_watermark", "restore")])
def test_a_published_watermark_that_is_none_to_go_by_is_a_cause_on_the_page(cause: str, remedy: str) -> None:
    cluster = memory_cluster()
    publish_m(cluster, 0, at_ms=NOW - 60_000)
    if cause == "damaged_watermark":
        store_of(cluster).put(PUBLISHED_WATERMARK, b"no watermark")
    else:
        published = PublishedWatermark("another", 0, 1, NOW)
        store_of(cluster).objects.pop(PUBLISHED_WATERMARK)
        publish(cluster.store, cluster.runtime, published)
    facts = gathered(cluster)
    assert (facts.watermark, facts.published_ms, facts.lag_epochs) == (-1, None, None)
    assert [c.cause for c in facts.causes] == [cause]
    assert facts.next.startswith(f"{remedy} l0gc/watermarks/published.json")
    assert cause in render(facts)


def test_only_scans_that_cannot_be_read_are_as_none() -> None:
    cluster = memory_cluster()
    store_of(cluster).put(f"{SCANS}{NOW:015}-00000000-0000-4000-8000-000000000000", b"no scan")
    facts = gathered(cluster)
    assert facts.garbage is None
    assert facts.epochs == []


def test_a_pause_is_shown() -> None:
    cluster = memory_cluster()
    set_pause(cluster.store, "disk audit", "ann")
    facts = gathered(cluster)
    assert facts.paused is not None
    assert "disk audit" in render(facts)


def test_an_external_log_is_known_by_what_was_published_and_by_the_scan() -> None:
    cluster = external_cluster()
    facts = gathered(cluster)
    assert (facts.external_log, facts.cluster_epoch) == (True, -1)
    assert (facts.lag_epochs, facts.computable_watermark) == (None, None)
    publish_m(cluster, 40, 47, NOW - 60_000)
    scan(cluster, NOW, [ScanRow(40, 5, 50, 1), ScanRow(41, 1, 10, 1, "a/b/<i>/3", 2)])
    facts = gathered(cluster)
    assert (facts.cluster_epoch, facts.watermark, facts.lag_epochs) == (47, 40, 7)
    assert [(h.topic, h.partition, h.gc_epoch) for h in facts.held_back_by] == [("a/b/<i>", 3, 40)]
    assert facts.next.startswith("l0gc compute-watermark --reports")
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
