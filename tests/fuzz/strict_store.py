"""A store in memory that answers a range beyond an object's end as S3 does, with an error."""

from __future__ import annotations

from collections.abc import Sequence

from l0gc.errors import StoreError
from tests.support.memory_store import MemoryStore


class StrictStore(MemoryStore):
    """See `MemoryStore`."""

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        found = super().get_ranges(key, ranges)
        if any(len(body) != length for body, (_, length) in zip(found, ranges, strict=True)):
            raise StoreError("the range is not satisfiable (416)")
        return found
