"""compute-watermark on Spark: executors read reports, logs and the listing, `watermark/` decides on the driver.

The driver gets the best report of each partition and a row for each epoch, as Arrow columns; nothing that grows with the
number of report files or of objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
from pyspark.sql import SparkSession

from l0gc.keys import PartitionId
from l0gc.spark.inventory import inventory_histogram
from l0gc.spark.listing import epoch_histogram
from l0gc.spark.logs import LogsSource
from l0gc.spark.remote import JOB_ERRORS, cause_of, store_options
from l0gc.spark.reports import SCHEMA as REPORT_COLUMNS
from l0gc.spark.reports import reports_of
from l0gc.storage.config import StoreConfig
from l0gc.streamlog.cluster import Cluster
from l0gc.watermark import external_log, job
from l0gc.watermark.compact import ReportFolder
from l0gc.watermark.compute import PartitionReport
from l0gc.watermark.external_log import ExternalLog
from l0gc.watermark.inventory import Inventory
from l0gc.watermark.job import INVENTORY, LISTING, ReadHistogram, WatermarkResult
from l0gc.watermark.reports import KEY, SCHEMA, best_of, rows_of
from l0gc.watermark.scans import KeptScan, ScanSnapshot, keep_scan

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

_SLICES_PER_CORE: Final = 4
_FILES_PER_TASK: Final = 16
_LOGS_PER_TASK: Final = 50


def run(
    spark: SparkSession,
    cluster: Cluster,
    config: StoreConfig,
    *,
    scan: bool = True,
    publish_it: bool = True,
    refresh: bool = False,
    broken: Callable[[str], None] = lambda error: None,
    inventory: Inventory | None = None,
) -> WatermarkResult:
    """See `watermark.job.run`.

    Args:
        scan: whether the listing is read.
        refresh: whether the logs of partitions that hold M back are read.
        broken: told of each log that cannot be read.
        inventory: what to read in the listing's place.
    """
    folder = ReportFolder(cluster.store, cluster.runtime, lambda keys: best_reports(spark, config, keys))

    def read_logs(cluster_id: str, partitions: list[PartitionId]) -> list[PartitionReport]:
        return reports_of_logs(spark, config, cluster_id, partitions, broken)

    return _told(
        lambda: job.run(
            cluster,
            folder.read,
            _histogram(spark, config, inventory, lambda: cluster.controller.snapshot().epoch) if scan else None,
            publish_it=publish_it,
            read_logs=read_logs if refresh else None,
            compact=folder.compact,
            keep=keeper(cluster),
            source=_source(inventory),
            taken_ms=inventory.taken_ms if inventory is not None else None,
        )
    )


def run_external_log(
    spark: SparkSession,
    cluster: Cluster,
    config: StoreConfig,
    theirs: ExternalLog,
    *,
    publish_it: bool = True,
    inventory: Inventory | None = None,
) -> WatermarkResult:
    """See `watermark.external_log.run`; with the listing, or an inventory in its place."""
    return _told(
        lambda: external_log.run(
            cluster,
            theirs,
            _histogram(spark, config, inventory, lambda: theirs.cluster_epoch),
            publish_it=publish_it,
            keep=keeper(cluster),
            source=_source(inventory),
            taken_ms=inventory.taken_ms if inventory is not None else None,
        )
    )


def _histogram(
    spark: SparkSession, config: StoreConfig, inventory: Inventory | None, ceiling: Callable[[], int]
) -> ReadHistogram:
    if inventory is None:
        return lambda layout: epoch_histogram(spark, config, layout, _slices(spark), ceiling)
    return lambda layout: inventory_histogram(spark, config, layout, inventory)


def _source(inventory: Inventory | None) -> str:
    return LISTING if inventory is None else INVENTORY


def keeper(cluster: Cluster) -> Callable[[ScanSnapshot], KeptScan]:
    """What keeps a run's scan snapshot."""
    return lambda scan: keep_scan(cluster.store, cluster.runtime, scan)


def _told(work: Callable[[], T]) -> T:
    try:
        return work()
    except JOB_ERRORS as e:
        raise cause_of(e) from e


def best_reports(spark: SparkSession, config: StoreConfig, keys: list[str]) -> pa.Table:
    """The report with the highest gc epoch of each partition (and of each cluster) that has one in these files."""
    tasks = max(1, min(_slices(spark), -(-len(keys) // _FILES_PER_TASK)))
    frame = reports_of(spark, config, keys, tasks)
    if tasks > 1:
        frame = frame.repartition(spark.sparkContext.defaultParallelism, *KEY).mapInArrow(_best, REPORT_COLUMNS)
    return frame.toArrow().select(SCHEMA.names).cast(SCHEMA)


def _best(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same among all rows of the partitions that came together in one task."""
    import pyarrow as pa

    rows = [b for b in batches if b.num_rows]
    if rows:
        yield from best_of(pa.Table.from_batches(rows)).combine_chunks().to_batches()


def reports_of_logs(
    spark: SparkSession,
    config: StoreConfig,
    cluster_id: str,
    partitions: list[PartitionId],
    broken: Callable[[str], None],
) -> list[PartitionReport]:
    """A fresh report of each partition whose log can be read; `broken` hears of the others."""
    options = store_options(config) | {
        "cluster_id": cluster_id,
        "partitions": msgspec.json.encode(partitions).decode(),
        "slices": str(min(_slices(spark), -(-len(partitions) // _LOGS_PER_TASK))),
    }
    spark.dataSource.register(LogsSource)
    table = spark.read.format(LogsSource.name()).options(**options).load().toArrow()
    reports = []
    for report, error in zip(rows_of(table.select(SCHEMA.names)), table["error"].to_pylist(), strict=True):
        if error:
            broken(error)
        else:
            reports.append(report)
    return reports


def _slices(spark: SparkSession) -> int:
    return spark.sparkContext.defaultParallelism * _SLICES_PER_CORE
