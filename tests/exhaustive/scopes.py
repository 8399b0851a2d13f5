"""The scopes of the search: small, finite ones, each with its own kind of trouble, and one without an end."""

from __future__ import annotations

from tests.exhaustive.actors import BOTH, SECOND, TWO_JOURNALS, Housekeeper, Reconciler, Uploader
from tests.exhaustive.search import Scope

# -- a journal with one partition ---------------------------------------------------------------------------------------


def faults(count: int = 2) -> Scope:
    """Return two uploaders and a reconciler, on a store that loses and delays writes, with a proxy that repeats them."""
    return Scope("faults", (Uploader("a"), Uploader("b"), Reconciler("r", 1)), count)


def producers(count: int = 2) -> Scope:
    """Return the same with producers, which repeat what they do not know to have landed."""
    two = (Uploader("a", producer=True), Uploader("b", producer=True))
    return Scope("producers", (*two, Reconciler("r", 1)), count)


def together(count: int = 1) -> Scope:
    """Return a producer with two objects in one entry, next to another uploader."""
    return Scope("together", (Uploader("a", 2, together=2, producer=True), Uploader("b"), Reconciler("r", 1)), count)


def window(count: int = 0) -> Scope:
    """Return two uploaders, a reconciler, and a housekeeper that moves the window, or closes it, at any time."""
    four = (Uploader("a"), Uploader("b"), Reconciler("r", 1), Housekeeper("h", 1, truncates=False))
    return Scope("window", four, count)


def zombies(count: int = 1) -> Scope:
    """Return two reconcilers, each of which may sleep between its plan and its commit."""
    return Scope("zombies", (Uploader("a", 2), Reconciler("r", 1), Reconciler("s", 1)), count)


MOVES = (("advance", 2), ("barrier", 3))
"""What a housekeeper does to the window in the scopes of truncation."""


def truncation(count: int = 0) -> Scope:
    """Return two uploaders, each of which may sleep through a truncation."""
    three = (
        Uploader("a", epochs=(1, 3)),
        Uploader("b", epochs=(1, 3)),
        Housekeeper("h", 1, truncates=True, moves=MOVES),
    )
    return Scope("truncation", three, count, leaps=1)


def truncation_faults(count: int = 1) -> Scope:
    """Return an uploader that continues with its old replica, a truncation, and a fault in either."""
    two = (Uploader("a", 2, epochs=(1, 3)), Housekeeper("h", 1, truncates=True, moves=MOVES))
    return Scope("truncation-faults", two, count, leaps=1)


def sleeper(count: int = 0) -> Scope:
    """Return a writer that sleeps while two entries are written, enough for a truncation to reach its offset."""
    return Scope("sleeper", (Uploader("a"), Housekeeper("h", 2, truncates=True)), count, leaps=1)


def old_listing(count: int = 0) -> Scope:
    """Return an uploader, and a housekeeper whose truncation uses the listing from its beginning."""
    keeper = Housekeeper("h", 2, truncates=True, moves=MOVES, relists=False)
    return Scope("old-listing", (Uploader("a", 2, epochs=(1, 3)), keeper), count, leaps=1)


# -- several partitions, several journals -----------------------------------------------------------------------------------


def older_than_its_topic(count: int = 1) -> Scope:
    """Return an uploader whose epoch may be older than its topic, in a journal whose window is also older."""
    two = (Uploader("a", 2, epochs=(0, 1, 2)), Housekeeper("h", 1, truncates=False))
    return Scope("older-than-its-topic", two, count)


def partitions(count: int = 1) -> Scope:
    """Return two partitions in one journal: objects with both or one of them, and a reconciler that takes both or one."""
    lifts = ((0, 1), (0,), (1,))
    three = (Uploader("a", parts=BOTH), Uploader("b", parts=SECOND), Reconciler("r", 2, lifts=lifts))
    return Scope("partitions", three, count, journals=((0, 1),))


def journals(count: int = 1) -> Scope:
    """Return a topic over two journals: each object has a part in both, and one of them may refuse its part."""
    keeper = Housekeeper("h", 1, truncates=False, journals=(1,))
    three = (Uploader("a", parts=TWO_JOURNALS), Uploader("b", parts=TWO_JOURNALS), keeper)
    return Scope("journals", three, count, journals=((0,), (1,)))


def everything(count: int = 1) -> Scope:
    """Return two uploaders, a reconciler and a truncating housekeeper, searched as deep as the time allows."""
    two = (Uploader("a"), Uploader("b"))
    return Scope("everything", (*two, Reconciler("r", 1), Housekeeper("h", 1, truncates=True)), count, leaps=1)


WHOLE = {
    s.name: s
    for s in (
        faults(),
        producers(),
        together(),
        window(),
        zombies(),
        sleeper(),
        old_listing(),
        truncation_faults(),
        truncation(),
        older_than_its_topic(),
        partitions(),
        journals(),
    )
}
"""The scopes that are searched to their end."""
ALL = {**WHOLE, "everything": everything()}
