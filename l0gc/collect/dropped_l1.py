"""Remove dropped objects: L1 and index objects that a journal listed once, and no longer lists.

What makes it safe: an object is dropped by an entry, once, and is never listed again. Until it is deleted, the journal
keeps it with the time of its drop, so no listing and no guess is needed. It stays for `l1_grace` by the store's clock and
for two epochs, for readers that replayed the journal earlier. A slower reader finds it gone, replays, and reads its
replacement (hazard 19).

Once it is deleted, an entry records that, and the journal forgets it. If a run is killed in between, the next one deletes
it again. An index object of a deleted topic is deleted after everything that it lists, so that leftovers of a failure can
still be found. An object that cannot be deleted, for example under a legal hold, keeps only the index object that leads
to it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from l0gc.collect.garbage import DROPPED_L1, DroppedBatch, GarbageSource
from l0gc.collect.remover import Remover
from l0gc.collect.scan import Deletable

GRACE_EPOCHS: Final = 2
"""A dropped object stays for this many epochs, whatever the clocks show."""


class DroppedRemoval:
    """Removes what units have dropped, batch by batch.

    Args:
        remover_of: returns the remover of a kind.
        stop: set to end the run after the current batch.
    """

    def __init__(
        self, source: GarbageSource, remover_of: Callable[[str], Remover], stop: threading.Event, *, dry_run: bool
    ) -> None:
        self._source, self._remover_of, self._stop, self._dry_run = source, remover_of, stop, dry_run
        self._full = False

    def run(self, now_ms: int, grace_ms: int, cluster_epoch: int) -> None:
        """Remove what was dropped long enough ago. Raises what ended it, and what the source raises."""
        for unit in self._source.units():
            for batch in self._source.dropped(unit, now_ms - grace_ms, cluster_epoch - GRACE_EPOCHS):
                self._remove(unit, batch)
                if self._full or self._stop.is_set():
                    return

    def _remove(self, unit: int, batch: DroppedBatch) -> None:
        """Remove a batch. Keep what cannot be deleted, and the index object that leads to it."""
        listed = [o for of_tree in batch.trees.values() for o in of_tree]
        left: set[str] = set()
        if listed:
            gone, error = self._delete(DROPPED_L1, listed)
            if error is not None:
                raise error
            left = {o.key for o in listed} - {o.key for o in gone}
        ready = [o for o in batch.objects if not any(of.key in left for of in batch.trees.get(o.key, ()))]
        gone, error = self._delete(batch.kind, ready)
        if gone and not self._dry_run:
            self._source.purged(unit, gone)  # also of a batch that failed in part
        if error is not None:
            raise error

    def _delete(self, kind: str, objects: list[Deletable]) -> tuple[list[Deletable], BaseException | None]:
        """Delete the objects; return those that are gone, and the error that ended it."""
        gone: list[Deletable] = []
        remover = self._remover_of(kind)
        remover.gone = gone.extend
        remover.take(objects)
        remover.drain()
        self._full = self._full or remover.full
        return gone, remover.error
