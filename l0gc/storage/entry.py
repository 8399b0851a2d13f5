"""What an object of the shared log holds: an entry or a checkpoint, packed, with a checksum after it; and each as read.

One changed bit could make another valid entry: an epoch that was never reached, a bound that lets live objects go. So each
object ends with a CRC-32 over its key and its content, which finds a changed object and one that lies at another's place.
Nothing is unpacked before that holds, and nothing is unpacked to more than a limit. What fails stops its log.

An object is: one byte that says how the content is packed, the content (a msgpack array), four bytes of checksum. JSON that
is stored, such as a boundary, has its checksum in a last line (`seal`).
"""

from __future__ import annotations

import math
import re
import zlib
from dataclasses import dataclass
from typing import Annotated, Final, TypeVar

import msgspec
import zstandard

from l0gc.errors import CorruptObjectError, ProtocolError
from l0gc.keys import L1_INDEX

T = TypeVar("T")

ENTRY_LIMIT: Final = 64 << 20
"""The most bytes that an entry unpacks to; a group commit makes entries of about 1 MiB."""
CHECKPOINT_LIMIT: Final = 1 << 30
"""The most bytes that a checkpoint unpacks to: some ten million unreconciled extents."""

SMALL_LIMIT: Final = 4 << 20
"""The most bytes of an index object, and of any other object of `l0gc/`. With 9,999 journals, M is published with 200 KB."""
_AROUND: Final = 1024
"""What an object has around its content, at most."""

WRITER: Final = 8
"""An entry's id begins with so many characters that all entries of its writer share; the rest is random."""
_PLAIN: Final = 1
_ZSTD: Final = 2
_SEAL_BYTES: Final = 4
_SEAL: Final = re.compile(rb'\n\{"crc32":([0-9]{1,10})\}\n\Z')
_WORTH_PACKING: Final = 128
"""Below this a zstd frame saves nothing that counts."""

Millis = Annotated[int, msgspec.Meta(ge=0)]


def read_limit(key: str) -> float:
    """Return how many bytes of an object are read at most where it is read whole.

    Of a longer one, which somebody else has put there, that many are read, so that it fails where it is decoded.
    """
    if not key.startswith(("l0gc/", L1_INDEX)):
        return math.inf
    if "/checkpoint/" in key:
        return CHECKPOINT_LIMIT + _AROUND
    large = any(part in key for part in ("/log/", "/runs/", "/scans/")) and not key.endswith(".json")
    return ENTRY_LIMIT + _AROUND if large else SMALL_LIMIT


class Entry(msgspec.Struct, array_like=True, frozen=True):
    """What an offset of the log holds. A checkpoint is one, too: of the log's time after its offset, and the state there.

    `id` shows whose entry it is, which settles an append whose reply was lost; `time_ms` is the store's clock, and never
    goes back from one entry to the next.
    """

    id: str
    time_ms: Millis
    payload: bytes


@dataclass(frozen=True, slots=True)
class Landed:
    """An entry at its offset; or a checkpoint, whose payload is the state after it.

    `date_ms` is the store's clock when it was read or written; the offset after an entry that was written was free then.
    `weight` is what its object weighs in bytes, `created_ms` when it was written if it was read.
    """

    offset: int
    time_ms: int
    payload: bytes
    date_ms: int
    weight: int = 0
    id: str = ""
    created_ms: int = 0

    @property
    def writer(self) -> str:
        """What the ids of all entries of its writer begin with."""
        return self.id[:WRITER]


_ENCODER: Final = msgspec.msgpack.Encoder()
_ENTRY: Final = msgspec.msgpack.Decoder(Entry)


def encode_entry(key: str, entry: Entry, limit: int = ENTRY_LIMIT) -> bytes:
    """Return an entry as `key` holds it. Raises `ProtocolError`: it is larger than anybody would read."""
    return pack_sealed(key, _ENCODER.encode(entry), limit)


def decode_entry(key: str, body: bytes, limit: int = ENTRY_LIMIT) -> Entry:
    """Return the entry that `key` holds. Raises `CorruptObjectError`: it is not an entry, or was not written there."""
    return unpack_sealed(key, body, _ENTRY, limit)


def pack_sealed(key: str, content: bytes, limit: int) -> bytes:
    """Return `content`, packed and sealed for `key`. Raises `ProtocolError`: it is larger than `limit`, so nobody would read
    it.
    """
    if len(content) > limit:
        raise ProtocolError(f"{key} would hold {len(content):,} bytes, and {limit:,} are the most")
    packed = compressed(content)
    return packed + checksum(key, packed).to_bytes(_SEAL_BYTES, "little")


def unpack_sealed(key: str, body: bytes, decoder: msgspec.msgpack.Decoder[T], limit: int) -> T:
    """What `pack_sealed` made, decoded. Raises `CorruptObjectError`: it has changed, is of another key, or is too large."""
    packed = memoryview(body)[:-_SEAL_BYTES]
    if len(body) <= _SEAL_BYTES or checksum(key, packed) != int.from_bytes(body[-_SEAL_BYTES:], "little"):
        raise _mismatch(key)
    try:
        return decoder.decode(decompressed(key, packed, limit))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, MemoryError) as e:
        raise CorruptObjectError(f"{key} does not hold what a log holds: {e}") from e


def compressed(content: bytes, level: int = 3) -> bytes:
    """`content` after the byte that says how it is packed; as it is where that is smaller."""
    if len(content) >= _WORTH_PACKING:
        small = zstandard.ZstdCompressor(level, write_content_size=True).compress(content)
        if len(small) < len(content):
            return bytes([_ZSTD]) + small
    return bytes([_PLAIN]) + content


def decompressed(where: str, packed: memoryview, limit: int, most: str = "") -> bytes:
    """What `compressed` packed. Raises `CorruptObjectError`, naming `where`: it did not, or it was more than `limit`, which
    `most` puts in words."""
    kind, content = packed[0], packed[1:]
    try:
        # A frame states its size, and that much memory is taken: so the size is checked first.
        size = zstandard.get_frame_parameters(content).content_size if kind == _ZSTD else len(content)
        if size > limit:
            raise CorruptObjectError(f"{where} would unpack to more than {most or f'{limit:,} bytes'}")
        if kind == _ZSTD:
            return zstandard.ZstdDecompressor().decompress(content, max_output_size=limit, allow_extra_data=False)
    except (zstandard.ZstdError, MemoryError) as e:
        raise CorruptObjectError(f"{where} cannot be unpacked: {e}") from e
    if kind != _PLAIN:
        raise CorruptObjectError(f"{where} is packed in a way that this l0gc does not know")
    return bytes(content)


def checksum(key: str, content: bytes | memoryview) -> int:
    """Return the CRC-32 of `content` as what `key` holds."""
    return zlib.crc32(content, zlib.crc32(key.encode()))


def seal(key: str, content: bytes) -> bytes:
    """Return `content`, and a last line with its checksum."""
    return b'%b\n{"crc32":%d}\n' % (content, checksum(key, content))


def unseal(key: str, body: bytes) -> bytes:
    """Return the content that was sealed. Raises `CorruptObjectError` if it has changed since, or was sealed for another
    key.
    """
    m = _SEAL.search(body, max(0, len(body) - 32))
    if m is None or int(m[1]) != checksum(key, content := body[: m.start()]):
        raise _mismatch(key)
    return content


def _mismatch(key: str) -> CorruptObjectError:
    return CorruptObjectError(f"{key} does not match its checksum; restore it from a backup or a version")
