"""The run record: at whatever moment a run is killed, its deletions are on record, and the record is true."""

from __future__ import annotations

import itertools
import threading

import msgspec
import pytest

from l0gc.collect.deletion import Deletable
from l0gc.collect.history import list_runs, newest_runs, old_run_records, show_run
from l0gc.collect.plan import DeletionPlan
from l0gc.collect.record import (
    DELETED,
    FAILED,
    LEFT,
    PLANNED,
    RecordedObject,
    RunRecord,
    encode_segment,
    folder,
    read_segment,
    read_summary,
    summary_key,
    write_summary,
)
from l0gc.collect.sweep import SweepRun
from l0gc.errors import CorruptObjectError, NotFoundError, UsageError
from l0gc.keys import RUNS
from l0gc.operations import Vacuum
from l0gc.storage.objectstore import DeleteFailure
from l0gc.streamlog.cluster import ClusterHandles
from tests.collect.test_sweep_local import a_cluster, expected_garbage, level_zero, pages_of
from tests.support.memory_store import Call, MemoryStore, store_of

NO_RUN = "20261301T000000Z-0123abcd"
"""A run id whose month does not exist."""


class Killed(BaseException):
    """The process dies, so no handler may catch this."""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> int:
    pages_of(monkeypatch, 5, 13)
    return 5


def killed_at(number: int, page_size: int) -> tuple[ClusterHandles, set[str], bool]:
    """Kill a sweep before its store call `number` / 2, or after it if odd; return the cluster, the deleted keys, and
    whether it died.
    """
    cluster = a_cluster()
    store = store_of(cluster)
    store.page_size = page_size
    before = level_zero(cluster)
    numbers = itertools.count()

    def fault(call: Call) -> None:
        if next(numbers) == number:
            raise Killed

    store.fault = fault
    killed = False
    try:
        SweepRun(cluster).run(1)
    except Killed:
        killed = True
    store.fault = lambda call: None
    return cluster, before - level_zero(cluster), killed


def statuses(cluster: ClusterHandles) -> dict[str, str]:
    store = store_of(cluster)
    keys = [k for k in store.objects if k.startswith(RUNS) and k.endswith(".parquet")]
    return {f.key: f.status for k in keys for f in read_segment(store, k)}


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.thorough)])
def test_a_killed_runs_record_is_true(small: int, every: int) -> None:
    """The test kills a run before and after its store calls."""
    garbage = expected_garbage(a_cluster(), 4)
    for number in itertools.count(step=every):
        cluster, gone, killed = killed_at(number, small)
        on_record = statuses(cluster)
        assert gone <= set(on_record) <= garbage
        assert {k for k, s in on_record.items() if s == DELETED} <= gone
        runs, total = list_runs(cluster.store, 5)
        if not on_record:
            assert not gone
        else:
            assert total == 1
            detail = show_run(cluster, runs[0].run_id)
            assert detail.by_status[DELETED] == len(gone)
            assert detail.by_status[LEFT] == len(on_record) - len(gone)
            assert sum(detail.by_status.values()) == len(on_record)
            assert (runs[0].summary is None) == (
                killed and f"{folder(runs[0].run_id)}run.json" not in cluster_keys(cluster)
            )
        SweepRun(cluster).run(1)  # the next run finishes the work
        assert expected_garbage(cluster, 4) == set()
        if not killed:
            assert number > 40
            break


def cluster_keys(cluster: ClusterHandles) -> set[str]:
    return set(store_of(cluster).objects)


def test_a_segment_keeps_everything_about_its_objects() -> None:
    store = MemoryStore()
    rows = [
        RecordedObject.of(Deletable("a", 1, 2, 3), now_ms=7),
        RecordedObject.of(Deletable("b/ü", 10**17, 2**40, 5), DELETED, "marker", 7),
        RecordedObject.of(Deletable("c", 0, 0, 0, "v"), FAILED, now_ms=7),
    ]
    store.put("segment", encode_segment(rows))
    assert read_segment(store, "segment") == [
        RecordedObject("a", 1, 2, 3, "", PLANNED),
        RecordedObject("b/ü", 10**17, 2**40, 5, "marker", DELETED, 7),
        RecordedObject("c", 0, 0, 0, "v", FAILED),
    ]


