"""The credentials that go to the executors."""

from __future__ import annotations

from pathlib import Path

import pytest
from botocore.credentials import Credentials

from l0gc.errors import AccessDeniedError
from l0gc.spark.handles import ClusterAddress, cluster_at, for_executors
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store

KEYS = {"AWS_ACCESS_KEY_ID": "AKIA-DRIVER", "AWS_SECRET_ACCESS_KEY": "driver-secret"}


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Provide a machine without credentials."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def keys(nobody: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


def a_store(region: str | None = None) -> S3Store:
    return S3Store(StoreConfig("bucket", region=region))


def with_credentials_of(method: str) -> S3Store:
    store = a_store()
    store.access.session._credentials = Credentials("AKIA-ROLE", "role-secret", "role-token", method)  # type: ignore[attr-defined]
    return store


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("send", [None, True])
def test_keys_are_sent_with_the_region(send: bool | None) -> None:
    sent = for_executors(a_store("eu-central-1"), send)
    assert sent.items() >= (KEYS | {"AWS_DEFAULT_REGION": "eu-central-1"}).items()


@pytest.mark.usefixtures("keys")
def test_nothing_is_sent_against_the_users_wish() -> None:
    assert for_executors(a_store(), send=False) == {}


@pytest.mark.usefixtures("nobody")
def test_a_driver_without_credentials_sends_none_and_refuses_if_they_were_requested() -> None:
    assert for_executors(a_store()) == {}
    with pytest.raises(AccessDeniedError, match="--send-credentials"):
        for_executors(a_store(), send=True)


@pytest.mark.usefixtures("nobody")
@pytest.mark.parametrize("method", ["iam-role", "container-role", "assume-role-with-web-identity"])
def test_a_role_that_comes_with_the_machine_is_sent_only_if_requested(method: str) -> None:
    assert for_executors(with_credentials_of(method)) == {}
    assert for_executors(with_credentials_of(method), send=True)["AWS_SESSION_TOKEN"] == "role-token"


@pytest.mark.usefixtures("nobody")
@pytest.mark.parametrize("method", ["env", "shared-credentials-file", "sso", "assume-role", "custom-process"])
def test_what_comes_from_elsewhere_is_sent(method: str) -> None:
    assert for_executors(with_credentials_of(method))["AWS_ACCESS_KEY_ID"] == "AKIA-ROLE"


@pytest.mark.usefixtures("keys")
def test_an_executor_takes_what_was_sent_whatever_it_has_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = for_executors(a_store())
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA-OWN")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "own-token")
    monkeypatch.setenv("AWS_SECURITY_TOKEN", "own-token")
    for name, value in sent.items():
        monkeypatch.setenv(name, value)
    store = cluster_at(ClusterAddress(StoreConfig("bucket", profile="one-that-only-the-driver-has"))).store
    assert isinstance(store, S3Store)
    credentials = store.access.session.get_credentials()
    assert credentials is not None
    keys = credentials.get_frozen_credentials()
    assert (keys.access_key, keys.secret_key) == tuple(KEYS.values())
    assert not keys.token
