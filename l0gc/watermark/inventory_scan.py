"""An S3 Inventory in place of the listing: tasks fetch its files, check them, count and add up.

A file counts only if it is the one that the manifest means: its MD5 is compared before a row of it is read. A task holds a
batch of rows; a file that comes from S3 is kept in the temporary directory for that time.

Only keys in the cluster's data prefix count; an inventory may be of the whole bucket. In one with all versions, what is
there now counts as objects, what a delete or another version covers counts apart, and delete markers are nothing.
Everything is done on columns: an inventory may have more rows than Python can read one by one.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import unquote_plus

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from l0gc import columns
from l0gc.epoch import EPOCH_DIGITS, MAX_EPOCH
from l0gc.errors import CorruptObjectError, NotFoundError, ObjectNotFoundError, UsageError
from l0gc.keys import KeyLayout
from l0gc.storage.config import StoreConfig
from l0gc.storage.objectstore import LocalFolder, ObjectStore, if_there
from l0gc.storage.s3 import S3Store
from l0gc.storage.workers import Place, Workers
from l0gc.watermark.histogram import INVENTORY, EpochRow, Histogram
from l0gc.watermark.inventory import (
    BUCKET,
    CSV,
    DELETE_MARKER,
    KEY,
    LATEST,
    MODIFIED,
    ORC,
    SIZE,
    Inventory,
    InventoryFile,
    read_inventory,
)

_PIECE: Final = 8 << 20
"""A file is fetched in pieces of this size."""
_BATCH: Final = 1 << 17
_BLOCK: Final = 8 << 20
_TYPES: Final = {
    BUCKET: pa.string(),
    KEY: pa.string(),
    SIZE: pa.int64(),
    MODIFIED: pa.timestamp("ms", "UTC"),
    LATEST: pa.bool_(),
    DELETE_MARKER: pa.bool_(),
}
_DAMAGED: Final = (pa.ArrowException, OSError, EOFError, zlib.error)
"""What pyarrow raises over a file that is not what it should be."""


def inventory_at(config: StoreConfig, url: str) -> Inventory:
    """The inventory of the cluster's bucket whose manifest lies at `url`, read with the cluster's credentials.

    Raises:
        What `read_inventory` raises.
    """

    def read(url: str) -> bytes | None:
        bucket, _, key = url.removeprefix("s3://").partition("/")
        if url.startswith("s3://"):
            stored = if_there(_store_at(replace(config, bucket=bucket, prefix="")).get, key)
        else:
            stored = if_there(LocalFolder(Path()).get, url)
        return None if stored is None else stored.body

    return read_inventory(url, config.bucket, read)


def scan_inventory(
    workers: Workers[Place], config: StoreConfig, inventory: Inventory, layout: KeyLayout, ceiling: Callable[[], int]
) -> Histogram:
    """A `BucketScan` of an inventory.

    Args:
        config: where the cluster is.

    Raises:
        CorruptObjectError, UsageError, NotFoundError, StoreError: a file is not what it should be, or cannot be read.
    """
    work = functools.partial(_sums, config, layout, msgspec.structs.replace(inventory, files=[]))
    largest_first = sorted(inventory.files, key=lambda f: -f.size)
    shares = [share for i in range(workers.slots) if (share := largest_first[i :: workers.slots])]
    found = workers.reduce(work, shares, Histogram.add) or Histogram()
    found.source, found.taken_ms = INVENTORY, inventory.taken_ms
    return found


def _sums(
    config: StoreConfig, layout: KeyLayout, inventory: Inventory, place: Place, files: list[InventoryFile]
) -> Histogram:
    """What these files amount to together."""
    keys, found = KeyColumns(layout, config.prefix), Histogram()
    for file in files:
        with _at_hand(place.store, config, file) as path:
            found.add(histogram_of(path, file.url, inventory.format, inventory.columns, keys, config.bucket))
    return found


@contextmanager
def _at_hand(store: ObjectStore, config: StoreConfig, file: InventoryFile) -> Iterator[str]:
    """The path of a file on this machine, when it is what the manifest says."""
    with tempfile.NamedTemporaryFile(prefix="l0gc-inventory-") as copy:
        path = file.url
        try:
            if file.url.startswith("s3://"):
                bucket, _, key = file.url.removeprefix("s3://").partition("/")
                # The task's own store has the credentials that this machine is meant to use.
                own = store.config if isinstance(store, S3Store) else config
                theirs = _store_at(replace(own, bucket=bucket, prefix=""))
                size = theirs.head(key).size
                for start in range(0, size, _PIECE):
                    copy.write(theirs.get_ranges(key, [(start, min(_PIECE, size - start))])[0])
                copy.flush()
                path = copy.name
            _check(file, path)
        except (FileNotFoundError, ObjectNotFoundError) as e:
            raise NotFoundError(f"the inventory file {file.url}, which its manifest names, does not exist") from e
        except OSError as e:
            raise CorruptObjectError(f"{file.url} cannot be read: {e.strerror or e}") from e
        yield path


@functools.cache
def _store_at(config: StoreConfig) -> S3Store:
    """One store for all files of a bucket, since setting up its clients takes a while."""
    return S3Store(config)


def _check(file: InventoryFile, path: str) -> None:
    """Refuse a file that is not what the manifest says."""
    with Path(path).open("rb") as local:
        size = os.fstat(local.fileno()).st_size
        md5 = hashlib.file_digest(local, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if file.size not in {-1, size} or file.md5 not in {"", md5}:
        raise CorruptObjectError(
            f"{file.url} is not the file that its manifest means: it has {size} bytes with the MD5 {md5}, and the manifest "
            f"says {file.size} with {file.md5}; take another inventory, or copy it again"
        )


# -- one file -------------------------------------------------------------------------------------------------------------


def histogram_of(
    path: str, name: str, kind: str, csv_columns: Sequence[str], keys: KeyColumns, bucket: str
) -> Histogram:
    """What one inventory file amounts to.

    Args:
        path: where it is on this machine.
        name: what messages call it.
        bucket: the one that every row has to be of.

    Raises:
        CorruptObjectError: the file cannot be read.
        UsageError: it lacks a column, or is another bucket's.
    """

    def rows() -> Iterator[EpochRow]:
        for batch in _batches(path, name, kind, csv_columns):
            for found in pc.unique(batch[BUCKET]).to_pylist():
                if found != bucket:
                    raise UsageError(f"{name} is of an inventory of bucket {found!r}, and the cluster is in {bucket!r}")
            yield from _counted(batch, name, keys, encoded=kind == CSV)

    try:
        return Histogram.of_rows(rows())
    except _DAMAGED as e:
        raise CorruptObjectError(f"{name} cannot be read as {kind}: {' '.join(str(e).split())}") from e


# -- one batch ------------------------------------------------------------------------------------------------------------


def _counted(batch: pa.RecordBatch, name: str, keys: KeyColumns, *, encoded: bool) -> Iterator[EpochRow]:
    """For each epoch the current objects of a batch, and the noncurrent ones."""
    if batch[KEY].null_count:
        raise CorruptObjectError(f"{name} has rows without a key")
    if encoded:
        batch = batch.set_column(batch.schema.get_field_index(KEY), KEY, url_decoded(batch[KEY]))
    wanted = keys.below(batch[KEY])
    if DELETE_MARKER in batch.schema.names:
        marker = batch[DELETE_MARKER]
        wanted = pc.and_not(wanted, pc.and_kleene(marker, pc.is_valid(marker)))  # null means not a marker
    if not pc.all(wanted).as_py():
        batch = batch.filter(wanted)
    if batch[SIZE].null_count:
        raise CorruptObjectError(f"{name} has objects without a size")
    if LATEST not in batch.schema.names or pc.all(batch[LATEST]).as_py():
        yield from _grouped(batch, keys, current=True)
        return
    latest = pc.or_kleene(batch[LATEST], pc.is_null(batch[LATEST]))  # an unknown one is current
    yield from _grouped(batch.filter(latest), keys, current=True)
    yield from _grouped(batch.filter(pc.invert(latest)), keys, current=False)


def _grouped(batch: pa.RecordBatch, keys: KeyColumns, *, current: bool) -> Iterator[EpochRow]:
    oldest = columns.repeated(0, batch.num_rows)
    if MODIFIED in batch.schema.names:
        oldest = pc.coalesce(batch[MODIFIED].cast(pa.int64()), columns.scalar(0))
    table = pa.table({"epoch": keys.epochs(batch[KEY]), "key": batch[KEY], "bytes": batch[SIZE], "oldest": oldest})
    sums = [("bytes", "count"), ("bytes", "sum"), ("key", "min"), ("oldest", "min")]
    for row in table.group_by("epoch", use_threads=False).aggregate(sums).to_pylist():
        epoch, sample, oldest_ms = row["epoch"], row["key_min"][len(keys.prefix) :], row["oldest_min"]
        if current:
            yield EpochRow(epoch, row["bytes_count"], row["bytes_sum"], sample, oldest_ms)
        else:
            yield EpochRow(epoch, 0, 0, sample, oldest_ms, row["bytes_count"], row["bytes_sum"])


def url_decoded(keys: pa.Array) -> pa.Array:
    """What URL-encoded keys stand for: `+` is a space, `%XX` a byte of UTF-8."""
    escaped = pc.match_substring_regex(keys, "[%+]")
    if not pc.any(escaped).as_py():
        return keys
    plain = columns.strings([unquote_plus(k) for k in keys.filter(escaped).to_pylist()])
    return pc.replace_with_mask(keys, escaped, plain)


# -- formats --------------------------------------------------------------------------------------------------------------


def _batches(path: str, name: str, kind: str, csv_columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The columns that count, in the types that they count in."""
    reader = {CSV: _csv, ORC: _orc}.get(kind, _parquet)
    for batch in reader(path, name, csv_columns):
        here = batch.schema.names
        arrays = [batch[c] if c == BUCKET else batch[c].cast(_TYPES[c], safe=False) for c in here]
        yield pa.RecordBatch.from_arrays(arrays, names=here)


