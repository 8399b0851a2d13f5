"""An object store in memory, with a clock and faults that a test decides.

It keeps the five promises of `l0gc.storage.objectstore` exactly, so a test on it shows a property of l0gc and not of a
store. Before and after each call it asks `fault`, which may raise: before, the call has no effect; after, it has taken
effect, but the caller does not know (an ambiguous write).
"""

from __future__ import annotations

import builtins
import hashlib
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from l0gc.errors import AmbiguousWriteError, ObjectNotFoundError, PreconditionFailedError
from l0gc.runtime import Runtime
from l0gc.storage.objectstore import (
    OFF,
    PAGE_SIZE,
    DeleteFailure,
    Head,
    ListedPage,
    Listing,
    PutResult,
    StoredObject,
    UnfinishedUpload,
    VersionedKey,
    VersionPage,
    VersionsDeleted,
)
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.watermark.publication import PublishedWatermark, publish


class FakeClock:
    """Time that passes only when a caller waits, or when a test moves it."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self.ms = start_ms

    def monotonic(self) -> float:
        return self.ms / 1000

    def now_ms(self) -> int:
        return self.ms

    def sleep(self, seconds: float) -> None:
        self.ms += max(1, int(seconds * 1000))


@dataclass(frozen=True, slots=True)
class Call:
    """A store call; `when` is 'before' or 'after' its effect."""

    kind: str
    key: str
    when: str


@dataclass(slots=True)
class _Object:
    body: bytes
    etag: str
    modified_ms: int


class MemoryStore:
    """Implements `l0gc.storage.objectstore.ObjectStore` in memory."""

    def __init__(self, clock: FakeClock | None = None, fault: Callable[[Call], None] | None = None) -> None:
        self.clock = clock or FakeClock()
        self.fault: Callable[[Call], None] = fault or (lambda call: None)
        self.objects: dict[str, _Object] = {}
        self.requests: Counter[str] = Counter()
        self.page_size = PAGE_SIZE
        self.unfinished: list[UnfinishedUpload] = []
        self.quotes_etags = True
        self.url = "memory:/"
        self._version = 0

    def _enter(self, kind: str, key: str) -> None:
        self.requests[kind] += 1
        self.fault(Call(kind, key, "before"))

    def _leave(self, kind: str, key: str) -> None:
        self.fault(Call(kind, key, "after"))

    def _write(self, key: str, body: bytes) -> PutResult:
        self._version += 1
        etag = f'"{hashlib.md5(body).hexdigest()}-{self._version}"'
        self.objects[key] = _Object(bytes(body), etag, self.clock.ms)
        return PutResult(etag, self.clock.ms)

    def _object(self, key: str) -> _Object:
        if key not in self.objects:
            error = ObjectNotFoundError(f"memory://{key} does not exist")
            error.date_ms = self.clock.ms
            raise error
        return self.objects[key]

    def get(self, key: str) -> StoredObject:
        self._enter("get", key)
        o = self._object(key)
        self._leave("get", key)
        return StoredObject(o.body, o.etag, o.modified_ms, self.clock.ms)

    def get_start(self, key: str, length: int) -> StoredObject:
        stored = self.get(key)
        return msgspec.structs.replace(stored, body=stored.body[:length])

    def head(self, key: str) -> Head:
        self._enter("head", key)
        o = self._object(key)
        self._leave("head", key)
        return Head(len(o.body), o.etag, o.modified_ms, self.clock.ms)

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        self._enter("get", key)
        body = self._object(key).body
        self._leave("get", key)
        return [body[start : start + length] for start, length in ranges]

    def put(self, key: str, body: bytes) -> PutResult:
        self._enter("put", key)
        written = self._write(key, body)
        self._leave("put", key)
        return written

    def put_bulk(self, key: str, body: bytes) -> None:
        self.put(key, body)

    def put_file(self, key: str, path: Path) -> None:
        self.put(key, path.read_bytes())

    def put_if_absent(self, key: str, body: bytes) -> PutResult:
        self._enter("put_if_absent", key)
        if key in self.objects:
            raise PreconditionFailedError(f"memory://{key} exists")
        written = self._write(key, body)
        self._leave("put_if_absent", key)
        return written

    def put_if_match(self, key: str, body: bytes, etag: str) -> PutResult:
        self._enter("put_if_match", key)
        if key not in self.objects or self.objects[key].etag != etag:
            raise PreconditionFailedError(f"memory://{key} is another version")
        written = self._write(key, body)
        self._leave("put_if_match", key)
        return written

    def delete(self, keys: Sequence[str]) -> builtins.list[DeleteFailure]:
        self._enter("delete", keys[0] if keys else "")
        for key in keys:
            self.objects.pop(key, None)
        self._leave("delete", keys[0] if keys else "")
        return []

    def delete_once(self, keys: Sequence[str]) -> builtins.list[DeleteFailure]:
        return self.delete(keys)

    def discard(self, folder: str, written: Sequence[str] = ()) -> None:
        self.delete([*written, *self.list(folder).modified_ms])

    def list(self, folder: str, *, one_page: bool = False) -> Listing:
        self._enter("list", folder)
        keys = self.order([k for k in sorted(self.objects) if k.startswith(folder)])
        some = keys[: self.page_size] if one_page else keys
        found = {k: self.objects[k].modified_ms for k in some}
        date = self.clock.ms
        self._leave("list", folder)
        return Listing(found, date, len(some) < len(keys))

    def scan(self, prefix: str, start_after: str = "") -> Iterator[ListedPage]:
        after = start_after
        while True:
            self._enter("scan", prefix)
            keys = [k for k in self.order(sorted(self.objects)) if k.startswith(prefix) and k > after]
            page = keys[: self.page_size]
            if page:
                objects = [self.objects[k] for k in page]
                yield ListedPage(page, [len(o.body) for o in objects], [o.modified_ms for o in objects])
            if len(keys) <= self.page_size:
                return
            after = page[-1]

    def order(self, keys: builtins.list[str]) -> builtins.list[str]:
        """Return the keys in the order of the store's listings; a test of a bad store overrides this."""
        return keys

    def now_ms(self) -> int:
        self._enter("head", "")
        return self.clock.ms

    def versioning(self) -> str:
        self._enter("head", "")
        return OFF

    def versions(self, prefix: str, after: str = "") -> Iterator[VersionPage]:
        raise AssertionError("the bucket keeps no versions")

    def delete_versions(self, objects: Sequence[VersionedKey]) -> VersionsDeleted:
        return VersionsDeleted(self.delete([o.key for o in objects]))

    def uploads(self, prefix: str) -> Iterator[builtins.list[UnfinishedUpload]]:
        self._enter("list", prefix)
        found = [u for u in self.unfinished if u.key.startswith(prefix)]
        if found:
            yield found

    def abort(self, upload: UnfinishedUpload) -> None:
        self._enter("delete", upload.key)
        self.unfinished = [u for u in self.unfinished if u != upload]


