"""How a process changes a journal's lists of L1: commits of reconcilers and merges, expiries, the fence, purges.

Each is decided against the state at the very offset where its entry lands. A partition that has moved on by then is left out
of the entry, and reported to the caller; the others land.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, TypeVar

import msgspec
import numpy as np

from l0gc.errors import PartitionClosedError, StoreError
from l0gc.storage.replica import Replica
from l0gc.streamlog.controller.handle import Controller
from l0gc.streamlog.journal.admission import check_not_poisoned
from l0gc.streamlog.journal.commits import check_expiry, partitions_of, places_of, without
from l0gc.streamlog.journal.entries import (
    ENTRY_BYTES,
    Expired,
    FenceL1,
    GaveUp,
    JournalEntry,
    Merged,
    Purged,
    Reconciled,
)
from l0gc.streamlog.journal.holes import check_give_up
from l0gc.streamlog.journal.rows import NAME, distinct, pack
from l0gc.streamlog.journal.state import (
    JournalState,
    check_stamps,
    expiry_refusals,
    merge_refusals,
    purged_rows,
    refusals,
)

E = TypeVar("E", Reconciled, Merged, Expired)


class L1Handle:
    """The part of a journal's handle that changes L1."""

    journal: int
    replica: Replica[JournalState]
    judged: bool
    """Whether it could be read when it was to be found out whether it was set back (hazard 38)."""
    unread: str
    """Why it never could; it takes nothing then."""
    _controller: Controller

    def _propose(self, decide: Callable[[JournalState], JournalEntry | None]) -> bool:
        if self.unread:
            raise self.not_judged()
        self.replica.catch_up()
        return self.replica.propose(lambda state, offset: decide(state)) is not None

    def not_judged(self) -> StoreError:
        """The error for what is left out because of `unread`."""
        return StoreError(f"whether journal {self.journal} was set back is not known: {self.unread}; run it again")

    def commit_reconciled(self, entry: Reconciled) -> dict[tuple[int, int], str]:
        """Commit what a reconciler has made durable. Raises `StaleReconcilerError`: it cannot land in whatever state.
        Returns the partitions that did not land, as (revision, partition), and why: another reconciler was first, or the
        topic is gone. The others landed.
        """
        return self._commit(entry, lambda s, t: refusals(s, t, entry.log_offset))

    def commit_merged(self, entry: Merged) -> dict[tuple[int, int], str]:
        """Commit merged L1 objects, which are durable. See `commit_reconciled`; a partition does not land whose lists
        somebody has changed. Raises `StaleReconcilerError` also if the merge is stamped below the L1 fence."""
        return self._commit(entry, merge_refusals)

    def expire(self, entry: Expired) -> dict[tuple[int, int], str]:
        """Move log start offsets up. A partition that begins there already, or higher, is left as it is.

        Returns:
            The partitions of which nothing was deleted, and why. See `commit_reconciled`.

        Raises:
            UsageError: the entry cannot be meant.
            EpochRegressionError: a topic is another one here.
            StaleReconcilerError: an index object that it names is stamped below the L1 fence.
        """
        refused = self._commit(entry, expiry_refusals)
        starts = chain.from_iterable(check_expiry(t).starts.tolist() for t in entry.topics)
        with self.replica.lock:
            topic = self.replica.state.topic
            for (revision, p), start in zip(places_of(entry), starts, strict=True):
                if topic(revision).view(p).log_start_offset >= start:
                    refused.pop((revision, p), None)
        return refused

    def _commit(self, entry: E, decide: Callable[[JournalState, Any], dict[int, str]]) -> dict[tuple[int, int], str]:
        """Append what `decide` leaves of an entry; returns what it refuses, as (revision, partition), and why."""
        refused: dict[tuple[int, int], str] = {}

        def left(state: JournalState) -> E | None:
            refused.clear()
            check_stamps(state, entry)
            for t in entry.topics:
                try:
                    found = decide(state, t)
                except PartitionClosedError as e:
                    found = dict.fromkeys(partitions_of(t).tolist(), str(e))
                refused.update({(t.revision, p): why for p, why in found.items()})
            rest = without(entry, refused)
            return None if rest is None else self._as_of_now(rest)

        self._propose(left)
        return refused

    def _as_of_now(self, entry: E) -> E:
        """The entry with the cluster epoch as of now, if it drops objects: these stay for some epochs from then on.

        A run may have begun long ago, and the window of an idle journal may be old. What the run wrote keeps its stamp.
        """
        if not _drops(entry):
            return entry
        return msgspec.structs.replace(entry, epoch=max(entry.epoch, self._controller.epoch()))

    def give_up(self, entry: GaveUp, name: str) -> None:
        """Make records that nobody could read a hole, all of the entry's or none. `name` is the topic's. Raises what
        `check_give_up` raises, as of the state at the offset where it would land."""

        def checked(state: JournalState) -> GaveUp:
            check_give_up(state.topics, entry, name)
            return entry

        self._propose(checked)

    def fence_l1(self, epoch: int) -> int:
        """Raise the L1 fence to `epoch`, or leave it where it is higher; returns where it is. What the handle's state does
        not know then, and is stamped below the fence, no entry will ever name. Raises `SafetyError`: the cluster has
        not reached that epoch.
        """
        check_not_poisoned(self.journal, epoch, self._controller.epoch(at_least=epoch))
        self._propose(lambda s: FenceL1(epoch) if epoch > s.l1_fence else None)
        return self.replica.state.l1_fence

    def purge(self, names: Iterable[bytes]) -> int:
        """Forget dropped objects, which are gone from the bucket, by their names; returns how many there were."""
        purged = 0
        wanted = sorted(set(names))
        for at in range(0, len(wanted), ENTRY_BYTES // NAME.itemsize):
            entry = Purged(pack(np.array(wanted[at : at + ENTRY_BYTES // NAME.itemsize], NAME)))
            found: list[int] = []

            def left(state: JournalState, entry: Purged = entry, found: list[int] = found) -> Purged | None:
                rows = purged_rows(state, entry)
                found[:] = [int(rows.sum())]
                names = distinct(state.dropped["name"][rows])
                return Purged(pack(names)) if len(names) else None

            self._propose(left)
            purged += found[0]
        return purged


def _drops(entry: Reconciled | Merged | Expired) -> bool:
    """Whether objects leave the lists of a partition by the entry; a reconciler's may replace index objects."""
    return not isinstance(entry, Reconciled) or any(t.replaced_indexes for t in entry.topics)
