"""The live listing of the L0 prefix, read by executors, each a range of keys: as it is, or what it holds at each epoch.

The sums of each range are made where it is read, so that what Spark moves grows with the epochs and not with the keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from l0gc.keys import KeyLayout
from l0gc.spark.remote import arrow_schema, batches, spread, store_from_options, store_options
from l0gc.storage.config import StoreConfig
from l0gc.storage.ranges import FIRST_PAGES, KeyRange, RangeReader, of_shards, read_in_rounds
from l0gc.watermark.histogram import Histogram
from l0gc.watermark.job import EpochRow
from l0gc.watermark.scans import SAMPLES

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
"""A row for each object: what its key says (`epoch` is null where it is no L0 key), its size and its time."""
_SUMS = StructType(
    [
        StructField("epoch", LongType(), True),
        StructField("objects", LongType(), False),
        StructField("bytes", LongType(), False),
        StructField("sample_key", StringType(), False),
        StructField("oldest_ms", LongType(), False),
        StructField("unparsable", StringType(), False),
        StructField("rest", StringType(), False),
    ]
)
"""What one task saw at each epoch, and the range that it left, in a row of its own. Keys that are no L0 keys have a row for
each of a few samples, and the first of them counts them all."""
_FEW_TASKS: Final = 16
"""Of so many, the driver adds up the sums: a shuffle takes longer on a small bucket than all the rest of the job."""
_RANGES: Final = msgspec.json.Decoder(KeyRange)


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


def epoch_histogram(
    spark: SparkSession,
    config: StoreConfig,
    layout: KeyLayout,
    slices: int,
    ceiling: Callable[[], int],
    first_pages: int = FIRST_PAGES,
) -> list[EpochRow]:
    """What the bucket holds at each epoch. See `read_in_rounds` for how it is divided among the executors."""
    rows: dict[int | None, EpochRow] = {}

    def read(ranges: Sequence[KeyRange], pages: int) -> Iterator[KeyRange]:
        for row in _sums_of(spark, config, layout, ranges, pages).toArrow().to_pylist():
            unparsable, rest = row.pop("unparsable"), row.pop("rest")
            if rest:
                yield _RANGES.decode(rest)
            else:
                found = EpochRow(**row, samples=[unparsable] if unparsable else [])
                known = rows.get(found.epoch)
                rows[found.epoch] = found if known is None else _added(known, found)

    read_in_rounds(layout, slices, ceiling, read, first_pages)
    return list(rows.values())


def _added(a: EpochRow, b: EpochRow) -> EpochRow:
    return EpochRow(
        a.epoch,
        a.objects + b.objects,
        a.bytes + b.bytes,
        min(a.sample_key, b.sample_key),
        min(a.oldest_ms, b.oldest_ms),
        sorted({*a.samples, *b.samples})[:SAMPLES],
    )


def _sums_of(
    spark: SparkSession, config: StoreConfig, layout: KeyLayout, ranges: Sequence[KeyRange], pages: int
) -> DataFrame:
    options = store_options(config)

    def read(keys: KeyRange) -> Iterator[pa.RecordBatch]:
        histogram = Histogram(layout, SAMPLES)
        reader = RangeReader(store_from_options(options), layout, keys, pages)
        for page in reader.read():
            histogram.add(page)
        yield from batches(_rows(histogram, reader.rest), _SUMS)

    sums = spread(spark, ranges, read, _SUMS)
    if len(ranges) <= _FEW_TASKS:
        return sums
    return sums.groupBy("epoch", "unparsable", "rest").agg(
        F.sum("objects").alias("objects"),
        F.sum("bytes").alias("bytes"),
        F.min("sample_key").alias("sample_key"),
        F.min("oldest_ms").alias("oldest_ms"),
    )


def _rows(histogram: Histogram, rest: KeyRange | None) -> Iterator[tuple[int | str | None, ...]]:
    for sums in histogram.rows():
        if sums.epoch is not None:
            yield (*sums, "", "")
            continue
        for number, key in enumerate(histogram.unparsable):
            counted = sums if number == 0 else sums._replace(objects=0, bytes=0)
            yield (*counted, key, "")
    if rest is not None:
        yield (None, 0, 0, "", 0, "", msgspec.json.encode(rest).decode())
