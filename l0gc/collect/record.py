"""The objects that runs leave in the bucket: records of deletions, the end of the last run of each job, and `gc`'s
note.

The record of a run is Parquet under `l0gc/runs/{run id}/`, and is correct whenever the run is killed. A segment of
objects is written as `planned` before the first of them is deleted. It is rewritten with the outcome of each object
after its last request. Every deleted object is thus in a segment. A killed run leaves some objects as `planned`, and
the bucket shows which of them are gone (`history.py`).

A shadow run deletes nothing and writes each segment once. Its id begins with `shadow/`, so its record has a separate
folder. Code that looks for deletions does not read it; only `l0gc verify --shadow`, the report and the next shadow run
do.

A full store accepts no writes. In that case, an operator can keep the record in a local folder, or keep none. A file in
the folder is on disk before the write returns, so the record is as reliable as one in the bucket.

`l0gc status` reads the attempts, one for each job, to explain why M does not move; `gc` reads its note
(`gc_steps.GcNote`) to skip steps. An attempt or a note is a small object. No deletion depends on it, so it has no
checksum, the last writer wins, and a failed write is not an error. If a note is lost, a step runs that could have been
skipped. A run ended when its object was written, by the store's clock.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from l0gc.collect.deletion import Deletable
from l0gc.collect.gc_steps import STEPS, SWEEP, GcNote
from l0gc.collect.skip_scan import RunCounts
from l0gc.decoding import UNDECODABLE, decoded
from l0gc.epoch import NO_WATERMARK
from l0gc.errors import (
    CorruptObjectError,
    L0gcError,
    NotInitialisedError,
    ObjectNotFoundError,
    OutputFailedError,
    PausedError,
    StoreError,
    StoreUnreachableError,
    UsageError,
    unexpected,
)
from l0gc.keys import ATTEMPTS, GC_NOTE, RUNS
from l0gc.storage.objectstore import OFF, LocalFolder, ObjectStore
from l0gc.storage.parallel import Parallel
from l0gc.storage.workers import LOCAL
from l0gc.watermark.source import ClusterView, LogEnd

SEGMENT_OBJECTS: Final = 2000
"""The number of objects in a segment, which takes two PUT requests and two DELETE requests."""

DONE: Final = "done"
STOPPED: Final = "stopped"
FAILED: Final = "failed"
"""The outcomes of a run, in this order: it tried everything; the caller or a pause ended it; an error ended it.
`FAILED` is also the status of an object that could not be deleted.
"""
PLANNED: Final = "planned"
DELETED: Final = "deleted"
LEFT: Final = "left"
SHADOWED: Final = "shadow"
"""The status of an object that a shadow run would have deleted."""

_PARTIAL: Final = ".partial"

OBJECTS: Final = "objects"
VERSIONS: Final = "versions"
"""The prefix of a segment's name, by its content: current objects, or versions that are permanently deleted."""


class FolderRecords(LocalFolder):
    """Keeps records in a folder, under the keys that they would have in the bucket."""

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
            for above in path.relative_to(self.folder).parents:  # each folder may be new
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
"""The place of run records: the bucket or a folder."""


class ObjectTotals(msgspec.Struct, frozen=True):
    """A number of objects and their bytes."""

    objects: int = 0
    bytes: int = 0


class RunSummary(RunCounts, kw_only=True):
    """The content of `run.json`, which is written when a run ends: its options and its results. Times are the store's.

    `kinds` has the deletions of a vacuum by kind; a sweep deletes only L0 objects. An undelete deletes nothing: it
    `restored` objects of the run `of_run` of the command `of_command`. For a shadow run, `objects` would have been
    deleted. It covers objects changed by `older_than_ms`, and the log of each unit ended at `ends` when its M was
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
    """An object of a segment and its outcome. A deleted object was gone by `deleted_ms`.

    `version_id` is the id of the delete marker, or of the removed version.
    """

    status: str = PLANNED
    deleted_ms: int = -1

    @classmethod
    def of(cls, o: Deletable, status: str = PLANNED, marker: str = "", now_ms: int = -1) -> RecordedObject:
        """Return the record of an object at `now_ms`; `marker` is the delete marker that hides it, if known."""
        when = now_ms if status == DELETED else -1
        return cls(o.key, o.epoch, o.size, o.modified_ms, o.version_id or marker, status, when)


_SUMMARY: Final = msgspec.json.Decoder(RunSummary)


def folder(run_id: str) -> str:
    """Return the folder of a run's record."""
    return f"{RUNS}{run_id}/"


def worker_of(segment: str) -> str:
    """Return the name of the worker that wrote a segment, given the segment's key."""
    return segment.rpartition("/")[2].partition("-")[2].rpartition("-")[0]


