"""A partition with records in L1 and in L0, to be looked at and damaged."""

from __future__ import annotations

from pathlib import Path

from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.ingest.partitioner import FixedPartition
from l0gc.streamlog.journal.handle import PartitionHandle
from l0gc.streamlog.journal.state import PartitionState
from tests.support.ingest import upload
from tests.support.memory_store import MemoryStore, memory_cluster
from tests.support.reconcile import reconcile


def loaded_cluster(tmp_path: Path) -> Cluster:
    """Topic events, one partition: records 0 to 9 in one L1 object, 10 to 19 in two L0 objects."""
    cluster = memory_cluster()
    cluster.controller.create_topic("events", 1)
    put(cluster, tmp_path, 10)
    reconcile(cluster)
    put(cluster, tmp_path, 10)
    return cluster


def put(cluster: Cluster, tmp_path: Path, records: int) -> None:
    """Upload so many records, five to an L0 object."""
    path = tmp_path / "in"
    path.write_bytes(b"".join(b"record-%05d\n" % n for n in range(records)))
    upload(cluster, "events", [path], partitioner=FixedPartition(0, 1), batch_bytes=5 * (12 + 16))


def store_of(cluster: Cluster) -> MemoryStore:
    assert isinstance(cluster.store, MemoryStore)
    return cluster.store


def another_process(cluster: Cluster) -> Cluster:
    return memory_cluster(store_of(cluster), seed=1, bootstrap=False)


def handle_of(cluster: Cluster) -> PartitionHandle:
    return cluster.partition(cluster.controller.snapshot().topic("events").ids()[0])


def state_of(cluster: Cluster) -> PartitionState:
    return handle_of(cluster).catch_up()
