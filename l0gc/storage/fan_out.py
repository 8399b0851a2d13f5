"""Spreading work that reads a store over workers: threads of this process, or executors (`spark/fan_out.py`).

Work is a function of a store and an item. What it returns should be small, since all of it comes together in one process;
where it is not, `reduce` adds it up on the way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

from l0gc.storage.objectstore import ObjectStore
from l0gc.storage.parallel import Parallel

A = TypeVar("A")
B = TypeVar("B")

LOCAL_SLOTS: Final = 8


class FanOut(Protocol):
    """Does the same to many items, wherever that is. What the work raises is raised here."""

    @property
    def slots(self) -> int:
        """Into how many parts a large piece of work is best cut."""
        ...

    def map(self, work: Callable[[ObjectStore, A], B], items: Sequence[A]) -> list[B]:
        """What `work` makes of each item, in their order."""
        ...

    def reduce(self, work: Callable[[ObjectStore, A], B], items: Sequence[A], merge: Callable[[B, B], B]) -> B | None:
        """What `work` makes of the items, merged in any order; None without items. `merge` may change its first argument."""
        ...


class LocalFanOut:
    """Does it in this process."""

    def __init__(self, store: ObjectStore, parallel: Parallel, slots: int = LOCAL_SLOTS) -> None:
        self._store, self._parallel = store, parallel
        self.slots = slots

    def map(self, work: Callable[[ObjectStore, A], B], items: Sequence[A]) -> list[B]:
        return self._parallel.map(functools.partial(work, self._store), items)

    def reduce(self, work: Callable[[ObjectStore, A], B], items: Sequence[A], merge: Callable[[B, B], B]) -> B | None:
        done = self.map(work, items)
        return functools.reduce(merge, done) if done else None
