"""The watermark reports: executors read the files, the driver only lists their names.

This is no Spark data source: for each of those Spark starts three Pythons before anything is read. A task gives the best row
of each partition that is in its files, so what the tasks give is about as much as is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from l0gc.errors import ObjectNotFoundError
from l0gc.spark.remote import spread, store_from_options, store_options
from l0gc.storage.config import StoreConfig
from l0gc.storage.objectstore import ObjectStore
from l0gc.storage.parallel import Threads

if TYPE_CHECKING:
    import pyarrow as pa

_FETCHERS: Final = 8
_FILES_AT_ONCE: Final = 8

SCHEMA = StructType(
    [
        StructField("cluster_id", StringType(), False),
        StructField("topic", StringType(), False),
        StructField("revision", LongType(), False),
        StructField("partition", IntegerType(), False),
        StructField("gc_epoch", LongType(), False),
        StructField("max_applied_epoch", LongType(), False),
        StructField("previous_applied_epoch", LongType(), False),
        StructField("next_offset", LongType(), False),
        StructField("last_reconciled_offset", LongType(), False),
        StructField("lowest_unreconciled_epoch", LongType(), True),
        StructField("log_offset", LongType(), False),
        StructField("reported_at_ms", LongType(), False),
    ]
)


def reports_of(spark: SparkSession, config: StoreConfig, keys: Sequence[str], tasks: int) -> DataFrame:
    """The best report of each partition in the files of each task; of several tasks, some may have one of the same."""
    options = store_options(config)

    def read(some: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield from best_of_files(store_from_options(options), some).combine_chunks().to_batches()

    return spread(spark, [keys[i::tasks] for i in range(tasks)], read, SCHEMA)


def best_of_files(store: ObjectStore, keys: Sequence[str]) -> pa.Table:
    """The best report of each partition in these files; of the rows, never more than those of a few files are held."""
    import pyarrow as pa

    from l0gc.watermark.reports import best_of, read_report_file, table_of

    def read(key: str) -> pa.Table | None:
        try:
            return read_report_file(store.get(key).body, key)
        except ObjectNotFoundError:
            return None  # compacted away since it was listed; the driver looks again

    best = table_of([])
    with Threads(_FETCHERS) as threads:
        for start in range(0, len(keys), _FILES_AT_ONCE):
            tables = [t for t in threads.map(read, keys[start : start + _FILES_AT_ONCE]) if t is not None]
            best = best_of(pa.concat_tables([best, *tables]))
    return best
