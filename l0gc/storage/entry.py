"""An entry of the shared log as its object holds it: an envelope of id, time and checksum around the payload.

The id tells whose entry an offset holds, which settles an append whose reply was lost; the checksum covers the key, too, so
an entry that was changed, or copied to another offset, is not believed.
"""

from __future__ import annotations

from typing import Final

import msgspec

from l0gc.errors import CorruptObjectError
from l0gc.storage.checksum import checksum, mismatch


class Entry(msgspec.Struct, frozen=True):
    """What an offset of the log holds. `time_ms` is the store's clock and never goes back; `crc32` covers all."""

    id: str
    time_ms: int
    entry: msgspec.Raw
    crc32: int

    def checksum(self, key: str) -> int:
        return checksum(key, b"%b %d %b" % (self.id.encode(), self.time_ms, bytes(self.entry)))


# Built at import, by one thread: msgspec learns a type at its first use, and two threads doing that at once crash it.
_ENTRY: Final = msgspec.json.Decoder(Entry)


def encode(key: str, entry_id: str, time_ms: int, payload: bytes) -> bytes:
    """An entry as `key` holds it."""
    entry = Entry(entry_id, time_ms, msgspec.Raw(payload), 0)
    return msgspec.json.encode(msgspec.structs.replace(entry, crc32=entry.checksum(key)))


def decode(key: str, body: bytes) -> Entry:
    """The entry that `key` holds. Raises `CorruptObjectError`: it is none, or not the one that was written there."""
    try:
        entry = _ENTRY.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        raise CorruptObjectError(f"{key} is not a log entry: {e}") from e
    if entry.crc32 != entry.checksum(key):
        raise mismatch(key)
    return entry
