"""Extents: the records of one partition inside an L0 object, many of them in one compressed block.

A compressed block holds the records of one or more partitions, so that thousands of tiny extents cost no more than their
records. It consists of the number of records, the sizes of their keys (-1 for a missing key) and the sizes of their
values, all as `NUMBER`, then the keys and the values. If any record has a create time or headers, the number is negated,
and these follow (`headers_and_times.py`). The log holds each block's CRC32C, its unpacked size, and the rows of each
partition; a reader checks these first. Offsets and timestamps follow from the log, so no uploader's clock determines a
record's age.

A shared L1 object consists of the same blocks. Its records come from several L0 objects, so each of its blocks ends with
the timestamp and the epoch of each record, as 64-bit numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from l0gc import columns
from l0gc.errors import CorruptObjectError, RefusedObjectError, StoreError, UnansweredObjectError, UsageError
from l0gc.limits import MAX_OBJECT_BYTES, MAX_RECORD_BYTES
from l0gc.storage.entry import compressed, decompressed
from l0gc.storage.objectstore import ObjectStore, ask_of_one, read_again
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.ingest import headers_and_times
from l0gc.streamlog.journal import rows
from l0gc.streamlog.journal.entries import ObjectExtents
from l0gc.streamlog.journal.rows import BLOCK, NUMBER, Rows
from l0gc.streamlog.journal.topic import STAMPED, Block

SCHEMA: Final = pa.schema(
    [
        pa.field("timestamp", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary(), nullable=False),
    ]
)
"""The columns of records that are read; the timestamp is the log's time at which a record landed. Those of `OPTIONAL` may
follow.
"""
BLOCK_BYTES: Final = 256 << 10
"""About how many bytes of records share a block. A reader of one partition reads at most this much of its neighbours;
smaller blocks compress worse and take more requests.
"""
RECORD_OVERHEAD: Final = 16
"""The weight of a record in addition to the bytes of its value, so that the number of tiny records is bounded, too."""
_LEVEL: Final = 1
"""zstd's fastest level: an object only lives until it is reconciled."""
_STAMP_BYTES: Final = 16
"""The timestamp and the epoch of a record in a block of a shared L1 object."""
_EPOCH: Final = pa.field("epoch", pa.int64(), nullable=False)


@dataclass(frozen=True, slots=True)
class Records:
    """Records as columns, in order of partition; `sizes` has the bytes of each value, and `values` holds them
    consecutively.

    The last two columns are None if no record has any.
    """

    partitions: Rows
    sizes: Rows
    values: bytes | memoryview
    keys: Sequence[bytes | None]
    create_times: Rows | None = None
    headers: pa.Array | None = None


@dataclass(frozen=True, slots=True)
class PackedPart:
    """One journal's part of an L0 object, without a key and an epoch, and the bytes of its values."""

    extents: ObjectExtents
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class PackedObject:
    """An L0 object's content, and the part of each journal for which it has records."""

    body: bytes
    parts: dict[int, PackedPart]


def check_records(sizes: Rows) -> None:
    """Raise `UsageError` if one of the records is too long; `sizes` include their keys and headers."""
    if len(sizes) and int(sizes.max()) > MAX_RECORD_BYTES:
        raise UsageError(
            f"a record of {int(sizes.max())} bytes with its key and headers is longer than the {MAX_RECORD_BYTES} that a "
            "record may have"
        )


def check_object_bytes(size: int) -> None:
    """Raise `UsageError` if an L0 object's blocks of this size, unpacked, are more than readers accept (hazard 39)."""
    if size > MAX_OBJECT_BYTES:
        raise UsageError(
            f"{size:,} bytes of records are more than the {MAX_OBJECT_BYTES:,} that an L0 object may hold: write fewer at "
            "once"
        )


