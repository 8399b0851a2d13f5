"""What is searched of L1's life: small scopes that end."""

from __future__ import annotations

from tests.exhaustive.l1_actors import Deleter, Expirer, Merger, Reader, Reconciler, Vacuumer
from tests.exhaustive.l1_search import L1Scope

R, M, E, V = Reconciler("r"), Merger("m"), Expirer("e", 1, 2), Vacuumer("v")
"""A reconciler, a merge, an expiry up to the second or third record, a vacuum."""


def lifted_and_vacuumed(ticks: int = 2) -> L1Scope:
    """A reconciler that commits twice, as Spark repeats a task; and a vacuum that may fence it off."""
    return L1Scope("lifted-and-vacuumed", (Reconciler("r", again=True), V), ticks=ticks)


def merged_and_vacuumed(ticks: int = 2) -> L1Scope:
    """A merge, and a vacuum that may fence it off, or delete what it has replaced."""
    return L1Scope("merged-and-vacuumed", (M, V), waiting=0, ticks=ticks)


def expired_and_vacuumed(ticks: int = 2) -> L1Scope:
    return L1Scope("expired-and-vacuumed", (E, V), ticks=ticks)


def lifted_and_merged(ticks: int = 2) -> L1Scope:
    """A merge beside a reconciler, which commits twice."""
    return L1Scope("lifted-and-merged", (Reconciler("r", again=True), M), ticks=ticks)


def expired_and_merged(ticks: int = 2) -> L1Scope:
    return L1Scope("expired-and-merged", (E, M), ticks=ticks)


def two_merges(ticks: int = 2) -> L1Scope:
    return L1Scope("two-merges", (M, Merger("n")), waiting=0, ticks=ticks)


def two_reconcilers(ticks: int = 2) -> L1Scope:
    return L1Scope("two-reconcilers", (R, Reconciler("s")), ticks=ticks)


def two_expiries(ticks: int = 2) -> L1Scope:
    return L1Scope("two-expiries", (E, Expirer("f", 1, 2, 3)), ticks=ticks)


def two_vacuums(ticks: int = 1) -> L1Scope:
    """Two vacuums beside a reconciler."""
    return L1Scope("two-vacuums", (R, V, Vacuumer("w")), lifted=1, ticks=ticks)


def deleted(ticks: int = 1) -> L1Scope:
    """The topic is deleted beside a reconciler and a vacuum."""
    return L1Scope("deleted", (Deleter("d"), R, V), lifted=1, ticks=ticks)


def read_while_merged(ticks: int = 2) -> L1Scope:
    return L1Scope("read-while-merged", (Reader("read"), M), ticks=ticks)


def read_while_expired(ticks: int = 2) -> L1Scope:
    return L1Scope("read-while-expired", (Reader("read"), E), ticks=ticks)


def read_while_vacuumed(ticks: int = 2) -> L1Scope:
    """A reader, while what it reads is merged, and what was merged away is vacuumed."""
    return L1Scope("read-while-vacuumed", (Reader("read"), M, V), waiting=0, ticks=ticks)


def lifted_merged_and_vacuumed(ticks: int = 1) -> L1Scope:
    return L1Scope("lifted-merged-and-vacuumed", (R, M, V), ticks=ticks)


def expired_merged_and_vacuumed(ticks: int = 1) -> L1Scope:
    return L1Scope("expired-merged-and-vacuumed", (Expirer("e", 1), M, V), waiting=0, ticks=ticks)


def listed_and_lifted(ticks: int = 2) -> L1Scope:
    """Older objects are in an index object, which a reconciler writes anew; and a vacuum."""
    return L1Scope("listed-and-lifted", (R, V), lifted=3, state_rows=1, ticks=ticks)


def listed_and_merged(ticks: int = 2) -> L1Scope:
    return L1Scope("listed-and-merged", (M, V), lifted=4, waiting=0, state_rows=1, ticks=ticks)


