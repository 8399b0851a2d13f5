"""Read L1 objects: Parquet files with the records of one partition at consecutive offsets.

An object's footer is read first. It locates each row group, and contains the range of its records' timestamps. Only row
groups with requested records are fetched, ahead of their decoding. Everything that is read must match the journal: the
object's key in its metadata, the columns, the offsets from first to last, a checksum for each page, and one for the
footer. A difference is reported as corruption of the named object. Parquet has no checksum for a footer, and Arrow ends
the process on some damaged footers. So a footer is not used before its checksum has been verified. The checksum lies
directly before the footer, where other readers of Parquet do not look.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from l0gc import columns
from l0gc.errors import CorruptObjectError
from l0gc.limits import MAX_FOOTER_BYTES, MAX_GROUP_BYTES
from l0gc.storage.objectstore import ObjectStore, read_again
from l0gc.streamlog.ingest.extents import fetch
from l0gc.streamlog.ingest.headers_and_times import HEADER, OPTIONAL
from l0gc.streamlog.journal.topic import L1File
from l0gc.streamlog.values.parse import is_typed

FIELD_IDS: Final = {
    path: number
    for number, path in enumerate(
        (
            *("offset", "timestamp", "key", "value", "epoch", "partition"),
            *("create_time", "headers", "headers.element", "headers.element.key", "headers.element.value"),
        ),
        1,
    )
}
"""The id of each column, by which a table finds the column in every file, whatever its name or position. An id never
changes. Objects of older versions have no ids; their columns are found by name.
"""


def _column(path: str, kind: pa.DataType, *, nullable: bool = False) -> pa.Field:
    return pa.field(path.rpartition(".")[2], kind, nullable, {"PARQUET:field_id": str(FIELD_IDS[path])})


L1_SCHEMA: Final = pa.schema(
    [
        _column("offset", pa.int64()),
        _column("timestamp", pa.timestamp("ms", tz="UTC")),
        _column("key", pa.binary(), nullable=True),
        _column("value", pa.binary()),
        _column("epoch", pa.int64()),
    ]
)
"""`epoch` is that of the L0 object from which the record came."""
PARTITION: Final = _column("partition", pa.int32())
"""The same number in each row, for other readers: some find no rows by a table's partition unless the files have the
column. l0gc takes the number from the key, and objects of older versions lack the column.
"""
_HEADER: Final = pa.struct([_column(f"headers.element.{f.name}", f.type, nullable=f.nullable) for f in HEADER])
_OPTIONAL: Final = pa.schema(
    [
        _column("create_time", OPTIONAL.field("create_time").type, nullable=True),
        _column("headers", pa.list_(_column("headers.element", _HEADER)), nullable=True),
    ]
)
L1_COLUMNS: Final = pa.schema([*L1_SCHEMA, *_OPTIONAL])
"""All columns that the records of an L1 object may have; a file has an optional one only if one of its records does."""
L1_FILE: Final = pa.schema([*L1_SCHEMA, PARTITION, *_OPTIONAL])
"""All columns that a new object may have, in order."""
GIVEN_UP_METADATA: Final = "l0gc.given_up"
"""The metadata of a hole, an object without rows: by whom, when and why its records were given up, as JSON; see
`give_up.py`.
"""
KEY_METADATA: Final = "l0gc.key"
"""The object's key, in Parquet's metadata: an object at another key is rejected."""
SCHEMA_METADATA: Final = "l0gc.value_schema"
"""The number of the value schema of the typed columns, which follow l0gc's own; absent if there are none."""
RECORD: Final = ("timestamp", "key", "value")
"""The columns of a record that a reader needs, besides its offset."""
WHOLE_RECORD: Final = (*RECORD, *OPTIONAL.names)
WHOLE_BYTES: Final = 64 << 10
"""An object up to this size is fetched as a whole, since its footer alone would also cost a request."""
CHUNK_BYTES: Final = 16 << 20
"""About how many bytes of neighbouring row groups are fetched with one request."""
_LEAST_TAIL: Final = 8 << 10
_USUAL_TAIL: Final = 24 << 10
"""A footer is first searched for in the last 512th of an object, of at least 8 and at most 24 KiB; these hold the footers
of 50 and 150 MiB of records. In an object that is larger than usual, it is the last 2,048th.
"""
_MAGIC: Final = 8
"""Bytes after a footer: its length, and Parquet's name."""
_CHECKSUM: Final = 4
"""Bytes before a footer: the CRC32C of everything after them."""
_CHECKED: Final = frozenset({"offset", "timestamp", "epoch"})
"""The columns whose statistics are compared with the records: every writer's footer has them."""
_NEEDED: Final = frozenset(L1_SCHEMA.names)
_BROKEN: Final = (pa.ArrowException, OSError, ValueError, MemoryError)


