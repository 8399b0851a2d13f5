"""Shared L1 objects: which partitions share one, and which objects a round writes for them."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from l0gc.operations import Read
from l0gc.storage.workers import LocalWorkers, Stage
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import TopicTable
from l0gc.streamlog.level_one import plan, share
from l0gc.streamlog.level_one import reconcile as runs
from l0gc.streamlog.level_one.drain import drain_topic
from l0gc.streamlog.level_one.merge import merge_due, plan_merge, run_merge
from l0gc.streamlog.level_one.share import LEAST_PARTITIONS, SMALL_BYTES, which_share
from l0gc.streamlog.reader import read_topic
from l0gc.streamlog.topics import describe_topic
from tests.support.memory_store import another_process, memory_cluster, store_of, topic_in_memory
from tests.support.reconcile import put, reconcile
from tests.support.sharing import a_day_passes, drain, loaded, values

SMALL, LARGE = SMALL_BYTES - 1, SMALL_BYTES


@pytest.mark.parametrize(
    ("topics", "alone", "wanted"),
    [
        ([(1, [SMALL] * LEAST_PARTITIONS)], [], [True] * LEAST_PARTITIONS),
        ([(1, [SMALL] * (LEAST_PARTITIONS - 1))], [], [False] * (LEAST_PARTITIONS - 1)),
        ([(1, [LARGE, *[SMALL] * LEAST_PARTITIONS])], [], [False, *[True] * LEAST_PARTITIONS]),
        ([(1, [LARGE, *[SMALL] * (LEAST_PARTITIONS - 1)])], [], [False] * LEAST_PARTITIONS),
        ([(1, [SMALL] * LEAST_PARTITIONS)], [1], [False] * LEAST_PARTITIONS),
        ([(1, [SMALL] * 40), (2, [SMALL] * 40)], [], [False] * 80),
        ([], [], []),
    ],
)
def test_many_small_partitions_of_a_topic_share(
    topics: Sequence[tuple[int, list[int]]], alone: list[int], wanted: list[bool]
) -> None:
    revisions = np.array([revision for revision, sizes in topics for _ in sizes], np.int64)
    weights = np.array([size for _, sizes in topics for size in sizes], np.int64)
    assert which_share(np.zeros(len(weights)), revisions, weights, alone).tolist() == wanted


def test_partitions_of_two_journals_do_not_share_an_object() -> None:
    cluster = topic_in_memory(150, journals=2)
    put(cluster, "events", {p: [b"%d" % p] for p in range(150)})
    assert reconcile(cluster).l1_objects == 2
    keys = sorted(k for k in store_of(cluster).objects if k.startswith("level_one/"))
    assert [k.split("/")[3] for k in keys] == ["j0000", "j0001"]


@pytest.mark.parametrize(("small", "objects"), [(1, 1000), (1 << 20, 3)])
def test_of_several_writers_each_gets_consecutive_partitions_if_they_are_small(
    small: int, objects: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "SMALL_TASK_BYTES", 1)
    monkeypatch.setattr(plan, "_SMALL_BYTES", small)
    cluster = topic_in_memory(1000)
    put(cluster, "events", {p: [b"%d" % p] for p in range(1000)})
    workers = LocalWorkers(cluster)
    workers.cores = 20  # type: ignore[misc]
    assert runs.reconcile(cluster, workers=workers).l1_objects == objects
    assert values(cluster) == {p: [b"%d" % p] for p in range(1000)}


def test_a_round_writes_one_object_for_many_partitions_and_reads_it_once() -> None:
    cluster, _, wanted = loaded(2)
    store = store_of(cluster)
    assert sum(k.startswith("level_one/") for k in store.objects) == 2
    store.requests.clear()
    assert values(cluster) == wanted
    assert store.requests["get"] <= 2 + 2  # two objects, and the ends of two logs
    described = describe_topic(cluster, "events", 7)
    assert (described.l1_objects, described.dead_bytes, described.offsets[0].l1_objects) == (2, 0, 2)


@pytest.mark.thorough
def test_a_partition_is_read_from_few_bytes_of_its_shared_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, chance = topic_in_memory(1000), random.Random(1)
    for n in range(31):
        put(cluster, "events", {p: [a_line(chance, 10 * n + i) for i in range(10)] for p in range(1000)})
        assert reconcile(cluster).l1_objects == 1
    cluster.journal(0).replica.write_checkpoint()
    store, fetched = store_of(cluster), list[int]()
    ranges_of = store.get_ranges

    def counted(key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        fetched.extend(length for _, length in ranges)
        return ranges_of(key, ranges)

    monkeypatch.setattr(store, "get_ranges", counted)
    another = another_process(cluster)
    store.requests.clear()
    read = read_topic(another, another.controller.snapshot().topic("events"), Read(partition=500))
    assert sum(1 for _ in read) == 310
    assert store.requests["get"] <= 64
    assert sum(fetched) <= 2_000_000


def a_line(chance: random.Random, n: int) -> bytes:
    """Return a record of 100 bytes, like those of l0gc's benchmarks."""
    fields = {
        "id": n,
        "user": chance.randrange(10**6),
        "kind": chance.choice(["view", "buy"]),
        "price": chance.random(),
    }
    return json.dumps(fields).encode().ljust(100)[:100]


