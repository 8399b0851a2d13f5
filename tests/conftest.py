"""What tests share: a clean environment, one SeaweedFS for those that need a server, a fresh bucket for each of them."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator

import pytest

from l0gc.embedded.seaweedfs import SeaweedFS
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c_is_heard() -> None:
    """A shell that starts the tests in the background has SIGINT ignored, and every command here would inherit that."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the user's reaches a test."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "L0GC_")):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def weed() -> Iterator[SeaweedFS]:
    """A server for the whole run."""
    with SeaweedFS() as server:
        yield server


@pytest.fixture
def bucket(weed: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> StoreConfig:
    """A bucket that does not exist yet, which the environment names as the cluster's place."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    for key, value in weed.environment().items():
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("L0GC_URL", f"s3://{name}/some/prefix")
    return StoreConfig(name, "some/prefix/", weed.endpoint_url, weed.region)


@pytest.fixture
def store(bucket: StoreConfig) -> S3Store:
    return S3Store(bucket)
