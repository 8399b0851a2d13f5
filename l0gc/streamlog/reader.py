"""Reading a partition: L1 up to the last reconciled offset, L0 above it, each record once and in order.

A reader holds no lock, so an L0 object may be reconciled and swept between the replay that named it and the read of it
(hazard 19). The reader then replays and goes on from the same offset, now in L1; only an object that is still unreconciled
in the log and yet missing is reported, as what it is: a loss.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from l0gc.errors import CorruptObjectError, ObjectNotFoundError, PartitionClosedError
from l0gc.storage.objectstore import ObjectStore
from l0gc.streamlog.ingest import extents
from l0gc.streamlog.journal.entries import L1File, Unreconciled
from l0gc.streamlog.journal.handle import PartitionHandle

_ROWS: Final = 4096
_L1_FIELDS: Final = [pa.field("offset", pa.int64()), *extents.SCHEMA]


@dataclass(frozen=True, slots=True)
class Record:
    """A record as it was uploaded; `timestamp_ms` is when, in milliseconds since 1970."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes


class StoredFile(io.RawIOBase):
    """An object as a file that is read by ranges."""

    def __init__(self, store: ObjectStore, key: str, size: int) -> None:
        self._store, self._key, self._size, self._at = store, key, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence] + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = self._size if size < 0 else min(self._size, self._at + size)
        if end <= self._at:
            return b""
        body = self._store.get_ranges(self._key, [(self._at, end - self._at)])[0]
        self._at = end
        return body


def read_partition(store: ObjectStore, handle: PartitionHandle, start: int = 0) -> Iterator[Record]:
    """The records of a partition from offset `start` on, as far as the log went when reading began.

    Raises:
        CorruptObjectError: an object does not hold what the log says, or is missing while the log still needs it.
    """
    end = handle.catch_up().next_offset
    at = start
    while at < end:
        with handle.replica.lock:
            state = handle.state
            before, files, placeholders = state.last_reconciled_offset, list(state.l1), list(state.placeholders)
        try:
            for record in _read_once(store, handle.partition.partition, files, placeholders, at, end):
                if record.offset != at:
                    break
                yield record
                at = record.offset + 1
            if at < end:
                raise CorruptObjectError(
                    f"partition {handle.partition}: record {at} is in no object that the log names"
                )
        except ObjectNotFoundError as e:
            now = handle.catch_up()
            if now.closed:
                raise PartitionClosedError(
                    f"topic {handle.partition.topic!r} (revision {handle.partition.revision}) was deleted"
                ) from e
            if now.last_reconciled_offset == before:
                raise CorruptObjectError(
                    f"{e}, though partition {handle.partition} needs it for record {at}; restore that object from a version"
                ) from e


def _read_once(
    store: ObjectStore, partition: int, files: list[L1File], placeholders: list[Unreconciled], start: int, end: int
) -> Iterator[Record]:
    for f in files:
        if f.last_offset >= start and f.base_offset < end:
            yield from _records(partition, _l1_batches(store, f), start, end)
    for u in placeholders:
        p = u.placeholder
        if p.last_offset >= start and p.base_offset < end:
            body = store.get_ranges(p.key, [(p.start, p.length)])[0]
            batch = extents.decode(body, p)
            yield from _records(partition, iter([(p.base_offset, batch)]), start, end)


def _l1_batches(store: ObjectStore, f: L1File) -> Iterator[tuple[int, pa.RecordBatch]]:
    at = f.base_offset
    try:
        parquet = pq.ParquetFile(StoredFile(store, f.key, f.bytes), pre_buffer=False, page_checksum_verification=True)
        found = parquet.schema_arrow  # read from a part of the file that no page checksum covers
        if any(found.get_field_index(c.name) < 0 or found.field(c.name).type != c.type for c in _L1_FIELDS):
            raise CorruptObjectError(f"{f.key} does not have the columns of an L1 object")
        for batch in parquet.iter_batches(_ROWS, columns=[c.name for c in _L1_FIELDS]):
            if batch.num_rows and (batch.column(0)[0].as_py(), batch.column(0)[-1].as_py()) != (
                at,
                at + len(batch) - 1,
            ):
                raise CorruptObjectError(f"{f.key} does not hold the records {f.base_offset} to {f.last_offset}")
            yield at, batch.select(["timestamp", "key", "value"])
            at += batch.num_rows
    except (pa.ArrowException, OSError, ValueError, MemoryError) as e:
        raise CorruptObjectError(f"{f.key} cannot be read: {e}; restore that object from a version") from e
    if at != f.last_offset + 1:
        raise CorruptObjectError(f"{f.key} ends at record {at - 1}, not {f.last_offset}")


def _records(partition: int, batches: Iterator[tuple[int, pa.RecordBatch]], start: int, end: int) -> Iterator[Record]:
    for base, batch in batches:
        skip = max(0, start - base)
        part = batch.slice(skip, max(0, min(batch.num_rows, end - base) - skip))
        times = part.column("timestamp").cast(pa.int64()).to_pylist()
        keys, values = part.column("key").to_pylist(), part.column("value").to_pylist()
        for i, (time, key, value) in enumerate(zip(times, keys, values, strict=True), base + skip):
            yield Record(partition, i, time, key, value)