def pack_records(topic: Topic, records: Records) -> PackedObject:
    """Pack records, in order of partition, as an L0 object. Raises `UsageError` if there are too many for one."""
    begins = np.zeros(len(records.sizes) + 1, np.int64)  # the byte at which each value begins
    np.cumsum(records.sizes, out=begins[1:])
    check_object_bytes(int(begins[-1]))
    ranges = topic.partition_ranges()
    ends: list[int] = records.partitions.searchsorted([r.end for r in ranges]).tolist()
    sink = pa.BufferOutputStream()
    parts = {
        r.journal: _pack_part(sink, topic, records, begins, first, end)
        for r, (first, end) in zip(ranges, pairwise([0, *ends]), strict=True)
        if end > first
    }
    check_object_bytes(sum(max(b.bytes, b.length) for part in parts.values() for b in blocks_of(part.extents)))
    return PackedObject(sink.getvalue().to_pybytes(), parts)


def _pack_part(
    sink: pa.BufferOutputStream, topic: Topic, records: Records, begins: Rows, first: int, end: int
) -> PackedPart:
    """Append the blocks of one journal, whose records are `first` to `end`, end excluded."""
    partitions = records.partitions[first:end]
    changes = np.flatnonzero(partitions[1:] != partitions[:-1]) + 1
    extents = np.concatenate(([0], changes, [end - first])) + first  # the row at which each begins, and the end
    start = sink.tell()
    cuts = _block_cuts(begins, extents)
    blocks = np.empty(len(cuts) - 1, BLOCK)
    blocks["extents"] = np.diff(cuts)
    for n, (begin, after) in enumerate(pairwise(extents[cuts].tolist())):
        body, blocks["bytes"][n] = _block(records, begins, begin, after)
        blocks["length"][n] = sink.write(body)
        blocks["crc32c"][n] = crc32c(body)
    part = ObjectExtents(
        "",
        0,
        topic.revision,
        topic.topic_id,
        start,
        rows.pack(blocks),
        rows.pack(partitions[extents[:-1] - first].astype(NUMBER)),
        rows.pack(np.diff(extents).astype(NUMBER)),
    )
    return PackedPart(part, end - first, int(begins[end] - begins[first]))


def _block_cuts(begins: Rows, extents: Rows) -> list[int]:
    """Return the index of the extent with which each block begins, and the number of extents at the end."""
    before = begins[extents] + RECORD_OVERHEAD * extents  # the bytes before each extent
    cuts = [0]
    while cuts[-1] < len(extents) - 1:
        full = int(np.searchsorted(before, before[cuts[-1]] + BLOCK_BYTES, "right")) - 1
        cuts.append(max(full, cuts[-1] + 1))
    return cuts


def _block(records: Records, begins: Rows, first: int, end: int) -> tuple[bytes, int]:
    """Return a block of the records `first` to `end`, end excluded, and its unpacked size."""
    keys = records.keys[first:end]
    key_sizes = np.fromiter((-1 if key is None else len(key) for key in keys), NUMBER, end - first)
    times, headers = records.create_times, records.headers
    more = headers_and_times.pack_optional(
        None if times is None else times[first:end],
        None if headers is None else headers.slice(first, end - first),
        end - first,
    )
    values = memoryview(records.values)[int(begins[first]) : int(begins[end])]
    return _packed(key_sizes, filter(None, keys), np.diff(begins[first : end + 1]), values, more)


def _packed(
    key_sizes: Rows, keys: Iterable[bytes | memoryview], sizes: Rows, values: memoryview, more: Sequence[bytes | memoryview],
    stamps: Sequence[memoryview] = (),
) -> tuple[bytes, int]:  # fmt: skip
    """Return the compressed records of a block, and their uncompressed size."""
    count = (-len(sizes) if more else len(sizes)).to_bytes(NUMBER.itemsize, "little", signed=True)
    numbers = key_sizes.astype(NUMBER).tobytes(), sizes.astype(NUMBER).tobytes()
    pieces = [count, *numbers, *keys, values, *more, *stamps]
    check_object_bytes(sum(map(len, pieces)))  # before the copy takes as much memory again
    content = b"".join(pieces)
    return compressed(content, _LEVEL), len(content)


