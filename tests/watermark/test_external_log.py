"""M for a system with an external log: l0gc trusts its reports only within these checks."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from l0gc.collect.sweep import SweepRun
from l0gc.errors import (
    ClusterMismatchError,
    EpochRegressionError,
    L0gcError,
    SafetyError,
    UsageError,
)
from l0gc.storage.workers import LocalWorkers
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.epoch_source import JournalSource
from l0gc.watermark.external_log import (
    ExternalEpochs,
    ExternalLog,
    ExternalLogSource,
    SnapshotLimits,
)
from l0gc.watermark.external_rows import ExternalSummary
from l0gc.watermark.histogram import EpochRow, Histogram
from l0gc.watermark.pipeline import WatermarkResult, run_pipeline
from l0gc.watermark.publication import read_published, refuse_if_behind
from l0gc.watermark.source import UNREPORTED
from tests.support.external import exported
from tests.support.memory_store import MemoryStore, external_cluster, memory_cluster

P0, P1 = ("t", 0), ("t", 1)


def run(
    cluster: ClusterHandles, theirs: ExternalLog, scan: Callable[[], list[EpochRow]] | None = None
) -> WatermarkResult:
    """Compute M from the other system's export, with a scan that finds these rows."""

    def found(layout: object, ceiling: object) -> Histogram:
        return Histogram({r.epoch: r for r in scan()} if scan is not None else {})

    return run_pipeline(cluster, ExternalLogSource(cluster, theirs), None if scan is None else found)


def publish(cluster: ClusterHandles, *, dry_run: bool = False, **theirs: Any) -> WatermarkResult:
    """Compute and publish M from a program's own values, as the library does."""
    read = ExternalEpochs(**theirs).read(LocalWorkers(cluster))
    return run_pipeline(cluster, ExternalLogSource(cluster, read), dry_run=dry_run)


def m(cluster: ClusterHandles) -> int | None:
    published, _ = read_published(cluster.store, cluster.controller.snapshot().cluster_id)
    return None if published is None else published.watermark


def test_m_is_the_lowest_report_capped_at_the_epoch() -> None:
    cluster = external_cluster()
    result = publish(cluster, cluster_epoch=50, partitions={P0: 3, P1: 3}, gc_epochs={P0: 40, P1: 44})
    assert (result.watermark, m(cluster)) == (40, 40)
    higher = publish(cluster, cluster_epoch=60, partitions={P0: 3, P1: 3}, gc_epochs={P0: 60, P1: 60})
    assert (higher.watermark, higher.partitions) == (60, 2)


def test_a_partition_without_a_report_counts_with_its_creation_or_holds_everything() -> None:
    cluster = external_cluster()
    assert publish(cluster, cluster_epoch=50, partitions={P0: 3, P1: None}, gc_epochs={P0: 40}).watermark == -1
    assert publish(cluster, cluster_epoch=50, partitions={P0: 3, P1: 30}, gc_epochs={P0: 40}).watermark == 29


def test_no_partitions_must_be_meant() -> None:
    cluster = external_cluster()
    with pytest.raises(SafetyError, match="the list of partitions is empty"):
        publish(cluster, cluster_epoch=50, partitions={}, gc_epochs={P0: 40})
    assert m(cluster) is None
    publish(cluster, cluster_epoch=50, partitions={}, gc_epochs={}, allow_no_partitions=True)
    assert m(cluster) == 50


def test_fewer_partitions_than_were_published_last_must_be_meant() -> None:
    """A list that lost partitions would put M too high."""
    cluster = external_cluster()
    whole: dict[tuple[str, int], int | None] = {("t", n): 3 for n in range(5)}
    publish(cluster, cluster_epoch=50, partitions=whole, gc_epochs={})
    cut_off: dict[tuple[str, int], int | None] = {("t", n): 30 for n in range(4)}
    for _ in range(2):
        with pytest.raises(SafetyError, match="the list has 4 partitions, and M was last published with 5"):
            publish(cluster, cluster_epoch=50, partitions=cut_off, gc_epochs={})
    assert m(cluster) == 2
    meant: dict[str, Any] = {
        "cluster_epoch": 50,
        "partitions": cut_off,
        "gc_epochs": {},
        "allow_fewer_partitions": True,
    }
    assert publish(cluster, **meant).watermark == 29
    assert publish(cluster, cluster_epoch=50, partitions=cut_off, gc_epochs={}).watermark == 29


def test_a_partition_that_is_listed_twice_counts_once() -> None:
    cluster = external_cluster()
    whole = exported(50, [("t", 3, 0), ("t", 3, 1)], [])
    assert run(cluster, whole).partitions == 2
    twice = exported(50, [("t", 3, 0), ("t", 3, 0)], [])
    with pytest.raises(SafetyError, match="the list has 1 partition, and"):
        run(cluster, twice)


