"""Status: what M is, what it could be, what holds it back, and what to do next; from the logs, and without a change."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from l0gc.collect.pause import set_pause
from l0gc.collect.record import RunSummary, write_summary
from l0gc.errors import NotInitialisedError
from l0gc.inspect.status import Garbage, status
from l0gc.keys import partition_log
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.housekeep import housekeep
from l0gc.watermark import external_log
from l0gc.watermark.publication import PublishedWatermark, publish
from tests.support.ingest import upload
from tests.support.memory_store import Call, MemoryStore, memory_cluster
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
    assert s.computable is not None
    at = cluster.store.now_ms()
    new = PublishedWatermark(cluster_id or s.cluster_id, s.computable, s.cluster_epoch, at, objects, objects)
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
    assert s.watermark == s.computable == s.reported == s.cluster_epoch - 1


def test_counts_come_from_the_logs_and_not_from_reports(tmp_path: Path) -> None:
    cluster = new_cluster()
    put(cluster, tmp_path, 7)
    reconcile(cluster)
    put(cluster, tmp_path, 4)
    s = status(memory_cluster(store_of(cluster), seed=1, bootstrap=False))
    assert (s.topics, s.records, s.unreconciled_records, s.cluster_epoch) == (1, 11, 4, 1)
    assert (s.watermark, s.garbage.objects) == (-1, -1)
    assert [(h.topic, h.partition, h.gc_epoch, h.kind, h.unreconciled_records) for h in s.held] == [
        ("events", 0, 0, "unreconciled", 2),
        ("events", 1, 0, "unreconciled", 2),
    ]
    assert s.held[0].oldest_ms == store_of(cluster).clock.ms


def test_what_the_last_listing_found_is_repeated() -> None:
    cluster = new_cluster()
    publish_now(cluster, objects=17)
    store_of(cluster).clock.sleep(60)
    s = status(cluster)
    assert s.garbage == Garbage(17, 17, s.as_of_ms - 60_000)
    deleted = RunSummary("", 0, 0, 0, "local", "off", False, 0, 4, 0, "done", deleted=5, bytes=5)
    for seconds in (-60, 60):
        name = f"{datetime.fromtimestamp(s.as_of_ms / 1000 + seconds, UTC):%Y%m%dT%H%M%SZ}-0123abcd"
        write_summary(cluster.store, msgspec.structs.replace(deleted, run_id=name))
    s = status(cluster)
    assert (s.garbage.deleted_objects, s.garbage.left_bytes, len(s.runs)) == (10, 7, 2)


def test_without_topics_m_is_the_epoch() -> None:
    cluster = memory_cluster()
    cluster.controller.advance()
    s = status(cluster)
    assert (s.computable, s.cluster_epoch, s.held) == (1, 1, [])


def test_a_damaged_partition_comes_first_and_holds_m_at_its_revision(tmp_path: Path) -> None:
    cluster = new_cluster()
    put(cluster, tmp_path)
    reconcile(cluster)
    folder = partition_log(cluster.controller.snapshot().topic("events").ids()[1])
    key = min(k for k in store_of(cluster).objects if k.startswith(folder))
    store_of(cluster).objects[key].body = b"not an entry"
    s = status(memory_cluster(store_of(cluster), seed=1, bootstrap=False))
    assert [key in e for e in s.errors] == [True]
    assert s.computable == 0
    assert [c.cause for c in s.causes] == ["broken_log"]
    assert "restore" in s.next_step


def test_looking_changes_nothing(tmp_path: Path) -> None:
    cluster = new_cluster()
    put(cluster, tmp_path)
    before = dict(store_of(cluster).objects)
    status(memory_cluster(store_of(cluster), seed=1, bootstrap=False))
    assert store_of(cluster).objects == before


def test_another_clusters_watermark_is_a_cause() -> None:
    """Hazard 11: commands refuse it; status says so, and tells the rest."""
    cluster = new_cluster()
    publish_now(cluster, cluster_id="somebody else's")
    s = status(cluster)
    assert [c.cause for c in s.causes] == ["foreign_watermark"]
    assert (s.watermark, s.computable) == (-1, 0)


def test_the_age_of_m_is_that_of_the_epoch_behind_it() -> None:
    cluster = new_cluster()
    store = store_of(cluster)
    for _ in range(3):
        store.clock.sleep(600)
        cluster.controller.advance()
        housekeep(cluster)
    publish_now(cluster)
    store.clock.sleep(60)
    s = status(cluster)
    # M is 2 at epoch 4: epoch 3 began one tick and a minute ago.
    assert (s.watermark, s.cluster_epoch, s.lag_ms, s.lag_at_least) == (2, 4, 660_000, False)
    del store.objects[cluster.controller.replica.log.entry_key(3)]  # as a truncation would
    s = status(cluster)
    assert (s.lag_ms, s.lag_at_least) == (60_000, True)


def test_where_m_is_the_epoch_it_has_no_age() -> None:
    cluster = memory_cluster()
    publish_now(cluster)
    assert status(cluster).lag_ms == 0


def external_log_cluster() -> Cluster:
    cluster = memory_cluster(bootstrap=False)
    cluster.controller.bootstrap(shards=4, external_log=True)
    return cluster


def test_of_a_system_with_its_external_log_the_epoch_is_the_one_that_was_published() -> None:
    cluster = external_log_cluster()
    s = status(cluster)
    assert (s.cluster_epoch, s.watermark, s.lag_epochs, s.computable, s.lag_ms) == (-1, -1, 0, None, None)
    external_log.publish(cluster, cluster_epoch=12, partitions={("clicks", 0): 0}, gc_epochs={("clicks", 0): 7})
    store_of(cluster).clock.sleep(86_400)
    s = status(cluster)
    assert (s.cluster_epoch, s.watermark, s.lag_epochs, s.lag_ms) == (12, 7, 5, None)
    assert (s.causes, s.next_step) == ([], "l0gc compute-watermark --reports PATH --partitions PATH")
    set_pause(cluster.store, "disk audit", "ann")
    s = status(cluster)
    assert ([c.cause for c in s.causes], s.next_step) == (["paused"], "l0gc resume")


def test_more_reports_than_anybody_waits_for_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = new_cluster()
    housekeep(cluster)
    assert status(cluster).reported == 0
    monkeypatch.setattr("l0gc.inspect.status.MOST_REPORT_FILES", 0)
    assert status(cluster).reported is None


def test_a_damaged_report_is_a_cause() -> None:
    cluster = new_cluster()
    housekeep(cluster)
    cluster.store.put("l0gc/watermarks/reports/housekeep/bad.parquet", b"x")
    s = status(cluster)
    assert s.reported is None
    assert [c.cause for c in s.causes] == ["damaged_report"]
    assert "bad.parquet" in s.causes[0].detail


def test_an_object_that_was_swept_since_the_look_is_not_called_missing(tmp_path: Path) -> None:
    """Another process reconciles and sweeps while status looks."""
    cluster = new_cluster()
    put(cluster, tmp_path)
    for _ in range(3):
        cluster.controller.advance()
        housekeep(cluster)
    store = store_of(cluster)
    other = memory_cluster(store, seed=1, bootstrap=False)
    (key,) = [k for k in store.objects if k.startswith("level_zero/")]

    def gone(call: Call) -> None:
        if call.kind == "scan" and call.key == key and call.when == "before":
            store.fault = lambda call: None
            reconcile(other)
            del store.objects[key]

    store.fault = gone
    assert "damaged_object" not in {c.cause for c in status(cluster).causes}
    assert key not in store.objects


def test_without_a_cluster_there_is_no_status() -> None:
    with pytest.raises(NotInitialisedError, match="l0gc init"):
        status(memory_cluster(bootstrap=False))
