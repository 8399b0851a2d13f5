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

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import index
from typing import Final, NamedTuple

from l0gc.epoch import NO_WATERMARK
from l0gc.errors import SafetyError, UsageError
from l0gc.formatting import count
from l0gc.storage.objectstore import ObjectStore
from l0gc.storage.parallel import Parallel
from l0gc.watermark.compute import check_cluster_id
from l0gc.watermark.publication import PublishedWatermark
from l0gc.watermark.source import (
    HELD_BACK_SHOWN,
    REPORTED,
    UNREPORTED,
    ClusterHandle,
    ClusterIdentity,
    Holder,
    PinnedUnits,
    UnitSummary,
)

OpenStore = Callable[[str], ObjectStore]
"""A store whose prefix is this `s3://bucket/prefix`."""

_LARGEST: Final = (1 << 31) - 1
"""The highest number of a partition."""
SNAPSHOT_AGE_MS: Final = 3_600_000
"""How old a snapshot may be by default when it is used."""

_REMEDY: Final = (
    "the snapshot is older than that, or its log was restored from a backup; nothing was published or deleted. Take the "
    "reports first, then the partitions and the epoch, and use them within --snapshot-age; if the log went back, stop "
    "sweeping and move its epoch up first"
)
_REASONS: Final = {
    REPORTED: "its report says so; it moves when that system reports a higher gc epoch",
    UNREPORTED: "no report: it counts with the epoch before its creation, or holds everything if that is not known",
}


@dataclass(frozen=True, kw_only=True)
class SnapshotLimits:
    """What is meant by what the other system exports, where it may look like a mistake.

    Attributes:
        allow_no_partitions: whether no partitions at all are meant, so that M is the epoch.
        allow_fewer_partitions: whether partitions were deleted since M was published last.
        allow_unlisted_reports: whether there may be reports of partitions that are not listed.
        snapshot_age_ms: how old the snapshot is at most.
    """

    allow_no_partitions: bool = False
    allow_fewer_partitions: bool = False
    allow_unlisted_reports: bool = False
    snapshot_age_ms: int = SNAPSHOT_AGE_MS


class ListedPartition(NamedTuple):
    """A partition of the other system; `revision` is None where it is not known when it was created."""

    topic: str
    revision: int | None
    partition: int


class PartitionReport(NamedTuple):
    """What a partition reports; where `revision` is None, it counts for the partition of that name."""

    topic: str
    revision: int | None
    partition: int
    gc_epoch: int
    max_applied_epoch: int = NO_WATERMARK


class ExternalLog(NamedTuple):
    """What the other system exports, all of one snapshot.

    Attributes:
        cluster_epoch: its epoch; no partition admits data below what its report says, and none above this is in use yet.
        cluster_ids: the clusters that the files name, if they name any.
    """

    cluster_epoch: int
    partitions: Collection[ListedPartition]
    reports: Sequence[PartitionReport]
    limits: SnapshotLimits = SnapshotLimits()
    cluster_ids: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class ExternalEpochs(SnapshotLimits):
    """What a program knows of its own system with an external log, without files.

    Take `gc_epochs` first, then `partitions` and `cluster_epoch` at once, as of one moment of your log.

    Attributes:
        cluster_epoch: the highest epoch that is in use.
        partitions: every partition there is, as (topic, number), with the epoch at which it was created, or None if that
            is not known.
        gc_epochs: M(p) of partitions: nothing at that epoch or below is needed by p, now or later. Any that was ever true
            will do. A partition that is missing here counts with its creation - 1, or with -1.
    """

    cluster_epoch: int
    partitions: Mapping[tuple[str, int], int | None]
    gc_epochs: Mapping[tuple[str, int], int]

    def read(self, open_store: OpenStore, parallel: Parallel) -> ExternalLog:
        """The same as an export. Raises `UsageError` for what is not a whole number."""
        try:
            return ExternalLog(
                index(self.cluster_epoch),
                [
                    ListedPartition(t, None if r is None else index(r), index(n))
                    for (t, n), r in self.partitions.items()
                ],
                [PartitionReport(topic, None, index(n), index(epoch)) for (topic, n), epoch in self.gc_epochs.items()],
                self,
            )
        except TypeError as e:
            raise UsageError(f"a partition or an epoch must be a whole number: {e}") from e


