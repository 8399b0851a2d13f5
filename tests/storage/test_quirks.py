"""Stores and proxies that differ from S3 in one way: commands work with them, or `init` refuses them by name."""

from __future__ import annotations

import io
import itertools
import re
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from moto.s3.models import s3_backends

import l0gc
from l0gc.collect.deletion import clear_pause, read_pause, set_pause
from l0gc.errors import BucketNotFoundError, PreconditionFailedError, StoreUnfitError, UsageError
from l0gc.runtime import Runtime
from l0gc.storage.config import StoreConfig
from l0gc.storage.objectstore import OFF, DeleteFailure, VersionedKey
from l0gc.storage.probe import probe
from l0gc.storage.s3 import S3Store
from tests.support.quirky_s3 import (
    Environ,
    Quirk,
    has_no_bulk_delete,
    ignores_ranges,
    is_bulk_delete,
    quirky_s3,
    refuses_expectations,
    wants_md5,
)
from tests.support.tries import sampled

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.usefixtures("credentials")


@contextmanager
def store_with(quirk: Quirk, prefix: str = "p", *, weakens: bool = False) -> Iterator[S3Store]:
    with quirky_s3(quirk, weakens=weakens) as endpoint:
        store = S3Store(StoreConfig.from_url(f"s3://bucket-{uuid.uuid4()}/{prefix}", endpoint_url=endpoint))
        assert store.create_bucket()
        yield store


def versioned(store: S3Store, status: Literal["Enabled", "Suspended"] = "Enabled") -> None:
    store.client.put_bucket_versioning(Bucket=store.config.bucket, VersioningConfiguration={"Status": status})


@pytest.mark.parametrize(
    ("quirk", "prefix", "history"),
    [(wants_md5, "p", True), (wants_md5, "with a space", False), (has_no_bulk_delete, "p", True)],
)
def test_every_way_of_deleting_works(quirk: Quirk, prefix: str, *, history: bool) -> None:
    with store_with(quirk, prefix) as store:
        if history:
            versioned(store)
        probe(store, Runtime())
        keys = [f"level_zero/{n}" for n in range(9)]
        for key in keys:
            store.put(key, b"x")
        assert store.delete(keys[:3]) == store.delete_once(keys[3:6]) == []
        made = store.delete_versions([*map(VersionedKey, keys[6:])])
        assert (made.failures, sorted(made.markers)) == ([], keys[6:] if history else [])
        assert list(store.list("").modified_ms) == []
        if history:
            markers = [VersionedKey(*m) for m in made.markers.items()]
            assert store.delete_versions(markers).failures == []
            assert list(store.list("").modified_ms) == keys[6:]
        set_pause(store, "a test", "me")
        assert clear_pause(store) is not None
        assert read_pause(store) is None


def test_a_store_that_needs_md5_gets_it_in_one_bulk_delete() -> None:
    deletes: list[str] = []

    def quirk(request: Environ) -> int | None:
        if is_bulk_delete(request) or request["REQUEST_METHOD"] == "DELETE":
            deletes.append(request["REQUEST_METHOD"])
        return wants_md5(request)

    with store_with(quirk) as store:
        store.delete([f"k{n}" for n in range(9)])
    assert deletes == ["POST"]


def test_a_protected_key_is_named_and_the_others_are_deleted() -> None:
    def quirk(request: Environ) -> int | None:
        if request["REQUEST_METHOD"] == "DELETE" and request["PATH_INFO"].endswith("/locked"):
            return 403
        return has_no_bulk_delete(request)

    with store_with(quirk) as store:
        for key in ("locked", "plain"):
            store.put(key, b"x")
        (failed,) = store.delete_once(["locked", "plain"])
        assert isinstance(failed, DeleteFailure)
        assert (failed.key, failed.code) == ("locked", "AccessDenied")
        assert list(store.list("").modified_ms) == ["locked"]