@dataclass(frozen=True, slots=True)
class WantedFile:
    """An L1 object, and the requested offsets `start` to `end`, end excluded."""

    key: str
    file: L1File
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group: its number, the offset of its first record, and how many records it has."""

    number: int
    base: int
    records: int

    @property
    def end(self) -> int:
        return self.base + self.records


@dataclass(slots=True)
class OpenL1File:
    """An L1 object whose footer was read; `body` is the whole object if it was fetched with the footer."""

    wanted: WantedFile
    metadata: Any
    body: bytes | None
    groups: list[RowGroup] = field(default_factory=list)


@dataclass(slots=True)
class L1Chunk:
    """Neighbouring row groups of an object, and the bytes fetched for them, by their positions."""

    opened: OpenL1File
    groups: list[RowGroup]
    pieces: list[tuple[int, bytes]] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Estimate how many bytes its row groups take."""
        return sum(self.opened.metadata.row_group(g.number).total_byte_size for g in self.groups)


class RangedFile(io.RawIOBase):
    """A file of a known size; `fetch` returns bytes, given an offset and their number."""

    def __init__(self, size: int, fetch: Callable[[int, int], bytes]) -> None:
        self._size, self._fetch, self._at = size, fetch, 0

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
        start, end = self._at, self._size if size < 0 else min(self._size, self._at + size)
        if end <= start:
            return b""
        self._at = end
        return self._fetch(start, end - start)


def _within(pieces: Sequence[tuple[int, bytes]], start: int, size: int) -> bytes:
    """Return bytes of a file that is only partly in memory, for readers that use no others."""
    for at, body in pieces:
        if at <= start and start + size <= at + len(body):
            return body[start - at : start - at + size]
    raise OSError(f"bytes {start} to {start + size} belong to no row group that its footer names")


