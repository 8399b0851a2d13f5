"""What the doctor says of the cluster: whether M and its epoch fit together, whoever keeps the log."""

from __future__ import annotations

from l0gc.inspect.doctor.checkup import FAILURE, OK
from l0gc.inspect.doctor.cluster import cluster as checks_of
from l0gc.watermark import external_log
from l0gc.watermark.publication import PublishedWatermark, publish
from tests.support.memory_store import memory_cluster


def test_an_m_above_the_cluster_epoch_is_a_failure() -> None:
    """Hazard 10."""
    cluster = memory_cluster()
    cluster_id = cluster.controller.snapshot().cluster_id
    publish(cluster.store, cluster.runtime, PublishedWatermark(cluster_id, 7, 9, 0))
    (_, watermark) = checks_of(cluster)
    assert (watermark.status, watermark.text) == (FAILURE, "M = 7 is above the cluster epoch 0")


def test_of_another_systems_log_the_epoch_is_the_one_that_was_published() -> None:
    cluster = memory_cluster(bootstrap=False)
    cluster.controller.bootstrap(shards=4, external_log=True)
    assert [c.status for c in checks_of(cluster)] == [OK, OK]
    external_log.publish(cluster, cluster_epoch=50, partitions={("t", 0): 1}, gc_epochs={("t", 0): 40})
    found, watermark = checks_of(cluster)
    assert "the log of another system, 4 shards" in found.text
    assert (watermark.status, watermark.text) == (OK, "M = 40")
