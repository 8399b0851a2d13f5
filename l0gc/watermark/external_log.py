"""M for a system that keeps its own replicated log: its epoch, its partitions and its reports, l0gc's rules.

The cluster was initialised with `external_log`, so l0gc neither advances its epoch nor takes data, and M is computed in no
other way. It is safe for the usual reasons: partitions and epoch are of one snapshot, and M is capped at that epoch; a
partition without a report counts with its revision - 1, or holds everything if its revision is unknown; a report above the
epoch is refused; M never goes down, and neither does the epoch that is published with it, l0gc's only record of the other
log's past. A report of a topic's former incarnation is below the new one's revision, so it may be taken for the new one's: M
is lower then, never higher.

A list of partitions that lacks some would put M too high. So fewer partitions than were published last, none at all, and
reports of partitions that are not listed are each refused unless they are allowed by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from l0gc import columns
from l0gc.epoch import NO_WATERMARK
from l0gc.errors import ExternalLogError, UsageError
from l0gc.formatting import count
from l0gc.watermark.compute import check_cluster_id
from l0gc.watermark.pipeline import Pipeline, WatermarkResult
from l0gc.watermark.publication import PublishedWatermark
from l0gc.watermark.source import (
    HELD_BACK_SHOWN,
    REPORTED,
    UNREPORTED,
    ClusterHandle,
    ClusterIdentity,
    Holder,
    UnitSummary,
)

SNAPSHOT_AGE_MS: Final = 3_600_000
"""How old a snapshot may be by default when it is used."""

_NAME: Final = ("topic", "partition")
_KEY: Final = ("topic", "revision", "partition")
_WAY_OUT: Final = (
    "the snapshot is older than that, or its log was restored from a backup; nothing was published or deleted. Take the "
    "reports first, then the partitions and the epoch, and use them within --snapshot-age; if the log went back, stop "
    "sweeping and move its epoch up first"
)
_REASONS: Final = {
    REPORTED: "its report says so; it moves when that system reports a higher gc epoch",
    UNREPORTED: "no report: it counts with the epoch before its creation, or holds everything if that is not known",
}


@dataclass(frozen=True)
class ExternalLog:
    """What the other system exports, all of one snapshot.

    Attributes:
        cluster_epoch: its epoch; no partition admits data below what its report says, and none above this is in use yet.
        partitions: the columns topic, revision and partition; revision is null where it is not known.
        reports: the columns topic, revision, partition, gc_epoch and max_applied_epoch; revision is null where it is not
            known, and a report then counts for the partition of that name.
        cluster_ids: the clusters that the files name, if they name any.
        allow_no_partitions: whether no partitions at all are meant, so that M is the epoch.
        allow_fewer_partitions: whether partitions were deleted since M was published last.
        allow_unlisted_reports: whether there may be reports of partitions that are not listed.
        snapshot_age_ms: how old the snapshot is at most.
    """

    cluster_epoch: int
    partitions: pa.Table
    reports: pa.Table
    cluster_ids: frozenset[str] = frozenset()
    allow_no_partitions: bool = False
    allow_fewer_partitions: bool = False
    allow_unlisted_reports: bool = False
    snapshot_age_ms: int = SNAPSHOT_AGE_MS


class ExternalLogSource:
    """An external log as a source of epochs."""

    external: Final = True
    way_out: Final = _WAY_OUT

    def __init__(self, cluster: ClusterHandle, theirs: ExternalLog) -> None:
        self._cluster, self._theirs = cluster, theirs
        self.snapshot_age_ms = theirs.snapshot_age_ms
        self._cluster_id = ""

    def snapshot(self) -> ClusterIdentity:
        identity = self._cluster.identity()
        self._cluster_id = identity.cluster_id
        return identity._replace(cluster_epoch=self._theirs.cluster_epoch)

    def read(self, published: PublishedWatermark | None) -> list[UnitSummary]:
        """See `EpochSource.read`.

        Raises:
            UsageError: a number that cannot be, or a partition that is listed twice.
            ClusterMismatchError: a file is of another cluster.
            ExternalLogError: partitions seem to be missing, and no option says that this is meant.
        """
        theirs = self._theirs
        for found in sorted(theirs.cluster_ids):
            check_cluster_id(self._cluster_id, found, "what was given as --reports or --partitions")
        _check_numbers(theirs)
        partitions = distinct(theirs.partitions)
        _check_count(partitions.num_rows, theirs, published)
        if not theirs.allow_unlisted_reports:
            _check_listed(theirs)
        partitions, reports = _matched(partitions, theirs.reports)
        return [_summary(partitions, reports, theirs.reports)]

    def epoch_now(self) -> int:
        return self._theirs.cluster_epoch


def publish(
    cluster: ClusterHandle,
    *,
    cluster_epoch: int,
    partitions: Mapping[tuple[str, int], int | None],
    gc_epochs: Mapping[tuple[str, int], int],
    allow_no_partitions: bool = False,
    allow_fewer_partitions: bool = False,
    allow_unlisted_reports: bool = False,
    dry_run: bool = False,
) -> WatermarkResult:
    """Compute M for a system with an external log, and publish it, so that `l0gc sweep` uses it. Needs no Spark.

    Take `gc_epochs` first, then `partitions` and `cluster_epoch` at once, as of one moment of your log.

    Args:
        cluster: initialised with `l0gc init --external-log`.
        cluster_epoch: the highest epoch that is in use.
        partitions: every partition there is, as (topic, number), with the epoch at which it was created, or None if that
            is not known.
        gc_epochs: M(p) of partitions: nothing at that epoch or below is needed by p, now or later. Any that was ever true
            will do. A partition that is missing here counts with its creation - 1, or with -1.
        allow_no_partitions: whether no partitions at all are meant: then everything up to the epoch may go.
        allow_fewer_partitions: whether fewer than were published last are meant: some were deleted.
        allow_unlisted_reports: whether `gc_epochs` may name partitions that are not among `partitions`.
        dry_run: compute M and write nothing.

    Raises:
        See `Pipeline.run` and `ExternalLogSource.read`.
    """
    theirs = ExternalLog(
        cluster_epoch,
        partitions_of((t, revision, n) for (t, n), revision in partitions.items()),
        reports_of((t, None, n, gc_epoch) for (t, n), gc_epoch in gc_epochs.items()),
        allow_no_partitions=allow_no_partitions,
        allow_fewer_partitions=allow_fewer_partitions,
        allow_unlisted_reports=allow_unlisted_reports,
    )
    return Pipeline(cluster, ExternalLogSource(cluster, theirs)).run(dry_run=dry_run)


def partitions_of(rows: Iterable[tuple[str, int | None, int]]) -> pa.Table:
    """`ExternalLog.partitions`, of (topic, revision, partition). Raises `UsageError` for numbers that cannot be."""
    topics, revisions, numbers = _transposed(rows, 3)
    try:
        arrays = [columns.strings(topics), columns.integers(revisions), columns.integers(numbers).cast(pa.int32())]
    except (pa.ArrowInvalid, OverflowError) as e:
        raise UsageError(f"a partition or an epoch cannot be that large: {e}") from e
    return pa.Table.from_arrays(arrays, names=list(_KEY))


def reports_of(rows: Iterable[tuple[str, int | None, int, int]]) -> pa.Table:
    """`ExternalLog.reports`, of (topic, revision, partition, gc_epoch). Raises `UsageError` for numbers that cannot be."""
    topics, revisions, numbers, gc_epochs = _transposed(rows, 4)
    table = partitions_of(zip(topics, revisions, numbers, strict=True))
    try:
        epochs = columns.integers(gc_epochs)
    except OverflowError as e:
        raise UsageError(f"an epoch cannot be that large: {e}") from e
    return table.append_column("gc_epoch", epochs).append_column("max_applied_epoch", epochs)


def distinct(partitions: pa.Table) -> pa.Table:
    """Each partition once."""
    return _last_of(partitions, _KEY, ())


def _transposed(rows: Iterable[tuple[Any, ...]], width: int) -> list[list[Any]]:
    """Rows as so many columns."""
    values: list[list[Any]] = [[] for _ in range(width)]
    for row in rows:
        for column, value in zip(values, row, strict=True):
            column.append(value)
    return values


# -- what is refused ----------------------------------------------------------------------------------------------------


def _check_numbers(theirs: ExternalLog) -> None:
    for name in ("revision", "partition"):
        for table in (theirs.partitions, theirs.reports):
            if table.num_rows and (pc.min(table[name]).as_py() or 0) < 0:
                raise UsageError(f"a {name} below 0 cannot be")
    if theirs.reports.num_rows and pc.min(theirs.reports["gc_epoch"]).as_py() < NO_WATERMARK:
        raise UsageError(
            f"a gc_epoch below {NO_WATERMARK}, which is that of a partition that needs everything, cannot be"
        )


def _check_count(found: int, theirs: ExternalLog, published: PublishedWatermark | None) -> None:
    """Refuse a list of partitions that may have lost some."""
    if not found and not theirs.allow_no_partitions:
        raise ExternalLogError(
            f"the list of partitions is empty, so M would be the cluster epoch {theirs.cluster_epoch} and everything up to "
            "it could go; if that is meant, give --allow-no-partitions"
        )
    last = published.partitions if published is not None else -1
    if 0 < found < last and not theirs.allow_fewer_partitions:
        raise ExternalLogError(
            f"{count(found, 'partition')} listed, where M was last published with {last:,}: the list looks cut off, and M "
            "would be too high; if partitions were deleted, say --allow-fewer-partitions"
        )


def _check_listed(theirs: ExternalLog) -> None:
    """Refuse reports of partitions that are not listed: of a name that is not there, or of a newer incarnation of one."""
    partitions, reports = theirs.partitions, theirs.reports
    newest = _last_of(partitions, _NAME, ("revision",))
    row = pc.index_in(_key_of(reports, _NAME), value_set=_key_of(newest, _NAME))
    listed = newest["revision"].combine_chunks().take(row)
    newer = pc.fill_null(pc.greater(reports["revision"].combine_chunks(), listed), False)
    unlisted = reports.filter(pc.or_(pc.is_null(row), newer))
    if unlisted.num_rows:
        first = unlisted.slice(0, 1).to_pylist()[0]
        raise ExternalLogError(
            f"{count(unlisted.num_rows, 'report')} of partitions that are not listed, the first of "
            f"{first['topic']}/{first['partition']}: the list of partitions looks cut off or older than the reports, and M "
            "would be too high; if those partitions were deleted, say --allow-unlisted-reports"
        )


# -- matching -----------------------------------------------------------------------------------------------------------


def _matched(partitions: pa.Table, reports: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Partitions and the best report of each, with the same revisions; other reports are left out.

    A partition without a known revision stands at 0, the lowest that there is: without a report it holds everything. Where
    not all revisions are known, a report counts for the one partition of its name.
    """
    if partitions["revision"].null_count or reports["revision"].null_count:
        names = _key_of(partitions, _NAME)
        counts = pc.value_counts(names)
        twice = counts.field("values").filter(pc.greater(counts.field("counts"), columns.scalar(1)))
        if len(twice):
            number, topic = twice[0].as_py().split("\0", 1)
            raise UsageError(
                f"partition {topic}/{number} is listed with two revisions; then every partition and every report must have "
                "one"
            )
        row = pc.index_in(_key_of(reports, _NAME), value_set=names)
        revisions = partitions["revision"].combine_chunks().take(row)
        reports = reports.set_column(reports.schema.get_field_index("revision"), "revision", revisions)
    partitions, reports = _numbered(partitions), _numbered(reports)
    listed = pc.is_in(_key_of(reports, _KEY), value_set=_key_of(partitions, _KEY))
    return partitions, _last_of(reports.filter(listed), _KEY, ("gc_epoch",))


