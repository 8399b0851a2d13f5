"""A bucket of any size that is generated as it is listed: a key follows from its number, and is not stored.

For each key one byte records whether the object was deleted. The few small objects that are not L0 objects are stored.
The keys have the order, the shape and the spread of a cluster's: shards of equal size, in each the garbage (epochs 1 to
M) before the live objects. Bodies below `l0gc/runs/` are counted and discarded.
"""

from __future__ import annotations

import hashlib
import re
import threading
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final

from benchmarks.drivers.fill import EPOCH, WATERMARK
from benchmarks.support.buckets import DATA, RUNS

BODY_BYTES: Final = 200
GENERATED_ETAG: Final = '"d41d8cd98f00b204e9800998ecf8427e"'
_KEY: Final = re.compile(re.escape(DATA) + r"([0-9]{3})/[0-9]{18}/([0-9a-f]{8})-")
_MIX: Final = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Entry:
    """One object of a listing."""

    key: str
    etag: str
    size: int


class GeneratedBucket:
    """`keys` L0 objects over `shards` shards, `garbage` of them at or below M. It is thread-safe.

    Attributes:
        gone: how many garbage objects were deleted.
        wronged: how many requests named a live object, or an L0 key that never existed.
    """

    def __init__(self, keys: int, garbage: int, shards: int) -> None:
        self.keys, self.garbage, self.shards = keys, garbage, shards
        self.objects: dict[str, bytes] = {}
        self.gone = self.wronged = self.record_bytes = 0
        self._deleted = bytearray(keys)
        self._lock = threading.Lock()

    # -- keys ---------------------------------------------------------------------------------------------------------

    def _start(self, shard: int) -> int:
        return self.keys * shard // self.shards

    def _garbage_in(self, shard: int) -> int:
        return self.garbage * (shard + 1) // self.shards - self.garbage * shard // self.shards

    def key(self, number: int) -> str:
        """Return the key of an object, by its place in the listing."""
        shard = ((number + 1) * self.shards - 1) // self.keys
        start = self._start(shard)
        place, garbage = number - start, self._garbage_in(shard)
        if place < garbage:
            epoch = 1 + place * WATERMARK // garbage
        else:
            live = self._start(shard + 1) - start - garbage
            epoch = WATERMARK + 1 + (place - garbage) * (EPOCH - WATERMARK) // live
        x = (number + 1) * _MIX & 0xFFFFFFFFFFFFFFFF
        rest = f"{x >> 48:04x}-4{x >> 36 & 0xFFF:03x}-8{x >> 24 & 0xFFF:03x}-{x & 0xFFFFFFFFFFFF:012x}"
        return f"{DATA}{shard:03}/{epoch:018}/{place:08x}-{rest}"

    def number(self, key: str) -> int:
        """Return the place of the object with that key, or -1."""
        match = _KEY.match(key)
        if match is None or int(match[1]) >= self.shards:
            return -1
        number = self._start(int(match[1])) + int(match[2], 16)
        return number if number < self.keys and self.key(number) == key else -1

    def is_garbage(self, number: int) -> bool:
        shard = ((number + 1) * self.shards - 1) // self.keys
        return number - self._start(shard) < self._garbage_in(shard)

    # -- a server's calls ---------------------------------------------------------------------------------------------

    def list(self, prefix: str, after: str, most: int) -> list[Entry]:
        """Return the first objects below `prefix` after the key `after`, in key order."""
        with self._lock:
            small = sorted(k for k in self.objects if k.startswith(prefix) and k > after)
        first = (self._entry(k) for k in small if k < DATA)
        last = (self._entry(k) for k in small if k > DATA)
        return list(islice(chain(first, self._generated(prefix, after), last), most))

    def _entry(self, key: str) -> Entry:
        body = self.objects[key]
        return Entry(key, etag_of(body), len(body))

    def _generated(self, prefix: str, after: str) -> Iterator[Entry]:
        if not (DATA.startswith(prefix) or prefix.startswith(DATA)):
            return
        number = bisect_right(range(self.keys), max(after, prefix), key=self.key) if max(after, prefix) > DATA else 0
        while (number := self._deleted.find(b"\0", number)) >= 0:
            key = self.key(number)
            if not key.startswith(prefix):
                return
            yield Entry(key, GENERATED_ETAG, BODY_BYTES)
            number += 1

    def delete(self, key: str) -> None:
        """Delete an object; a missing one counts as deleted."""
        if not key.startswith(DATA):
            with self._lock:
                self.objects.pop(key, None)
            return
        number = self.number(key)
        with self._lock:
            if number < 0 or not self.is_garbage(number):
                self.wronged += 1
            elif not self._deleted[number]:
                self.gone += 1
            if number >= 0:
                self._deleted[number] = 1

    def put(self, key: str, body: bytes, if_match: str | None, if_none_match: str | None) -> int:
        """Write a small object if the condition holds; return the HTTP status."""
        with self._lock:
            now = self.objects.get(key)
            if if_none_match is not None and now is not None:
                return 412
            if if_match is not None and (now is None or etag_of(now) != if_match):
                return 404 if now is None else 412
            if key.startswith(RUNS):
                self.record_bytes += len(body)
                body = b""
            self.objects[key] = body
            return 200

    def left(self) -> tuple[int, int]:
        """Return how many garbage and how many live objects are left."""
        with self._lock:
            starts = ((self._start(s), self._garbage_in(s)) for s in range(self.shards))
            garbage = sum(self._deleted.count(0, start, start + n) for start, n in starts)
            return garbage, self._deleted.count(0) - garbage


def etag_of(body: bytes) -> str:
    return f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'
