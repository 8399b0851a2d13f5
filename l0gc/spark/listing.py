"""A Spark data source over the live listing of the L0 prefix: executors list, each a range of shards.

A row for each object: what its key says (`epoch` is null where the key is not an L0 key), its size and its time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import LongType, StringType, StructField, StructType

from l0gc.keys import KeyLayout
from l0gc.spark.remote import arrow_schema, store_from_options
from l0gc.sweep.scan import in_range

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA = StructType(
    [
        StructField("key", StringType(), False),
        StructField("epoch", LongType(), True),
        StructField("bytes", LongType(), False),
        StructField("modified_ms", LongType(), False),
    ]
)


class ShardRange(InputPartition):
    """The shards `first` to `end` (end excluded)."""

    def __init__(self, first: int, end: int) -> None:
        super().__init__((first, end))
        self.first, self.end = first, end


class ListingSource(DataSource):
    """Options: the store (see `remote.py`), `template`, `shards`, `slices`."""

    @classmethod
    def name(cls) -> str:
        return "l0gc_listing"

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> ListingReader:
        return ListingReader(dict(self.options))


class ListingReader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self._options = options
        self._layout = KeyLayout(options["template"], int(options["shards"]))

    def partitions(self) -> Sequence[InputPartition]:
        n = max(1, min(int(self._options["slices"]), self._layout.shards))
        cuts = [self._layout.shards * i // n for i in range(n + 1)]
        return [ShardRange(cuts[i], cuts[i + 1]) for i in range(n)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        assert isinstance(partition, ShardRange)
        store, parse = store_from_options(self._options), self._layout.parse
        schema = arrow_schema(SCHEMA)
        for page in in_range(store, self._layout, partition.first, partition.end):
            parsed = [parse(k) for k in page.keys]
            yield pa.record_batch(
                [
                    pa.array(page.keys, pa.string()),
                    pa.array([p.epoch if p is not None else None for p in parsed], pa.int64()),
                    pa.array(page.sizes, pa.int64()),
                    pa.array(page.modified_ms, pa.int64()),
                ],
                schema,
            )