def _numbered(table: pa.Table) -> pa.Table:
    """With 0 for revisions that are not known."""
    column = pc.coalesce(table["revision"], columns.scalar(0))
    return table.set_column(table.schema.get_field_index("revision"), "revision", column)


def _summary(partitions: pa.Table, reports: pa.Table, every_report: pa.Table) -> UnitSummary:
    """What the partitions may still need by their best reports; the highest epoch is that of all reports there are."""
    row = pc.index_in(_key_of(partitions, _KEY), value_set=_key_of(reports, _KEY))
    reported = reports["gc_epoch"].combine_chunks().take(row)
    gc_epochs = pc.coalesce(reported, pc.subtract(partitions["revision"].combine_chunks(), columns.scalar(1)))
    groups = columns.Groups(gc_epochs)
    everyone = partitions.append_column("gc_epoch", gc_epochs).append_column("row", row)
    order = [("gc_epoch", "ascending"), ("topic", "ascending"), ("partition", "ascending")]
    few = everyone.take(pc.select_k_unstable(everyone, HELD_BACK_SHOWN, sort_keys=order)).to_pylist()
    highest, highest_in = NO_WATERMARK, ""
    if every_report.num_rows:
        epochs = pc.max_element_wise(every_report["gc_epoch"], every_report["max_applied_epoch"])
        highest = pc.max(epochs).as_py()
        first = every_report.slice(pc.index(epochs, pc.max(epochs)).as_py(), 1).to_pylist()[0]
        highest_in = f"the report of partition {first['topic']}/{first['partition']}"
    return UnitSummary(
        unit="the external log",
        gc_epochs=dict(zip(groups.values.to_pylist(), groups.counts().to_pylist(), strict=True)),
        lowest=[_holder(p) for p in few],
        highest_epoch=highest,
        highest_in=highest_in,
    )


