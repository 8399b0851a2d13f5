"""Shadow runs: they delete nothing, and record once each object that a sweep would delete; no command takes it for
deleted.
"""

from __future__ import annotations

import pytest

from l0gc.collect.history import find_in_runs, list_runs, old_run_records, run_of, shadowed, show_run, undelete
from l0gc.collect.plan import plan_vacuum
from l0gc.collect.record import SHADOWED, folder, read_attempts, read_gc_note
from l0gc.collect.sweep import SweepResult, SweepRun
from l0gc.epoch import NO_WATERMARK
from l0gc.errors import UsageError
from l0gc.keys import RUNS
from l0gc.operations import Gc, Housekeep, Sweep, Vacuum
from l0gc.streamlog.cluster import ClusterHandles
from tests.collect.test_sweep_local import a_cluster, expected_garbage, level_zero, pages_of
from tests.support.l0_buckets import name_of
from tests.support.memory_store import publish_m, store_of
from tests.support.reconcile import put
from tests.test_api import over
from tests.test_gc import loaded


def a_quiet_cluster() -> ClusterHandles:
    """Create a cluster without a write in the last hour."""
    cluster = a_cluster()
    store_of(cluster).clock.sleep(3600)
    return cluster


def shadow(cluster: ClusterHandles, **options: object) -> SweepResult:
    return SweepRun(cluster, Sweep(shadow=True, **options)).run(1)  # type: ignore[arg-type]


def recorded(cluster: ClusterHandles, *runs: SweepResult) -> list[str]:
    return sorted(row.key for r in runs for row in shadowed(cluster.store, r.run_id, cluster.parallel))


def test_a_shadow_run_deletes_nothing_and_records_what_a_sweep_deletes(monkeypatch: pytest.MonkeyPatch) -> None:
    pages_of(monkeypatch, 5, 7)
    cluster = a_quiet_cluster()
    before, requests = level_zero(cluster), store_of(cluster).requests
    result = shadow(cluster)
    garbage = expected_garbage(cluster, 4)
    assert level_zero(cluster) == before
    assert requests["delete"] == requests["delete_versions"] == 0
    assert (result.deleted, result.dry_run, recorded(cluster, result)) == (len(garbage), True, sorted(garbage))
    assert {row.status for row in shadowed(cluster.store, result.run_id, cluster.parallel)} == {SHADOWED}
    swept = SweepRun(cluster).run(1)
    assert (swept.deleted, level_zero(cluster)) == (result.deleted, before - garbage)


def test_a_sweep_cannot_be_a_shadow_run_and_delete() -> None:
    assert Sweep(shadow=True, dry_run=False).dry_run
    gc = Gc(shadow=True)
    assert gc.sweep is not None
    assert (gc.sweep.dry_run, gc.vacuum) == (True, None)


def test_nothing_takes_the_record_of_a_shadow_run_for_what_was_deleted() -> None:
    cluster = a_quiet_cluster()
    result = shadow(cluster)
    (key, *_) = recorded(cluster, result)
    assert list_runs(cluster.store, 5) == ([], 0)
    assert find_in_runs(cluster, key) is None
    assert read_attempts(cluster.store, cluster.parallel).known == {}
    for ask in (show_run, undelete):
        with pytest.raises(UsageError, match="was a shadow run, which deleted nothing"):
            ask(cluster, result.run_id)
    with pytest.raises(UsageError, match="is not a run id"):  # a malformed id
        show_run(cluster, result.run_id.replace("shadow/", "shadow//"))
    SweepRun(cluster).run(1)
    assert list_runs(cluster.store, 5)[1] == 1
    assert find_in_runs(cluster, key) is not None


def test_a_killed_shadow_run_is_one_too() -> None:
    cluster = a_quiet_cluster()
    result = shadow(cluster)
    store_of(cluster).objects.pop(f"{folder(result.run_id)}run.json")
    assert list_runs(cluster.store, 5) == ([], 0)
    runs, total = list_runs(cluster.store, 5, shadow=True)
    assert (total, runs[0].run_id, runs[0].summary) == (1, result.run_id, None)


