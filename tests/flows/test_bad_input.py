"""Bad input gives one clear sentence and the right exit code, and has no other effect."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from l0gc.errors import StoreUnfitError
from l0gc.keys import PUBLISHED_WATERMARK
from l0gc.runtime import Runtime
from l0gc.storage.config import StoreConfig
from l0gc.storage.objectstore import PutResult
from l0gc.storage.probe import probe
from l0gc.storage.s3 import S3Store
from l0gc.watermark.publication import PublishedWatermark, encode_published
from tests.support.cli import ended_here, founded, l0gc
from tests.support.tries import sampled

pytestmark = pytest.mark.weed


def fails(
    code: int, *words: str, args: list[str], environment: dict[str, str] | None = None, stdin: bytes = b""
) -> str:
    """Run a command that must fail with this exit code, one sentence on stderr and nothing on stdout."""
    ended = ended_here(*args, environment=environment, stdin=stdin)
    assert ended.code == code, (ended.code, ended.stderr)
    assert ended.stdout == b""
    assert "Traceback" not in ended.stderr
    for word in words:
        assert word in ended.stderr
    return ended.stderr


@pytest.fixture
def cluster(bucket: StoreConfig) -> StoreConfig:
    founded()
    return bucket


def test_no_url() -> None:
    text = fails(2, "--url", "L0GC_URL", args=["epoch", "show"])
    assert text.count("\n") == 1


@pytest.mark.parametrize("url", ["bucket", "http://bucket", "s3://", "s3:///x", "s3://b?x=1"])
def test_a_url_of_another_form(url: str) -> None:
    fails(2, url, "s3://", args=["epoch", "show", "--url", url])


@pytest.mark.parametrize(
    "command", [["epoch", "show"], ["init"], ["sweep"], ["status"], ["housekeep"], ["topic", "list"]]
)
def test_a_bucket_that_is_not_there(bucket: StoreConfig, command: list[str]) -> None:
    text = fails(5, bucket.bucket, "--create-bucket", args=command)
    assert text.count("\n") == 1


def test_a_bucket_without_a_cluster(bucket: StoreConfig, store: S3Store) -> None:
    store.create_bucket()
    for command in (["epoch", "show"], ["sweep"], ["status"], ["compute-watermark"], ["reconcile"], ["read", "x"]):
        fails(5, "l0gc init", args=command)


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_wrong_credentials(cluster: StoreConfig, name: str) -> None:
    text = fails(1, "credentials", args=["epoch", "show"], environment={name: "wrong-secret-value"})
    assert "wrong-secret-value" not in text
    assert text.count("\n") == 1


def test_no_credentials(cluster: StoreConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    fails(1, "AWS_ACCESS_KEY_ID", args=["epoch", "show"], environment={"AWS_EC2_METADATA_DISABLED": "true"})


def test_an_endpoint_that_refuses_connections(bucket: StoreConfig) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{s.getsockname()[1]}"
    text = fails(1, endpoint, "connect", args=["epoch", "show", "--endpoint-url", endpoint])
    assert text.count("\n") == 1


def test_a_topic_that_is_not_there_names_the_nearest(cluster: StoreConfig, tmp_path: Path) -> None:
    path = tmp_path / "x.ndjson"
    path.write_bytes(b"{}\n")
    for command in (
        ["upload", "event", str(path)],
        ["read", "event"],
        ["topic", "delete", "event"],
        ["reconcile", "event"],
    ):
        fails(5, "'event'", "'events'", args=command)


@pytest.mark.parametrize("partition", sampled(["2", "-1", "99"], ["2"]))
def test_a_partition_out_of_range(cluster: StoreConfig, tmp_path: Path, partition: str) -> None:
    path = tmp_path / "x.ndjson"
    path.write_bytes(b"{}\n")
    fails(2, partition, "0 to 1", args=["upload", "events", str(path), "--partition", partition])
    fails(2, partition, "0 to 1", args=["read", "events", "--partition", partition])


def test_a_record_without_the_key_field_is_named_by_file_and_line(cluster: StoreConfig, tmp_path: Path) -> None:
    path = tmp_path / "events.ndjson"
    path.write_bytes(b'{"user": 1}\n{"user": 2}\n{"usr": 3}\n')
    fails(2, str(path), "line 3", "'user'", args=["upload", "events", str(path), "--key-field", "user"])
    fails(2, "stdin", "line 1", args=["upload", "events", "-", "--key-field", "user"], stdin=b"not json\n")
    assert ended_here("read", "events").stdout == b""


def test_a_bucket_that_belongs_to_another_cluster(cluster: StoreConfig) -> None:
    for command in (["init"], ["epoch", "show"], ["sweep"], ["housekeep"], ["compute-watermark"]):
        fails(4, "another-cluster", args=[*command, "--cluster-id", "another-cluster"])


def test_a_watermark_of_another_cluster(cluster: StoreConfig, store: S3Store) -> None:
    store.put(PUBLISHED_WATERMARK, encode_published(PublishedWatermark("other", 5, 9, 0)))
    fails(4, "other", "published.json", args=["sweep"])
    assert b"foreign_watermark" in ended_here("status").stdout


def test_a_watermark_above_the_cluster_epoch(cluster: StoreConfig, store: S3Store) -> None:
    cluster_id = l0gc("init")["cluster_id"]
    store.put(PUBLISHED_WATERMARK, encode_published(PublishedWatermark(cluster_id, 500, 501, 0)))
    fails(4, "500", "backup", args=["sweep"])


def test_a_store_that_ignores_conditional_writes(bucket: StoreConfig) -> None:
    class Careless(S3Store):
        def put_if_absent(self, key: str, body: bytes) -> PutResult:
            return self.put(key, body)

    store = Careless(bucket)
    store.create_bucket()
    with pytest.raises(StoreUnfitError, match="conditional creates") as error:
        probe(store, Runtime())
    assert error.value.exit_code == 6


def test_wrong_arguments(cluster: StoreConfig, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"{}\n")
    fails(2, "sweeep", "sweep", args=["sweeep"])
    fails(2, "exclude each other", args=["upload", "events", str(path), "--partition", "0", "--key-field", "x"])
    fails(2, "no-such-file", args=["upload", "events", str(tmp_path / "no-such-file")])
    fails(2, "5 lightyears", args=["sweep", "--min-age", "5 lightyears"])
    fails(2, "partitions", args=["topic", "create", "x", "--partitions", "0"])
    fails(2, "'a b'", args=["topic", "create", "a b", "--partitions", "1"])
    fails(2, "events", "2 partitions", args=["topic", "create", "events", "--partitions", "3"])
    fails(2, "4 shards", args=["init", "--shards", "5"])
    fails(1, "epoch is 1", args=["epoch", "advance", "--expect", "0"])
    config = tmp_path / "l0gc.toml"
    config.write_text("colour = 'red'\n")
    fails(2, "colour", args=["epoch", "show", "--config", str(config)])
