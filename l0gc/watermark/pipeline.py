"""Compute and publish M in the one way that serves both l0gc's journals and an external log: `compute-watermark`.

The order of the reads makes this safe. The snapshot is read first (M is capped at its epoch, hazard 5), then the epochs
that its partitions may still need, then the bucket. Last, the epoch is read again, for comparison with everything read
since (hazard 10), together with the pins (hazard 36). `published.json` is read before all of these: a log that ends
before the offset recorded there was set back (hazard 38). The source and the scan choose whether to read on Spark's
executors or in this process; this module makes all decisions. Nothing is written before the last check has passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, Protocol

import msgspec

from l0gc.epoch import MAX_EPOCH, is_epoch
from l0gc.errors import PinnedSinceError, SafetyError, UsageError
from l0gc.formatting import Outcome
from l0gc.keys import PUBLISHED_WATERMARK
from l0gc.watermark.compute import check_cluster_id, check_epochs, compute, holders_of
from l0gc.watermark.histogram import BucketScan
from l0gc.watermark.publication import (
    PublishedWatermark,
    check_controller,
    check_published,
    check_set_back,
    publish,
    read_any,
    refuse_if_lost,
    watermark_of,
)
from l0gc.watermark.scans import ScanReport, ScanSnapshot, keep_scan, snapshot_of
from l0gc.watermark.source import ClusterIdentity, ClusterView, Holder, PinnedUnits, UnitSummary

_TRIES: Final = 5
"""How often publication is tried if pins are created in the meantime."""


class Unreadable(msgspec.Struct, frozen=True):
    """A unit that could not be read, with the error; the unit holds M."""

    unit: str
    error: str


class WatermarkResult(msgspec.Struct, Outcome, frozen=True):
    """The result of a computation of M.

    Attributes:
        watermark: M; -1 if nothing may be deleted.
        previous_watermark: The M that was published before this run's; -1 if there was none.
        cluster_epoch: The epoch of the snapshot.
        partitions: The number of partitions in the snapshot.
        held_back_by: Up to ten of the partitions whose M(p) is M, each with `topic`, `partition`, `gc_epoch` and
            `reason`, which names the remedy. A pin that holds M has an empty topic and the kind `pinned`.
        listing: The objects of the bucket; null with `--no-scan`. `taken_ms` is when the run had finished reading it,
            by the store's clock, in milliseconds since 1970. `objects` and `bytes` count all objects;
            `eligible_objects` and `eligible_bytes` those at or below M. `oldest_eligible_age_s` and `oldest_held_age_s`
            are the ages of the oldest eligible and the oldest other L0 object, in seconds at `taken_ms`; null if no
            such object exists. `unparsable` counts the keys that are not L0 keys, and `unparsable_samples` has up to
            five of them. `epochs` has a row for each epoch: `epoch`, `objects`, `bytes`, `oldest_ms` (when the oldest
            object was written), `holders` (the number of partitions that may still need the epoch, which have M(p)
            below it) and `held_by` (the one with the lowest M(p), as `topic/partition`). An epoch above M without
            holders is newer than the run's snapshot.
        published: Whether M was published.
        overtaken: Whether a faster run has published a higher M, `previous_watermark`, since this run began. That M
            stays, and this run published nothing.
        unreadable: The units that could not be read and hold M, each with `unit` (a journal) and `error`.
        scan: The key of the scan snapshot; null if none was kept.
        engine: `local` or `spark`.
        engine_reason: Why this engine was chosen.
        seconds: The duration of each step; `spark` is the start of Spark.
    """

    watermark: int
    previous_watermark: int
    cluster_epoch: int
    partitions: int
    held_back_by: list[Holder]
    unreadable: list[Unreadable]
    listing: ScanReport | None
    published: bool
    overtaken: bool = False
    scan: str | None = None
    engine: str = "local"
    engine_reason: str = ""
    seconds: dict[str, float] = {}


class EpochSource(Protocol):
    """The writers' side of a cluster: their epoch, and the epochs that their partitions may still need.

    The order of use is `snapshot`, `read`, all other reads, `epoch_now`.
    """

    @property
    def external(self) -> bool:
        """Return whether the source is an external log."""

    @property
    def snapshot_age_ms(self) -> int | None:
        """Return the largest age of the snapshot, in milliseconds, if `epoch_now` cannot show that objects were added
        after it; otherwise None.
        """

    @property
    def remedy(self) -> str:
        """Return the likely cause and the way out if the bucket contains an epoch above the source's (hazard 10)."""

    def snapshot(self) -> ClusterIdentity:
        """Return the cluster's identity, with the epoch that caps M."""

    def read(self, published: PublishedWatermark | None) -> Sequence[UnitSummary]:
        """Return the epochs that the partitions of the snapshot may still need.

        Args:
            published: the published watermark. M(p) of every partition is at least its M, even in a unit that cannot be
                read.

        Raises:
            EpochRegressionError: the snapshot is older than the partitions (hazard 10).
        """

    def epoch_now(self) -> int:
        """Read the epoch again, for comparison with everything read since the snapshot."""

    def pins(self, published: int) -> PinnedUnits:
        """Return the pins as of the last `epoch_now`. M was `published` before the pins were read."""


