"""An S3 Inventory in place of the live listing: executors fetch its files, check them, count and add up.

A file counts only if it is the one that the manifest means: its MD5 is compared before a row of it is read. A task holds a
batch of rows; a file that comes from S3 waits in the temporary directory meanwhile.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from pyspark.sql import SparkSession

from l0gc.errors import CorruptObjectError, NotFoundError
from l0gc.keys import KeyLayout
from l0gc.spark.remote import collected, store_from_options, store_options
from l0gc.storage.config import StoreConfig
from l0gc.watermark.inventory import Inventory, InventoryFile
from l0gc.watermark.job import EpochRow

if TYPE_CHECKING:
    import pyarrow as pa

    from l0gc.storage.s3 import S3Store

_SLICES_PER_CORE: Final = 4
_FEW_TASKS: Final = 16
"""Of so many, the driver adds up the sums."""
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
        CorruptObjectError, UsageError, NotFoundError, StoreError: a file is not what it should be, or cannot be read.
    """
    work = _Work(config, layout, msgspec.structs.replace(inventory, files=[]))
    context = spark.sparkContext
    tasks = context.defaultParallelism * _SLICES_PER_CORE
    largest_first = sorted(inventory.files, key=lambda f: -f.size)
    shares = [share for i in range(tasks) if (share := largest_first[i::tasks])]
    if not shares:
        return []
    # A data frame would bring the same, but Java first loads and compiles for two seconds what makes plans of those.
    sums = context.parallelize(shares, len(shares)).map(lambda files: _sums(work, files))
    if len(shares) > _FEW_TASKS:
        pieces = context.defaultParallelism
        sums = sums.flatMap(lambda packed: _split(packed, pieces)).reduceByKey(_added, pieces).values()
    return [EpochRow(**row) for row in _unpacked(reduce(_added, collected(sums))).to_pylist()]


def _sums(work: _Work, files: list[InventoryFile]) -> bytes:
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
    return _packed(merged(parts))


def _split(packed: bytes, pieces: int) -> list[tuple[int, bytes]]:
    """The rows in so many pieces, those of an epoch in the same one, so that tasks add up a piece each."""
    import pyarrow.compute as pc

    from l0gc import columns

    table, n = _unpacked(packed), columns.scalar(pieces)
    epochs = pc.coalesce(table["epoch"], columns.scalar(0))
    of = pc.subtract(epochs, pc.multiply(pc.divide(epochs, n), n))
    return [(i, _packed(table.filter(pc.equal(of, columns.scalar(i))))) for i in range(pieces)]


def _added(a: bytes, b: bytes) -> bytes:
    from l0gc.watermark.inventory_files import merged

    return _packed(merged([_unpacked(a), _unpacked(b)]))


def _packed(rows: pa.Table) -> bytes:
    """As Arrow writes a stream: a tenth of the bytes of Python objects, and none to be made."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    body: bytes = sink.getvalue().to_pybytes()
    return body


def _unpacked(packed: bytes) -> pa.Table:
    import pyarrow as pa

    return pa.ipc.open_stream(packed).read_all()


@contextmanager
def _at_hand(config: StoreConfig, file: InventoryFile) -> Iterator[str]:
    """The path of a file on this machine, when it is what the manifest says."""
    if not file.url.startswith("s3://"):
        if not Path(file.url).is_file():
            raise NotFoundError(f"there is no inventory file {file.url}, which its manifest names")
        _check(file, *_size_and_md5(Path(file.url)))
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


def _size_and_md5(path: Path) -> tuple[int, str]:
    try:
        with path.open("rb") as local:
            return path.stat().st_size, hashlib.file_digest(local, _md5).hexdigest()
    except OSError as e:
        raise CorruptObjectError(f"{path} cannot be read: {e.strerror or e}") from e


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
