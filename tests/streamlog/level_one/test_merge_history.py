"""A cluster that reconciles a small batch a hundred times and merges after each: its objects stay few and its cost low."""

from __future__ import annotations

import random
from typing import Final

import pytest

from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.journal.checkpoint import JournalMachine
from l0gc.streamlog.journal.rows import name_text
from l0gc.streamlog.level_one.merge import merge_due
from l0gc.streamlog.reader import read_topic
from tests.support.memory_store import store_of, topic_in_memory
from tests.support.merge import counts, merge, name_of
from tests.support.reconcile import put, reconcile

pytestmark = [pytest.mark.thorough, pytest.mark.slow]

PARTITIONS: Final = 8
TIMES: Final = 100
BATCH: Final = 25
"""Records of a batch, for each partition."""
MOST_OBJECTS: Final = 24
MOST_AMPLIFICATION: Final = 5.0
WARM: Final = 20


def records(chance: random.Random, n: int) -> list[bytes]:
    """Return realistic records: some text that recurs, and numbers that do not."""
    kinds = ("view", "click", "order", "return")
    return [
        b'{"time":"2026-11-%02dT%02d:%02d:00Z","kind":"%s","user":"user-%05d","amount":%d,"page":"/shop/item/%d"}'
        % (
            1 + n // 50, chance.randrange(24), chance.randrange(60), chance.choice(kinds).encode(),
            chance.randrange(50_000), chance.randrange(100_000), chance.randrange(9_000),
        )
        for _ in range(BATCH)
    ]  # fmt: skip


def vacuum(cluster: ClusterHandles) -> None:
    """Delete and purge all dropped objects, as vacuum does after the grace period."""
    handle = cluster.journal(0)
    names = handle.catch_up().dropped["name"]
    gone = {name_text(name) for name in names}
    cluster.store.delete([k for k in store_of(cluster).objects if k.startswith("level_one/") and name_of(k) in gone])
    handle.purge(bytes(name) for name in names)


def test_a_hundred_reconciles_with_merges_keep_every_record_and_few_objects() -> None:
    chance = random.Random(1)
    cluster = topic_in_memory(PARTITIONS)
    expected: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    lifted = merged = rewritten = most = 0
    checkpoints: list[int] = []
    for n in range(TIMES):
        batch = {p: records(chance, n) for p in range(PARTITIONS)}
        for p, values in batch.items():
            expected[p] += values
        put(cluster, "events", batch)
        lifted += reconcile(cluster).bytes
        result = merge(cluster)
        assert result.errors == []
        assert not merge_due(cluster)
        merged, rewritten = merged + result.bytes, rewritten + result.records
        vacuum(cluster)
        objects = sum(counts(cluster, partitions=PARTITIONS))
        assert objects == sum(1 for k in store_of(cluster).objects if k.startswith("level_one/"))
        most = max(most, objects)
        checkpoints.append(len(JournalMachine(0).encode(cluster.journal(0).state)))
    found: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    for r in read_topic(cluster, cluster.controller.snapshot().topic("events")):
        assert r.offset == len(found[r.partition])
        found[r.partition].append(r.value)
    assert found == expected
    assert most <= MOST_OBJECTS
    assert (lifted + merged) / lifted <= MOST_AMPLIFICATION
    assert rewritten / (TIMES * BATCH * PARTITIONS) < 8
    assert max(checkpoints[WARM:]) <= 1.1 * max(checkpoints[:WARM])


def test_a_hundred_reconciles_before_the_first_merge() -> None:
    chance = random.Random(2)
    cluster = topic_in_memory(1)
    for n in range(TIMES):
        put(cluster, "events", {0: records(chance, n)})
        reconcile(cluster)
    assert counts(cluster, partitions=1) == [TIMES]
    assert merge(cluster).errors == []
    vacuum(cluster)
    assert counts(cluster, partitions=1) == [1]
    assert sum(1 for k in store_of(cluster).objects if k.startswith("level_one/data/")) == 1
    assert not merge_due(cluster)
    read = read_topic(cluster, cluster.controller.snapshot().topic("events"))
    assert [r.offset for r in read] == list(range(TIMES * BATCH))
