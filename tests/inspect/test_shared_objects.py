"""Shared L1 objects in status, metrics, the report, `topic describe` and `verify --shadow`."""

from __future__ import annotations

import pytest

from l0gc.cli.metrics import Run, samples
from l0gc.cli.status import lines_of
from l0gc.cli.topic import _described
from l0gc.collect.sweep import SweepRun
from l0gc.inspect.overview_reader import read_overview
from l0gc.inspect.report.facts import gather
from l0gc.inspect.report.page import render
from l0gc.inspect.verify.shadow import verify_shadow
from l0gc.operations import Sweep
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.delete_records import delete_records
from l0gc.streamlog.housekeep import housekeep
from l0gc.streamlog.topics import describe_topic
from tests.support.memory_store import another_process, store_of
from tests.support.reconcile import put
from tests.support.sharing import drain, loaded, state_of
from tests.support.verify import compute_and_publish

PARTITIONS = 100


@pytest.fixture
def cluster() -> ClusterHandles:
    """Create two shared objects, the first of which has lost the rows of a fifth of its partitions."""
    cluster, _, _ = loaded(2, PARTITIONS)
    for p in range(PARTITIONS // 5):
        delete_records(cluster, "events", p, before_offset=2)
    return cluster


def test_status_and_metrics_count_bytes_of_rows_that_have_left(cluster: ClusterHandles) -> None:
    first, _ = state_of(cluster).shared
    assert 0.15 * first.bytes < first.dead_bytes() < 0.25 * first.bytes
    overview = read_overview(another_process(cluster))
    assert (overview.l1.live_objects, overview.l1.dead_bytes) == (2, first.dead_bytes())
    assert overview.to_json()["l1"]["dead_bytes"] == first.dead_bytes()
    text = f", {first.dead_bytes()} B in L1 that no partition lists"
    assert [line.text.endswith(text) for line in lines_of(overview, "s3://b/p") if line.label == "records"] == [True]
    metrics = {name: value for (name, _), value in samples(Run("gc", seen=overview), "s3://b/p").items()}
    assert metrics["l0gc_l1_dead_bytes"] == first.dead_bytes()
    drain(cluster)
    overview = read_overview(another_process(cluster))
    assert overview.l1.dead_bytes == 0
    assert "in L1" not in str(lines_of(overview, "s3://b/p"))


def test_topic_describe_names_bytes_of_rows_that_have_left(cluster: ClusterHandles) -> None:
    dead = state_of(cluster).shared[0].dead_bytes()
    assert f", {dead} B of it in rows that have left shared objects)" in "\n".join(
        _described(describe_topic(cluster, "events", 7), 0)
    )
    drain(cluster)
    assert "shared" not in "\n".join(_described(describe_topic(cluster, "events", 7), 0))


def test_the_report_counts_a_shared_object_once(cluster: ClusterHandles) -> None:
    report = gather(another_process(cluster), "s3://b/p")
    (topic,) = report.by_topic
    assert (topic.l1_objects, topic.records) == (2, 4 * PARTITIONS - 2 * PARTITIONS // 5)
    assert "events" in render(report)


def test_verify_shadow_finds_nothing_where_shared_objects_hold_the_records(cluster: ClusterHandles) -> None:
    cluster.controller.advance()
    housekeep(cluster, barrier=True)
    put(cluster, "events", {1: [b"not lifted"]})
    compute_and_publish(cluster)
    store_of(cluster).clock.sleep(60)
    run = SweepRun(cluster, Sweep(shadow=True)).run(1)
    store_of(cluster).clock.sleep(60)
    result = verify_shadow(another_process(cluster))
    assert (run.deleted, result.total) == (2, 0)
