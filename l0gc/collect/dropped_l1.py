"""Delete dropped objects: L1 objects that a journal no longer lists.

This is safe because an entry drops an object once, and the object is never listed again. Until it is deleted, the
journal keeps its key with the time of the drop, so no listing and no guess is needed. It stays for `l1_grace` by the
store's clock and for two epochs, for readers that replayed the journal earlier. A slower reader does not find it,
replays the journal, and reads its replacement (hazard 19).

After a deletion, an entry records it, and the journal forgets the object. If a run is killed in between, the next run
deletes the object again. An object that cannot be deleted, for example because of a legal hold, stays in the journal.
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
"""The number of epochs for which a dropped object stays, whatever the clocks show."""


class Amounts(msgspec.Struct, Outcome, frozen=True):
    """The numbers and bytes of L1 objects that are listed, and of those that were dropped but still exist.

    `dead_bytes` are the bytes of listed shared objects for partitions that no longer list them. `oldest_dropped_ms` is
    when the oldest dropped object that no pin keeps was dropped; None if there is no such object.
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
        """Yield the objects that a unit dropped by `before_ms`, by the store's clock, and at an epoch of at most
        `epoch`, in batches of a few thousand.
        """

    def purged(self, unit: int, objects: Sequence[Deletable]) -> None:
        """Record that these dropped objects are gone."""

    def amounts(self) -> Amounts:
        """Return the current amounts of L1 in all units."""


def delete_dropped(source: DroppedSource, queue: DeletionQueue) -> None:
    """Delete the objects that were dropped long enough ago. Raises the error that ended the deletion, or an error of
    the source.
    """
    plan = queue.plan
    before_ms = plan.started_ms - int(1000 * plan.options.l1_grace_s)
    for unit in source.units():
        for batch in source.dropped(unit, before_ms, plan.cluster_epoch - GRACE_EPOCHS):
            delete_batch(source, queue, unit, batch)
            if queue.full or queue.stop.is_set():
                return


def delete_batch(source: DroppedSource, queue: DeletionQueue, unit: int, batch: list[Deletable]) -> None:
    """Delete a batch, and record the deleted objects, even if the batch failed in part."""
    gone: list[Deletable] = []
    queue.gone = gone.extend
    queue.take(batch)
    queue.drain()
    if gone and not queue.plan.options.dry_run:
        source.purged(unit, gone)
    if queue.error is not None:
        raise queue.error