def pack_shared(records: pa.RecordBatch, firsts: Rows) -> tuple[Rows, bytes]:
    """Return the blocks of a shared L1 object, as rows of `BLOCK`, and its content.

    Args:
        records: the records in order of partition, with the columns of `SCHEMA`, the epoch of each record's L0 object, and
            the columns of `OPTIONAL` if any record has one.
        firsts: the row at which each partition begins.
    """
    sizes = np.maximum(columns.uncut(records.column("key"))[0], 0) + columns.uncut(records.column("value"))[0]
    extents = np.r_[firsts, records.num_rows]
    cuts = _block_cuts(np.r_[0, np.cumsum(sizes, dtype=np.int64)], extents)
    blocks, bodies = np.empty(len(cuts) - 1, BLOCK), []
    blocks["extents"] = np.diff(cuts)
    for n, (first, end) in enumerate(pairwise(extents[cuts].tolist())):
        body, blocks["bytes"][n] = _shared_block(records.slice(first, end - first))
        blocks["length"][n], blocks["crc32c"][n] = len(body), crc32c(body)
        bodies.append(body)
    return blocks, b"".join(bodies)


def _shared_block(records: pa.RecordBatch) -> tuple[bytes, int]:
    """Return a block of a shared L1 object, and its unpacked size."""
    names = records.schema.names
    key_sizes, keys = columns.uncut(records.column("key"))
    sizes, values = columns.uncut(records.column("value"))
    times = headers_and_times.times_of(records.column("create_time")) if "create_time" in names else None
    headers = records.column("headers") if "headers" in names else None
    more = headers_and_times.pack_optional(times, headers, records.num_rows)
    stamps = [columns.raw(records.column(name)) for name in ("timestamp", "epoch")]
    return _packed(key_sizes, [keys], sizes, values, more, stamps)


