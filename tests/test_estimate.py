"""`auto` takes the engine whose estimate is lower: a table of cases, without a store."""

from __future__ import annotations

from math import inf

import pytest

from l0gc.api.estimate import (
    DELETING,
    LISTING,
    REWRITING,
    RUNNING_S,
    START_S,
    EngineEstimate,
    Pace,
    SparkTarget,
)
from l0gc.spark.master import cores_named

HERE = SparkTarget("local[2]", 2)
FOUR_BY_EIGHT = SparkTarget("spark://host:7077", 32, cluster=True)
MANY_CORES = SparkTarget("local[*]", 64)


@pytest.mark.parametrize(
    ("pace", "size", "journals", "spark", "is_faster"),
    [
        (LISTING, 10**3, 16, FOUR_BY_EIGHT, False),
        (LISTING, 10**5, 16, FOUR_BY_EIGHT, False),
        (LISTING, 10**7, 16, FOUR_BY_EIGHT, True),
        (LISTING, 10**9, 16, FOUR_BY_EIGHT, True),
        (LISTING, 10**6, 16, HERE, False),
        (LISTING, 10**12, 9_999, HERE, False),
        (LISTING, 10**6, 16, MANY_CORES, True),
        (LISTING, 0, 16, FOUR_BY_EIGHT, False),
        (LISTING, 0, 1_000, FOUR_BY_EIGHT, True),
        (DELETING, 10**9, 0, FOUR_BY_EIGHT, True),
        (DELETING, 10**5, 0, FOUR_BY_EIGHT, False),
        (DELETING, 10**12, 0, HERE, False),
        (REWRITING, 10**6, 0, FOUR_BY_EIGHT, False),
        (REWRITING, 10**9, 0, FOUR_BY_EIGHT, True),
    ],
)
def test_spark_is_faster_where_its_cores_make_up_for_its_start(
    pace: Pace, size: int, journals: int, spark: SparkTarget, is_faster: bool
) -> None:
    estimate = EngineEstimate(pace, journals, 2, spark)
    assert (estimate.spark_s(size) <= estimate.local_s(size)) == is_faster
    assert (size >= estimate.break_even) == is_faster


@pytest.mark.parametrize("pace", [LISTING, DELETING])
@pytest.mark.parametrize("cores", [1, 2])
def test_two_local_cores_never_justify_a_store_bound_spark(pace: Pace, cores: int) -> None:
    assert EngineEstimate(pace, 16, cores, SparkTarget("local[*]", cores)).break_even == inf


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("journals", [0, 16, 500])
@pytest.mark.parametrize("cores", [3, 8, 32, 500])
@pytest.mark.parametrize("pace", [LISTING, DELETING, REWRITING])
def test_from_the_even_size_on_and_not_below_spark_is_faster(
    pace: Pace, cores: int, journals: int, running: bool
) -> None:
    estimate = EngineEstimate(pace, journals, 2, SparkTarget("spark://h:1", cores, cluster=True, running=running))
    even = estimate.break_even
    if even == inf:
        assert estimate.spark_s(10**15) > estimate.local_s(10**15)
        return
    assert estimate.spark_s(even) <= estimate.local_s(even) * (1 + 1e-9)
    assert even == 0 or estimate.spark_s(even - 1) > estimate.local_s(even - 1) * (1 - 1e-9)


def test_a_session_that_runs_costs_no_start() -> None:
    started = SparkTarget("spark://h:1", 32, cluster=True, running=True)
    assert EngineEstimate(LISTING, 0, 2, FOUR_BY_EIGHT).spark_s(0) == START_S
    assert EngineEstimate(LISTING, 0, 2, started).spark_s(0) == RUNNING_S


def test_one_process_uses_no_more_cores_than_its_work_can() -> None:
    pace = Pace(here=10, core=10, most_cores=4)
    assert [EngineEstimate(pace, 0, cores, HERE).local_s(400) for cores in (1, 2, 4, 64)] == [40, 20, 10, 10]


@pytest.mark.parametrize(
    ("master", "conf", "cores"),
    [
        ("local", {}, 1),
        ("local[3]", {}, 3),
        ("local[4,2]", {}, 4),
        ("local[*]", {}, 12),
        ("spark://h:1", {}, None),
        ("spark://h:1", {"spark.cores.max": "24"}, 24),
        ("yarn", {"spark.executor.instances": "4", "spark.executor.cores": "8"}, 32),
        ("yarn", {"spark.executor.instances": "4"}, 4),
        ("yarn", {"spark.dynamicAllocation.maxExecutors": "50", "spark.executor.cores": "4"}, 200),
        ("yarn", {"spark.executor.instances": "many"}, None),
    ],
)
def test_the_cores_named_spark_follow_from_the_master_and_its_settings(
    master: str, conf: dict[str, str], cores: int | None
) -> None:
    assert cores_named(master, conf, 12) == cores


def test_spark_may_be_faster_from_the_first_unit_on() -> None:
    spark = SparkTarget("yarn", cores=16, cluster=True, running=True)
    slower_by_unit = Pace(here=100, core=1)
    assert EngineEstimate(slower_by_unit, 1000, 1, spark).break_even == 0
    assert EngineEstimate(slower_by_unit, 0, 1, spark).break_even == inf
