"""Extents: the records of one partition inside an L0 object, as an Arrow IPC stream with zstd.

The placeholder in the log holds the extent's CRC32C, and every read checks it and the number of records before a record
is believed; what does not match stops the reader with the object's name. Offsets are not stored: they follow from the
placeholder's base offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from crc32c import crc32c

from l0gc import columns
from l0gc.errors import CorruptObjectError
from l0gc.streamlog.journal.entries import InputSpan, Placeholder

SCHEMA = pa.schema(
    [
        pa.field("timestamp", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary(), nullable=False),
    ]
)
_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")


@dataclass(slots=True)
class Chunk:
    """Records of one partition on their way into an L0 object; `spans` says which input they came from, in order."""

    partition: int
    timestamp_ms: int = 0
    values: list[bytes] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    spans: list[InputSpan] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.values)

    def without_landed(self, landed: Sequence[int]) -> Chunk:
        """The chunk without the records that have landed, given how many of each span's input have."""
        rest = Chunk(self.partition, self.timestamp_ms)
        at = 0
        for span, done in zip(self.spans, landed, strict=True):
            size = span.end - span.start
            skip = min(max(done - span.start, 0), size)
            rest.values += self.values[at + skip : at + size]
            rest.keys += self.keys[at + skip : at + size]
            if skip < size:
                rest.spans.append(InputSpan(span.input_id, span.start + skip, span.end))
            at += size
        return rest


def encode(chunk: Chunk) -> bytes:
    """The chunk as an extent."""
    timestamps = columns.repeated(chunk.timestamp_ms, len(chunk), SCHEMA.field("timestamp").type)
    arrays = [timestamps, columns.binary(chunk.keys), columns.binary(chunk.values)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=_OPTIONS) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def pack(chunks: Sequence[Chunk], key: str) -> tuple[bytes, list[Placeholder]]:
    """The L0 object `key` with an extent for each chunk, and where each one lies; base offsets are not known yet."""
    parts: list[bytes] = []
    extents: list[Placeholder] = []
    at = 0
    for chunk in chunks:
        body = encode(chunk)
        extents.append(Placeholder(key, at, len(body), len(chunk), crc32c(body), -1))
        parts.append(body)
        at += len(body)
    return b"".join(parts), extents


def unpack(body: bytes, extent: Placeholder, partition: int, spans: Sequence[InputSpan]) -> Chunk:
    """The chunk that `pack` has put into the L0 object `body` as `extent`."""
    batch = decode(body[extent.start : extent.start + extent.length], extent)
    timestamp_ms = batch.column("timestamp").cast(pa.int64())[0].as_py()
    return Chunk(
        partition, timestamp_ms, batch.column("value").to_pylist(), batch.column("key").to_pylist(), list(spans)
    )


def decode(body: bytes, extent: Placeholder) -> pa.RecordBatch:
    """The records of an extent, in order.

    Raises:
        CorruptObjectError: the bytes are not what the placeholder says.
    """
    where = f"{extent.key} at bytes {extent.start} to {extent.start + extent.length}"
    if len(body) != extent.length or crc32c(body) != extent.crc32c:
        raise CorruptObjectError(f"{where} does not match the checksum in the log; restore that object from a version")
    try:
        table = pa.ipc.open_stream(body).read_all()
        table.validate(full=True)  # pyarrow trusts what a stream says of its buffers, and would read beyond them
        table = table.combine_chunks()
    except (pa.ArrowException, OSError, ValueError, MemoryError) as e:
        raise CorruptObjectError(f"{where} is not an extent: {e}") from e
    whole = not any(column.null_count for f, column in zip(SCHEMA, table.columns, strict=False) if not f.nullable)
    if table.schema != SCHEMA or table.num_rows != extent.records or not table.num_rows or not whole:
        raise CorruptObjectError(f"{where} holds {table.num_rows} records of another kind than the log says")
    batch: pa.RecordBatch = table.to_batches()[0]
    return batch
