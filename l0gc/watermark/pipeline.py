"""compute-watermark: the one way in which M is computed and published, for l0gc's journals and for an external log.

The order of the reads makes it safe. The snapshot is read first (M is capped at its epoch, hazard 5), then what its
partitions may still need, then the bucket. Last, the epoch is read again, to be compared with everything seen since
(hazard 10), and with it the pins (hazard 36). `published.json` is read before all of it: a log that ends before the
offset recorded there was set back (hazard 38). The source and the scan choose where to read, on Spark's executors or in
this process; all decisions are made here. Nothing is written before the last check has passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
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
"""How many pins may be created while M is published."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A unit that could not be read, and why; it holds M."""

    unit: str
    error: str


@dataclass(frozen=True, slots=True)
class WatermarkResult(Outcome):
    """The result of a computation of M.

    Attributes:
        watermark: M; -1 if nothing may be deleted.
        previous_watermark: What was published before this run published; -1 for nothing.
        cluster_epoch: The epoch of the snapshot.
        partitions: Partitions of the snapshot.
        held_back_by: Up to ten of the partitions whose M(p) is M, each with `topic`, `partition`, `gc_epoch` and
            `reason`, which names the remedy. A pin that holds M has no topic, and the kind `pinned`.
        listing: What the bucket holds; null with `--no-scan`. `taken_ms` is when the run had read it, by the store's
            clock in milliseconds since 1970. `objects` and `bytes`; `eligible_objects` and `eligible_bytes`, at or below
            M; `oldest_eligible_age_s` and `oldest_held_age_s`, how old the oldest of those and of the other L0 objects
            are, in seconds before `taken_ms`, null if no such object exists; `unparsable`, the keys that are not L0
            keys, and up to five of them in `unparsable_samples`. `epochs` has a row for each epoch: `epoch`, `objects`,
            `bytes`, `oldest_ms` (when the oldest was written), `holders` (how many partitions still may need it: those
            with M(p) below it) and `held_by` (of these the one with the lowest M(p), as `topic/partition`). An epoch
            above M without holders is newer than the run's snapshot.
        published: Whether it was published.
        overtaken: Whether a faster run published a higher M, `previous_watermark`, since this one began. That stays, and
            nothing was published.
        unreadable: What could not be read and holds M, each with `unit` (a journal) and `error`.
        scan: The key of the scan snapshot; null if none was kept.
        engine: `local` or `spark`.
        engine_reason: Why that one.
        seconds: Where the time went: `spark` is its start.
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
    seconds: dict[str, float] = field(default_factory=dict)


class EpochSource(Protocol):
    """The writers' side of a cluster: their epoch, and what each of their partitions may still need.

    It is used in this order: `snapshot`, `read`, then whatever else is read, then `epoch_now`.
    """

    @property
    def external(self) -> bool:
        """Return whether it stands for an external log."""

    @property
    def snapshot_age_ms(self) -> int | None:
        """Return the snapshot's greatest age, if others add objects after it and `epoch_now` cannot show that; else None."""

    @property
    def remedy(self) -> str:
        """Return the likely cause, and what to do, if the bucket contains an epoch above the source's (hazard 10)."""

    def snapshot(self) -> ClusterIdentity:
        """Return the cluster, with the epoch that caps M."""

    def read(self, published: PublishedWatermark | None) -> Sequence[UnitSummary]:
        """Return the epochs that the partitions of the snapshot may still need.

        Args:
            published: the published watermark. No partition is below its M, and no unit that cannot be read is, either.

        Raises:
            EpochRegressionError: the snapshot is older than the partitions (hazard 10).
        """

    def epoch_now(self) -> int:
        """Read the epoch again, for comparison with everything seen since the snapshot."""

    def pins(self, published: int) -> PinnedUnits:
        """Return the pins as of the last `epoch_now`. M = `published` was published before they were read."""


def run_pipeline(
    cluster: ClusterView,
    source: EpochSource,
    scan: BucketScan | None = None,
    *,
    dry_run: bool = False,
    accept_lost: bool = False,
) -> WatermarkResult:
    """Compute M and publish it; a dry run writes nothing at all.

    Args:
        source: the writers whose objects are collected.
        scan: how the bucket is listed; None to skip that. Then it is unknown what is eligible, and only the source and the
            published M can show that a controller log went back.
        accept_lost: see `publish`.

    Raises:
        LostWatermarkError: see `publish`; a dry run computes M by the copy.
        SafetyError: a higher M was published when the run began, or the source is not of the kind that the cluster was
            initialised for.
        EpochRegressionError, ClusterMismatchError: nothing was published.
        The errors of the source and of the scan; then nothing was published.
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
    # Refuse what a log that was not set back would not have left behind (hazard 10).
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
        # M with the pins as they are now. If one is created at the same time, what was read of the partitions stays good.
        pins = source.pins(watermark_of(published))
        watermark = compute(snapshot.cluster_epoch, [*units, *pins.held])
        _, now_ms = cluster.between_ms()  # a publication that is dated too early would end a sweep's grace early
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
    """Refuse a source of another kind than the cluster was initialised for.

    Raises:
        SafetyError: the epochs of one kind would count as the other's.
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
