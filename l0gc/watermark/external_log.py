"""Compute M for a system with its own replicated log, from its epoch, partitions and reports, by l0gc's rules.

The cluster was initialised with `external_log`, so l0gc does not advance its epoch or accept data, and M is computed
only here. This is safe for the usual reasons: partitions and epoch belong to one snapshot, and M is capped at that
epoch. A partition without a report counts with its revision - 1, or holds everything if its revision is unknown. A
report above the epoch is refused. M never decreases, and neither does the epoch published with it, which is l0gc's only
record of the other log's past. A report of a topic's former incarnation is below the revision of the new one; if it
counts for the new one, M is lower, never higher.

A list with missing partitions would make M too high. Therefore a list with fewer partitions than were last published,
an empty list, and reports of unlisted partitions are refused unless an option allows them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, ClassVar, Final, NamedTuple, Protocol

import pyarrow as pa

from l0gc.epoch import NO_WATERMARK
from l0gc.errors import SafetyError, UsageError
from l0gc.formatting import count
from l0gc.storage.objectstore import ObjectStore
from l0gc.storage.workers import Workers
from l0gc.watermark.compute import check_cluster_id
from l0gc.watermark.external_rows import PARTITIONS, REPORTS, ExternalSummary, add_up, known_columns
from l0gc.watermark.publication import PublishedWatermark
from l0gc.watermark.source import ClusterIdentity, ClusterView, PinnedUnits, UnitSummary

StoreAt = Callable[[Any, str], ObjectStore]
"""A function that returns the store at an `s3://bucket/prefix`, with the settings of the given store."""

SNAPSHOT_AGE_MS: Final = 3_600_000
"""The default limit of a snapshot's age at the time of its use."""

_REMEDY: Final = (
    "the snapshot is older than that, or its log was restored from a backup; nothing was published or deleted. Take the "
    "reports first, then the partitions and the epoch, and use them within --snapshot-age; if the log went back, stop "
    "sweeping and move its epoch up first"
)


@dataclass(frozen=True, kw_only=True)
class SnapshotLimits:
    """The unusual contents of the other system's export that are intended.

    Attributes:
        allow_no_partitions: whether an empty list is intended, so that M is the epoch.
        allow_fewer_partitions: whether partitions were deleted since M was last published.
        allow_unlisted_reports: whether reports of partitions that are not listed are intended.
        snapshot_age_ms: the largest age of the snapshot.
    """

    allow_no_partitions: bool = False
    allow_fewer_partitions: bool = False
    allow_unlisted_reports: bool = False
    snapshot_age_ms: int = SNAPSHOT_AGE_MS


class ExternalLog(NamedTuple):
    """The other system's export, all from one snapshot.

    Attributes:
        cluster_epoch: the system's epoch. No partition admits data below the epoch of its report, and no epoch above
            this one is in use yet.
        summary: the summary of its partitions and reports.
    """

    cluster_epoch: int
    summary: ExternalSummary
    limits: SnapshotLimits = SnapshotLimits()

    @classmethod
    def of(
        cls,
        summary: ExternalSummary,
        limits: SnapshotLimits,
        source: str,
        *,
        epoch: int | None = None,
        expected: int | None = None,
    ) -> ExternalLog:
        """Return the log that a list of partitions describes; messages call the list `source`.

        Args:
            epoch: the cluster epoch; None to take it from the list.
            expected: the required number of partitions; None for any number.

        Raises:
            UsageError: the rows may belong to different snapshots, or their epoch is unknown.
            SafetyError: there are more or fewer partitions than expected.
        """
        if expected not in (None, summary.partitions):
            raise SafetyError(
                f"{source} lists {count(summary.partitions, 'partition')}, but --expect-partitions is {expected:,}: "
                f"wait until it is complete, or correct the number"
            )
        for column, (given, none) in sorted(summary.filled.items()):
            if given and none:
                raise UsageError(
                    f"the {column} is empty in {count(none, 'row')} and given in {given:,}, so the rows read with {source} "
                    "may be of two snapshots: export it with all rows, or with none"
                )
        lowest, highest = summary.cluster_epochs or (epoch, epoch)
        if lowest is None or highest is None:
            raise UsageError(
                f"the cluster epoch of {source} is not known: give --cluster-epoch, or a column cluster_epoch"
            )
        if lowest != highest:
            raise UsageError(f"{source} has several cluster epochs ({lowest} to {highest}): export one snapshot")
        if epoch not in (None, lowest):
            raise UsageError(
                f"{source} is of cluster epoch {lowest}, but --cluster-epoch is {epoch}: leave one of the two out"
            )
        return cls(lowest, summary, limits)


class ExternalExport(Protocol):
    """Another system's export, located but not yet read."""

    @property
    def files(self) -> int:
        """Return the number of files that any machine can read; 0 if only this process can read the export."""

    def read(self, workers: Workers[Any]) -> ExternalLog:
        """Read the export, on the workers if possible. Raises `L0gcError` for anything uncertain."""


