"""`l0gc reconcile`: what it prints, its exit code, and that Spark is started only for work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from l0gc.api.engine import Engine
from l0gc.api.estimate import Pace
from l0gc.api.groups import checked
from l0gc.cli.output import Output, Result, taking_results
from l0gc.cli.reconcile import run_reconcile
from l0gc.errors import NotFoundError, PartialFailureError
from l0gc.settings import Settings
from l0gc.streamlog.level_one.reconcile import ReconcileResult
from tests.support.memory_store import topic_in_memory
from tests.support.reconcile import put
from tests.test_api import over


def result(rounds: int = 1, lost: int = 0) -> ReconcileResult:
    return ReconcileResult(1000, 4, 8362, 4, lost, rounds, seconds=1.23456)


def printed(r: ReconcileResult) -> Result:
    """Return what the command prints of a run."""
    with taking_results() as results:
        run_reconcile(Output(Settings()), after(r))
    return results[-1]


def after(r: ReconcileResult) -> Callable[..., ReconcileResult]:
    """Return a run with this result."""
    return lambda **options: checked(r)


def test_the_result_counts_records_objects_and_partitions() -> None:
    done = printed(result())
    assert done.text == ["1,000 records of 4 partitions in 4 L1 objects (8.2 KiB)"]
    assert done.data == {
        "records": 1000,
        "l1_objects": 4,
        "bytes": 8362,
        "partitions": 4,
        "lost": 0,
        "limited": False,
        "misfits": 0,
        "rounds": 1,
        "errors": [],
        "engine": "local",
        "engine_reason": "",
        "seconds": 1.235,
    }


def test_the_text_has_the_rounds_and_what_was_left_to_others() -> None:
    assert printed(result(rounds=2, lost=3)).text == [
        "1,000 records of 4 partitions in 4 L1 objects (8.2 KiB), in 2 rounds; 3 partitions left to another reconciler, "
        "which was first"
    ]


def test_what_was_left_out_is_named_and_exits_with_3() -> None:
    r = result()
    r.errors = [f"object {n} is damaged" for n in range(5)]
    with taking_results() as results, pytest.raises(PartialFailureError) as e:
        run_reconcile(Output(Settings()), after(r))
    assert str(e.value) == (
        "not everything could be lifted: object 0 is damaged; object 1 is damaged; object 2 is damaged (and 2 more)"
    )
    assert e.value.exit_code == 3
    assert len(results[-1].data["errors"]) == 5


def test_spark_is_not_started_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_spark(*anything: Any) -> Any:
        raise AssertionError("nothing needs Spark")

    monkeypatch.setattr(Engine, "session", no_spark)
    handles = topic_in_memory(4)
    with over(handles, monkeypatch) as cluster:
        on_spark = Engine("spark")
        assert (cluster.reconcile(on_spark).records, cluster.reconcile(on_spark).rounds) == (0, 0)
        with pytest.raises(NotFoundError, match="'event'"):
            cluster.reconcile(on_spark, "event")
        put(handles, "events", {0: [b"x"], 3: [b"y", b"z"]})
        with pytest.raises(AssertionError, match="nothing needs Spark"):
            cluster.reconcile(on_spark)
        monkeypatch.setattr("l0gc.api.cluster.REWRITING", Pace(here=1e-6, core=1))
        monkeypatch.setattr("l0gc.spark.master.has_java", lambda: True)
        with pytest.raises(AssertionError, match="nothing needs Spark"):
            cluster.reconcile(Engine())
        monkeypatch.setattr("l0gc.api.cluster.REWRITING", Pace(here=1, core=1e-6))
        done = cluster.reconcile(Engine())
    assert (done.records, done.l1_objects) == (3, 2)
