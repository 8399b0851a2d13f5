"""M for a system that keeps a replicated log of its own: its epoch, its partitions and its reports, l0gc's rules.

The cluster was founded with `external_log`, so l0gc neither advances its epoch nor takes data, and M is computed in no other
way. What makes it safe is what makes it safe elsewhere: partitions and epoch are of one snapshot, and M is capped at that
epoch; a partition without a report counts with its revision - 1, or holds everything where no revision is known; a report
above the epoch is refused; M never goes down, and neither does the epoch that is published with it, which is all that l0gc
knows of the other log's past. A report of a topic's former incarnation is below the new one's revision, so it may be taken
for the new one's: M is lower then, never higher. No partitions at all would put M at the epoch; that must be asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from l0gc import columns
from l0gc.epoch import MAX_EPOCH, NO_WATERMARK, is_epoch
from l0gc.errors import ExternalLogError, UsageError
from l0gc.keys import KeyLayout
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.controller.state import ControllerState
from l0gc.watermark.compute import Watermark, check_cluster_id, check_epochs
from l0gc.watermark.job import LISTING, KeepScan, Laps, ReadHistogram, WatermarkResult, publish_m, scan_of
from l0gc.watermark.lowest import compute_of, holders_of
from l0gc.watermark.publication import EXTERNAL_LOG_BEHIND, THEIR_EPOCH, read_published, watermark_of
from l0gc.watermark.reports import KEY, SCHEMA, best_of, key_of, last_of
from l0gc.watermark.scans import KeptScan, ScanSnapshot

SNAPSHOT_AGE_MS: Final = 3_600_000
"""How old a snapshot may be by default when it is used."""

_ABOVE: Final = (
    "the snapshot is older than that, or its log was restored from a backup; nothing was published or deleted. Take the "
    "reports first, then the partitions and the epoch"
)
_ABOVE_LISTED: Final = (
    "an object that was there before the snapshot cannot be newer than it, so the log was restored from a backup, the "
    "object is foreign, or the snapshot is older than --snapshot-age; nothing was published or deleted"
)
_REPORTED: Final = "its report says so; it moves when that system reports a higher gc epoch"
_UNREPORTED: Final = "no report: it counts with the epoch before its creation, or holds everything if that is not known"


@dataclass(frozen=True)
class ExternalLog:
    """What the other system tells, all of one snapshot.

    Attributes:
        cluster_epoch: its epoch; no partition admits data below what its report says, and none above this is in use yet.
        partitions: the columns topic, revision and partition; revision is null where it is not known.
        reports: the columns topic, revision, partition, gc_epoch and max_applied_epoch; revision is null where it is not
            told, and a report then counts for the partition of that name.
        cluster_ids: the clusters that the files name, if they name any.
        allow_no_partitions: whether no partitions at all are meant, so that M is the epoch.
        snapshot_age_ms: how old the snapshot is at most.
    """

    cluster_epoch: int
    partitions: pa.Table
    reports: pa.Table
    cluster_ids: frozenset[str] = frozenset()
    allow_no_partitions: bool = False
    snapshot_age_ms: int = SNAPSHOT_AGE_MS


def run(
    cluster: Cluster,
    theirs: ExternalLog,
    read_histogram: ReadHistogram | None = None,
    *,
    publish_it: bool = True,
    keep: KeepScan | None = None,
    source: str = LISTING,
    taken_ms: int | None = None,
) -> WatermarkResult:
    """Compute M from what the other system tells, and publish it.

    Args:
        read_histogram: None to leave the listing out.
        publish_it: False to look only.
        keep: keeps what the scan saw, for people.
        source: what `read_histogram` reads: LISTING or INVENTORY.
        taken_ms: when that was so, by the store's clock; None for now, or if nobody knows.

    Raises:
        ExternalLogError: the cluster was not founded with `l0gc init --external-log`, or there are no partitions.
        UsageError: an epoch that cannot be.
        EpochRegressionError, ClusterMismatchError, WatermarkRegressionError: nothing was published.
    """
    laps = Laps(cluster.runtime.clock.monotonic)
    state = cluster.controller.snapshot()
    started_ms = cluster.store.now_ms()
    _check(state, theirs)
    published, _ = read_published(cluster.store, state.cluster_id)
    laps.lap("snapshot")
    if published is not None:
        check_epochs(theirs.cluster_epoch, published.cluster_epoch, THEIR_EPOCH, EXTERNAL_LOG_BEHIND)
    _check_reports(theirs.cluster_epoch, theirs.reports)
    partitions, reports = _matched(state.cluster_id, theirs)
    laps.lap("reports")
    layout = KeyLayout(state.key_template, state.shards)
    rows = None if read_histogram is None else list(read_histogram(layout))
    for row in rows or ():
        if row.epoch is not None and row.oldest_ms < started_ms - theirs.snapshot_age_ms:
            check_epochs(theirs.cluster_epoch, row.epoch, f"object {row.sample_key}", _ABOVE_LISTED)
    laps.lap("listing")
    watermark = _explained(compute_of(theirs.cluster_epoch, partitions, reports), reports)
    at = cluster.store.now_ms()
    scan: ScanSnapshot | None = None
    kept: KeptScan | None = None
    if rows is not None:
        holders = holders_of(partitions, reports)
        scan = scan_of(rows, watermark, holders, state.cluster_id, at, source=source, taken_ms=taken_ms)
    if publish_it:
        published = publish_m(
            cluster, state.cluster_id, watermark.watermark, theirs.cluster_epoch, at, scan, external_log=True
        )
        laps.lap("publication")
        if scan is not None and keep is not None:
            kept = keep(scan)
            laps.lap("scan")
    return WatermarkResult(watermark, watermark_of(published), scan, publish_it, kept=kept, seconds=laps.seconds)


def publish(
    cluster: Cluster,
    *,
    cluster_epoch: int,
    partitions: Mapping[tuple[str, int], int | None],
    gc_epochs: Mapping[tuple[str, int], int],
    allow_no_partitions: bool = False,
    publish_it: bool = True,
) -> WatermarkResult:
    """Compute M for a system that keeps its own log, and publish it, so that `l0gc sweep` goes by it. Needs no Spark.

    Take `gc_epochs` first, then `partitions` and `cluster_epoch` at once, as of one moment of your log.

    Args:
        cluster: `Cluster(S3Store(StoreConfig.from_url("s3://bucket/prefix")))`; founded with `l0gc init --external-log`.
        cluster_epoch: the highest epoch that is in use.
        partitions: every partition there is, as (topic, number), with the epoch at which it was created, or None if that
            is not known.
        gc_epochs: M(p) of partitions: nothing at that epoch or below is needed by p, now or later. Any that was ever true
            will do. A partition that is missing here counts with its creation - 1, or with -1.
        allow_no_partitions: whether no partitions at all are meant: then everything up to the epoch may go.
        publish_it: False to look only.

    Raises:
        See `run`.
    """
    listed = partitions_of((t, revision, n) for (t, n), revision in partitions.items())
    reports = reports_of((t, None, n, gc_epoch) for (t, n), gc_epoch in gc_epochs.items())
    theirs = ExternalLog(cluster_epoch, listed, reports, allow_no_partitions=allow_no_partitions)
    return run(cluster, theirs, publish_it=publish_it)


def partitions_of(rows: Iterable[tuple[str, int | None, int]]) -> pa.Table:
    """`ExternalLog.partitions`, of (topic, revision, partition). Raises `UsageError` for numbers that cannot be."""
    topics, revisions, numbers = _turned(rows, 3)
    try:
        arrays = [columns.strings(topics), columns.integers(revisions), columns.integers(numbers).cast(pa.int32())]
    except (pa.ArrowInvalid, OverflowError) as e:
        raise UsageError(f"a partition or an epoch cannot be that large: {e}") from e
    return pa.Table.from_arrays(arrays, names=["topic", "revision", "partition"])


def reports_of(rows: Iterable[tuple[str, int | None, int, int]]) -> pa.Table:
    """`ExternalLog.reports`, of (topic, revision, partition, gc_epoch). Raises `UsageError` for numbers that cannot be."""
    topics, revisions, numbers, gc_epochs = _turned(rows, 4)
    table = partitions_of(zip(topics, revisions, numbers, strict=True))
    try:
        epochs = columns.integers(gc_epochs)
    except OverflowError as e:
        raise UsageError(f"an epoch cannot be that large: {e}") from e
    return table.append_column("gc_epoch", epochs).append_column("max_applied_epoch", epochs)


def _turned(rows: Iterable[tuple[Any, ...]], width: int) -> list[list[Any]]:
    """Rows as so many columns."""
    turned: list[list[Any]] = [[] for _ in range(width)]
    for row in rows:
        for column, value in zip(turned, row, strict=True):
            column.append(value)
    return turned


def _check(state: ControllerState, theirs: ExternalLog) -> None:
    if not state.external_log:
        raise ExternalLogError(
            "this cluster's epochs are those of l0gc's own controller log, so no other reports count here; a bucket for a "
            "system that keeps its own log is founded with l0gc init --external-log"
        )
    for found in sorted(theirs.cluster_ids):
        check_cluster_id(state.cluster_id, found, "what was given as --reports or --partitions")
    if not is_epoch(theirs.cluster_epoch):
        raise UsageError(f"cluster epoch {theirs.cluster_epoch} is none: epochs are 0 to {MAX_EPOCH}")
    for name in ("revision", "partition"):
        for table in (theirs.partitions, theirs.reports):
            if table.num_rows and (pc.min(table[name]).as_py() or 0) < 0:
                raise UsageError(f"a {name} below 0 cannot be")
    if theirs.reports.num_rows and pc.min(theirs.reports["gc_epoch"]).as_py() < NO_WATERMARK:
        raise UsageError(
            f"a gc_epoch below {NO_WATERMARK}, which is that of a partition that needs everything, cannot be"
        )
    if not theirs.partitions.num_rows and not theirs.allow_no_partitions:
        raise ExternalLogError(
            f"there are no partitions, so M would be the cluster epoch {theirs.cluster_epoch} and everything up to it "
            "could go; if that is meant, say --allow-no-partitions"
        )


def _check_reports(cluster_epoch: int, reports: pa.Table) -> None:
    if not reports.num_rows:
        return
    highest = pc.max_element_wise(reports["gc_epoch"], reports["max_applied_epoch"])
    row = reports.slice(pc.index(highest, pc.max(highest)).as_py(), 1).to_pylist()[0]
    source = f"the report of partition {row['topic']}/{row['partition']}"
    check_epochs(cluster_epoch, pc.max(highest).as_py(), source, _ABOVE)


def _matched(cluster_id: str, theirs: ExternalLog) -> tuple[pa.Table, pa.Table]:
    """Partitions and their best reports, with the same revisions; other reports are left out.

    A partition without a known revision stands at 0, the lowest that there is: without a report it holds everything. Where
    the files do not both tell revisions, a report counts for the one partition of its name.
    """
    partitions = last_of(theirs.partitions, KEY, [])
    matched, name = theirs.reports, ["topic", "partition"]
    if partitions["revision"].null_count or matched["revision"].null_count:
        names = key_of(partitions, name)
        counts = pc.value_counts(names)
        twice = counts.field("values").filter(pc.greater(counts.field("counts"), columns.scalar(1)))
        if len(twice):
            number, topic = twice[0].as_py().split("\0", 1)
            raise UsageError(
                f"partition {topic}/{number} is listed with two revisions; then every partition and every report must have "
                "one"
            )
        row = pc.index_in(key_of(matched, name), value_set=names)
        revisions = partitions["revision"].combine_chunks().take(row)
        matched = matched.set_column(matched.schema.get_field_index("revision"), "revision", revisions)
    partitions, matched = _numbered(partitions), _numbered(matched)
    listed = pc.is_in(key_of(matched, KEY), value_set=key_of(partitions, KEY))
    return partitions, _full(cluster_id, matched.filter(listed))


def _numbered(table: pa.Table) -> pa.Table:
    """With 0 for revisions that are not known."""
    column = pc.coalesce(table["revision"], columns.scalar(0))
    return table.set_column(table.schema.get_field_index("revision"), "revision", column)


def _full(cluster_id: str, reports: pa.Table) -> pa.Table:
    """The best of the reports, in the shape of l0gc's own; what the other system does not tell is not looked at."""
    n = reports.num_rows
    zeros = columns.repeated(0, n)
    told = {name: reports[name] for name in (*KEY, "gc_epoch", "max_applied_epoch")} | {
        "cluster_id": columns.strings([cluster_id] * n),
        "lowest_unreconciled_epoch": columns.integers([None] * n),
    }
    return best_of(pa.table({f.name: told.get(f.name, zeros) for f in SCHEMA}).cast(SCHEMA))


def _explained(watermark: Watermark, reports: pa.Table) -> Watermark:
    """With the remedies that this system has; those of l0gc's own partitions are no use to it."""
    reported = set(zip(reports["topic"].to_pylist(), reports["partition"].to_pylist(), strict=True))
    held = [
        msgspec.structs.replace(h, reason=_REPORTED if (h.topic, h.partition) in reported else _UNREPORTED)
        for h in watermark.held_back_by
    ]
    return msgspec.structs.replace(watermark, held_back_by=held)
