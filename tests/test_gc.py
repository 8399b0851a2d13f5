"""A garbage collection in the library: its result, and what happens around its steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import msgspec
import pytest

from l0gc.api.engine import Engine
from l0gc.api.gc import Due, GcResult
from l0gc.collect.gc_steps import STEPS
from l0gc.collect.plan import DeletionPlan, plan_sweep
from l0gc.collect.record import Attempt, read_attempts, read_gc_note, write_attempt
from l0gc.collect.sweep import SweepResult
from l0gc.epoch import NO_WATERMARK
from l0gc.errors import (
    AccessDeniedError,
    CorruptObjectError,
    EndedError,
    PartialFailureError,
    StoppedError,
    StoreError,
    StoreUnreachableError,
    UsageError,
)
from l0gc.keys import PUBLISHED_WATERMARK, journal_log
from l0gc.operations import Gc, Housekeep, Sweep
from l0gc.storage.entry import StoredEntry
from l0gc.storage.log import SharedLog
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.housekeep import HousekeepResult, housekeep
from l0gc.watermark.source import ClusterView
from tests.scaling.counted import counted
from tests.support.memory_store import (
    another_process,
    copy_of,
    failing,
    memory_cluster,
    once,
    publish_m,
    put_back,
    store_of,
    topic_in_memory,
)
from tests.support.reconcile import put, reconcile
from tests.support.verify import scan_and_publish
from tests.test_api import over

DUE = ["housekeep", "reconcile", "compute-watermark", "sweep"]
DRAIN = Housekeep(barrier=True)


def loaded() -> ClusterHandles:
    handles = topic_in_memory(2)
    put(handles, "events", {0: [b"a"] * 3})
    return handles


def fails_with(error: BaseException) -> Callable[..., Any]:
    def fail(*args: Any, **options: Any) -> Any:
        raise error

    return fail


def test_each_step_that_is_due_has_its_own_result(monkeypatch: pytest.MonkeyPatch) -> None:
    with over(loaded(), monkeypatch) as cluster:
        done = cluster.gc(housekeep=DRAIN, run_id="mine")
        assert done.reconcile is not None
        assert done.sweep is not None
        assert (done.reconcile.records, done.sweep.deleted, done.sweep.run_id, done.run_id) == (3, 1, "mine", "mine")
        assert set(done.not_due) == {"merge", "expire", "table_sync", "vacuum"}
        data = done.to_json()
        assert [name for name, value in data.items() if value is None] == [
            "merge",
            "expire",
            "table_sync",
            "vacuum",
        ]
        assert (data["sweep"], data["reconcile"]) == (done.sweep.to_json(), done.reconcile.to_json())
        assert list(data) == [s.replace("-", "_") for s in STEPS] + [
            "not_due",
            "errors",
            "dry_run",
            "seconds",
            "run_id",
        ]
        again = cluster.gc(reconcile=None, merge=None)
        assert set(again.not_due) == {"expire", "table_sync", "compute_watermark", "sweep", "vacuum"}
        assert again.housekeep is not None


def test_an_external_logs_cluster_is_swept_and_vacuumed_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handles = memory_cluster(bootstrap=False)
    handles.controller.bootstrap(shards=4, external_log=True)
    publish_m(handles, 4, 9)
    for epoch in (4, 5):
        handles.store.put(handles.identity().layout.format(1, epoch, str(UUID(int=epoch))), b"x")
    with over(handles, monkeypatch) as cluster:
        planned = cluster.gc(dry_run=True)
        assert (planned.sweep and planned.sweep.eligible, planned.errors) == (1, [])
        done = cluster.gc()
        assert {s for s in STEPS if getattr(done, s.replace("-", "_")) is not None} == {"sweep", "vacuum"}
        assert (done.sweep and done.sweep.deleted, done.errors, done.not_due) == (1, [], {})


def test_nothing_is_swept_by_an_external_log_whose_last_computation_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the computation notices that the other system's log was set back (hazard 10)."""
    handles = memory_cluster(bootstrap=False)
    handles.controller.bootstrap(shards=4, external_log=True)
    publish_m(handles, 4, 9)
    write_attempt(handles.store, Attempt("compute-watermark", 4, "its epoch went back"))
    with over(handles, monkeypatch) as cluster, pytest.raises(EndedError) as e:
        cluster.gc()
    assert e.value.exit_code == 4
    result = e.value.result
    assert isinstance(result, GcResult)
    assert [(f.step, f.message) for f in result.errors] == [
        ("compute-watermark", "its last run failed: its epoch went back")
    ]
    assert (result.sweep, result.vacuum) == (None, None)


