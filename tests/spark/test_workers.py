"""A job on Spark reports which tasks have ended, accepts a stop, and reports what ended it."""

from __future__ import annotations

import io
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import l0gc.spark.workers
from l0gc.collect.sweep import SweepRun
from l0gc.errors import CorruptObjectError, L0gcError, StaleClusterEpochError
from l0gc.spark.handles import ClusterAddress
from l0gc.spark.workers import SparkWorkers, cause_of, raising_causes
from l0gc.storage.config import StoreConfig
from tests.collect.test_sweep_local import a_cluster


@pytest.fixture(autouse=True)
def looking_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(l0gc.spark.workers, "_LOOK_EVERY_S", 0.001)


def workers(context: SimpleNamespace, **options: Any) -> SparkWorkers:
    context.defaultParallelism, context.master = 1, "local"
    context.getConf = dict
    context.addJobTag = context.removeJobTag = lambda tag: None
    jobs = SimpleNamespace(getJobIdsForTag=lambda tag: [0])
    context._jsc = SimpleNamespace(sc=lambda: SimpleNamespace(statusTracker=lambda: jobs))
    rdd = SimpleNamespace(map=lambda work: SimpleNamespace(collect=context.collect))
    context.parallelize = lambda parts, slices: rdd
    spark: Any = SimpleNamespace(sparkContext=context)
    return SparkWorkers(spark, ClusterAddress(StoreConfig("bucket")), **options)


def test_the_tasks_that_have_ended_are_told_until_the_job_has() -> None:
    stages = {
        7: SimpleNamespace(numCompletedTasks=2, numTasks=6),
        8: SimpleNamespace(numCompletedTasks=1, numTasks=4),
        9: None,  # the tracker has no information about a stage that has just ended
    }
    looked = [0]

    def active() -> list[int]:
        looked[0] += 1
        if looked[0] == 1:
            raise Py4JError("Java did not answer; if it has gone, the job says so")
        return list(stages)

    jobs = {0: SimpleNamespace(stageIds=list(stages))}
    tracker = SimpleNamespace(
        getActiveStageIds=active, getStageInfo=stages.get, getActiveJobsIds=lambda: [0], getJobInfo=jobs.get
    )
    told: list[tuple[str, object, object]] = []
    heard = threading.Event()

    def progress(text: str, *, done: object = None, total: object = None, **fields: Any) -> None:
        told.append((text, done, total))
        if done is not None:
            heard.set()

    def collect() -> list[Any]:
        assert heard.wait(120)
        return []

    some = workers(SimpleNamespace(statusTracker=lambda: tracker, collect=collect), progress=progress)
    some.say("five ranges")
    some.map(lambda place, part: part, [1])
    after = len(told)
    assert set(told) == {("five ranges", None, None), ("five ranges", 3, 10)}
    assert not any(t.name == "l0gc-tasks" for t in threading.enumerate())
    assert len(told) == after


def test_a_stop_is_heard_though_the_job_began_only_after_it() -> None:
    """A job that does not exist yet cannot be cancelled, and would run to its end."""
    running, cancelled, stop = threading.Event(), threading.Event(), threading.Event()
    asked = threading.Semaphore(0)

    def cancel(tag: str) -> None:
        asked.release()
        if running.is_set():
            cancelled.set()

    def collect() -> list[Any]:
        stop.set()
        assert asked.acquire(timeout=120)
        running.set()
        if not cancelled.wait(120):
            raise AssertionError("nobody has cancelled the job")
        raise Py4JError("cancelled")

    tracker = SimpleNamespace(getActiveStageIds=list, getActiveJobsIds=list)
    context = SimpleNamespace(statusTracker=lambda: tracker, cancelJobsWithTag=cancel, collect=collect)
    result = SweepRun(a_cluster(), workers=workers(context), stop=stop).run()
    assert (result.stopped, result.engine) == (True, "spark")
    assert not any(t.name == "l0gc-stop" for t in threading.enumerate())


