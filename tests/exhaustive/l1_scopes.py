"""The small, finite scopes of the search over L1's life."""

from __future__ import annotations

from dataclasses import replace

from tests.exhaustive.l1_actors import Alterer, Deleter, Expirer, Giver, Merger, Reader, Reconciler, Vacuumer
from tests.exhaustive.l1_search import L1Scope
from tests.exhaustive.shared_actors import Drainer, Lifter, Sharer

R, M, E, V = Reconciler("r"), Merger("m"), Expirer("e", 1, 2), Vacuumer("v")
"""A reconciler, a merge, an expiry up to the second or third record, a vacuum."""
TWICE = Reconciler("r", again=True)
"""A reconciler that commits twice, as Spark repeats a task."""
A, B = Reconciler("r", again=True, prepared=True), Reconciler("s", again=True, prepared=True)
"""Reconcilers that have written several L1 objects, and commit them twice, the second time at any later moment."""
E1, D = Expirer("e", 1), Deleter("d")
"""An expiry up to the second record, a deletion of the topic."""
G = Giver("g", 2, 3)
"""A process that gives up the third or the fourth record."""

L = Merger("m", looks=True)
"""A merge that looks the value schema up first."""

S, L2, DR = Sharer("s", 3), Lifter("l"), Drainer("d")
"""A reconciler that has written a shared object and commits it three times, one that lifts the record before it in
partition 1, and a drain of both partitions.
"""
DROPPER, DR0 = Sharer("s", 2, committed=True), Drainer("d", prepared=True)
"""The same reconciler, with one commit, and a drain after it, both done when the search begins."""
BOTH = ((1,), (0, 1))
"""A record of partition 1, and then one of each partition."""

L1_SCOPES = (
    # The vacuum may fence off the reconciler, or the merge, whose sources it may delete.
    L1Scope("lifted-and-vacuumed", (TWICE, V)),
    L1Scope("merged-and-vacuumed", (M, V), waiting=0),
    L1Scope("expired-and-vacuumed", (E, V)),
    L1Scope("lifted-and-merged", (TWICE, M)),
    L1Scope("expired-and-merged", (E, M)),
    L1Scope("two-merges", (M, Merger("n")), waiting=0),
    L1Scope("two-reconcilers", (R, Reconciler("s"))),
    L1Scope("two-expiries", (E, Expirer("f", 1, 2, 3))),
    L1Scope("two-vacuums", (R, V, Vacuumer("w")), lifted=1, ticks=1),
    L1Scope("deleted", (D, R, V), lifted=1, ticks=1),
    L1Scope("read-while-merged", (Reader("read"), M)),
    L1Scope("read-while-expired", (Reader("read"), E)),
    # The records that are read are merged, and the merged objects are vacuumed.
    L1Scope("read-while-vacuumed", (Reader("read"), M, V), waiting=0),
    L1Scope("lifted-merged-and-vacuumed", (R, M, V), ticks=1),
    L1Scope("expired-merged-and-vacuumed", (E1, M, V), waiting=0, ticks=1),
    # When the commit is repeated, some of its objects have expired, or are merged, and are purged; or the topic is
    # deleted.
    L1Scope("repeated-and-expired", (A, E1, V), lifted=0, waiting=2),
    L1Scope("repeated-and-merged", (A, M, V), lifted=1, waiting=2),
    L1Scope("repeated-and-deleted", (A, D, V), lifted=0, waiting=2, ticks=1),
    # Two reconcilers lift the same records; one loses both times.
    L1Scope("repeated-by-two", (A, B, E1), lifted=0, waiting=2),
    # A lost record, next or in the middle, is given up while others are lifted, including some that were read before
    # the loss.
    L1Scope("given-up-and-lifted", (G, R, Reconciler("s")), waiting=3, lost=(3,), ticks=1),
    L1Scope("given-up-and-repeated", (G, A), lifted=1, waiting=3, lost=(2,), ticks=1),
    L1Scope("given-up-twice", (G, Giver("h", 2), R), waiting=2, lost=(2, 3), ticks=1),
    L1Scope("given-up-and-expired", (G, Expirer("e", 2, 3, 4), R), waiting=3, lost=(2, 3), ticks=0),
    L1Scope("given-up-merged-and-vacuumed", (Giver("g", 2), M, V), waiting=2, lost=(2,), ticks=1),
    L1Scope("given-up-and-read", (Reader("read"), Giver("g", 3), R), waiting=3, lost=(3,), ticks=0),
    L1Scope("given-up-and-deleted", (Giver("g", 2), D, V), waiting=2, lost=(2,), ticks=1),
    # Two partitions share an object; the row of one is refused until a record before it is lifted.
    L1Scope("shared-and-vacuumed", (S, L2, V), both=BOTH),
    # The object is dropped when the search begins: the commit's second try may name it, or a vacuum may delete it.
    L1Scope("shared-dropped-and-vacuumed", (DROPPER, DR0, L2, V), both=BOTH, ticks=3),
    L1Scope("shared-drained-and-vacuumed", (DROPPER, DR, V), both=BOTH),
    L1Scope("shared-expired-and-vacuumed", (DROPPER, Expirer("e", 1), V), both=BOTH),
    L1Scope("shared-drained-and-expired", (S, L2, DR, Expirer("e", 1)), both=BOTH, ticks=1),
    L1Scope("shared-and-drained-by-two", (S, L2, DR, Drainer("e", 0)), both=BOTH, ticks=0),
    L1Scope("shared-and-deleted", (S, L2, D, V), both=BOTH, ticks=1),
    L1Scope("shared-drained-and-read", (S, DR, Reader("read"), V), both=((0, 1),), ticks=2),
    # The topic gets another value schema, while a reconciler and a merge continue with the one before.
    L1Scope("altered-and-merged", (R, L, Alterer("a")), ticks=0),
    L1Scope("altered-lifted-and-merged", (R, Reconciler("s"), L, Alterer("a")), lifted=1, waiting=2, ticks=0),
)
L1_WHOLE = {s.name: s for s in L1_SCOPES}
"""All scopes; each is searched to its end."""


def within(name: str, ticks: int) -> L1Scope:
    """Return the scope of this name with this number of ticks."""
    return replace(L1_WHOLE[name], ticks=ticks)
