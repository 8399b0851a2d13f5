"""What an operator wants to know first: M, what it could be, what holds it back, and what to do next.

Read from the partitions' own logs rather than from their reports, so a report that is missing or old shows as a difference
between the published M and the one that could be computed now. Changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from l0gc.cluster import Cluster
from l0gc.errors import CorruptObjectError
from l0gc.keys import PartitionId
from l0gc.watermark.compute import PartitionReport, Watermark, compute
from l0gc.watermark.publication import read_published, watermark_of
from l0gc.watermark.reports import report_of


@dataclass(slots=True)
class Status:
    """`now` is M as the logs have it; `eligible_objects` is -1 where no listing was read."""

    cluster_id: str
    cluster_epoch: int
    topics: int
    watermark: int
    now: Watermark
    records: int
    unreconciled_records: int
    eligible_objects: int
    eligible_bytes: int
    next_step: str
    errors: list[str] = field(default_factory=list)


def status(cluster: Cluster) -> Status:
    """The cluster as its logs have it now.

    Raises:
        ClusterMismatchError: the published watermark is another cluster's.
    """
    state = cluster.controller.snapshot()
    published, _ = read_published(cluster.store, state.cluster_id)
    errors: list[str] = []

    def look(p: PartitionId) -> PartitionReport | None:
        handle = cluster.partition(p)
        try:
            return report_of(state.cluster_id, p, handle.catch_up(), handle.replica.offset)
        except CorruptObjectError as e:
            errors.append(str(e))
            return None

    reports = {r.id: r for r in cluster.parallel.map(look, state.partitions()) if r is not None}
    now = compute(state.epoch, state.partitions(), reports)
    unreconciled = sum(r.next_offset - 1 - r.last_reconciled_offset for r in reports.values())
    watermark = watermark_of(published)
    return Status(
        state.cluster_id,
        state.epoch,
        len(state.topics),
        watermark,
        now,
        sum(r.next_offset for r in reports.values()),
        unreconciled,
        published.eligible_objects if published is not None else -1,
        published.eligible_bytes if published is not None else -1,
        _next_step(watermark, now, unreconciled, errors),
        errors,
    )


def _next_step(watermark: int, now: Watermark, unreconciled: int, errors: list[str]) -> str:
    if errors:
        return "restore the object named under 'broken' from a version or a backup; it holds M where it is"
    if now.watermark > watermark:
        return "l0gc compute-watermark: M can move up"
    if unreconciled:
        return "l0gc reconcile: records wait in L0"
    if now.watermark < now.cluster_epoch - 2:
        return "l0gc housekeep: windows lag behind the epoch"
    return "nothing: M follows the epoch; l0gc sweep deletes what it allows"
