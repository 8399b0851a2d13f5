"""`explain` names what holds an object, an epoch or a partition, and the command that it names moves it."""

from __future__ import annotations

from pathlib import Path

import pytest

from l0gc.collect.local import LocalSweep
from l0gc.errors import ExternalLogError, NotFoundError, UsageError
from l0gc.inspect.explain import explain_epoch, explain_key, explain_partition
from l0gc.keys import PartitionId
from l0gc.storage.parallel import Inline
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.housekeep import housekeep
from l0gc.watermark import external_log, job
from l0gc.watermark.compute import PartitionReport
from l0gc.watermark.reports import report_of
from tests.support.ingest import upload
from tests.support.memory_store import Call, MemoryStore, memory_cluster
from tests.support.reconcile import reconcile


@pytest.fixture
def needed(tmp_path: Path) -> tuple[Cluster, str]:
    """A cluster with one topic of two partitions, and one object that both refer to."""
    cluster = memory_cluster()
    cluster.controller.create_topic("t", 2)
    lines = tmp_path / "lines"
    lines.write_bytes(b"a\nb\n")
    return cluster, upload(cluster, "t", [lines]).placeholders[0].key


def compute_m(cluster: Cluster) -> int:
    snapshot = cluster.controller.snapshot()

    def reports() -> list[PartitionReport]:
        handles = [cluster.partition(p) for p in snapshot.partitions()]
        return [report_of(snapshot.cluster_id, h.partition, h.catch_up(), h.replica.offset) for h in handles]

    return job.run(cluster, reports, None).watermark.watermark


def test_an_object_that_a_placeholder_names_is_needed_and_reconcile_moves_it(needed: tuple[Cluster, str]) -> None:
    cluster, key = needed
    e = explain_key(cluster, key)
    assert (e.verdict, e.next_step, e.held_by) == ("needed", "l0gc reconcile", 2)
    assert "Partition t/0 needs it: log entry 0 refers to it for the records 0 to 0" in e.sentences[0]
    reconcile(cluster)
    e = explain_key(cluster, key)
    assert e.verdict == "held"
    assert "No partition's log refers to it any more" in e.sentences[0]
    assert "its window is" in e.sentences[1]
    assert e.next_step.startswith("l0gc housekeep")


def test_what_no_partition_needs_is_released_by_a_new_watermark_and_deleted_by_a_sweep(
    needed: tuple[Cluster, str],
) -> None:
    cluster, key = needed
    reconcile(cluster)
    housekeep(cluster, barrier=True)
    assert explain_key(cluster, key).verdict == "releasable"
    compute_m(cluster)
    e = explain_key(cluster, key)
    assert (e.verdict, e.next_step) == ("eligible", "l0gc sweep")
    LocalSweep(cluster).run(Inline())
    assert explain_key(cluster, key).verdict == "gone"


def test_an_epoch_is_held_by_the_lowest_partitions_first(needed: tuple[Cluster, str]) -> None:
    cluster, key = needed
    epoch = cluster.controller.layout().parse(key)
    assert epoch is not None
    e = explain_epoch(cluster, epoch.epoch)
    assert (e.verdict, e.held_by, e.next_step) == ("held", 2, "l0gc reconcile")
    assert [h.partition for h in e.holders] == [0, 1]
    assert e.holders[0].placeholder == key
    assert explain_epoch(cluster, cluster.controller.epoch() + 5).verdict == "above the cluster epoch"


def test_a_partition_tells_what_it_holds(needed: tuple[Cluster, str]) -> None:
    cluster, key = needed
    e = explain_partition(cluster, "t/1")
    assert (e.verdict, e.holders[0].placeholder, e.next_step) == ("holds", key, "l0gc reconcile")
    reconcile(cluster)
    p = PartitionId("t", cluster.controller.snapshot().topic("t").revision, 1)
    cluster.partition(p).barrier(cluster.controller.advance())
    e = explain_partition(cluster, "t/1")
    assert e.verdict == "does not hold M"


@pytest.mark.parametrize(("name", "error"), [("t", UsageError), ("t/x", UsageError), ("t/9", NotFoundError)])
def test_a_partition_that_is_none_is_refused(needed: tuple[Cluster, str], name: str, error: type[Exception]) -> None:
    cluster, _ = needed
    with pytest.raises(error):
        explain_partition(cluster, name)