def _holder(p: dict[str, Any]) -> Holder:
    kind = UNREPORTED if p["row"] is None else REPORTED
    return Holder(p["topic"], p["partition"], p["gc_epoch"], kind, _REASONS[kind])


def _key_of(table: pa.Table, names: Iterable[str]) -> pa.Array:
    """One text for each row that is equal where all the columns `names` are; a null stands for itself."""
    # Numbers first: they hold no separator, so that only the last of the texts could.
    parts = sorted((table[name] for name in names), key=lambda column: pa.types.is_string(column.type))
    texts = [pc.coalesce(part.cast(pa.string()), columns.scalar("-")) for part in parts]
    return pc.binary_join_element_wise(*texts, columns.scalar("\0")).combine_chunks()


def _last_of(table: pa.Table, names: Iterable[str], order: Iterable[str]) -> pa.Table:
    """Of the rows that are equal in the columns `names`, the last one in the order of the columns `order`."""
    if table.num_rows < 2:
        return table
    group = pc.dictionary_encode(_key_of(table, names)).indices
    ordered = pa.table({"group": group, **{name: table[name] for name in order}})
    by = pc.sort_indices(ordered, sort_keys=[(name, "ascending") for name in ordered.schema.names])
    sorted_group = group.take(by)
    ends = pc.not_equal(sorted_group.slice(0, len(by) - 1), sorted_group.slice(1))
    return table.take(pa.concat_arrays([by.slice(0, len(by) - 1).filter(ends), by.slice(len(by) - 1)]))
