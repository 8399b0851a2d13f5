"""Creates topics whose partitions share L1 objects, and drains them."""

from __future__ import annotations

from typing import Any

from l0gc.storage.workers import LocalWorkers
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.journal.topic import TopicState
from l0gc.streamlog.level_one.merge import MergeResult, plan_merge, run_merge
from l0gc.streamlog.level_one.merge_plan import DRAINED_AGE_MS
from l0gc.streamlog.reader import read_topic
from tests.support.memory_store import memory_cluster, store_of
from tests.support.reconcile import put, reconcile

Values = dict[int, list[bytes]]
"""The values of each partition's records."""


def share(cluster: ClusterHandles, *numbers: int, partitions: int = 100) -> Values:
    """Lift two records of each partition for each number, in one shared object for each number; return the records."""
    lifted: Values = {}
    for n in numbers:
        batch = {p: [b"%d-%d-%d" % (p, n, i) for i in range(2)] for p in range(partitions)}
        put(cluster, "events", batch)
        assert reconcile(cluster).l1_objects == 1
        lifted = {p: [*lifted.get(p, []), *some] for p, some in batch.items()}
    return lifted


def loaded(rounds: int, partitions: int = 100, **settings: Any) -> tuple[ClusterHandles, Topic, Values]:
    """Create a topic whose partitions share an object of each round, with two records each."""
    cluster = memory_cluster()
    topic, _ = cluster.controller.create_topic("events", partitions, 1, **settings)
    return cluster, topic, share(cluster, *range(rounds), partitions=partitions)


def state_of(cluster: ClusterHandles) -> TopicState:
    """Return the journal's state of the topic."""
    return cluster.journal(0).catch_up().topic(cluster.controller.snapshot().topic("events").revision)


def values(cluster: ClusterHandles) -> Values:
    """Return what a reader of the whole topic gets."""
    topic = cluster.controller.snapshot().topic("events")
    read: Values = {p: [] for p in range(topic.partitions)}
    for r in read_topic(cluster, topic):
        assert r.offset == len(read[r.partition])
        read[r.partition].append(r.value)
    return read


def a_day_passes(cluster: ClusterHandles) -> None:
    store_of(cluster).clock.ms += DRAINED_AGE_MS
    cluster.controller.advance()


def drain(cluster: ClusterHandles) -> MergeResult:
    """Merge once the shared objects are a day old."""
    a_day_passes(cluster)
    return run_merge(cluster, plan_merge(cluster), LocalWorkers(cluster))
