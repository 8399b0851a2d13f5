"""L0 extents to L1 Parquet: what an executor does.

Every extent is checked against the log's CRC32C before its records are believed. A file is written to local disk, checked
to hold consecutive offsets, uploaded as a whole, and named only then: what the driver commits is durable and complete.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from l0gc import columns
from l0gc.errors import CorruptObjectError
from l0gc.keys import level_one
from l0gc.runtime import Runtime
from l0gc.storage.objectstore import ObjectStore
from l0gc.streamlog.ingest import extents
from l0gc.streamlog.journal.entries import L1File
from l0gc.streamlog.level_one.plan import ObjectRead, PartitionPlan

L1_SCHEMA: Final = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("epoch", pa.int64(), nullable=False),
    ]
)
FILE_BYTES: Final = 128 << 20
"""Size of the records, uncompressed, at which an L1 object is closed and the next one begun."""
_ROW_GROUP_BYTES: Final = 16 << 20


def read_object(store: ObjectStore, read: ObjectRead) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The records of an L0 object, each extent as (plan index, batch of `L1_SCHEMA`).

    Raises:
        CorruptObjectError: an extent does not match the log.
        ObjectNotFoundError: the object is gone: the range was reconciled and swept by another reconciler, or it is lost.
    """
    bodies = store.get_ranges(read.key, [(e.placeholder.start, e.placeholder.length) for e in read.extents])
    for e, body in zip(read.extents, bodies, strict=True):
        batch = extents.decode(body, e.placeholder)
        base, n = e.placeholder.base_offset, e.placeholder.records
        offsets, epochs = columns.counting(base, n), columns.repeated(e.epoch, n)
        arrays = [offsets, batch.column("timestamp"), batch.column("key"), batch.column("value"), epochs]
        yield e.index, pa.RecordBatch.from_arrays(arrays, schema=L1_SCHEMA)


class L1Writer:
    """Writes the records of one plan, in order, as one or more L1 objects."""

    def __init__(self, store: ObjectStore, plan: PartitionPlan, runtime: Runtime, directory: Path) -> None:
        self._store, self._plan, self._runtime, self._directory = store, plan, runtime, directory
        self._next = plan.base_offset
        self._base = plan.base_offset
        self._writer: pq.ParquetWriter | None = None
        self._path = directory / "unused"
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._bytes = 0
        self.files: list[L1File] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Take the next records. Raises `CorruptObjectError` if they do not continue the ones before."""
        offsets = batch.column("offset").to_numpy()
        n = len(offsets)
        if (
            offsets[0] != self._next
            or offsets[-1] != self._next + n - 1
            or (n > 1 and (offsets[1:] <= offsets[:-1]).any())
        ):
            raise CorruptObjectError(
                f"partition {self._plan.id}: records {offsets[0]} to {offsets[-1]} arrived where {self._next} is next"
            )
        self._next += n
        self._held.append(batch)
        self._held_bytes += batch.nbytes
        if self._held_bytes >= _ROW_GROUP_BYTES:
            self._flush()
        if self._bytes >= FILE_BYTES:
            self._close()

    def finish(self) -> list[L1File]:
        """Close and upload what is open. Raises `CorruptObjectError` if records of the plan are missing."""
        if self._next != self._plan.last_offset + 1:
            raise CorruptObjectError(
                f"partition {self._plan.id}: the last record is {self._next - 1}, not {self._plan.last_offset}"
            )
        self._flush()
        self._close()
        return self.files

    def _flush(self) -> None:
        if not self._held:
            return
        if self._writer is None:
            self._path = self._directory / f"{self._runtime.new_id()}.parquet"
            self._writer = pq.ParquetWriter(
                self._path,
                L1_SCHEMA,
                compression="zstd",
                use_dictionary=["key", "epoch", "timestamp"],
                write_page_checksum=True,
            )
        self._writer.write_table(pa.Table.from_batches(self._held, L1_SCHEMA))
        self._bytes += self._held_bytes
        self._held, self._held_bytes = [], 0

    def _close(self) -> None:
        if self._writer is None:
            return
        self._writer.close()
        last = self._next - 1
        key = level_one(self._plan.id, self._base, last, self._runtime.new_id())
        self._store.put_file(key, self._path)
        self.files.append(L1File(key, self._base, last, self._path.stat().st_size))
        self._path.unlink()
        self._writer, self._base, self._bytes = None, self._next, 0


def write_l1(
    store: ObjectStore, plans: dict[int, PartitionPlan], rows: Iterable[pa.RecordBatch], runtime: Runtime
) -> Iterator[tuple[int, L1File]]:
    """Write records, sorted by plan and offset, as L1 objects.

    `rows` has the columns plan, offset, timestamp_ms, key, value, epoch.
    """
    with tempfile.TemporaryDirectory(prefix="l0gc-l1-") as directory:
        current: L1Writer | None = None
        index = -1
        for batch in rows:
            column = batch.column(0).to_numpy()
            at = 0
            while at < batch.num_rows:
                if column[at] != index:
                    if current is not None:
                        yield from ((index, f) for f in current.finish())
                    index = int(column[at])
                    current = L1Writer(store, plans[index], runtime, Path(directory))
                end = int(column.searchsorted(index, side="right"))
                assert current is not None
                _, offset, timestamp, key, value, epoch = batch.slice(at, end - at).columns
                timestamp = timestamp.cast(L1_SCHEMA.field("timestamp").type)
                current.write(pa.record_batch([offset, timestamp, key, value, epoch], L1_SCHEMA))
                at = end
        if current is not None:
            yield from ((index, f) for f in current.finish())
