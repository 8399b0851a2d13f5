"""Extents: the records of one partition inside an L0 object, many of them in one compressed block.

A block is an Arrow IPC stream with zstd. It holds the records of one or more partitions, in order of partition, so that
thousands of tiny extents cost no more than the records in them: neither to encode, nor to name, nor to fetch. The log holds
each block's CRC32C, how many bytes it unpacks to, and which rows of it are whose. Every read checks these before a record is
believed, and before memory is taken for it; what does not match stops the reader with the object's name. Offsets and
timestamps are not stored: they follow from the log, so no uploader's clock says how old a record is.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from l0gc import columns
from l0gc.errors import CorruptObjectError, StoreError
from l0gc.storage.objectstore import ObjectStore
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.journal import rows
from l0gc.streamlog.journal.entries import ObjectExtents
from l0gc.streamlog.journal.rows import BLOCK, NUMBER, Rows
from l0gc.streamlog.journal.topic import Block

STORED: Final = pa.schema([pa.field("key", pa.binary()), pa.field("value", pa.binary(), nullable=False)])
"""What a block holds."""
SCHEMA: Final = pa.schema([pa.field("timestamp", pa.timestamp("ms", tz="UTC"), nullable=False), *STORED])
"""Records as they are read; the timestamp is the log's time at which they landed."""
BLOCK_BYTES: Final = 256 << 10
"""About so many bytes of records share a block. Who reads one partition reads no more than that of its neighbours; smaller
blocks compress worse, and are more to ask for."""
RECORD_OVERHEAD: Final = 16
"""What a record counts in addition to the bytes of its value, so that tiny records are bounded, too."""
_HEADER: Final = 2
_BUFFERS: Final = 2
_COMPRESSION: Final = 3
"""The numbers of fields in Arrow's tables `Message` and `RecordBatch`."""
_WRITE_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
_READ_OPTIONS: Final = pa.ipc.IpcReadOptions(use_threads=False)


@dataclass(frozen=True, slots=True)
class Records:
    """Records as columns, in order of partition; `sizes` has the bytes of each value."""

    partitions: Rows
    sizes: Rows
    values: Sequence[bytes]
    keys: Sequence[bytes | None]


@dataclass(frozen=True, slots=True)
class PackedPart:
    """What a journal gets of an L0 object, as in `ObjectExtents`; and how much that is, in values' bytes."""

    start: int
    blocks: bytes
    partitions: bytes
    records: bytes
    total_records: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Packed:
    """An L0 object's content, and a part for each journal that it has records of."""

    body: bytes
    parts: list[PackedPart]


def pack_records(records: Records, ends: Sequence[int]) -> Packed:
    """An L0 object of these records.

    Args:
        ends: for each journal, the number of records up to and including its last one. Each journal has some.
    """
    begins = np.zeros(len(records.sizes) + 1, np.int64)  # at which byte each value does
    np.cumsum(records.sizes, out=begins[1:])
    layouts = [_layout(records.partitions, begins, first, end) for first, end in pairwise([0, *ends])]
    sink = pa.BufferOutputStream()
    written = [_write(sink, records, begins, layout) for layout in layouts]
    body = sink.getvalue().to_pybytes()
    parts = [_part(layout, *blocks, body) for layout, blocks in zip(layouts, written, strict=True)]
    return Packed(body, parts)


def pack_for(topic: Topic, records: Records) -> tuple[list[int], Packed]:
    """An L0 object of records of a topic, and which of the topic's runs of journals have a part of it, in their order."""
    ends: list[int] = records.partitions.searchsorted([r.first + r.count for r in topic.runs()]).tolist()
    used = [run for run, (first, end) in enumerate(pairwise([0, *ends])) if end > first]
    return used, pack_records(records, [ends[run] for run in used])


def placeholder(topic: Topic, key: str, epoch: int, part: PackedPart) -> ObjectExtents:
    """What a journal gets of an object that was written at this key and epoch."""
    return ObjectExtents(
        key, epoch, topic.revision, topic.topic_id, part.start, part.blocks, part.partitions, part.records
    )


@dataclass(frozen=True, slots=True)
class _Layout:
    """How the records of one journal lie in the object: the row at which each extent begins, and the extent with which
    each block does; one more of both, for the end."""

    partitions: Rows
    extents: Rows
    blocks: list[int]
    total_bytes: int


def _layout(partitions: Rows, begins: Rows, first: int, end: int) -> _Layout:
    mine = partitions[first:end]
    changes = np.flatnonzero(mine[1:] != mine[:-1]) + 1
    extents = np.concatenate(([0], changes, [end - first])) + first
    before = begins[extents] + RECORD_OVERHEAD * extents  # bytes in front of each
    blocks = [0]
    while blocks[-1] < len(changes) + 1:
        full = int(np.searchsorted(before, before[blocks[-1]] + BLOCK_BYTES, "right")) - 1
        blocks.append(max(full, blocks[-1] + 1))
    return _Layout(partitions[extents[:-1]], extents, blocks, int(begins[end] - begins[first]))


def _write(sink: pa.BufferOutputStream, records: Records, begins: Rows, layout: _Layout) -> tuple[list[int], list[int]]:
    """Append the blocks; at which byte each of them begins, and the last one ends; and how many bytes each unpacks to."""
    at, sizes = [sink.tell()], list[int]()
    for first, end in pairwise(layout.extents[layout.blocks].tolist()):
        offsets = (begins[first : end + 1] - begins[first]).astype(np.int32)
        values = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(records.values[first:end]))]
        arrays = [
            columns.binary(records.keys[first:end]),
            pa.Array.from_buffers(pa.binary(), end - first, values),
        ]
        with pa.ipc.new_stream(sink, STORED, options=_WRITE_OPTIONS) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=STORED))
        at.append(sink.tell())
        sizes.append(sum(b.size for a in arrays for b in a.buffers() if b is not None))
    return at, sizes


