"""The run record: what a sweep deletes, as Parquet under `l0gc/runs/{run id}/`, true at whatever moment the run is killed.

A segment of objects is written as `planned` before the first of them is deleted, and written again, with what became of
each, when the last request of the segment has ended. So whatever is deleted is in a segment: a killed run leaves some as
`planned`, and the bucket itself shows which of those are gone (`runs.py`).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from l0gc.collect.scan import Deletable
from l0gc.decoding import UNDECODABLE, json_decoder
from l0gc.errors import CorruptObjectError, StoreError
from l0gc.keys import RUNS
from l0gc.storage.objectstore import ListedPage, Listing, Stored

SEGMENT_OBJECTS: Final = 2000
"""Objects in one segment: two PUT requests for every two DELETE requests."""

PLANNED: Final = "planned"
DELETED: Final = "deleted"
FAILED: Final = "failed"
LEFT: Final = "left"

SWEEP: Final = "sweep"
VACUUM: Final = "vacuum"
"""The commands whose runs are on record."""

OBJECTS: Final = "objects"
VERSIONS: Final = "versions"
"""What a segment holds, and how its name begins: objects as they are, or versions that go for good."""


class RecordSink(Protocol):
    """Where a run record is written: the bucket, or a folder of this machine (`record_places.py`)."""

    def put(self, key: str, body: bytes) -> object: ...

    def put_bulk(self, key: str, body: bytes) -> None: ...


class RecordSource(Protocol):
    """Where run records are read: the bucket, or a folder of this machine."""

    def get(self, key: str) -> Stored: ...

    def list(self, folder: str) -> Listing: ...

    def scan(self, prefix: str, start_after: str = "") -> Iterator[ListedPage]: ...


class Removed(msgspec.Struct, frozen=True):
    """So many objects, and their bytes."""

    objects: int = 0
    bytes: int = 0


class RunSummary(msgspec.Struct, frozen=True):
    """`run.json`, written when a run ends: its options, and what it did. Times are the store's.

    `kinds` is what a vacuum deleted of each kind; a sweep deletes L0 objects alone.
    """

    run_id: str
    started_ms: int
    watermark: int
    cluster_epoch: int
    engine: str
    versioning: str
    purge_versions: bool
    first_shard: int
    end_shard: int
    ended_ms: int
    outcome: str
    listed: int = 0
    eligible: int = 0
    deleted: int = 0
    bytes: int = 0
    failed: int = 0
    uploads_aborted: int = 0
    seconds: float = 0.0
    command: str = SWEEP
    kinds: dict[str, Removed] = {}


@dataclass(frozen=True, slots=True)
class RecordedObject:
    """An object of a segment, and what became of it.

    `version_id` is that of the delete marker, or of the version that went.
    """

    key: str
    epoch: int
    size: int
    modified_ms: int
    version_id: str
    status: str
    deleted_ms: int = -1


_SUMMARY: Final = json_decoder(RunSummary)


def folder(run_id: str) -> str:
    """Where a run's record lies."""
    return f"{RUNS}{run_id}/"


def worker_of(segment: str) -> str:
    """Who wrote a segment, by its key."""
    return segment.rpartition("/")[2].partition("-")[2].rpartition("-")[0]


@dataclass(frozen=True, slots=True)
class Segment:
    """Objects that went on record together, and where they are on record."""

    key: str
    objects: Sequence[Deletable]

    def encode(self, statuses: Sequence[str], version_ids: Sequence[str], now_ms: int) -> bytes:
        """The segment as Parquet. See `RecordedObject` for what the columns mean; what is deleted was so by `now_ms`."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        from l0gc.columns import integers, strings

        table = pa.table(
            {
                "key": strings([o.key for o in self.objects]),
                "epoch": integers([o.epoch for o in self.objects]),
                "size": integers([o.size for o in self.objects]),
                "modified_ms": integers([o.modified_ms for o in self.objects]),
                "version_id": strings(version_ids),
                "status": strings(statuses),
                "deleted_ms": integers([now_ms if s == DELETED else -1 for s in statuses]),
            }
        )
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd", use_dictionary=["version_id", "status", "epoch"])
        body: bytes = sink.getvalue().to_pybytes()
        return body


class RunRecord:
    """Writes the segments of one worker, whose name keeps them apart from other workers'; safe for several threads.

    Args:
        sink: where they go; None to write nothing.
    """

    def __init__(self, sink: RecordSink | None, run_id: str, worker: str, *, purge: bool = False) -> None:
        self._sink = sink
        self._stem = f"{folder(run_id)}{VERSIONS if purge else OBJECTS}-{worker}"
        self._numbers = itertools.count()
        self._encoding = threading.Lock()  # an encoder takes some MiB: one at a time

    def plan(self, objects: Sequence[Deletable]) -> Segment:
        """Write a segment before its objects are deleted."""
        segment = Segment(f"{self._stem}-{next(self._numbers):05}.parquet", objects)
        self.write(segment, [PLANNED] * len(objects), [o.version_id for o in objects], -1)
        return segment

    def write(self, segment: Segment, statuses: Sequence[str], version_ids: Sequence[str], now_ms: int) -> None:
        """Write a segment again, with what became of its objects by `now_ms`.

        Raises:
            StoreError: it cannot be written. Objects that are not on record are not deleted.
        """
        if self._sink is None:
            return
        try:
            with self._encoding:
                body = segment.encode(statuses, version_ids, now_ms)
            self._sink.put_bulk(segment.key, body)
        except StoreError as e:
            raise type(e)(
                f"{e}; the run record is written before anything is deleted: if the store takes no more writes, keep the "
                "record on this machine (l0gc sweep --record-dir DIR), or do without (--no-record)"
            ) from e


def read_segment(records: RecordSource, key: str) -> list[RecordedObject]:
    """The objects of a segment. Raises `CorruptObjectError` if it cannot be read as one."""
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
    """Where a run's `run.json` is."""
    return f"{folder(run_id)}run.json"


def write_summary(records: RecordSink, summary: RunSummary) -> None:
    """Write `run.json`."""
    records.put(summary_key(summary.run_id), msgspec.json.encode(summary))


def read_summary(records: RecordSource, run_id: str) -> RunSummary:
    """Read `run.json`. Raises `ObjectNotFoundError`, and `CorruptObjectError` if it cannot be read as one."""
    body = records.get(summary_key(run_id)).body
    try:
        return _SUMMARY.decode(body)
    except UNDECODABLE as e:
        raise CorruptObjectError(f"{summary_key(run_id)} cannot be read: {e}") from e
