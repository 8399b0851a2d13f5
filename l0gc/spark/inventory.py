"""An S3 Inventory in place of the live listing: executors fetch its files, check them and count; Spark adds up.

A file counts only if it is the one that the manifest means: its MD5 is compared before a row of it is read. A task holds a
batch of rows; a file that comes from S3 waits in the temporary directory meanwhile.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from l0gc.errors import CorruptObjectError, NotFoundError
from l0gc.keys import KeyLayout
from l0gc.spark.remote import spread, store_from_options, store_options
from l0gc.storage.config import StoreConfig
from l0gc.watermark.inventory import Inventory, InventoryFile
from l0gc.watermark.job import EpochRow

if TYPE_CHECKING:
    import pyarrow as pa

    from l0gc.storage.s3 import S3Store

SCHEMA: Final = StructType(
    [
        StructField("epoch", LongType(), True),
        StructField("objects", LongType(), False),
        StructField("bytes", LongType(), False),
        StructField("sample_key", StringType(), False),
        StructField("oldest_ms", LongType(), False),
        StructField("noncurrent_objects", LongType(), False),
        StructField("noncurrent_bytes", LongType(), False),
    ]
)
"""`watermark.inventory_files.ROWS`."""

_SLICES_PER_CORE: Final = 4
_PIECE: Final = 8 << 20
"""A file is fetched in pieces of this size."""


@dataclass(frozen=True, slots=True)
class _Work:
    """What every executor is told."""

    config: StoreConfig
    layout: KeyLayout
    inventory: Inventory


def inventory_histogram(
    spark: SparkSession, config: StoreConfig, layout: KeyLayout, inventory: Inventory
) -> list[EpochRow]:
    """What the bucket held at each epoch, as `watermark_job.epoch_histogram` has it of the listing.

    Raises:
        PySparkException: of an executor's `CorruptObjectError`, `UsageError`, `NotFoundError` or `StoreError`.
    """
    work = _Work(config, layout, msgspec.structs.replace(inventory, files=[]))
    tasks = spark.sparkContext.defaultParallelism * _SLICES_PER_CORE
    largest_first = sorted(inventory.files, key=lambda f: -f.size)
    shares = [share for i in range(tasks) if (share := largest_first[i::tasks])]
    if not shares:
        return []
    names = [n for n in SCHEMA.names if n.endswith(("objects", "bytes"))]
    histogram = (
        spread(spark, shares, lambda files: _rows(work, files), SCHEMA)
        .groupBy("epoch")
        .agg(
            *(F.sum(n).alias(n) for n in names),
            F.min("sample_key").alias("sample_key"),
            F.min("oldest_ms").alias("oldest_ms"),
        )
    )
    return [EpochRow(**row) for row in histogram.toArrow().to_pylist()]


def _rows(work: _Work, files: list[InventoryFile]) -> Iterator[pa.RecordBatch]:
    """On an executor: what these files amount to together."""
    from l0gc.key_columns import KeyColumns
    from l0gc.watermark.inventory_files import histogram_of, merged

    keys = KeyColumns(work.layout, work.config.prefix)
    parts = []
    for file in files:
        with _at_hand(work.config, file) as path:
            parts.append(
                histogram_of(path, file.url, work.inventory.format, work.inventory.columns, keys, work.config.bucket)
            )
    yield from merged(parts).to_batches()


@contextmanager
def _at_hand(config: StoreConfig, file: InventoryFile) -> Iterator[str]:
    """The path of a file on this machine, when it is what the manifest says."""
    if not file.url.startswith("s3://"):
        if not Path(file.url).is_file():
            raise NotFoundError(f"there is no inventory file {file.url}, which its manifest names")
        with Path(file.url).open("rb") as local:
            _check(file, Path(file.url).stat().st_size, hashlib.file_digest(local, _md5).hexdigest())
        yield file.url
        return
    bucket, _, key = file.url.removeprefix("s3://").partition("/")
    store = store_from_options(store_options(replace(config, bucket=bucket, prefix="")))
    with tempfile.NamedTemporaryFile(prefix="l0gc-inventory-") as copy:
        digest, size = _md5(), _size(store, key)
        for start in range(0, size, _PIECE):
            piece = store.get_ranges(key, [(start, min(_PIECE, size - start))])[0]
            digest.update(piece)
            copy.write(piece)
        copy.flush()
        _check(file, size, digest.hexdigest())
        yield copy.name


def _md5() -> hashlib._Hash:
    return hashlib.md5(usedforsecurity=False)


def _size(store: S3Store, key: str) -> int:
    """How large an object is. Raises `NotFoundError`."""
    for page in store.scan(key):
        for found, size in zip(page.keys, page.sizes, strict=True):
            if found == key:
                return size
    raise NotFoundError(f"there is no inventory file {store.config.url}{key}, which its manifest names")


def _check(file: InventoryFile, size: int, md5: str) -> None:
    if file.size not in {-1, size} or file.md5 not in {"", md5}:
        raise CorruptObjectError(
            f"{file.url} is not the file that its manifest means: it has {size} bytes with the MD5 {md5}, and "
            f"{file.size} with {file.md5} are told; take another inventory, or copy it again"
        )
