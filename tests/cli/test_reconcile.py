"""`l0gc reconcile`: what it prints, its exit code, and that Spark is started only for work."""

from __future__ import annotations

from contextlib import AbstractContextManager
from unittest import mock

import numpy as np
import pytest

from l0gc.cli.output import Output, Result, taking_results
from l0gc.cli.reconcile import print_result, run_reconcile
from l0gc.errors import PartialFailureError, TopicNotFoundError
from l0gc.settings import Settings
from l0gc.storage.config import StoreConfig
from l0gc.storage.workers import LOCAL
from l0gc.streamlog.level_one.commit import Committed
from l0gc.streamlog.level_one.reconcile import ReconcileResult
from tests.support.memory_store import memory_cluster
from tests.support.reconcile import put


def result(rounds: int = 1, lost: int = 0) -> ReconcileResult:
    found = ReconcileResult(rounds=rounds, seconds=1.23456)
    found.add(Committed(0, 1000, 4, 8362, {5: np.arange(4)}, lost))
    return found


def printed(r: ReconcileResult) -> Result:
    with taking_results() as results:
        print_result(Output(Settings()), r)
    return results[-1]


def test_the_result_counts_records_objects_and_partitions() -> None:
    done = printed(result())
    assert done.text == ["1,000 records of 4 partitions in 4 L1 objects (8.2 KiB)"]
    assert done.data == {
        "records": 1000,
        "l1_objects": 4,
        "bytes": 8362,
        "partitions": 4,
        "lost": 0,
        "rounds": 1,
        "errors": [],
        "seconds": 1.235,
    }


def test_a_partition_that_was_lifted_in_two_rounds_counts_once() -> None:
    r = result(rounds=2, lost=3)
    r.add(Committed(1, 10, 2, 2000, {5: np.array([3, 9]), 7: np.array([0])}))
    assert printed(r).text == [
        "1,010 records of 6 partitions in 6 L1 objects (10.1 KiB), in 2 rounds; 3 partitions left to another reconciler, "
        "which was first"
    ]


def test_what_was_left_out_is_named_and_exits_with_3() -> None:
    r = result()
    r.errors = [f"object {n} is damaged" for n in range(5)]
    with taking_results() as results, pytest.raises(PartialFailureError) as e:
        print_result(Output(Settings()), r)
    assert str(e.value) == (
        "not everything could be lifted: object 0 is damaged; object 1 is damaged; object 2 is damaged (and 2 more)"
    )
    assert e.value.exit_code == 3
    assert len(results[-1].data["errors"]) == 5


def no_spark(defaults: tuple[str, ...]) -> AbstractContextManager[mock.Mock]:
    raise AssertionError("nothing needs Spark")


def test_spark_is_not_started_for_nothing() -> None:
    cluster = memory_cluster()
    cluster.controller.create_topic("events", 4)
    out, config = Output(Settings()), StoreConfig("b")
    with taking_results() as results:
        run_reconcile(out, cluster, config, no_spark)
    assert (results[-1].data["records"], results[-1].data["rounds"]) == (0, 0)
    with pytest.raises(TopicNotFoundError, match="'event'"):
        run_reconcile(out, cluster, config, no_spark, "event")
    put(cluster, "events", {0: [b"x"]})
    with pytest.raises(AssertionError, match="nothing needs Spark"):
        run_reconcile(out, cluster, config, no_spark)


def test_the_local_engine_lifts_without_spark_and_java() -> None:
    cluster = memory_cluster()
    cluster.controller.create_topic("events", 4)
    put(cluster, "events", {0: [b"x"], 3: [b"y", b"z"]})
    with taking_results() as results:
        run_reconcile(Output(Settings()), cluster, StoreConfig("b"), no_spark, engine=LOCAL)
    assert (results[-1].data["records"], results[-1].data["l1_objects"]) == (3, 2)
