"""`l0gc expire` and `delete-records`: what they print and refuse, and what `read` prints about deleted records."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import l0gc as library
from l0gc.errors import OffsetOutOfRangeError, UsageError
from l0gc.storage.config import StoreConfig
from tests.support.cli import ended_here, l0gc, printed, text_of


@pytest.fixture
def topic(bucket: StoreConfig, tmp_path: Path) -> StoreConfig:
    """Create a topic with an L1 object of five records in each of two partitions, and three more records in partition
    0.
    """
    l0gc("init", "--create-bucket", "--shards", "4", "--journals", "1")
    l0gc("topic", "create", "events", "--partitions", "2")
    with library.open(f"s3://{bucket.bucket}/{bucket.prefix}".rstrip("/")) as cluster:
        for count, partitions in ((5, (0, 1)), (3, (0,))):
            for partition in partitions:
                path = tmp_path / "records"
                path.write_text("".join(f"{partition}:{i}\n" for i in range(count)))
                cluster.upload("events", path, partition=partition)
            if count == 5:
                cluster.reconcile()
    return bucket


@pytest.mark.weed
def test_records_are_deleted_by_offset_and_by_retention(topic: StoreConfig) -> None:
    arguments = ["delete-records", "events", "--partition", "0", "--before-offset", "2", "--yes"]
    planned = l0gc(*arguments, "--dry-run")
    assert printed("read", "events", "--partition", "0") == b"0:0\n0:1\n0:2\n0:3\n0:4\n0:0\n0:1\n0:2\n"
    done = l0gc(*arguments)
    assert {**planned, "dry_run": False} == done
    assert done == {
        "dry_run": False, "partitions": 1, "records": 2, "l1_objects": 0, "bytes": 0, "lost": 0, "errors": [],
        "starts": [{"topic": "events", "partition": 0, "previous": 0, "log_start_offset": 2}],
    }  # fmt: skip
    assert printed("read", "events", "--partition", "0").startswith(b"0:2\n0:3\n")
    ended = ended_here("read", "events", "--partition", "0", "--from", "1")
    assert ended.code == 5
    assert "the first record that is left has offset 2" in ended.stderr
    with pytest.raises(OffsetOutOfRangeError, match="its next one will have offset 8"):
        l0gc("delete-records", "events", "--partition", "0", "--before-offset", "9")
    l0gc("topic", "alter", "events", "--retention-bytes", "0", "--yes")
    assert text_of("expire", "--dry-run")[0].startswith(
        "8 records of 2 partitions would be deleted, with 2 L1 objects ("
    )
    result: dict[str, Any] = l0gc("expire", "events")
    assert (result["records"], result["l1_objects"]) == (8, 2)
    assert printed("read", "events") == b"0:0\n0:1\n0:2\n"
    (zero, one) = l0gc("topic", "describe", "events")["offsets"]
    assert (zero["log_start_offset"], zero["last_reconciled_offset"], zero["next_offset"]) == (5, 4, 8)
    assert (one["log_start_offset"], one["l1_objects"]) == (5, 0)
    time.sleep(1.1)  # the store's clock has whole seconds, but the newest records have milliseconds
    assert text_of("delete-records", "events", "--all-partitions", "--before-time", "0s", "--yes") == [
        "3 records of 1 partition deleted",
        "events/0 begins at offset 8 (was 5)",
    ]
    assert printed("read", "events") == b""


@pytest.mark.weed
def test_the_place_and_the_partitions_are_named(topic: StoreConfig) -> None:
    for arguments in (
        ["--all-partitions"],
        ["--all-partitions", "--before-offset", "1", "--before-time", "1d"],
        ["--before-offset", "-1"],
        ["--before-offset", "-1", "--all-partitions", "--partition", "0"],
    ):
        with pytest.raises(UsageError, match="either --"):
            l0gc("delete-records", "events", *arguments, "--yes")
    assert len(printed("read", "events").splitlines()) == 13


@pytest.mark.weed
def test_what_deletes_records_asks_and_names_the_cluster(topic: StoreConfig) -> None:
    place = "in s3://[^ ]+ (cluster [0-9a-f-]{36}): there is no terminal to ask at; give --yes to confirm".replace(
        "(", r"\(", 1
    )
    place = place.replace("})", r"}\)")
    with pytest.raises(
        UsageError, match=f"this would delete 13 records of 2 partitions of topic events for good, {place}"
    ):
        l0gc("delete-records", "events", "--all-partitions", "--before-offset", "-1")
    time.sleep(1.1)  # the store's clock has whole seconds, and a record of this second is not older than 0s
    for arguments, gone in (
        (["events", "--retention", "0s"], "10 of the 13 records of topic events"),
        (["--defaults", "--retention-bytes", "0"], "10 of the 13 records of topic events"),
    ):
        with pytest.raises(UsageError, match=f"this would delete {gone} with the next l0gc gc, {place}"):
            l0gc("topic", "alter", *arguments)
    assert l0gc("topic", "describe", "events")["effective_retention_bytes"] == -1
    for harmless in (["--retention", "1h"], ["--retention-bytes", "1GiB"], ["--retention", "-1"]):
        assert l0gc("topic", "alter", "events", *harmless)["altered"]
    assert l0gc("delete-records", "events", "--partition", "1", "--before-offset", "0")["records"] == 0
