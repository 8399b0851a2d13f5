"""Simulates a bad replica: some reads of some objects return other bytes than those stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final
from unittest import mock

import msgspec

from l0gc.storage.objectstore import StoredObject
from l0gc.streamlog.cluster import ClusterHandles
from tests.support.memory_store import store_of

Way = Callable[[bytes], bytes]

ZEROS: Final = "zeros"
CUT: Final = "a cut body"
ANOTHER: Final = "another object's body"
WAYS: Final[dict[str, Way]] = {
    ZEROS: lambda body: bytes(len(body)),
    CUT: lambda body: body[: len(body) // 2],
    ANOTHER: lambda body: body[::-1],
}


@dataclass
class Misread:
    """The keys of the objects that were read wrongly, in order."""

    keys: list[str] = field(default_factory=list)


@contextmanager
def misread(cluster: ClusterHandles, part: str, way: Way, times: int, *, after: int = 0) -> Iterator[Misread]:
    """Let `times` reads of objects whose key contains `part` return `way` of the body, after the first `after` reads."""
    store, found, seen = store_of(cluster), Misread(), [0]
    get, get_ranges = store.get, store.get_ranges

    def is_bad(key: str) -> bool:
        if part not in key:
            return False
        seen[0] += 1
        if not after < seen[0] <= after + times:
            return False
        found.keys.append(key)
        return True

    def bad_get(key: str) -> StoredObject:
        stored = get(key)
        return msgspec.structs.replace(stored, body=way(stored.body)) if is_bad(key) else stored

    def bad_ranges(key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        bodies = get_ranges(key, ranges)
        return [way(body) for body in bodies] if is_bad(key) else bodies

    with mock.patch.object(store, "get", bad_get), mock.patch.object(store, "get_ranges", bad_ranges):
        yield found
