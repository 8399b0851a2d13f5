"""Credentials of every kind come from botocore; both clients use them, and renew them in time or after they have
expired.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha1
from pathlib import Path

import pytest
from botocore.credentials import Credentials

from l0gc.errors import AccessDeniedError, ObjectNotFoundError
from l0gc.storage.config import StoreConfig
from l0gc.storage.objectstore import PAGE_SIZE
from l0gc.storage.s3 import S3Store
from tests.support.certificates import Authority
from tests.support.proxy import HOST, Proxy
from tests.support.recorder import Recorder
from tests.support.sessions import Sessions
from tests.support.tries import sampled

STS = {"AWS_ENDPOINT_URL_STS": "{sessions}", "AWS_REGION": "eu-west-1"}
ROLE = "arn:aws:iam::123456789012:role/sweeper"
KINDS: dict[str, tuple[dict[str, str], str]] = {
    "environment": (
        {"AWS_ACCESS_KEY_ID": "SESSION0001", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "token-0001"}, "",
    ),
    "profile": (
        {}, "aws_access_key_id = SESSION0001\naws_secret_access_key = s\naws_session_token = token-0001",
    ),
    "process": ({}, "credential_process = cat {folder}/process.json"),
    "container": ({"AWS_CONTAINER_CREDENTIALS_FULL_URI": "{sessions}"}, ""),
    "web identity": ({**STS, "AWS_ROLE_ARN": ROLE, "AWS_WEB_IDENTITY_TOKEN_FILE": "{folder}/token"}, ""),
    "role of another profile": (STS, f"role_arn = {ROLE}\nsource_profile = base"),
    "role of another profile, by the old endpoint": (
        STS, f"sts_regional_endpoints = legacy\nrole_arn = {ROLE}\nsource_profile = base",
    ),
    "single sign-on": (
        {"AWS_ENDPOINT_URL_SSO": "{sessions}"},
        "sso_start_url = https://d.test\nsso_region = eu-west-1\nsso_account_id = 123456789012\nsso_role_name = sweeper",
    ),
}  # fmt: skip


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def server(authority: Authority) -> Iterator[Recorder]:
    with Recorder("server", authority) as recorder:
        yield recorder


@pytest.mark.parametrize("kind", KINDS)
def test_both_clients_use_credentials_of_every_kind(
    kind: str, server: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment, profile = KINDS[kind]
    with Sessions(seconds=3600) as sessions:
        known = {"sessions": sessions.url, "folder": str(tmp_path)}
        (tmp_path / "token").write_text("a-token")
        base = "[profile base]\naws_access_key_id = BASE\naws_secret_access_key = s\n"
        (tmp_path / "config").write_text(f"{base}[profile p]\n{profile.format_map(known)}\n")
        issued = {"AccessKeyId": "SESSION0001", "SecretAccessKey": "s", "SessionToken": "token-0001"}
        (tmp_path / "process.json").write_text(
            json.dumps(issued | {"Version": 1, "Expiration": "2126-01-01T00:00:00Z"})
        )
        login = {"accessToken": "a-token", "expiresAt": "2126-01-01T00:00:00Z"}
        name = sha1(b"https://d.test", usedforsecurity=False).hexdigest()
        (tmp_path / f"{name}.json").write_text(json.dumps(login))
        monkeypatch.setattr("botocore.credentials.SSOProvider._SSO_TOKEN_CACHE_DIR", str(tmp_path))
        for variable, value in {"AWS_CONFIG_FILE": "{folder}/config", **environment}.items():
            monkeypatch.setenv(variable, value.format_map(known))
        store = S3Store(StoreConfig("bucket", "", server.url, profile="p" if profile else None))
        store.get("k")
        store.get_ranges("k", [(0, 1)])
    assert {(s.key_id, s.token) for s in server.seen} == {("SESSION0001", "token-0001")}
    assert len(server.seen) == 2


def test_obstore_asks_for_new_credentials_before_botocores_own_end(
    server: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """obstore asks 5 minutes before that end."""
    with Sessions(seconds=300.8) as sessions:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", sessions.url)
        store = S3Store(StoreConfig("bucket", "", server.url))
        for wait in (0, 0, 1):
            time.sleep(wait)
            store.get_ranges("k", [(0, 1)])
    first, second, third = (s.key_id for s in server.seen)
    assert first == second < third


Use = Callable[[S3Store], object]
USES: dict[str, Use] = {
    "get": lambda s: s.get("k"),
    "head": lambda s: s.head("k"),
    "clock": lambda s: s.now_ms(),
    "put": lambda s: s.put("k2", b"x"),
    "create": lambda s: s.put_if_absent("k3", b"x"),
    "list": lambda s: s.list("d/"),
    "ranges": lambda s: s.get_ranges("k", [(0, 1), (2, 1)]),
    "scan": lambda s: list(s.scan("d/")),
    "delete": lambda s: s.delete(["gone"]),
    "delete once": lambda s: s.delete_once(["gone"]),
    "put in bulk": lambda s: s.put_bulk("k4", b"x"),
    "file": lambda s: s.put_file("k5", Path(__file__)),
}


@pytest.fixture
def ending(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[S3Store, Sessions]]:
    """Return a store whose current session has ended an hour before its stated end, and the sessions' server."""
    with Sessions(seconds=3600) as sessions:
        admit = partial(sessions.admit, Credentials("any", "key"), "us-east-1")
        with Proxy(endpoint, admit=admit) as proxy:
            monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", sessions.url)
            store = S3Store(StoreConfig("ending", "p/", proxy.endpoint_url))
            store.create_bucket()
            store.put("k", b"abc")
            store.get_ranges("k", [(0, 1)])
            sessions.end()
            yield store, sessions


