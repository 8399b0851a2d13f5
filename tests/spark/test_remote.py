"""What went wrong in a job is reported in one sentence, by the part that it failed in."""

from __future__ import annotations

from typing import Any

import pytest
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from l0gc.errors import CorruptObjectError, L0gcError
from l0gc.spark.remote import cause_of, telling_causes


def test_what_an_executor_raised_is_raised_as_the_same_class() -> None:
    message = "Job aborted\nTraceback\nl0gc.errors.CorruptObjectError: a/key is damaged\n\tat org.apache.spark"
    cause = cause_of(PySparkException(message))
    assert isinstance(cause, CorruptObjectError)
    assert str(cause) == "a/key is damaged"


@pytest.mark.parametrize(
    "lost", [Py4JNetworkError("Answer from Java side is empty"), ConnectionRefusedError(111, "no")]
)
def test_a_java_that_has_gone_is_one_sentence(lost: Exception) -> None:
    with pytest.raises(L0gcError, match=r"^the Spark job failed: its Java has gone"), telling_causes():
        raise lost


def test_a_disk_that_is_full_somewhere_is_a_sentence_with_the_way_out() -> None:
    message = (
        "Job aborted\nTraceback\nOSError: [Errno 28] No space left on device: '/tmp/l0gc-l1-x'\n\tat org.apache.spark"
    )
    assert str(cause_of(PySparkException(message))).startswith(
        "the Spark job failed: No space left on device, here or on"
    )


def test_a_signal_stays_one_although_pyspark_fails_at_cleaning_up_after_it() -> None:
    lost = Py4JNetworkError("Answer from Java side is empty")
    lost.__context__ = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt), telling_causes():
        raise lost


@pytest.mark.weed
@pytest.mark.spark
def test_what_java_throws_is_one_line(one_spark: SparkSession) -> None:
    jvm: Any = one_spark.sparkContext._jvm
    empty = jvm.java.util.ArrayDeque()
    with pytest.raises(L0gcError) as raised, telling_causes():
        empty.removeFirst()
    assert isinstance(raised.value.__cause__, Py4JJavaError)
    assert str(raised.value).startswith("the Spark job failed: java.util.NoSuchElementException (run it with -v")
