"""Runs that delete: how the record shows their end, and how work on executors is counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from l0gc.collect.history import find_in_runs, show_run
from l0gc.collect.plan import DeletionPlan, run_id
from l0gc.collect.record import ObjectTotals, RecordedObject, encode_segment, read_summary
from l0gc.collect.sweep import SweepRun
from l0gc.collect.vacuum import VacuumRun
from l0gc.errors import AccessDeniedError, ObjectNotFoundError, UsageError
from l0gc.keys import RUNS
from l0gc.operations import Deletion, Sweep, written
from l0gc.storage.objectstore import DeleteFailure
from l0gc.storage.parallel import InlineExecutor
from l0gc.watermark.publication import PublishedWatermark, publish
from tests.collect.test_sweep_local import a_cluster as swept_cluster
from tests.collect.test_sweep_local import level_zero, on_record, pages_of
from tests.collect.test_vacuum import a_cluster as vacuumed_cluster
from tests.collect.test_vacuum import planted
from tests.support.elsewhere import Elsewhere
from tests.support.garbage import FakeGarbage, key_of
from tests.support.memory_store import Call, MemoryStore, failing, store_of

RUN = run_id(0, "0123abcd")
Made = tuple[MemoryStore, Callable[[], Any]]


def a_sweep() -> Made:
    store = MemoryStore()
    cluster = swept_cluster(store)
    return store, lambda: SweepRun(cluster, run_id=RUN).run()


def a_vacuum() -> Made:
    cluster, store = vacuumed_cluster()
    source = planted(store)
    return store, lambda: VacuumRun(cluster, run_id=RUN).run(source)


def ended_by(e: BaseException, run: Made) -> MemoryStore:
    """Run until the first DELETE request has taken effect and raises `e`; return the store."""
    store, work = run
    store.fault = failing(e, "delete", when="after")
    with pytest.raises(type(e)):
        work()
    store.fault = lambda call: None
    return store


@pytest.mark.parametrize("make", [a_sweep, a_vacuum])
def test_a_run_that_failed_says_so(make: Callable[[], Made]) -> None:
    assert read_summary(ended_by(AccessDeniedError("denied"), make()), RUN).outcome == "failed"


@pytest.mark.parametrize("make", [a_sweep, a_vacuum])
def test_a_run_whose_process_is_killed_leaves_no_end(make: Callable[[], Made]) -> None:
    store = ended_by(KeyboardInterrupt(), make())
    with pytest.raises(ObjectNotFoundError):
        read_summary(store, RUN)


# -- runs on executors ----------------------------------------------------------------------------------------------------


class Losing(Elsewhere):
    """Loses the executor of the first part in the middle of a segment, and repeats the part, as Spark does."""

    def do(self, work: Callable[[Any, Any], Any], part: Any) -> Any:
        if self.lost:
            return super().do(work, part)
        self.lost = True
        store = self._place.store
        delete = store.delete_once

        def killed(keys: Sequence[str]) -> list[DeleteFailure]:
            delete(keys)
            raise KeyboardInterrupt

        store.delete_once = killed  # type: ignore[method-assign]
        with suppress(KeyboardInterrupt):
            super().do(work, part)
        store.delete_once = delete  # type: ignore[method-assign]
        return super().do(work, part)

    lost = False


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    pages_of(monkeypatch, 5, 10)
    monkeypatch.setattr("l0gc.collect.run.ThreadPoolExecutor", OneAfterAnother)


class OneAfterAnother(InlineExecutor):
    def __init__(self, threads: int) -> None:
        pass


@pytest.mark.parametrize("workers", [Elsewhere, Losing])
def test_what_a_lost_worker_deleted_is_counted_once(small_segments: None, workers: type[Elsewhere]) -> None:
    cluster, same = swept_cluster(), swept_cluster()
    here = SweepRun(same).run()
    result = SweepRun(cluster, workers=workers(cluster)).run()
    assert level_zero(cluster) == level_zero(same)
    assert (result.deleted, result.bytes, result.eligible) == (here.deleted, here.bytes, here.eligible) == (60, 180, 60)
    assert show_run(cluster, result.run_id).by_status == {"deleted": 60}
    assert read_summary(cluster.store, result.run_id).engine == "spark"


def test_a_key_finds_the_run_that_deleted_it() -> None:
    cluster = swept_cluster()
    store, gone = store_of(cluster), {}
    for up_to in (0, 2, 3):
        before = level_zero(cluster)
        run = SweepRun(cluster, Sweep(up_to=up_to)).run().run_id
        gone[run] = sorted(before - level_zero(cluster))
        store.clock.ms += 1000
    for run, keys in gone.items():
        for key in keys[::7]:
            calls: list[Call] = []
            store.fault = calls.append
            found = find_in_runs(cluster, key)
            assert found is not None
            assert (found.run_id, found.command, found.key, found.status) == (
                run,
                "sweep",
                key,
                "deleted",
            )
            assert {c.key.split("/")[2] for c in calls if c.key.endswith(".parquet")} == {run}
    (live, *_) = sorted(level_zero(cluster))
    assert find_in_runs(cluster, live) is None
    assert find_in_runs(cluster, "level_zero/data/README") is None


def test_undelete_leaves_existing_objects_that_a_killed_run_only_planned() -> None:
    cluster = swept_cluster()
    store = store_of(cluster)
    (first, second, *_) = sorted(level_zero(cluster))
    rows = [RecordedObject(key, 0, 1, 0) for key in (first, second)]
    store.put(f"{RUNS}20200101T000000Z-0123abcd/objects-local-00000.parquet", encode_segment(rows))
    store.delete([second])
    left, deleted = find_in_runs(cluster, first), find_in_runs(cluster, second)
    assert left is not None
    assert deleted is not None
    assert (left.status, left.command) == ("left", None)
    assert deleted.status == "deleted"


@pytest.mark.parametrize("workers", [Elsewhere, Losing])
def test_what_a_vacuums_lost_worker_deleted_is_counted_once(small_segments: None, workers: type[Elsewhere]) -> None:
    """The lost worker may have recorded an object that its replacement deletes."""
    cluster, store = vacuumed_cluster()
    source = FakeGarbage(fence_at=10)
    keys = [key_of(1, f"{n:04}") for n in range(30)]
    for key in keys:
        store.put(key, b"x" * 10)
    result = VacuumRun(cluster, workers=workers(cluster)).run(source)
    assert not store.objects.keys() & set(keys)
    assert result.deleted["orphaned_l1"] == ObjectTotals(30, 300)
    assert (result.objects, result.bytes) == (30, 300)


def test_a_dry_run_elsewhere_says_the_same_and_leaves_all() -> None:
    cluster = swept_cluster()
    store = store_of(cluster)
    before = dict(store.objects)
    dry = SweepRun(cluster, Sweep(dry_run=True), Elsewhere(cluster)).run()
    assert store.objects == before
    assert dry.deleted == SweepRun(cluster, workers=Elsewhere(cluster)).run().deleted == 60


def test_every_limit_needs_one_process() -> None:
    """On executors each task would get the whole limit."""
    options = Sweep(max_objects=1, max_bytes=1, max_delete_ratio=1.0)
    limits = DeletionPlan(options=options, ratio_limit=1).limits
    assert set(limits) == {name for name in Deletion.__struct_fields__ if name.startswith("max_")} - {"max_rate"}
    assert all(f"--{written(Sweep, name)}" in options.in_one_process for name in limits)


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        ({"max_objects": 1}, "--max-objects"),
        ({"max_bytes": 1}, "--max-bytes"),
        ({"max_delete_ratio": 0.0}, "--max-delete-ratio"),
        ({"record": False}, "--no-record"),
        ({"record_dir": Path("records")}, "--record-dir"),
        ({"max_objects": 1, "max_rate": 1.0, "max_bytes": 1}, "--max-objects, --max-bytes"),
    ],
)
@pytest.mark.parametrize("kind", [SweepRun, VacuumRun])
def test_what_one_process_must_keep_is_refused_elsewhere(
    kind: Any, limit: dict[str, Any], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cluster = swept_cluster(watermark=None)
    state = cluster.controller.snapshot()
    publish(cluster.store, cluster.runtime, PublishedWatermark(state.cluster_id, 4, 8, 0, 60, 60, 108))
    before = dict(store_of(cluster).objects)
    with pytest.raises(UsageError, match=f"^only one process can keep {text}: use --engine local"):
        kind(cluster, kind.operation(**limit), Elsewhere(cluster)).run(None)
    assert store_of(cluster).objects == before


def test_recorded_times_are_those_of_the_task() -> None:
    """A task may wait for hours for a free executor."""

    class Late(Elsewhere):
        def do(self, work: Callable[[Any, Any], Any], part: Any) -> Any:
            store.clock.sleep(3600)
            return super().do(work, part)

    cluster = swept_cluster()
    store = store_of(cluster)
    SweepRun(cluster, workers=Late(cluster, slots=1)).run()
    ended = store.clock.ms
    assert {f.deleted_ms // 60_000 for f in on_record(cluster)} == {ended // 60_000}


def test_a_rate_is_divided_among_concurrent_tasks() -> None:
    rates: list[float | None] = []

    class Telling(Elsewhere):
        def do(self, work: Any, part: Any) -> Any:
            rates.append(work.args[1].options.max_rate)
            return super().do(work, part)

    cluster = swept_cluster()
    SweepRun(cluster, Sweep(max_rate=1e6), Telling(cluster)).run()
    assert rates == [5e5, 5e5]