def encode_segment(rows: Sequence[RecordedObject]) -> bytes:
    """Return rows, at least one, as a Parquet segment."""
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
    """Writes the segments of one worker, whose name distinguishes them from those of other workers. Safe for use by
    several threads.

    Args:
        sink: the place of the record; None to write nothing.
    """

    def __init__(
        self, sink: Records | None, run_id: str, worker: str, *, purge: bool = False, shadow: bool = False
    ) -> None:
        self._sink, self._status = sink, SHADOWED if shadow else PLANNED
        self._stem = f"{folder(run_id)}{VERSIONS if purge else OBJECTS}-{worker}"
        self._numbers = itertools.count()
        self._encoding = threading.Lock()  # rows and an encoder take some MiB, so threads take turns

    def plan(self, objects: Sequence[Deletable]) -> str:
        """Write a segment before its objects are deleted, and return its key."""
        key = f"{self._stem}-{next(self._numbers):05}.parquet"
        self.write(key, lambda: [RecordedObject.of(o, self._status) for o in objects])
        return key

    def write(self, key: str, rows: Callable[[], Sequence[RecordedObject]]) -> None:
        """Rewrite a segment with the outcomes of its objects; `rows` is called when it is this segment's turn.

        Raises:
            StoreError: the segment cannot be written. Objects without a record are not deleted.
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


# -- attempts and the note ----------------------------------------------------------------------------------------------

_NOT_RECORDED: Final = (UsageError, NotInitialisedError, PausedError, StoreUnreachableError, OutputFailedError)
"""Errors that do not concern the cluster, are recorded elsewhere (a pause), or leave no store for a record."""
_LONGEST: Final = 1000
STOPPED_CODE: Final = 130
_SIGNALS: Final = (129, STOPPED_CODE, 143)
"""The exit codes of runs that a signal stopped."""


class Attempt(msgspec.Struct, frozen=True):
    """The end of a run: `error` is its error, empty if it succeeded, and `ended_ms` is the store's time.

    `part` means that the run covered a part of the cluster, and that no run for the whole cluster is on record.
    `shadow` marks a shadow run. `leaves_s` is how long a sweep leaves objects that M allows (`--grace`, `--min-age`).
    """

    command: str
    exit_code: int
    error: str
    ended_ms: int = 0
    part: bool = False
    shadow: bool = False
    leaves_s: float = 0.0

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    @property
    def ended(self) -> str:
        """Return how the run ended: `ended`, `failed`, or `stopped` by a signal, which is not a failure."""
        return "ended" if self.ok else "stopped" if self.exit_code in _SIGNALS else "failed"


_ATTEMPT: Final = msgspec.json.Decoder(Attempt)
_NOTE: Final = msgspec.json.Decoder(GcNote)


def attempt_key(command: str) -> str:
    """Return the key of the record of a command's last run."""
    return f"{ATTEMPTS}{command}.json"


def write_attempt(store: ObjectStore, attempt: Attempt) -> None:
    """Record an attempt, if the store accepts the record."""
    with suppress(StoreError):
        store.put(attempt_key(attempt.command), msgspec.json.encode(attempt))


class Attempts(NamedTuple):
    """The last recorded run of each job, and the store's refusals of other records."""

    known: dict[str, Attempt]
    refused: dict[str, StoreError]


def read_attempts(store: ObjectStore, parallel: Parallel, jobs: Sequence[str] = STEPS) -> Attempts:
    """Return the last recorded run of each job. Records that cannot be decoded are ignored.

    A record that the store refuses raises no error, since nothing else depends on it.
    """

    def read(command: str) -> Attempt | StoreError | None:
        try:
            stored = store.get(attempt_key(command))
            return msgspec.structs.replace(_ATTEMPT.decode(stored.body), ended_ms=stored.modified_ms)
        except (ObjectNotFoundError, *UNDECODABLE):
            return None
        except StoreError as e:
            return e

    answers = dict(zip(jobs, parallel.map(read, jobs), strict=True))
    attempts = {job: a for job, a in answers.items() if isinstance(a, Attempt)}
    return Attempts(attempts, {job: e for job, e in answers.items() if isinstance(e, StoreError)})


def read_gc_note(store: ObjectStore) -> GcNote:
    """Return the note of `gc`. If it does not exist or cannot be read, return an empty note, with which steps run."""
    try:
        return _NOTE.decode(store.get(GC_NOTE).body)
    except (ObjectNotFoundError, StoreError, *UNDECODABLE):
        return GcNote()


def write_gc_note(store: ObjectStore, note: GcNote) -> None:
    """Write the note, if the store accepts it."""
    with suppress(StoreError):
        store.put(GC_NOTE, msgspec.json.encode(note))


@contextmanager
def recorded_attempt(
    cluster: ClusterView,
    command: str,
    *,
    whole: bool | Callable[[], bool] = True,
    dry_run: bool = False,
    shadow: bool = False,
    leaves_s: float = 0.0,
) -> Iterator[None]:
    """Record how a block ended, unless the cluster was never identified, since nothing may be written to a foreign
    bucket.

    Args:
        whole: False for a run that covers only a part of the cluster. This run is recorded only if it succeeded and no
            run for the whole cluster is on record. A function is called when the block has ended.
        dry_run: whether the run writes nothing and is therefore not recorded.
        shadow, leaves_s: see `Attempt`.
    """
    error: BaseException | None = None
    try:
        yield
    except BaseException as e:
        error = e
        raise
    finally:
        # A closed output does not concern the run.
        unconcerned = isinstance(error, _NOT_RECORDED) or isinstance(getattr(error, "__cause__", None), BrokenPipeError)
        if not dry_run and cluster.identified and not unconcerned:
            if whole if isinstance(whole, bool) else whole():
                attempt = Attempt(command, *_outcome(error), shadow=shadow, leaves_s=leaves_s)
                write_attempt(cluster.store, attempt)
            elif error is None:
                _record_part(cluster, command)


def _record_part(cluster: ClusterView, command: str) -> None:
    """Record a run for a part of the cluster, so that the job is not reported as never run."""
    with suppress(StoreError):
        read = read_attempts(cluster.store, cluster.parallel, [command])
        last = read.known.get(command)
        if not read.refused and (last is None or last.part):
            write_attempt(cluster.store, Attempt(command, 0, "", part=True))


def _outcome(error: BaseException | None) -> tuple[int, str]:
    if error is None:
        return 0, ""
    if isinstance(error, L0gcError):
        return error.exit_code, str(error)[:_LONGEST]
    if isinstance(error, KeyboardInterrupt):
        return STOPPED_CODE, "it was stopped"
    if isinstance(error, Exception):
        return _outcome(unexpected(error))
    return 1, f"it was ended by {type(error).__name__}"
