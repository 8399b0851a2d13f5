"""The run record: what a sweep deletes, as Parquet under `l0gc/runs/{run id}/`, correct whenever the run is killed.

A segment of objects is written as `planned` before the first of them is deleted. It is rewritten with each object's
outcome after its last request. So every deleted object is in a segment. A killed run leaves some as `planned`, and the
bucket shows which of those are gone (`runs.py`).

A shadow run deletes nothing and writes each segment once. Its id begins with `shadow/`, so its record has a separate
folder. Code that looks for deletions does not read it; only `l0gc verify --shadow`, the report and the next shadow run
do.

A full store accepts no writes. For that case an operator can send the record to a local folder, or do without one. A file
in the folder is on disk before the write returns, so the record is as reliable as in the bucket.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from l0gc.collect.gc_steps import SWEEP
from l0gc.collect.scan import Deletable, Tally
from l0gc.decoding import decoded
from l0gc.epoch import NO_WATERMARK
from l0gc.errors import CorruptObjectError, StoreError, UsageError
from l0gc.keys import RUNS
from l0gc.storage.objectstore import OFF, LocalFolder, ObjectStore
from l0gc.storage.workers import LOCAL
from l0gc.watermark.source import LogEnd

SEGMENT_OBJECTS: Final = 2000
"""Objects in one segment: two PUT requests for every two DELETE requests."""

DONE: Final = "done"
"""The outcome of a run that tried everything that was to be deleted."""
PLANNED: Final = "planned"
DELETED: Final = "deleted"
FAILED: Final = "failed"
LEFT: Final = "left"
SHADOWED: Final = "shadow"
"""The status of an object in a shadow run's record: it would have been deleted."""

_PARTIAL: Final = ".partial"

OBJECTS: Final = "objects"
VERSIONS: Final = "versions"
"""The content of a segment and its name's prefix: current objects, or versions that are deleted permanently."""


class FolderRecords(LocalFolder):
    """Keeps records below a folder, under the keys that they would have in the bucket."""

    @classmethod
    def created(cls, folder: Path) -> FolderRecords:
        """Create the folder and test it. Raises `UsageError`."""
        try:
            made = [f for f in (folder, *folder.parents) if not f.exists()]
            folder.mkdir(parents=True, exist_ok=True)
            for new in made:
                cls._sync(new.parent)
            with tempfile.TemporaryFile(dir=folder) as trial:
                trial.write(b"l0gc")
                trial.flush()
        except OSError as e:
            raise UsageError(f"--record-dir {folder} cannot be written to: {e.strerror or e}") from e
        return cls(folder)

    def put(self, key: str, body: bytes) -> None:
        """Write a file atomically; it is on disk when this returns. Raises `StoreError`."""
        path = self.folder / key
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(path.name + _PARTIAL)
            with partial.open("wb") as file:
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
            for above in path.relative_to(self.folder).parents:  # any of which may be new
                self._sync(self.folder / above)
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

    def files(self, prefix: str) -> list[str]:
        return [key for key in super().files(prefix) if not key.endswith(_PARTIAL)]


Records = ObjectStore | FolderRecords
"""Where run records are written and read."""


class ObjectTotals(msgspec.Struct, frozen=True):
    """A number of objects and their bytes."""

    objects: int = 0
    bytes: int = 0


class RunSummary(Tally, kw_only=True):
    """`run.json`, written when a run ends: its options and its results. Times are the store's.

    `kinds` is what a vacuum deleted of each kind; a sweep deletes only L0 objects. An undelete deletes nothing: it has
    what it `restored` of the run `of_run`, which `of_command` made. For a shadow run, `objects` are those that would have
    been deleted. It covers what was changed by `older_than_ms`, and the log of each unit ended at `ends` when its M was
    published.
    """

    run_id: str
    command: str = SWEEP
    started_ms: int
    ended_ms: int
    outcome: str
    engine: str = LOCAL
    seconds: float = 0.0
    watermark: int
    bound: int = NO_WATERMARK
    cluster_epoch: int
    versioning: str = OFF
    purge_versions: bool = False
    first_shard: int = 0
    end_shard: int = 0
    kinds: dict[str, ObjectTotals] = msgspec.field(default_factory=dict)
    of_run: str = ""
    of_command: str = ""
    restored: ObjectTotals = ObjectTotals()
    older_than_ms: int = -1
    ends: dict[str, LogEnd] = msgspec.field(default_factory=dict)