@pytest.mark.parametrize("use", sampled(USES, ["get", "put", "scan", "put in bulk"]))
def test_an_expired_session_is_renewed_for_any_request(use: str, ending: tuple[S3Store, Sessions]) -> None:
    store, sessions = ending
    USES[use](store)
    assert (sessions.issued, bool(sessions.expired)) == (2, True)
    assert store.access.bulk is not None


@pytest.mark.parametrize("use", sampled(USES, ["get", "scan", "delete once", "put in bulk"]))
def test_a_session_that_expires_at_once_is_renewed_once(use: str, ending: tuple[S3Store, Sessions]) -> None:
    store, sessions = ending
    sessions.requests = 0
    with pytest.raises(AccessDeniedError, match=r"have expired \(ExpiredToken\): get new ones"):
        USES[use](store)
    assert sessions.issued <= 3


@pytest.mark.thorough
def test_a_listing_goes_on_behind_the_last_key_when_its_session_ends(ending: tuple[S3Store, Sessions]) -> None:
    store, sessions = ending
    keys = [f"d/{n:04}" for n in range(PAGE_SIZE + 50)]
    for key in keys:
        store.put(key, b"x")
    pages = store.scan("d/")
    listed = next(pages).keys
    sessions.end()
    assert listed + [k for page in pages for k in page.keys] == keys


# -- requests that obstore does not support --------------------------------------------------------------------------------
# ------------------------------------------------------------------------------------------


def test_a_server_that_only_boto3_trusts_is_used_by_boto3(
    endpoint: str, authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """OpenSSL accepts a self-signed certificate like that of MinIO's guide; rustls refuses it, since it is an
    authority's.
    """
    monkeypatch.setattr("l0gc.storage.bulk.ATTEMPTS", 0)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    with Proxy(endpoint, tls=authority.alone(HOST)) as proxy:
        monkeypatch.setenv("AWS_CA_BUNDLE", str(authority.bundle))
        store = S3Store(StoreConfig("trusted", "p/", proxy.endpoint_url))
        store.create_bucket()
        store.put("d/k", b"abcdef")
        assert store.access.bulk is not None
        with caplog.at_level("INFO", "l0gc"):
            assert [page.keys for page in store.scan("d/")] == [["d/k"]]
            assert store.get_ranges("d/k", [(1, 2), (4, 1)]) == [b"bc", b"e"]
        assert store.access.obstacle.startswith("list of s3://trusted/p/: ")
        assert [m for m in caplog.messages if m.startswith("boto3 lists and reads, not obstore: list of")] != []


RANGES = [
    [(0, 1)],
    [(5, 3), (0, 2), (6, 1)],
    [(0, 10), (2_500_000, 10), (2_600_000, 5), (1, 3)],
    [(2_999_990, 10), (2_999_995, 5)],
    [],
]


@pytest.mark.parametrize("ranges", sampled(RANGES, RANGES[1:3]))
def test_boto3_alone_reads_the_same_ranges(
    ranges: list[tuple[int, int]], endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    store = S3Store(StoreConfig("ranges", "p/", endpoint))
    store.create_bucket()
    body = bytes(n % 251 for n in range(3_000_000))
    store.put("k", body)
    assert store.access.bulk is not None
    monkeypatch.setenv("AWS_CHECKSUM_ALGORITHM", "SHA256")
    alone = S3Store(StoreConfig("ranges", "p/", endpoint))
    assert alone.access.bulk is None
    expected = [body[start : start + length] for start, length in ranges]
    assert store.get_ranges("k", ranges) == alone.get_ranges("k", ranges) == expected
    real = alone.client.get_object
    monkeypatch.setattr(alone.client, "get_object", lambda Bucket, Key, Range: real(Bucket=Bucket, Key=Key))
    assert alone.get_ranges("k", ranges) == expected
    with pytest.raises(ObjectNotFoundError):
        alone.get_ranges("none", [(0, 1)])
