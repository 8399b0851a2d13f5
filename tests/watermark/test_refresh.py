"""`--refresh`: the logs of the partitions that hold M back, those alone, until M is what the logs make it."""

from __future__ import annotations

import pytest

from l0gc.errors import EpochRegressionError
from l0gc.keys import PartitionId
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.housekeep import housekeep
from l0gc.watermark import job
from l0gc.watermark.compute import PartitionReport
from l0gc.watermark.job import WatermarkResult
from l0gc.watermark.reports import publish_reports, read_report_file, report_keys, report_of, rows_of
from tests.support.memory_store import memory_cluster
from tests.support.reports import a_report


def the_reports(cluster: Cluster) -> list[PartitionReport]:
    return [r for k in report_keys(cluster.store) for r in rows_of(read_report_file(cluster.store.get(k).body, k))]


def run(cluster: Cluster, asked: list[PartitionId], *, broken: frozenset[int] = frozenset()) -> WatermarkResult:
    def read_logs(cluster_id: str, partitions: list[PartitionId]) -> list[PartitionReport]:
        asked.extend(partitions)
        handles = [cluster.partition(p) for p in partitions if p.partition not in broken]
        return [report_of(cluster_id, h.partition, h.catch_up(), h.replica.offset) for h in handles]

    return job.run(cluster, lambda: the_reports(cluster), None, read_logs=read_logs)


def a_cluster(partitions: int, epochs: int) -> tuple[Cluster, Topic]:
    cluster = memory_cluster()
    topic, _ = cluster.controller.create_topic("t", partitions)
    for _ in range(epochs):
        cluster.controller.advance()
    return cluster, topic


def advance(cluster: Cluster, topic: Topic) -> None:
    """Move every window up to the epoch, and tell nobody."""
    for _ in range(2):
        epoch = cluster.controller.advance()
        for p in topic.ids():
            cluster.partition(p).advance(epoch)


def test_partitions_that_nobody_reported_are_looked_at_and_reported() -> None:
    cluster, topic = a_cluster(3, 5)
    advance(cluster, topic)
    asked: list[PartitionId] = []
    result = run(cluster, asked)
    truth = min(cluster.partition(p).state.gc_epoch for p in topic.ids())
    assert (result.watermark.watermark, result.refreshed, sorted(asked, key=str)) == (truth, 3, topic.ids())
    assert job.run(cluster, lambda: the_reports(cluster), None).watermark.watermark == truth


def test_only_those_that_hold_m_back_are_looked_at() -> None:
    cluster, topic = a_cluster(3, 5)
    advance(cluster, topic)
    housekeep(cluster)
    state = cluster.controller.snapshot()
    stale = a_report(state.cluster_id, PartitionId("t", topic.revision, 1), 3)
    rest = [r for r in the_reports(cluster) if r.partition != 1]
    for key in report_keys(cluster.store):
        cluster.store.delete([key])
    publish_reports(cluster.store, cluster.runtime, "upload", [*rest, stale])
    asked: list[PartitionId] = []
    result = run(cluster, asked)
    assert asked[0].partition == 1
    assert result.watermark.watermark == min(r.gc_epoch for r in rest)


def test_it_ends_when_m_is_what_the_logs_make_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "REFRESHED_AT_ONCE", 2)
    cluster, _ = a_cluster(30, 5)
    asked: list[PartitionId] = []
    assert run(cluster, asked).watermark.watermark == 0
    assert len(asked) == 2  # both hold M where it is; the others can not move it


def test_it_goes_on_while_m_moves_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "REFRESHED_AT_ONCE", 2)
    cluster, topic = a_cluster(30, 5)
    advance(cluster, topic)
    asked: list[PartitionId] = []
    run(cluster, asked)
    assert len(asked) == len(set(asked)) == 2 * job.REFRESH_ROUNDS


def test_a_log_that_cannot_be_read_holds_m_and_is_asked_once() -> None:
    cluster, topic = a_cluster(3, 5)
    advance(cluster, topic)
    asked: list[PartitionId] = []
    result = run(cluster, asked, broken=frozenset({1}))
    assert result.watermark.watermark == topic.revision - 1
    assert len(asked) == 3


def test_without_partitions_there_is_nothing_to_look_at() -> None:
    asked: list[PartitionId] = []
    assert run(memory_cluster(), asked).watermark.watermark == 0
    assert asked == []


def test_m_stays_at_the_snapshots_epoch_however_new_the_logs_are() -> None:
    """Hazard 5."""
    cluster, topic = a_cluster(2, 5)
    epoch = cluster.controller.snapshot().epoch

    def read_logs(cluster_id: str, partitions: list[PartitionId]) -> list[PartitionReport]:
        for _ in range(4):
            advance(cluster, topic)
        handles = [cluster.partition(p) for p in partitions]
        return [report_of(cluster_id, h.partition, h.catch_up(), h.replica.offset) for h in handles]

    assert job.run(cluster, list, None, read_logs=read_logs).watermark.watermark == epoch


def test_a_log_above_the_cluster_epoch_stops_everything() -> None:
    """Hazard 10."""
    cluster, topic = a_cluster(1, 3)
    with pytest.raises(EpochRegressionError, match="t/0 is at epoch 91"):
        job.run(cluster, list, None, read_logs=lambda cluster_id, ids: [a_report(cluster_id, ids[0], 90)])
    assert topic.partitions == 1
