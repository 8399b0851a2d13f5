"""compute-watermark: reads the reports and the listing on the executors, decides and publishes on the driver.

The order of the reads is what makes it safe: the controller's snapshot first (M is capped at its epoch, hazard 5), then
the reports and the listing, then the cluster epoch once more, to be compared with what the bucket holds (hazard 10).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from l0gc.cluster import Cluster
from l0gc.keys import PUBLISHED_WATERMARK, REPORTS, KeyLayout, PartitionId
from l0gc.spark.listing import ListingSource
from l0gc.spark.remote import cause_of, store_options
from l0gc.spark.reports import ReportsSource
from l0gc.storage.s3 import StoreConfig
from l0gc.watermark.compute import (
    PartitionReport,
    Watermark,
    check_cluster_id,
    check_epochs,
    compute,
)
from l0gc.watermark.publication import PublishedWatermark, publish, read_published, watermark_of

_SLICES_PER_CORE = 4


@dataclass(frozen=True, slots=True)
class EpochRow:
    """What the bucket holds at one epoch; `epoch` is None for keys that are no L0 keys."""

    epoch: int | None
    objects: int
    bytes: int
    sample_key: str


@dataclass(slots=True)
class ListingTotals:
    objects: int = 0
    bytes: int = 0
    eligible_objects: int = 0
    eligible_bytes: int = 0
    unparsable: int = 0
    unparsable_sample: str = ""
    epochs: list[EpochRow] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class WatermarkResult:
    watermark: Watermark
    previous_watermark: int
    listing: ListingTotals | None
    published: bool


def run(
    spark: SparkSession, cluster: Cluster, config: StoreConfig, *, scan: bool = True, publish_it: bool = True
) -> WatermarkResult:
    """Compute M and publish it.

    Args:
        scan: read the listing, too; without it, what is eligible is not known, and an old controller log is found out by
            the reports alone.
        publish_it: False to look only.

    Raises:
        EpochRegressionError, ClusterMismatchError, WatermarkRegressionError: nothing was published.
    """
    snapshot = cluster.controller.snapshot()
    published, _ = read_published(cluster.store, snapshot.cluster_id)
    try:
        reports = best_reports(spark, cluster, config, snapshot.cluster_id)
        rows = epoch_histogram(spark, config, cluster.controller.layout()) if scan else None
    except PySparkException as e:
        raise cause_of(e) from e

    epoch_after = cluster.controller.snapshot().epoch
    check_epochs(epoch_after, watermark_of(published), f"the watermark in {PUBLISHED_WATERMARK}")
    for report in reports.values():
        highest = max(report.max_applied_epoch, report.revision)
        check_epochs(epoch_after, highest, f"a report of partition {report.topic}/{report.partition}")
    for row in rows or ():
        if row.epoch is not None:
            check_epochs(epoch_after, row.epoch, f"object {row.sample_key}")

    watermark = compute(snapshot.epoch, snapshot.partitions(), reports)
    totals = None if rows is None else _totals(rows, watermark.watermark)
    previous = published
    if publish_it:
        new = PublishedWatermark(
            snapshot.cluster_id,
            watermark.watermark,
            epoch_after,
            cluster.store.now_ms(),
            -1 if totals is None else totals.eligible_objects,
            -1 if totals is None else totals.eligible_bytes,
        )
        previous = publish(cluster.store, cluster.runtime, new)
    return WatermarkResult(watermark, watermark_of(previous), totals, publish_it)


def best_reports(
    spark: SparkSession, cluster: Cluster, config: StoreConfig, cluster_id: str
) -> dict[PartitionId, PartitionReport]:
    """The report with the highest gc epoch of each partition that has one; each is safe, that one moves M furthest.

    Raises:
        ClusterMismatchError: there are reports of another cluster.
    """
    keys = [k for k in cluster.store.list(REPORTS).modified_ms if k.endswith(".parquet")]
    if not keys:
        return {}
    options = store_options(config) | {"keys": msgspec.json.encode(keys).decode(), "slices": _slices(spark)}
    frame = _load(spark, ReportsSource, options)
    rank = F.struct("gc_epoch", "log_offset")
    best = frame.groupBy("cluster_id", "topic", "revision", "partition").agg(
        F.max_by(F.struct(*[F.col(c) for c in frame.columns]), rank).alias("r")
    )
    reports: dict[PartitionId, PartitionReport] = {}
    for row in best.select("r.*").toArrow().to_pylist():
        report = msgspec.convert(row, PartitionReport)
        check_cluster_id(cluster_id, report.cluster_id, f"a watermark report below {REPORTS}")
        reports[report.id] = report
    return reports


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


def _totals(rows: list[EpochRow], watermark: int) -> ListingTotals:
    totals = ListingTotals()
    for row in rows:
        totals.objects += row.objects
        totals.bytes += row.bytes
        if row.epoch is None:
            totals.unparsable += row.objects
            totals.unparsable_sample = row.sample_key
        elif row.epoch <= watermark:
            totals.eligible_objects += row.objects
            totals.eligible_bytes += row.bytes
    totals.epochs = sorted((r for r in rows if r.epoch is not None), key=lambda r: r.epoch or 0)
    return totals


def _load(spark: SparkSession, source: type[ListingSource] | type[ReportsSource], options: dict[str, str]) -> DataFrame:
    spark.dataSource.register(source)
    return spark.read.format(source.name()).options(**options).load()


def _slices(spark: SparkSession) -> str:
    return str(spark.sparkContext.defaultParallelism * _SLICES_PER_CORE)