def test_segments_of_threads_and_of_workers_never_share_a_name() -> None:
    store = MemoryStore()
    objects = [Deletable("k", 1, 1)]
    first, second = (RunRecord(store, "run", w) for w in ("a", "b"))
    keys: list[str] = []
    threads = [
        threading.Thread(target=lambda r=r: keys.extend(r.plan(objects) for _ in range(20)))
        for r in (first, first, second)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(set(keys)) == 60


def test_a_key_whose_delete_got_no_answer_is_looked_up(small: int) -> None:
    """The record calls it failed, and a look at the bucket shows whether it was deleted."""

    class Silent(MemoryStore):
        def delete(self, keys: list[str]) -> list[DeleteFailure]:  # type: ignore[override]
            landed = [k for k in keys if f"/{2:018}/" in k]
            super().delete([k for k in keys if f"/{3:018}/" not in k])
            return [DeleteFailure(k, "InternalError", "lost") for k in keys if k in landed or f"/{3:018}/" in k]

    cluster = a_cluster(Silent())
    before = level_zero(cluster)
    result = SweepRun(cluster).run(1)
    gone = before - level_zero(cluster)
    assert result.deleted < len(gone)
    detail = show_run(cluster, result.run_id)
    assert (detail.by_status[DELETED], detail.by_status[FAILED]) == (len(gone), 12)


def test_an_object_in_two_segments_is_reported_once(small: int) -> None:
    """An executor died after one worker planned the object, and another worker deleted it."""
    cluster = a_cluster()
    result = SweepRun(cluster).run(1)
    gone = [Deletable(k, 1, 1) for k, s in statuses(cluster).items() if s == DELETED]
    RunRecord(cluster.store, result.run_id, "lost").plan([*gone[:7], Deletable("level_zero/data/never", 1, 1)])
    detail = show_run(cluster, result.run_id)
    assert detail.by_status == {DELETED: len(gone) + 1}  # the planned object does not exist, so it counts as deleted


def test_runs_are_listed_newest_last_and_read_only_as_shown() -> None:
    cluster = a_cluster()
    store = store_of(cluster)
    runs = []
    for n in range(3):
        store.clock.sleep(60)
        store.put(cluster.controller.layout().format(0, 1, f"{n:08x}-0000-4000-8000-0000000000ff"), b"x")
        runs.append(SweepRun(cluster).run(1).plan.run_id)
    store.put(f"{RUNS}{NO_RUN}/x.parquet", b"?")
    store.requests.clear()
    shown, total = list_runs(store, 2)
    assert ([r.run_id for r in shown], total) == (runs[1:], 3)
    assert store.requests["get"] == 2
    assert [r.summary.outcome for r in shown if r.summary] == ["done", "done"]


def test_old_records_expire_and_younger_ones_and_foreign_files_stay() -> None:
    cluster = a_cluster()
    store = store_of(cluster)
    foreign = {
        f"{RUNS}{name}" for name in ("0a1b2c3d-old-shape/deleted-00000.parquet", "README", f"{NO_RUN}/x.parquet")
    }
    for key in foreign:
        store.put(key, b"?")
    runs = []
    for n in range(4):
        store.clock.sleep(3600)
        store.put(cluster.controller.layout().format(0, 1, f"{n:08x}-0000-4000-8000-0000000000ff"), b"x")
        runs.append(SweepRun(cluster).run(1).plan)
    store.page_size = 3
    plan = DeletionPlan(options=Vacuum(keep_runs_s=0), started_ms=runs[2].started_ms - 1)
    old = {o.key for batch in old_run_records(store, plan) for o in batch}
    left = {k.split("/")[2] for k in store.objects if k.startswith(RUNS) and k not in foreign | old}
    assert left == {r.run_id for r in runs[2:]}
    assert len(old) == 4
    assert not foreign & old


def test_a_run_that_has_nothing_to_delete_leaves_no_record() -> None:
    cluster = a_cluster()
    SweepRun(cluster).run(1)
    before = cluster_keys(cluster)
    result = SweepRun(cluster).run(1)
    assert result.deleted == 0
    assert cluster_keys(cluster) == before


def test_a_name_that_is_no_runs_is_refused() -> None:
    cluster = a_cluster()
    with pytest.raises(UsageError, match="is not a run id"):
        show_run(cluster, "../../published")
    with pytest.raises(UsageError, match="is not a run id"):
        show_run(cluster, NO_RUN)
    with pytest.raises(NotFoundError, match="run 20260131T235959Z-0123abcd has no record"):
        show_run(cluster, "20260131T235959Z-0123abcd")


def test_a_unique_prefix_names_a_run() -> None:
    cluster = a_cluster()
    run = SweepRun(cluster, run_id="20260131T235959Z-0123abcd").run(1).run_id
    for start in ("2026", "20260131T2359", run[:-1], run):
        assert show_run(cluster, start).run_id == run
    write_summary(
        cluster.store, msgspec.structs.replace(read_summary(cluster.store, run), run_id="20260131T235959Z-0123abce")
    )
    assert show_run(cluster, run).run_id == run
    with pytest.raises(UsageError, match="20260131T begins the ids of 2 runs, 20260131T235959Z-0123abcd and others"):
        show_run(cluster, "20260131T")
    with pytest.raises(NotFoundError, match="no run whose id begins with 2025"):
        show_run(cluster, "2025")


def test_a_damaged_segment_is_named() -> None:
    cluster = a_cluster()
    run_id = SweepRun(cluster).run(1).plan.run_id
    key = next(k for k in store_of(cluster).objects if k.startswith(folder(run_id)) and k.endswith(".parquet"))
    cluster.store.put(key, b"PAR1?")
    with pytest.raises(CorruptObjectError, match=key):
        show_run(cluster, run_id)


def test_a_run_is_read_once_however_long_ago_it_ended() -> None:
    store = MemoryStore()
    store.put(summary_key("20231114T221320Z-aaaaaaaa"), b"damaged")
    assert [run.outcome for run in newest_runs(store, 3, store.now_ms())] == ["damaged"]
    assert store.requests["get"] == 1
