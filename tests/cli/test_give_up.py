"""A lost L0 object on a real server, from the message that names it to the partition that continues without it."""

from __future__ import annotations

import json
from typing import Any

import pytest

import l0gc as library
from l0gc.errors import NotFoundError, SafetyError, UsageError
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store
from tests.support.cli import ended_here, l0gc, printed, text_of


@pytest.fixture
def lost(bucket: StoreConfig) -> str:
    """Return the key of a deleted L0 object: the second of four with ten records of each of two partitions."""
    l0gc("init", "--create-bucket", "--shards", "4", "--journals", "1")
    l0gc("topic", "create", "events", "--partitions", "2")
    keys = []
    with library.open(bucket.url) as cluster:
        for n in range(4):
            lines = [b"%d" % (10 * n + i // 2) for i in range(20)]
            keys += [p.key for p in cluster.upload("events", lines).placeholders][:1]
            cluster.advance_epoch()
    S3Store(bucket).delete([keys[1]])
    return keys[1]


def offsets(*arguments: str) -> list[int]:
    """Return the offsets of the records that are read, each of which has its own number as value."""
    rows: list[dict[str, Any]] = json.loads(printed("--json", "read", "events", *arguments))["records"]
    assert [int(r["value"]) for r in rows] == [r["offset"] for r in rows]
    return [r["offset"] for r in rows]


@pytest.mark.thorough
@pytest.mark.weed
def test_a_partition_continues_after_its_lost_records_are_given_up(bucket: StoreConfig, lost: str) -> None:
    failed = ended_here("gc", "--engine", "local")
    assert failed.code == 3
    assert lost in failed.stderr
    command = f"l0gc give-up --object {lost}"
    assert command in failed.stderr
    now = l0gc("status")
    assert now["next"].startswith(f"restore that object from a version or a backup, or give up its records: {command} ")
    held = now["computable_watermark"]
    given = l0gc("give-up", "--object", lost, "--yes")
    assert (given["records"], given["partitions"]) == (20, 2)
    l0gc("gc", "--engine", "local", "--housekeep-barrier")
    now = l0gc("status")
    assert (now["unreconciled_records"], now["causes"]) == (0, [])
    assert (now["holes"], now["lost_records"]) == (2, 20)
    assert "80, of which 0 unreconciled in L0, 20 records given up" in " ".join(text_of("status"))
    assert now["watermark"] > held
    found = l0gc("verify", "--deep", "--min-age", "0s")
    assert (found["total"], found["checked"]["holes"]) == (0, 2)
    left = [*range(10), *range(20, 40)]
    assert offsets("--skip-holes") == left * 2
    ended = ended_here("read", "events", "--partition", "1", "-o", "-")
    assert ended.code == 5
    assert "the records 10 to 19 of partition events/1 were given up" in ended.stderr
    assert "--skip-holes" in ended.stderr
    described = l0gc("topic", "describe", "events")
    assert (described["holes"], described["lost_records"]) == (2, 20)


@pytest.mark.thorough
@pytest.mark.weed
def test_a_partition_is_given_up_by_its_offsets(bucket: StoreConfig, lost: str) -> None:
    S3Store(bucket).put(lost, b"what is left")
    assert ended_here("reconcile").code == 3
    lines = text_of("give-up", "events", "--partition", "1", "--offsets", "10-19", "--yes")
    assert lines[0] == "10 records of 1 partition given up"
    assert lines[1].startswith("10 to 19 of partition events/1: level_one/data/events-1/00001/")


@pytest.mark.weed
def test_give_up_asks_and_refuses_records_that_can_be_read(lost: str) -> None:
    arguments = ["give-up", "events", "--partition", "0", "--offsets"]
    assert ended_here("reconcile").code == 3
    with pytest.raises(UsageError, match=r"abandon the records 10 to 19 of partition events/0 for ever.*give --yes"):
        l0gc(*arguments, "10-19")
    with pytest.raises(SafetyError, match="can be read"):
        l0gc(*arguments, "10-29", "--yes")
    with pytest.raises(NotFoundError, match="next one will have offset 40"):
        l0gc(*arguments, "40", "--yes")
    for wrong in ("9-1", "x", "1-", "-1"):
        ended = ended_here(*arguments, wrong, "--yes")
        assert ended.code == 2
        assert "is not a range of offsets" in ended.stderr
    assert ended_here("give-up", "events", "--yes").code == 2
    assert l0gc(*arguments, "10-29", "--yes", "--force-readable")["records"] == 20
