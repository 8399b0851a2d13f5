"""Status: what M is, what it could be, what holds it back, and what to do next; from the logs, and without a change."""

from __future__ import annotations

from pathlib import Path

import pytest

from l0gc.cluster import Cluster
from l0gc.errors import ClusterMismatchError, NotInitialisedError
from l0gc.keys import partition_log
from l0gc.upkeep.housekeep import housekeep
from l0gc.upkeep.status import status
from l0gc.watermark.publication import PublishedWatermark, publish
from tests.support.ingest import upload
from tests.support.memory_store import MemoryStore, memory_cluster
from tests.support.reconcile import reconcile


def new_cluster() -> Cluster:
    cluster = memory_cluster()
    cluster.controller.create_topic("events", 2)
    return cluster


def store_of(cluster: Cluster) -> MemoryStore:
    assert isinstance(cluster.store, MemoryStore)
    return cluster.store


def put(cluster: Cluster, tmp_path: Path, records: int = 4) -> None:
    path = tmp_path / "in"
    path.write_bytes(b"".join(b"%d\n" % n for n in range(records)))
    upload(cluster, "events", [path])


def publish_now(cluster: Cluster, *, cluster_id: str = "", objects: int = -1) -> None:
    s = status(cluster)
    new = PublishedWatermark(cluster_id or s.cluster_id, s.now.watermark, s.cluster_epoch, 0, objects, objects)
    publish(cluster.store, cluster.runtime, new)


def test_the_next_step_leads_from_an_upload_to_an_empty_l0(tmp_path: Path) -> None:
    cluster = new_cluster()
    publish_now(cluster)
    assert status(cluster).next_step.startswith("nothing")
    put(cluster, tmp_path)
    assert status(cluster).next_step.startswith("l0gc reconcile")
    reconcile(cluster)
    for _ in range(3):
        cluster.controller.advance()
    assert status(cluster).next_step.startswith("l0gc housekeep")
    housekeep(cluster)
    housekeep(cluster, barrier=True)
    assert status(cluster).next_step.startswith("l0gc compute-watermark")
    publish_now(cluster)
    s = status(cluster)
    assert s.next_step.startswith("nothing")
    assert s.watermark == s.now.watermark == s.cluster_epoch - 1


def test_counts_come_from_the_logs_and_not_from_reports(tmp_path: Path) -> None:
    cluster = new_cluster()
    put(cluster, tmp_path, 7)
    reconcile(cluster)
    put(cluster, tmp_path, 4)
    s = status(memory_cluster(store_of(cluster), seed=1, bootstrap=False))
    assert (s.topics, s.records, s.unreconciled_records, s.cluster_epoch) == (1, 11, 4, 1)
    assert (s.watermark, s.eligible_objects) == (-1, -1)
    assert [(h.topic, h.partition, h.gc_epoch) for h in s.now.held_back_by] == [("events", 0, 0), ("events", 1, 0)]
    assert "unreconciled records from epoch 1 on: run l0gc reconcile" in s.now.held_back_by[0].reason


def test_what_the_last_listing_found_is_repeated() -> None:
    cluster = new_cluster()
    publish_now(cluster, objects=17)
    assert status(cluster).eligible_objects == 17


def test_without_topics_m_is_the_epoch() -> None:
    cluster = memory_cluster()
    cluster.controller.advance()
    s = status(cluster)
    assert (s.now.watermark, s.now.cluster_epoch, s.now.held_back_by) == (1, 1, [])


def test_a_damaged_partition_comes_first_and_holds_m_at_its_revision(tmp_path: Path) -> None:
    cluster = new_cluster()
    put(cluster, tmp_path)
    reconcile(cluster)
    folder = partition_log(cluster.controller.snapshot().topic("events").ids()[1])
    key = min(k for k in store_of(cluster).objects if k.startswith(folder))
    store_of(cluster).objects[key].body = b"not an entry"
    s = status(memory_cluster(store_of(cluster), seed=1, bootstrap=False))
    assert [key in e for e in s.errors] == [True]
    assert s.now.watermark == 0
    assert "restore" in s.next_step


def test_looking_changes_nothing(tmp_path: Path) -> None:
    cluster = new_cluster()
    put(cluster, tmp_path)
    before = dict(store_of(cluster).objects)
    status(memory_cluster(store_of(cluster), seed=1, bootstrap=False))
    assert store_of(cluster).objects == before


def test_another_clusters_watermark_is_refused() -> None:
    """Hazard 11."""
    cluster = new_cluster()
    publish_now(cluster, cluster_id="somebody else's")
    with pytest.raises(ClusterMismatchError):
        status(cluster)


def test_without_a_cluster_there_is_no_status() -> None:
    with pytest.raises(NotInitialisedError, match="l0gc init"):
        status(memory_cluster(bootstrap=False))
