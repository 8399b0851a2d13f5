"""Creates a topic with L1 objects an hour apart, and lists what its partitions hold after deletions."""

from __future__ import annotations

from l0gc.operations import Read
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.reader import read_topic
from tests.support.memory_store import memory_cluster
from tests.support.reconcile import put, reconcile


def cluster_with(
    objects: int = 3, *, spare: int = 0, partitions: int = 2, journals: int = 1
) -> tuple[ClusterHandles, Topic]:
    """Create a topic with this many L1 objects of ten records in each partition, an hour apart, and `spare` more
    objects in L0.
    """
    cluster = memory_cluster()
    topic, _ = cluster.controller.create_topic("events", partitions, journals)
    for n in range(objects + spare):
        put(cluster, "events", {p: [b"%d:%d" % (p, 10 * n + i) for i in range(10)] for p in range(partitions)})
        if n < objects:
            reconcile(cluster)
        cluster.runtime.clock.sleep(3600)
    return cluster, topic


def values(cluster: ClusterHandles, topic: Topic, partition: int) -> list[int]:
    return [int(r.value.split(b":")[1]) for r in read_topic(cluster, topic, Read(partition=partition))]


def log_starts(cluster: ClusterHandles, topic: Topic) -> list[int]:
    return [
        cluster.journal(topic.journal_of(p)).catch_up().topic(topic.revision).view(p).log_start_offset
        for p in range(topic.partitions)
    ]
