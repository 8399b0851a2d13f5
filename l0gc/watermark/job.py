"""compute-watermark, but for how the reports, the logs and the listing are read.

The order of the reads is what makes it safe: the controller's snapshot first (M is capped at its epoch, hazard 5), then
the reports and the listing, then the cluster epoch once more, to be compared with what the bucket holds (hazard 10). Who
reads, Spark or a loop, is the caller's choice; what is decided is decided here. Reports are compacted last: only a run that
has refused nothing may replace files.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from l0gc import columns
from l0gc.epoch import MAX_EPOCH
from l0gc.errors import EpochRegressionError, ExternalLogError
from l0gc.events import event
from l0gc.keys import PUBLISHED_WATERMARK, REPORTS, KeyLayout, PartitionId
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.controller.state import ControllerState
from l0gc.watermark.compact import Compacted
from l0gc.watermark.compute import PartitionReport, Watermark, check_cluster_id, check_epochs, gc_epoch_of
from l0gc.watermark.lowest import Holders, compute_of, holders_of, lowest, partitions_table
from l0gc.watermark.publication import PublishedWatermark, publish, read_published, watermark_of
from l0gc.watermark.reports import best_of, highest_of, key_of, last_of, table_of, write_reports
from l0gc.watermark.scans import SAMPLES, KeptScan, ScanRow, ScanSnapshot, ScanTotals, oldest_ms

_log: Final = logging.getLogger(__name__)

REFRESHED_AT_ONCE: Final = 1000
REFRESH_ROUNDS: Final = 10
"""Together the most logs that a run reads. Where more partitions than that lag behind, housekeeping is what is needed."""

ReadReports = Callable[[], "Iterable[PartitionReport] | pa.Table"]
"""Reads the reports, at least the best one of each partition that has one."""
ReadHistogram = Callable[[KeyLayout], Iterable["EpochRow"]]
"""Reads what the bucket holds at each epoch."""
KeepScan = Callable[[ScanSnapshot], KeptScan]
"""Keeps what a scan saw."""
LISTING: Final = "listing"
INVENTORY: Final = "inventory"
"""The sources of what is read: the store's listing itself, or an S3 Inventory in its place."""
ReadLogs = Callable[[str, list[PartitionId]], list[PartitionReport]]
"""Reads the logs of these partitions of this cluster, and reports each; one that cannot be read is left out."""


@dataclass(frozen=True, slots=True)
class EpochRow:
    """What the bucket holds at one epoch; `epoch` is None for keys that are no L0 keys.

    `oldest_ms` is when the oldest of them was written, by the store's clock; 0 if nobody tells. `samples` are a few keys of
    the row that holds what is no L0 key, where more than one was kept. The noncurrent ones are versions that a delete or
    another version covers: no objects any more, but bytes that cost. Only an inventory tells of them.
    """

    epoch: int | None
    objects: int
    bytes: int
    sample_key: str
    oldest_ms: int = 0
    samples: Sequence[str] = ()
    noncurrent_objects: int = 0
    noncurrent_bytes: int = 0


@dataclass(frozen=True, slots=True)
class WatermarkResult:
    """What a run found and did.

    `previous_watermark` is what was published before; `listing` is None where nothing was scanned; `refreshed` counts the
    logs that were read; `compacted` is None where the reports were left as they are, and `kept` where no scan snapshot was
    to be kept; `seconds` tells where the time went.
    """

    watermark: Watermark
    previous_watermark: int
    listing: ScanSnapshot | None
    published: bool
    refreshed: int = 0
    compacted: Compacted | None = None
    kept: KeptScan | None = None
    seconds: dict[str, float] = field(default_factory=dict)


