"""A Spark data source over partitions' logs: executors replay them, and give a fresh report of each.

A log that cannot be read gives a row that says so, and no report: its partition holds M where it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StringType, StructField, StructType

from l0gc.errors import CorruptObjectError
from l0gc.keys import PartitionId
from l0gc.spark import reports
from l0gc.spark.remote import arrow_schema, store_from_options
from l0gc.storage.parallel import Threads
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.journal.state import PartitionState

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA = StructType([*reports.SCHEMA.fields, StructField("error", StringType(), False)])
_READERS: Final = 16


class Logs(InputPartition):
    def __init__(self, partitions: list[PartitionId]) -> None:
        super().__init__(tuple(partitions))
        self.partitions = partitions


class LogsSource(DataSource):
    """Options: the store (see `remote.py`), `cluster_id`, `partitions` (a JSON list), `slices`."""

    @classmethod
    def name(cls) -> str:
        return "l0gc_logs"

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> LogsReader:
        return LogsReader(dict(self.options))


class LogsReader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        partitions = msgspec.json.decode(self._options["partitions"], type=list[PartitionId])
        n = max(1, min(int(self._options["slices"]), len(partitions)))
        return [Logs(partitions[i::n]) for i in range(n)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from l0gc import columns
        from l0gc.watermark.reports import report_of, table_of

        assert isinstance(partition, Logs)
        cluster = Cluster(store_from_options(self._options))
        cluster_id = self._options["cluster_id"]

        def look(p: PartitionId) -> tuple[PartitionState, int, str]:
            handle = cluster.partition(p)
            try:
                return handle.catch_up(), handle.replica.offset, ""
            except CorruptObjectError as e:
                return PartitionState.new(p.revision), -1, str(e)

        with Threads(_READERS) as threads:
            looks = threads.map(look, partition.partitions)
        found = [
            report_of(cluster_id, p, state, at) for p, (state, at, _) in zip(partition.partitions, looks, strict=True)
        ]
        table = table_of(found)
        errors = columns.strings([error for _, _, error in looks])
        columns_of = [c.combine_chunks() for c in table.columns]
        yield pa.RecordBatch.from_arrays([*columns_of, errors], schema=arrow_schema(SCHEMA))
