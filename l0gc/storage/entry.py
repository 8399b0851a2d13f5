"""What an object of the shared log holds: an entry or a checkpoint, packed, with a checksum after it; and each as read.

One changed bit could make another valid entry: an epoch that was never reached, a bound that lets live objects go. So each
object ends with a CRC-32 over its key and its content, which finds a changed object and one that lies at another's place.
Nothing is unpacked before that holds, and nothing is unpacked to more than a limit. What fails stops its log.

An object is: one byte that says how the content is packed, the content (a msgpack array), four bytes of checksum.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

import msgspec
import zstandard

from l0gc.decoding import msgpack_decoder
from l0gc.errors import CorruptObjectError, ProtocolError
from l0gc.storage.checksum import mismatch

T = TypeVar("T")

ENTRY_LIMIT: Final = 64 << 20
"""The most bytes that an entry unpacks to; a group commit makes entries of about 1 MiB."""
CHECKPOINT_LIMIT: Final = 1 << 30
"""The most bytes that a checkpoint unpacks to: some ten million unreconciled extents."""

_PLAIN: Final = 1
_ZSTD: Final = 2
_SEAL_BYTES: Final = 4
_WORTH_PACKING: Final = 128
"""Below this a zstd frame saves nothing that counts."""

Millis = Annotated[int, msgspec.Meta(ge=0)]


class Entry(msgspec.Struct, array_like=True, frozen=True):
    """What an offset of the log holds.

    `id` shows whose entry it is, which settles an append whose reply was lost; `time_ms` is the store's clock, and never
    goes back from one entry to the next.
    """

    id: str
    time_ms: Millis
    payload: bytes


class Checkpoint(msgspec.Struct, array_like=True, frozen=True):
    """The state after an offset, and the log's time there."""

    time_ms: Millis
    state: bytes


@dataclass(frozen=True, slots=True)
class Landed:
    """An entry at its offset.

    `date_ms` is the store's clock when it was read or written; the offset after an entry that was written was free then.
    `weight` is what its object weighs in bytes.
    """

    offset: int
    time_ms: int
    payload: bytes
    date_ms: int
    weight: int = 0
    writer: str = ""


@dataclass(frozen=True, slots=True)
class KeptState:
    """A checkpoint as read: the state after `offset`, the log's time there, the object's weight, and the store's clock."""

    offset: int
    time_ms: int
    state: bytes
    weight: int
    date_ms: int = 0


_ENCODER: Final = msgspec.msgpack.Encoder()
_ENTRY: Final = msgpack_decoder(Entry)
_CHECKPOINT: Final = msgpack_decoder(Checkpoint)


def encode_entry(key: str, entry: Entry) -> bytes:
    """An entry as `key` holds it. Raises `ProtocolError`: it is larger than anybody would read."""
    return pack(key, _ENCODER.encode(entry), ENTRY_LIMIT)


def decode_entry(key: str, body: bytes) -> Entry:
    """The entry that `key` holds. Raises `CorruptObjectError`: it is not an entry, or was not written there."""
    return unpack(key, body, _ENTRY, ENTRY_LIMIT)


def encode_checkpoint(key: str, checkpoint: Checkpoint) -> bytes:
    """A checkpoint as `key` holds it. Raises `ProtocolError`: it is larger than anybody would read."""
    return pack(key, _ENCODER.encode(checkpoint), CHECKPOINT_LIMIT)


def decode_checkpoint(key: str, body: bytes) -> Checkpoint:
    """The checkpoint that `key` holds. Raises `CorruptObjectError`, as for an entry."""
    return unpack(key, body, _CHECKPOINT, CHECKPOINT_LIMIT)


def pack(key: str, content: bytes, limit: int) -> bytes:
    """`content`, packed and sealed for `key`. Raises `ProtocolError`: it is larger than `limit`, so nobody would read it."""
    if len(content) > limit:
        raise ProtocolError(f"{key} would hold {len(content):,} bytes, and {limit:,} are the most")
    packed = bytes([_PLAIN]) + content
    if len(content) >= _WORTH_PACKING:
        small = zstandard.ZstdCompressor(write_content_size=True).compress(content)
        if len(small) < len(content):
            packed = bytes([_ZSTD]) + small
    return packed + _seal(key, packed)


def unpack(key: str, body: bytes, decoder: msgspec.msgpack.Decoder[T], limit: int) -> T:
    """What `pack` made, decoded. Raises `CorruptObjectError`: it has changed, is of another key, or is too large."""
    packed = memoryview(body)[:-_SEAL_BYTES]
    if len(body) <= _SEAL_BYTES or _seal(key, packed) != body[-_SEAL_BYTES:]:
        raise mismatch(key)
    try:
        return decoder.decode(_content(key, packed, limit))
    except (msgspec.MsgspecError, zstandard.ZstdError, UnicodeDecodeError, RecursionError, MemoryError) as e:
        raise CorruptObjectError(f"{key} does not hold what a log holds: {e}") from e


def _content(key: str, packed: memoryview, limit: int) -> Any:
    kind, content = packed[0], packed[1:]
    if kind == _PLAIN and len(content) <= limit:
        return content
    if kind != _ZSTD:
        raise CorruptObjectError(f"{key} is packed in a way that this l0gc does not know")
    # A frame states its size, and that much memory is taken: so the size is checked first.
    size = zstandard.get_frame_parameters(content).content_size
    if size > limit:
        raise CorruptObjectError(f"{key} would unpack to more than {limit:,} bytes")
    return zstandard.ZstdDecompressor().decompress(content, max_output_size=limit, allow_extra_data=False)


def _seal(key: str, packed: bytes | memoryview) -> bytes:
    return zlib.crc32(packed, zlib.crc32(key.encode())).to_bytes(_SEAL_BYTES, "little")