@pytest.mark.parametrize(
    ("report", "refused"),
    [
        (("t", None, 1, 5), True),
        (("u", None, 0, 5), True),
        (("t", 3, 0, 5), False),
        (("t", 2, 0, 1), False),
        (("t", 4, 0, 5), True),
        (("t", None, 0, 5), False),
    ],
    ids=["another number", "another topic", "the same", "its former incarnation", "its next incarnation", "by name"],
)
def test_a_report_of_a_partition_that_is_not_listed_must_be_meant(
    report: tuple[str, int | None, int, int], refused: bool
) -> None:
    """The list lacks the partition, or is older than the reports, so M would be too high."""
    cluster = external_cluster()
    theirs = exported(50, [("t", 3, 0)], [report])
    if refused:
        with pytest.raises(SafetyError, match=rf"1 report names a partition .*, first {report[0]}/{report[2]}: "):
            run(cluster, theirs)
        assert m(cluster) is None
    meant = theirs._replace(limits=SnapshotLimits(allow_unlisted_reports=True))
    assert run(cluster, meant).watermark == (5 if report[:2] == ("t", 3) or (not refused and report[1] is None) else 2)


def test_a_report_above_the_epoch_stops_everything() -> None:
    """Hazard 10: a report above the epoch shows that the snapshot is older than the report."""
    for reported in ({P0: 51}, {P0: 3, ("gone", 0): 51}):
        cluster = external_cluster()
        with pytest.raises(
            EpochRegressionError, match="is at epoch 51, above the cluster epoch 50: the snapshot is older"
        ):
            publish(cluster, cluster_epoch=50, partitions={P0: 1}, gc_epochs=reported, allow_unlisted_reports=True)
        assert m(cluster) is None


def test_an_epoch_below_the_one_reported_last_stops_everything() -> None:
    """Hazard 10: only the published epoch shows the other log's past, so comparing M alone is not enough."""
    cluster = external_cluster()
    publish(cluster, cluster_epoch=50, partitions={P0: 1}, gc_epochs={P0: 10})
    with pytest.raises(EpochRegressionError, match="at epoch 50, above the cluster epoch 49"):
        publish(cluster, cluster_epoch=49, partitions={P0: 1}, gc_epochs={P0: 20})
    with pytest.raises(EpochRegressionError):  # a dry run is refused, too
        publish(cluster, cluster_epoch=49, partitions={P0: 1}, gc_epochs={P0: 20}, dry_run=True)
    assert m(cluster) == 10


def test_an_epoch_reported_meanwhile_by_a_faster_run_counts_too() -> None:
    cluster = external_cluster()
    theirs = exported(50, [("t", 1, 0)], [("t", 1, 0, 20)])

    def faster() -> list[EpochRow]:
        publish(cluster, cluster_epoch=51, partitions={P0: 1}, gc_epochs={P0: 10})
        return []

    with pytest.raises(EpochRegressionError):
        run(cluster, theirs, faster)
    assert m(cluster) == 10


def test_another_clusters_files_are_refused() -> None:
    """Hazard 11: M would release objects that the other cluster's reports do not cover."""
    theirs = ExternalLog(50, ExternalSummary(partitions=1, cluster_ids=["another"]))
    with pytest.raises(ClusterMismatchError, match="belongs to cluster another"):
        run(external_cluster(), theirs)


def test_only_an_old_object_above_the_epoch_stops_everything() -> None:
    """Hazard 10: the other system keeps writing while the bucket is listed."""
    cluster = external_cluster()
    theirs = exported(50, [("t", 1, 0)], [("t", 1, 0, 40)], SnapshotLimits(snapshot_age_ms=1000))
    now = cluster.store.now_ms()
    run(cluster, theirs, lambda: [EpochRow(51, 1, 1, "k", now - 1000)])
    with pytest.raises(EpochRegressionError, match="object k is at epoch 51"):
        run(cluster, theirs, lambda: [EpochRow(51, 1, 1, "k", now - 1001)])


def test_a_former_incarnations_report_releases_nothing() -> None:
    """Hazard 6: a report with an older revision does not count; one without a revision is below the new revision."""
    new = [("t", 30, 0)]
    exact = exported(50, new, [("t", 3, 0, 20)])
    found = run(external_cluster(), exact)
    assert (found.watermark, found.held_back_by[0].kind) == (29, UNREPORTED)
    by_name = exported(50, new, [("t", None, 0, 20)])
    assert run(external_cluster(), by_name).watermark == 20


