"""Spark reuses parts of a plan (docs/work/spark.md begins with this), but a query still finds new records."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import l0gc
import l0gc.spark
from l0gc.storage.config import StoreConfig
from tests.flows.spark_topics import load

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.weed, pytest.mark.spark, pytest.mark.slow, pytest.mark.thorough]


def pairs(first: int, end: int, what: str) -> list[bytes]:
    return [b'{"id":"%d","text":"%s %d"}' % (n, what.encode(), n) for n in range(first, end)]


def test_a_view_keeps_its_plan_across_micro_batches(
    spark: SparkSession, cluster: l0gc.Cluster, bucket: StoreConfig, tmp_path: Path
) -> None:
    for topic in ("events", "names"):
        cluster.topics.create(topic, partitions=2)
        cluster.upload(topic, pairs(0, 10, topic), key_field="id")
    load(spark, bucket, topic="names").createOrReplaceTempView("names")
    assert spark.table("names").count() == 10
    joined: dict[str, str] = {}

    def enrich(events: DataFrame, batch_id: int) -> None:
        names = load(spark, bucket, topic="names").selectExpr("key", "value AS name")
        for row in events.join(names, "key").collect():
            joined[bytes(row["key"]).decode()] = bytes(row["name"]).decode()

    def run() -> None:
        stream = spark.readStream.format("l0gc").options(url=bucket.url, endpointUrl=bucket.endpoint_url or "")
        begun = stream.options(topic="events", startingOffsets="earliest").load().writeStream.foreachBatch(enrich)
        query = begun.option("checkpointLocation", str(tmp_path / "cp")).trigger(availableNow=True).start()
        query.awaitTermination()

    run()
    assert sorted(map(int, joined)) == list(range(10))
    for topic in ("names", "events"):
        cluster.upload(topic, pairs(10, 20, topic), key_field="id")
    spark.catalog.refreshTable("names")
    assert spark.table("names").count() == 10, "Spark plans a view anew: say so in docs/work/spark.md"
    run()
    assert joined["19"] == '{"id":"19","text":"names 19"}'
    assert len(joined) == 20


def test_tasks_equal_cores_and_only_named_columns_are_read(
    spark: SparkSession, cluster: l0gc.Cluster, bucket: StoreConfig
) -> None:
    cores = spark.sparkContext.defaultParallelism
    cluster.topics.create("events", partitions=2 * cores)
    records = [os.urandom(1 << 10).hex().encode() for _ in range(cores << 11)]
    cluster.upload("events", records)
    frame = load(spark, bucket, topic="events", columns="value,offset")
    assert frame.columns == ["value", "offset"]
    assert frame.rdd.getNumPartitions() >= cores
    assert frame.selectExpr("sum(length(value))").first()[0] == sum(map(len, records))  # type: ignore[index]