def test_what_a_store_serves_in_place_of_a_range_is_cut() -> None:
    body = bytes(range(256)) * 100
    with store_with(ignores_ranges) as store:
        probe(store, Runtime())
        store.put("k", body)
        assert store.get_ranges("k", [(700, 9), (25_590, 10)]) == [body[700:709], body[-10:]]


def test_a_store_serving_wrong_ranges_is_refused_by_name() -> None:
    def quirk(request: Environ) -> int | None:
        if "HTTP_RANGE" in request:
            request["HTTP_RANGE"] = "bytes=0-9"
        return None

    with store_with(quirk) as store, pytest.raises(StoreUnfitError, match="Range"):
        probe(store, Runtime())


def test_nothing_is_sent_that_waits_for_leave_to_go_on() -> None:
    with store_with(refuses_expectations) as store:
        probe(store, Runtime())


def test_one_conflict_of_conditional_writes_does_not_end_the_probe() -> None:
    conflicts = iter([409])

    def quirk(request: Environ) -> int | None:
        return next(conflicts, None) if "HTTP_IF_NONE_MATCH" in request else None

    with store_with(quirk) as store:
        probe(store, Runtime())
        assert s3_backends["123456789012"]["aws"].buckets[store.config.bucket].keys == {}


def takes_one_write_a_second() -> Quirk:
    """Answer 429 before the condition is checked, as R2 does for each key."""
    written: dict[str, float] = {}

    def quirk(request: Environ) -> int | None:
        key = request["PATH_INFO"]
        if request["REQUEST_METHOD"] != "PUT" or key.count("/") < 2:
            return None
        if time.monotonic() - written.get(key, -9) < 1:
            return 429
        written[key] = time.monotonic()
        return None

    return quirk


def loses_a_few_conditional_writes() -> Quirk:
    """Answer 408 to some conditional writes, like a store that waited too long for the body."""
    sent = itertools.count(1)

    def quirk(request: Environ) -> int | None:
        conditional = {"HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH"} & set(request)
        return 408 if conditional and next(sent) % 5 == 0 else None

    return quirk


@pytest.mark.parametrize(
    "quirk", sampled([takes_one_write_a_second, loses_a_few_conditional_writes], [loses_a_few_conditional_writes])
)
def test_a_cluster_lives_where_writes_have_to_be_sent_again(quirk: Callable[[], Quirk]) -> None:
    with store_with(quirk()) as store, l0gc.open(store.url, endpoint_url=store.config.endpoint_url) as cluster:
        cluster.init()
        cluster.topics.create("t", partitions=1)
        assert cluster.upload("t", [b"a", b"b"]).records == 2
        for _ in range(2):
            cluster.advance_epoch()
            cluster.housekeep()
            assert cluster.compute_watermark(scan=False).published
        assert [r.value for r in cluster.read("t")] == [b"a", b"b"]


def test_a_proxy_that_weakens_etags_is_seen_through() -> None:
    with store_with(lambda request: None, weakens=True) as store:
        probe(store, Runtime())
        etag = store.put("k", b"1").etag
        assert etag.startswith('W/"')
        store.put_if_match("k", b"2", etag)
        with pytest.raises(PreconditionFailedError):
            store.put_if_match("k", b"3", etag)


@pytest.mark.parametrize(
    ("weakens", "suspended", "why"),
    [(False, False, "run l0gc doctor"), (True, False, "it is weak"), (False, True, "versioning is suspended")],
)
def test_a_store_that_never_replaces_the_current_version_is_named(*, weakens: bool, suspended: bool, why: str) -> None:
    with store_with(lambda r: 412 if "HTTP_IF_MATCH" in r else None, weakens=weakens) as store:
        if suspended:
            versioned(store, "Suspended")
        store.put("k", b"1")
        for attempt in (lambda: store.put_if_match("k", b"2", store.head("k").etag), lambda: probe(store, Runtime())):
            with pytest.raises(StoreUnfitError, match=why):
                attempt()


