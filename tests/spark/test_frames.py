"""Reports and partitions of an external log on Spark's executors: the answer and the refusals of one process."""

from __future__ import annotations

import datetime
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

import l0gc
from l0gc.api import Cluster, Engine, ExternalFiles, ExternalFrames
from l0gc.errors import (
    ClusterMismatchError,
    CorruptObjectError,
    EpochRegressionError,
    L0gcError,
    SafetyError,
    UsageError,
)
from l0gc.storage.config import StoreConfig
from tests.support.external import answer, in_the_bucket

pytestmark = [pytest.mark.spark, pytest.mark.weed]
LISTED, REPORTED = (
    "topic string, revision long, partition int",
    "topic string, revision long, partition int, gc_epoch long",
)


@pytest.fixture
def cluster(bucket: StoreConfig) -> Iterator[Cluster]:
    with l0gc.open(bucket.url) as cluster:
        cluster.init(create_bucket=True, external_log=True)
        yield cluster


def both(spark: SparkSession, listed: list[Any], reported: list[Any]) -> tuple[DataFrame, DataFrame]:
    return spark.createDataFrame(reported, REPORTED), spark.createDataFrame(listed, LISTED)


@pytest.mark.thorough
def test_what_spark_writes_is_read_on_spark_and_in_one_process(
    cluster: Cluster, one_spark: SparkSession, tmp_path: Path
) -> None:
    listed = [(t, 3, n) for t in ("clicks", "a/b=c d") for n in range(20)]
    reports, partitions = both(one_spark, listed, [(t, 3, n, 40 + n) for t, _, n in listed[1:]])
    files = ExternalFiles(
        in_the_bucket(cluster, "reports", reports, tmp_path, "topic"),
        in_the_bucket(cluster, "partitions", partitions, tmp_path, "topic", "revision"),
        cluster_epoch=99,
    )
    said = [
        answer(cluster, Engine("local"), external=files),
        answer(cluster, Engine("spark"), external=files),
        answer(cluster, one_spark, external=ExternalFrames(reports, partitions, cluster_epoch=99)),
    ]
    assert '"watermark": 2,' in str(said[0])
    assert '"partitions": 40' in str(said[0])
    assert said == [said[0]] * 3


@pytest.mark.thorough
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.randoms(use_true_random=False))
def test_every_road_gives_the_same_answer(
    cluster: Cluster, one_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, rng: random.Random
) -> None:
    """All give the same JSON, byte for byte, or the same class of error."""
    tmp_path = tmp_path_factory.mktemp("rows")
    choices: list[list[int | None]] = [[None], [3], [3, 5], [None, 3]]
    revisions = rng.choice(choices)

    def row() -> tuple[str, int | None, int]:
        return rng.choice("abé"), rng.choice(revisions), rng.randrange(4)

    def folders(rows: list[Any]) -> list[str]:
        return ["topic"] if rows and rng.random() < 0.5 else []  # without rows Spark writes no file there

    listed = [row() for _ in range(rng.randrange(30))]
    known = [p for p in listed if rng.random() < 0.8] + ([row()] if rng.random() < 0.3 else [])
    reported = [(*p, rng.randrange(-1, 52 if rng.random() < 0.1 else 51)) for p in known]
    reports, partitions = both(one_spark, listed, reported)
    limits: dict[str, Any] = {
        "cluster_epoch": 50,
        "allow_unlisted_reports": rng.random() < 0.5,
        "allow_no_partitions": True,
    }
    files = ExternalFiles(
        in_the_bucket(cluster, "reports", reports, tmp_path, *(["topic"] if reported and rng.random() < 0.5 else [])),
        in_the_bucket(
            cluster,
            "partitions",
            partitions.repartition(3),
            tmp_path,
            *(["topic"] if listed and rng.random() < 0.5 else []),
        ),
        **limits,
    )
    said = [
        answer(cluster, Engine("local"), external=files),
        answer(cluster, Engine("spark"), external=files),
        answer(cluster, one_spark, external=ExternalFrames(reports, partitions, **limits)),
    ]
    assert said == [said[0]] * 3


def rows(spark: SparkSession, schema: str, *values: Any) -> DataFrame:
    return spark.createDataFrame(list(values), schema)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("given", "refused", "message"),
    [
        ({"partitions": ("topic string, partition int", ("t", 0))}, SafetyError, "1 report names a partition .* first t/1"),
        ({"cluster": "another"}, ClusterMismatchError, "belongs to cluster another"),
        ({"reports": (REPORTED, ("t", 1, 1, 51))}, EpochRegressionError, "report of partition t/1 is at epoch 51"),
        ({"reports": (REPORTED, ("t", 1, 1, None))}, CorruptObjectError, "reports has rows whose gc_epoch is empty"),
        ({"reports": ("topic string, partition int", ("t", 1))}, UsageError, "reports has no column 'gc_epoch'"),
        (
            {"reports": ("topic string, partition int, gc_epoch double", ("t", 1, 7.5))}, CorruptObjectError,
            "reports cannot be read",
        ),
        (
            {"reports": ("topic string, partition int, gc_epoch timestamp", ("t", 1, datetime.datetime(2026, 1, 1)))},
            CorruptObjectError, "timestamp.* in the column 'gc_epoch'",
        ),
        ({"partitions": (LISTED, ("t", 1, -1))}, UsageError, "a partition cannot be below 0"),
        ({"partitions": (LISTED,), "reports": (REPORTED,)}, SafetyError, "the list of partitions is empty"),
        ({"partitions": (LISTED, ("t", 1, 1), ("t", 2, 1)), "reports": (REPORTED, ("t", None, 1, 4))}, UsageError, "t/1 is"),
        ({"expect_partitions": 3}, SafetyError, "partitions lists 1 partition, but --expect-partitions is 3"),
        ({"cluster_epoch": None}, UsageError, "cluster epoch of partitions is not known"),
    ],
)  # fmt: skip
def test_a_data_frame_is_refused_as_files_are(
    cluster: Cluster, one_spark: SparkSession, given: dict[str, Any], refused: type[L0gcError], message: str
) -> None:
    frames: dict[str, Any] = {"cluster_epoch": 50} | given
    for name, default in (("partitions", (LISTED, ("t", 1, 1))), ("reports", (REPORTED, ("t", 1, 1, 7)))):
        schema, *values = frames.get(name, default)
        frames[name] = rows(one_spark, schema, *values)
    if other := frames.pop("cluster", None):
        from pyspark.sql.functions import lit

        frames["partitions"] = frames["partitions"].withColumn("cluster_id", lit(other))
    with pytest.raises(refused, match=message):
        cluster.compute_watermark(one_spark, scan=False, external=ExternalFrames(**frames))
    assert cluster.status().watermark == -1


def test_data_frames_are_given_as_reports_and_partitions(cluster: Cluster, one_spark: SparkSession) -> None:
    reports = rows(one_spark, REPORTED, ("t", 1, 1, 7))
    partitions = rows(one_spark, "topic string, partition int, cluster_epoch long", ("t", 1, 50))
    assert cluster.compute_watermark(reports=reports, partitions=partitions, scan=False).watermark == 7
    with pytest.raises(UsageError, match="need each other"):
        cluster.compute_watermark(reports=reports)
    with pytest.raises(UsageError, match="reports cannot be str: give a Spark DataFrame"):
        cluster.compute_watermark(one_spark, external=ExternalFrames("s3://b/r", partitions))  # type: ignore[arg-type]
