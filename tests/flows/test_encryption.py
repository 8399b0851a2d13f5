"""A bucket that demands a KMS key with each write: every command, both clients and executors send it."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import l0gc as library
from l0gc.errors import AccessDeniedError, UsageError
from l0gc.integrations.iceberg.encrypted import _Body
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store
from tests.support.cli import founded, l0gc, printed
from tests.support.quirky_s3 import quirky_s3, wants_encryption
from tests.support.tables import configure, sql_catalog

KEY = {"L0GC_SSE": "aws:kms", "L0GC_SSE_KMS_KEY_ID": "key-1"}


@pytest.fixture
def demanding(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with quirky_s3(wants_encryption) as endpoint:
        for name, value in {
            "AWS_ACCESS_KEY_ID": "id",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ENDPOINT_URL_S3": endpoint,
            "L0GC_URL": f"s3://bucket-{uuid.uuid4()}/p",
        }.items():
            monkeypatch.setenv(name, value)
        yield endpoint


def loop(tmp_path: Path, engine: str) -> None:
    (tmp_path / "records").write_bytes(b"one\ntwo\n")
    founded()
    l0gc("upload", "events", str(tmp_path / "records"))
    l0gc("gc", "--housekeep-barrier", "--engine", engine)
    l0gc("pin", "create", "held")
    l0gc("pause", "--why", "a test")
    l0gc("resume")
    assert l0gc("doctor")["failures"] == 0
    assert sorted(printed("read", "events").splitlines()) == [b"one", b"two"]


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("engine", ["local", pytest.param("spark", marks=pytest.mark.spark)])
def test_every_write_carries_the_encryption(
    engine: str, demanding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in KEY.items():
        monkeypatch.setenv(name, value)
    loop(tmp_path, engine)


def test_both_clients_and_uploads_in_parts_send_it(demanding: str, tmp_path: Path) -> None:
    config = StoreConfig.from_url(
        f"s3://bucket-{uuid.uuid4()}/p", endpoint_url=demanding, sse="aws:kms", sse_kms_key_id="key-1"
    )
    store = S3Store(config)
    store.create_bucket()
    (tmp_path / "large").write_bytes(bytes(9 << 20))
    store.put_file("large", tmp_path / "large")
    store.put("plain", b"x")
    assert store.access.bulk is not None
    assert store.access.bulk.put("p/bulk", b"x")
    etag = store.put_if_absent("created", b"x").etag
    store.put_if_match("created", b"y", etag)


def test_a_settings_file_and_the_library_set_it(demanding: str, tmp_path: Path) -> None:
    with pytest.raises(AccessDeniedError):
        founded()
    (tmp_path / "l0gc.toml").write_text('sse = "aws:kms"\nsse-kms-key-id = "key-1"\n')
    l0gc("init", "--create-bucket", "--shards", "4", "--config", str(tmp_path / "l0gc.toml"))
    shown = {s["name"]: s["value"] for s in l0gc("config", "show", "--sse", "AES256")["settings"]}
    assert shown["sse"] == "AES256"
    with library.open(f"s3://bucket-{uuid.uuid4()}", endpoint_url=demanding, sse_kms_key_id="key-1") as cluster:
        cluster.init(create_bucket=True, shards=4)


def test_a_table_s_metadata_is_encrypted_too(demanding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEY.items():
        monkeypatch.setenv(name, value)
    founded()
    sql_catalog(monkeypatch, tmp_path, f"{os.environ['L0GC_URL']}/lake")
    configure(monkeypatch, **{"s3.region": "us-east-1"})
    assert l0gc("table", "create", "events", "--catalog", "lake")["table"] == "l0gc.events"
    (tmp_path / "records").write_bytes(b"one\ntwo\n")
    l0gc("upload", "events", str(tmp_path / "records"))
    l0gc("reconcile", "--engine", "local")
    (synced,) = l0gc("table", "sync")["tables"]
    assert synced["added"] > 0


def test_a_file_whose_writing_fails_is_not_sent() -> None:
    sent: list[bytes] = []
    with contextlib.suppress(ValueError), _Body(sent.append) as body:
        body.write(b"half")
        raise ValueError
    with _Body(sent.append) as body:
        body.write(b"whole")
    body.close()
    assert sent == [b"whole"]


@pytest.mark.parametrize(
    ("sse", "key", "said"), [("kms", None, "is not one of AES256, aws:kms"), ("AES256", "key-1", "takes no key")]
)
def test_an_encryption_that_does_not_exist_is_a_usage_error(sse: str, key: str | None, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        StoreConfig.from_url("s3://b", sse=sse, sse_kms_key_id=key)