class Laps:
    """Where the time goes, by the process's clock."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._last = monotonic()
        self.seconds: dict[str, float] = {}

    def lap(self, name: str) -> None:
        """What passed since the last lap was `name`."""
        now = self._monotonic()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now


def run(
    cluster: Cluster,
    read_reports: ReadReports,
    read_histogram: ReadHistogram | None,
    *,
    publish_it: bool = True,
    read_logs: ReadLogs | None = None,
    compact: Callable[[pa.Table], Compacted | None] | None = None,
    keep: KeepScan | None = None,
    source: str = LISTING,
    taken_ms: int | None = None,
) -> WatermarkResult:
    """Compute M and publish it.

    Args:
        read_histogram: None to leave the listing out; what is eligible is then not known, and an old controller log is
            found out by the reports alone.
        publish_it: False to look only; then nothing is written at all.
        read_logs: to look into the logs of the partitions that hold M back.
        compact: puts a file with these rows in the place of the reports that were read.
        keep: keeps what the scan saw, for people.
        source: what `read_histogram` reads: LISTING or INVENTORY.
        taken_ms: when that was so, by the store's clock; None for now, or if nobody knows.

    Raises:
        EpochRegressionError, ClusterMismatchError, WatermarkRegressionError: nothing was published.
        ExternalLogError: the cluster's epochs are another system's.
    """
    laps = Laps(cluster.runtime.clock.monotonic)
    snapshot = cluster.controller.snapshot()
    if snapshot.external_log:
        raise ExternalLogError(
            "this cluster's epochs come from another system's log: give l0gc compute-watermark its --reports and "
            "--partitions"
        )
    published, _ = read_published(cluster.store, snapshot.cluster_id)
    laps.lap("snapshot")
    partitions = partitions_table(snapshot.partitions())
    best = _best(read_reports(), snapshot.cluster_id)
    laps.lap("reports")
    fresh = table_of([])
    if read_logs is not None:
        best, fresh = _refreshed(snapshot, partitions, best, read_logs)
        laps.lap("logs")
    rows = None if read_histogram is None else list(read_histogram(_layout(snapshot)))
    laps.lap("listing")

    epoch_after = cluster.controller.snapshot().epoch
    check_epochs(epoch_after, watermark_of(published), f"the watermark in {PUBLISHED_WATERMARK}")
    _check_reports(best, snapshot, epoch_after)
    for row in rows or ():
        if row.epoch is not None:
            check_epochs(epoch_after, row.epoch, f"object {row.sample_key}")

    watermark = compute_of(snapshot.epoch, partitions, best)
    at = cluster.store.now_ms()
    scan: ScanSnapshot | None = None
    if rows is not None:
        scan = scan_of(
            rows, watermark, holders_of(partitions, best), snapshot.cluster_id, at, source=source, taken_ms=taken_ms
        )
    kept: KeptScan | None = None
    compacted: Compacted | None = None
    if publish_it:
        if fresh.num_rows:
            write_reports(cluster.store, cluster.runtime, "refresh", fresh)
        published = publish_m(cluster, snapshot.cluster_id, watermark.watermark, epoch_after, at, scan)
        laps.lap("publication")
        if scan is not None and keep is not None:
            kept = keep(scan)
            laps.lap("scan")
        if compact is not None:
            compacted = compact(kept_of(best, snapshot))
            if compacted is not None and compacted.files:
                told = event("compacted", files=compacted.files)
                _log.info("%d report files compacted into one", compacted.files, extra=told)
    return WatermarkResult(
        watermark, watermark_of(published), scan, publish_it, fresh.num_rows, compacted, kept, laps.seconds
    )


def publish_m(
    cluster: Cluster,
    cluster_id: str,
    watermark: int,
    epoch: int,
    at_ms: int,
    scan: ScanSnapshot | None,
    *,
    external_log: bool = False,
) -> PublishedWatermark | None:
    """Publish M, at this time of the store's, with what the scan showed; returns what was published before.

    A sweep never goes by an inventory, so what that counted is not published. See `publication.publish`.
    """
    counts = (-1, -1, -1)
    if scan is not None and scan.totals.source == LISTING:
        counts = (scan.totals.eligible_objects, scan.totals.eligible_bytes, scan.totals.objects)
    new = PublishedWatermark(cluster_id, watermark, epoch, at_ms, *counts)
    return publish(cluster.store, cluster.runtime, new, external_log=external_log)


def _layout(snapshot: ControllerState) -> KeyLayout:
    return KeyLayout(snapshot.key_template, snapshot.shards)


def _best(reports: Iterable[PartitionReport] | pa.Table, cluster_id: str) -> pa.Table:
    """The report with the highest gc epoch of each partition: each is safe, that one moves M furthest."""
    table = reports if isinstance(reports, pa.Table) else table_of(list(reports))
    for found in pc.unique(table["cluster_id"]).to_pylist():
        check_cluster_id(cluster_id, found, f"a watermark report below {REPORTS}")
    return best_of(table)


def _refreshed(
    snapshot: ControllerState, partitions: pa.Table, best: pa.Table, read_logs: ReadLogs
) -> tuple[pa.Table, pa.Table]:
    """The reports, with what the logs say of the partitions that hold M back; and that alone.

    First those that M is equal to, and those that nobody reported; then, as long as M moves, whichever are lowest. It ends
    when a partition holds M back whose log was read: then M is what the logs make it.
    """
    fresh = table_of([])
    asked: set[PartitionId] = set()
    for turn in range(REFRESH_ROUNDS):
        m = compute_of(snapshot.epoch, partitions, best).watermark
        low = lowest(partitions, best, len(asked) + REFRESHED_AT_ONCE)
        behind = {p: e for p, r in low.items() if (e := gc_epoch_of(p, r)) < snapshot.epoch}
        if any(e == m and p in asked for p, e in behind.items()):
            break
        todo = [p for p, e in behind.items() if p not in asked and (turn or e == m or low[p] is None)]
        if not todo:
            break
        asked |= set(todo[:REFRESHED_AT_ONCE])
        found = table_of(read_logs(snapshot.cluster_id, todo[:REFRESHED_AT_ONCE]))
        fresh = pa.concat_tables([fresh, found])
        best = best_of(pa.concat_tables([best, found]))
    return best, fresh


def _check_reports(best: pa.Table, snapshot: ControllerState, epoch_after: int) -> None:
    """Refuse what a controller log that was not set back would not leave there (hazard 10)."""
    for name, revision in _topics(best):
        if revision <= snapshot.epoch and not snapshot.knows(name, revision):
            raise EpochRegressionError(
                f"there are reports of topic {name!r} (revision {revision}), which the controller log does not know: it "
                "looks restored from a backup that is older than the topic; nothing was published. Restore the newer "
                f"controller log, or, if that topic's data may go, remove its reports below {REPORTS}"
            )
    if best.num_rows:
        check_epochs(epoch_after, *highest_of(best))


def _topics(table: pa.Table) -> list[tuple[str, int]]:
    """The topics, with their revisions, that are in the table."""
    texts = pc.unique(key_of(table, ["topic", "revision"])).to_pylist()
    split = (text.split("\0", 1) for text in texts)
    return sorted((name, int(revision)) for revision, name in split)


def kept_of(best: pa.Table, snapshot: ControllerState) -> pa.Table:
    """What a compacted file holds: everything, but one row alone of each topic that was deleted.

    That row holds nothing back. It stays because a controller log older than the topic is found out by it (hazard 10): the
    row that reached the highest epoch.
    """
    deleted = {(d.topic.name, d.topic.revision) for d in snapshot.deleted}
    gone = [t for t in _topics(best) if t in deleted]
    if not gone:
        return best
    names = ["topic", "revision"]
    arrays = [columns.strings([t for t, _ in gone]), columns.integers([r for _, r in gone])]
    over = pc.is_in(key_of(best, names), value_set=key_of(pa.table(arrays, names=names), names))
    return pa.concat_tables([best.filter(pc.invert(over)), last_of(best.filter(over), names, ["max_applied_epoch"])])


def scan_of(
    rows: Iterable[EpochRow],
    watermark: Watermark,
    holders: Holders,
    cluster_id: str,
    run_ms: int,
    *,
    source: str = LISTING,
    taken_ms: int | None = None,
) -> ScanSnapshot:
    """What the scan amounts to under M, and who holds what is not eligible."""
    rows = list(rows)
    told: list[ScanRow] = []
    samples: list[str] = []
    for row in sorted((r for r in rows if r.objects), key=lambda r: MAX_EPOCH + 1 if r.epoch is None else r.epoch):
        holds = ("", 0) if row.epoch is None else holders.of(row.epoch)
        told.append(ScanRow(row.epoch, row.objects, row.bytes, row.oldest_ms, *holds))
        if row.epoch is None:
            samples += row.samples or [row.sample_key]
    l0 = [r for r in told if r.epoch is not None]
    unparsable = [r for r in told if r.epoch is None]
    eligible = [r for r in l0 if r.epoch is not None and r.epoch <= watermark.watermark]
    totals = ScanTotals(
        cluster_id=cluster_id,
        run_ms=run_ms,
        taken_ms=run_ms if taken_ms is None else taken_ms,
        watermark=watermark.watermark,
        cluster_epoch=watermark.cluster_epoch,
        source=source,
        objects=sum(r.objects for r in told),
        bytes=sum(r.bytes for r in told),
        eligible_objects=sum(r.objects for r in eligible),
        eligible_bytes=sum(r.bytes for r in eligible),
        unparsable=sum(r.objects for r in unparsable),
        unparsable_bytes=sum(r.bytes for r in unparsable),
        unparsable_samples=samples[:SAMPLES],
        oldest_eligible_ms=oldest_ms(eligible),
        oldest_held_ms=oldest_ms(l0[len(eligible) :]),
        noncurrent_objects=sum(r.noncurrent_objects for r in rows),
        noncurrent_bytes=sum(r.noncurrent_bytes for r in rows),
    )
    return ScanSnapshot(totals, told)
