"""Requests that fail in transit: the store's reactions, with a proxy that fails requests and a real server."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from l0gc.embedded.seaweedfs import SeaweedFS
from l0gc.errors import AmbiguousWriteError, PreconditionFailedError, StoreSilentError, StoreTimeoutError
from l0gc.runtime import Runtime
from l0gc.storage.config import StoreConfig
from l0gc.storage.log import SharedLog
from l0gc.storage.s3 import S3Store
from tests.support.outcomes import Behaviour, HangAt, HangingFor, Outcome, Request
from tests.support.proxy import Proxy

pytestmark = pytest.mark.weed

LARGE = bytes(range(256)) * (48 << 10)


class Scripted:
    """Gives the first requests these outcomes, one after another, and lets later ones pass."""

    def __init__(self, *outcomes: Outcome) -> None:
        self._outcomes = list(outcomes)

    def decide(self, request: Request) -> Outcome:
        return self._outcomes[request.number - 1] if request.number <= len(self._outcomes) else Outcome.PASS

    def answered(self, request: Request) -> None:
        pass


@pytest.fixture
def direct(bucket: StoreConfig) -> S3Store:
    store = S3Store(bucket)
    store.create_bucket()
    return store


def through(proxy: Proxy, bucket: StoreConfig) -> S3Store:
    return S3Store(msgspec.structs.replace(bucket, endpoint_url=proxy.endpoint_url))


def proxied(weed: SeaweedFS, behaviour: Behaviour) -> Proxy:
    return Proxy(weed.endpoint_url, behaviour)


@pytest.mark.parametrize("outcome", [Outcome.CUT, Outcome.FAIL])
def test_a_write_that_fails_before_the_server_leaves_nothing(
    weed: SeaweedFS, bucket: StoreConfig, direct: S3Store, outcome: Outcome
) -> None:
    with proxied(weed, Scripted(outcome)) as proxy:
        with pytest.raises(AmbiguousWriteError):
            through(proxy, bucket).put_if_absent("k", b"1")
        assert direct.list("").modified_ms == {}
        assert proxy.outcomes == {outcome: 1}


@pytest.mark.parametrize("outcome", [Outcome.CUT_AFTER, Outcome.FAIL_AFTER])
def test_a_write_that_fails_after_the_server_has_landed(
    weed: SeaweedFS, bucket: StoreConfig, direct: S3Store, outcome: Outcome
) -> None:
    with proxied(weed, Scripted(outcome)) as proxy:
        with pytest.raises(AmbiguousWriteError):
            through(proxy, bucket).put_if_absent("k", b"1")
        assert direct.get("k").body == b"1"


@pytest.mark.parametrize(
    "outcome", [Outcome.CUT, Outcome.FAIL, Outcome.SLOW_DOWN, Outcome.SLOW, Outcome.TRUNCATED, Outcome.CUT_AFTER]
)
def test_a_read_survives_each_fault(weed: SeaweedFS, bucket: StoreConfig, direct: S3Store, outcome: Outcome) -> None:
    direct.put("k", LARGE)
    with proxied(weed, Scripted(outcome)) as proxy:
        assert through(proxy, bucket).get("k").body == LARGE
        assert proxy.outcomes == {outcome: 1} if outcome is Outcome.SLOW else {outcome: 1, Outcome.PASS: 1}
    with proxied(weed, Scripted(outcome)) as proxy:
        assert through(proxy, bucket).get_ranges("k", [(1, 1 << 20)]) == [LARGE[1 : 1 + (1 << 20)]]


@pytest.mark.parametrize("client", ["boto3", "obstore"])
def test_a_write_that_is_altered_on_its_way_is_sent_again(
    weed: SeaweedFS, bucket: StoreConfig, direct: S3Store, client: str
) -> None:
    """Hazard 34: the store compares the bytes that arrive with the sender's checksum."""
    with proxied(weed, Scripted(Outcome.ALTERED)) as proxy:
        store = through(proxy, bucket)
        (store.put if client == "boto3" else store.put_bulk)("k", LARGE)
        assert proxy.outcomes == {Outcome.ALTERED: 1, Outcome.PASS: 1}
    assert direct.get("k").body == LARGE


