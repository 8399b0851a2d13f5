"""What is searched: small scopes that end, each with another kind of trouble, and one that does not."""

from __future__ import annotations

from tests.exhaustive.actors import Housekeeper, Reconciler, Uploader
from tests.exhaustive.search import Scope


def faults(count: int = 3) -> Scope:
    """Two uploaders and a reconciler, on a store that loses and delays."""
    return Scope("faults", (Uploader("a", 1), Uploader("b", 1), Reconciler("r", 1)), count)


def producers(count: int = 3) -> Scope:
    """The same with producers that send again what they do not know to have landed."""
    two = (Uploader("a", 1, producer=True), Uploader("b", 1, producer=True))
    return Scope("producers", (*two, Reconciler("r", 1)), count)


def window(count: int = 0) -> Scope:
    """The same with a housekeeper that moves the window, or closes it, at any time."""
    four = (Uploader("a", 1), Uploader("b", 1), Reconciler("r", 1), Housekeeper("h", 1, truncates=False))
    return Scope("window", four, count)


def zombies(count: int = 1) -> Scope:
    """Two reconcilers, each of which may sleep between its plan and its commit."""
    return Scope("zombies", (Uploader("a", 2), Reconciler("r", 1), Reconciler("s", 1)), count)


def truncation(count: int = 0) -> Scope:
    """Two uploaders, each of which may sleep through a truncation."""
    return Scope(
        "truncation", (Uploader("a", 1), Uploader("b", 1), Housekeeper("h", 1, truncates=True)), count, leaps=1
    )


def truncation_faults(count: int = 1) -> Scope:
    """One uploader that goes on with its old replica, a truncation, and a fault in any of it."""
    return Scope("truncation-faults", (Uploader("a", 2), Housekeeper("h", 1, truncates=True)), count, leaps=1)


def sleeper(count: int = 0) -> Scope:
    """A writer that sleeps while two entries are written: so many it takes for a truncation to reach its offset."""
    return Scope("sleeper", (Uploader("a", 1), Housekeeper("h", 2, truncates=True)), count, leaps=1)


def everything(count: int = 1) -> Scope:
    """Two uploaders, a reconciler and a truncating housekeeper: as deep as the time allows."""
    two = (Uploader("a", 1), Uploader("b", 1))
    return Scope("everything", (*two, Reconciler("r", 1), Housekeeper("h", 1, truncates=True)), count, leaps=1)


WHOLE = {s.name: s for s in (faults(), producers(), window(), zombies(), sleeper(), truncation_faults(), truncation())}
"""What is searched to its end."""
ALL = {**WHOLE, "everything": everything()}
