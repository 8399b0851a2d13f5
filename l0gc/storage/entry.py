"""Encode and decode the objects of the shared log: an entry or a checkpoint, packed, with a checksum at its end.

One changed bit could make a different valid entry: an epoch that was never reached, or a bound that releases live
objects. So each object ends with a CRC-32 over its key and its content, which detects both a changed object and a
misplaced one. An object is unpacked only if its checksum matches, and only up to a size limit. An object that fails
these checks stops its log.

An object consists of one byte for the compression, the content (a msgpack array), and four bytes of checksum. A
checkpoint consists of two such parts, preceded by their lengths and a checksum of the lengths, so that a reader that
needs only the first part can skip the second, which may be large. Stored JSON, such as a boundary, has its checksum in
its last line (`seal`).
"""

from __future__ import annotations

import math
import re
import struct
import zlib
from typing import Annotated, Final, NamedTuple, TypeVar

import msgspec
import zstandard

from l0gc.errors import CorruptObjectError, ProtocolError, UsageError
from l0gc.limits import CHECKPOINT_LIMIT, ENTRY_LIMIT, SMALL_LIMIT

T = TypeVar("T")

_AROUND: Final = 1024
"""The largest overhead of an object around its content."""

WRITER: Final = 8
"""The length of an entry id's prefix, which all entries of its writer share; the rest is random."""
_PLAIN: Final = 1
_ZSTD: Final = 2
_SEAL_BYTES: Final = 4
_REST: Final = "#2"
"""The suffix of the key in the checksum of a checkpoint's second part, which keeps the two parts from being confused.
"""
_LENGTHS: Final = struct.Struct("<QQ")
_SEAL: Final = re.compile(rb'\n\{"crc32":([0-9]{1,10})\}\n\Z')
_WORTH_PACKING: Final = 128
"""The size below which a zstd frame saves too little to matter."""

Millis = Annotated[int, msgspec.Meta(ge=0)]


def read_limit(key: str) -> float:
    """Return the most bytes that are read of a whole object.

    A longer object was not written by l0gc. It is read up to this limit, so that decoding it fails.
    """
    if not key.startswith("l0gc/"):
        return math.inf
    if "/checkpoint/" in key:
        return CHECKPOINT_LIMIT + _AROUND
    large = any(part in key for part in ("/log/", "/runs/", "/scans/")) and not key.endswith(".json")
    return ENTRY_LIMIT + _AROUND if large else SMALL_LIMIT


class Entry(msgspec.Struct, array_like=True, frozen=True):
    """The content of one offset of the log. The first part of a checkpoint has the same form, with the state after its
    offset as payload.

    `id` identifies the writer's entry, which settles an append whose reply was lost; a checkpoint has the id of the
    entry at its offset. `time_ms` is the store's time, and never decreases from one entry to the next.
    """

    id: str
    time_ms: Millis
    payload: bytes


class Place(NamedTuple):
    """A place in a log: an offset and the id of the entry there.

    A place records how far a log was read. If the log is set back to an older copy, a different entry gets the same
    offset, but never the same id (`Replica.holds`). An empty id is not compared.
    """

    offset: int = -1
    id: str = ""


class StoredEntry(msgspec.Struct, frozen=True):
    """An entry at its offset, or a checkpoint, whose payload is the state after it.

    `date_ms` is the store's time when it was read or written; at that time, the offset after a written entry was free.
    `weight` is the size of its object in bytes, and `created_ms` the time at which it was written, if it was read.
    """

    offset: int
    time_ms: int
    payload: bytes
    date_ms: int
    weight: int = 0
    id: str = ""
    created_ms: int = 0

    @property
    def place(self) -> Place:
        return Place(self.offset, self.id)

    @property
    def writer(self) -> str:
        """Return the prefix that the ids of all entries of the same writer share."""
        return self.id[:WRITER]


_ENCODER: Final = msgspec.msgpack.Encoder()
_ENTRY: Final = msgspec.msgpack.Decoder(Entry)
_BYTES: Final = msgspec.msgpack.Decoder(bytes)


def encode_entry(key: str, entry: Entry, limit: int = ENTRY_LIMIT) -> bytes:
    """Return an entry in its stored form under `key`. Raises `ProtocolError` if it is larger than readers accept."""
    return pack_sealed(key, _ENCODER.encode(entry), limit)


def decode_entry(key: str, body: bytes, limit: int = ENTRY_LIMIT) -> Entry:
    """Return the entry stored under `key`. Raises `CorruptObjectError` if it is not an entry, or belongs to another key."""
    return unpack_sealed(key, body, _ENTRY, limit)


def join_state(head: bytes, rest: bytes = b"") -> bytes:
    """Join the two parts of an encoded state. The `rest` is empty if it was not read or does not exist."""
    return len(head).to_bytes(8, "little") + head + rest


def split_state(state: bytes) -> tuple[bytes, bytes]:
    """Return the parts that `join_state` joined. Raises `UsageError` if they cannot be separated."""
    length = int.from_bytes(state[:8], "little")
    if len(state) < 8 + length:
        raise UsageError(f"{len(state)} bytes do not hold {length} of a state")
    return state[8 : 8 + length], state[8 + length :]