def test_an_altered_append_is_seen_not_to_have_landed(weed: SeaweedFS, bucket: StoreConfig, direct: S3Store) -> None:
    with proxied(weed, Scripted(Outcome.ALTERED)) as proxy:
        with pytest.raises(AmbiguousWriteError, match="BadDigest"):
            through(proxy, bucket).put_if_absent("k", LARGE)
        assert direct.list("").modified_ms == {}


def test_a_request_that_hangs_is_not_sent_again_after_its_deadline(
    weed: SeaweedFS, bucket: StoreConfig, direct: S3Store
) -> None:
    direct.put("k", b"v")
    with proxied(weed, HangAt(1, after=False)) as proxy:
        with pytest.raises(StoreTimeoutError, match=r"no answer within 1 s"):
            through(proxy, msgspec.structs.replace(bucket, timeout_s=4.0)).get("k")
        assert len(proxy.requests) == 2


def test_a_repeated_conditional_write_lands_and_is_said_to_exist(
    weed: SeaweedFS, bucket: StoreConfig, direct: S3Store
) -> None:
    with proxied(weed, Scripted(Outcome.REPEATED)) as proxy, pytest.raises(PreconditionFailedError):
        through(proxy, bucket).put_if_absent("a", b"first")
    assert direct.get("a").body == b"first"


def test_an_append_that_a_proxy_repeats_lands_once(weed: SeaweedFS, bucket: StoreConfig, direct: S3Store) -> None:
    """The entry lands once even if the first reads of its owner fail."""
    with proxied(weed, Scripted(Outcome.REPEATED, Outcome.FAIL, Outcome.FAIL)) as proxy:
        log = SharedLog(through(proxy, bucket), "log/", Runtime())
        landed = log.append(0, b"entry", time_ms=0, as_of_ms=direct.now_ms())
    assert (landed.offset, SharedLog(direct, "log/", Runtime()).get(0).payload) == (0, b"entry")


def test_a_file_of_several_parts_is_stored_whole(direct: S3Store, tmp_path: Path) -> None:
    """The request that completes the upload repeats the checksums from the answers to its parts."""
    content = bytes(range(256)) * (9 << 12)
    (tmp_path / "large").write_bytes(content)
    direct.put_file("large", tmp_path / "large")
    assert direct.get("large").body == content


@pytest.mark.parametrize(
    ("operation", "ask"),
    [
        ("GetObject", lambda s: s.get("a/k")),
        ("GetObject", lambda s: s.get_ranges("a/k", [(0, 1)])),
        ("PutObject", lambda s: s.put_bulk("a/k", b"v")),
        ("ListObjectsV2", lambda s: [*s.scan("a/")]),
        ("DeleteObjects", lambda s: s.delete(["a/k"])),
    ],
)
def test_requests_of_a_kind_that_hang_end_together(
    weed: SeaweedFS, bucket: StoreConfig, direct: S3Store, operation: str, ask: Callable[[S3Store], object]
) -> None:
    direct.put("a/k", b"v")
    with proxied(weed, HangingFor(operation)) as proxy:
        store = through(proxy, msgspec.structs.replace(bucket, timeout_s=4.0))
        with contextlib.suppress(StoreTimeoutError, StoreSilentError):
            ask(store)
        with pytest.raises(StoreSilentError, match="left requests unanswered for 4s in total"):
            ask(store)
        sent = len(proxy.requests)
        with pytest.raises(StoreSilentError):
            ask(store)
        assert len(proxy.requests) == sent
        assert store.head("a/k").size == 1


def test_an_append_that_a_silent_store_was_not_sent_is_refused(
    weed: SeaweedFS, bucket: StoreConfig, direct: S3Store
) -> None:
    """Nothing was sent, so nothing is ambiguous: the command can be run again with the same input."""
    with proxied(weed, HangingFor("PutObject")) as proxy:
        store = through(proxy, msgspec.structs.replace(bucket, timeout_s=4.0))
        log = SharedLog(store, "log/", Runtime())
        for _ in range(5):
            with contextlib.suppress(AmbiguousWriteError, StoreSilentError):
                store.put_if_absent("k", b"1")
        sent = len(proxy.requests)
        with pytest.raises(StoreSilentError):
            log.append(0, b"entry", time_ms=0, as_of_ms=direct.now_ms())
        assert len(proxy.requests) == sent
