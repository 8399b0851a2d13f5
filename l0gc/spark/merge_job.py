"""merge on Spark: executors read the journals, plan, rewrite and commit; the driver gets sums for each journal.

The work is done by the functions of `level_one/merge.py`, by which threads of one process do it, too. A task may run twice,
or die: merged objects have random names and count only when a journal names them, and a task that is run again finds what
the first one has committed, and goes on after it. It counts only what it does itself.
"""

from __future__ import annotations

import functools

from pyspark.sql import SparkSession

from l0gc.spark.fan_out import SparkFanOut
from l0gc.spark.handles import ClusterAddress, cluster_at, journal_at
from l0gc.storage.config import StoreConfig
from l0gc.storage.objectstore import ObjectStore
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.journal.handle import JournalHandle
from l0gc.streamlog.level_one.merge import Workers


def on_spark(spark: SparkSession, config: StoreConfig) -> Workers:
    """The executors of a session.

    Args:
        config: where the bucket is, as the executors will look for it.
    """
    return Workers(SparkFanOut(spark, config), functools.partial(_place, ClusterAddress(config)))


def _place(address: ClusterAddress, store: ObjectStore, journal: int) -> tuple[Cluster, JournalHandle]:
    return cluster_at(address), journal_at(address, journal)
