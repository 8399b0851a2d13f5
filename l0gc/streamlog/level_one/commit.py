"""A reconciler's commit in one journal: index objects where they are due, then the entries; and what became of it.

A commit happens only when all that it names is durable, and it deletes nothing: what was written for a partition that the
journal left out is an orphan, for vacuum. It may run a second time, because Spark repeats its task or a reply was lost,
with an expiry, a merge or a vacuum in between (hazard 28). One entry names all of a partition's objects. So a single one
that the journal names, has dropped or lists in an index object shows that the entry landed, and all of them count. Once
vacuum has deleted all of them, nothing shows it, and the partition counts as lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from l0gc.errors import L0gcError, ObjectNotFoundError
from l0gc.keys import PartitionId
from l0gc.streamlog.cluster import Handles
from l0gc.streamlog.journal.entries import RECONCILE
from l0gc.streamlog.journal.rows import Rows, distinct, in_order, of_partition
from l0gc.streamlog.level_one.edit import Editor
from l0gc.streamlog.level_one.index import STATE_ROWS, UNREADABLE, joined, read_index, spill
from l0gc.streamlog.level_one.plan import Fault, Window, is_unreconciled, still_there

_SHOWN: Final = 20
"""So many causes of a journal are reported, and how many more there are; and so many partitions of each."""


@dataclass(slots=True)
class Committed:
    """What became of a round in one journal.

    `partitions` are those that were lifted, by revision. `lost` counts those that the journal refused, and of which it has
    none of this commit's objects: another reconciler was first, the topic is gone, or vacuum has deleted the objects since
    an earlier try landed. `errors` says what could not be done.
    """

    journal: int
    records: int = 0
    l1_objects: int = 0
    bytes: int = 0
    partitions: dict[int, Rows] = field(default_factory=dict)
    lost: int = 0
    errors: list[str] = field(default_factory=list)


class Commit:
    """The commit of one round, with its epoch, in one journal, of which it took `window`."""

    def __init__(self, cluster: Handles, window: Window, epoch: int) -> None:
        self._cluster, self._window, self._epoch = cluster, window, epoch
        self._handle = cluster.journal(window.journal)
        self._editor = Editor(self._handle, window.topics)
        self._result = Committed(window.journal)

    def run(self, files: Mapping[int, Rows], faults: Sequence[Fault] = ()) -> Committed:
        """Commit L1 objects. What goes wrong in this journal alone is in the result's errors.

        Args:
            files: rows of `L1_ROW` of each topic, by revision, without a gap within a partition; all durable.
            faults: what could not be lifted; it is reported unless another reconciler has lifted it.

        Raises:
            StoreError: the store does not answer, or does not let us.
        """
        with self._editor.alone():
            ordered = {r: in_order(rows) for r, rows in sorted(files.items()) if len(rows)}
            self._handle.catch_up()
            changes = [
                (revision, {"added": rows, **self._spilled(revision, rows)}) for revision, rows in ordered.items()
            ]
            landed = self._editor.land(RECONCILE, self._epoch, changes)
            for revision, rows in ordered.items():
                self._count(revision, rows, {p: why for (r, p), why in landed.refused.items() if r == revision})
            with self._handle.replica.lock:
                left = [f for f in (still_there(self._handle.state, f) for f in faults) if f is not None]
            self._report(left)
        self._result.errors += self._editor.errors
        return self._result

    # -- index objects ------------------------------------------------------------------------------------------------

    def _spilled(self, revision: int, rows: Rows) -> dict[str, Rows]:
        """What the commit does to index objects: for partitions that would have too many rows in the state."""
        with self._handle.replica.lock:
            due = list(self._full(revision, rows))
        c = self._cluster
        return joined(c.parallel.map(lambda d: spill(c.store, *d, self._epoch, c.runtime), due))._asdict()

    def _full(self, revision: int, rows: Rows) -> Iterator[tuple[PartitionId, Rows, Rows]]:
        """Each such partition, with its rows in the state and the new ones, and its index objects."""
        topic = self._handle.state.topics.get(revision)
        if topic is None:
            return
        partitions, firsts, counts = np.unique(rows["partition"], return_index=True, return_counts=True)
        begins = np.searchsorted(topic.l1["partition"], partitions)
        ends = np.searchsorted(topic.l1["partition"], partitions, "right")
        full = ends - begins + counts > STATE_ROWS
        full &= is_unreconciled(topic, partitions, rows["base"][firsts])  # else it will be refused
        for at in np.flatnonzero(full).tolist():
            partition = int(partitions[at])
            both = [topic.l1[begins[at] : ends[at]], rows[firsts[at] : firsts[at] + counts[at]]]
            yield self._window.topics[revision].id(partition), np.concatenate(both), topic.index_of(partition)

    # -- what became of it --------------------------------------------------------------------------------------------

    def _count(self, revision: int, rows: Rows, refused: Mapping[int, str]) -> None:
        """Add up what landed, now or at an earlier try, and report what still waits because vacuum has fenced it off."""
        mine = rows[np.isin(rows["partition"], list(refused))]
        landed, unknown = self._landed(revision, mine) if len(mine) else (set(), set())
        counted = rows[~np.isin(rows["partition"], list(refused.keys() - landed))]
        if len(counted):
            self._result.partitions[revision] = distinct(counted["partition"])
        self._result.records += int((counted["last"] - counted["base"] + 1).sum())
        self._result.l1_objects += len(counted)
        self._result.bytes += int(counted["bytes"].sum())
        rest = mine[~np.isin(mine["partition"], list(landed | unknown))]
        partitions, firsts = np.unique(rest["partition"], return_index=True)
        with self._handle.replica.lock:
            state = self._handle.state
            topic = state.topics.get(revision)
            waits = np.zeros(len(partitions), bool)
            if topic is not None and self._epoch < state.l1_fence:
                waits = is_unreconciled(topic, partitions, rest["base"][firsts])
        self._result.lost += int((~waits).sum())
        whys = dict.fromkeys(refused[p] for p in partitions[waits].tolist())
        self._result.errors += [f"journal {self._window.journal}: {why}" for why in whys]

    def _landed(self, revision: int, rows: Rows) -> tuple[set[int], set[int]]:
        """Of the partitions that the journal has refused, those that an earlier try moved on, and those of which that is not
        known. One object shows it: the state names it or has dropped it, or an index object lists it."""
        with self._handle.replica.lock:
            state, names = self._handle.state, self._handle.state.names(revision)
            live = state.topic(revision).index
            old = {p: of_partition(rows, p) for p in distinct(rows["partition"]).tolist()}
            span = ((p, int(mine["base"][0]), int(mine["last"][-1])) for p, mine in old.items())
            over = {p: state.indexes_over(revision, p, base, last) for p, base, last in span}
        landed: set[int] = set()
        damage: dict[int, L0gcError] = {}
        for partition, mine in old.items():
            wanted, p = {bytes(name) for name in mine["name"]}, self._window.topics[revision].id(partition)
            if wanted & names:
                landed.add(partition)
                continue
            for index in over[partition]:
                try:
                    listed = read_index(self._cluster.store, p, index.reshape(1))["name"]
                except UNREADABLE as e:
                    if not isinstance(e, ObjectNotFoundError) or bytes(index["name"]) in map(bytes, live["name"]):
                        damage[partition] = e  # else vacuum has deleted it, after all that it lists
                else:
                    if any(bytes(name) in wanted for name in listed):
                        landed.add(partition)
                        break
        damage = {partition: e for partition, e in damage.items() if partition not in landed}
        if not damage:
            return landed, set()
        with self._handle.replica.lock:
            now = self._handle.catch_up().topic(revision).index
        if live.tobytes() != now.tobytes():  # it may be gone because of that
            more, unknown = self._landed(revision, rows[np.isin(rows["partition"], list(damage))])
            return landed | more, unknown
        self._result.errors += [
            f"whether this run's L1 objects of {self._window.topics[revision].id(partition)} count is not known: {e}"
            for partition, e in sorted(damage.items())
        ]
        return landed, set(damage)

    def _report(self, faults: Iterable[Fault]) -> None:
        """Add what could not be lifted to the errors: each cause once, with the partitions that it holds."""
        held: dict[str, list[str]] = {}
        ways: dict[str, str] = {}
        for f in faults:
            name = self._window.topics[f.revision].name
            held.setdefault(f.message, []).extend(f"{name}/{p}" for p in f.partitions.tolist())
            with self._handle.replica.lock:
                topic = self._handle.state.topic(f.revision)
                giving_up = topic.how_to_give_up(int(f.partitions[0]), int(f.bases[0]))
            ways.setdefault(f.message, f"; without a copy, give its records up: {giving_up}" if giving_up else "")
        sentences = [f"{text}; it holds {_listed(names)}{ways[text]}" for text, names in sorted(held.items())]
        self._result.errors += sentences[:_SHOWN]
        if len(sentences) > _SHOWN:
            self._result.errors.append(
                f"and {len(sentences) - _SHOWN} more of that kind in journal {self._window.journal}"
            )


def _listed(names: Sequence[str]) -> str:
    """Some names, and how many more there are."""
    if len(names) <= _SHOWN:
        return ", ".join(names)
    return f"{', '.join(names[:_SHOWN])} and {len(names) - _SHOWN} more partitions"
