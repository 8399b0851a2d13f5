"""Creates clusters with small L1 objects, and reads the results of merges."""

from __future__ import annotations

from typing import Any

from l0gc.storage.workers import LocalWorkers, Workers
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.journal.rows import name_text
from l0gc.streamlog.journal.topic import l1_key
from l0gc.streamlog.level_one.merge import DEFAULT_RULE, MAX_BYTES, MergeResult, plan_merge, run_merge
from l0gc.streamlog.level_one.merge_plan import MergeRule
from l0gc.streamlog.level_one.parquet import L1_COLUMNS
from tests.support.memory_store import store_of, topic_in_memory
from tests.support.reconcile import files, l1_records, partition_of, put, reconcile

PARTITIONS = 4


def a_cluster(journals: int = 2) -> ClusterHandles:
    """Return a cluster on a store in memory, with a topic `events`."""
    return topic_in_memory(PARTITIONS, journals)


def merge(
    cluster: ClusterHandles,
    topic: str | None = None,
    rule: MergeRule = DEFAULT_RULE,
    *,
    dry_run: bool = False,
    max_bytes: int = MAX_BYTES,
    workers: Workers[ClusterHandles] | None = None,
) -> MergeResult:
    """Run a whole merge, by default in this process."""
    plan = plan_merge(cluster, topic, rule, max_bytes)
    return plan.total if dry_run else run_merge(cluster, plan, workers or LocalWorkers(cluster))


def fill(
    cluster: ClusterHandles, times: int, first: int = 0, topic: str = "events", partitions: int = PARTITIONS
) -> None:
    """Reconcile this many batches, each at its own epoch, of three records in each partition: with a key, without one,
    empty.
    """
    for n in range(first, first + times):
        put(cluster, topic, {p: [b"%d:%d" % (p, n), b"no key %d" % n, b""] for p in range(partitions)})
        cluster.controller.advance(None)
        reconcile(cluster, topic)


def rows(cluster: ClusterHandles, partition: int, topic: str = "events") -> list[dict[str, Any]]:
    """Return the records of a partition in L1, with all their columns."""
    p = partition_of(cluster, topic, partition)
    found: list[dict[str, Any]] = []
    for f in files(cluster, topic, partition):
        for _, batch in l1_records(cluster.store, l1_key(p, f), f, names=L1_COLUMNS.names):
            found += batch.to_pylist()
    return found


def content(cluster: ClusterHandles, topic: str = "events", partitions: int = PARTITIONS) -> list[list[dict[str, Any]]]:
    return [rows(cluster, p, topic) for p in range(partitions)]


def counts(cluster: ClusterHandles, topic: str = "events", partitions: int = PARTITIONS) -> list[int]:
    """Return how many L1 objects each partition has."""
    return [len(files(cluster, topic, p)) for p in range(partitions)]


def stored(cluster: ClusterHandles) -> set[str]:
    """Return the names of all L1 objects in the bucket."""
    return {name_of(k) for k in store_of(cluster).objects if k.startswith("level_one/")}


def name_of(key: str) -> str:
    return key.removesuffix(".parquet")[-36:]


def dropped(cluster: ClusterHandles, topic: str = "events") -> set[str]:
    """Return the names of the objects that the topic's journals have dropped."""
    found: set[str] = set()
    for journal in cluster.controller.snapshot().topic(topic).journals:
        found |= {name_text(name) for name in cluster.journal(journal).catch_up().dropped["name"]}
    return found
