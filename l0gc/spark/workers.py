"""Run work on the executors of a Spark session, by the functions that `storage/workers.py` runs in this process.

Plain RDDs send pickled parts and return pickled results: data frames would give the same results, but Java takes two
seconds to load and compile their planner. Executors merge large results first. A task may run twice, or its executor
may die; the work must tolerate both.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark import RDD
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from l0gc import errors
from l0gc.events import Progress, quiet
from l0gc.spark.executors import cores_of
from l0gc.spark.handles import ClusterAddress, cluster_at
from l0gc.spark.jobs import JOB_ERRORS, Jobs
from l0gc.storage.workers import SPARK, Stage
from l0gc.streamlog.cluster import ClusterHandles

A = TypeVar("A")
B = TypeVar("B")

TASKS_PER_CORE: Final = 4
"""The number of tasks per core: more than one, so that a slow task does not delay the rest, but not so many that their
start matters.
"""
_FEW: Final = 16
"""The number of results up to which the driver merges all of them. For a small bucket, a shuffle takes longer than the
rest of the job.
"""
_LOOK_EVERY_S: Final = 1.0
_FULL: Final = os.strerror(errno.ENOSPC)
_OF_A_QUERY: Final = "\n=== Streaming Query ==="
"""The text that Spark appends to the error of a stream."""
_ERROR_LINE: Final = re.compile(r"(?:([\w.]+)\.)?(\w+): (.*)")


class SparkWorkers:
    """Runs work on the executors of a session.

    Args:
        address: the address of the bucket, as seen by the executors.
        progress: called every second with the last message, and with the numbers of finished and of all tasks, as
            counted by Spark.
    """

    engine: Final = SPARK

    def __init__(self, spark: SparkSession, address: ClusterAddress, progress: Progress = quiet) -> None:
        self._context, self._address, self._progress = spark.sparkContext, address, progress
        self._jobs = Jobs(self._context)
        self._said = self.reason = ""
        self._cancelled = threading.Event()
        self.cores = cores_of(self._context)
        self.slots = self.cores * TASKS_PER_CORE

    def map(self, work: Callable[[ClusterHandles, A], B], parts: Sequence[A]) -> list[B]:
        if not parts:
            return []
        with self._job():
            return self._sent(work, parts).collect()

    def reduce(
        self, work: Callable[[ClusterHandles, A], B], parts: Sequence[A], merge: Callable[[B, B], B]
    ) -> B | None:
        if len(parts) <= _FEW:
            done = self.map(work, parts)
            return functools.reduce(merge, done) if done else None
        with self._job():
            # Merging in two steps leaves the driver about as many results as the square root of the number of tasks.
            return self._sent(work, parts).treeReduce(merge)

    def flow(self, parts: Sequence[Any], *stages: Stage) -> list[Any]:
        items: RDD[Any] = self._context.parallelize(parts, max(1, min(len(parts), stages[0].tasks)))
        for i, stage in enumerate(stages):
            if i:
                items = items.partitionBy(stage.tasks, int).values()
            items = items.mapPartitions(functools.partial(_in_workplace, self._address, stage.work))
        with self._job():
            return items.collect()

    def say(self, text: str, *, done: float | None = None, total: float | None = None, **fields: Any) -> None:
        self._said = text
        self._progress(text, **fields)

    def cancel(self) -> None:
        self._cancelled.set()
        self._jobs.cancel()

    def _sent(self, work: Callable[[ClusterHandles, A], B], parts: Sequence[A]) -> RDD[B]:
        sent = self._context.parallelize(parts, min(len(parts), self.slots))
        return sent.map(functools.partial(_in_workplace, self._address, work))

    @contextmanager
    def _job(self) -> Iterator[None]:
        """Wrap a job: report its progress, and raise the errors of its tasks."""
        ended = threading.Event()

        def follow() -> None:
            while not ended.wait(_LOOK_EVERY_S):
                with suppress(*JOB_ERRORS, AttributeError):  # if Java has ended, the job reports it
                    if self._cancelled.is_set():
                        self._jobs.cancel()  # again, since the job may have begun after the first time
                    active = self._jobs.active_stages()
                    if active and not ended.is_set():
                        done, total = sum(s.numCompletedTasks for s in active), sum(s.numTasks for s in active)
                        self._progress(self._said, done=done, total=total)

        thread = threading.Thread(target=follow, name="l0gc-tasks", daemon=True)
        thread.start()
        try:
            with raising_causes(), self._jobs.tagged():
                yield
        finally:
            ended.set()
            thread.join()


def _in_workplace(address: ClusterAddress, work: Callable[[ClusterHandles, Any], B], part: Any) -> B:
    return work(cluster_at(address), part)


def cause_of(error: BaseException) -> errors.L0gcError:
    """Return, for one of `JOB_ERRORS`, the error that l0gc raised in an executor, or an `L0gcError` about the failure.

    Raises:
        KeyboardInterrupt: a signal ended the job. pyspark then sends Java one more message on a connection in the
            middle of an answer, or closes a connection that was never opened, and this failure hides the signal.
    """
    behind = error.__context__
    while behind is not None:
        if isinstance(behind, KeyboardInterrupt):
            raise behind
        behind = behind.__context__
    if isinstance(error, UnboundLocalError) and error.__context__ is not None:
        error = error.__context__
    first = ""
    for line in reversed(str(error).partition(_OF_A_QUERY)[0].splitlines()):
        m = _ERROR_LINE.fullmatch(line.strip())
        if m is None or m[2] == "SQLSTATE":
            continue
        kind = getattr(errors, m[2], None) if m[1] == errors.__name__ else None
        if isinstance(kind, type) and issubclass(kind, errors.L0gcError):
            return errors.rebuilt(kind, (m[3],))
        first = first or line.strip()
    if _FULL in str(error):
        return errors.L0gcError(
            f"the Spark job failed: {_FULL}, here or on an executor; free some, or name a folder that has more "
            "(TMPDIR, spark.local.dir)"
        )
    if isinstance(error, Py4JJavaError):
        first = str(error.java_exception.toString()).partition("\n")[0]
    elif not isinstance(error, PySparkException):
        return errors.L0gcError(
            "the Spark job failed: its Java process was killed or ran out of memory (spark.driver.memory); run it again"
        )
    reason = first or str(error).strip().partition("\n")[0] or "Spark gave no reason"
    return errors.L0gcError(f"the Spark job failed: {reason} (run it with -v for the traceback)")


@contextmanager
def raising_causes() -> Iterator[None]:
    """Raise a failure in the block as the error of `cause_of`."""
    try:
        yield
    except JOB_ERRORS as e:
        raise cause_of(e) from e
    except UnboundLocalError as e:
        if e.__context__ is None:
            raise
        raise cause_of(e) from e
