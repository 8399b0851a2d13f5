"""compute-watermark on Spark: executors read the reports and the listing, `watermark/job.py` decides on the driver."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from l0gc.cluster import Cluster
from l0gc.keys import REPORTS, KeyLayout
from l0gc.spark.listing import ListingSource
from l0gc.spark.remote import cause_of, store_options
from l0gc.spark.reports import ReportsSource
from l0gc.storage.s3 import StoreConfig
from l0gc.watermark import job
from l0gc.watermark.compute import PartitionReport
from l0gc.watermark.job import EpochRow, WatermarkResult

_SLICES_PER_CORE = 4


def run(
    spark: SparkSession, cluster: Cluster, config: StoreConfig, *, scan: bool = True, publish_it: bool = True
) -> WatermarkResult:
    """See `watermark.job.run`; `scan` is whether the listing is read."""
    try:
        return job.run(
            cluster,
            lambda: best_reports(spark, cluster, config),
            (lambda layout: epoch_histogram(spark, config, layout)) if scan else None,
            publish_it=publish_it,
        )
    except PySparkException as e:
        raise cause_of(e) from e


def best_reports(spark: SparkSession, cluster: Cluster, config: StoreConfig) -> Iterator[PartitionReport]:
    """The report with the highest gc epoch of each partition that has one, and of each cluster that left any."""
    keys = [k for k in cluster.store.list(REPORTS).modified_ms if k.endswith(".parquet")]
    if not keys:
        return
    options = store_options(config) | {"keys": msgspec.json.encode(keys).decode(), "slices": _slices(spark)}
    frame = _load(spark, ReportsSource, options)
    rank = F.struct("gc_epoch", "log_offset")
    best = frame.groupBy("cluster_id", "topic", "revision", "partition").agg(
        F.max_by(F.struct(*[F.col(c) for c in frame.columns]), rank).alias("r")
    )
    for row in best.select("r.*").toArrow().to_pylist():
        yield msgspec.convert(row, PartitionReport)


def epoch_histogram(spark: SparkSession, config: StoreConfig, layout: KeyLayout) -> list[EpochRow]:
    """Objects and bytes at each epoch that the bucket holds, with one key of each."""
    options = store_options(config) | {
        "template": layout.template,
        "shards": str(layout.shards),
        "slices": _slices(spark),
    }
    frame = _load(spark, ListingSource, options)
    histogram = frame.groupBy("epoch").agg(
        F.count("*").alias("objects"), F.sum("bytes").alias("bytes"), F.min("key").alias("sample_key")
    )
    return [EpochRow(**row) for row in histogram.toArrow().to_pylist()]


def _load(spark: SparkSession, source: type[ListingSource] | type[ReportsSource], options: dict[str, str]) -> DataFrame:
    spark.dataSource.register(source)
    return spark.read.format(source.name()).options(**options).load()


def _slices(spark: SparkSession) -> str:
    return str(spark.sparkContext.defaultParallelism * _SLICES_PER_CORE)