@dataclass(frozen=True, kw_only=True)
class ExternalEpochs(SnapshotLimits):
    """A program's own data about a system with an external log, without files.

    Read `gc_epochs` first, then `partitions` and `cluster_epoch` together, as of one moment of your log.

    Attributes:
        cluster_epoch: the highest epoch in use.
        partitions: every existing partition, as (topic, number), with the epoch at which it was created, or None if that is
            unknown.
        gc_epochs: M(p) of the partitions: p will never again need anything at or below that epoch. An older value is
            also valid. A partition without a value counts with the epoch of its creation - 1, or with -1.
    """

    cluster_epoch: int
    partitions: Mapping[tuple[str, int], int | None]
    gc_epochs: Mapping[tuple[str, int], int]

    files: ClassVar[int] = 0

    def find(self, store: ObjectStore, store_at: StoreAt) -> ExternalExport:
        """Return these numbers as an export, which needs no file."""
        return self

    def read(self, workers: Workers[Any]) -> ExternalLog:
        """Return the numbers as an external log. Raises `UsageError` for anything but whole numbers."""
        try:
            partitions = [(t, index(n), None if r is None else index(r)) for (t, n), r in self.partitions.items()]
            reports = [(t, index(n), index(epoch)) for (t, n), epoch in self.gc_epochs.items()]
            epoch = index(self.cluster_epoch)
            listed = _table(partitions, *PARTITIONS, "revision")
            summary = add_up([listed], [_table(reports, *REPORTS)])
        except (TypeError, OverflowError, pa.ArrowException) as e:
            raise UsageError(f"a partition or an epoch must be a whole number of 64 bits, and a topic text: {e}") from e
        return ExternalLog(epoch, summary, self)


def _table(rows: Sequence[tuple[Any, ...]], *columns: str) -> pa.Table:
    return known_columns("the program", pa.table({c: [row[i] for row in rows] for i, c in enumerate(columns)}), ())


class ExternalLogSource:
    """An external log as a source of epochs."""

    external: Final = True
    remedy: Final = _REMEDY

    def __init__(self, cluster: ClusterView, theirs: ExternalLog) -> None:
        self._cluster, self._theirs = cluster, theirs
        self.snapshot_age_ms = theirs.limits.snapshot_age_ms
        self._cluster_id = ""

    def snapshot(self) -> ClusterIdentity:
        identity = self._cluster.identity()
        self._cluster_id = identity.cluster_id
        return identity._replace(cluster_epoch=self._theirs.cluster_epoch)

    def read(self, published: PublishedWatermark | None) -> list[UnitSummary]:
        """Read the summaries; see `EpochSource.read`.

        Raises:
            UsageError: a number is impossible, or a partition is listed twice.
            ClusterMismatchError: a file belongs to another cluster.
            SafetyError: partitions seem to be missing, and no option allows that.
        """
        theirs, summary, limits = self._theirs, self._theirs.summary, self._theirs.limits
        for cluster_id in summary.cluster_ids:
            check_cluster_id(self._cluster_id, cluster_id, "what was given as --reports or --partitions")
        if summary.impossible:
            raise UsageError(summary.impossible)
        if not summary.partitions and not limits.allow_no_partitions:
            raise SafetyError(
                f"the list of partitions is empty, so M would be the cluster epoch {theirs.cluster_epoch} and everything up "
                "to it could go; if that is meant, give --allow-no-partitions"
            )
        last = published.partitions if published is not None else -1
        if 0 < summary.partitions < last and not limits.allow_fewer_partitions:
            raise SafetyError(
                f"the list has {count(summary.partitions, 'partition')}, and M was last published with {last:,}: it looks "
                "cut off, and M would be too high; if partitions were deleted, give --allow-fewer-partitions"
            )
        if summary.first_unlisted is not None and not limits.allow_unlisted_reports:
            raise SafetyError(
                f"{count(summary.unlisted, 'report names', 'reports name')} a partition that is not listed, first "
                f"{_name(summary.first_unlisted)}: the list of partitions looks cut off or older than the reports, and M "
                "would be too high; if those partitions were deleted, give --allow-unlisted-reports"
            )
        if summary.ambiguous is not None:
            raise UsageError(
                f"partition {_name(summary.ambiguous)} is listed with two revisions; then each of its rows and reports must "
                "have one"
            )
        top = summary.highest
        return [
            UnitSummary(
                unit="the external log",
                gc_epochs=summary.gc_epochs,
                lowest=summary.lowest,
                highest_epoch=NO_WATERMARK if top is None else -top[0],
                highest_in="" if top is None else f"the report of partition {_name(top[1:])}",
            )
        ]

    def epoch_now(self) -> int:
        return self._theirs.cluster_epoch

    def pins(self, published: int) -> PinnedUnits:
        """Return no pins, since a pin is an entry of l0gc's own controller log."""
        return PinnedUnits(-1)


def _name(partition: tuple[str, int]) -> str:
    return f"{partition[0]}/{partition[1]}"
