"""compute-watermark without Spark: the order of its reads, and its refusals."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from l0gc.errors import (
    EpochRegressionError,
    SafetyError,
    UsageError,
)
from l0gc.keys import PUBLISHED_WATERMARK, KeyLayout
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.epoch_source import pins_of
from l0gc.watermark.histogram import EpochRow, Histogram
from l0gc.watermark.pipeline import WatermarkResult, run_pipeline
from l0gc.watermark.publication import PublishedWatermark, decode_published, encode_published, read_published
from l0gc.watermark.scans import ScanReport, ScanSnapshot, list_scans, read_scan
from l0gc.watermark.source import UNREADABLE, ClusterIdentity, Holder, PinnedUnits, UnitSummary
from tests.support.memory_store import MemoryStore, memory_cluster, store_of
from tests.watermark.test_compute import unit


@dataclass
class Source:
    """A source that returns the test's units; a controller keeps its epoch, so that `meanwhile` can advance it."""

    cluster: ClusterHandles
    units: Sequence[UnitSummary] = ()
    external: bool = False
    snapshot_age_ms: int | None = None
    remedy: str = "look at it"
    meanwhile: Callable[[], object] = lambda: None
    reads: list[PublishedWatermark | None] = field(default_factory=list)

    def snapshot(self) -> ClusterIdentity:
        return self.cluster.identity()

    def read(self, published: PublishedWatermark | None) -> Sequence[UnitSummary]:
        self.reads.append(published)
        self.meanwhile()
        return self.units

    def epoch_now(self) -> int:
        return self.cluster.identity().cluster_epoch

    def pins(self, published: int) -> PinnedUnits:
        return pins_of(self.cluster.controller.snapshot(), published)


@dataclass
class Scan:
    """A scan that returns the test's rows."""

    rows: Sequence[EpochRow] = ()
    samples: Sequence[str] = ()
    meanwhile: Callable[[], object] = lambda: None

    def __call__(self, layout: KeyLayout, ceiling: Callable[[], int]) -> Histogram:
        self.meanwhile()
        return Histogram({r.epoch: r for r in self.rows}, list(self.samples))


def a_cluster(epoch: int = 0) -> ClusterHandles:
    cluster = memory_cluster()
    for _ in range(epoch):
        cluster.controller.advance()
    return cluster


def published(cluster: ClusterHandles) -> PublishedWatermark | None:
    return read_published(cluster.store, cluster.identity().cluster_id)[0]


def test_m_is_published_with_the_epoch_after_the_scan() -> None:
    cluster = a_cluster(9)
    scan = Scan(meanwhile=cluster.controller.advance)
    result = run_pipeline(cluster, Source(cluster, [unit(4, 6)]), scan)
    assert (result.watermark, result.previous_watermark, result.cluster_epoch) == (4, -1, 9)
    stored = published(cluster)
    assert stored is not None
    assert (stored.watermark, stored.cluster_epoch, stored.partitions) == (4, 10, 2)
    assert (stored.eligible_objects, stored.listed_objects) == (0, 0)


def test_a_publication_is_not_dated_by_an_early_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    for early in range(4):
        cluster, replies = a_cluster(), itertools.count()
        store = store_of(cluster)

        def date(store: MemoryStore = store, replies: Iterator[int] = replies, early: int = early) -> int:
            return store.clock.ms - 500_000 * (next(replies) == early)

        monkeypatch.setattr(store, "now_ms", date)
        run_pipeline(cluster, Source(cluster))
        written = decode_published(store.objects[PUBLISHED_WATERMARK].body)
        assert written.published_at_ms == store.clock.ms


def test_a_topic_created_during_the_reading_does_not_raise_m() -> None:
    """Hazard 5: the topics are created after the epoch is read and before the partitions are."""
    cluster = a_cluster()

    def create() -> None:
        for name in ("a", "b", "c"):
            cluster.controller.create_topic(name, 1)

    assert run_pipeline(cluster, Source(cluster, [unit(2)], meanwhile=create)).watermark == 0


