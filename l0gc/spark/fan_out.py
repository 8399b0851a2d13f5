"""Spreading work over Spark's executors: the same functions that `storage/fan_out.py` runs in this process.

Items go out and results come back as Python pickles them, by plain RDDs: a data frame would bring the same, but Java loads
and compiles for two seconds what makes plans of those. Where results are large, executors merge them first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from pyspark.sql import SparkSession

from l0gc.spark.remote import JOB_ERRORS, cause_of, collected, store_at
from l0gc.storage.config import StoreConfig
from l0gc.storage.objectstore import ObjectStore

A = TypeVar("A")
B = TypeVar("B")

TASKS_PER_CORE: Final = 4
"""More tasks than cores, so that a slow one does not hold up the rest; and not so many that starting them counts."""
_FEW: Final = 16
"""Of so many results, the driver merges all: a shuffle takes longer on a small bucket than the rest of the job."""


class SparkFanOut:
    """Does it on the executors of a session.

    Args:
        config: where the bucket is, as the executors see it.
    """

    def __init__(self, spark: SparkSession, config: StoreConfig) -> None:
        self._context, self._config = spark.sparkContext, config
        self.slots = self._context.defaultParallelism * TASKS_PER_CORE

    def map(self, work: Callable[[ObjectStore, A], B], items: Sequence[A]) -> list[B]:
        if not items:
            return []
        task = functools.partial(_at_store, self._config, work)
        return collected(self._context.parallelize(items, min(len(items), self.slots)).map(task))

    def reduce(self, work: Callable[[ObjectStore, A], B], items: Sequence[A], merge: Callable[[B, B], B]) -> B | None:
        if len(items) <= _FEW:
            done = self.map(work, items)
            return functools.reduce(merge, done) if done else None
        task = functools.partial(_at_store, self._config, work)
        tasks = min(len(items), self.slots)
        try:
            # In two steps: the driver merges about as many results as the square root of the tasks.
            return self._context.parallelize(items, tasks).map(task).treeReduce(merge)
        except JOB_ERRORS as e:
            raise cause_of(e) from e


def _at_store(config: StoreConfig, work: Callable[[ObjectStore, A], B], item: A) -> B:
    return work(store_at(config), item)
