"""A store with two servers, one of which has a wrong clock."""

from __future__ import annotations

from typing import Final

import msgspec

from l0gc.errors import ObjectNotFoundError
from l0gc.storage.objectstore import Listing, PutResult, StoredObject
from tests.support.memory_store import MemoryStore

DAY_MS: Final = 24 * 3_600_000


class MisdatedStore(MemoryStore):
    """Answers the next call of each method in `wrong` by the server whose clock is ahead by `ahead_ms`."""

    def __init__(self, ahead_ms: int) -> None:
        super().__init__()
        self.ahead_ms = ahead_ms
        self.wrong: list[str] = []

    def _wrong_by(self, method: str) -> int:
        if method not in self.wrong:
            return 0
        self.wrong.remove(method)
        return self.ahead_ms

    def get(self, key: str) -> StoredObject:
        by_ms = self._wrong_by("get")
        try:
            stored = super().get(key)
        except ObjectNotFoundError as e:
            e.date_ms = self.clock.ms + by_ms
            raise
        return msgspec.structs.replace(stored, date_ms=stored.date_ms + by_ms)

    def list(self, folder: str, *, one_page: bool = False) -> Listing:
        by_ms = self._wrong_by("list")
        listing = super().list(folder, one_page=one_page)
        return msgspec.structs.replace(listing, date_ms=listing.date_ms + by_ms)

    def put_if_absent(self, key: str, body: bytes) -> PutResult:
        by_ms = self._wrong_by("put_if_absent")
        written = super().put_if_absent(key, body)
        return msgspec.structs.replace(written, date_ms=written.date_ms + by_ms)

    def now_ms(self) -> int:
        return super().now_ms() + self._wrong_by("now_ms")
