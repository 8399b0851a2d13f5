"""`l0gc evacuate` on a real server: a partition that nobody reconciles no longer holds what the others left."""

from __future__ import annotations

import random

import pytest

from l0gc.errors import NotFoundError
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.cluster import Handles
from l0gc.streamlog.level_one.reconcile import reconcile
from tests.flows.test_loop import l0_objects, read_back
from tests.support.cli import ended_here, founded, l0gc, text_of
from tests.support.reconcile import reconcile_but

pytestmark = pytest.mark.weed

PARTITIONS = 24
LAGGING = 7
ROUNDS = 6
UPLOADS = 4


def lagging(store: S3Store, size: int) -> dict[int, list[bytes]]:
    """Rounds of uploads, each reconciled but for one partition; the records that each partition has to have."""
    founded(PARTITIONS, shards=16)
    cluster, chance = Handles(store), random.Random(26)
    records: dict[int, list[bytes]] = {p: [] for p in range(PARTITIONS)}
    for n in range(ROUNDS):
        for i in range(UPLOADS):
            lines = [b"%d-%d-%d-" % (n, i, p) + chance.randbytes(size).hex().encode() for p in range(PARTITIONS)]
            done = ended_here("upload", "events", "-", stdin=b"\n".join(lines) + b"\n")
            assert done.code == 0, done.stderr
            for p, line in enumerate(lines):
                records[p].append(line)
        assert not reconcile_but(cluster, {LAGGING}).errors
        l0gc("housekeep", "--barrier")
    return records


@pytest.mark.parametrize("size", [40, 8_000], ids=["in one block", "in several blocks"])
def test_a_partition_that_is_never_reconciled_holds_hardly_anything(store: S3Store, size: int) -> None:
    records = lagging(store, size)
    assert len(l0_objects(store)) >= 20
    held = l0gc("compute-watermark")["watermark"]
    assert l0gc("sweep")["deleted"] == 0
    l0gc("compute-watermark")
    dry = l0gc("evacuate", "--dry-run")
    done = l0gc("evacuate")
    for name in ("target_epoch", "moved", "released"):
        assert done[name] == dry[name]
    assert (done["moved"]["objects"], done["moved"]["extents"]) == (ROUNDS * UPLOADS, ROUNDS * UPLOADS)
    assert done["released"]["objects"] >= 20
    l0gc("housekeep", "--barrier")
    assert l0gc("compute-watermark")["watermark"] >= done["target_epoch"] > held
    l0gc("sweep")
    assert len(l0_objects(store)) <= 3
    assert read_back("events", PARTITIONS) == records
    assert l0gc("verify", "--deep")["findings"] == []
    assert not reconcile(Handles(store)).errors
    assert read_back("events", PARTITIONS) == records
    l0gc("housekeep", "--barrier")
    l0gc("compute-watermark")
    l0gc("sweep")
    assert l0_objects(store) == {}
    assert l0gc("verify", "--deep")["findings"] == []


def test_what_cannot_be_evacuated_is_said_in_a_sentence_and_nothing_is_moved(store: S3Store) -> None:
    founded()
    with pytest.raises(NotFoundError, match="nobody has listed the bucket yet: run l0gc compute-watermark first"):
        l0gc("evacuate")
    l0gc("compute-watermark")
    assert l0gc("evacuate")["target_epoch"] is None
    assert text_of("evacuate")[0].startswith("nothing to move: no partition that lags holds anything below epoch")
    assert ended_here("evacuate", "--ratio", "0").code == 2
    assert ended_here("evacuate", "--max-bytes", "-1").code == 2
    assert l0_objects(store) == {}
