"""Remove dropped objects: L1 objects that a journal listed once, and no longer lists.

What makes it safe: an object is dropped by an entry, once, and is never listed again. Until it is deleted, the journal
keeps it with the time of its drop, so no listing and no guess is needed. It stays for `l1_grace` by the store's clock and
for two epochs, for readers that replayed the journal earlier. A slower reader finds it gone, replays, and reads its
replacement (hazard 19).

Once it is deleted, an entry records that, and the journal forgets it. If a run is killed in between, the next one deletes
it again. An object that cannot be deleted, for example under a legal hold, stays in the journal.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import ClassVar, Final, Protocol

import msgspec

from l0gc.collect.deletion import Deletable
from l0gc.collect.run import Remover
from l0gc.formatting import Outcome

DROPPED_L1: Final = "dropped_l1"
GRACE_EPOCHS: Final = 2
"""A dropped object stays for this many epochs, whatever the clocks show."""


class Amounts(msgspec.Struct, Outcome, frozen=True):
    """L1 objects and their bytes: those that are listed, and those that were dropped but still exist.

    `dead_bytes` of the listed ones are in shared objects, for partitions that no longer list them.
    `oldest_dropped_ms` is when the oldest dropped object that no pin keeps was dropped; None without any.
    """

    hidden: ClassVar[frozenset[str]] = frozenset({"oldest_dropped_ms"})

    live_objects: int = 0
    live_bytes: int = 0
    dropped_objects: int = 0
    dropped_bytes: int = 0
    oldest_dropped_ms: int | None = None
    dead_bytes: int = 0


class DroppedSource(Protocol):
    """The units that drop L1 objects: the writers' journals."""

    def units(self) -> Sequence[int]:
        """Return the units that can be read."""

    def dropped(self, unit: int, before_ms: int, epoch: int) -> Iterator[list[Deletable]]:
        """Yield what a unit dropped by `before_ms`, by the store's clock, while no epoch above `epoch` existed, a few
        thousand objects at a time.
        """

    def purged(self, unit: int, objects: Sequence[Deletable]) -> None:
        """Record that those dropped objects are gone."""

    def amounts(self) -> Amounts:
        """Return the amounts of L1 that the units have now."""


class DroppedRemoval:
    """Removes what units have dropped, batch by batch.

    Args:
        stop: set to end the run after the current batch.
    """

    def __init__(self, source: DroppedSource, remover: Remover, stop: threading.Event, *, dry_run: bool) -> None:
        self._source, self._remover, self._stop, self._dry_run = source, remover, stop, dry_run

    def run(self, now_ms: int, grace_ms: int, cluster_epoch: int) -> None:
        """Remove what was dropped long enough ago. Raises what ended it, and what the source raises."""
        for unit in self._source.units():
            for batch in self._source.dropped(unit, now_ms - grace_ms, cluster_epoch - GRACE_EPOCHS):
                self._remove(unit, batch)
                if self._remover.full or self._stop.is_set():
                    return

    def _remove(self, unit: int, batch: list[Deletable]) -> None:
        """Remove a batch, and record what is gone, also of a batch that failed in part."""
        gone: list[Deletable] = []
        self._remover.gone = gone.extend
        self._remover.take(batch)
        self._remover.drain()
        if gone and not self._dry_run:
            self._source.purged(unit, gone)
        if self._remover.error is not None:
            raise self._remover.error
