"""A Spark data source over the watermark reports: executors read the files, the driver only lists their names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from l0gc.errors import ObjectNotFoundError
from l0gc.spark.remote import store_from_options

if TYPE_CHECKING:
    import pyarrow as pa

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
        from l0gc.watermark.reports import read_report_file

        assert isinstance(partition, ReportFiles)
        store = store_from_options(self._options)
        for key in partition.keys:
            try:
                body = store.get(key).body
            except ObjectNotFoundError:
                continue  # removed since it was listed; a report that is not read can only make M lower
            yield from read_report_file(body, key).combine_chunks().to_batches()
