"""A store in memory that generates its L0 objects as they are listed, so that there can be 10^9 of them.

A key follows from its number. Shards have the same size, and in each shard the garbage (epochs 1 to M) precedes the
live objects. One byte for each garbage object records whether it was deleted. Listings show deleted objects, too, but a
sweep cannot notice this, because it deletes only what it has listed. All other objects are those of a `MemoryStore`.
"""

from __future__ import annotations

import builtins
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from l0gc.keys import KeyLayout
from l0gc.storage.objectstore import PAGE_SIZE, DeleteFailure, ListedPage, Listing
from tests.support.memory_store import MemoryStore

WATERMARK = 5
EPOCH = 10
BODY_BYTES = 200
_KEY = re.compile(r"level_zero/data/([0-9]{3})/([0-9]{18})/([0-9a-f]{8})-0000-4000-8000-000000000000")


class PagedStore(MemoryStore):
    """Counts one request for each 1,000 keys of a folder, as S3 lists them."""

    def list(self, folder: str, *, one_page: bool = False) -> Listing:
        listing = super().list(folder, one_page=one_page)
        self.requests["list"] += max(0, -(-len(listing.modified_ms) // PAGE_SIZE) - 1)
        return listing


class GeneratedStore(PagedStore):
    """`keys` L0 objects in `shards` shards, `garbage` of them at or below M; both are multiples of `shards`.

    Attributes:
        gone: how many garbage objects were deleted, each counted once.
        wronged: keys of requests to delete a live object, a deleted one, or one that never existed.
    """

    def __init__(self, keys: int, garbage: int, shards: int) -> None:
        super().__init__()
        assert keys % shards == garbage % shards == 0
        self.layout = KeyLayout(shards=shards)
        self.keys, self.garbage, self.shards = keys, garbage, shards
        self._in_shard, self._garbage_in_shard = keys // shards, garbage // shards
        self._gone = bytearray(garbage)
        self.gone = 0
        self.wronged: builtins.list[str] = []

    def _epoch(self, place: int) -> int:
        garbage = self._garbage_in_shard
        if place < garbage:
            return 1 + place * WATERMARK // garbage
        return WATERMARK + 1 + (place - garbage) * (EPOCH - WATERMARK) // (self._in_shard - garbage)

    def key(self, number: int) -> str:
        """Return the key of an object, by its place in the listing."""
        shard, place = divmod(number, self._in_shard)
        return f"level_zero/data/{shard:03}/{self._epoch(place):018}/{place:08x}-0000-4000-8000-000000000000"

    def _first_after(self, key: str) -> int:
        """Return the number of the first object after `key`, even if the store does not have this key."""
        match = _KEY.fullmatch(key)
        if match is not None:  # the usual case needs no search
            return int(match[1]) * self._in_shard + int(match[3], 16) + 1
        return bisect_right(range(self.keys), key, key=self.key)

    def scan(self, prefix: str, start_after: str = "") -> Iterator[ListedPage]:
        if prefix != self.layout.data_prefix:
            yield from super().scan(prefix, start_after)
            return
        number, key = self._first_after(start_after), self.key
        while True:
            self._enter("scan", prefix)
            end = min(number + PAGE_SIZE, self.keys)
            if number < end:
                yield ListedPage(
                    [key(i) for i in range(number, end)],
                    [BODY_BYTES] * (end - number),
                    [self.clock.ms] * (end - number),
                )
            if end == self.keys:
                return
            number = end

    def delete(self, keys: Sequence[str]) -> builtins.list[DeleteFailure]:
        if not keys or not keys[0].startswith(self.layout.data_prefix):
            return super().delete(keys)
        self._enter("delete", keys[0])
        for key in keys:
            number = self._first_after(key) - 1
            shard, place = divmod(number, self._in_shard)
            at = shard * self._garbage_in_shard + place
            if key != self.key(number) or place >= self._garbage_in_shard or self._gone[at]:
                self.wronged.append(key)
            else:
                self._gone[at] = 1
                self.gone += 1
        return []