def _part(layout: _Layout, at: Sequence[int], sizes: Sequence[int], body: bytes) -> PackedPart:
    view = memoryview(body)
    blocks = np.empty(len(at) - 1, BLOCK)
    blocks["length"] = np.diff(at)
    blocks["crc32c"] = [crc32c(view[first:end]) for first, end in pairwise(at)]
    blocks["extents"] = np.diff(layout.blocks)
    blocks["bytes"] = sizes
    return PackedPart(
        at[0],
        rows.pack(blocks),
        rows.pack(layout.partitions.astype(NUMBER)),
        rows.pack(np.diff(layout.extents).astype(NUMBER)),
        int(layout.extents[-1] - layout.extents[0]),
        layout.total_bytes,
    )


def fetch(store: ObjectStore, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """The bytes of each (start, length) of an object.

    Raises:
        ObjectNotFoundError: it is gone.
        CorruptObjectError: it is shorter than that.
    """
    try:
        return store.get_ranges(key, ranges)
    except StoreError:
        end = max(start + length for start, length in ranges)
        size = store.head(key).size
        if size >= end:
            raise
        raise CorruptObjectError(
            f"{key} has {size} bytes where the log says {end} or more; restore that object from a version"
        ) from None


def decode_block(body: bytes, key: str, block: Block, at_least: int = 1) -> pa.RecordBatch:
    """The records of a block, of all partitions in it.

    Args:
        key: that of its object.
        at_least: how many records the log says that there are, or more.

    Raises:
        CorruptObjectError: the bytes are not what the log says.
    """
    where = f"{key} at bytes {block.start} to {block.start + block.length}"
    if len(body) != block.length or crc32c(body) != block.crc32c:
        raise CorruptObjectError(f"{where} does not match the checksum in the log; restore that object from a version")
    try:
        # Memory is taken by what a stream says that it unpacks to: so that is looked at first.
        size = sum(map(unpacked_bytes, pa.ipc.MessageReader.open_stream(body)))
        if size > block.bytes:
            raise CorruptObjectError(f"{where} would unpack to {size:,} bytes where the log says {block.bytes:,}")
        table = pa.ipc.open_stream(body, options=_READ_OPTIONS).read_all()
        table.validate(full=True)  # pyarrow trusts a stream's lengths of its buffers, and would read beyond them
        table = table.combine_chunks()
    except (pa.ArrowException, OSError, ValueError, MemoryError, struct.error) as e:
        raise CorruptObjectError(f"{where} is not a block of records: {e}") from e
    whole = not any(column.null_count for f, column in zip(STORED, table.columns, strict=False) if not f.nullable)
    if table.schema != STORED or not table.num_rows or not whole:
        raise CorruptObjectError(f"{where} holds records of another kind")
    if table.num_rows < at_least:
        raise CorruptObjectError(f"{where} holds {table.num_rows} records where the log says {at_least} or more")
    times = columns.repeated(block.time_ms, table.num_rows, SCHEMA.field("timestamp").type)
    return pa.RecordBatch.from_arrays([times, *table.to_batches()[0].columns], schema=SCHEMA)


def unpacked_bytes(message: pa.Message) -> int:
    """How much memory a record batch of an Arrow stream takes, as its buffers say; 0 for a message of another kind.

    pyarrow has checked the message's metadata, a table of Arrow's `Message.fbs`, and not yet the buffers: a compressed one
    begins with the number of bytes that it unpacks to, -1 if it is not packed.

    Raises:
        struct.error: a buffer lies outside of the message, or has a size that cannot be.
    """
    if message.type != "record batch":
        return 0
    metadata, body = memoryview(message.metadata), memoryview(message.body or b"")

    def field(table: int, number: int) -> int:
        """Where a table's field lies; 0 where it has none."""
        known = table - _number("<i", metadata, table)
        at = 4 + 2 * number
        offset = _number("<H", metadata, known + at) if at < _number("<H", metadata, known) else 0
        return table + offset if offset else 0

    def target(at: int) -> int:
        return at + _number("<I", metadata, at)

    batch = target(field(target(0), _HEADER))
    buffers, is_packed = target(field(batch, _BUFFERS)), bool(field(batch, _COMPRESSION))
    total = 0
    for at in range(buffers + 4, buffers + 4 + 16 * _number("<I", metadata, buffers), 16):
        begin, length = _number("<q", metadata, at), _number("<q", metadata, at + 8)
        unpacked = _number("<q", body, begin) if is_packed and length else -1
        if min(length, unpacked + 1) < 0:
            raise struct.error(f"a buffer of {min(length, unpacked)} bytes")
        total += length if unpacked == -1 else unpacked
    return total


def _number(kind: str, body: memoryview, at: int) -> int:
    if at < 0:
        raise struct.error(f"a number at {at}")
    value: int = struct.unpack_from(kind, body, at)[0]
    return value


def select(batch: pa.RecordBatch, extents: Rows) -> pa.RecordBatch:
    """The records of several extents of a block, one extent after another; these are rows of `EXTENT`."""
    counts = extents["records"].astype(np.int64)
    at = np.cumsum(counts) - counts
    first = int(extents["row"][0])
    if (extents["row"] == at + first).all():
        return batch.slice(first, int(counts.sum()))
    return batch.take(columns.numbers(np.repeat(extents["row"] - at, counts) + np.arange(counts.sum())))
