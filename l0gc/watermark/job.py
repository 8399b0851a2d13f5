"""compute-watermark, but for how the reports, the logs and the listing are read.

The order of the reads is what makes it safe: the controller's snapshot first (M is capped at its epoch, hazard 5), then
the reports and the listing, then the cluster epoch once more, to be compared with what the bucket holds (hazard 10). Who
reads, Spark or a loop, is the caller's choice; what is decided is decided here. Reports are compacted last: only a run that
has refused nothing may replace files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from l0gc import columns
from l0gc.cluster import Cluster
from l0gc.controller.state import ControllerState
from l0gc.errors import EpochRegressionError, OwnLogError
from l0gc.keys import PUBLISHED_WATERMARK, REPORTS, KeyLayout, PartitionId
from l0gc.watermark.compact import Compacted
from l0gc.watermark.compute import PartitionReport, Watermark, check_cluster_id, check_epochs, gc_epoch_of
from l0gc.watermark.lowest import compute_of, lowest, partitions_table
from l0gc.watermark.publication import PublishedWatermark, publish, read_published, watermark_of
from l0gc.watermark.reports import best_of, key_of, last_of, table_of, write_reports

REFRESHED_AT_ONCE: Final = 1000
REFRESH_ROUNDS: Final = 10
"""Together the most logs that a run reads. Where more partitions than that lag behind, housekeeping is what is needed."""

ReadReports = Callable[[], "Iterable[PartitionReport] | pa.Table"]
"""Reads the reports, at least the best one of each partition that has one."""
ReadHistogram = Callable[[KeyLayout], Iterable["EpochRow"]]
"""Reads what the bucket holds at each epoch."""
ReadLogs = Callable[[str, list[PartitionId]], list[PartitionReport]]
"""Reads the logs of these partitions of this cluster, and reports each; one that cannot be read is left out."""


@dataclass(frozen=True, slots=True)
class EpochRow:
    """What the bucket holds at one epoch; `epoch` is None for keys that are no L0 keys.

    `oldest_ms` is when the oldest of them was written, by the store's clock. The noncurrent ones are versions that a
    delete or another version covers: no objects any more, but bytes that cost. Only an inventory tells of them.
    """

    epoch: int | None
    objects: int
    bytes: int
    sample_key: str
    oldest_ms: int = 0
    noncurrent_objects: int = 0
    noncurrent_bytes: int = 0


LISTING: Final = "listing"
INVENTORY: Final = "inventory"


@dataclass(frozen=True, slots=True)
class Taken:
    """Where a histogram comes from: `source` is LISTING or INVENTORY, `ms` when it was so, None if nobody knows."""

    source: str = LISTING
    ms: int | None = None


@dataclass(slots=True)
class ListingTotals:
    """What the bucket holds, as of `taken_ms`; that was `age_ms` before it was read, both by the store's clock."""

    objects: int = 0
    bytes: int = 0
    eligible_objects: int = 0
    eligible_bytes: int = 0
    unparsable: int = 0
    unparsable_sample: str = ""
    noncurrent_objects: int = 0
    noncurrent_bytes: int = 0
    source: str = LISTING
    taken_ms: int | None = None
    age_ms: int = 0
    epochs: list[EpochRow] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class WatermarkResult:
    """What a run found and did.

    `previous_watermark` is what was published before; `listing` is None where nothing was scanned; `refreshed` counts the
    logs that were read; `compacted` is None where the reports were left as they are; `seconds` tells where the time went.
    """

    watermark: Watermark
    previous_watermark: int
    listing: ListingTotals | None
    published: bool
    refreshed: int = 0
    compacted: Compacted | None = None
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
    taken: Taken | None = None,
) -> WatermarkResult:
    """Compute M and publish it.

    Args:
        read_histogram: None to leave the listing out; what is eligible is then not known, and an old controller log is
            found out by the reports alone.
        publish_it: False to look only; then nothing is written at all.
        read_logs: to look into the logs of the partitions that hold M back.
        compact: puts a file with these rows in the place of the reports that were read.
        taken: what the histogram is of, if not of the live listing.

    Raises:
        EpochRegressionError, ClusterMismatchError, WatermarkRegressionError: nothing was published.
        OwnLogError: the cluster's epochs are another system's.
    """
    laps = Laps(cluster.runtime.clock.monotonic)
    snapshot = cluster.controller.snapshot()
    if snapshot.own_log:
        raise OwnLogError(
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
    now_ms = cluster.store.now_ms() if read_histogram is not None else 0
    rows = None if read_histogram is None else list(read_histogram(_layout(snapshot)))
    laps.lap("listing")

    epoch_after = cluster.controller.snapshot().epoch
    check_epochs(epoch_after, watermark_of(published), f"the watermark in {PUBLISHED_WATERMARK}")
    _check_reports(best, snapshot, epoch_after)
    for row in rows or ():
        if row.epoch is not None:
            check_epochs(epoch_after, row.epoch, f"object {row.sample_key}")

    watermark = compute_of(snapshot.epoch, partitions, best)
    totals = None if rows is None else dated(totals_of(rows, watermark.watermark), taken, now_ms)
    compacted = None
    if publish_it:
        if fresh.num_rows:
            write_reports(cluster.store, cluster.runtime, "refresh", fresh)
        published = publish_m(cluster, snapshot.cluster_id, watermark.watermark, epoch_after, totals)
        laps.lap("publication")
        if compact is not None:
            compacted = compact(kept_of(best, snapshot))
            laps.lap("compaction")
    return WatermarkResult(
        watermark, watermark_of(published), totals, publish_it, fresh.num_rows, compacted, laps.seconds
    )


def publish_m(
    cluster: Cluster,
    cluster_id: str,
    watermark: int,
    epoch: int,
    totals: ListingTotals | None,
    *,
    own_log: bool = False,
) -> PublishedWatermark | None:
    """Publish M with what the listing showed; returns what was published before. See `publication.publish`.

    A sweep never goes by an inventory, so what that counted is not published.
    """
    counts = (-1, -1, -1)
    if totals is not None and totals.source == LISTING:
        counts = (totals.eligible_objects, totals.eligible_bytes, totals.objects)
    new = PublishedWatermark(cluster_id, watermark, epoch, cluster.store.now_ms(), *counts)
    return publish(cluster.store, cluster.runtime, new, own_log=own_log)


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
    if not best.num_rows:
        return
    highest = pc.max_element_wise(best["max_applied_epoch"], best["revision"])
    row = best.slice(pc.index(highest, pc.max(highest)).as_py(), 1).to_pylist()[0]
    source = f"a report of partition {row['topic']}/{row['partition']}"
    check_epochs(epoch_after, max(row["max_applied_epoch"], row["revision"]), source)


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


def totals_of(rows: Iterable[EpochRow], watermark: int) -> ListingTotals:
    """What the listing amounts to, under M."""
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
        totals.noncurrent_objects += row.noncurrent_objects
        totals.noncurrent_bytes += row.noncurrent_bytes
    totals.epochs = sorted((r for r in rows if r.epoch is not None and r.objects), key=lambda r: r.epoch or 0)
    return totals


def dated(totals: ListingTotals, taken: Taken | None, now_ms: int) -> ListingTotals:
    """The totals with where they come from; the live listing is of now."""
    taken = taken or Taken(LISTING, now_ms)
    totals.source, totals.taken_ms = taken.source, taken.ms
    totals.age_ms = max(0, now_ms - (taken.ms or now_ms))
    return totals
