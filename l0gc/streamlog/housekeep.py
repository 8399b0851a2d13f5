"""Housekeeping: tick, slide idle windows, checkpoint, truncate, report.

Each step is safe to run at any time, by any number of processes: a tick and an advance are ordinary log entries, a
checkpoint says what its log says, and truncation keeps to the shared log's rules.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec

from l0gc.errors import CorruptObjectError
from l0gc.keys import PartitionId
from l0gc.storage.replica import Replica
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.controller.state import ControllerState
from l0gc.watermark.compute import PartitionReport
from l0gc.watermark.reports import publish_reports, report_of

S = TypeVar("S")

CHECKPOINT_ENTRIES: Final = 50
"""Entries behind the newest checkpoint that make a new one worth its request: what a replay then saves."""


class Broken(msgspec.Struct, frozen=True):
    """A partition that could not be looked after, and why; a live topic's holds M where it was."""

    topic: str
    partition: int
    error: str


@dataclass(slots=True)
class HousekeepResult:
    cluster_epoch: int
    ticked: bool = False
    advanced: int = 0
    barriers: int = 0
    checkpoints: int = 0
    truncated_entries: int = 0
    closed: int = 0
    partitions: int = 0
    broken: list[Broken] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Kept:
    moved: bool
    checkpoint: bool
    truncated: int
    report: PartitionReport


def housekeep(
    cluster: Cluster, *, barrier: bool = False, checkpoint_entries: int = CHECKPOINT_ENTRIES
) -> HousekeepResult:
    """Look after the whole cluster once. A partition whose log cannot be read is named in `broken`, the rest is done.

    Args:
        barrier: tick in any case, and close every window to that tick, so that all that was uploaded before it can go.
    """
    controller = cluster.controller
    before = controller.snapshot().epoch
    epoch = controller.advance() if barrier else controller.tick_if_due()
    state = controller.snapshot()
    result = HousekeepResult(epoch, ticked=epoch != before, partitions=len(state.partitions()))
    result.closed, result.broken = close_partitions(cluster, state.to_be_closed())
    kept = cluster.parallel.map(
        lambda p: _keep(cluster, state, p, epoch, barrier=barrier, checkpoint_entries=checkpoint_entries),
        state.partitions(),
    )
    for k in kept:
        if isinstance(k, Broken):
            result.broken.append(k)
            continue
        result.barriers += k.moved and barrier
        result.advanced += k.moved and not barrier
        result.checkpoints += k.checkpoint
        result.truncated_entries += k.truncated
    made, truncated = _checkpoint(controller.replica, checkpoint_entries)
    result.checkpoints += made
    result.truncated_entries += truncated
    reports = [k.report for k in kept if isinstance(k, _Kept)]
    publish_reports(cluster.store, cluster.runtime, "housekeep", reports)
    return result


def _keep(
    cluster: Cluster,
    state: ControllerState,
    p: PartitionId,
    epoch: int,
    *,
    barrier: bool,
    checkpoint_entries: int,
) -> _Kept | Broken:
    handle = cluster.partition(p)
    try:
        moved = handle.barrier(epoch) if barrier else handle.advance(epoch)
        checkpoint, truncated = _checkpoint(handle.replica, checkpoint_entries)
    except CorruptObjectError as e:
        return Broken(p.topic, p.partition, str(e))
    with handle.replica.lock:
        report = report_of(state.cluster_id, p, handle.state, handle.replica.offset)
    return _Kept(moved, checkpoint, truncated, report)


def _checkpoint(replica: Replica[S], every: int) -> tuple[bool, int]:
    """Checkpoint if enough has come together since the last one, and truncate if enough is covered by one."""
    due = replica.offset - replica.checkpoint_offset >= every
    if due:
        replica.write_checkpoint()
    return due, replica.log.truncate() if due or replica.covered >= every else 0


def close_partitions(cluster: Cluster, ids: list[PartitionId]) -> tuple[int, list[Broken]]:
    """End the partitions of deleted topics; says how many had not ended, and which could not be ended."""

    def close(p: PartitionId) -> bool | Broken:
        try:
            return cluster.partition(p).close()
        except CorruptObjectError as e:
            return Broken(p.topic, p.partition, str(e))

    outcomes = cluster.parallel.map(close, ids)
    return sum(o is True for o in outcomes), [o for o in outcomes if isinstance(o, Broken)]