def encode_checkpoint(key: str, entry_id: str, time_ms: int, state: bytes) -> bytes:
    """Return a checkpoint in its stored form under `key`: the state after the entry `entry_id`, at the log's time
    `time_ms`.

    Raises `ProtocolError` if a part is too large.
    """
    head, rest = split_state(state)
    parts = (
        encode_entry(key, Entry(entry_id, time_ms, head), CHECKPOINT_LIMIT),
        pack_sealed(key, _ENCODER.encode(rest), CHECKPOINT_LIMIT, _REST) if rest else b"",
    )
    lengths = _LENGTHS.pack(*map(len, parts))
    return lengths + checksum(key, lengths).to_bytes(_SEAL_BYTES, "little") + b"".join(parts)


class Checkpoint(NamedTuple):
    """The decoded start of a checkpoint, or all of it. `size` is the size of its object; the state has its second part
    if that was read.
    """

    id: str
    time_ms: int
    state: bytes
    size: int


def head_length(body: bytes) -> int:
    """Return the offset at which a checkpoint's first part ends, given the start of the checkpoint."""
    return _LENGTHS.size + _SEAL_BYTES + int.from_bytes(body[:8], "little")


def decode_checkpoint(key: str, body: bytes) -> Checkpoint:
    """Return the checkpoint stored under `key`. The `body` is all of it, or its start including the first part.

    Raises `CorruptObjectError` if it was changed, belongs to another key, or was cut within a part.
    """
    lengths, begin, end = body[: _LENGTHS.size], _LENGTHS.size + _SEAL_BYTES, head_length(body)
    if len(body) < begin or checksum(key, lengths) != int.from_bytes(body[_LENGTHS.size : begin], "little"):
        raise _mismatch(key)
    e, left, rest = decode_entry(key, body[begin:end], CHECKPOINT_LIMIT), body[end:], _LENGTHS.unpack(lengths)[1]
    state_rest = b""
    if rest and len(left) == rest:
        state_rest = unpack_sealed(key, left, _BYTES, CHECKPOINT_LIMIT, _REST)
    elif len(left) > rest:
        raise _mismatch(key)
    return Checkpoint(e.id, e.time_ms, join_state(e.payload, state_rest), end + rest)


def pack_sealed(key: str, content: bytes, limit: int, part: str = "") -> bytes:
    """Return `content` packed and sealed for `key` and its `part`. Raises `ProtocolError` if it is larger than `limit`."""
    if len(content) > limit:
        raise ProtocolError(f"{key} would hold {len(content):,} bytes, more than the {limit:,} that it may have")
    packed = compressed(content)
    return packed + checksum(key + part, packed).to_bytes(_SEAL_BYTES, "little")


def unpack_sealed(key: str, body: bytes, decoder: msgspec.msgpack.Decoder[T], limit: int, part: str = "") -> T:
    """Return the decoded content that `pack_sealed` packed. Raises `CorruptObjectError` if it was changed, belongs to
    another key, or is too large.
    """
    packed = memoryview(body)[:-_SEAL_BYTES]
    if len(body) <= _SEAL_BYTES or checksum(key + part, packed) != int.from_bytes(body[-_SEAL_BYTES:], "little"):
        raise _mismatch(key)
    try:
        return decoder.decode(decompressed(key, packed, limit))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, MemoryError) as e:
        raise CorruptObjectError(f"{key} does not hold what a log holds: {e}") from e


def compressed(content: bytes, level: int = 3) -> bytes:
    """Return `content`, compressed if that is smaller, after a byte that names the compression."""
    if len(content) >= _WORTH_PACKING:
        small = zstandard.ZstdCompressor(level, write_content_size=True).compress(content)
        if len(small) < len(content):
            return bytes([_ZSTD]) + small
    return bytes([_PLAIN]) + content


def decompressed(where: str, packed: memoryview, limit: int, most: str = "") -> bytes:
    """Return the content that `compressed` packed.

    Raises `CorruptObjectError`, which names `where`, if it is malformed or larger than `limit`; `most` is the limit in
    words.
    """
    kind, content = packed[0], packed[1:]
    try:
        # A frame states its size, and that much memory is allocated, so the size is checked first.
        size = zstandard.get_frame_parameters(content).content_size if kind == _ZSTD else len(content)
        if size > limit:
            raise CorruptObjectError(f"{where} would unpack to more than {most or f'{limit:,} bytes'}")
        if kind == _ZSTD:
            return zstandard.ZstdDecompressor().decompress(content, max_output_size=limit, allow_extra_data=False)
    except (zstandard.ZstdError, MemoryError) as e:
        raise CorruptObjectError(f"{where} cannot be unpacked: {e}") from e
    if kind != _PLAIN:
        raise CorruptObjectError(f"{where} is packed in a way that this l0gc does not support")
    return bytes(content)


def checksum(key: str, content: bytes | memoryview) -> int:
    """Return the CRC-32 of `content` stored under `key`."""
    return zlib.crc32(content, zlib.crc32(key.encode()))


def seal(key: str, content: bytes) -> bytes:
    """Return `content` with its checksum as the last line."""
    return b'%b\n{"crc32":%d}\n' % (content, checksum(key, content))


def unseal(key: str, body: bytes) -> bytes:
    """Return the sealed content. Raises `CorruptObjectError` if it was changed, or sealed for another key."""
    m = _SEAL.search(body, max(0, len(body) - 32))
    if m is None or int(m[1]) != checksum(key, content := body[: m.start()]):
        raise _mismatch(key)
    return content


def _mismatch(key: str) -> CorruptObjectError:
    return CorruptObjectError(f"{key} does not match its checksum; restore it from a backup or a version")