def listed_and_expired(ticks: int = 2) -> L1Scope:
    return L1Scope("listed-and-expired", (E, V), lifted=4, waiting=0, state_rows=1, ticks=ticks)


def listed_lifted_and_merged(ticks: int = 1) -> L1Scope:
    return L1Scope("listed-lifted-and-merged", (R, M), lifted=3, state_rows=1, ticks=ticks)


def listed_and_read(ticks: int = 2) -> L1Scope:
    """A reader of an index object, while a reconciler writes it anew."""
    return L1Scope("listed-and-read", (Reader("read"), R), lifted=2, state_rows=1, ticks=ticks)


A = Reconciler("r", again=True, prepared=True)
"""A reconciler that has written several L1 objects, and commits them twice, the second time at any later moment."""
E1, D = Expirer("e", 1), Deleter("d")
"""An expiry up to the second record, a deletion of the topic."""


def repeated_and_expired(ticks: int = 2) -> L1Scope:
    """Some of what a commit named has expired, and is purged, when it runs again."""
    return L1Scope("repeated-and-expired", (A, E1, V), lifted=0, waiting=2, ticks=ticks)


def repeated_and_merged(ticks: int = 2) -> L1Scope:
    """It is merged, and purged."""
    return L1Scope("repeated-and-merged", (A, M, V), waiting=2, lifted=1, ticks=ticks)


def repeated_and_deleted(ticks: int = 1) -> L1Scope:
    """The topic is deleted in between."""
    return L1Scope("repeated-and-deleted", (A, D, V), lifted=0, waiting=2, ticks=ticks)


def listed_and_repeated(ticks: int = 2) -> L1Scope:
    """An index object lists some of what a commit named, and is cut by an expiry before it runs again."""
    return L1Scope("listed-and-repeated", (A, E), lifted=0, waiting=3, state_rows=1, ticks=ticks)


def listed_repeated_and_vacuumed(ticks: int = 2) -> L1Scope:
    return L1Scope("listed-repeated-and-vacuumed", (A, E1, V), lifted=0, waiting=2, state_rows=1, ticks=ticks)


def listed_repeated_and_merged(ticks: int = 1) -> L1Scope:
    return L1Scope("listed-repeated-and-merged", (A, M, V), lifted=0, waiting=3, state_rows=1, ticks=ticks)


def listed_repeated_and_deleted(ticks: int = 1) -> L1Scope:
    return L1Scope("listed-repeated-and-deleted", (A, D, V), lifted=0, waiting=3, state_rows=1, ticks=ticks)


def repeated_by_two(ticks: int = 2) -> L1Scope:
    """Two reconcilers of the same records, each of which commits twice; one is a loser both times."""
    other = Reconciler("s", again=True, prepared=True)
    return L1Scope("repeated-by-two", (A, other, E1), lifted=0, waiting=2, ticks=ticks)


L1_WHOLE = {
    s.name: s
    for s in (
        lifted_and_vacuumed(),
        merged_and_vacuumed(),
        expired_and_vacuumed(),
        lifted_and_merged(),
        expired_and_merged(),
        two_merges(),
        two_reconcilers(),
        two_expiries(),
        two_vacuums(),
        deleted(),
        read_while_merged(),
        read_while_expired(),
        read_while_vacuumed(),
        lifted_merged_and_vacuumed(),
        expired_merged_and_vacuumed(),
        listed_and_lifted(),
        listed_and_merged(),
        listed_and_expired(),
        listed_lifted_and_merged(),
        listed_and_read(),
        repeated_and_expired(),
        repeated_and_merged(),
        repeated_and_deleted(),
        repeated_by_two(),
        listed_and_repeated(),
        listed_repeated_and_vacuumed(),
        listed_repeated_and_merged(),
        listed_repeated_and_deleted(),
    )
}
"""All of them; each is searched to its end."""