def failing(
    error: BaseException | type[BaseException],
    kind: str = "*",
    key: str = "",
    when: str = "before",
    *,
    after: int = 0,
    times: int | None = None,
) -> Callable[[Call], None]:
    """Return a fault: calls whose kind matches the pattern and whose key contains `key` fail `times` times, after the
    first `after`.
    """

    def fail() -> None:
        raise error

    return _at(fail, kind, key, when, after, times)


def once(
    act: Callable[[], object], kind: str = "*", key: str = "", when: str = "before", *, after: int = 0
) -> Callable[[Call], None]:
    """Return a fault: `act` runs once, at the matching call after the first `after` ones."""
    return _at(act, kind, key, when, after, 1)


def _at(
    act: Callable[[], object], kind: str, key: str, when: str, after: int, times: int | None
) -> Callable[[Call], None]:
    seen = itertools.count()

    def fault(call: Call) -> None:
        if fnmatchcase(call.kind, kind) and key in call.key and call.when == when:
            n = next(seen) - after
            if n >= 0 and (times is None or n < times):
                act()

    return fault


def lose_reply(key_part: str) -> Callable[[Call], None]:
    """Return a fault: the next conditional write whose key contains `key_part` takes effect, but its reply is lost."""
    left = [1]

    def fault(call: Call) -> None:
        if left[0] and call.when == "after" and call.kind.startswith("put_if") and key_part in call.key:
            left[0] -= 1
            raise AmbiguousWriteError(f"the reply for {call.key} was lost")

    return fault


FEW_JOURNALS = 5
"""The number of journals of a cluster whose test needs few: most commands read each journal, and the default is 16."""


def memory_cluster(store: MemoryStore | None = None, *, seed: int = 0, bootstrap: bool = True) -> ClusterHandles:
    """Return a cluster on a store in memory, with the store's clock and a seeded source of randomness.

    Several clusters on one store are several processes.
    """
    store = store or MemoryStore()
    cluster = ClusterHandles(store, Runtime(store.clock, random.Random(seed)))
    if bootstrap:
        cluster.controller.bootstrap(shards=4, journals=FEW_JOURNALS)
    return cluster


def topic_in_memory(partitions: int = 1, journals: int = 1, *, store: MemoryStore | None = None) -> ClusterHandles:
    """Return a cluster with the topic `events`."""
    cluster = memory_cluster(store)
    cluster.controller.create_topic("events", partitions, journals)
    return cluster


def copy_of(store: MemoryStore, prefix: str = "") -> dict[str, bytes]:
    """Return the objects below a prefix."""
    return {k: o.body for k, o in store.objects.items() if k.startswith(prefix)}


def put_back(store: MemoryStore, prefix: str, copy: Mapping[str, bytes]) -> dict[str, bytes]:
    """Replace the objects below a prefix by those of a copy, and return the replaced ones. No process may be active."""
    there = copy_of(store, prefix)
    store.delete(list(there))
    for key, body in copy.items():
        if key.startswith(prefix):
            store.put(key, body)
    return there


def external_cluster() -> ClusterHandles:
    """Return a cluster of another system's log, on a store in memory."""
    cluster = memory_cluster(bootstrap=False)
    cluster.controller.bootstrap(shards=4, external_log=True)
    return cluster


def store_of(cluster: ClusterHandles) -> MemoryStore:
    assert isinstance(cluster.store, MemoryStore)
    return cluster.store


def another_process(cluster: ClusterHandles, seed: int = 1) -> ClusterHandles:
    """Return another process of the same cluster."""
    return memory_cluster(store_of(cluster), seed=seed, bootstrap=False)


def publish_m(cluster: ClusterHandles, watermark: int, epoch: int | None = None, at_ms: int = 0) -> None:
    """Publish M as computed at this epoch, by default the cluster's."""
    state = cluster.controller.snapshot()
    new = PublishedWatermark(state.cluster_id, watermark, state.epoch if epoch is None else epoch, at_ms)
    publish(cluster.store, cluster.runtime, new)


class IgnoresConditionalCreate(MemoryStore):
    def put_if_absent(self, key: str, body: bytes) -> PutResult:
        return self.put(key, body)


class TakesPlainEtags(MemoryStore):
    """Compares If-Match with its quotes, as Ceph's gateway up to version 18 does."""

    def put_if_match(self, key: str, body: bytes, etag: str) -> PutResult:
        return super().put_if_match(key, body, f"not {etag}" if self.quotes_etags else etag)
