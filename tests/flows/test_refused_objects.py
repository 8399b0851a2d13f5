"""A real server that refuses one object: the others are lifted and merged, every view continues, and the exit code is
3.

`tests/streamlog/level_one/test_refused_objects.py` tries every kind of refusal, without a server and in more detail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import pytest

from l0gc.storage.s3 import S3Store
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.journal.topic import l1_key
from tests.support.cli import ended_here, founded
from tests.support.outcomes import Behaviour, Outcome, Passing, Refusal, Request
from tests.support.proxy import Proxy
from tests.support.reconcile import files, partition_of, put, unreconciled

pytestmark = pytest.mark.weed

PARTITIONS = 4
BAD = 1

Way = Outcome | Refusal | Callable[[bytes], bytes]
AT_ONCE: dict[str, Way] = {
    "AccessDenied": Refusal(403, "AccessDenied"),
    "InvalidObjectState": Refusal(403, "InvalidObjectState"),
    "KMS.DisabledException": Refusal(400, "KMS.DisabledException"),
    "NoSuchKey": Refusal(404, "NoSuchKey"),
    "InvalidRange": Refusal(416, "InvalidRange"),
    "short": lambda body: body[:-1],
}
AFTER_RETRIES: dict[str, Way] = {
    "InternalError": Refusal(500, "InternalError"),
    "OperationAborted": Refusal(409, "OperationAborted"),
    "cut in the body": Outcome.TRUNCATED,
}
"""Refusals that clients retry, with pauses, before they fail."""
WAYS = AT_ONCE | AFTER_RETRIES
QUICK = "InvalidObjectState"
"""The only refusal that `make test` tries."""
SAID = {
    "InvalidObjectState": "was archived (InvalidObjectState): restore it with aws s3api restore-object",
    "KMS.DisabledException": "the key that encrypts",
    "AccessDenied": "check the credentials, and that they allow s3:GetObject",
    "NoSuchKey": "does not exist",
}


class Refusing:
    """Refuses every read of `key`."""

    def __init__(self, key: str, way: Outcome | Refusal) -> None:
        self.key, self.way = key, way

    def decide(self, request: Request) -> Outcome | Refusal:
        reads = request.operation in ("GetObject", "HeadObject")
        return self.way if reads and request.key.endswith(self.key) else Outcome.PASS

    def answered(self, request: Request) -> None:
        pass


@contextmanager
def refusing(store: S3Store, key: str, way: Way, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give the commands a server that refuses this object."""
    behaviour: Behaviour = Passing()
    if isinstance(way, Outcome | Refusal):
        behaviour = Refusing(key, way)
    else:
        store.put(key, way(store.get(key).body))
    assert store.config.endpoint_url is not None
    with Proxy(store.config.endpoint_url, behaviour) as proxy, monkeypatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL_S3", proxy.endpoint_url)
        yield


@pytest.mark.parametrize("name", [n if n == QUICK else pytest.param(n, marks=pytest.mark.thorough) for n in WAYS])
def test_everything_but_one_refused_l0_object_goes_on(
    store: S3Store, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    founded(PARTITIONS)
    cluster = ClusterHandles(store)
    keys = put(cluster, "events", *({p: [b"%d" % p]} for p in range(PARTITIONS)))
    with refusing(store, keys[BAD], WAYS[name], monkeypatch):
        ended = ended_here("reconcile", "--json")
        assert ended.code == 3
        (error,) = ended.data["errors"]
        assert SAID.get(name, keys[BAD]) in error
        assert f"it holds events/{BAD}" in error
        assert ended.data["records"] == PARTITIONS - 1
        assert ended_here("status", "--json").data["next"]
        verified = ended_here("verify", "--deep", "--engine", "local", "--json")
        if name != "NoSuchKey":  # the listing shows that the key exists
            assert [f["key"] for f in verified.data["findings"]] == [keys[BAD]]
        assert ended_here("give-up", "--object", keys[BAD], "--yes", "--force-readable").code == 0
        assert ended_here("reconcile").code == 0
    assert not any(unreconciled(cluster, "events", p) for p in range(PARTITIONS))


@pytest.mark.parametrize("name", [QUICK, pytest.param("InternalError", marks=pytest.mark.thorough)])
def test_a_merge_goes_on_without_the_partition_of_a_refused_l1_object(
    store: S3Store, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    founded(PARTITIONS)
    cluster = ClusterHandles(store)
    for n in range(5):
        put(cluster, "events", {p: [b"%d/%d" % (p, n)] for p in range(PARTITIONS)})
        assert ended_here("reconcile", "--engine", "local").code == 0
    before = files(cluster, "events", BAD)
    with refusing(store, l1_key(partition_of(cluster, "events", BAD), before[2]), WAYS[name], monkeypatch):
        ended = ended_here("merge", "--engine", "local", "--json")
    assert (ended.code, ended.data["merged"]["partitions"], len(ended.data["errors"])) == (3, PARTITIONS - 1, 1)
    assert files(cluster, "events", BAD) == before


def test_a_server_that_refuses_every_object_ends_the_run_at_once(
    store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    founded(PARTITIONS)
    cluster = ClusterHandles(store)
    put(cluster, "events", *({p: [b"%d" % p]} for p in range(PARTITIONS)))
    with refusing(store, "", Refusal(403, "AccessDenied"), monkeypatch):
        ended = ended_here("reconcile")
    assert ended.code == 1
    assert "check the credentials, and that they allow s3:GetObject" in ended.stderr
    assert unreconciled(ClusterHandles(S3Store(msgspec.structs.replace(store.config))), "events", 0) == 1