def fetch(store: ObjectStore, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """Return the bytes of each (start, length) of an object. Raises `CorruptObjectError` if the object is shorter,
    `ObjectNotFoundError` if it is missing, and the errors of `ask_of_one`.
    """

    def read(key: str) -> list[bytes]:
        try:
            return store.get_ranges(key, ranges)
        except StoreError:
            end = max(start + length for start, length in ranges)
            with suppress(StoreError):
                size = store.head(key).size
                if size < end:
                    raise CorruptObjectError(
                        f"{key} has {size} bytes, but the log records {end} or more; restore that object from a version"
                    ) from None
            raise

    return ask_of_one(store, read, key)


def fetch_blocks(store: ObjectStore, key: str, blocks: Sequence[Block]) -> list[bytes]:
    """Return the bytes of each block of an object, as the log records it. A block that differs is read again.

    Every reader of blocks uses it, and so does all code that copies a block's bytes. A block that differs at each reading
    is returned as it was read last; `check_block` and `decode_block` refuse it.

    Raises as `fetch`.
    """
    bodies, left = dict[int, bytes](), list(range(len(blocks)))

    def read() -> None:
        for n, body in zip(left, fetch(store, key, [(blocks[n].start, blocks[n].length) for n in left]), strict=True):
            bodies[n] = body
        left[:] = [n for n in left if not _matches(bodies[n], blocks[n])]
        for n in left:
            check_block(bodies[n], key, blocks[n])

    try:
        read_again(read)
    except (RefusedObjectError, UnansweredObjectError):
        raise
    except CorruptObjectError:
        if len(bodies) < len(blocks):  # it is shorter than the log records
            raise
    return [bodies[n] for n in range(len(blocks))]


def blocks_of(e: ObjectExtents) -> list[Block]:
    """Return the blocks of a journal's part of an object, which has not landed."""
    unpacked = rows.unpack(e.blocks, BLOCK)
    ends = e.start + np.cumsum(unpacked["length"], dtype=np.int64)
    return [
        Block(end - int(b["length"]), int(b["length"]), int(b["crc32c"]), int(b["bytes"]), 0)
        for b, end in zip(unpacked, ends.tolist(), strict=True)
    ]


def check_block(body: bytes, key: str, block: Block) -> None:
    """Raise `CorruptObjectError` if the bytes of a block are not those that the log records."""
    if not _matches(body, block):
        raise CorruptObjectError(
            f"{key} at bytes {block.start} to {block.start + block.length} does not match the checksum in the log; restore "
            "that object from a version"
        )


def _matches(body: bytes, block: Block) -> bool:
    return bool(body) and len(body) == block.length and crc32c(body) == block.crc32c


def decode_block(body: bytes, key: str, block: Block, at_least: int = 1) -> pa.RecordBatch:
    """Return a block's records of all partitions, with the optional columns if any record has one, and with the column
    `epoch` if the block belongs to a shared L1 object.

    Args:
        key: the key of its object.
        at_least: the fewest records that the block has according to the log.

    Raises:
        CorruptObjectError: the bytes do not match the log.
    """
    check_block(body, key, block)
    where = f"{key} at bytes {block.start} to {block.start + block.length}"
    most = f"it may, where the log has {block.bytes:,} bytes"
    if block.bytes > MAX_OBJECT_BYTES:
        raise CorruptObjectError(
            f"{where} has {block.bytes:,} bytes in the log, more than the {MAX_OBJECT_BYTES:,} of an object"
        )
    content = decompressed(where, memoryview(body), block.bytes, most)
    number = int.from_bytes(content[: NUMBER.itemsize], "little", signed=True)
    count, wrong = abs(number), CorruptObjectError(f"{where} does not hold valid records")
    after = NUMBER.itemsize * (1 + 2 * count)
    stamps_at = len(content) - (_STAMP_BYTES * count if block.time_ms == STAMPED else 0)
    if not count or after > stamps_at:
        raise wrong
    key_sizes, sizes = np.frombuffer(content, NUMBER, 2 * count, NUMBER.itemsize).reshape(2, count)
    values_at = after + int(key_sizes.sum(dtype=np.int64, where=key_sizes > 0))
    end = values_at + int(sizes.sum(dtype=np.int64))
    if key_sizes.min() < -1 or sizes.min() < 0 or end > stamps_at:
        raise wrong
    if number > 0 and end != stamps_at:
        raise wrong
    if count < at_least:
        raise CorruptObjectError(f"{where} holds {count} records, but the log records {at_least} or more")
    data = pa.py_buffer(content)
    try:
        more = headers_and_times.unpack_optional(data.slice(end, stamps_at - end), count) if number < 0 else []
    except (ValueError, pa.ArrowException):
        raise wrong from None
    kind = SCHEMA.field("timestamp").type
    if block.time_ms == STAMPED:
        stamps = data.slice(stamps_at), data.slice(stamps_at + 8 * count)
        times, epochs = (
            pa.Array.from_buffers(k, count, [None, b]) for k, b in zip((kind, _EPOCH.type), stamps, strict=True)
        )
        own = [epochs]
    else:
        times, own = columns.repeated(block.time_ms, count, kind), []
    keys = columns.cut(key_sizes, data.slice(after, values_at - after))
    values = columns.cut(sizes, data.slice(values_at, end - values_at))
    fields = [*SCHEMA, *([_EPOCH] if own else []), *(headers_and_times.OPTIONAL if more else [])]
    return pa.RecordBatch.from_arrays([times, keys, values, *own, *more], schema=pa.schema(fields))


def select(batch: pa.RecordBatch, extents: Rows) -> pa.RecordBatch:
    """Return the records of several extents of a block, given as rows of `EXTENT`, one extent after another."""
    counts = extents["records"].astype(np.int64)
    at = np.cumsum(counts) - counts
    first = int(extents["row"][0])
    if (extents["row"] == at + first).all():
        return batch.slice(first, int(counts.sum()))
    return batch.take(columns.numbers(np.repeat(extents["row"] - at, counts) + np.arange(counts.sum())))
