"""What a reconciler has to read, and what it may commit (pure).

A plan covers whole log entries, from the last reconciled record on. It is committed only if the L1 objects hold exactly
its records, and only if the partition still is where the plan began: a second reconciler, or one that slept, is refused
by the log (hazard 9).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from l0gc.errors import CorruptObjectError
from l0gc.keys import PartitionId
from l0gc.streamlog.journal.entries import L1File, Placeholder, Reconciled
from l0gc.streamlog.journal.state import PartitionState


class PartitionPlan(msgspec.Struct, frozen=True):
    """The records `base_offset` to `last_offset` of a partition; `index` is the plan's number within the run."""

    index: int
    topic: str
    revision: int
    partition: int
    base_offset: int
    last_offset: int
    log_offset: int

    @property
    def id(self) -> PartitionId:
        return PartitionId(self.topic, self.revision, self.partition)


class ExtentRead(msgspec.Struct, frozen=True):
    """An extent to read, for plan `index`."""

    index: int
    epoch: int
    placeholder: Placeholder


class ObjectRead(msgspec.Struct, frozen=True):
    """An L0 object with all of its extents that the run needs: it is fetched once."""

    key: str
    extents: list[ExtentRead]

    @property
    def bytes(self) -> int:
        return sum(e.placeholder.length for e in self.extents)


class Plan(msgspec.Struct, frozen=True):
    partitions: list[PartitionPlan]
    objects: list[ObjectRead]

    @property
    def records(self) -> int:
        return sum(p.last_offset - p.base_offset + 1 for p in self.partitions)


def make_plan(states: Iterable[tuple[PartitionId, PartitionState]]) -> Plan:
    """Everything that is unreconciled in `states`."""
    partitions: list[PartitionPlan] = []
    by_key: dict[str, list[ExtentRead]] = {}
    for p, state in states:
        if state.closed or not state.placeholders:
            continue
        index, last = len(partitions), state.placeholders[-1]
        partitions.append(
            PartitionPlan(
                index,
                p.topic,
                p.revision,
                p.partition,
                state.last_reconciled_offset + 1,
                last.placeholder.last_offset,
                last.log_offset,
            )
        )
        for u in state.placeholders:
            by_key.setdefault(u.placeholder.key, []).append(ExtentRead(index, u.epoch, u.placeholder))
    return Plan(partitions, [ObjectRead(k, v) for k, v in sorted(by_key.items())])


def split(objects: Sequence[ObjectRead], tasks: int) -> list[list[ObjectRead]]:
    """The objects in at most `tasks` groups of about equal bytes."""
    groups: list[list[ObjectRead]] = [[] for _ in range(max(1, min(tasks, len(objects))))]
    sizes = [0] * len(groups)
    for o in sorted(objects, key=lambda o: -o.bytes):
        smallest = sizes.index(min(sizes))
        groups[smallest].append(o)
        sizes[smallest] += o.bytes
    return groups


def commit_entry(plan: PartitionPlan, files: Iterable[L1File]) -> Reconciled:
    """The log entry for a plan whose L1 objects are durable.

    Raises:
        CorruptObjectError: the objects do not hold exactly the plan's records.
    """
    ordered = sorted(files, key=lambda f: f.base_offset)
    at = plan.base_offset
    whole = True
    for f in ordered:
        if f.base_offset != at or f.last_offset < at:
            whole = False
            break
        at = f.last_offset + 1
    if not whole or at != plan.last_offset + 1:
        raise CorruptObjectError(
            f"the L1 objects written for partition {plan.id} hold records up to {at - 1}, not {plan.base_offset} to "
            f"{plan.last_offset}; nothing is committed"
        )
    return Reconciled(plan.base_offset, plan.last_offset, plan.log_offset, ordered)