def run_pipeline(
    cluster: ClusterView,
    source: EpochSource,
    scan: BucketScan | None = None,
    *,
    dry_run: bool = False,
    accept_lost: bool = False,
) -> WatermarkResult:
    """Compute M and publish it. A dry run writes nothing at all.

    Args:
        source: the writers whose objects are collected.
        scan: lists the bucket; None to skip the listing. Without it, the number of eligible objects is unknown, and
            only the source and the published M can show that a controller log was set back.
        accept_lost: see `publish`.

    Raises:
        LostWatermarkError: see `publish`. A dry run uses the copy instead.
        SafetyError: a higher M was published when the run began, or the cluster was initialised for another kind of
            source.
        EpochRegressionError, ClusterMismatchError: nothing was published. The errors of the source and of the scan,
        after which nothing is published.
    """
    store, monotonic = cluster.store, cluster.runtime.clock.monotonic
    ended = {"": monotonic()}
    published, etag = read_any(store)
    if not (dry_run or accept_lost):
        refuse_if_lost(published, etag)
    began_at = watermark_of(published)
    snapshot = source.snapshot()
    started_ms = cluster.now_ms()
    check_kind(snapshot, external=source.external)
    if published is not None:
        check_cluster_id(snapshot.cluster_id, published.cluster_id, PUBLISHED_WATERMARK)
    ended["snapshot"] = monotonic()
    units = source.read(published)
    for unit in units:
        check_set_back(published, unit, by_m=True)
    ended["partitions"] = monotonic()
    histogram = scan(snapshot.layout, source.epoch_now) if scan is not None else None
    ended["listing"] = monotonic()
    epoch = source.epoch_now()
    # Refuse published values that show that the controller log was set back (hazard 10).
    check_published(epoch, published, source.remedy)
    if published is not None:
        check_controller(cluster, published)
    for unit in units:
        check_epochs(epoch, unit.highest_epoch, unit.highest_in, source.remedy)
    age_ms = source.snapshot_age_ms
    for row in histogram.rows.values() if histogram is not None else ():
        if row.epoch is not None and (age_ms is None or row.oldest_ms < started_ms - age_ms):
            check_epochs(epoch, row.epoch, f"object {row.sample_key}", source.remedy)
    for attempt in range(_TRIES):
        # Compute M with the current pins. If a pin is created at the same time, the partitions need not be read again.
        pins = source.pins(watermark_of(published))
        watermark = compute(snapshot.cluster_epoch, [*units, *pins.held])
        _, now_ms = cluster.between_ms()  # too early a date of publication would shorten a sweep's grace
        listing: ScanSnapshot | None = None
        counts = (-1, -1, -1)
        if histogram is not None:
            listing = snapshot_of(histogram, watermark, holders_of(units), snapshot.cluster_id, now_ms)
            counts = (listing.totals.eligible_objects, listing.totals.eligible_bytes, listing.totals.objects)
        if dry_run:
            break
        logs = [*units, *filter(None, [cluster.controller_unit({})])]
        ends = {u.unit: u.end for u in logs if u.end is not None}
        new = PublishedWatermark(
            snapshot.cluster_id, watermark.watermark, epoch, now_ms, *counts, partitions=watermark.partitions, ends=ends
        )
        try:
            published = publish(
                store,
                cluster.runtime,
                new,
                accept_lost=accept_lost,
                began_at=began_at,
                pins_as_of=pins.as_of,
                epoch_now=source.epoch_now,
                remedy=source.remedy,
            )
            break
        except PinnedSinceError:
            if attempt == _TRIES - 1:
                raise
            epoch = source.epoch_now()
    kept: str | None = None
    overtaken = not dry_run and watermark_of(published) > watermark.watermark
    if not dry_run:
        ended["publication"] = monotonic()
        if listing is not None:
            kept = keep_scan(store, cluster.runtime, listing)
            ended["scan"] = monotonic()
    return WatermarkResult(
        **msgspec.structs.asdict(watermark),
        previous_watermark=watermark_of(published),
        unreadable=[Unreadable(u.unit, u.error) for u in units if u.error],
        listing=ScanReport.of(listing) if listing is not None else None,
        published=not dry_run and not overtaken,
        overtaken=overtaken,
        scan=kept,
        seconds={name: end - began for (_, began), (name, end) in pairwise(ended.items())},
    )


def check_kind(snapshot: ClusterIdentity, *, external: bool) -> None:
    """Refuse a source of a kind for which the cluster was not initialised.

    Raises:
        SafetyError: the kinds differ, so one system's epochs would count as the other's.
        UsageError: the epoch is invalid.
    """
    if not is_epoch(snapshot.cluster_epoch):
        raise UsageError(f"{snapshot.cluster_epoch} is not a cluster epoch: epochs are 0 to {MAX_EPOCH}")
    if snapshot.external_log and not external:
        raise SafetyError(
            "this cluster's epochs come from another system's log: give l0gc compute-watermark its --reports and "
            "--partitions"
        )
    if external and not snapshot.external_log:
        raise SafetyError(
            "this cluster's epochs are those of l0gc's own controller log, so no other reports count here; a bucket for "
            "a cluster with an external log is initialised with l0gc init --external-log"
        )
