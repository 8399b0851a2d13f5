"""A partition that lags, on a real server: `reconcile --up-to` lifts it, and a sweep releases the bytes that `status`
promised.
"""

from __future__ import annotations

import random

import pytest

from l0gc.storage.s3 import S3Store
from l0gc.streamlog.cluster import ClusterHandles
from tests.flows.test_loop import l0_objects, read_back
from tests.support.cli import ended_here, founded, l0gc
from tests.support.reconcile import reconcile_but

pytestmark = pytest.mark.weed

PARTITIONS = 24
LAGGING = 7
ROUNDS = 4
UPLOADS = 3


def upload(records: dict[int, list[bytes]], chance: random.Random) -> None:
    """Upload a record for each partition, in one L0 object."""
    lines = [b"%d-" % p + chance.randbytes(8_000).hex().encode() for p in records]
    assert ended_here("upload", "events", "-", "--producer", "p", stdin=b"\n".join(lines) + b"\n").code == 0
    for p, line in enumerate(lines):
        records[p].append(line)


@pytest.mark.thorough
def test_lifting_laggards_costs_and_releases_what_status_predicted(store: S3Store) -> None:
    founded(PARTITIONS, shards=16)
    cluster, chance = ClusterHandles(store), random.Random(26)
    records: dict[int, list[bytes]] = {p: [] for p in range(PARTITIONS)}
    for _ in range(ROUNDS):
        for _ in range(UPLOADS):
            upload(records, chance)
        assert not reconcile_but(cluster, {LAGGING}).errors
        l0gc("housekeep", "--barrier")
    upload(records, chance)  # at the newest epoch, so no partition lags because of it
    held = l0gc("compute-watermark")["watermark"]
    assert l0gc("sweep")["deleted"] == 0

    lag = l0gc("status")["laggards"]
    assert [(t["topic"], t["partitions"], t["partition"]) for t in lag["topics"]] == [("events", 1, LAGGING)]
    assert lag["released_objects"] == ROUNDS * UPLOADS
    epoch = str(lag["up_to_epoch"])
    assert lag["sentence"].endswith(f"l0gc reconcile --up-to {epoch} && l0gc compute-watermark")

    (topic,) = cluster.journal(cluster.controller.snapshot().topic("events").journals[0]).catch_up().topics.values()
    read = sum(o.bytes for o in topic.objects if o.epoch <= lag["up_to_epoch"])
    part = l0gc("reconcile", "--up-to", epoch, "--max-bytes", str(read // 2))
    assert (part["partitions"], part["limited"]) == (1, True)
    assert held < l0gc("compute-watermark")["watermark"] < lag["up_to_epoch"]
    rest = l0gc("reconcile", "--up-to", epoch)
    assert (part["records"] + rest["records"], rest["limited"]) == (ROUNDS * UPLOADS, False)
    assert l0gc("compute-watermark")["watermark"] == lag["up_to_epoch"]
    swept = l0gc("sweep")
    assert (swept["deleted"], swept["bytes"]) == (lag["released_objects"], lag["released_bytes"])
    assert len(l0_objects(store)) == 1
    assert l0gc("status")["laggards"]["partitions"] == 0
    assert read_back("events", PARTITIONS) == records
    assert l0gc("verify", "--deep")["findings"] == []
