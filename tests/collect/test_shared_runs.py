"""Shared L1 objects that a vacuum deleted: found in its record, explained, restored, and deleted again."""

from __future__ import annotations

import uuid

import pytest

from l0gc.collect.history import KeyInRun, find_in_runs, undelete
from l0gc.collect.vacuum import VacuumResult
from l0gc.inspect.explain import explain_key
from l0gc.runtime import Runtime
from l0gc.storage.config import StoreConfig
from l0gc.storage.objectstore import ObjectStore
from l0gc.storage.s3 import S3Store
from l0gc.storage.workers import LocalWorkers
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.housekeep import housekeep
from l0gc.streamlog.level_one import merge_plan
from l0gc.streamlog.level_one.merge import plan_merge, run_merge
from l0gc.streamlog.level_one.share import LEAST_PARTITIONS
from tests.storage.test_history import set_versioning
from tests.support.reconcile import named, put, reconcile
from tests.support.vacuum import vacuum


@pytest.fixture
def cluster(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> ClusterHandles:
    """Create a topic whose partitions share an object, in a bucket that keeps versions."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATESTACCESSKEY000")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    store = S3Store(StoreConfig.from_url(f"s3://bucket-{uuid.uuid4()}/a/prefix", endpoint_url=endpoint))
    store.create_bucket()
    set_versioning(store, "Enabled")
    cluster = ClusterHandles(store, Runtime())
    cluster.controller.bootstrap(shards=2, journals=1)
    cluster.controller.create_topic("events", LEAST_PARTITIONS, 1)
    put(cluster, "events", {p: [b"%d" % p] for p in range(LEAST_PARTITIONS)})
    reconcile(cluster)
    return cluster


def drain(cluster: ClusterHandles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_plan, "DRAINED_ROWS", 1)
    assert run_merge(cluster, plan_merge(cluster), LocalWorkers(cluster)).drained == LEAST_PARTITIONS


def vacuum_later(cluster: ClusterHandles) -> VacuumResult:
    for _ in range(3):
        cluster.controller.advance()
    housekeep(cluster)
    return vacuum(cluster)


def in_runs(cluster: ClusterHandles, key: str) -> KeyInRun:
    found = find_in_runs(cluster, key)
    assert found is not None
    return found


def is_there(store: ObjectStore, key: str) -> bool:
    return key in store.list(key).modified_ms


def test_a_vacuumed_shared_object_is_found_and_brought_back(
    cluster: ClusterHandles, monkeypatch: pytest.MonkeyPatch
) -> None:
    (key,) = named(cluster, "events")
    drain(cluster, monkeypatch)
    assert "Journal 0 has dropped it" in str(explain_key(cluster, key).explanation)
    vacuum_later(cluster)
    assert is_there(cluster.store, key), "only the next one finds the L1 fence above its stamp"
    deleted = vacuum(cluster)
    assert not is_there(cluster.store, key)
    found = in_runs(cluster, key)
    assert (found.run_id, found.command, found.status, found.kept) == (deleted.run_id, "vacuum", "deleted", True)
    explained = explain_key(cluster, key)
    assert explained.verdict == "gone"
    assert f"l0gc undelete --run {deleted.run_id}" in explained.explanation[-1]

    back = undelete(cluster, deleted.run_id)
    assert (back.restored, back.gone) == (deleted.objects, 0)
    assert is_there(cluster.store, key)
    assert in_runs(cluster, key).status == "restored"
    assert "No journal that could be read names it" in str(explain_key(cluster, key).explanation)

    again = vacuum_later(cluster)
    assert not is_there(cluster.store, key)
    assert (in_runs(cluster, key).run_id, in_runs(cluster, key).status) == (again.run_id, "deleted")


def test_a_live_shared_object_that_is_missing_is_missed_by_explain(cluster: ClusterHandles) -> None:
    (key,) = named(cluster, "events")
    cluster.store.delete([key])
    explained = explain_key(cluster, key)
    assert explained.verdict == "missing"
    assert "Journal 0 names it: its records of 64 partitions are live." in explained.explanation
