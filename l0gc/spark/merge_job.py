"""merge on Spark: executors read the journals, plan, rewrite and commit; the driver gets sums for each journal.

The work is done by the functions of `level_one/merge.py`, by which threads of one process do it, too. A task may run twice,
or die: merged objects have random names and count only when a journal names them, and a task that is run again finds what
the first one has committed, and goes on after it. It counts only what it does itself.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from pyspark.sql import SparkSession

from l0gc.runtime import Runtime
from l0gc.spark.fan_out import SparkFanOut
from l0gc.storage.config import StoreConfig
from l0gc.storage.objectstore import ObjectStore
from l0gc.storage.parallel import Threads
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.journal.handle import JournalHandle
from l0gc.streamlog.level_one.merge import Workers

_THREADS: Final = 8
"""For the requests of one task."""
_JOURNALS_KEPT: Final = 2
"""How many journals' states a worker's process keeps from one task to the next, which then only reads what is new."""


def on_spark(spark: SparkSession, config: StoreConfig) -> Workers:
    """The executors of a session.

    Args:
        config: where the bucket is, as the executors will look for it.
    """
    return Workers(SparkFanOut(spark, config), _place)


def _place(store: ObjectStore, journal: int) -> tuple[Cluster, JournalHandle]:
    assert isinstance(store, S3Store)
    return _cluster(store), _journal(store, journal)


@lru_cache(maxsize=1)
def _cluster(store: S3Store) -> Cluster:
    """The cluster, for all tasks of a worker's process, which have one store."""
    return Cluster(store, Runtime(), Threads(_THREADS))


@lru_cache(maxsize=_JOURNALS_KEPT)
def _journal(store: S3Store, journal: int) -> JournalHandle:
    cluster = _cluster(store)
    return JournalHandle(journal, cluster.store, cluster.controller, cluster.runtime, parallel=cluster.parallel)