def test_a_sweep_that_leaves_something_is_due_again(monkeypatch: pytest.MonkeyPatch) -> None:
    handles = loaded()
    with over(handles, monkeypatch) as cluster:
        for n in range(2):
            handles.store.put(handles.identity().layout.format(1, 0, str(UUID(int=n))), b"x")
        first = cluster.gc(housekeep=DRAIN, sweep=Sweep(max_objects=1)).sweep
        assert first is not None
        assert (first.deleted, read_gc_note(handles.store).swept) == (1, NO_WATERMARK)
        rest = cluster.gc().sweep
        assert rest is not None
        assert (rest.deleted > 0, read_gc_note(handles.store).swept) == (True, rest.watermark)


def test_unrecognized_keys_are_not_held_objects() -> None:
    handles = loaded()
    store_of(handles).put("level_zero/data/000/foreign", b"x")
    Due(handles, Gc()).computed(scan_and_publish(handles))
    assert read_gc_note(handles.store).held == 1


@pytest.mark.parametrize("left", [{"eligible": 2}, {"stopped": True}, {"paused": "by alice"}, {"shards": (0, 1)}])
def test_only_a_complete_sweep_is_recorded_as_done(left: dict[str, Any]) -> None:
    handles = loaded()
    publish_m(handles, 0)
    due = Due(handles, Gc())
    for differing, noted in ((left, NO_WATERMARK), ({}, 0)):
        fields = {"eligible": 1} | differing
        plan = plan_sweep(handles, Sweep(shards=fields.pop("shards", None)), "run")
        due.swept(SweepResult(plan=plan, objects=1, **fields))
        assert read_gc_note(handles.store).swept == noted


def test_one_bound_limits_a_sweep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """When only the scan had a bound, gc recorded M as swept, and left the rest until M moved again."""
    handles = loaded()
    bounds = [0, 0]

    def bounded(cluster: ClusterView, options: Sweep, *more: Any) -> DeletionPlan[Sweep]:
        plan = plan_sweep(cluster, options, *more)
        return msgspec.structs.replace(plan, bound=bounds.pop()) if bounds else plan

    monkeypatch.setattr("l0gc.collect.sweep.plan_sweep", bounded)
    with over(handles, monkeypatch) as cluster:
        handles.store.put(handles.identity().layout.format(1, 0, str(UUID(int=0))), b"x")
        canary = cluster.gc(housekeep=DRAIN).sweep
        assert canary is not None
        assert (canary.deleted, canary.bound, canary.watermark > 0) == (1, 0, True)
        assert read_gc_note(handles.store).swept == 0
        assert read_attempts(handles.store, handles.parallel).known["sweep"].part
        again = cluster.gc().sweep
        assert (again and again.deleted, read_gc_note(handles.store).swept) == (0, 0)
        rest = cluster.gc().sweep
        assert rest is not None
        assert (rest.deleted, read_gc_note(handles.store).swept) == (1, rest.watermark)
        assert not read_attempts(handles.store, handles.parallel).known["sweep"].part
        assert "sweep" in cluster.gc().not_due


def test_a_small_busy_cluster_starts_no_spark_though_java_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("l0gc.spark.master.has_java", lambda: True)
    monkeypatch.setattr("l0gc.api.engine.Engine.session", fails_with(AssertionError("Spark was started")))
    with over(loaded(), monkeypatch) as cluster, Engine() as engine:
        done = cluster.gc(engine, housekeep=DRAIN)
        assert {step for step in DUE if getattr(done, step.replace("-", "_")) is not None} == set(DUE)
        assert cluster.verify(engine).total == 0


