"""The pause: every sweep obeys it, before its start and during its run; the first pause is kept, and doubt counts as a
pause.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from l0gc.collect.deletion import Pause, PauseWatch, clear_pause, describe_pause, read_pause, set_pause
from l0gc.collect.history import list_runs
from l0gc.collect.record import DELETED, LEFT
from l0gc.collect.run import SEGMENTS_IN_HAND
from l0gc.collect.skip_scan import RunCounts
from l0gc.collect.sweep import SweepRun
from l0gc.errors import AmbiguousWriteError, PausedError, StoreError
from l0gc.keys import PAUSED, RUNS
from l0gc.operations import Sweep
from l0gc.storage.objectstore import DeleteFailure, UnfinishedUpload
from tests.collect.test_sweep_local import (
    a_cluster,
    expected_garbage,
    level_zero,
    numbers,
    on_record,
    pages_of,
    sweep,
    swept_by_many,
)
from tests.support.memory_store import Call, MemoryStore, failing, lose_reply, once, store_of


def test_a_pause_records_who_why_and_since_when_by_the_stores_clock() -> None:
    store = MemoryStore()
    pause, new = set_pause(store, "disk audit", "ann@ops1")
    assert new
    assert pause == read_pause(store) == Pause("disk audit", "ann@ops1", store.clock.ms)
    assert describe_pause(pause) == "disk audit (ann@ops1, since 2023-11-14 22:13Z)"


def test_a_reading_that_ends_late_does_not_replace_a_newer_one() -> None:
    store = MemoryStore()
    watch = PauseWatch(store, store.clock, threading.Event())

    def read_later() -> None:
        store.clock.sleep(10)
        assert not watch.is_set()

    store.fault = once(read_later, "get")
    assert not watch.is_set()
    reads = store.requests["get"]
    assert not watch.is_set(5)
    assert store.requests["get"] == reads


def test_a_slow_reading_is_as_old_as_its_beginning() -> None:
    store = MemoryStore()
    watch = PauseWatch(store, store.clock, threading.Event())
    store.fault = once(lambda: store.clock.sleep(5), "get")
    assert not watch.is_set()
    set_pause(store, "disk audit", "ann")
    assert watch.is_set(5)


def test_the_first_pause_is_kept() -> None:
    store = MemoryStore()
    first, _ = set_pause(store, "disk audit", "ann")
    store.clock.sleep(60)
    assert set_pause(store, "another reason", "bob") == (first, False)
    assert read_pause(store) == first


def test_clearing_a_pause_does_not_report_a_newer_pause() -> None:
    store = MemoryStore()
    first, _ = set_pause(store, "disk audit", "ann")
    store.fault = once(lambda: store.delete([PAUSED]), "get")  # bob has just learned that a pause exists
    store.clock.sleep(60)
    second, new = set_pause(store, "another reason", "bob")
    assert new
    assert first != second == read_pause(store)


def test_a_pause_whose_reply_was_lost_is_reported_as_set() -> None:
    store = MemoryStore(fault=lose_reply(PAUSED))
    pause, new = set_pause(store, "disk audit", "ann")
    assert new
    assert read_pause(store) == pause


def test_a_pause_that_could_not_be_set_is_not_reported_as_set() -> None:
    store = MemoryStore(fault=failing(AmbiguousWriteError("500"), "put_if_absent"))
    with pytest.raises(StoreError, match="not paused: 500"):
        set_pause(store, "disk audit", "ann")


def test_a_pause_that_is_cleared_is_reported_and_is_gone() -> None:
    store = MemoryStore()
    pause, _ = set_pause(store, "disk audit", "ann")
    assert clear_pause(store) == pause
    assert read_pause(store) is None
    assert clear_pause(store) is None


def test_a_pause_that_stays_is_not_reported_as_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    set_pause(store, "disk audit", "ann")
    monkeypatch.setattr(store, "delete", lambda keys: [DeleteFailure(k, "AccessDenied", "no") for k in keys])
    with pytest.raises(StoreError, match=r"still paused: .*AccessDenied no \(allow s3:DeleteObject"):
        clear_pause(store)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"\xff", b"{}", b"no json", b'{"why": 3, "by": "x", "since_ms": 0}',
        b'{"why": "x", "by": "x", "since_ms": -1}', b'{"why": "x", "by": "x", "since_ms": 1767225600000000}',
        b'{"x": ' + b"[" * 100_000,
    ],
)  # fmt: skip
def test_a_flag_that_cannot_be_read_is_a_pause(body: bytes) -> None:
    cluster = a_cluster()
    cluster.store.put(PAUSED, body)
    before = dict(store_of(cluster).objects)
    with pytest.raises(PausedError, match="cannot be read"):
        sweep(cluster)
    assert store_of(cluster).objects == before
    clear_pause(cluster.store)
    assert sweep(cluster).deleted == 60


def test_a_sweep_does_not_begin_while_sweeps_are_paused() -> None:
    cluster = a_cluster()
    set_pause(cluster.store, "disk audit", "ann")
    before = dict(store_of(cluster).objects)
    with pytest.raises(PausedError, match=r"disk audit \(ann, since .*l0gc resume") as e:
        sweep(cluster)
    assert e.value.exit_code == 4
    assert store_of(cluster).objects == before
    clear_pause(cluster.store)
    assert sweep(cluster).deleted == 60


def test_nothing_is_deleted_where_it_is_unknown_whether_there_is_a_pause() -> None:
    cluster = a_cluster()
    before = level_zero(cluster)
    store_of(cluster).fault = failing(StoreError("the store does not answer"), key=PAUSED)
    with pytest.raises(StoreError):
        sweep(cluster)
    assert level_zero(cluster) == before


def test_a_dry_run_shows_its_numbers_and_the_pause() -> None:
    cluster = a_cluster()
    unpaused = sweep(cluster, dry_run=True)
    set_pause(cluster.store, "disk audit", "ann")
    dry = sweep(cluster, dry_run=True)
    assert numbers(dry) == numbers(unpaused)
    assert (unpaused.plan.paused, dry.plan.paused[:10]) == ("", "disk audit")
    assert not dry.stopped


def _when_deletes(store: MemoryStore, n: int, then: Callable[[], object]) -> Callable[[Call], None]:
    """Call `then` once, after the n-th DELETE of level zero."""
    done: list[int] = []

    def fault(call: Call) -> None:
        if call.kind == "delete" and call.when == "after" and store.requests["delete"] >= n and not done:
            done.append(n)
            then()

    return fault


@pytest.mark.parametrize("threads", [False, True])
def test_a_pause_in_the_middle_ends_the_run_in_good_order(monkeypatch: pytest.MonkeyPatch, threads: bool) -> None:
    pages_of(monkeypatch, 5, 10)
    cluster = a_cluster(objects=20)
    store = store_of(cluster)
    store.page_size = 5
    key = cluster.controller.layout().format(0, 1, "00000001-0000-4000-8000-000000000000")
    store.unfinished = [UnfinishedUpload(key, "upload", 0)]
    before, garbage = level_zero(cluster), expected_garbage(cluster, 4)
    store.fault = _when_deletes(store, 3, lambda: set_pause(store, "disk audit", "ann"))
    result = swept_by_many(cluster) if threads else SweepRun(cluster).run(1)
    gone = before - level_zero(cluster)
    assert result.paused.startswith("disk audit")
    assert result.stopped
    assert len(gone) == result.deleted
    if threads:
        assert 15 <= len(gone) <= 10 * (2 + SEGMENTS_IN_HAND) < len(garbage)
    else:
        assert len(gone) == 20  # the segment during which the pause was set is finished
    assert result.uploads_aborted == 0
    rows = on_record(cluster)
    assert {f.key for f in rows if f.status == DELETED} == gone
    assert {f.status for f in rows} <= {DELETED, LEFT}
    (run,), _ = list_runs(cluster.store, 20)
    assert run.summary is not None
    assert (run.summary.outcome, run.summary.objects) == ("stopped", len(gone))
    clear_pause(store)
    assert result.deleted + SweepRun(cluster).run(1).deleted == len(garbage)


def test_a_run_that_met_a_pause_ends_after_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    pages_of(monkeypatch, 5, 10)
    cluster = a_cluster(objects=20)
    store = store_of(cluster)
    set_at = _when_deletes(store, 3, lambda: set_pause(store, "disk audit", "ann"))

    def fault(call: Call) -> None:
        set_at(call)
        if call.kind == "get" and call.key == PAUSED and call.when == "after" and PAUSED in store.objects:
            del store.objects[PAUSED]

    store.fault = fault
    result = SweepRun(cluster).run(1)
    assert read_pause(store) is None
    assert result.paused
    assert result.deleted == 20


def test_the_pause_is_read_once_per_plan_and_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    pages_of(monkeypatch, 5, 10)
    looks: list[str] = []
    cluster = a_cluster()

    def fault(call: Call) -> None:
        if call.key == PAUSED and call.when == "before":
            looks.append(call.kind)
        if call.key.startswith(RUNS) and call.key.endswith(".parquet") and call.when == "before":
            looks.append("segment")

    store_of(cluster).fault = fault
    sweep(cluster, dry_run=True)
    assert looks == ["get"]
    looks.clear()
    assert sweep(cluster, ranges=1).deleted == 60
    assert looks == ["get"] + ["get", "segment", "segment"] * 6  # each segment is recorded twice


def test_what_one_worker_was_paused_for_is_reported_for_all() -> None:
    total = RunCounts()
    total.include(RunCounts(paused="disk audit"))
    total.include(RunCounts())
    assert total.paused == "disk audit"


def test_a_limit_and_a_pause_are_distinguished(monkeypatch: pytest.MonkeyPatch) -> None:
    pages_of(monkeypatch, 5, 10)
    cluster = a_cluster(objects=20)
    result = SweepRun(cluster, Sweep(max_objects=20)).run(1)
    assert (result.deleted, result.paused, result.stopped) == (20, "", False)