class ExternalLogSource:
    """An external log as a source of epochs."""

    external: Final = True
    remedy: Final = _REMEDY

    def __init__(self, cluster: ClusterHandle, theirs: ExternalLog) -> None:
        self._cluster, self._theirs = cluster, theirs
        self.snapshot_age_ms = theirs.limits.snapshot_age_ms
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
            SafetyError: partitions seem to be missing, and no option says that this is meant.
        """
        theirs, limits = self._theirs, self._theirs.limits
        for cluster_id in sorted(theirs.cluster_ids):
            check_cluster_id(self._cluster_id, cluster_id, "what was given as --reports or --partitions")
        for p in chain[ListedPartition | PartitionReport](theirs.partitions, theirs.reports):
            if p.partition < 0 or (p.revision is not None and p.revision < 0):
                raise UsageError(f"a {'partition' if p.partition < 0 else 'revision'} below 0 cannot be")
            if p.partition > _LARGEST:
                raise UsageError(f"a partition above {_LARGEST} cannot be: {p.topic}/{p.partition}")
        if min((r.gc_epoch for r in theirs.reports), default=NO_WATERMARK) < NO_WATERMARK:
            raise UsageError(
                f"a gc_epoch below {NO_WATERMARK}, which is that of a partition that needs everything, cannot be"
            )
        partitions = set(theirs.partitions)
        if not partitions and not limits.allow_no_partitions:
            raise SafetyError(
                f"the list of partitions is empty, so M would be the cluster epoch {theirs.cluster_epoch} and everything up "
                "to it could go; if that is meant, give --allow-no-partitions"
            )
        last = published.partitions if published is not None else -1
        if 0 < len(partitions) < last and not limits.allow_fewer_partitions:
            raise SafetyError(
                f"{count(len(partitions), 'partition')} listed, where M was last published with {last:,}: the list looks "
                "cut off, and M would be too high; if partitions were deleted, say --allow-fewer-partitions"
            )
        if not limits.allow_unlisted_reports:
            _check_listed(theirs)
        return [_summary(partitions, theirs.reports)]

    def epoch_now(self) -> int:
        return self._theirs.cluster_epoch

    def pins(self, published: int) -> PinnedUnits:
        """None: a pin is an entry of l0gc's own controller log."""
        return PinnedUnits(-1)


def _check_listed(theirs: ExternalLog) -> None:
    """Refuse reports of partitions that are not listed: of a name that is not there, or of a newer incarnation of one."""
    newest: dict[tuple[str, int], int | None] = {}
    for topic, revision, number in theirs.partitions:
        other = newest.get((topic, number), revision)
        newest[topic, number] = None if revision is None or other is None else max(revision, other)

    def is_listed(report: PartitionReport) -> bool:
        if (report.topic, report.partition) not in newest:
            return False
        listed = newest[report.topic, report.partition]
        return report.revision is None or listed is None or report.revision <= listed

    unlisted = [r for r in theirs.reports if not is_listed(r)]
    if unlisted:
        raise SafetyError(
            f"{count(len(unlisted), 'report')} of partitions that are not listed, the first of "
            f"{unlisted[0].topic}/{unlisted[0].partition}: the list of partitions looks cut off or older than the reports, "
            "and M would be too high; if those partitions were deleted, say --allow-unlisted-reports"
        )


def _summary(partitions: Collection[ListedPartition], reports: Sequence[PartitionReport]) -> UnitSummary:
    """What the partitions may still need: of each, the highest M(p) reported. The highest epoch is that of all reports.

    Where not all revisions are known, a report counts for the one partition of its name.
    """
    by_name: dict[tuple[str, int], ListedPartition] | None = None
    if any(p.revision is None for p in chain[ListedPartition | PartitionReport](partitions, reports)):
        by_name = {}
        for p in partitions:
            if by_name.setdefault((p.topic, p.partition), p) is not p:
                raise UsageError(
                    f"partition {p.topic}/{p.partition} is listed with two revisions; then every partition and every report "
                    "must have one"
                )
    best: dict[ListedPartition, int] = {}
    for topic, revision, number, gc_epoch, _ in reports:
        reported = ListedPartition(topic, revision, number) if by_name is None else by_name.get((topic, number))
        if reported is not None and reported in partitions:
            best[reported] = max(gc_epoch, best.get(reported, gc_epoch))
    # Without a report it counts with its creation; if that is not known either, it holds everything.
    gc_epochs = {p: best.get(p, (p.revision or 0) - 1) for p in partitions}
    few = heapq.nsmallest(HELD_BACK_SHOWN, gc_epochs, key=lambda p: (gc_epochs[p], p.topic, p.partition))
    highest = max(reports, key=lambda r: max(r.gc_epoch, r.max_applied_epoch), default=None)
    kinds = {p: REPORTED if p in best else UNREPORTED for p in few}
    return UnitSummary(
        unit="the external log",
        gc_epochs=Counter(gc_epochs.values()),
        lowest=[Holder(p.topic, p.partition, gc_epochs[p], kind, _REASONS[kind]) for p, kind in kinds.items()],
        highest_epoch=NO_WATERMARK if highest is None else max(highest.gc_epoch, highest.max_applied_epoch),
        highest_in="" if highest is None else f"the report of partition {highest.topic}/{highest.partition}",
    )