def test_the_next_shadow_run_records_only_what_is_new() -> None:
    cluster = a_quiet_cluster()
    first = shadow(cluster)
    second = shadow(cluster)
    assert (second.eligible, second.deleted) == (first.deleted, 0)
    assert list_runs(cluster.store, 5, shadow=True)[1] == 1  # a run without objects is not recorded
    late = cluster.controller.layout().format(2, 1, name_of(99))
    cluster.store.put(late, b"a straggler that never landed")
    publish_m(cluster, 5)
    store_of(cluster).clock.sleep(60)
    third = shadow(cluster)
    assert late in recorded(cluster, third)
    assert recorded(cluster, first, third) == sorted(expected_garbage(cluster, 5))


def test_an_object_changed_just_before_a_shadow_run_is_recorded_next_time() -> None:
    """The clocks of store and run differ by up to 3 s, so the first run may have missed the object."""
    cluster = a_quiet_cluster()
    store = store_of(cluster)
    shadow(cluster)
    late = cluster.controller.layout().format(2, 1, name_of(99))
    store.clock.ms -= 2_999
    store.put(late, b"dated early")
    store.clock.sleep(60)
    assert recorded(cluster, shadow(cluster)) == [late]


PARTIAL: list[dict[str, object]] = [
    {"max_objects": 3}, {"max_bytes": 25}, {"shards": (0, 1)}, {"up_to": 2}, {"min_age_s": 7200},
]  # fmt: skip
"""Options that leave objects that M allows, so the run does not count as whole."""


@pytest.mark.parametrize("options", PARTIAL)
def test_the_next_shadow_run_records_what_a_partial_one_left(options: dict[str, object]) -> None:
    cluster = a_quiet_cluster()
    shadow(cluster, **options)
    rest = shadow(cluster)
    whole = {"up_to": sorted(k for k in expected_garbage(cluster, 4) if k not in expected_garbage(cluster, 2))}
    expected = whole.get(next(iter(options)), sorted(expected_garbage(cluster, 4)))
    assert recorded(cluster, rest) == expected


def test_a_shadow_run_keeps_its_record_in_the_bucket(tmp_path: object) -> None:
    for options in ({"record": False}, {"record_dir": tmp_path}):
        with pytest.raises(UsageError, match="--shadow keeps its record in the bucket"):
            SweepRun(a_cluster(), Sweep(shadow=True, **options))


def test_records_of_shadow_runs_expire_as_others_do_and_foreign_files_stay() -> None:
    cluster = a_quiet_cluster()
    old = shadow(cluster)
    cluster.store.put(f"{RUNS}shadow/readme", b"foreign")
    cluster.store.put(f"{RUNS}readme", b"foreign")
    store_of(cluster).clock.sleep(10 * 86_400)
    publish_m(cluster, 6)
    new = shadow(cluster)
    plan = plan_vacuum(cluster, Vacuum(keep_runs_s=5 * 86_400))
    gone = {o.key for batch in old_run_records(cluster.store, plan) for o in batch}
    assert {run_of(key, shadow=True) for key in gone} == {old.run_id}
    gone = {o.key for batch in old_run_records(cluster.store, plan, keep=0) for o in batch}
    assert {run_of(key, shadow=True) for key in gone} == {old.run_id, new.run_id}


def test_gc_in_shadow_deletes_no_data_and_skips_nothing_later(monkeypatch: pytest.MonkeyPatch) -> None:
    handles = loaded()
    put(handles, "events", {0: [b"b"] * 3})
    before = level_zero(handles)
    with over(handles, monkeypatch) as cluster:
        first = cluster.gc(housekeep=Housekeep(barrier=True), shadow=True)
        assert first.sweep is not None
        assert (first.sweep.deleted, first.sweep.bound) == (2, first.sweep.watermark)
        assert first.vacuum is None
        assert level_zero(handles) == before
        note = read_gc_note(handles.store)
        assert (note.swept, note.shadowed) == (NO_WATERMARK, first.sweep.bound)
        assert read_attempts(handles.store, handles.parallel).known["sweep"].shadow
        again = cluster.gc(shadow=True)
        assert "has on record" in again.not_due["sweep"]
        swept = cluster.gc().sweep
        assert swept is not None
        assert (swept.deleted, level_zero(handles)) == (2, set())
        assert read_gc_note(handles.store).swept == swept.bound


def test_a_shadow_run_obeys_the_grace() -> None:
    cluster = a_cluster(watermark=None)
    publish_m(cluster, 2, at_ms=cluster.now_ms())
    store_of(cluster).clock.sleep(7200)
    publish_m(cluster, 4, at_ms=cluster.now_ms())
    result = shadow(cluster, grace_s=3600.0)
    assert recorded(cluster, result) == sorted(expected_garbage(cluster, 2))
