"""What a sweep on Spark tells while it runs: the tasks that have ended, by Spark's own count."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

import l0gc.spark.sweep_job
from l0gc.spark.sweep_job import following


def test_the_tasks_that_have_ended_are_told_until_the_job_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(l0gc.spark.sweep_job, "_LOOK_EVERY_S", 0.001)
    completed = {7: SimpleNamespace(numCompletedTasks=2), 8: None}  # of a stage that has just ended nothing is known
    tracker = SimpleNamespace(getActiveStageIds=lambda: [7, 8], getStageInfo=completed.get)
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))
    told: list[tuple[int, int]] = []
    heard = threading.Event()

    def progress(done: int, total: int) -> None:
        told.append((done, total))
        heard.set()

    with following(spark, 5, progress):
        assert heard.wait(10)
    after = len(told)
    assert set(told) == {(2, 5)}
    assert not any(t.name == "l0gc-follow" for t in threading.enumerate())
    assert len(told) == after
