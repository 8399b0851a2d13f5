"""The probe: it refuses a store that breaks a promise, names the promise, and leaves nothing behind."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator, Sequence

import msgspec
import pytest

from l0gc.errors import (
    AccessDeniedError,
    AmbiguousWriteError,
    L0gcError,
    PreconditionFailedError,
    StoreError,
    StoreUnfitError,
    ThrottledError,
    UsageError,
)
from l0gc.runtime import Runtime
from l0gc.storage.config import StoreConfig
from l0gc.storage.objectstore import DeleteFailure, ListedPage, Listing, PutResult, VersionedKey, VersionsDeleted
from l0gc.storage.probe import probe
from l0gc.storage.s3 import S3Store
from tests.support.memory_store import IgnoresConditionalCreate, MemoryStore, TakesPlainEtags, failing


class PretendsConditionalCreate(MemoryStore):
    """Answers 412, and writes anyway."""

    def put_if_absent(self, key: str, body: bytes) -> PutResult:
        exists = key in self.objects
        written = self.put(key, body)
        if exists:
            raise PreconditionFailedError("412")
        return written


class IgnoresConditionalReplace(MemoryStore):
    def put_if_match(self, key: str, body: bytes, etag: str) -> PutResult:
        return self.put(key, body)


class RefusesConditionalReplace(MemoryStore):
    def put_if_match(self, key: str, body: bytes, etag: str) -> PutResult:
        raise PreconditionFailedError("412")


class IgnoresPlainEtags(MemoryStore):
    """Refuses every ETag in quotes, and overwrites with any ETag without quotes."""

    def put_if_match(self, key: str, body: bytes, etag: str) -> PutResult:
        if self.quotes_etags:
            raise PreconditionFailedError("412")
        return self.put(key, body)


class PretendsConditionalReplace(MemoryStore):
    def put_if_match(self, key: str, body: bytes, etag: str) -> PutResult:
        fits = self.objects[key].etag == etag
        written = self.put(key, body)
        if not fits:
            raise PreconditionFailedError("412")
        return written


class SwallowsConditionalReplace(MemoryStore):
    """Reports a write that did not happen."""

    def put_if_match(self, key: str, body: bytes, etag: str) -> PutResult:
        if self.objects[key].etag != etag:
            raise PreconditionFailedError("412")
        return PutResult(etag, self.clock.ms)


class ListsBackwards(MemoryStore):
    def order(self, keys: list[str]) -> list[str]:
        return keys[::-1]


class ListsByFolder(MemoryStore):
    """Sorts keys by folders, as some file systems do."""

    def order(self, keys: list[str]) -> list[str]:
        return sorted(keys, key=lambda k: (k.count("/"), k[::-1]))


class IgnoresStartAfter(MemoryStore):
    def scan(self, prefix: str, start_after: str = "") -> Iterator[ListedPage]:
        return super().scan(prefix)


class SkipsTheFolderAfterStartAfter(MemoryStore):
    """Takes `001~` for the end of folder 001, and drops the next key, too."""

    def scan(self, prefix: str, start_after: str = "") -> Iterator[ListedPage]:
        for n, page in enumerate(super().scan(prefix, start_after)):
            cut = 1 if start_after and n == 0 else 0
            yield ListedPage(page.keys[cut:], page.sizes[cut:], page.modified_ms[cut:])


class ListsLate(MemoryStore):
    def scan(self, prefix: str, start_after: str = "") -> Iterator[ListedPage]:
        return iter(())


class DoesNotDelete(MemoryStore):
    def delete(self, keys: Sequence[str]) -> list[DeleteFailure]:
        return [DeleteFailure(k, "InternalError", "try again") for k in keys]


class MayNotDelete(MemoryStore):
    def delete(self, keys: Sequence[str]) -> list[DeleteFailure]:
        return [DeleteFailure(k, "AccessDenied", "not allowed") for k in keys]

    def discard(self, folder: str, written: Sequence[str] = ()) -> None:
        raise AccessDeniedError("not allowed")


class DoesNotDeleteVersions(MemoryStore):
    def delete_versions(self, objects: Sequence[VersionedKey]) -> VersionsDeleted:
        return VersionsDeleted([DeleteFailure(o.key, "NotImplemented", "") for o in objects])


class IgnoresRanges(MemoryStore):
    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        raise StoreError("not partial")


class CutsRangesAtTheirEnd(MemoryStore):
    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [part[:10] for part in super().get_ranges(key, ranges)]


class ListsTheDeleted(MemoryStore):
    def delete(self, keys: Sequence[str]) -> list[DeleteFailure]:
        self.ghosts = dict.fromkeys(keys, 0)
        return super().delete(keys)

    def list(self, folder: str, *, one_page: bool = False) -> Listing:
        return Listing(super().list(folder).modified_ms | self.ghosts, self.clock.ms)


def run(store: MemoryStore) -> list[str]:
    return probe(store, Runtime(store.clock, random.Random(0)))


def test_a_good_store_passes_and_nothing_is_left_behind() -> None:
    store = MemoryStore()
    store.put("other", b"x")
    assert "conditional create" in run(store)
    assert list(store.objects) == ["other"]


def test_a_good_store_with_small_pages_passes() -> None:
    store = MemoryStore()
    store.page_size = 2
    run(store)


@pytest.mark.parametrize(
    ("store", "message"),
    [
        (IgnoresConditionalCreate, r"ignores conditional creates .*If-None-Match"),
        (PretendsConditionalCreate, "refused a conditional create, but still wrote the object"),
        (IgnoresConditionalReplace, r"ignores conditional replaces .*If-Match"),
        (RefusesConditionalReplace, r"refuses conditional replaces .*should succeed"),
        (IgnoresPlainEtags, r"ignores conditional replaces .*If-Match"),
        (PretendsConditionalReplace, "refused a conditional replace, but still wrote the object"),
        (SwallowsConditionalReplace, "does not show a write to the read that follows"),
        (ListsBackwards, "out of order"),
        (ListsByFolder, "out of order"),
        (IgnoresStartAfter, "StartAfter"),
        (SkipsTheFolderAfterStartAfter, "StartAfter"),
        (ListsLate, "does not list what was just written"),
    ],
)
def test_a_store_that_breaks_a_promise_is_refused_by_its_name(store: type[MemoryStore], message: str) -> None:
    bad = store()
    with pytest.raises(StoreUnfitError, match=message):
        run(bad)
    assert bad.objects == {}


def test_a_store_that_needs_unquoted_etags_passes_with_a_note() -> None:
    store = TakesPlainEtags()
    assert "conditional replace (ETags without quotes)" in run(store)
    assert not store.quotes_etags
    assert store.objects == {}


def test_a_store_that_takes_both_forms_gets_the_one_that_is_known() -> None:
    for known in (True, False):
        store = MemoryStore()
        store.quotes_etags = known
        run(store)
        assert store.quotes_etags == known


def test_a_refused_store_leaves_the_form_as_it_was() -> None:
    store = RefusesConditionalReplace()
    with pytest.raises(StoreUnfitError):
        run(store)
    assert store.quotes_etags


@pytest.mark.parametrize(
    ("store", "message"),
    [
        (DoesNotDelete, "does not delete what the probe wrote: l0gc/probe/.*: InternalError"),
        (DoesNotDeleteVersions, "does not delete what the probe wrote: l0gc/probe/.*: NotImplemented"),
        (ListsTheDeleted, r"still lists objects below l0gc/probe/.* just deleted"),
        (IgnoresRanges, "does not serve a part of an object"),
        (CutsRangesAtTheirEnd, "serves other bytes than the requested Range"),
    ],
)
def test_a_store_that_commands_cannot_work_with_is_refused(store: type[MemoryStore], message: str) -> None:
    with pytest.raises(StoreUnfitError, match=message):
        run(store())


def test_an_answer_that_proves_nothing_is_asked_for_again() -> None:
    store = MemoryStore(fault=failing(AmbiguousWriteError("409 ConditionalRequestConflict"), "put_if_absent", times=1))
    run(store)
    assert store.objects == {}
    store = MemoryStore(fault=failing(AmbiguousWriteError("409 ConditionalRequestConflict"), "put_if_absent"))
    with pytest.raises(AmbiguousWriteError):
        run(store)


def test_a_missing_delete_permission_is_not_an_unfit_store() -> None:
    with pytest.raises(AccessDeniedError, match=r"20 objects below l0gc/probe/.* allow s3:DeleteObject"):
        run(MayNotDelete())


def test_a_store_that_does_not_let_us_is_reported_as_that() -> None:
    with pytest.raises(AccessDeniedError):
        run(MemoryStore(fault=failing(AccessDeniedError("denied"), "put_if*")))


def test_a_failed_probe_cleans_up_what_it_wrote() -> None:
    store = MemoryStore(fault=failing(AccessDeniedError("denied"), "scan"))
    with pytest.raises(AccessDeniedError):
        run(store)
    assert store.objects == {}


class TakesOneWriteASecond(MemoryStore):
    """Answers 429 before it checks the condition, as R2 does for each key."""

    def _wait(self, key: str) -> None:
        if key in self.objects and self.clock.ms - self.objects[key].modified_ms < 1000:
            raise ThrottledError("429")

    def put_if_absent(self, key: str, body: bytes) -> PutResult:
        self._wait(key)
        return super().put_if_absent(key, body)

    def put_if_match(self, key: str, body: bytes, etag: str) -> PutResult:
        self._wait(key)
        return super().put_if_match(key, body, etag)


def test_a_store_that_takes_one_write_a_second_of_a_key_passes() -> None:
    store = TakesOneWriteASecond()
    assert "conditional replace" in probe(store, Runtime(store.clock, random.Random(0)))
    assert store.objects == {}


@pytest.fixture(params=["moto", pytest.param("weed", marks=pytest.mark.weed)])
def at_the_bucket(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[S3Store, S3Store]:
    """Return a store whose bucket exists, and one whose endpoint contains the bucket, as consoles display it."""
    if request.param == "moto":
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATESTACCESSKEY000")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        endpoint = request.getfixturevalue("endpoint")
        store = S3Store(StoreConfig.from_url(f"s3://bucket-{uuid.uuid4()}/a/prefix", endpoint_url=endpoint))
    else:
        store = request.getfixturevalue("store")
    store.create_bucket()
    wrong = f"{store.access.endpoint_url}/{store.config.bucket}"
    return store, S3Store(msgspec.structs.replace(store.config, endpoint_url=wrong))


def test_an_endpoint_that_contains_the_bucket_is_named_before_anything_is_written(
    at_the_bucket: tuple[S3Store, S3Store],
) -> None:
    store, wrong = at_the_bucket
    with pytest.raises(UsageError, match=f"give the endpoint as {store.access.endpoint_url}$"):
        wrong.create_bucket()
    assert [*store.below("").scan("")] == []


def test_a_probe_that_can_list_and_delete_nothing_in_bulk_leaves_nothing(
    at_the_bucket: tuple[S3Store, S3Store],
) -> None:
    store, wrong = at_the_bucket
    with pytest.raises(L0gcError):
        probe(wrong, Runtime())
    assert [page.keys for page in store.below("").scan("")] == []
