"""compute-watermark, but for how the reports and the listing are read.

The order of the reads is what makes it safe: the controller's snapshot first (M is capped at its epoch, hazard 5), then
the reports and the listing, then the cluster epoch once more, to be compared with what the bucket holds (hazard 10). Who
reads, Spark or a loop, is the caller's choice; what is decided is decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from l0gc.cluster import Cluster
from l0gc.errors import EpochRegressionError
from l0gc.keys import PUBLISHED_WATERMARK, REPORTS, KeyLayout, PartitionId
from l0gc.watermark.compute import PartitionReport, Watermark, check_cluster_id, check_epochs, compute
from l0gc.watermark.publication import PublishedWatermark, publish, read_published, watermark_of

ReadReports = Callable[[], Iterable[PartitionReport]]
"""Reads the best report of each partition that has one."""
ReadHistogram = Callable[[KeyLayout], Iterable["EpochRow"]]
"""Reads what the bucket holds at each epoch."""


@dataclass(frozen=True, slots=True)
class EpochRow:
    """What the bucket holds at one epoch; `epoch` is None for keys that are no L0 keys."""

    epoch: int | None
    objects: int
    bytes: int
    sample_key: str


@dataclass(slots=True)
class ListingTotals:
    objects: int = 0
    bytes: int = 0
    eligible_objects: int = 0
    eligible_bytes: int = 0
    unparsable: int = 0
    unparsable_sample: str = ""
    epochs: list[EpochRow] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class WatermarkResult:
    """`previous_watermark` is what was published before; `listing` is None where nothing was scanned."""

    watermark: Watermark
    previous_watermark: int
    listing: ListingTotals | None
    published: bool


def run(
    cluster: Cluster, read_reports: ReadReports, read_histogram: ReadHistogram | None, *, publish_it: bool = True
) -> WatermarkResult:
    """Compute M and publish it.

    Args:
        read_histogram: None to leave the listing out; what is eligible is then not known, and an old controller log is
            found out by the reports alone.
        publish_it: False to look only.

    Raises:
        EpochRegressionError, ClusterMismatchError, WatermarkRegressionError: nothing was published.
    """
    snapshot = cluster.controller.snapshot()
    published, _ = read_published(cluster.store, snapshot.cluster_id)
    reports = _by_partition(read_reports(), snapshot.cluster_id)
    layout = KeyLayout(snapshot.key_template, snapshot.shards)
    rows = None if read_histogram is None else list(read_histogram(layout))

    epoch_after = cluster.controller.snapshot().epoch
    check_epochs(epoch_after, watermark_of(published), f"the watermark in {PUBLISHED_WATERMARK}")
    for report in reports.values():
        if report.revision <= snapshot.epoch and not snapshot.knows(report.topic, report.revision):
            raise EpochRegressionError(
                f"there are reports of topic {report.topic!r} (revision {report.revision}), which the controller log does "
                "not know: it looks restored from a backup that is older than the topic; nothing was published. Restore "
                f"the newer controller log, or, if that topic's data may go, remove its reports below {REPORTS}"
            )
        highest = max(report.max_applied_epoch, report.revision)
        check_epochs(epoch_after, highest, f"a report of partition {report.topic}/{report.partition}")
    for row in rows or ():
        if row.epoch is not None:
            check_epochs(epoch_after, row.epoch, f"object {row.sample_key}")

    watermark = compute(snapshot.epoch, snapshot.partitions(), reports)
    totals = None if rows is None else _totals(rows, watermark.watermark)
    if publish_it:
        new = PublishedWatermark(
            snapshot.cluster_id,
            watermark.watermark,
            epoch_after,
            cluster.store.now_ms(),
            -1 if totals is None else totals.eligible_objects,
            -1 if totals is None else totals.eligible_bytes,
        )
        published = publish(cluster.store, cluster.runtime, new)
    return WatermarkResult(watermark, watermark_of(published), totals, publish_it)


def _by_partition(reports: Iterable[PartitionReport], cluster_id: str) -> Mapping[PartitionId, PartitionReport]:
    """The report with the highest gc epoch of each partition: each is safe, that one moves M furthest."""
    best: dict[PartitionId, PartitionReport] = {}
    for report in reports:
        check_cluster_id(cluster_id, report.cluster_id, f"a watermark report below {REPORTS}")
        known = best.get(report.id)
        if known is None or (known.gc_epoch, known.log_offset) < (report.gc_epoch, report.log_offset):
            best[report.id] = report
    return best


def _totals(rows: Iterable[EpochRow], watermark: int) -> ListingTotals:
    totals = ListingTotals()
    for row in rows:
        totals.objects += row.objects
        totals.bytes += row.bytes
        if row.epoch is None:
            totals.unparsable += row.objects
            totals.unparsable_sample = row.sample_key
        elif row.epoch <= watermark:
            totals.eligible_objects += row.objects
            totals.eligible_bytes += row.bytes
    totals.epochs = sorted((r for r in rows if r.epoch is not None), key=lambda r: r.epoch or 0)
    return totals
