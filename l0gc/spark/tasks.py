"""How many of Spark's current tasks are done, by Spark's own count, for a job that cannot count itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from pyspark.sql import SparkSession

from l0gc.spark.remote import JOB_ERRORS

_LOOK_EVERY_S: Final = 1.0


@contextmanager
def following_tasks(spark: SparkSession, progress: Callable[[int, int], None]) -> Iterator[None]:
    """Call `progress` every second, in a thread, with how many of how many tasks of the active stages have ended."""
    ended = threading.Event()

    def follow() -> None:
        tracker = spark.sparkContext.statusTracker()
        while not ended.wait(_LOOK_EVERY_S):
            with suppress(*JOB_ERRORS, AttributeError):  # if Java has gone, the job says so
                found = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
                stages = [s for s in found if s is not None]
                if stages and not ended.is_set():
                    progress(sum(s.numCompletedTasks for s in stages), sum(s.numTasks for s in stages))

    thread = threading.Thread(target=follow, name="l0gc-tasks", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
