"""compute-watermark without Spark: what it reads in which order, and what it refuses."""

from __future__ import annotations

import pytest

from l0gc.cluster import Cluster
from l0gc.errors import EpochRegressionError
from l0gc.keys import PartitionId
from l0gc.partition.state import PartitionState
from l0gc.watermark import job
from l0gc.watermark.compute import PartitionReport
from l0gc.watermark.job import EpochRow
from l0gc.watermark.publication import read_published
from l0gc.watermark.reports import report_of
from tests.support.memory_store import memory_cluster


def report(cluster: Cluster, topic: str, revision: int) -> PartitionReport:
    cluster_id = cluster.controller.snapshot().cluster_id
    return report_of(cluster_id, PartitionId(topic, revision, 0), PartitionState.new(revision), 0)


def published(cluster: Cluster) -> object:
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
    assert (result.listing.objects, result.listing.eligible_objects) == (1, 0)


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
