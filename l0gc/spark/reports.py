"""A Spark data source over the watermark reports: executors read the files, the driver only lists their names.

A task gives the best row of each partition that is in its files, so what the tasks give is about as much as is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from l0gc.errors import ObjectNotFoundError
from l0gc.spark.remote import store_from_options
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


class ReportFiles(InputPartition):
    def __init__(self, keys: list[str]) -> None:
        super().__init__(tuple(keys))
        self.keys = keys


class ReportsSource(DataSource):
    """Options: the store (see `remote.py`), `keys` (a JSON list), `slices`."""

    @classmethod
    def name(cls) -> str:
        return "l0gc_reports"

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> ReportsReader:
        return ReportsReader(dict(self.options))


class ReportsReader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        keys = msgspec.json.decode(self._options["keys"], type=list[str])
        n = max(1, min(int(self._options["slices"]), len(keys)))
        return [ReportFiles(keys[i::n]) for i in range(n)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ReportFiles)
        yield from best_of_files(store_from_options(self._options), partition.keys).combine_chunks().to_batches()


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
