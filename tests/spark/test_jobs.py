"""What l0gc starts in a user's session is kept apart from the user's own jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from l0gc.spark.handles import ClusterAddress
from l0gc.spark.jobs import Jobs
from l0gc.spark.workers import SparkWorkers
from l0gc.storage.config import StoreConfig
from l0gc.storage.workers import Stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.weed, pytest.mark.spark]
_PATIENCE_S = 120.0


def _waiting(folder: Path, name: str) -> Callable[[Any], str]:
    """Return a task that shows that it runs, and waits for a file before it ends."""
    begun, go_on, patience_s = folder / f"{name}-begun", folder / f"{name}-go-on", _PATIENCE_S

    def wait(_: object) -> str:
        begun.touch()
        until = time.monotonic() + patience_s
        while not go_on.exists() and time.monotonic() < until:
            time.sleep(0.01)
        return name

    return wait


def _stage(folder: Path) -> Stage:
    wait = _waiting(folder, "ours")
    return Stage(1, lambda place, items: [wait(item) for item in items])


def _until(ready: Callable[[], object]) -> None:
    until = time.monotonic() + _PATIENCE_S
    while not ready():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.fixture
def others(one_spark: SparkSession, tmp_path: Path) -> Iterator[Future[list[str]]]:
    """Run a job of the user's program in the same session until the test has ended."""
    with ThreadPoolExecutor(1) as thread:
        rdd = one_spark.sparkContext.parallelize([0], 1)
        job = thread.submit(lambda: rdd.map(_waiting(tmp_path, "others")).collect())
        try:
            _until((tmp_path / "others-begun").exists)
            yield job
        finally:
            (tmp_path / "others-go-on").touch()


def test_a_stop_ends_only_l0gcs_job_in_a_users_session(
    one_spark: SparkSession, others: Future[list[str]], tmp_path: Path
) -> None:
    workers = SparkWorkers(one_spark, ClusterAddress(StoreConfig("bucket")))
    with ThreadPoolExecutor(1) as thread:
        ours = thread.submit(lambda: workers.flow([0], _stage(tmp_path)))
        _until((tmp_path / "ours-begun").exists)
        workers.cancel()
        assert "cancelled" in str(ours.exception(_PATIENCE_S))
    assert not others.done()
    (tmp_path / "others-go-on").touch()
    assert others.result(_PATIENCE_S) == ["others"]


def test_only_l0gcs_stages_count_and_the_programs_later_jobs_have_no_tag(
    one_spark: SparkSession, others: Future[list[str]], tmp_path: Path
) -> None:
    context = one_spark.sparkContext
    jobs = Jobs(context)

    def run() -> set[str]:
        with jobs.tagged():
            context.parallelize([0], 1).map(_waiting(tmp_path, "ours")).collect()
        return set(context.getJobTags())

    assert jobs.active_stages() == []
    with ThreadPoolExecutor(1) as thread:
        ours = thread.submit(run)
        _until((tmp_path / "ours-begun").exists)
        _until(jobs.active_stages)
        assert [s.numTasks for s in jobs.active_stages()] == [1]
        assert len(context.statusTracker().getActiveStageIds()) == 2
        (tmp_path / "ours-go-on").touch()
        assert ours.result(_PATIENCE_S) == set()
    assert jobs.active_stages() == []
