"""The proxy before a real server: what it lets through is what the server says, and each fault is what it says it is."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from l0gc.embedded.seaweedfs import SeaweedFS
from l0gc.errors import AccessDeniedError, AmbiguousWriteError, ObjectNotFoundError, PreconditionFailedError, StoreError
from l0gc.runtime import Runtime
from l0gc.storage.config import StoreConfig
from l0gc.storage.log import SharedLog
from l0gc.storage.s3 import S3Store
from tests.support.fates import Behaviour, DieAt, Fate, Faults, KillAt, Request
from tests.support.proxy import Proxy

pytestmark = pytest.mark.weed

LARGE = bytes(range(256)) * (48 << 10)


class Scripted:
    """The fates of the first requests, in turn; those behind them pass."""

    def __init__(self, *fates: Fate) -> None:
        self._fates = list(fates)

    def decide(self, request: Request) -> Fate:
        return self._fates[request.number - 1] if request.number <= len(self._fates) else Fate.PASS

    def answered(self, request: Request) -> None:
        pass


@pytest.fixture
def direct(bucket: StoreConfig) -> S3Store:
    store = S3Store(bucket)
    store.create_bucket()
    return store


def through(proxy: Proxy, bucket: StoreConfig) -> S3Store:
    return S3Store(replace(bucket, endpoint_url=proxy.endpoint_url))


def proxied(weed: SeaweedFS, behaviour: Behaviour | None = None, *, clock_ahead_s: int = 0) -> Proxy:
    return Proxy(weed.endpoint_url, behaviour, clock_ahead_s=clock_ahead_s)


def test_what_passes_is_unchanged_and_named(
    weed: SeaweedFS, bucket: StoreConfig, direct: S3Store, tmp_path: Path
) -> None:
    with proxied(weed) as proxy:
        store = through(proxy, bucket)
        store.put_if_absent("a b+ä", b"1")
        with pytest.raises(PreconditionFailedError):
            store.put_if_absent("a b+ä", b"2")
        store.put_if_match("a b+ä", b"3", store.get("a b+ä").etag)
        assert direct.get("a b+ä").body == b"3"
        with pytest.raises(ObjectNotFoundError):
            store.get("missing")
        assert list(store.list("").modified_ms) == ["a b+ä"]
        assert [k for page in store.scan("") for k in page.keys] == ["a b+ä"]
        assert store.delete(["a b+ä"]) == []
        assert list(direct.list("").modified_ms) == []
        assert abs(store.now_ms() - direct.now_ms()) <= 2000
        key = f"{bucket.prefix}a b+ä"
        assert [str(r) for r in proxy.requests] == [
            f"PutObject if-none-match {key}",
            f"PutObject if-none-match {key}",
            f"GetObject {key}",
            f"PutObject if-match {key}",
            f"GetObject {bucket.prefix}missing",
            f"ListObjectsV2 {bucket.prefix}",
            f"ListObjectsV2 {bucket.prefix}",
            "DeleteObjects",
            "HeadBucket",
        ]
        assert [r.number for r in proxy.requests] == list(range(1, 10))

        file = tmp_path / "large"
        file.write_bytes(LARGE)
        store.put("put", LARGE)
        store.put_file("file", file)
        assert direct.get("put").body == direct.get("file").body == store.get("put").body == LARGE
        assert store.get_ranges("file", [(5, 9), (len(LARGE) - 3, 3)]) == [LARGE[5:14], LARGE[-3:]]


def test_requests_at_once_have_numbers_of_their_own(weed: SeaweedFS, bucket: StoreConfig, direct: S3Store) -> None:
    with proxied(weed) as proxy:
        store = through(proxy, bucket)
        store.now_ms()  # builds the client, which several threads then share
        threads = [threading.Thread(target=store.put, args=(f"k{i}", b"x")) for i in range(12)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        proxy.settle()
        assert sorted(r.number for r in proxy.requests) == list(range(1, 14))
        assert len(direct.list("").modified_ms) == 12


@pytest.mark.parametrize("fate", [Fate.CUT, Fate.FAIL])
def test_a_write_that_fails_before_the_server_leaves_nothing(
    weed: SeaweedFS, bucket: StoreConfig, direct: S3Store, fate: Fate
) -> None:
    with proxied(weed, Scripted(fate)) as proxy:
        with pytest.raises(AmbiguousWriteError):
            through(proxy, bucket).put_if_absent("k", b"1")
        assert direct.list("").modified_ms == {}
        assert proxy.fates == {fate: 1}


@pytest.mark.parametrize("fate", [Fate.CUT_AFTER, Fate.FAIL_AFTER])
def test_a_write_that_fails_after_the_server_has_landed(
    weed: SeaweedFS, bucket: StoreConfig, direct: S3Store, fate: Fate
) -> None:
    with proxied(weed, Scripted(fate)) as proxy:
        with pytest.raises(AmbiguousWriteError):
            through(proxy, bucket).put_if_absent("k", b"1")
        assert direct.get("k").body == b"1"


@pytest.mark.parametrize("fate", [Fate.CUT, Fate.FAIL, Fate.SLOW_DOWN, Fate.SLOW, Fate.TRUNCATED, Fate.CUT_AFTER])
def test_a_read_survives_each_fault(weed: SeaweedFS, bucket: StoreConfig, direct: S3Store, fate: Fate) -> None:
    direct.put("k", LARGE)
    with proxied(weed, Scripted(fate)) as proxy:
        assert through(proxy, bucket).get("k").body == LARGE
        assert proxy.fates == {fate: 1} if fate is Fate.SLOW else {fate: 1, Fate.PASS: 1}
    with proxied(weed, Scripted(fate)) as proxy:
        assert through(proxy, bucket).get_ranges("k", [(1, 1 << 20)]) == [LARGE[1 : 1 + (1 << 20)]]


@pytest.mark.parametrize("after", [False, True])
def test_a_dead_server_refuses_everything_from_its_last_request_on(
    weed: SeaweedFS, bucket: StoreConfig, direct: S3Store, after: bool
) -> None:
    with proxied(weed, DieAt(2, after=after)) as proxy:
        store = through(proxy, bucket)
        store.put("k1", b"1")
        for key in ("k2", "k3"):
            with pytest.raises(AccessDeniedError):
                store.put(key, b"1")
        assert list(direct.list("").modified_ms) == (["k1", "k2"] if after else ["k1"])


@pytest.mark.parametrize("after", [False, True])
def test_a_process_is_killed_at_its_nth_request(
    weed: SeaweedFS, bucket: StoreConfig, direct: S3Store, after: bool
) -> None:
    code = (
        "import sys; from l0gc.storage.s3 import *\n"
        f"s = S3Store(StoreConfig({bucket.bucket!r}, {bucket.prefix!r}, sys.argv[1], 'us-east-1'))\n"
        "[s.put(f'k{i}', b'x') for i in range(9)]"
    )
    pids: list[int] = []
    behaviour = KillAt(3, after=after, pid=lambda: pids[0])
    with proxied(weed, behaviour) as proxy:
        process = subprocess.Popen([sys.executable, "-c", code, proxy.endpoint_url], env=dict(os.environ))
        pids.append(process.pid)
        try:
            assert process.wait(60) == -9
        finally:
            process.kill()
        proxy.settle()
        assert str(behaviour.fired) == f"PutObject {bucket.prefix}k2"
        assert list(direct.list("").modified_ms) == ["k0", "k1", *(["k2"] if after else [])]


def test_the_clock_that_it_tells_can_be_ahead(weed: SeaweedFS, bucket: StoreConfig, direct: S3Store) -> None:
    with proxied(weed, clock_ahead_s=1200) as proxy:
        assert 1_190_000 < through(proxy, bucket).now_ms() - direct.now_ms() < 1_210_000


def test_a_seed_chooses_the_faults() -> None:
    def fates(seed: int) -> list[Fate]:
        return [Faults(seed, 0.2).decide(Request(n, "GetObject", "k")) for n in range(1, 400)]

    assert fates(1) == fates(1) != fates(2)
    assert set(fates(1)) == {Fate.PASS, *Faults.KINDS}
    assert 0.1 < 1 - fates(1).count(Fate.PASS) / 399 < 0.3


def test_an_outage_fails_every_request_of_a_stretch() -> None:
    faults, length = Faults(1, 0.0, 0.2), Faults.OUTAGE_REQUESTS
    stretches = [
        {faults.decide(Request(n, "GetObject", "k")) for n in range(i * length, (i + 1) * length)} for i in range(200)
    ]
    assert all(len(s) == 1 for s in stretches)
    assert 20 < sum(s != {Fate.PASS} for s in stretches) < 60


def test_a_stopped_proxy_takes_no_more_requests(weed: SeaweedFS, bucket: StoreConfig, direct: S3Store) -> None:
    proxy = proxied(weed).start()
    store = through(proxy, bucket)
    ask: Callable[[], object] = store.once.list_buckets  # tries once
    ask()
    proxy.stop()
    with pytest.raises(Exception, match=r"Could not connect|Connection was closed"):
        ask()
    with pytest.raises(StoreError):
        store.put_if_absent("k", b"")
    assert direct.list("").modified_ms == {}


def test_a_repeated_conditional_write_lands_and_is_said_to_exist(
    weed: SeaweedFS, bucket: StoreConfig, direct: S3Store
) -> None:
    with proxied(weed, Scripted(Fate.REPEATED)) as proxy, pytest.raises(PreconditionFailedError):
        through(proxy, bucket).put_if_absent("a", b"first")
    assert direct.get("a").body == b"first"


def test_an_append_that_a_proxy_repeats_lands_once(weed: SeaweedFS, bucket: StoreConfig, direct: S3Store) -> None:
    """Also where the look at the owner fails at first."""
    with proxied(weed, Scripted(Fate.REPEATED, Fate.FAIL, Fate.FAIL)) as proxy:
        log = SharedLog(through(proxy, bucket), "log/", Runtime())
        landed = log.append(0, b"entry", time_ms=0, as_of_ms=direct.now_ms())
    assert (landed.offset, SharedLog(direct, "log/", Runtime()).get(0).payload) == (0, b"entry")
