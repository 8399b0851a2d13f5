"""Every key of the L0 prefix as rows of a data frame, listed by executors, each a range of keys.

For jobs that join keys with what the logs say; what only counts keys adds them up where they are read
(`watermark/listing.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from l0gc.keys import KeyLayout
from l0gc.spark.remote import arrow_schema, spread, store_from_options, store_options
from l0gc.storage.config import StoreConfig
from l0gc.storage.ranges import KeyRange, RangeReader, of_shards

if TYPE_CHECKING:
    import pyarrow as pa

KEYS = StructType(
    [
        StructField("key", StringType(), False),
        StructField("epoch", LongType(), True),
        StructField("bytes", LongType(), False),
        StructField("modified_ms", LongType(), False),
    ]
)
"""A row for each object: the parts of its key (`epoch` is null if it is not an L0 key), its size and its time."""


def keys_of(spark: SparkSession, config: StoreConfig, layout: KeyLayout, slices: int) -> DataFrame:
    """Every key of the data prefix, in the columns `KEYS`."""
    options = store_options(config)

    def read(keys: KeyRange) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from l0gc import columns

        schema = arrow_schema(KEYS)
        for page in RangeReader(store_from_options(options), layout, keys).read():
            epochs = [None if e < 0 else e for e in layout.epochs(page.keys)]
            numbers = (columns.integers(epochs), columns.integers(page.sizes), columns.integers(page.modified_ms))
            yield pa.RecordBatch.from_arrays([columns.strings(page.keys), *numbers], schema=schema)

    return spread(spark, of_shards(layout, slices), read, KEYS)