def test_uploads_during_the_scan_do_not_indicate_an_old_backup() -> None:
    """Hazard 10: objects are compared with the epoch after the scan."""
    cluster = a_cluster()
    rows: list[EpochRow] = []
    scan = Scan(rows, meanwhile=lambda: rows.append(EpochRow(cluster.controller.advance(), 1, 10, "some/key")))
    result = run_pipeline(cluster, Source(cluster), scan)
    assert result.watermark == 0
    assert result.listing is not None
    assert (result.listing.objects, result.listing.eligible_objects) == (1, 0)


def test_an_object_above_the_cluster_epoch_stops_everything() -> None:
    """Hazard 10: only an old backup of the controller log explains a later epoch in a key."""
    cluster = a_cluster()
    with pytest.raises(EpochRegressionError, match="some/key is at epoch 5, above the cluster epoch 0: look at it"):
        run_pipeline(cluster, Source(cluster), Scan([EpochRow(5, 1, 10, "some/key")]))
    assert published(cluster) is None


def test_a_unit_that_knows_an_epoch_above_the_cluster_epoch_stops_everything() -> None:
    """Hazard 10: a unit's highest epoch shows the old backup even without a scan."""
    cluster = a_cluster(3)
    run_pipeline(cluster, Source(cluster, [unit(1, highest=3)]), dry_run=True)
    with pytest.raises(EpochRegressionError, match="unit u is at epoch 4, above the cluster epoch 3"):
        run_pipeline(cluster, Source(cluster, [unit(1, highest=4)]))
    assert published(cluster) is None


@pytest.mark.parametrize(
    ("watermark", "epoch", "what"), [(5, 7, "the watermark in"), (2, 7, "the cluster epoch in"), (2, 4, "")]
)
def test_what_is_published_ahead_of_the_epoch_stops_everything(watermark: int, epoch: int, what: str) -> None:
    """Hazard 10: the published epoch reveals an old controller log before M itself exceeds the epoch."""
    cluster = a_cluster(4)
    stored = PublishedWatermark(cluster.identity().cluster_id, watermark, epoch, cluster.store.now_ms())
    cluster.store.put(PUBLISHED_WATERMARK, encode_published(stored))
    for dry_run in (True, False):
        source = Source(cluster, [unit(3)])
        if not what:
            assert run_pipeline(cluster, source, dry_run=dry_run).watermark == 3
            continue
        with pytest.raises(
            EpochRegressionError, match=rf"{what} .*published\.json is at epoch .*, above the cluster epoch 4"
        ):
            run_pipeline(cluster, source, dry_run=dry_run)
        assert published(cluster) == stored


def test_a_unit_that_cannot_be_read_holds_m_and_is_named() -> None:
    """Hazard 6: M must not pass the epochs that an unreadable unit may still need."""
    cluster = a_cluster(9)
    broken = UnitSummary(
        unit="journal 2", gc_epochs={3: 5}, lowest=[Holder("t", 0, 3, UNREADABLE, "damaged")], error="damaged"
    )
    result = run_pipeline(cluster, Source(cluster, [unit(7), broken]))
    assert (result.watermark, result.partitions) == (3, 6)
    assert [(u.unit, u.error) for u in result.unreadable] == [("journal 2", "damaged")]


def test_the_source_hears_what_is_published() -> None:
    cluster = a_cluster(9)
    source = Source(cluster, [unit(4)])
    for _ in range(2):
        run_pipeline(cluster, source)
    assert [p.watermark if p is not None else None for p in source.reads] == [None, 4]


def test_an_epoch_that_cannot_be_is_refused() -> None:
    class Wrong(Source):
        def snapshot(self) -> ClusterIdentity:
            return self.cluster.identity()._replace(cluster_epoch=10**18)

    cluster = a_cluster()
    with pytest.raises(UsageError, match="is not a cluster epoch"):
        run_pipeline(cluster, Wrong(cluster))