def test_shared_objects_are_drained_once_a_partition_has_32_rows() -> None:
    cluster, topic, wanted = loaded(32)
    store = store_of(cluster)
    assert merge_due(cluster)
    planned = plan_merge(cluster)
    total = planned.total
    assert (total.objects_before, total.objects_after, total.drained) == (32, 100, 6400)
    store.requests.clear()
    done = run_merge(cluster, planned, LocalWorkers(cluster))
    assert (done.objects_before, done.objects_after, done.drained, done.errors) == (32, 100, 6400, [])
    assert store.requests["get"] <= 2 * 32
    assert store.requests["put"] == 100
    known = cluster.journal(0).catch_up().topic(topic.revision)
    assert (known.shared, len(known.l1)) == ((), 100)
    assert values(cluster) == wanted
    assert not merge_due(cluster)


def test_shared_objects_are_drained_once_the_oldest_is_a_day_old() -> None:
    cluster, _, wanted = loaded(1)
    assert not merge_due(cluster)
    a_day_passes(cluster)
    assert merge_due(cluster)
    assert run_merge(cluster, plan_merge(cluster), LocalWorkers(cluster)).drained == 200
    assert values(cluster) == wanted


def test_a_growing_partition_gets_an_own_object_above_its_shared_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(share, "SMALL_BYTES", 20_000)
    cluster, topic, wanted = loaded(1)
    for n in range(2):
        batch = {p: [b"%d" % n] * (1000 if p == 7 else 1) for p in range(100)}
        put(cluster, "events", batch)
        assert reconcile(cluster).l1_objects == 2
        for p, some in batch.items():
            wanted[p] += some
    known = cluster.journal(0).catch_up().topic(topic.revision)
    assert known.l1["partition"].tolist() == [7, 7]
    before = [bytes(name) for name in known.l1["name"]]
    assert values(cluster) == wanted
    drain(cluster)
    rows = cluster.journal(0).catch_up().topic(topic.revision).l1_of(7)
    assert rows["base"].tolist() == [0, 2, 1002]
    assert [bytes(name) for name in rows["name"][1:]] == before  # the partition's own objects are not rewritten
    assert values(cluster) == wanted


def test_a_drain_whose_object_would_hold_other_records_uploads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, _, wanted = loaded(1)
    before = set(store_of(cluster).objects)
    monkeypatch.setattr("l0gc.streamlog.level_one.hashes.Hashes.digest", lambda self: {"it": random.randbytes(8)})
    done = drain(cluster)
    assert done.drained == 0
    assert "would not hold the records written to it" in str(done.errors)
    assert {k for k in store_of(cluster).objects if k.startswith("level_one/")} <= before
    assert values(cluster) == wanted


def test_a_damaged_block_is_named_and_the_other_partitions_are_drained() -> None:
    cluster, topic, _ = loaded(2, 600)
    (first, _) = (k for k in sorted(store_of(cluster).objects) if k.startswith("level_one/"))
    o = store_of(cluster).objects[first]
    o.body = bytes([o.body[0] ^ 1]) + o.body[1:]
    done = drain(cluster)
    assert done.drained > 0
    assert first in str(done.errors)
    known = cluster.journal(0).catch_up().topic(topic.revision)
    assert 0 in known.shared[0].partitions
    assert known.all_rows()["last"].max() == 3


def test_a_journal_is_read_again_with_its_shared_objects_from_a_checkpoint() -> None:
    cluster, _, wanted = loaded(3)
    cluster.journal(0).replica.write_checkpoint()
    assert values(memory_cluster(store_of(cluster), seed=5, bootstrap=False)) == wanted


def test_a_topic_that_gets_a_table_shares_nothing_and_is_drained() -> None:
    cluster, topic, wanted = loaded(2)
    cluster.controller.create_table(TopicTable("events", topic.revision, "lake", "l0gc.events"))
    assert merge_due(cluster)
    assert drain_topic(cluster, topic) == []
    assert cluster.journal(0).catch_up().topic(topic.revision).shared == ()
    assert not merge_due(cluster)
    put(cluster, "events", {p: [b"late"] for p in range(100)})
    assert reconcile(cluster).l1_objects == 100
    assert values(cluster) == {p: [*some, b"late"] for p, some in wanted.items()}


def test_what_executors_write_and_drain_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark pickles the stages and the items that one task sends to another."""

    class Tasks(LocalWorkers[ClusterHandles]):
        cores, engine = 3, "spark"  # type: ignore[misc]

        def flow(self, parts: Sequence[Any], *stages: Stage) -> list[Any]:
            return super().flow(parts, *(Stage(s.tasks, pickled(s.work)) for s in stages))

    monkeypatch.setattr(plan, "SMALL_TASK_BYTES", 100)
    cluster, topic, wanted = loaded(1, 600)
    batch = {p: [b"%d" % p * 2000] for p in range(600)}
    put(cluster, "events", batch)
    result = reconcile(cluster, workers=Tasks(cluster, slots=3))
    assert 1 < result.l1_objects <= 3
    wanted = {p: [*some, *batch[p]] for p, some in wanted.items()}
    assert values(cluster) == wanted
    a_day_passes(cluster)
    assert run_merge(cluster, plan_merge(cluster), Tasks(cluster, slots=3)).drained == 1800
    assert cluster.journal(0).catch_up().topic(topic.revision).shared == ()
    assert values(cluster) == wanted


def pickled(work: Any) -> Any:
    again = pickle.loads(pickle.dumps(work))
    return lambda place, items: (pickle.loads(pickle.dumps(found)) for found in again(place, items))