def created_with(store: S3Store, quirk: Quirk) -> list[bytes]:
    """Create a bucket at a server with the quirk; return the bodies of the requests that create one."""
    bodies: list[bytes] = []

    def recording(request: Environ) -> int | None:
        if request["REQUEST_METHOD"] != "PUT" or request["PATH_INFO"].count("/") > 1:
            return None
        bodies.append(request["wsgi.input"].read(int(request.get("CONTENT_LENGTH") or 0)))
        request["wsgi.input"] = io.BytesIO(bodies[-1])
        return quirk(request | {"body": bodies[-1]})

    with quirky_s3(recording) as endpoint:
        assert S3Store(msgspec.structs.replace(store.config, endpoint_url=endpoint)).create_bucket()
    return bodies


@pytest.mark.parametrize("region", [None, "us-east-1", "eu-west-1"])
def test_a_bucket_is_created_in_the_region_at_an_endpoint_too(region: str | None) -> None:
    (body,) = created_with(S3Store(StoreConfig(f"bucket-{uuid.uuid4()}", region=region)), lambda request: None)
    assert (b"<LocationConstraint>eu-west-1<" in body) is (region == "eu-west-1")


def test_a_store_without_location_constraints_gets_none() -> None:
    store = S3Store(StoreConfig(f"bucket-{uuid.uuid4()}", region="here"))
    first, second = created_with(store, lambda request: 400 if request["body"] else 200)
    assert (b">here<" in first, second) == (True, b"")


@pytest.mark.parametrize("status", [501, *(pytest.param(s, marks=pytest.mark.thorough) for s in (404, 405))])
def test_a_store_without_versions_is_one_whose_versioning_is_off(status: int) -> None:
    with store_with(lambda r: status if r["QUERY_STRING"] in {"versioning", "versions"} else None) as store:
        assert store.versioning() == OFF
        probe(store, Runtime())
        with l0gc.open(store.url, endpoint_url=store.config.endpoint_url) as cluster:
            cluster.init()
            cluster.topics.create("t", partitions=1)
            assert cluster.sweep(purge_versions=True).versioning == OFF


def test_a_host_that_contains_the_bucket_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *rest, **more: resolve("127.0.0.1", *rest, **more))
    bucket = f"bucket-{uuid.uuid4()}"

    def virtual(request: Environ) -> int | None:
        """Serve buckets as hosts: below such a host, each path is an object's key."""
        within = request["HTTP_HOST"].startswith("bucket-")
        request["HTTP_HOST"] = "127.0.0.1"
        return 404 if within and request["REQUEST_METHOD"] in {"GET", "HEAD"} else None

    with quirky_s3(virtual) as endpoint:
        port = endpoint.rpartition(":")[2]
        right = S3Store(StoreConfig(bucket, "p/", f"http://s3.test:{port}"))
        wrong = S3Store(StoreConfig(bucket, "p/", f"http://{bucket}.s3.test:{port}"))
        with pytest.raises(BucketNotFoundError):
            wrong.now_ms()
        right.create_bucket()
        for attempt in (wrong.now_ms, wrong.create_bucket, lambda: wrong.list("d/")):
            with pytest.raises(UsageError, match=f"give the endpoint as http://s3.test:{port}$"):
                attempt()


def test_the_table_of_requests_has_every_operation_that_is_sent() -> None:
    code = "".join(path.read_text() for path in (ROOT / "l0gc/storage").glob("*.py"))
    sent = set(re.findall(r'(?:"|client\.)((?:get|head|put|list|delete|abort|create)_(?:\w+))', code))
    _, _, table = (ROOT / "docs/first-hour/stores.md").read_text().partition("| request | sent by |")
    table = table.partition("\n\n")[0]
    assert len(sent) > 12
    assert [name for name in sent if not re.search(rf"\b{name.title().replace('_', '')}\b", table)] == []
