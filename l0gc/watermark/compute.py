"""The watermark M (pure): every L0 object at epoch M and below may be deleted.

`M = min(cluster epoch at the snapshot, min over its partitions of M(p))`. It is safe under any staleness of the reports,
since M(p) never goes down; under missing reports, since a partition that never reported still needs its topic's revision
(hazard 6); and under topics created meanwhile, since those admit nothing at or below the snapshot's epoch (hazard 5).
Source: the cluster-epoch concept of Redpanda Cloud Topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from l0gc.epoch import prev
from l0gc.errors import ClusterMismatchError, EpochRegressionError
from l0gc.keys import PartitionId

HELD_BACK_SHOWN: Final = 10

OLD_BACKUP: Final = (
    "the controller log looks restored from an old backup, or the object is foreign; nothing was published or deleted. "
    "Restore the newer controller log, or remove that object if it is not l0gc's"
)


class PartitionReport(msgspec.Struct, frozen=True):
    """A partition's watermark snapshot; any of them is safe to use, the highest gc epoch is the most useful."""

    cluster_id: str
    topic: str
    revision: int
    partition: int
    gc_epoch: int
    max_applied_epoch: int
    previous_applied_epoch: int
    next_offset: int
    last_reconciled_offset: int
    lowest_unreconciled_epoch: int | None
    log_offset: int
    reported_at_ms: int

    @property
    def id(self) -> PartitionId:
        return PartitionId(self.topic, self.revision, self.partition)


class HeldBackBy(msgspec.Struct, frozen=True):
    """A partition that M cannot pass, and why."""

    topic: str
    partition: int
    gc_epoch: int
    reason: str


class Watermark(msgspec.Struct, frozen=True):
    watermark: int
    cluster_epoch: int
    partitions: int
    held_back_by: list[HeldBackBy]


def gc_epoch_of(p: PartitionId, report: PartitionReport | None) -> int:
    """M(p): what its report says, or without one, that it needs its topic's revision (hazard 6)."""
    return report.gc_epoch if report is not None else prev(p.revision)


def reason_of(report: PartitionReport | None) -> str:
    """Why a partition's M(p) is what it is, and what moves it."""
    if report is None:
        return "no report yet: run l0gc housekeep"
    unreconciled = report.next_offset - 1 - report.last_reconciled_offset
    if unreconciled and report.lowest_unreconciled_epoch == report.gc_epoch + 1:
        return f"{unreconciled:,} unreconciled records from epoch {report.lowest_unreconciled_epoch} on: run l0gc reconcile"
    return (
        f"window [{report.previous_applied_epoch}, {report.max_applied_epoch}] may still take epoch "
        f"{report.gc_epoch + 1}; it moves with the next tick (l0gc housekeep)"
    )


def compute(
    cluster_epoch: int,
    partitions: Iterable[PartitionId],
    reports: Mapping[PartitionId, PartitionReport],
) -> Watermark:
    """M for a snapshot of the controller.

    Args:
        cluster_epoch: the epoch of the snapshot.
        partitions: the partitions of the same snapshot.
        reports: the best report of each partition that has one; others are ignored.
    """
    watermark, count = cluster_epoch, 0
    lowest: list[tuple[int, PartitionId]] = []
    for p in partitions:
        count += 1
        gc_epoch = gc_epoch_of(p, reports.get(p))
        watermark = min(watermark, gc_epoch)
        lowest.append((gc_epoch, p))
    lowest.sort(key=lambda t: (t[0], t[1].topic, t[1].partition))
    held = [
        HeldBackBy(p.topic, p.partition, gc_epoch, reason_of(reports.get(p)))
        for gc_epoch, p in lowest[:HELD_BACK_SHOWN]
        if gc_epoch == watermark
    ]
    return Watermark(watermark, cluster_epoch, count, held)


def check_epochs(cluster_epoch: int, highest_known: int, source: str, advice: str = OLD_BACKUP) -> None:
    """Refuse when the bucket knows an epoch that the cluster has not reached (hazard 10).

    Args:
        cluster_epoch: read after everything that `highest_known` comes from, since uploads go on meanwhile.
        highest_known: the highest epoch found there.
        source: where, for the message.
        advice: what that looks like, and what to do.

    Raises:
        EpochRegressionError: the controller's log is older than the data.
    """
    if highest_known > cluster_epoch:
        raise EpochRegressionError(
            f"{source} is at epoch {highest_known}, above the cluster epoch {cluster_epoch}: {advice}"
        )


def check_cluster_id(cluster_id: str, found: str, source: str) -> None:
    """Raises `ClusterMismatchError` if `source` belongs to another cluster (hazard 11)."""
    if found != cluster_id:
        raise ClusterMismatchError(
            f"{source} belongs to cluster {found}, this bucket to {cluster_id}; nothing was published or deleted. "
            "Check --url, and remove what another cluster left here"
        )