class RecordedObject(Deletable, frozen=True, gc=False):
    """An object of a segment and its outcome; a deleted object was deleted by `deleted_ms`.

    `version_id` is that of the delete marker, or of the removed version.
    """

    status: str = PLANNED
    deleted_ms: int = -1

    @classmethod
    def of(cls, o: Deletable, status: str = PLANNED, marker: str = "", now_ms: int = -1) -> RecordedObject:
        """Return an object as recorded at `now_ms`; `marker` is the delete marker that hides it, if known."""
        when = now_ms if status == DELETED else -1
        return cls(o.key, o.epoch, o.size, o.modified_ms, o.version_id or marker, status, when)


_SUMMARY: Final = msgspec.json.Decoder(RunSummary)


def folder(run_id: str) -> str:
    """Return the folder of a run's record."""
    return f"{RUNS}{run_id}/"


def worker_of(segment: str) -> str:
    """Return the name of the worker that wrote a segment, from its key."""
    return segment.rpartition("/")[2].partition("-")[2].rpartition("-")[0]


def encode_segment(rows: Sequence[RecordedObject]) -> bytes:
    """Return at least one row as a Parquet segment."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from l0gc.columns import integers, strings

    fields = msgspec.structs.fields(RecordedObject)
    values = zip(*map(msgspec.structs.astuple, rows), strict=True)
    table = pa.table({f.name: (strings if f.type is str else integers)(v) for f, v in zip(fields, values, strict=True)})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", use_dictionary=["version_id", "status", "epoch"])
    body: bytes = sink.getvalue().to_pybytes()
    return body


class RunRecord:
    """Writes the segments of one worker, whose name keeps them apart from other workers'. Safe for use by several
    threads.

    Args:
        sink: where they go; None to write nothing.
    """

    def __init__(
        self, sink: Records | None, run_id: str, worker: str, *, purge: bool = False, shadow: bool = False
    ) -> None:
        self._sink, self._status = sink, SHADOWED if shadow else PLANNED
        self._stem = f"{folder(run_id)}{VERSIONS if purge else OBJECTS}-{worker}"
        self._numbers = itertools.count()
        self._encoding = threading.Lock()  # rows and an encoder take some MiB: one at a time

    def plan(self, objects: Sequence[Deletable]) -> str:
        """Write a segment before its objects are deleted; return its key."""
        key = f"{self._stem}-{next(self._numbers):05}.parquet"
        self.write(key, lambda: [RecordedObject.of(o, self._status) for o in objects])
        return key

    def write(self, key: str, rows: Callable[[], Sequence[RecordedObject]]) -> None:
        """Write a segment again, with its objects' outcomes; `rows` creates them when it is their turn.

        Raises:
            StoreError: it cannot be written. Objects that are not on record are not deleted.
        """
        if self._sink is None:
            return
        try:
            with self._encoding:
                body = encode_segment(rows())
            self._sink.put_bulk(key, body)
        except StoreError as e:
            raise type(e)(
                f"{e}; the run record is written before anything is deleted: if the store takes no more writes, keep the "
                "record on this machine (l0gc sweep --record-dir DIR), or do without (--no-record)"
            ) from e


def read_segment(records: Records, key: str) -> list[RecordedObject]:
    """Return the objects of a segment. Raises `CorruptObjectError` if it is not a valid segment."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    body = records.get(key).body
    try:
        return [
            RecordedObject(**row) for row in pq.ParquetFile(pa.BufferReader(body)).read(use_threads=False).to_pylist()
        ]
    except (pa.ArrowException, TypeError, OSError) as e:
        raise CorruptObjectError(f"{key} cannot be read: {e}") from e


def summary_key(run_id: str) -> str:
    """Return the key of a run's `run.json`."""
    return f"{folder(run_id)}run.json"


def write_summary(records: Records, summary: RunSummary) -> None:
    """Write `run.json`."""
    records.put(summary_key(summary.run_id), msgspec.json.encode(summary))


def read_summary(records: Records, run_id: str) -> RunSummary:
    """Read `run.json`. Raises `ObjectNotFoundError`, or `CorruptObjectError` if it is invalid."""
    body = records.get(summary_key(run_id)).body
    return decoded(_SUMMARY, body, f"{summary_key(run_id)} cannot be read")
