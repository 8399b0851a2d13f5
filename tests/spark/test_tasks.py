"""Of a job that cannot say how far it is, Spark's own count of tasks is shown."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError

import l0gc.spark.tasks
from l0gc.cli.spark_options import telling_tasks


def test_what_a_job_says_is_shown_with_the_share_of_the_tasks_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(l0gc.spark.tasks, "_LOOK_EVERY_S", 0.001)
    stages = {
        7: SimpleNamespace(numCompletedTasks=2, numTasks=6),
        8: SimpleNamespace(numCompletedTasks=1, numTasks=4),
        9: None,  # of a stage that has just ended nothing is known
    }
    looked = [0]

    def active() -> list[int]:
        looked[0] += 1
        if looked[0] == 2:
            raise Py4JError("Java has gone; the job says so")
        return list(stages)

    tracker = SimpleNamespace(getActiveStageIds=active, getStageInfo=stages.get)
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))
    shown: list[tuple[str, float | None, float | None]] = []
    heard = threading.Event()

    def show(text: str, *, done: float | None = None, total: float | None = None, **fields: Any) -> None:
        shown.append((text, done, total))
        if len(shown) > 3:
            heard.set()

    with telling_tasks(spark, show) as say:
        say("round 1")
        assert heard.wait(120)
    assert ("round 1", None, None) in shown
    assert ("round 1", 3, 10) in shown
    assert not any(t.name == "l0gc-tasks" for t in threading.enumerate())
