"""Manage the jobs that l0gc starts in a session; a tag separates them from the program's own jobs.

The session may belong to the user and run other jobs. Only jobs with l0gc's tag are counted, shown and cancelled. Spark
keeps tags per thread: with pyspark's pinned threads, the default, exactly the jobs that a thread starts have its tags.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark import SparkContext, SparkStageInfo
from pyspark.errors import PySparkException

JOB_ERRORS: Final = (PySparkException, Py4JError, ConnectionRefusedError, ConnectionResetError)
"""The exceptions of a failed Spark job, which come from Python, from Java, or from the end of Java."""
_NUMBERS: Final = itertools.count()


class Jobs:
    """The jobs of l0gc that are started inside `tagged`."""

    def __init__(self, context: SparkContext) -> None:
        self._context: Any = context
        self._tag = f"l0gc-{os.getpid()}-{next(_NUMBERS)}"

    @contextmanager
    def tagged(self) -> Iterator[None]:
        """Tag the jobs that this thread starts in the block."""
        self._context.addJobTag(self._tag)
        interrupted = False
        try:
            yield
        except KeyboardInterrupt:
            interrupted = True
            raise
        finally:
            if not interrupted:  # after an interrupt, the thread's connection to Java waits for the job's answer
                with suppress(*JOB_ERRORS, AttributeError):  # if Java has ended, the job reports it
                    self._context.removeJobTag(self._tag)

    def cancel(self) -> None:
        """Cancel those of these jobs that are running, and no other job of the session."""
        self._context.cancelJobsWithTag(self._tag)

    def active_stages(self) -> list[SparkStageInfo]:
        """Return the running stages, without a stage that has just ended."""
        tracker = self._context.statusTracker()
        tagged = set(self._context._jsc.sc().statusTracker().getJobIdsForTag(self._tag))
        jobs = [tracker.getJobInfo(job) for job in tracker.getActiveJobsIds() if job in tagged]
        own_stages = {stage for job in jobs if job is not None for stage in job.stageIds}
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds() if stage in own_stages]
        return [stage for stage in stages if stage is not None]