def open_l1(store: ObjectStore, file: WantedFile, whole_bytes: int = WHOLE_BYTES) -> OpenL1File:
    """Read an object's footer, on any thread.

    Args:
        whole_bytes: an object up to this size is fetched with its footer.

    Raises:
        CorruptObjectError: it is not this L1 object.
        ObjectNotFoundError: it is missing.
    """
    key, size = file.key, file.file.bytes
    tail_bytes = size if size <= whole_bytes else max(_LEAST_TAIL, min(size // 512, _USUAL_TAIL), size // 2048)
    metadata, tail = read_footer(store, key, size, tail_bytes)
    opened = OpenL1File(file, metadata, tail if len(tail) == size else None)
    _add_groups(opened)
    return opened


def _add_groups(opened: OpenL1File) -> None:
    """Locate the row groups. Raises `CorruptObjectError` unless they hold all of the object's records."""
    file, at = opened.wanted.file, opened.wanted.file.base_offset
    for number in range(opened.metadata.num_row_groups):
        opened.groups.append(RowGroup(number, at, opened.metadata.row_group(number).num_rows))
        at = opened.groups[-1].end
    if at != file.last_offset + 1:
        raise CorruptObjectError(f"{opened.wanted.key} ends at record {at - 1}, not {file.last_offset}")


def read_footer(store: ObjectStore, key: str, size: int, tail_bytes: int = _LEAST_TAIL) -> tuple[Any, bytes]:
    """Return the checked metadata of an L1 object of `size` bytes, and the bytes of its end that were fetched. A footer that
    is wrong is read again.

    Args:
        tail_bytes: how many bytes of the end to fetch first; a larger footer costs another request.

    Raises:
        CorruptObjectError: it is not this L1 object.
        ObjectNotFoundError: it is missing.
    """
    return read_again(functools.partial(_read_footer, store, key, size, tail_bytes))


def _read_footer(store: ObjectStore, key: str, size: int, tail_bytes: int) -> tuple[Any, bytes]:
    start = max(0, size - tail_bytes)
    tail = fetch(store, key, [(start, size - start)])[0]
    footer = int.from_bytes(tail[-_MAGIC : -_MAGIC + 4], "little") + _MAGIC
    sealed = footer + _CHECKSUM
    if sealed > size or len(tail) < size - start:
        raise CorruptObjectError(f"{key} does not end with a footer of Parquet; restore that object from a version")
    if sealed > MAX_FOOTER_BYTES:
        raise CorruptObjectError(
            f"{key} has a footer of {sealed:,} bytes, more than the {MAX_FOOTER_BYTES:,} that it may have; restore that "
            "object from a version"
        )
    if sealed > len(tail):
        tail = fetch(store, key, [(size - sealed, sealed - len(tail))])[0] + tail
    if crc32c(tail[-footer:]) != int.from_bytes(tail[-sealed:-footer], "little"):
        raise CorruptObjectError(f"{key} has a footer whose checksum is wrong; restore that object from a version")
    try:
        metadata = pq.read_metadata(pa.BufferReader(tail))
        _check_l1(metadata, key)
    except _BROKEN as e:
        raise _broken(key, e) from e
    return metadata, tail


def seal_footer(file: BinaryIO) -> int:
    """Insert the footer's checksum before the footer of a Parquet file; return the file's new size.

    The data to which the footer refers lies before both, and does not move.
    """
    file.seek(-_MAGIC, io.SEEK_END)
    size = int.from_bytes(file.read(4), "little") + _MAGIC
    at = file.seek(-size, io.SEEK_END)
    footer = file.read(size)
    file.seek(at)
    return at + file.write(crc32c(footer).to_bytes(_CHECKSUM, "little") + footer)


def _check_l1(metadata: Any, key: str) -> None:
    """Raise `CorruptObjectError` unless a file has the columns of an L1 object, and `key` in its metadata."""
    schema = metadata.schema.to_arrow_schema()
    wrong = schema != L1_SCHEMA and not has_l1_columns(schema)
    for number in range(metadata.num_row_groups):  # columns are found by the names that each repeats
        of_group = {c.path_in_schema: c for c in _columns(metadata, number)}
        wrong |= not of_group.keys() >= _NEEDED
        _check_group(metadata.row_group(number).total_byte_size, of_group, key)
    if wrong:
        raise CorruptObjectError(f"{key} does not have the columns of an L1 object")
    if (metadata.metadata or {}).get(KEY_METADATA.encode()) != key.encode():
        raise CorruptObjectError(f"{key} holds another object, or does not name its object; restore it from a version")


def _check_group(size: int, of_group: Mapping[str, Any], key: str) -> None:
    """Raise `CorruptObjectError` if a row group of this size would unpack to more than any writer puts into one.

    The footer's sizes do not bound values that a dictionary repeats, or that repeat the beginning of the previous value.
    No writer stores values in these ways.
    """
    for path, c in of_group.items():
        if path in _CHECKED:
            continue
        if "DELTA_BYTE_ARRAY" in c.encodings or (path == "value" and c.has_dictionary_page):
            raise CorruptObjectError(
                f"{key} has column {path} in an encoding that may repeat long values, which no L1 object has; restore that "
                "object from a version"
            )
    size = max(size, sum(c.total_uncompressed_size for c in of_group.values()))
    if size > MAX_GROUP_BYTES:
        raise CorruptObjectError(
            f"{key} has a row group that would unpack to {size:,} bytes, more than the {MAX_GROUP_BYTES:,} that it may "
            "have; restore that object from a version"
        )


def has_l1_columns(schema: pa.Schema, *, only: bool = False) -> bool:
    """Return whether a file with this schema may be an L1 object; with `only`, whether it has no other columns."""
    fields = {f.name: f for f in schema}
    l1_fields = [f for f in L1_FILE if f.name in fields or f.name in L1_SCHEMA.names]
    own = [f.name for f in schema if not is_typed(f)]
    if only and (own != [f.name for f in l1_fields] or any(f.nullable != fields[f.name].nullable for f in l1_fields)):
        return False
    return all(f.name in fields and f.type == fields[f.name].type for f in l1_fields)


def schema_number(metadata: Any) -> int:
    """Return the number of the value schema of an object's typed columns; 0 if there is none."""
    return int((metadata.metadata or {}).get(SCHEMA_METADATA.encode(), 0))


def _broken(key: str, e: Exception) -> CorruptObjectError:
    return CorruptObjectError(f"{key} cannot be read: {e}; restore that object from a version")


def wanted_groups(opened: OpenL1File, since_ms: int | None = None) -> list[RowGroup]:
    """Return the row groups that may hold requested records; with `since_ms`, only those with records of that time or
    later.
    """
    w = opened.wanted
    return [
        g
        for g in opened.groups
        if g.end > w.start and g.base < w.end and (since_ms is None or _reaches(opened.metadata, g.number, since_ms))
    ]


def _reaches(metadata: Any, number: int, since_ms: int) -> bool:
    column = next(c for c in _columns(metadata, number) if c.path_in_schema == "timestamp")
    statistics = column.statistics
    if statistics is None or not statistics.has_min_max:
        return True
    # The raw values are milliseconds. To convert them to times, pyarrow imports pandas: a third of a second for each
    # worker.
    return bool(statistics.max_raw >= since_ms)


def _columns(metadata: Any, number: int) -> list[Any]:
    group = metadata.row_group(number)
    return [group.column(i) for i in range(group.num_columns)]


def chunks(opened: OpenL1File, groups: Sequence[RowGroup]) -> Iterator[L1Chunk]:
    """Yield the row groups in chunks that are fetched together."""
    chunk = L1Chunk(opened, [])
    size = 0
    for g in groups:
        weight = opened.metadata.row_group(g.number).total_byte_size
        if chunk.groups and (size + weight > CHUNK_BYTES or chunk.groups[-1].end != g.base):
            yield chunk
            chunk, size = L1Chunk(opened, []), 0
        chunk.groups.append(g)
        size += weight
    if chunk.groups:
        yield chunk


def fetch_chunk(store: ObjectStore, chunk: L1Chunk, names: Sequence[str]) -> L1Chunk:
    """Fetch these columns of a chunk, on any thread. Raises `ObjectNotFoundError` or `CorruptObjectError`."""
    opened = chunk.opened
    if opened.body is not None:
        chunk.pieces = [(0, opened.body)]
        return chunk
    ranges: list[tuple[int, int]] = []
    for g in chunk.groups:
        for c in _columns(opened.metadata, g.number):
            if c.path_in_schema.split(".")[0] not in names:
                continue
            start = c.data_page_offset if c.dictionary_page_offset is None else c.dictionary_page_offset
            start = min(start, c.data_page_offset)
            if ranges and sum(ranges[-1]) == start:
                ranges[-1] = ranges[-1][0], ranges[-1][1] + c.total_compressed_size
            else:
                ranges.append((start, c.total_compressed_size))
    key, end = opened.wanted.key, opened.wanted.file.bytes
    if any(start < 0 or length < 1 or start + length > end for start, length in ranges):
        raise CorruptObjectError(
            f"{key} has a footer that names bytes outside of it; restore that object from a version"
        )
    bodies = fetch(store, key, ranges)
    chunk.pieces = [(start, body) for (start, _), body in zip(ranges, bodies, strict=True)]
    return chunk


def read_l1(
    store: ObjectStore, opened: OpenL1File, names: Sequence[str], since_ms: int | None = None
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the records of an object that may be among the requested ones, chunk by chunk. See `decode_fetched`."""
    for chunk in chunks(opened, wanted_groups(opened, since_ms)):
        yield from decode_fetched(store, fetch_chunk(store, chunk, names), names)


def decode_fetched(store: ObjectStore, chunk: L1Chunk, names: Sequence[str]) -> list[tuple[int, pa.RecordBatch]]:
    """Return the records of a fetched chunk, as `decode` yields them. A damaged chunk is fetched again (hazard 34), since
    a rewrite of these records becomes their only copy.
    """
    fetched = [chunk]

    def read() -> list[tuple[int, pa.RecordBatch]]:
        now = (
            fetched.pop()
            if fetched
            else fetch_chunk(store, L1Chunk(replace(chunk.opened, body=None), chunk.groups), names)
        )
        return list(decode(now, names))

    return read_again(read)


def read_body(key: str, body: bytes, file: L1File) -> Iterator[pa.RecordBatch]:
    """Yield the records of an object in memory, with the same checks as if it were read from the store."""
    whole = WantedFile(key, file, file.base_offset, file.last_offset + 1)
    opened = OpenL1File(whole, pq.read_metadata(pa.BufferReader(body)), body)
    _add_groups(opened)
    for group in opened.groups:
        for _, batch in decode(L1Chunk(opened, [group]), L1_COLUMNS.names):
            yield batch


def decode(chunk: L1Chunk, names: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the records of a chunk in order, as (offset of the first, batch); `names` includes the offset. A batch lacks
    optional columns that the object lacks. Raises `CorruptObjectError` if the records differ from the journal or from the
    footer's statistics.
    """
    key, f = chunk.opened.wanted.key, chunk.opened.wanted.file
    try:
        body = chunk.opened.body  # Arrow reads bytes without calling Python, and so without waiting for its lock
        file = pa.BufferReader(body) if body else RangedFile(f.bytes, functools.partial(_within, chunk.pieces))
        parquet = pq.ParquetFile(
            file, metadata=chunk.opened.metadata, pre_buffer=False, page_checksum_verification=True
        )
        table = parquet.read_row_groups([g.number for g in chunk.groups], columns=list(names), use_threads=False)
        batches = table.to_batches()
    except _BROKEN as e:
        raise _broken(key, e) from e
    _check_statistics(chunk, table)
    at = chunk.groups[0].base
    for batch in batches:
        if not batch.num_rows:
            continue
        offsets = np.frombuffer(columns.raw(batch.column("offset")), np.int64)
        if not np.array_equal(offsets, np.arange(at, at + batch.num_rows)):
            raise CorruptObjectError(f"{key} does not hold the records {f.base_offset} to {f.last_offset}")
        yield at, batch
        at += batch.num_rows
    if at != chunk.groups[-1].end:
        raise CorruptObjectError(f"{key} ends at record {at - 1} of {chunk.groups[-1].end - 1}")


def _check_statistics(chunk: L1Chunk, table: pa.Table) -> None:
    """Raise `CorruptObjectError` if a row group's numbers differ from those in the sealed footer: its pages may belong to
    another object, with correct checksums.
    """
    at = 0
    for g in chunk.groups:
        rows = table.slice(at, g.records)
        at += g.records
        for c in _columns(chunk.opened.metadata, g.number):
            statistics = c.statistics
            if c.path_in_schema not in _CHECKED or c.path_in_schema not in table.column_names or statistics is None:
                continue
            offset_chunks = [
                np.frombuffer(columns.raw(part), np.int64) for part in rows[c.path_in_schema].chunks if len(part)
            ]
            ends = (
                (min(int(f.min()) for f in offset_chunks), max(int(f.max()) for f in offset_chunks))
                if offset_chunks
                else (0, 0)
            )
            if statistics.has_min_max and offset_chunks and ends != (statistics.min_raw, statistics.max_raw):
                key = chunk.opened.wanted.key
                raise CorruptObjectError(
                    f"{key} does not hold the {c.path_in_schema}s that its footer has; restore it from a version"
                )
