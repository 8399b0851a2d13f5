"""Delete dropped objects: L1 objects that a journal listed once, and no longer lists.

What makes it safe: an object is dropped by an entry, once, and is never listed again. Until it is deleted, the journal
keeps it with the time of its drop, so no listing and no guess is needed. It stays for `l1_grace` by the store's clock and
for two epochs, for readers that replayed the journal earlier. A slower reader finds it gone, replays, and reads its
replacement (hazard 19).

Once it is deleted, an entry records that, and the journal forgets it. If a run is killed in between, the next one deletes
it again. An object that cannot be deleted, for example under a legal hold, stays in the journal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Final, Protocol

import msgspec

from l0gc.collect.deletion import Deletable
from l0gc.collect.run import DeletionQueue
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
        """Yield the objects that a unit dropped by `before_ms`, by the store's clock, while no epoch above `epoch` existed.
        Each batch has a few thousand.
        """

    def purged(self, unit: int, objects: Sequence[Deletable]) -> None:
        """Record that those dropped objects are gone."""

    def amounts(self) -> Amounts:
        """Return the amounts of L1 that the units have now."""


def delete_dropped(source: DroppedSource, queue: DeletionQueue) -> None:
    """Delete the objects that were dropped long enough ago. Raises the error that ended it, or the source's."""
    plan = queue.plan
    before_ms = plan.started_ms - int(1000 * plan.options.l1_grace_s)
    for unit in source.units():
        for batch in source.dropped(unit, before_ms, plan.cluster_epoch - GRACE_EPOCHS):
            delete_batch(source, queue, unit, batch)
            if queue.full or queue.stop.is_set():
                return


def delete_batch(source: DroppedSource, queue: DeletionQueue, unit: int, batch: list[Deletable]) -> None:
    """Delete a batch, and record what is gone, also of a batch that failed in part."""
    gone: list[Deletable] = []
    queue.gone = gone.extend
    queue.take(batch)
    queue.drain()
    if gone and not queue.plan.options.dry_run:
        source.purged(unit, gone)
    if queue.error is not None:
        raise queue.error
