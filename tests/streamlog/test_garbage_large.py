"""Orphans among 10^6 L1 objects: the listing is read once, and memory does not grow with it.

The keys are made up as they are listed. The journal names a few objects of each partition itself, index objects list the
others, and every tenth object of the bucket is an orphan.
"""

from __future__ import annotations

import builtins
import gc
import tracemalloc
import uuid
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from l0gc.collect.vacuum import Vacuum, VacuumOptions
from l0gc.keys import PartitionId, level_one
from l0gc.spark.vacuum_job import SparkOrphans
from l0gc.storage.fan_out import LocalFanOut
from l0gc.storage.objectstore import PAGE_SIZE, DeleteFailure, ListedPage
from l0gc.storage.parallel import Inline
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.garbage import JournalGarbage
from l0gc.streamlog.journal.rows import L1_ROW, Rows
from l0gc.streamlog.journal.topic import TopicState
from l0gc.streamlog.level_one.index import write_index
from tests.support.memory_store import MemoryStore, memory_cluster

DATA = "level_one/data/"
NAMED = 900
"""Of a partition; with every ninth comes an orphan."""
IN_STATE = 8
IN_A_PARTITION = NAMED + NAMED // 9
MOST_MIB = 24


class GeneratedL1(MemoryStore):
    """The L1 objects of a topic's partitions: `NAMED` that are named, and an orphan beside every ninth."""

    def __init__(self) -> None:
        super().__init__()
        self.topic = PartitionId("", 0, 0)
        self.partitions = 0
        self.wronged: builtins.list[str] = []
        self.gone = 0

    def key(self, number: int) -> str:
        partition, place = divmod(number, IN_A_PARTITION)
        group, at = divmod(place, 10)
        slot, orphan = (9 * group, True) if at == 1 else (9 * group + max(0, at - 1), False)
        p = PartitionId(self.topic.topic, self.topic.revision, partition)
        return level_one(p, 1 + slot // 100, 10 * slot, 10 * slot + 9, str(name_of(partition, slot, orphan=orphan)))

    @property
    def keys(self) -> int:
        return self.partitions * IN_A_PARTITION

    def scan(self, prefix: str, start_after: str = "") -> Iterator[ListedPage]:
        if prefix != DATA:
            yield from super().scan(prefix, start_after)
            return
        low, high = 0, self.keys
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self.key(middle) <= start_after else (low, middle)
        while True:
            self.requests["L1 pages"] += 1
            end = min(low + PAGE_SIZE, self.keys)
            if low < end:
                keys = [self.key(i) for i in range(low, end)]
                yield ListedPage(keys, [100] * len(keys), [self.clock.ms] * len(keys))
            if end == self.keys:
                return
            low = end

    def delete(self, keys: Sequence[str]) -> builtins.list[DeleteFailure]:
        if not keys or not keys[0].startswith(DATA):
            return super().delete(keys)
        self.wronged += [k for k in keys if int(k[-len("0.parquet")]) != 1]
        self.gone += len(keys)
        return []


def name_of(partition: int, slot: int, *, orphan: bool = False) -> uuid.UUID:
    return uuid.UUID(int=(partition << 80) + (slot << 16) + orphan)


def rows_of(partition: int) -> Rows:
    rows = [(partition, 10 * i, 10 * i + 9, 100, 0, 1 + i // 100, name_of(partition, i).bytes) for i in range(NAMED)]
    return np.array(rows, L1_ROW)


def a_cluster(partitions: int) -> tuple[Cluster, GeneratedL1]:
    store = GeneratedL1()
    cluster = memory_cluster(store)
    topic, _ = cluster.controller.create_topic("events", partitions)
    store.topic, store.partitions = topic.id(0), partitions
    for _ in range(20):
        cluster.controller.advance()
    handle = cluster.journal(topic.journals[0])
    handle.advance(cluster.controller.epoch())  # a checkpoint is of an entry
    state = TopicState(topic.revision, topic.topic_id)
    newest, indexes = [], []
    for partition in range(partitions):
        rows = rows_of(partition)
        newest.append(rows[-IN_STATE:])
        indexes.append(write_index(store, topic.id(partition), rows[:-IN_STATE], 1, cluster.runtime))
    state.l1, state.index = np.concatenate(newest), np.concatenate(indexes)
    handle.state.topics[topic.revision] = state
    handle.replica.write_checkpoint()
    return cluster, store


@pytest.mark.parametrize(
    "partitions",
    [40, pytest.param(1000, marks=[pytest.mark.thorough, pytest.mark.slow, pytest.mark.timeout(1200)])],
)
@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "on executors"])
def test_a_scan_for_orphans(partitions: int, elsewhere: bool) -> None:
    cluster, store = a_cluster(partitions)
    options = VacuumOptions(l1_grace_ms=0, orphan_age_ms=0, record=elsewhere)
    spark = SparkOrphans(cluster, LocalFanOut(store, Inline(), slots=8)) if elsewhere else None
    store.requests.clear()
    gc.collect()
    tracemalloc.start()
    done = Vacuum(cluster, JournalGarbage(cluster), options, elsewhere=spark).run(Inline())
    peak = tracemalloc.get_traced_memory()[1] / (1 << 20)
    tracemalloc.stop()
    orphans = partitions * NAMED // 9
    assert (done.deleted["orphaned_l1"].objects, store.gone, store.wronged) == (orphans, orphans, [])
    assert done.scanned.listed == store.keys + partitions  # and the index objects
    assert store.requests["L1 pages"] <= -(-store.keys // PAGE_SIZE) + 8
    assert peak < MOST_MIB, peak
