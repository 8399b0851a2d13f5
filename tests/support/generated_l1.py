"""Generates millions of L1 objects as they are listed: those that a topic's journals name, and an orphan for every
nine.

`GeneratedL1` is a store in this process; `ServedL1` serves the same objects to other processes, by the benchmarks' S3
server.
"""

from __future__ import annotations

import builtins
import hashlib
import uuid
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from benchmarks.support.generated import GENERATED_ETAG, Entry, GeneratedBucket
from l0gc.keys import PartitionId, level_one
from l0gc.storage.objectstore import PAGE_SIZE, DeleteFailure, ListedPage
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.journal.row_list import RowList
from l0gc.streamlog.journal.rows import L1_ROW, NUMBER, Rows
from l0gc.streamlog.journal.topic import TopicState
from tests.support.memory_store import MemoryStore, memory_cluster

DATA = "level_one/data/"
NAMED = 900
"""The objects of a partition that the journal names; every ninth is followed by an orphan."""
ORPHANS = NAMED // 9
"""The orphans of a partition."""
IN_A_PARTITION = NAMED + ORPHANS
OBJECT_BYTES = 100


def replay_mib(partitions: int) -> float:
    """Return how many MiB a replay of the journal takes at its peak: its rows, and twice as much while it decodes them."""
    return 3 * partitions * NAMED * L1_ROW.itemsize / (1 << 20)


class Keys:
    """The keys of a topic's L1 objects, by their place in the listing."""

    def __init__(self, topic: PartitionId, partitions: int) -> None:
        self._topic = topic
        self.count = partitions * IN_A_PARTITION

    def key(self, number: int) -> str:
        partition, place = divmod(number, IN_A_PARTITION)
        group, at = divmod(place, 10)
        slot, orphan = (9 * group, True) if at == 1 else (9 * group + max(0, at - 1), False)
        p = PartitionId(self._topic.topic, self._topic.revision, partition)
        return level_one(p, 1 + slot // 100, 10 * slot, 10 * slot + 9, str(_name_of(partition, slot, orphan=orphan)))

    def first_after(self, key: str) -> int:
        """Return the number of the first key after `key`."""
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self.key(middle) <= key else (low, middle)
        return low


def is_orphan(key: str) -> bool:
    return key.startswith(DATA) and int(key[-len("0.parquet")]) == 1


class GeneratedL1(MemoryStore):
    """A store in this process; `gone` objects were deleted, and `wronged` are keys whose deletion was wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.generated = Keys(PartitionId("", 0, 0), 0)
        self.wronged: builtins.list[str] = []
        self.gone = 0

    def scan(self, prefix: str, start_after: str = "") -> Iterator[ListedPage]:
        if prefix != DATA:
            yield from super().scan(prefix, start_after)
            return
        low, count = self.generated.first_after(start_after), self.generated.count
        while True:
            self.requests["L1 pages"] += 1
            end = min(low + PAGE_SIZE, count)
            if low < end:
                keys = [self.generated.key(i) for i in range(low, end)]
                yield ListedPage(keys, [OBJECT_BYTES] * len(keys), [self.clock.ms] * len(keys))
            if end == count:
                return
            low = end

    def delete(self, keys: Sequence[str]) -> builtins.list[DeleteFailure]:
        if not keys or not keys[0].startswith(DATA):
            return super().delete(keys)
        self.wronged += [k for k in keys if not is_orphan(k)]
        self.gone += len(keys)
        return []


class ServedL1(GeneratedBucket):
    """The part of a store that `FakeS3` serves; `pages` counts the LIST requests for L1 objects."""

    def __init__(self, store: GeneratedL1) -> None:
        super().__init__(0, 0, 1)
        self.objects = {key: o.body for key, o in store.objects.items()}
        self._l1 = store.generated
        self.pages = 0

    def list(self, prefix: str, after: str, most: int) -> builtins.list[Entry]:
        if prefix == DATA:
            with self._lock:
                self.pages += 1
            numbers = range(self._l1.first_after(after), self._l1.count)
            return [Entry(self._l1.key(n), GENERATED_ETAG, OBJECT_BYTES) for n in islice(numbers, most)]
        with self._lock:
            found = sorted(k for k in self.objects if k.startswith(prefix) and k > after)
        return [self._entry(k) for k in found[:most]]

    def delete(self, key: str) -> None:
        with self._lock:
            if key.startswith(DATA):
                self.gone += 1
                self.wronged += not is_orphan(key)
            else:
                self.objects.pop(key, None)


def a_cluster(partitions: int) -> tuple[ClusterHandles, GeneratedL1]:
    """Create a cluster whose journal names the generated objects, as if all of them had been reconciled long ago."""
    store = GeneratedL1()
    cluster = memory_cluster(store)
    topic, _ = cluster.controller.create_topic("events", partitions)
    store.generated = Keys(topic.id(0), partitions)
    for _ in range(20):
        cluster.controller.advance()
    handle = cluster.journal(topic.journals[0])
    handle.advance(cluster.controller.epoch())  # a checkpoint needs a new entry
    state = TopicState(topic.revision, topic.topic_id)
    state.listed = RowList(np.concatenate([_rows_of(partition) for partition in range(partitions)]))
    state.partitions = np.arange(partitions, dtype=NUMBER)
    state.next_offsets = np.full(partitions, 10 * NAMED, np.int64)
    state.reconciled, state.log_start = state.next_offsets - 1, np.zeros(partitions, np.int64)
    handle.state.topics[topic.revision] = state
    handle.replica.write_checkpoint()
    return cluster, store


def _name_of(partition: int, slot: int, *, orphan: bool = False) -> uuid.UUID:
    """Return a name that does not compress, as real names do not: a reader that needs no rows skips the second part of
    a checkpoint.
    """
    drawn = hashlib.blake2b(b"%d/%d" % (partition, slot), digest_size=15).digest()
    return uuid.UUID(bytes=drawn + bytes([orphan]))


def _rows_of(partition: int) -> Rows:
    rows = [
        (partition, 10 * i, 10 * i + 9, OBJECT_BYTES, 0, 1 + i // 100, _name_of(partition, i).bytes, 0)
        for i in range(NAMED)
    ]
    return np.array(rows, L1_ROW)
