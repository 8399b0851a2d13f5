"""An S3 Inventory in place of the listing: tasks fetch its files, check them, count and add up.

A file counts only if it is the one that the manifest means: its MD5 is compared before a row of it is read. A task holds a
batch of rows; a file that comes from S3 is kept in the temporary directory for that time.
"""

from __future__ import annotations

import functools
import hashlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from l0gc.errors import CorruptObjectError, NotFoundError, ObjectNotFoundError
from l0gc.key_columns import KeyColumns
from l0gc.keys import KeyLayout
from l0gc.storage.config import StoreConfig
from l0gc.storage.objectstore import ObjectStore
from l0gc.storage.s3 import S3Store
from l0gc.storage.workers import Place, Workers
from l0gc.watermark.histogram import EpochRow, Histogram
from l0gc.watermark.inventory import Inventory, InventoryFile, read_inventory
from l0gc.watermark.inventory_files import histogram_of, merged
from l0gc.watermark.listing import INVENTORY

_PIECE: Final = 8 << 20
"""A file is fetched in pieces of this size."""


@dataclass(frozen=True, slots=True)
class _Work:
    """What every task needs to know."""

    config: StoreConfig
    layout: KeyLayout
    inventory: Inventory


def inventory_at(config: StoreConfig, url: str) -> Inventory:
    """The inventory of the cluster's bucket whose manifest lies at `url`, read with the cluster's credentials.

    Raises:
        What `read_inventory` raises.
    """

    def read(url: str) -> bytes | None:
        if not url.startswith("s3://"):
            try:
                return Path(url).read_bytes() if Path(url).is_file() else None
            except OSError as e:
                raise CorruptObjectError(f"{url} cannot be read: {e.strerror or e}") from e
        bucket, _, key = url.removeprefix("s3://").partition("/")
        try:
            return _store_at(replace(config, bucket=bucket, prefix="")).get(key).body
        except ObjectNotFoundError:
            return None

    return read_inventory(url, config.bucket, read)


class InventoryScan:
    """Reads an inventory.

    Args:
        config: where the cluster is.
    """

    source: Final = INVENTORY

    def __init__(self, workers: Workers[Place], config: StoreConfig, inventory: Inventory) -> None:
        self._workers, self._config, self._inventory = workers, config, inventory
        self.taken_ms = inventory.taken_ms

    def read(self, layout: KeyLayout, ceiling: Callable[[], int]) -> Histogram:
        """What the bucket held at each epoch.

        Raises:
            CorruptObjectError, UsageError, NotFoundError, StoreError: a file is not what it should be, or cannot be read.
        """
        work = _Work(self._config, layout, msgspec.structs.replace(self._inventory, files=[]))
        slots = self._workers.slots
        largest_first = sorted(self._inventory.files, key=lambda f: -f.size)
        shares = [share for i in range(slots) if (share := largest_first[i::slots])]
        return self._workers.reduce(functools.partial(_sums, work), shares, Histogram.add) or Histogram()


def _sums(work: _Work, place: Place, files: list[InventoryFile]) -> Histogram:
    """What these files amount to together."""
    keys, inventory = KeyColumns(work.layout, work.config.prefix), work.inventory
    parts = []
    for file in files:
        with _at_hand(place.store, work.config, file) as path:
            parts.append(histogram_of(path, file.url, inventory.format, inventory.columns, keys, work.config.bucket))
    return Histogram.of_rows(EpochRow(**row) for row in merged(parts).to_pylist())


@contextmanager
def _at_hand(store: ObjectStore, config: StoreConfig, file: InventoryFile) -> Iterator[str]:
    """The path of a file on this machine, when it is what the manifest says."""
    if not file.url.startswith("s3://"):
        if not Path(file.url).is_file():
            raise NotFoundError(f"the inventory file {file.url}, which its manifest names, does not exist")
        _check(file, *_size_and_md5(Path(file.url)))
        yield file.url
        return
    bucket, _, key = file.url.removeprefix("s3://").partition("/")
    # The task's own store has the credentials that this machine is meant to use.
    place = _store_at(replace(store.config if isinstance(store, S3Store) else config, bucket=bucket, prefix=""))
    with tempfile.NamedTemporaryFile(prefix="l0gc-inventory-") as copy:
        try:
            digest, size = _md5(), place.head(key).size
            for start in range(0, size, _PIECE):
                piece = place.get_ranges(key, [(start, min(_PIECE, size - start))])[0]
                digest.update(piece)
                copy.write(piece)
        except ObjectNotFoundError as e:
            raise NotFoundError(f"the inventory file {file.url}, which its manifest names, does not exist") from e
        copy.flush()
        _check(file, size, digest.hexdigest())
        yield copy.name


@functools.cache
def _store_at(config: StoreConfig) -> S3Store:
    """One store for all files of a bucket, since setting up its clients takes a while."""
    return S3Store(config)


def _size_and_md5(path: Path) -> tuple[int, str]:
    try:
        with path.open("rb") as local:
            return path.stat().st_size, hashlib.file_digest(local, _md5).hexdigest()
    except OSError as e:
        raise CorruptObjectError(f"{path} cannot be read: {e.strerror or e}") from e


def _md5() -> hashlib._Hash:
    return hashlib.md5(usedforsecurity=False)


def _check(file: InventoryFile, size: int, md5: str) -> None:
    if file.size not in {-1, size} or file.md5 not in {"", md5}:
        raise CorruptObjectError(
            f"{file.url} is not the file that its manifest means: it has {size} bytes with the MD5 {md5}, and the manifest "
            f"says {file.size} with {file.md5}; take another inventory, or copy it again"
        )
