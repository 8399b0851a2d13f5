"""The orphan scan of a vacuum on Spark: the listing is read once, and memory grows only with the journal's rows.

An S3 server in this process generates the bucket as it is listed.
"""

from __future__ import annotations

import gc
import os
import resource
import tracemalloc
from collections.abc import Iterable
from typing import TYPE_CHECKING

import pytest

from benchmarks.support.fake_s3 import BUCKET, FakeS3
from l0gc.collect.vacuum import VacuumRun
from l0gc.operations import Vacuum
from l0gc.spark.handles import ClusterAddress
from l0gc.spark.workers import SparkWorkers
from l0gc.storage.config import StoreConfig
from l0gc.storage.objectstore import PAGE_SIZE
from l0gc.storage.parallel import Parallel
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.garbage import JournalGarbage
from tests.support.generated_l1 import ORPHANS, ServedL1, a_cluster, replay_mib

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.weed, pytest.mark.spark, pytest.mark.slow, pytest.mark.thorough]

SMALL, LARGE = 40, 200
"""The partitions of the two buckets that are compared; each has a thousand L1 objects."""
DRIVER_MIB = 24
WORKER_MIB = 20
"""How many MiB more a worker may hold at its peak for the larger bucket, beyond the rows that it replays."""


def workers_peak(spark: SparkSession) -> float:
    """Return the largest peak of a worker's memory so far, in MiB."""

    def peaks(_: Iterable[int]) -> Iterable[tuple[int, float]]:
        yield os.getpid(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    context = spark.sparkContext
    slots = context.defaultParallelism
    return max(peak for _, peak in context.parallelize(range(4 * slots), 4 * slots).mapPartitions(peaks).collect())


def scan(spark: SparkSession, bucket: StoreConfig, partitions: int) -> tuple[float, float]:
    """Scan a bucket of a thousand L1 objects for each partition; return the peaks of this process, by what Python
    allocates, and of the workers so far.
    """
    _, generated = a_cluster(partitions)
    served = ServedL1(generated)
    with FakeS3(served) as server, Parallel(8) as threads:
        store = S3Store(StoreConfig(BUCKET, "", server.endpoint_url, bucket.region))
        cluster = ClusterHandles(store, parallel=threads)
        options = Vacuum(l1_grace_s=0, orphan_age_s=0)
        workers = SparkWorkers(spark, ClusterAddress(store.config))
        gc.collect()
        tracemalloc.start()
        done = VacuumRun(cluster, options, workers).run(JournalGarbage(cluster))
        peak = tracemalloc.get_traced_memory()[1] / (1 << 20)
        tracemalloc.stop()
    objects, orphans = generated.generated.count, partitions * ORPHANS
    assert (done.deleted["orphaned_l1"].objects, served.gone, served.wronged) == (orphans, orphans, 0)
    assert done.listed == objects
    assert served.pages <= -(-objects // PAGE_SIZE) + workers.slots
    return peak, workers_peak(spark)


@pytest.mark.timeout(3600)
def test_a_scan_of_many_objects_for_orphans_on_spark(one_spark: SparkSession, bucket: StoreConfig) -> None:
    _, before = scan(one_spark, bucket, SMALL)
    driver, workers = scan(one_spark, bucket, LARGE)
    assert driver < DRIVER_MIB + replay_mib(LARGE)
    assert workers < before + WORKER_MIB + replay_mib(LARGE - SMALL)
