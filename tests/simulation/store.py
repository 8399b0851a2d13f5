"""The store of a simulation: in memory, with the habits of stores that differ slightly from S3, and watched from below."""

from __future__ import annotations

import builtins
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from l0gc.errors import ObjectNotFoundError
from l0gc.storage.objectstore import DeleteFailure, Head, ListedPage, Listing, PutResult, StoredObject
from tests.support.memory_store import Call, FakeClock, MemoryStore, _Object

if TYPE_CHECKING:
    from tests.simulation.world import World

ORDERED = "in order"
SKIPS_FOLDER = "skips the folder that StartAfter names"
DISORDERED = "out of order"
BOUNDARY = "/boundary.json"
HABITS = (ORDERED, SKIPS_FOLDER, DISORDERED)


class SimulatedStore(MemoryStore):
    """Asks the world at each call, and reports each effect as it happens.

    Args:
        habit: how it lists; a page has `page_size` keys.
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

    # -- reads: a reply's `Date` may be wrong ------------------------------------------------------------------------

    def get(self, key: str) -> StoredObject:
        stored = super().get(key)
        ahead = self._world.date_ahead_ms()
        if key.endswith(BOUNDARY):
            self._world.boundary_read()
        return msgspec.structs.replace(
            stored, body=self._world.answers.read(key, stored.body), date_ms=stored.date_ms + ahead
        )

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        bodies = super().get_ranges(key, ranges)
        return [self._world.answers.read(key, body) for body in bodies]

    def head(self, key: str) -> Head:
        head = super().head(key)
        ahead = self._world.date_ahead_ms()
        return msgspec.structs.replace(head, date_ms=head.date_ms + ahead) if ahead else head

    def list(self, folder: str, *, one_page: bool = False) -> Listing:
        """List in pages only if pins keep logs long: the other seeds take the same steps whether or not a log is listed
        in pages.
        """
        listing = super().list(folder, one_page=one_page and self._world.weather.pins)
        return msgspec.structs.replace(listing, date_ms=listing.date_ms + self._world.date_ahead_ms())

    def now_ms(self) -> int:
        return super().now_ms() + self._world.date_ahead_ms()

    def _object(self, key: str) -> _Object:
        try:
            return super()._object(key)
        except ObjectNotFoundError as e:
            e.date_ms = self.clock.ms + self._world.date_ahead_ms(key)
            if key.endswith(BOUNDARY):
                self._world.boundary_read()
            raise

    # -- writes: one may take effect long after its caller has given up ----------------------------------------------

    def put(self, key: str, body: bytes) -> PutResult:
        self._sending(lambda: self._write(key, body))
        return self._dated(super().put(key, body))

    def put_if_absent(self, key: str, body: bytes) -> PutResult:
        self._sending(lambda: None if key in self.objects else self._write(key, body))
        return self._dated(super().put_if_absent(key, body))

    def put_if_match(self, key: str, body: bytes, etag: str) -> PutResult:
        def land() -> None:
            if key in self.objects and self.objects[key].etag == etag:
                self._write(key, body)

        self._sending(land)
        return self._dated(super().put_if_match(key, body, etag))

    def delete(self, keys: Sequence[str]) -> builtins.list[DeleteFailure]:
        self._sending(lambda: self._delete(keys))
        self._enter("delete", keys[0] if keys else "")
        failures = self._delete(keys)
        self._leave("delete", keys[0] if keys else "")
        return failures

    def _sending(self, effect: Callable[[], object]) -> None:
        if self._world.thread is not None:
            self._world.thread.sending = effect

    def _dated(self, written: PutResult) -> PutResult:
        ahead = self._world.date_ahead_ms()
        return msgspec.structs.replace(written, date_ms=written.date_ms + ahead) if ahead else written

    def _write(self, key: str, body: bytes) -> PutResult:
        self._version += 1
        etag = f'"{self._version}"'
        self.objects[key] = _Object(bytes(body), etag, self.clock.ms)
        self._world.watch.written(key, body)
        return PutResult(etag, self.clock.ms)

    def _delete(self, keys: Sequence[str]) -> builtins.list[DeleteFailure]:
        failures = self._world.holds.refuse(self._world, keys)
        held = {f.key for f in failures}
        for key in [k for k in keys if k not in held]:
            gone = self.objects.pop(key, None)
            if gone is not None:
                self._world.watch.deleted(key, gone.modified_ms)
        return failures

    # -- scans -------------------------------------------------------------------------------------------------------

    def scan(self, prefix: str, start_after: str = "") -> Iterator[ListedPage]:
        turned = self._habit == DISORDERED
        page: list[str] = []
        while True:
            self._enter("scan", prefix)
            keys = [k for k in self.objects if k.startswith(prefix) and k > start_after]
            if self._habit == SKIPS_FOLDER and start_after.startswith(prefix):
                folder = start_after.rstrip("/") + "/"
                keys = [k for k in keys if not k.startswith(folder)]
            order = sorted(k[::-1] for k in keys) if turned else sorted(keys)  # similar to a store that hashes names
            if page:
                last = page[-1][::-1] if turned else page[-1]
                order = order[bisect_right(order, last) :]
            page = [k[::-1] for k in order[: self.page_size]] if turned else order[: self.page_size]
            if page:
                objects = [self.objects[k] for k in page]
                yield ListedPage(page, [len(o.body) for o in objects], [o.modified_ms for o in objects])
            if len(order) <= self.page_size:
                return
