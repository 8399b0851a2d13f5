"""compute-watermark without Spark: what it reads in which order, and what it refuses."""

from __future__ import annotations

import pytest

from l0gc.errors import EpochRegressionError
from l0gc.keys import PartitionId
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.journal.state import PartitionState
from l0gc.watermark import job
from l0gc.watermark.compute import PartitionReport
from l0gc.watermark.job import EpochRow
from l0gc.watermark.publication import PublishedWatermark, read_published
from l0gc.watermark.reports import report_of
from l0gc.watermark.scans import KeptScan, ScanSnapshot, keep_scan, list_scans, read_scan
from tests.support.memory_store import memory_cluster


def report(cluster: Cluster, topic: str, revision: int) -> PartitionReport:
    cluster_id = cluster.controller.snapshot().cluster_id
    return report_of(cluster_id, PartitionId(topic, revision, 0), PartitionState.new(revision), 0)


def published(cluster: Cluster) -> PublishedWatermark | None:
    return read_published(cluster.store, cluster.controller.snapshot().cluster_id)[0]


def test_a_topic_created_while_the_reports_are_read_does_not_let_m_past_the_snapshot() -> None:
    """Hazard 5."""
    cluster = memory_cluster()

    def create_meanwhile() -> list[PartitionReport]:
        for name in ("a", "b", "c"):
            cluster.controller.create_topic(name, 1)
        return [report(cluster, "c", 3)]

    assert job.run(cluster, create_meanwhile, None).watermark.watermark == 0


def test_uploads_that_go_on_during_the_scan_are_no_sign_of_an_old_backup() -> None:
    """Hazard 10: the epoch is compared as it is after the scan."""
    cluster = memory_cluster()

    def scan(layout: object) -> list[EpochRow]:
        epoch = cluster.controller.advance()
        return [EpochRow(epoch, 1, 10, "some/key")]

    result = job.run(cluster, list, scan)
    assert result.watermark.watermark == 0
    assert result.listing is not None
    assert (result.listing.totals.objects, result.listing.totals.eligible_objects) == (1, 0)


def test_an_object_above_the_cluster_epoch_stops_everything() -> None:
    """Hazard 10."""
    cluster = memory_cluster()
    with pytest.raises(EpochRegressionError, match="some/key is at epoch 5, above the cluster epoch 0"):
        job.run(cluster, list, lambda layout: [EpochRow(5, 1, 10, "some/key")])
    assert published(cluster) is None


def test_a_report_above_the_cluster_epoch_stops_everything() -> None:
    """Hazard 10, without a scan."""
    cluster = memory_cluster()
    with pytest.raises(EpochRegressionError, match="partition lost/0 is at epoch 5, above the cluster epoch 0"):
        job.run(cluster, lambda: [report(cluster, "lost", 5)], None)
    assert published(cluster) is None


def test_a_report_of_a_topic_that_the_controller_never_knew_stops_everything() -> None:
    """Hazard 10, after the epoch has caught up with the data: the lost topic's objects would be released."""
    cluster = memory_cluster()
    for _ in range(9):
        cluster.controller.advance()
    with pytest.raises(EpochRegressionError, match=r"topic 'lost' \(revision 5\), which"):
        job.run(cluster, lambda: [report(cluster, "lost", 5)], None)
    assert published(cluster) is None


def test_a_report_of_a_deleted_topic_holds_nothing_back() -> None:
    """Hazard 6."""
    cluster = memory_cluster()
    topic, _ = cluster.controller.create_topic("gone", 1)
    cluster.controller.delete_topic("gone")
    result = job.run(cluster, lambda: [report(cluster, "gone", topic.revision)], None)
    assert result.watermark.watermark == 2


def test_a_look_publishes_nothing() -> None:
    cluster = memory_cluster()
    assert job.run(cluster, list, None, publish_it=False).published is False
    assert published(cluster) is None


def test_a_scan_tells_who_holds_what_and_since_when() -> None:
    cluster = memory_cluster()
    for name, partitions in (("a", 1), ("b", 2)):
        cluster.controller.create_topic(name, partitions)
    for _ in range(3):
        cluster.controller.advance()
    rows = [EpochRow(5, 1, 1, "e", 50), EpochRow(None, 2, 20, "x", 7, ["x", "y"]), EpochRow(0, 3, 30, "a", 9)]
    rows += [EpochRow(1, 4, 40, "b", 8), EpochRow(2, 5, 50, "c", 11)]
    scan = job.run(cluster, lambda: [report(cluster, "a", 1)], lambda layout: rows).listing
    assert scan is not None
    assert [(r.epoch, r.held_by, r.holders) for r in scan.rows] == [
        (0, "", 0), (1, "a/0", 1), (2, "a/0", 3), (5, "a/0", 3), (None, "", 0)
    ]  # fmt: skip
    t = scan.totals
    assert (t.watermark, t.cluster_epoch, t.source, t.unparsable_samples) == (0, 5, "listing", ["x", "y"])
    assert (t.objects, t.bytes, t.unparsable, t.unparsable_bytes) == (15, 141, 2, 20)
    assert (t.eligible_objects, t.eligible_bytes, t.oldest_eligible_ms, t.oldest_held_ms) == (3, 30, 9, 8)


def test_a_scan_is_kept_when_m_is_published_and_only_then() -> None:
    cluster = memory_cluster()

    def scan(layout: object) -> list[EpochRow]:
        return [EpochRow(0, 1, 10, "some/key", 3)]

    def keep(scan: ScanSnapshot) -> KeptScan:
        assert published(cluster) is not None
        return keep_scan(cluster.store, cluster.runtime, scan)

    looked = job.run(cluster, list, scan, publish_it=False, keep=keep)
    assert (looked.kept, list_scans(cluster.store)) == (None, [])
    assert job.run(cluster, list, None, keep=keep).kept is None
    with pytest.raises(EpochRegressionError):
        job.run(cluster, list, lambda layout: [EpochRow(9, 1, 1, "k")], keep=keep)
    assert list_scans(cluster.store) == []
    ran = job.run(cluster, list, scan, keep=keep)
    assert ran.kept is not None
    assert list_scans(cluster.store) == [ran.kept.key]
    assert read_scan(cluster.store, ran.kept.key, cluster.controller.snapshot().cluster_id) == ran.listing


def test_what_an_inventory_counted_is_kept_with_its_time_and_not_published() -> None:
    cluster = memory_cluster()
    rows = [EpochRow(0, 1, 10, "a", noncurrent_objects=2, noncurrent_bytes=7), EpochRow(None, 0, 0, "x", 5, (), 1, 3)]
    for source, taken_ms, counts in (("inventory", 5, (-1, -1, -1)), ("listing", None, (1, 10, 1))):
        scan = job.run(cluster, list, lambda layout: rows, source=source, taken_ms=taken_ms).listing
        assert scan is not None
        t = scan.totals
        assert (t.source, t.taken_ms) == (source, t.run_ms if taken_ms is None else taken_ms)
        assert (t.objects, t.unparsable, t.noncurrent_objects, t.noncurrent_bytes) == (1, 0, 3, 10)
        assert (t.oldest_eligible_ms, len(scan.rows)) == (None, 1)  # nobody told when; what is covered is no object
        told = published(cluster)
        assert told is not None
        assert (told.eligible_objects, told.eligible_bytes, told.listed_objects) == counts