def test_hooks_see_all_steps_in_order_and_which_are_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[str, bool]] = []

    def around(step: str, call: Callable[..., Any] | None) -> None:
        seen.append((step, call is not None))
        if call is not None:
            call()

    with over(loaded(), monkeypatch) as cluster:
        cluster.gc(housekeep=DRAIN, run_step=around)
        assert seen == [(step, step in DUE) for step in STEPS]
        seen.clear()
        cluster.gc(dry_run=True, run_step=around)
        assert seen == [("compute-watermark", True), ("sweep", True), ("vacuum", True)]


def test_a_step_that_failed_keeps_what_it_did_and_the_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    error = PartialFailureError("journal 1 failed")
    error.result = HousekeepResult(7)
    with over(loaded(), monkeypatch) as cluster:
        monkeypatch.setattr(type(cluster), "housekeep", fails_with(error))
        with pytest.raises(EndedError, match=r"housekeep \(3\)") as raised:
            cluster.gc()
        result: Any = raised.value.result
        assert (raised.value.exit_code, result.housekeep, result.reconcile.records) == (3, error.result, 3)
        assert result.to_json()["errors"] == [{"step": "housekeep", "exit_code": 3, "message": "journal 1 failed"}]


def test_without_m_nothing_is_deleted(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with over(loaded(), monkeypatch) as cluster:
        monkeypatch.setattr(type(cluster), "compute_watermark", fails_with(CorruptObjectError("damaged")))
        with caplog.at_level("INFO", "l0gc"), pytest.raises(EndedError) as raised:
            cluster.gc(housekeep=DRAIN)
        result: Any = raised.value.result
        assert (result.sweep, result.vacuum, set(result.not_due)) == (None, None, {"merge", "expire", "table_sync"})
        assert [m for m in caplog.messages if "is skipped" in m] == [
            "sweep is skipped: M was not computed",
            "vacuum is skipped: M was not computed",
        ]


def test_a_pause_is_named_also_where_no_sweep_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    with over(loaded(), monkeypatch) as cluster:
        cluster.gc(housekeep=DRAIN)
        assert "sweep" in cluster.gc().not_due
        cluster.pause("disk audit", by="ann")
        with pytest.raises(EndedError, match=r"sweep \(4\)") as raised:
            cluster.gc()
        result: Any = raised.value.result
        (error,) = result.errors
        assert (raised.value.exit_code, error.message.startswith("sweeps are paused: disk audit (ann, since ")) == (
            4,
            True,
        )
        cluster.resume()
        assert "sweep" in cluster.gc().not_due


@pytest.mark.parametrize(
    ("error", "advised"),
    [
        (AccessDeniedError("the credentials have expired: get new ones"), False),
        (StoreUnreachableError("gone"), False),
        (StoreError("500"), True),
    ],
)
def test_status_is_advised_only_where_it_could_be_read(
    monkeypatch: pytest.MonkeyPatch, error: Exception, advised: bool
) -> None:
    with over(loaded(), monkeypatch) as cluster:
        monkeypatch.setattr(type(cluster), "reconcile", fails_with(error))
        with pytest.raises(EndedError) as raised:
            cluster.gc()
        assert ("l0gc status" in str(raised.value)) == advised


@pytest.mark.parametrize("step", ["housekeep", "reconcile", "merge", "expire"])
def test_what_a_step_raises_unexpectedly_keeps_no_later_step_from_running(
    step: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    handles = loaded()
    with over(handles, monkeypatch) as cluster:
        for due in (step, "compute-watermark"):
            write_attempt(handles.store, Attempt(due, 3, "so that it is due"))
        monkeypatch.setattr(type(cluster), step, fails_with(KeyError("of a plugin")))
        with caplog.at_level("INFO", "l0gc"), pytest.raises(EndedError) as raised:
            cluster.gc(housekeep=DRAIN)
    result: Any = raised.value.result
    assert [(e.step, e.exit_code, e.message) for e in result.errors] == [
        (step, 1, "unexpected KeyError: 'of a plugin'")
    ]
    assert result.compute_watermark is not None
    assert any(m.startswith("Traceback") for m in caplog.messages)


def test_what_computing_m_raises_unexpectedly_keeps_everything_from_being_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with over(loaded(), monkeypatch) as cluster:
        monkeypatch.setattr(type(cluster), "compute_watermark", fails_with(RuntimeError("no")))
        with pytest.raises(EndedError) as raised:
            cluster.gc(housekeep=DRAIN)
    result: Any = raised.value.result
    assert (raised.value.exit_code, result.sweep, result.vacuum) == (1, None, None)


@pytest.mark.parametrize("refused", ["l0gc/attempts/", "l0gc/gc/"])
def test_unreadable_records_of_past_runs_keep_no_step_from_running(
    refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    handles = loaded()
    store_of(handles).fault = failing(AccessDeniedError("403"), "get", refused)
    with over(handles, monkeypatch) as cluster:
        done = cluster.gc(housekeep=DRAIN)
    assert (done.errors, done.sweep and done.sweep.deleted) == ([], 1)


def test_an_external_log_is_not_swept_after_an_unknown_computation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the computation notices that the other system's log was set back (hazard 10)."""
    handles = memory_cluster(bootstrap=False)
    handles.controller.bootstrap(shards=4, external_log=True)
    publish_m(handles, 4, 9)
    store_of(handles).fault = failing(AccessDeniedError("403"), "get", "attempts/compute-watermark")
    with over(handles, monkeypatch) as cluster, pytest.raises(EndedError) as e:
        cluster.gc()
    result: Any = e.value.result
    assert [(f.step, f.message) for f in result.errors] == [
        ("compute-watermark", "it is unknown how its last run ended: 403")
    ]
    assert (result.sweep, result.vacuum) == (None, None)


def test_the_slower_of_two_runs_sweeps_by_what_the_faster_one_published(monkeypatch: pytest.MonkeyPatch) -> None:
    handles = loaded()
    faster = another_process(handles, 2)

    def overtake() -> None:
        faster.controller.advance()
        housekeep(faster, barrier=True)
        reconcile(faster)
        scan_and_publish(faster)

    store_of(handles).fault = once(overtake, "put_*", PUBLISHED_WATERMARK)
    with over(handles, monkeypatch) as cluster:
        done = cluster.gc(housekeep=DRAIN)
    assert done.compute_watermark is not None
    assert done.sweep is not None
    assert (done.errors, done.compute_watermark.overtaken, done.sweep.deleted) == ([], True, 1)
    assert done.sweep.watermark == done.compute_watermark.previous_watermark > done.compute_watermark.watermark


def test_a_quiet_gc_reports_a_lost_watermark_until_m_is_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handles = loaded()
    with over(handles, monkeypatch) as cluster:
        cluster.gc(housekeep=DRAIN)
        assert "compute_watermark" in cluster.gc().not_due
        m = cluster.status().watermark
        store_of(handles).delete([PUBLISHED_WATERMARK])
        with pytest.raises(EndedError) as raised:
            cluster.gc()
        result: Any = raised.value.result
        assert (raised.value.exit_code, [e.step for e in result.errors]) == (4, ["compute-watermark"])
        assert "l0gc compute-watermark --accept-lost" in result.errors[0].message
        seen = cluster.status()
        assert (seen.causes[0].cause, seen.next) == ("lost_watermark", seen.causes[0].remedy)
        assert cluster.compute_watermark(accept_lost=True).published
        assert (cluster.gc().errors, cluster.status().watermark) == ([], m)


def test_an_error_that_concerns_all_steps_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with over(loaded(), monkeypatch) as cluster:
        monkeypatch.setattr(type(cluster), "housekeep", fails_with(UsageError("no")))
        with pytest.raises(EndedError) as raised:
            cluster.gc()
        result: Any = raised.value.result
        assert (raised.value.exit_code, result.reconcile, result.not_due) == (2, None, {})


@pytest.mark.parametrize("error", [StoppedError("stopped", 143), KeyboardInterrupt()])
def test_a_run_that_is_stopped_gives_what_it_did(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    with over(loaded(), monkeypatch) as cluster:
        monkeypatch.setattr(type(cluster), "reconcile", fails_with(error))
        with pytest.raises(type(error)) as raised:
            cluster.gc()
        result: Any = vars(raised.value)["result" if isinstance(error, StoppedError) else "so_far"]
        assert result.housekeep is not None
        assert (result.reconcile, result.compute_watermark, result.errors) == (None, None, [])


def test_a_step_that_failed_in_the_last_run_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    handles = memory_cluster()
    with over(handles, monkeypatch) as cluster:
        assert "reconcile" in cluster.gc().not_due
        write_attempt(handles.store, Attempt("reconcile", 3, "it failed"))
        assert "reconcile" not in cluster.gc().not_due
        assert "reconcile" in cluster.gc().not_due


@pytest.mark.parametrize("partitions", [4, 200])
@pytest.mark.parametrize("used", [1, 4])
def test_a_quiet_run_reads_each_journal_once(partitions: int, used: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller's log costs its format, a listing, two entries, then one request each time. A journal costs a
    listing, its entries, and one request for each question; an unused journal costs a listing. One more request asks
    for a pause.
    """
    handles = topic_in_memory(partitions, used)
    put(handles, "events", {p: [b"a"] for p in range(partitions)})
    with over(handles, monkeypatch) as cluster:
        cluster.gc(housekeep=DRAIN)
    quiet, seen = another_process(handles, 2), list[GcResult]()
    with over(quiet, monkeypatch) as cluster:
        found = counted(store_of(handles), lambda: seen.append(cluster.gc()))
        entries = sum(quiet.journal(j).replica.offset + 1 for j in range(used))
    assert set(seen[0].not_due) == {s.replace("-", "_") for s in STEPS} - {"housekeep"}
    journals = quiet.controller.snapshot().journals
    assert (found.lists, found.puts, found.deletes) == (1 + journals, 1, 0)
    assert found.gets == 14 + len(STEPS) + entries + 4 * used


def test_a_quiet_run_reads_l1_rows_only_after_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("l0gc.storage.log.READ_AT_ONCE", 64)  # each checkpoint counts as a large one
    handles = loaded()
    with over(handles, monkeypatch) as cluster:
        cluster.gc(housekeep=DRAIN)
        handles.journal(0).replica.write_checkpoint()
    read, get_checkpoint = list[bool](), SharedLog.get_checkpoint

    def counted(log: SharedLog, offset: int, *, whole: bool = True) -> StoredEntry:
        read.extend([whole] if log.folder == journal_log(0) else [])
        return get_checkpoint(log, offset, whole=whole)

    monkeypatch.setattr(SharedLog, "get_checkpoint", counted)
    with over(another_process(handles, 2), monkeypatch) as cluster:
        assert cluster.gc().not_due["merge"] == "no partition has L1 objects to merge"
    assert read == [False]
    put(handles, "events", {0: [b"b"]})
    reconcile(handles)
    del read[:]
    with over(another_process(handles, 3), monkeypatch) as cluster:
        assert "merge" in cluster.gc().not_due
    assert read == [False, True]


def test_where_housekeeping_did_not_find_all_logs_whole_each_question_looks_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handles = loaded()
    with over(handles, monkeypatch) as cluster:
        cluster.gc(housekeep=DRAIN)
        before = copy_of(store_of(handles), journal_log(0))
        cluster.housekeep(barrier=True)
        cluster.compute_watermark()
    put_back(store_of(handles), journal_log(0), before)  # nothing in it waits to be lifted
    with over(another_process(handles, 2), monkeypatch) as cluster, pytest.raises(EndedError) as failed:
        cluster.gc()
    assert isinstance(failed.value.result, GcResult)
    said = {e.step: e.message for e in failed.value.result.errors}
    assert {"housekeep", "reconcile", "compute-watermark"} <= said.keys()
    assert all("set back" in message for message in said.values())