def test_a_dead_java_ends_the_job_but_not_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread's traceback would appear next to the sentence that reports it."""
    polled = threading.Semaphore(0)
    lost: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lost.append)

    def gone() -> list[int]:
        polled.release()
        raise Py4JError("no connection")

    def collect() -> list[Any]:
        assert polled.acquire(timeout=120)
        polled.acquire(timeout=1)
        raise Py4JError("no connection")

    tracker = SimpleNamespace(getActiveJobsIds=gone)
    with pytest.raises(L0gcError, match="Java process was killed"):
        workers(SimpleNamespace(statusTracker=lambda: tracker, collect=collect)).map(lambda place, part: part, [1])
    assert lost == []


# -- the end of a job -----------------------------------------------------------------------------------------------------


def test_what_an_executor_raised_is_raised_as_the_same_class() -> None:
    message = "Job aborted\nTraceback\nl0gc.errors.CorruptObjectError: a/key is damaged\n\tat org.apache.spark"
    cause = cause_of(PySparkException(message))
    assert isinstance(cause, CorruptObjectError)
    assert str(cause) == "a/key is damaged"
    stale = cause_of(PySparkException(message.replace("CorruptObject", "StaleClusterEpoch")))
    assert (type(stale), str(stale)) == (StaleClusterEpochError, "a/key is damaged")


def test_what_a_stream_raised_is_found_before_the_plan_that_spark_adds() -> None:
    stream = " SQLSTATE: 38000\n=== Streaming Query ===\nIdentifier: [id = a]\nCurrent State: ACTIVE\nPlan: none"
    cause = cause_of(PySparkException(f"[STREAM_FAILED]\nl0gc.errors.CorruptObjectError: a/key is damaged\n{stream}"))
    assert (type(cause), str(cause)) == (CorruptObjectError, "a/key is damaged")
    other = cause_of(PySparkException(f"[STREAM_FAILED]\nValueError: not ours\n{stream}"))
    assert str(other).startswith("the Spark job failed: ValueError: not ours (")


@pytest.mark.parametrize(
    "lost", [Py4JNetworkError("Answer from Java side is empty"), ConnectionRefusedError(111, "no")]
)
def test_a_java_that_has_gone_is_one_sentence(lost: Exception) -> None:
    with pytest.raises(L0gcError, match=r"^the Spark job failed: its Java process was killed or ran"), raising_causes():
        raise lost


def test_a_full_disk_anywhere_is_one_sentence() -> None:
    message = (
        "Job aborted\nTraceback\nOSError: [Errno 28] No space left on device: '/tmp/l0gc-l1-x'\n\tat org.apache.spark"
    )
    assert str(cause_of(PySparkException(message))).startswith(
        "the Spark job failed: No space left on device, here or on"
    )


def test_a_signal_stays_one_although_pyspark_fails_at_cleaning_up_after_it() -> None:
    lost = Py4JNetworkError("Answer from Java side is empty")
    lost.__context__ = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt), raising_causes():
        raise lost


@pytest.mark.parametrize(
    ("why", "raised", "match"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt, None),
        (ConnectionRefusedError(111, "no"), L0gcError, "^the Spark job failed: its Java process was killed or ran"),
    ],
    ids=["a signal", "Java has gone"],
)
def test_a_connection_that_pyspark_could_not_make_does_not_hide_why(
    why: BaseException, raised: type[BaseException], match: str | None
) -> None:
    """pyspark closes the connection in any case, as this function does."""

    def connected() -> io.BytesIO:
        raise why

    def answer() -> bytes:
        try:
            connection = connected()
            return connection.read()
        finally:
            connection.close()

    with pytest.raises(raised, match=match), raising_causes():
        answer()


def test_a_variable_that_nobody_set_is_not_a_failure_of_spark() -> None:
    with pytest.raises(UnboundLocalError), raising_causes():
        raise UnboundLocalError


@pytest.mark.weed
@pytest.mark.spark
def test_what_java_throws_is_one_line(one_spark: SparkSession) -> None:
    jvm: Any = one_spark.sparkContext._jvm
    empty = jvm.java.util.ArrayDeque()
    with pytest.raises(L0gcError) as raised, raising_causes():
        empty.removeFirst()
    assert isinstance(raised.value.__cause__, Py4JJavaError)
    assert str(raised.value).startswith("the Spark job failed: java.util.NoSuchElementException (run it with -v")