def test_a_dry_run_writes_nothing() -> None:
    cluster = a_cluster(3)
    store = cluster.store
    assert isinstance(store, MemoryStore)
    before = set(store.objects)
    result = run_pipeline(cluster, Source(cluster, [unit(1)]), Scan([EpochRow(0, 1, 1, "k")]), dry_run=True)
    assert (result.published, result.scan, result.watermark) == (False, None, 1)
    assert set(store.objects) == before


def kept(cluster: ClusterHandles, result: WatermarkResult) -> ScanSnapshot:
    """Return the scan snapshot of a run."""
    assert result.scan is not None
    return read_scan(cluster.store, result.scan, cluster.identity().cluster_id)


def test_a_scan_shows_who_holds_what_and_since_when() -> None:
    cluster = a_cluster(5)
    rows = [EpochRow(5, 1, 1, "e", 50), EpochRow(None, 2, 20, "x", 7), EpochRow(0, 3, 30, "a", 9)]
    rows += [EpochRow(1, 4, 40, "b", 8), EpochRow(2, 5, 50, "c", 11)]
    source = Source(cluster, [unit(0, 1, 1)])
    scan = kept(cluster, run_pipeline(cluster, source, Scan(rows, ["x", "y"])))
    assert [(r.epoch, r.held_by, r.holders) for r in scan.rows] == [
        (0, "", 0), (1, "t/0", 1), (2, "t/0", 3), (5, "t/0", 3), (None, "", 0)
    ]  # fmt: skip
    t = scan.totals
    assert (t.watermark, t.cluster_epoch, t.unparsable_samples) == (0, 5, ["x", "y"])
    assert (t.objects, t.bytes, t.unparsable, t.unparsable_bytes) == (15, 141, 2, 20)
    assert (t.eligible_objects, t.eligible_bytes, t.oldest_eligible_ms, t.oldest_held_ms) == (3, 30, 9, 8)


def test_a_scan_is_kept_when_m_is_published_and_only_then() -> None:
    cluster = a_cluster()
    scan = Scan([EpochRow(0, 1, 10, "some/key", 3)])
    looked = run_pipeline(cluster, Source(cluster), scan, dry_run=True)
    assert (looked.scan, list_scans(cluster.store)) == (None, [])
    assert run_pipeline(cluster, Source(cluster)).scan is None
    with pytest.raises(EpochRegressionError):
        run_pipeline(cluster, Source(cluster), Scan([EpochRow(9, 1, 1, "k")]))
    assert list_scans(cluster.store) == []
    ran = run_pipeline(cluster, Source(cluster), scan)
    assert list_scans(cluster.store) == [ran.scan]
    assert ScanReport.of(kept(cluster, ran)) == ran.listing


def test_the_slower_of_two_runs_publishes_nothing_and_is_not_refused() -> None:
    """Hazard 15: the M that a faster run has published since this run began stays."""
    cluster = a_cluster(9)
    run_pipeline(cluster, Source(cluster, [unit(2)]))
    slower = Source(cluster, [unit(4)], meanwhile=lambda: run_pipeline(cluster, Source(cluster, [unit(6)])))
    result = run_pipeline(cluster, slower)
    assert (result.watermark, result.previous_watermark, result.published, result.overtaken) == (4, 6, False, True)
    stored = published(cluster)
    assert stored is not None
    assert stored.watermark == 6


def test_an_m_below_the_one_published_at_the_start_is_refused() -> None:
    """Hazards 15 and 38: no faster run explains it, so a log was set back."""
    cluster = a_cluster(9)
    run_pipeline(cluster, Source(cluster, [unit(6)]))
    with pytest.raises(SafetyError, match="computed M = 4, but M = 6 is published"):
        run_pipeline(cluster, Source(cluster, [unit(4)]))
