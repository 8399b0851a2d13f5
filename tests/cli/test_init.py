"""`l0gc init` founds a cluster or refuses, and a refusal leaves nothing behind."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import boto3
import pytest

from l0gc.errors import EpochRegressionError, StoreUnfitError, UsageError
from l0gc.keys import CONTROLLER_LOG, FORMAT, PUBLISHED_WATERMARK, journal_log
from l0gc.storage.config import StoreConfig
from l0gc.storage.entry import unseal
from l0gc.storage.s3 import S3Store
from tests.support.cli import l0gc
from tests.support.tries import sampled

BUCKET = "founded-here"
URL = f"s3://{BUCKET}/c"


@pytest.fixture(autouse=True)
def aws(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("AWS_ENDPOINT_URL", "L0GC_URL", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    yield
    for bucket in buckets():
        for key in keys():
            client().delete_object(Bucket=bucket, Key=key)
        client().delete_bucket(Bucket=bucket)


def client() -> Any:
    return boto3.client("s3", region_name="us-east-1", endpoint_url=os.environ["AWS_ENDPOINT_URL_S3"])


def the_store() -> S3Store:
    return S3Store(StoreConfig.from_url(URL, endpoint_url=os.environ["AWS_ENDPOINT_URL_S3"]))


def buckets() -> list[str]:
    """Return the buckets of these tests; other tests of this process share the server's memory."""
    return [b["Name"] for b in client().list_buckets()["Buckets"] if b["Name"] == BUCKET]


def keys() -> list[str]:
    return [o["Key"] for o in client().list_objects_v2(Bucket=BUCKET).get("Contents", [])]


def ignore_conditions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(S3Store, "put_if_absent", lambda self, key, body: self.put(key, body))


def test_init_founds_a_cluster_and_run_again_changes_nothing() -> None:
    first = l0gc("init", "--url", URL, "--create-bucket", "--shards", "4")
    before = keys()
    again = l0gc("init", "--url", URL, "--create-bucket")
    assert (first["created"], again["created"]) == (True, False)
    assert first["cluster_id"] == again["cluster_id"]
    assert keys() == before
    assert f"c/{FORMAT}" in before
    assert not [k for k in before if "probe" in k]


def test_a_refused_init_removes_the_bucket_it_created(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ignore_conditions(monkeypatch)
    with pytest.raises(StoreUnfitError):
        l0gc("init", "--url", URL, "--create-bucket")
    assert buckets() == []


def test_a_refused_store_keeps_a_bucket_that_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    client().create_bucket(Bucket=BUCKET)
    ignore_conditions(monkeypatch)
    with pytest.raises(StoreUnfitError):
        l0gc("init", "--url", URL, "--create-bucket")
    assert buckets() == [BUCKET]
    assert keys() == []


def test_a_refused_layout_leaves_nothing_either() -> None:
    with pytest.raises(UsageError):
        l0gc("init", "--url", URL, "--create-bucket", "--key-template", "level_zero/{epoch:018}")
    assert buckets() == []


def test_every_process_sends_unquoted_etags_to_a_store_that_needs_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = S3Store.put_if_match

    def ceph(self: S3Store, key: str, body: bytes, etag: str) -> object:
        return real(self, key, body, '"wrong"' if self.quotes_etags else etag)

    monkeypatch.setattr(S3Store, "put_if_match", ceph)
    probed = l0gc("init", "--url", URL, "--create-bucket", "--shards", "4")["probed"]
    assert "conditional replace (ETags without quotes)" in probed
    store = the_store()
    assert json.loads(unseal(FORMAT, store.get(FORMAT).body))["etags"] == "plain"


@pytest.mark.parametrize("left", sampled(["a journal", "a watermark"], ["a journal"]))
def test_no_cluster_is_founded_where_one_has_lost_its_controller_log(left: str) -> None:
    """Hazard 10: the new log would issue epochs again that journals and M have seen."""
    l0gc("init", "--url", URL, "--create-bucket", "--shards", "4")
    store = the_store()
    store.delete(list(store.list(CONTROLLER_LOG).modified_ms))
    key = f"{journal_log(0)}log/{0:020}" if left == "a journal" else PUBLISHED_WATERMARK
    store.put(key, b"of the cluster before")
    before = keys()
    with pytest.raises(
        EpochRegressionError, match=f"controller log is gone, but {key} of a cluster that was founded here before"
    ) as e:
        l0gc("init", "--url", URL)
    assert e.value.exit_code == 4
    assert keys() == before
    store.delete([key])
    assert l0gc("init", "--url", URL, "--shards", "4")["created"]
