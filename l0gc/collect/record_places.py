"""Where a run record is kept: in the bucket, in a folder of this machine, or nowhere.

A store that is full takes no more writes, and a sweep writes its record before it deletes: only an operator can say that the
record is to go elsewhere, or that none is needed. In a folder, a file is on disk before the write returns, so the record
is true whenever the run is killed, as in the bucket; `l0gc runs` and `l0gc undelete` read it there.
"""

from __future__ import annotations

import builtins
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from l0gc.collect.plan import Removal
from l0gc.collect.record import RecordSink
from l0gc.errors import ObjectNotFoundError, StoreError, UsageError
from l0gc.storage.objectstore import ListedPage, Listing, ObjectStore, Stored

_TEMPORARY: Final = ".partial"


def sink_of(store: ObjectStore, wanted: Removal) -> RecordSink | None:
    """Where the record of a run goes; None for a run that keeps none, as a dry run does.

    Raises:
        UsageError: both a folder and no record are wanted, or the folder cannot be written to.
    """
    if wanted.record_dir is not None and not wanted.record:
        raise UsageError(
            "--record-dir keeps the run record in a folder, and --no-record keeps none: give one of the two"
        )
    folder = FolderRecords.created(wanted.record_dir) if wanted.record_dir is not None else None
    if wanted.dry_run or not wanted.record:
        return None
    return folder or store


class FolderRecords:
    """Keeps records below a folder, under the keys that they would have in the bucket."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def created(cls, folder: Path) -> FolderRecords:
        """With the folder made, and tried out. Raises `UsageError`."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as trial:
                trial.write(b"l0gc")
                trial.flush()
        except OSError as e:
            raise UsageError(f"--record-dir {folder} cannot be written to: {e.strerror or e}") from e
        return cls(folder)

    def put(self, key: str, body: bytes) -> None:
        """Write a file, whole or not at all, and on disk when this returns. Raises `StoreError`."""
        path = self._folder / key
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(path.name + _TEMPORARY)
            with partial.open("wb") as file:
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
            self._sync(path.parent)
        except OSError as e:
            raise StoreError(f"{path} cannot be written: {e.strerror or e}") from e

    def put_bulk(self, key: str, body: bytes) -> None:
        self.put(key, body)

    @staticmethod
    def _sync(folder: Path) -> None:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def get(self, key: str) -> Stored:
        """A file. Raises `ObjectNotFoundError`, `StoreError`."""
        path = self._folder / key
        try:
            modified_ms = int(path.stat().st_mtime * 1000)
            return Stored(path.read_bytes(), "", modified_ms, modified_ms)
        except FileNotFoundError as e:
            raise ObjectNotFoundError(f"{path} does not exist") from e
        except OSError as e:
            raise StoreError(f"{path} cannot be read: {e.strerror or e}") from e

    def list(self, folder: str) -> Listing:
        return Listing({key: int(p.stat().st_mtime * 1000) for key, p in self._files(folder)}, 0)

    def scan(self, prefix: str, start_after: str = "") -> Iterator[ListedPage]:
        found = [(key, p.stat()) for key, p in self._files(prefix) if key > start_after]
        if found:
            times = [int(s.st_mtime * 1000) for _, s in found]
            yield ListedPage([key for key, _ in found], [s.st_size for _, s in found], times)

    def _files(self, prefix: str) -> builtins.list[tuple[str, Path]]:
        files = (p for p in (self._folder / prefix).rglob("*") if p.is_file() and not p.name.endswith(_TEMPORARY))
        return sorted((p.relative_to(self._folder).as_posix(), p) for p in files)
