"""Planning and committing a reconcile run, on the driver. The executors' part is between the two.

A commit happens only when all of a partition's L1 objects are durable. A partition that another reconciler has moved on
is left to it: its log refuses this run's range, and the L1 objects that this run wrote for it, which no log will ever
name, are removed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from l0gc.errors import CorruptObjectError, PartitionClosedError, StaleReconcilerError, StoreError
from l0gc.keys import PartitionId
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.journal.entries import L1File
from l0gc.streamlog.level_one.plan import PartitionPlan, Plan, commit_entry, make_plan


@dataclass(frozen=True, slots=True)
class Committed:
    """What became of one partition: its L1 objects count, or (`lost`) another reconciler was first."""

    plan: PartitionPlan
    files: list[L1File]
    lost: bool


def plan_run(cluster: Cluster, topic: str | None) -> tuple[Plan, list[str]]:
    """What there is to reconcile, in one topic or in all of them, and what is wrong with partitions left out of it.

    Raises:
        TopicNotFoundError: there is no such topic.
    """
    state = cluster.controller.snapshot()
    ids = state.topic(topic).ids() if topic is not None else state.partitions()

    def load(p: PartitionId) -> str | None:
        try:
            cluster.partition(p).catch_up()
        except CorruptObjectError as e:
            return str(e)
        return None

    errors = cluster.parallel.map(load, ids)
    healthy = [p for p, error in zip(ids, errors, strict=True) if error is None]
    return make_plan((p, cluster.partition(p).state) for p in healthy), [e for e in errors if e is not None]


def commit_run(
    cluster: Cluster, plan: Plan, files: dict[int, list[L1File]], warn: Callable[[str], None]
) -> list[Committed]:
    """Commit each partition of the plan."""
    return cluster.parallel.map(lambda p: _commit(cluster, p, files.get(p.index, []), warn), plan.partitions)


def _commit(cluster: Cluster, plan: PartitionPlan, files: list[L1File], warn: Callable[[str], None]) -> Committed:
    entry = commit_entry(plan, files)
    try:
        cluster.partition(plan.id).commit_reconciled(entry)
    except (StaleReconcilerError, PartitionClosedError):
        named = {f.key for f in cluster.partition(plan.id).state.l1}
        _remove(cluster, [f for f in files if f.key not in named], warn)
        return Committed(plan, [], lost=True)
    return Committed(plan, files, lost=False)


def _remove(cluster: Cluster, files: list[L1File], warn: Callable[[str], None]) -> None:
    """Remove L1 objects that the log has refused for good; one that stays costs space, nothing else."""
    for f in files:
        try:
            failures = cluster.store.delete([f.key])
        except StoreError as e:
            warn(f"{f.key}, which no log names, could not be removed: {e}")
            continue
        for failure in failures:
            warn(f"{failure.key}, which no log names, could not be removed: {failure.code}")
