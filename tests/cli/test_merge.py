"""`l0gc merge`: what it prints, its exit code, where it runs, and that Spark is started only for enough work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from l0gc.api.engine import Engine
from l0gc.api.estimate import Pace
from l0gc.api.groups import checked
from l0gc.cli.metrics import Run, samples
from l0gc.cli.output import Output, Result, taking_results
from l0gc.cli.reconcile import run_merge
from l0gc.errors import NotFoundError, PartialFailureError
from l0gc.settings import Settings
from l0gc.streamlog.level_one.merge import MergeResult
from tests.support.merge import a_cluster, counts, fill
from tests.test_api import over

DONE = MergeResult(1600, 8, 100_000, 3 << 20, 4 << 20, 8, seconds=1.23456)


def printed(result: MergeResult, *, dry_run: bool = False) -> Result:
    """Return what the command prints of a run."""
    result = msgspec.structs.replace(result, dry_run=dry_run)
    with taking_results() as results:
        run_merge(Output(Settings()), after(result))
    return results[-1]


def after(result: MergeResult) -> Callable[..., MergeResult]:
    """Return a run with this result."""
    return lambda **options: checked(result)


def test_the_result_counts_objects_partitions_records_and_bytes() -> None:
    done = printed(DONE)
    assert done.text == [
        "1,600 L1 objects of 8 partitions became 8 (100,000 records, 4.0 MiB, now 3.0 MiB)",
    ]
    assert done.data == {
        "merged": {
            "objects_before": 1600,
            "objects_after": 8,
            "records": 100_000,
            "bytes": 3 << 20,
            "bytes_read": 4 << 20,
            "partitions": 8,
            "drained": 0,
        },
        "lost": 0,
        "errors": [],
        "engine": "local",
        "engine_reason": "",
        "dry_run": False,
        "seconds": 1.235,
    }


def test_a_dry_run_says_what_would_become_of_it() -> None:
    assert printed(DONE, dry_run=True).text == [
        "1,600 L1 objects of 8 partitions would become 8 (100,000 records, 4.0 MiB)",
    ]
    assert printed(MergeResult(), dry_run=True).text == ["nothing to merge"]


def test_a_merge_that_was_given_up_is_reported_and_is_no_error() -> None:
    assert printed(MergeResult(lost=3)).text == [
        "nothing to merge; 3 merges given up, because another run has changed those objects "
        "(l0gc vacuum removes what was written)"
    ]


def test_what_was_left_out_is_named_and_exits_with_3() -> None:
    result = MergeResult(errors=[f"partition events/{n}: damaged" for n in range(5)])
    with taking_results() as results, pytest.raises(PartialFailureError) as e:
        run_merge(Output(Settings()), after(result))
    assert str(e.value) == (
        "not everything could be merged: partition events/0: damaged; partition events/1: damaged; "
        "partition events/2: damaged (and 2 more)"
    )
    assert e.value.exit_code == 3
    assert len(results[-1].data["errors"]) == 5


def test_spark_is_not_started_for_little_or_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_spark(*anything: Any) -> Any:
        raise AssertionError("nothing needs Spark")

    monkeypatch.setattr(Engine, "session", no_spark)
    monkeypatch.setattr("l0gc.spark.master.has_java", lambda: True)
    a = a_cluster()
    with over(a, monkeypatch) as cluster:
        assert printed(cluster.merge(Engine("spark"))).text == ["nothing to merge"]
        with pytest.raises(NotFoundError, match="'event'"):
            cluster.merge(Engine("spark"), "event")
        fill(a, 4)
        planned = cluster.merge(Engine("spark"), dry_run=True)
        assert (planned.objects_before, planned.engine, planned.dry_run) == (16, "spark", True)
        assert counts(a) == [4] * 4
        done = cluster.merge(Engine())
        assert (done.objects_after, done.engine, done.dry_run) == (4, "local", False)
        assert counts(a) == [1] * 4
        fill(a, 3, first=4)
        monkeypatch.setattr("l0gc.api.cluster.REWRITING", Pace(here=1e-6, core=1))
        with pytest.raises(AssertionError, match="nothing needs Spark"):
            cluster.merge(Engine())
        with pytest.raises(AssertionError, match="nothing needs Spark"):
            cluster.merge(Engine(master="spark://host:7077"))


def test_the_metrics_show_what_was_read_and_written() -> None:
    numbers = samples(Run("merge", printed(DONE).data), "s3://b")
    found = {name: value for (name, _), value in numbers.items()}
    assert found["l0gc_merge_read_bytes_total"] == 4 << 20
    assert found["l0gc_merge_written_bytes_total"] == 3 << 20
    assert found["l0gc_merged_l1_objects_total"] == 1600
    assert found["l0gc_merged_into_l1_objects_total"] == 8
