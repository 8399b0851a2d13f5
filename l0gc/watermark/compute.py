"""Compute the watermark M (pure): every L0 object at or below epoch M may be deleted.

`M = min(cluster epoch at the snapshot, min over its partitions of M(p))`. M stays safe if the partitions were read
earlier, since M(p) never decreases. It stays safe if topics were created later, since they admit nothing at or below
the snapshot's epoch (hazard 5). Source: the cluster epoch of Redpanda Cloud Topics.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate

import msgspec

from l0gc.errors import ClusterMismatchError, EpochRegressionError
from l0gc.watermark.source import CONTROLLER_REMEDY, HELD_BACK_SHOWN, Holder, UnitSummary


class Watermark(msgspec.Struct, frozen=True):
    """M, and in `held_back_by` the first few partitions whose M(p) equals M, if M is below the cluster epoch."""

    watermark: int
    cluster_epoch: int
    partitions: int
    held_back_by: list[Holder]


def compute(cluster_epoch: int, units: Sequence[UnitSummary]) -> Watermark:
    """Return M for a snapshot with the partitions of these units."""
    watermark = min([cluster_epoch, *(u.gc_epoch for u in units if u.gc_epoch is not None)])
    low = sorted((h for u in units for h in u.lowest), key=lambda h: (h.gc_epoch, h.topic, h.partition))
    holders = [h for h in low if h.gc_epoch == watermark < cluster_epoch]
    return Watermark(watermark, cluster_epoch, sum(u.partitions for u in units), holders[:HELD_BACK_SHOWN])


def holders_of(units: Sequence[UnitSummary]) -> Callable[[int], tuple[str, int]]:
    """Return a function that, for an epoch, counts the partitions that may still need it: those with M(p) below it.

    The function returns the name of the partition with the lowest M(p), empty if no partition needs the epoch, and the
    count.
    """
    low = min((h for u in units for h in u.lowest), key=lambda h: (h.gc_epoch, h.topic, h.partition), default=None)
    total: Counter[int] = Counter()
    for u in units:
        total.update(u.gc_epochs)
    epochs = sorted(total)
    counts = list(accumulate(total[e] for e in epochs))

    def holding(epoch: int) -> tuple[str, int]:
        below = bisect_left(epochs, epoch)
        return (low.name if low is not None else "", counts[below - 1]) if below else ("", 0)

    return holding


def check_epochs(cluster_epoch: int, highest_known: int, source: str, remedy: str = CONTROLLER_REMEDY) -> None:
    """Refuse if the bucket contains an epoch that the cluster has not reached (hazard 10).

    Args:
        cluster_epoch: the epoch, read after everything that `highest_known` comes from, since uploads continue.
        highest_known: the highest epoch in `source`.
        source: the place of that epoch, for the message.
        remedy: the likely cause and the way out.

    Raises:
        EpochRegressionError: the controller's log is older than the data.
    """
    if highest_known > cluster_epoch:
        raise EpochRegressionError(
            f"{source} is at epoch {highest_known}, above the cluster epoch {cluster_epoch}: {remedy}"
        )


def check_cluster_id(cluster_id: str, owner: str, source: str) -> None:
    """Raise `ClusterMismatchError` if `source` belongs to another cluster (hazard 11)."""
    if owner != cluster_id:
        raise ClusterMismatchError(
            f"{source} belongs to cluster {owner}, this bucket to {cluster_id}; nothing was published or deleted. "
            "Check --url, and restore this cluster's own object (l0gc help operate-logs)"
        )
