"""A query fetches only what it needs: the store counts the requested bytes of L0 and L1 objects."""

from __future__ import annotations

import random
from collections.abc import Sequence

from l0gc.streamlog.cluster import ClusterHandles
from tests.support.memory_store import MemoryStore, store_of, topic_in_memory
from tests.support.merge import merge
from tests.support.reconcile import put, reconcile
from tests.support.spark_source import batch_reader, on, read, table

ROOM = 1.02
"""The most bytes that a query may fetch, as a multiple of those that it needs."""


class CountingStore(MemoryStore):
    """Counts the bytes of L0 and L1 objects that it returns."""

    given = 0

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        found = super().get_ranges(key, ranges)
        if key.startswith("level_"):
            self.given += sum(map(len, found))
        return found


def counting(partitions: int) -> tuple[ClusterHandles, CountingStore]:
    store = CountingStore()
    cluster = topic_in_memory(partitions, store=store)
    return cluster, store


def records(seed: int, count: int, size: int) -> list[bytes]:
    """Return records that do not compress."""
    chance = random.Random(seed)
    return [chance.randbytes(size) for _ in range(count)]


def test_one_partition_of_1024_fetches_its_l1_objects_and_its_blocks() -> None:
    cluster, store = counting(1024)
    for n in range(3):
        put(cluster, "events", {p: records(p + n, 6, 500) for p in range(1024)})
        if n < 2:
            reconcile(cluster)
        if n == 0:  # so that partitions have their own L1 objects, below the rows of a shared one
            store.clock.ms += 24 * 60 * 60 * 1000
            merge(cluster)
    topic = cluster.controller.snapshot().topic("events")
    known = cluster.journal(topic.journals[0]).catch_up().topic(topic.revision)
    own, shared = known.files(517), known.shared_objects("events", topic.journals[0])
    assert (len(own), len(shared), len(known.objects)) == (1, 1, 1)
    needed = sum(f.bytes for f in own)
    for o in (*shared, *known.objects):
        needed += sum(o.extent(row).block.length for row in o.extents[o.extents["partition"] == 517])
    store.given = 0
    assert len(read(cluster, assign='{"events":[517]}')) == 18
    assert needed <= store.given <= ROOM * needed
    assert store.given < sum(len(o.body) for k, o in store.objects.items() if k.startswith("level_")) / 10


def test_l1_objects_older_than_the_start_are_not_opened() -> None:
    cluster = topic_in_memory(1)
    clock = store_of(cluster).clock
    for n in range(4):
        put(cluster, "events", {0: [b"%d" % n]})
        reconcile(cluster)
        clock.ms += 1000
    requested = []
    store_of(cluster).fault = lambda call: requested.append(call.key) if call.when == "before" else None
    with on(cluster):
        reader = batch_reader(topic="events", startingTimestamp=str(clock.ms - 1500))
        assert table(reader, reader.partitions()).column("value").to_pylist() == [b"3"]
    assert len({k for k in requested if k.startswith("level_one/data/")}) == 1
