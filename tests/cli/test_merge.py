"""`l0gc merge`: what it prints, its exit code, where it runs, and that Spark is started only where it is worth it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from unittest import mock

import click
import pytest
from click.testing import CliRunner

from l0gc.cli import merge as command
from l0gc.cli.merge import choose_engine, print_result, rule_options, run_merge
from l0gc.cli.metrics import Run, samples
from l0gc.cli.output import Output, Result, taking_results
from l0gc.errors import PartialFailureError, TopicNotFoundError
from l0gc.settings import Settings
from l0gc.storage.config import StoreConfig
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.level_one.merge import MergePlan
from l0gc.streamlog.level_one.merge_commit import MergeResult
from l0gc.streamlog.level_one.merge_plan import MergeRule
from tests.support.merge import a_cluster, counts, fill

DONE = MergeResult(1600, 8, 100_000, 3 << 20, 4 << 20, 8, seconds=1.23456)


def printed(result: MergeResult, *, dry_run: bool = False) -> Result:
    with taking_results() as results:
        print_result(Output(Settings()), result, "local", dry_run=dry_run)
    return results[-1]


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
        },
        "lost": 0,
        "errors": [],
        "engine": "local",
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
        print_result(Output(Settings()), result, "local", dry_run=False)
    assert str(e.value) == (
        "not everything could be merged: partition events/0: damaged; partition events/1: damaged; "
        "partition events/2: damaged (and 2 more)"
    )
    assert e.value.exit_code == 3
    assert len(results[-1].data["errors"]) == 5


def test_spark_is_for_much() -> None:
    little, much, nothing = (MergePlan([], MergeResult(n, bytes_read=size)) for n, size in SIZES)
    assert [choose_engine("auto", plan) for plan in (little, much, nothing)] == ["local", "spark", "local"]
    assert [choose_engine("local", plan) for plan in (little, much, nothing)] == ["local"] * 3
    assert [choose_engine("spark", plan) for plan in (little, much, nothing)] == ["spark", "spark", "local"]


SIZES = [(2, (1 << 30) - 1), (2, 1 << 30), (0, 0)]


def no_spark(defaults: tuple[str, ...]) -> AbstractContextManager[mock.Mock]:
    raise AssertionError("nothing needs Spark")


def run(cluster: Cluster, topic: str | None = None, *, dry_run: bool = False, engine: str = "auto") -> Result:
    with taking_results() as results:
        run_merge(Output(Settings()), cluster, StoreConfig("b"), no_spark, topic, dry_run=dry_run, engine=engine)
    return results[-1]


def test_spark_is_not_started_for_little_or_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    a = a_cluster()
    assert run(a, engine="spark").text == ["nothing to merge"]
    with pytest.raises(TopicNotFoundError, match="'event'"):
        run(a, "event", engine="spark")
    fill(a, 4)
    assert run(a, dry_run=True, engine="spark").data["merged"]["objects_before"] == 16
    assert counts(a) == [4] * 4
    done = run(a)
    assert (done.data["merged"]["objects_after"], done.data["engine"]) == (4, "local")
    assert counts(a) == [1] * 4
    fill(a, 3, first=4)
    monkeypatch.setattr(command, "SPARK_FROM", 1)
    with pytest.raises(AssertionError, match="nothing needs Spark"):
        run(a)


def test_the_metrics_show_what_was_read_and_written() -> None:
    found = {s.metric.name: s.value for s in samples(Run("merge", printed(DONE).data), "s3://b")}
    assert found["l0gc_merge_read_bytes_total"] == 4 << 20
    assert found["l0gc_merge_written_bytes_total"] == 3 << 20
    assert found["l0gc_merged_l1_objects_total"] == 1600
    assert found["l0gc_merged_into_l1_objects_total"] == 8


def test_what_is_merged_can_be_set_by_options_and_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    @rule_options("merge-")
    def show(rule: MergeRule) -> None:
        click.echo(f"{rule.target_bytes} {rule.fan_in}")

    def shown(*args: str) -> str:
        return CliRunner().invoke(show, args).output.strip()

    assert shown() == f"{128 << 20} 4" == f"{MergeRule().target_bytes} {MergeRule().fan_in}"
    assert shown("--merge-target-bytes", "1MiB", "--merge-fan-in", "8") == f"{1 << 20} 8"
    monkeypatch.setenv("L0GC_MERGE_TARGET_BYTES", "2MiB")
    monkeypatch.setenv("L0GC_MERGE_FAN_IN", "2")
    assert shown() == f"{2 << 20} 2"
    assert "--merge-fan-in" in shown("--merge-fan-in", "1")
