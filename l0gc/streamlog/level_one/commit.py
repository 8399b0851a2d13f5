"""A reconciler's commit in one journal: index objects where they are due, then the entries, then the losers' objects.

A commit happens only when all that it names is durable. A partition that another reconciler has moved on, or whose topic is
gone, is left out by the journal, at the offset where the entry lands; the L1 objects that were written for it are removed,
since no journal will ever name them: a last reconciled offset never goes back. Done a second time, because Spark did its
task again, a commit finds its own objects in the journal, and counts them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from l0gc.errors import CorruptObjectError, ObjectNotFoundError, ProtocolError, StoreError
from l0gc.keys import PartitionId
from l0gc.runtime import Runtime
from l0gc.storage.objectstore import PAGE_SIZE, ObjectStore
from l0gc.storage.parallel import Parallel
from l0gc.streamlog.journal.entries import ENTRY_BYTES
from l0gc.streamlog.journal.handle import JournalHandle
from l0gc.streamlog.journal.l1 import IndexChange
from l0gc.streamlog.journal.rows import Rows, distinct, name_bytes
from l0gc.streamlog.journal.topic import l1_file
from l0gc.streamlog.level_one.index import STATE_ROWS, files_of, joined, l1_key, spill
from l0gc.streamlog.level_one.plan import Fault, Window, commit_entries, is_unreconciled, still_there

_SHOWN: Final = 20
"""So many causes of a journal are reported, and how many more there are; and so many partitions of each."""


@dataclass(slots=True)
class Committed:
    """What became of a round in one journal.

    `partitions` are those that were lifted, by revision; `lost` counts those at which another reconciler was first, or whose
    topic is gone. `errors` says what could not be done.
    """

    journal: int
    records: int = 0
    l1_objects: int = 0
    bytes: int = 0
    partitions: dict[int, Rows] = field(default_factory=dict)
    lost: int = 0
    errors: list[str] = field(default_factory=list)


class Commit:
    """The commit of one round in one journal.

    Args:
        window: what the round took from the journal.
        epoch: the round's.
    """

    def __init__(
        self,
        store: ObjectStore,
        handle: JournalHandle,
        runtime: Runtime,
        parallel: Parallel,
        window: Window,
        epoch: int,
    ) -> None:
        self._store, self._handle, self._runtime, self._parallel = store, handle, runtime, parallel
        self._window, self._epoch = window, epoch
        self._result = Committed(window.journal)

    def run(self, files: Mapping[int, Rows], faults: Sequence[Fault] = ()) -> Committed:
        """Commit L1 objects. What goes wrong in this journal alone is in the result's errors; nothing is removed then.

        Args:
            files: rows of `L1_ROW` of each topic, by revision, without a gap within a partition; all durable.
            faults: what could not be lifted; it is reported unless another reconciler has lifted it.

        Raises:
            StoreError: the store does not answer, or does not let us.
        """
        try:
            self._run(files, faults)
        except (ProtocolError, CorruptObjectError) as e:
            self._result.errors.append(f"journal {self._window.journal}: {e}")
        return self._result

    def _run(self, files: Mapping[int, Rows], faults: Sequence[Fault]) -> None:
        ordered = {r: rows[np.lexsort((rows["base"], rows["partition"]))] for r, rows in files.items() if len(rows)}
        self._handle.catch_up()
        indexes = {revision: self._spilled(revision, rows) for revision, rows in ordered.items()}
        refused: dict[int, set[int]] = {}
        for entry in commit_entries(self._epoch, self._window.upto, ordered, indexes, ENTRY_BYTES):
            for revision, partition in self._handle.commit_reconciled(entry):
                refused.setdefault(revision, set()).add(partition)
        for revision, rows in ordered.items():
            self._count(revision, rows, refused.get(revision, set()))
        with self._handle.replica.lock:
            left = [f for f in (still_there(self._handle.state, f) for f in faults) if f is not None]
        self._tell(left)

    # -- index objects ------------------------------------------------------------------------------------------------

    def _spilled(self, revision: int, rows: Rows) -> IndexChange:
        """What the commit does to index objects: for partitions that would have too many rows in the state."""
        with self._handle.replica.lock:
            due = list(self._full(revision, rows))
        written = self._parallel.map(lambda d: spill(self._store, d[0], d[1], d[2], self._epoch, self._runtime), due)
        return joined(written)

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
            yield self._partition(revision, partition), np.concatenate(both), topic.index_of(partition)

    # -- what became of it --------------------------------------------------------------------------------------------

    def _count(self, revision: int, rows: Rows, refused: set[int]) -> None:
        """Add up what landed, now or at an earlier try; remove the objects of what never will."""
        with self._handle.replica.lock:
            names = self._handle.state.names(revision) if refused else set()
        found = {p: self._has_landed(revision, p, rows, names) for p in sorted(refused)}
        lost = np.isin(rows["partition"], [p for p, landed in found.items() if landed is False])
        landed = rows[~lost & ~np.isin(rows["partition"], [p for p, landed in found.items() if landed is None])]
        if len(landed):
            self._result.partitions[revision] = distinct(landed["partition"])
        self._result.records += int((landed["last"] - landed["base"] + 1).sum())
        self._result.l1_objects += len(landed)
        self._result.bytes += int(landed["bytes"].sum())
        self._result.lost += len(distinct(rows["partition"][lost]))
        self._remove([self._key(revision, row) for row in rows[lost]])

    def _has_landed(self, revision: int, partition: int, rows: Rows, names: set[bytes]) -> bool | None:
        """Whether the journal has named these very objects: an earlier try of this commit landed. None: that is not known.

        Those that it has dropped since are among them: readers on their way may still need them (hazard 26).
        """
        first, end = np.searchsorted(rows["partition"], [partition, partition + 1])
        mine = [l1_file(row) for row in rows[first:end]]
        p = self._partition(revision, partition)
        try:
            with self._handle.replica.lock:
                state = self._handle.state
                if names.issuperset(name_bytes(f.name) for f in mine):
                    return True
                if state.partition(revision, partition).last_reconciled_offset < mine[-1].last_offset:
                    return False
                files = files_of(self._store, p, state, mine[0].base_offset)
            return {f.name for f in mine} <= {f.name for f in files}
        except (CorruptObjectError, ObjectNotFoundError) as e:
            self._result.errors.append(f"whether the L1 objects of {p} count is not known, so they stay: {e}")
            return None

    def _remove(self, keys: Sequence[str]) -> None:
        """Remove L1 objects that the journal has refused for good; one that stays costs space, nothing else."""
        for at in range(0, len(keys), PAGE_SIZE):
            page = keys[at : at + PAGE_SIZE]
            try:
                failures = self._store.delete(page)
            except StoreError as e:
                self._result.errors.append(f"{page[0]}, which no journal names, could not be removed: {e}")
                return
            self._result.errors += [
                f"{f.key}, which no journal names, could not be removed: {f.code}" for f in failures[:_SHOWN]
            ]

    def _tell(self, faults: Iterable[Fault]) -> None:
        """Add what could not be lifted to the errors: each cause once, with the partitions that it holds."""
        held: dict[str, list[str]] = {}
        for f in faults:
            name = self._window.topics[f.revision].name
            held.setdefault(f.message, []).extend(f"{name}/{p}" for p in f.partitions.tolist())
        sentences = [f"{message}; it holds {_listed(partitions)}" for message, partitions in sorted(held.items())]
        self._result.errors += sentences[:_SHOWN]
        if len(sentences) > _SHOWN:
            self._result.errors.append(
                f"and {len(sentences) - _SHOWN} more of that kind in journal {self._window.journal}"
            )

    def _partition(self, revision: int, partition: int) -> PartitionId:
        return PartitionId(self._window.topics[revision].name, revision, partition)

    def _key(self, revision: int, row: Rows) -> str:
        file = l1_file(row)
        return l1_key(self._partition(revision, file.partition), file)


def _listed(names: Sequence[str]) -> str:
    """Some names, and how many more there are."""
    if len(names) <= _SHOWN:
        return ", ".join(names)
    return f"{', '.join(names[:_SHOWN])} and {len(names) - _SHOWN} more partitions"
