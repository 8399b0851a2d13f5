"""What a sweep on Spark does beside the work: it reports which tasks have ended, hears a stop, and knows the time."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from py4j.protocol import Py4JError

import l0gc.spark.sweep_job
from l0gc.collect.plan import Removal, plan_sweep
from l0gc.spark.sweep_job import SparkSweep, _task, following
from l0gc.storage.config import StoreConfig
from tests.collect.test_local import a_cluster, on_record, store_of


def test_the_tasks_that_have_ended_are_reported_until_the_job_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(l0gc.spark.sweep_job, "_LOOK_EVERY_S", 0.001)
    completed = {7: SimpleNamespace(numCompletedTasks=2), 8: None}  # of a stage that has just ended nothing is known
    tracker = SimpleNamespace(getActiveStageIds=lambda: [7, 8], getStageInfo=completed.get)
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))
    reported: list[tuple[int, int]] = []
    heard = threading.Event()

    def progress(done: int, total: int) -> None:
        reported.append((done, total))
        heard.set()

    with following(spark, 5, progress):
        assert heard.wait(120)
    after = len(reported)
    assert set(reported) == {(2, 5)}
    assert not any(t.name == "l0gc-follow" for t in threading.enumerate())
    assert len(reported) == after


def test_a_stop_is_heard_though_the_job_began_only_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is not there yet cannot be cancelled, and would run to its end."""
    monkeypatch.setattr(l0gc.spark.sweep_job, "_LOOK_EVERY_S", 0.001)
    running, cancelled = threading.Event(), threading.Event()

    def cancel() -> None:
        if running.is_set():
            cancelled.set()

    def collect() -> list[Any]:
        sweep.stop()
        running.set()
        if not cancelled.wait(120):
            raise AssertionError("nobody has cancelled the job")
        raise Py4JError("cancelled")

    context = SimpleNamespace(
        defaultParallelism=1,
        statusTracker=lambda: SimpleNamespace(getActiveStageIds=list),
        cancelAllJobs=cancel,
    )
    rows = SimpleNamespace(collect=collect)
    tasks = SimpleNamespace(mapInArrow=lambda task, schema: rows)
    spark: Any = SimpleNamespace(sparkContext=context, range=lambda *numbers: tasks)
    sweep = SparkSweep(a_cluster(), StoreConfig("bucket"))
    assert sweep.run(spark).stopped


def test_the_times_on_record_are_those_of_the_task_and_not_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task may wait for hours until an executor is free."""
    cluster = a_cluster()
    store = store_of(cluster)
    plan = plan_sweep(cluster, Removal())
    store.clock.sleep(3600)
    monkeypatch.setattr(l0gc.spark.sweep_job, "store_from_options", lambda options: store)
    monkeypatch.setattr(pyspark.TaskContext, "get", lambda: SimpleNamespace(taskAttemptId=lambda: 7))
    task = _task({}, plan, [(plan.first_shard, plan.end_shard)])
    (batch,) = list(task(iter([pa.RecordBatch.from_pydict({"id": [0]})])))
    assert batch.num_rows == 1
    assert {f.deleted_ms // 60_000 for f in on_record(cluster)} == {store.clock.ms // 60_000}


def test_java_that_has_gone_ends_the_job_and_not_the_thread_that_follows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread's traceback would stand beside the sentence that says so."""
    monkeypatch.setattr(l0gc.spark.sweep_job, "_LOOK_EVERY_S", 0.001)
    polled = threading.Semaphore(0)
    lost: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lost.append)

    def gone() -> list[int]:
        polled.release()
        raise Py4JError("no connection")

    spark: Any = SimpleNamespace(
        sparkContext=SimpleNamespace(statusTracker=lambda: SimpleNamespace(getActiveStageIds=gone))
    )
    with following(spark, 1, lambda done, total: None):
        assert polled.acquire(timeout=120)
        polled.acquire(timeout=1)
    assert lost == []