def _needed(name: str, there: Sequence[str]) -> list[str]:
    """Those of the columns that count that are there."""
    for column in (BUCKET, KEY, SIZE):
        if column not in there:
            raise UsageError(f"{name} has no column {column!r}: have the inventory configured with it")
    return [c for c in _TYPES if c in there]


def _parquet(path: str, name: str, _: Sequence[str]) -> Iterator[pa.RecordBatch]:
    metadata = pq.read_metadata(path)
    wanted = _needed(name, metadata.schema.to_arrow_schema().names)
    with pq.ParquetFile(path, metadata=metadata, memory_map=True, read_dictionary=[BUCKET]) as file:
        yield from file.iter_batches(_BATCH, columns=wanted, use_threads=False)


def _orc(path: str, name: str, _: Sequence[str]) -> Iterator[pa.RecordBatch]:
    from pyarrow.orc import ORCFile  # slow to load, and rarely needed

    file = ORCFile(path)
    wanted = _needed(name, file.schema.names)
    for stripe in range(file.nstripes):
        yield file.read_stripe(stripe, columns=wanted)


def _csv(path: str, name: str, csv_columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    wanted = _needed(name, csv_columns)
    packed = "gzip" if name.endswith(".gz") else None
    with pa.input_stream(path, compression=packed) as peek:
        if not peek.read(1):
            return
    with pa.input_stream(path, compression=packed) as rows:
        yield from pyarrow.csv.open_csv(
            rows,
            pyarrow.csv.ReadOptions(column_names=list(csv_columns), block_size=_BLOCK, use_threads=False),
            convert_options=pyarrow.csv.ConvertOptions(
                include_columns=wanted, column_types=_TYPES, null_values=[""], quoted_strings_can_be_null=True
            ),
        )


# -- a column of keys -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KeyColumns:
    """Reads columns of keys that have `prefix` before what `layout` describes, without a Python object for each.

    The decision is `KeyLayout.parse`'s, put as the same regular expression and comparisons of digits: both accept exactly
    the same keys as L0 keys (hazard 13).
    """

    layout: KeyLayout
    prefix: str = ""

    def below(self, keys: pa.Array) -> pa.Array:
        """Which keys lie in the data prefix, as booleans."""
        return pc.starts_with(keys, self.prefix + self.layout.data_prefix)

    def epochs(self, keys: pa.Array) -> pa.Array:
        """The epoch of each key; null for one that `KeyLayout.parse` gives None for."""
        a, b, c, d = self._bytes
        fits = pc.match_substring_regex(keys, f"^{re.escape(self.prefix)}{self.layout.pattern.removeprefix('^')}")
        raw = keys.cast(pa.binary())
        if self.layout.shards < 10 ** (b - a):
            fits = pc.and_(fits, _at_most(pc.binary_slice(raw, a, b), self.layout.shards - 1, b - a))
        epoch = pc.binary_slice(raw, c, d)
        if d - c > EPOCH_DIGITS:
            fits = pc.and_(fits, _at_most(epoch, MAX_EPOCH, d - c))
        if pc.all(fits).as_py() is False:
            epoch = pc.if_else(fits, epoch, pa.nulls(1, pa.binary())[0])
        return epoch.cast(pa.string()).cast(pa.int64())

    @functools.cached_property
    def _bytes(self) -> tuple[int, int, int, int]:
        """`KeyLayout.places` in bytes, after the prefix; a template may have more than ASCII in it."""
        key = self.layout.format(0, 0, "")
        a, b, c, d = (len((self.prefix + key[:place]).encode()) for place in self.layout.places)
        return a, b, c, d


def _at_most(digits: pa.Array, highest: int, width: int) -> pa.Array:
    """Which of these numbers, written in `width` digits, are not above `highest`."""
    return pc.less_equal(digits, columns.binary([f"{highest:0{width}}".encode()])[0])
