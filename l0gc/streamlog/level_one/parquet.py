"""L1 objects: Parquet files with the records of one partition, at consecutive offsets. What they hold, and their reading.

Everything that is read must match the journal: the object's own key, which it holds, the columns, the offsets from the first
to the last, and a checksum for each page. Anything that differs is corrupt, and named.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from l0gc.errors import CorruptObjectError
from l0gc.storage.objectstore import ObjectStore
from l0gc.streamlog.ingest.extents import fetch
from l0gc.streamlog.journal.topic import L1File

L1_SCHEMA: Final = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("epoch", pa.int64(), nullable=False),
    ]
)
"""`epoch` is that of the L0 object which the record came from."""
KEY_METADATA: Final = "l0gc.key"
"""The object's key, in Parquet's own metadata: an object that lies at another's place is not believed."""
RECORD: Final = ("timestamp", "key", "value")
"""What a reader wants of a record; its offset is known."""
_ROWS: Final = 4096


class RangedFile(io.RawIOBase):
    """A file of a known size whose `read` gets ranges of it from somewhere; it has a place, and can be moved there."""

    def __init__(self, size: int) -> None:
        self._size, self._at = size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence] + offset
        return self._at


class StoredFile(RangedFile):
    """An object as a file that is read by ranges."""

    def __init__(self, store: ObjectStore, key: str, size: int) -> None:
        super().__init__(size)
        self._store, self._key = store, key

    def read(self, size: int = -1) -> bytes:
        end = self._size if size < 0 else min(self._size, self._at + size)
        if end <= self._at:
            return b""
        body = fetch(self._store, self._key, [(self._at, end - self._at)])[0]
        self._at = end
        return body


def check_l1(parquet: pq.ParquetFile, key: str) -> None:
    """Raises `CorruptObjectError` unless a file has the columns of an L1 object, and says that it is the one at `key`."""
    found = parquet.schema_arrow  # read from a part of the file that no page checksum covers
    if found != L1_SCHEMA and any(
        found.get_field_index(f.name) < 0 or found.field(f.name).type != f.type for f in L1_SCHEMA
    ):
        raise CorruptObjectError(f"{key} does not have the columns of an L1 object")
    if (parquet.metadata.metadata or {}).get(KEY_METADATA.encode()) != key.encode():
        raise CorruptObjectError(f"{key} holds another object, or nothing that says which; restore it from a version")


def read_l1(
    store: ObjectStore | bytes, key: str, file: L1File, start: int = 0, wanted: Sequence[str] = RECORD
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The records of an L1 object as (offset of the first, batch), in order.

    Args:
        store: where it is, or its content.
        start: what lies wholly before this offset need not be read.
        wanted: the batches' columns.

    Raises:
        CorruptObjectError: the object does not hold the records that the journal says.
        ObjectNotFoundError: it is gone.
    """
    at = file.base_offset
    try:
        stored = pa.BufferReader(store) if isinstance(store, bytes) else StoredFile(store, key, file.bytes)
        parquet = pq.ParquetFile(stored, pre_buffer=False, page_checksum_verification=True)
        check_l1(parquet, key)
        group = 0
        while group + 1 < parquet.num_row_groups and at + (rows := parquet.metadata.row_group(group).num_rows) <= start:
            group, at = group + 1, at + rows
        groups = list(range(group, parquet.num_row_groups))
        names = list(dict.fromkeys(["offset", *wanted]))
        # One thread: small files are many, and read at once.
        for batch in parquet.iter_batches(_ROWS, row_groups=groups, columns=names, use_threads=False):
            offset = batch.column("offset")
            if batch.num_rows and (offset[0].as_py(), offset[-1].as_py()) != (at, at + batch.num_rows - 1):
                raise CorruptObjectError(f"{key} does not hold the records {file.base_offset} to {file.last_offset}")
            yield at, batch.select(wanted)
            at += batch.num_rows
    except (pa.ArrowException, OSError, ValueError, MemoryError) as e:
        raise CorruptObjectError(f"{key} cannot be read: {e}; restore that object from a version") from e
    if at != file.last_offset + 1:
        raise CorruptObjectError(f"{key} ends at record {at - 1}, not {file.last_offset}")
