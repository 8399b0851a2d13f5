"""The store of a simulation: in memory, with the habits of stores that are not quite S3, and watched from below."""

from __future__ import annotations

import builtins
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from l0gc.storage.objectstore import DeleteFailure, ListedPage, Written
from tests.support.memory_store import Call, FakeClock, MemoryStore, _Object

if TYPE_CHECKING:
    from tests.simulation.world import World

ORDERED = "in order"
SKIPS_FOLDER = "skips the folder that StartAfter names"
DISORDERED = "out of order"
HABITS = (ORDERED, SKIPS_FOLDER, DISORDERED)


class SimulatedStore(MemoryStore):
    """Asks the world at each call, and tells it what takes effect, as it takes effect.

    Args:
        habit: how it lists; a page is of `page_size` keys.
    """

    def __init__(self, clock: FakeClock, world: World, *, habit: str, page_size: int) -> None:
        super().__init__(clock)
        self._world = world
        self._habit = habit
        self.page_size = page_size

    def _enter(self, kind: str, key: str) -> None:
        self._world.at_call(Call(kind, key, "before"))

    def _leave(self, kind: str, key: str) -> None:
        self._world.at_call(Call(kind, key, "after"))

    def _write(self, key: str, body: bytes) -> Written:
        self._version += 1
        etag = f'"{self._version}"'
        self.objects[key] = _Object(bytes(body), etag, self.clock.ms)
        self._world.watch.written(key, body)
        return Written(etag, self.clock.ms)

    def delete(self, keys: Sequence[str]) -> builtins.list[DeleteFailure]:
        self._enter("delete", keys[0] if keys else "")
        for key in keys:
            gone = self.objects.pop(key, None)
            if gone is not None:
                self._world.watch.deleted(key, gone.modified_ms)
        self._leave("delete", keys[0] if keys else "")
        return []

    def scan(self, prefix: str, start_after: str = "") -> Iterator[ListedPage]:
        turned = self._habit == DISORDERED
        page: list[str] = []
        while True:
            self._enter("scan", prefix)
            keys = [k for k in self.objects if k.startswith(prefix) and k > start_after]
            if self._habit == SKIPS_FOLDER and start_after.startswith(prefix):
                folder = start_after.rstrip("/") + "/"
                keys = [k for k in keys if not k.startswith(folder)]
            order = sorted(k[::-1] for k in keys) if turned else sorted(keys)  # a store that hashes names, more or less
            if page:
                last = page[-1][::-1] if turned else page[-1]
                order = order[bisect_right(order, last) :]
            page = [k[::-1] for k in order[: self.page_size]] if turned else order[: self.page_size]
            if page:
                objects = [self.objects[k] for k in page]
                yield ListedPage(page, [len(o.body) for o in objects], [o.modified_ms for o in objects])
            if len(order) <= self.page_size:
                return