def test_foreign_objects_are_never_deleted_and_unknown_keys_are_not_found(needed: tuple[Cluster, str]) -> None:
    cluster, _ = needed
    store = cluster.store
    assert isinstance(store, MemoryStore)
    store.put("level_zero/data/README", b"x")
    assert explain_key(cluster, "level_zero/data/README").verdict == "foreign"
    with pytest.raises(NotFoundError):
        explain_key(cluster, "nonsense")


def test_a_log_that_cannot_be_read_is_named(needed: tuple[Cluster, str]) -> None:
    cluster, key = needed
    store = cluster.store
    assert isinstance(store, MemoryStore)
    entry = next(k for k in store.objects if k.startswith("l0gc/partition/") and "/00001/log/" in k)
    store.put(entry, b"nonsense")
    fresh = memory_cluster(store, bootstrap=False)
    e = explain_epoch(fresh, 1)
    assert len(e.broken) == 1
    assert entry in e.broken[0]
    assert e.next_step.startswith("restore")
    assert explain_key(fresh, key).verdict == "needed"


def test_while_a_log_cannot_be_read_nobody_says_that_none_refers_to_an_object(needed: tuple[Cluster, str]) -> None:
    cluster, key = needed
    store = cluster.store
    assert isinstance(store, MemoryStore)
    for entry in [k for k in store.objects if k.startswith("l0gc/partition/") and "/log/" in k]:
        store.put(entry, b"nonsense")
    e = explain_key(memory_cluster(store, bootstrap=False), key)
    assert (e.verdict, len(e.broken)) == ("held", 2)
    assert not [s for s in e.sentences if "No partition's log" in s]


def test_an_object_that_is_reconciled_and_swept_behind_the_look_at_the_logs_is_not_missing(
    needed: tuple[Cluster, str],
) -> None:
    cluster, key = needed
    store = cluster.store
    assert isinstance(store, MemoryStore)

    def collect(call: Call) -> None:
        if call.kind in {"list", "scan"} and call.key == key:
            store.fault = lambda call: None
            other = memory_cluster(store, seed=1, bootstrap=False)
            reconcile(other)
            housekeep(other, barrier=True)
            compute_m(other)
            assert LocalSweep(other).run(Inline()).deleted == 1

    store.fault = collect
    assert explain_key(cluster, key).verdict == "gone"
    assert key not in store.objects


def test_an_object_that_is_lost_is_missing(needed: tuple[Cluster, str]) -> None:
    cluster, key = needed
    cluster.store.delete([key])
    e = explain_key(cluster, key)
    assert (e.verdict, e.held_by) == ("missing", 2)
    assert e.next_step.startswith("restore it")


def test_a_folder_is_no_object_and_one_page_tells(needed: tuple[Cluster, str]) -> None:
    cluster, key = needed
    store, folder = cluster.store, key.rpartition("/")[0] + "/"
    assert isinstance(store, MemoryStore)
    store.page_size = 1
    store.put(f"{key}.tmp", b"x")
    asked: list[Call] = []
    store.fault = asked.append
    with pytest.raises(NotFoundError, match="no L0 key"):
        explain_key(cluster, folder)
    assert [c.kind for c in asked if c.key == folder] == ["scan"]
    assert explain_key(cluster, key).verdict == "needed"
    assert explain_key(cluster, f"{key}.tmp").verdict == "foreign"


def test_of_another_systems_log_only_m_is_known() -> None:
    cluster = memory_cluster(bootstrap=False)
    cluster.controller.bootstrap(shards=4, external_log=True)
    key = cluster.controller.layout().format(1, 41, cluster.runtime.new_id())
    cluster.store.put(key, b"x")
    e = explain_key(cluster, key)
    assert (e.verdict, e.watermark, e.cluster_epoch, e.sentences[1:]) == ("held", -1, -1, [])
    assert e.next_step.startswith("l0gc compute-watermark --reports")
    external_log.publish(cluster, cluster_epoch=50, partitions={("t", 0): 1}, gc_epochs={("t", 0): 40})
    assert explain_key(cluster, key).verdict == "held"
    assert explain_epoch(cluster, 51).verdict == "held"
    e = explain_epoch(cluster, 40)
    assert (e.verdict, e.cluster_epoch) == ("eligible", 50)
    with pytest.raises(ExternalLogError, match="t/0 is another system's"):
        explain_partition(cluster, "t/0")
