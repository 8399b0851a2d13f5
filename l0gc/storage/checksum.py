"""Checksums of what the shared log keeps.

Log entries, checkpoints and boundaries are small JSON objects, and one changed digit makes another valid one: an epoch
that was never reached, a bound that lets live objects go. So each carries a CRC-32 over its content and its key, which
finds a changed object and one that lies at another's place. What fails it stops its log.
"""

from __future__ import annotations

import re
import zlib
from typing import Final

from l0gc.errors import CorruptObjectError

_SEAL: Final = re.compile(rb'\n\{"crc32":([0-9]{1,10})\}\n\Z')


def checksum(key: str, content: bytes) -> int:
    """The CRC-32 of `content` as what `key` holds."""
    return zlib.crc32(content, zlib.crc32(key.encode()))


def seal(key: str, content: bytes) -> bytes:
    """`content`, and a last line with its checksum."""
    return b'%b\n{"crc32":%d}\n' % (content, checksum(key, content))


def unseal(key: str, body: bytes) -> bytes:
    """The content that was sealed. Raises `CorruptObjectError` if it has changed since, or was sealed for another key."""
    m = _SEAL.search(body, max(0, len(body) - 32))
    if m is None or int(m[1]) != checksum(key, content := body[: m.start()]):
        raise mismatch(key)
    return content


def mismatch(key: str) -> CorruptObjectError:
    """The error for an object that has changed."""
    return CorruptObjectError(f"{key} does not match its checksum; restore it from a backup or a version")
