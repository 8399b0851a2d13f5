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
from typing import Final

from l0gc.collect.garbage import GarbageSource
from l0gc.collect.remover import Remover
from l0gc.collect.scan import Deletable

GRACE_EPOCHS: Final = 2
"""A dropped object stays for this many epochs, whatever the clocks show."""


class DroppedRemoval:
    """Removes what units have dropped, batch by batch.

    Args:
        stop: set to end the run after the current batch.
    """

    def __init__(self, source: GarbageSource, remover: Remover, stop: threading.Event, *, dry_run: bool) -> None:
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