def test_a_partition_listed_twice_is_refused_where_reports_do_not_say_which() -> None:
    new = [("t", 3, 0), ("t", 30, 0)]
    with pytest.raises(UsageError, match="t/0 is listed with two revisions"):
        run(external_cluster(), exported(50, new, [("t", None, 0, 40)]))
    exact = exported(50, new, [("t", 30, 0, 40)])
    assert run(external_cluster(), exact).watermark == 2


@pytest.mark.parametrize(
    ("epoch", "partitions", "gc_epochs"),
    [
        (-1, {P0: 1}, {}),
        (10**18, {P0: 1}, {}),
        (50, {P0: -1}, {}),
        (50, {("t", -1): 1}, {}),
        (50, {("t", 2**31): 1}, {}),
        (50, {P0: 1}, {P0: -2}),
        (50, {P0: 1}, {P0: 2**64}),
    ],
)
def test_numbers_that_cannot_be_are_refused(
    epoch: int, partitions: dict[tuple[str, int], int | None], gc_epochs: dict[tuple[str, int], int]
) -> None:
    cluster = external_cluster()
    with pytest.raises(L0gcError):
        publish(cluster, cluster_epoch=epoch, partitions=partitions, gc_epochs=gc_epochs)
    assert m(cluster) is None


@given(st.randoms(use_true_random=False))
@settings(max_examples=100)
def test_m_is_what_a_plain_loop_makes_of_it(rng: random.Random) -> None:
    epoch = rng.randrange(1, 60)
    ids = {(rng.choice("ab"), n): rng.choice([None, rng.randrange(epoch + 1)]) for n in range(rng.randrange(1, 9))}
    reported = {p: rng.randrange(-1, epoch + 1) for p in ids if rng.random() < 0.7} | {("gone", 0): 0}
    m_of = {p: reported.get(p, -1 if r is None else r - 1) for p, r in ids.items()}
    result = publish(
        external_cluster(), cluster_epoch=epoch, partitions=ids, gc_epochs=reported, allow_unlisted_reports=True
    )
    assert (result.watermark, result.partitions) == (min([epoch, *m_of.values()]), len(ids))
    lowest = sorted((e, t, n) for (t, n), e in m_of.items() if e == result.watermark < epoch)
    assert [(h.gc_epoch, h.topic, h.partition) for h in result.held_back_by] == lowest


# -- next to l0gc's own log
# ----------------------------------------------------------------------------------------------


def test_l0gc_adds_no_epoch_to_an_external_log() -> None:
    controller = external_cluster().controller
    for change in (
        controller.advance,
        controller.tick_if_due,
        lambda: controller.create_topic("t", 1),
        lambda: controller.init_producer("p"),
    ):
        with pytest.raises(SafetyError, match="another system"):
            change()
    assert controller.snapshot().epoch == 0


def test_l0gcs_own_reports_publish_nothing_there() -> None:
    """Without topics M would be the controller's epoch, and a sweep would delete the other system's objects of epoch 0."""
    cluster = external_cluster()
    with pytest.raises(SafetyError, match="--reports"):
        run_pipeline(cluster, JournalSource(cluster))
    assert m(cluster) is None


def test_another_systems_reports_publish_nothing_in_a_cluster_of_l0gcs() -> None:
    cluster = memory_cluster()
    with pytest.raises(SafetyError, match="l0gc init --external-log"):
        publish(cluster, cluster_epoch=50, partitions={P0: 1}, gc_epochs={P0: 40})
    assert m(cluster) is None


def test_whose_log_it_is_was_settled_when_the_cluster_was_founded() -> None:
    own, ours = external_cluster().controller, memory_cluster().controller
    assert own.bootstrap() is False
    assert own.snapshot().external_log
    with pytest.raises(UsageError, match="--external-log"):
        ours.bootstrap(external_log=True)


def test_a_sweep_uses_the_epoch_that_was_reported() -> None:
    cluster = external_cluster()
    layout = cluster.controller.layout()
    assert isinstance(cluster.store, MemoryStore)
    for epoch in (39, 40, 41):
        cluster.store.put(layout.format(1, epoch, cluster.runtime.new_id()), b"x")
    assert SweepRun(cluster).run().deleted == 0
    publish(cluster, cluster_epoch=50, partitions={P0: 1}, gc_epochs={P0: 40})
    assert refuse_if_behind(cluster)[0].cluster_epoch == 50
    assert SweepRun(cluster).run().deleted == 2
    assert [layout.parse(k).epoch for k in cluster.store.objects if layout.parse(k)] == [41]  # type: ignore[union-attr]
