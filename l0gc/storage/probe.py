"""Test the guarantees on which l0gc's safety relies, on the store itself and not by its name.

The shared log and `published.json` rely on conditional creates and replaces; a store that ignores the conditions would
let two writers own one offset. The skip-scan relies on listing order. The probe writes to its own random folder, and
removes it afterwards, including all versions.

Some stores (Ceph's gateway up to 18, and products built on it) compare the ETag of If-Match including its quotes, so
that it never matches; they accept it unquoted. Only the probe tests this, on its own key, together with a stale ETag
that must be refused. Sending the unquoted form after any 412 could make a write unconditional on a store that ignores
that form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from l0gc.errors import (
    AccessDeniedError,
    AmbiguousWriteError,
    L0gcError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreError,
    StoreUnfitError,
    ThrottledError,
)
from l0gc.formatting import count
from l0gc.keys import JUMP
from l0gc.runtime import Runtime
from l0gc.storage.objectstore import ObjectStore, VersionedKey
from l0gc.storage.refusals import DENIED

_NAMES = [f"{shard:03}/{epoch:018}/{name}" for shard in (10, 2, 1) for epoch in (10, 9, 1) for name in ("b", "a")]
"""Keys like those of L0 objects, the only keys whose order matters; some stores sort other keys by folder."""
_TRIES = 5
"""How often a conditional write is tried, since a store may answer 409, which asks to send the request again."""
_APART_S = 1.5
"""How long to wait between two writes of a key, after two keys whose writes had an unclear outcome."""
_RANGED = 40_000
"""The size of an object whose ranges are read: more than a proxy passes on at once."""


def probe(store: ObjectStore, runtime: Runtime) -> list[str]:
    """Test everything, and return the names of the tests. Afterwards, the store object sends ETags in the form that the
    store accepts.

    Raises:
        StoreUnfitError: the store lacks a feature, which the message names.
        AccessDeniedError: a permission is missing, so that not everything could be tested.
    """
    folder = f"l0gc/probe/{runtime.new_id()}/"
    listed = sorted(f"{folder}list/{name}" for name in _NAMES)
    written = [f"{folder}ranges", *listed]
    try:
        _conditions(store, runtime, folder, written)
        _ranges(store, written[0])
        _listing(store, f"{folder}list/", listed)
        _deletes(store, folder, written)
        written.clear()
    finally:
        with suppress(StoreError):
            store.discard(folder, written)
    return [
        "conditional create",
        "conditional replace" if store.quotes_etags else "conditional replace (ETags without quotes)",
        "read after write",
        "listing order",
        "start-after",
        "delete",
    ]


def _conditions(store: ObjectStore, runtime: Runtime, folder: str, written: list[str]) -> None:
    """Test conditional writes on a new key, and on another new key if an answer is inconclusive.

    Some stores (R2) answer 429 to a second write of a key within a second. Therefore, after two keys, there is a longer
    pause before each write.
    """
    apart_s = 0.0

    def rest() -> None:
        runtime.clock.sleep(apart_s)

    for attempt in range(1, _TRIES + 1):
        key = f"{folder}condition-{attempt}"
        written.append(key)
        try:
            _conditional_create(store, key, rest)
            _conditional_replace(store, key, rest)
            return
        except (AmbiguousWriteError, ThrottledError):
            if attempt == _TRIES:
                raise
            apart_s = _APART_S if attempt > 1 else 0
        runtime.clock.sleep(runtime.jitter(0.1 * 2**attempt))


def _ranges(store: ObjectStore, key: str) -> None:
    body = b"".join(b"%08d" % n for n in range(_RANGED // 8))
    store.put(key, body)
    spans = [(0, 5), (_RANGED // 2 + 3, 11), (_RANGED - 7, 7)]
    try:
        ranges = store.get_ranges(key, spans)
    except AccessDeniedError:
        raise
    except StoreError as e:
        raise StoreUnfitError(
            f"the store, or a proxy in front of it, does not serve a part of an object (Range): {e}"
        ) from e
    if ranges != [body[at : at + size] for at, size in spans]:
        raise StoreUnfitError("the store, or a proxy in front of it, serves other bytes than the requested Range")


def _deletes(store: ObjectStore, folder: str, keys: Sequence[str]) -> None:
    """Delete the objects that were written, by each request that commands use."""
    versions = store.delete_versions([*map(VersionedKey, keys[::3])]).failures
    for f in [*versions, *store.delete(keys[1::3]), *store.delete_once(keys[2::3])]:
        if f.code == DENIED:
            raise AccessDeniedError(
                f"{count(len(keys), 'object')} below {folder} may not be deleted again: allow s3:DeleteObject there"
            )
        raise StoreUnfitError(f"the store does not delete what the probe wrote: {f.key}: {f.why}")
    if list(store.list(folder).modified_ms):
        raise StoreUnfitError(f"the store still lists objects below {folder} that were just deleted")


def _conditional_create(store: ObjectStore, key: str, rest: Callable[[], None]) -> None:
    store.put_if_absent(key, b"first")
    rest()
    with suppress(PreconditionFailedError):
        store.put_if_absent(key, b"second")
        raise StoreUnfitError(
            "the store ignores conditional creates (PutObject with If-None-Match: *): two writers could own one log "
            "offset, so l0gc cannot keep a cluster there"
        )
    if store.get(key).body != b"first":
        raise StoreUnfitError("the store refused a conditional create, but still wrote the object")


def _conditional_replace(store: ObjectStore, key: str, rest: Callable[[], None]) -> None:
    etag = store.get(key).etag
    refused: L0gcError | None = None
    quotes = store.quotes_etags
    for quoted in (quotes, not quotes):
        store.quotes_etags = quoted
        rest()
        try:
            store.put_if_match(key, b"third", etag)
            break
        except (PreconditionFailedError, StoreUnfitError) as e:
            refused = e
    else:
        store.quotes_etags = quotes
        raise StoreUnfitError(
            "the store refuses conditional replaces (PutObject with If-Match) that should succeed, with the ETag in quotes "
            f"and without: {refused}"
        ) from refused
    if store.get(key).body != b"third":
        raise StoreUnfitError("the store does not show a write to the read that follows it")
    rest()
    with suppress(PreconditionFailedError):
        store.put_if_match(key, b"fourth", etag)
        raise StoreUnfitError(
            "the store ignores conditional replaces (PutObject with If-Match): the watermark could be lowered, so l0gc "
            "cannot keep a cluster there"
        )
    with suppress(ObjectNotFoundError):
        if store.get(key).body == b"third":
            return
    raise StoreUnfitError("the store refused a conditional replace, but still wrote the object")


def _listing(store: ObjectStore, prefix: str, expected: Sequence[str]) -> None:
    for key in expected[::-1]:
        store.put(key, b"x")
    got = [k for page in store.scan(prefix) for k in page.keys]
    if sorted(got) != expected:
        raise StoreUnfitError("the store does not list what was just written")
    if got != expected:
        raise StoreUnfitError("the store lists keys out of order, and the sweep's skip-scan needs them in order")
    after = f"{prefix}001{JUMP}"
    if [k for page in store.scan(prefix, after) for k in page.keys] != [k for k in expected if k > after]:
        raise StoreUnfitError("the store does not begin a listing at StartAfter, which the sweep's skip-scan needs")
