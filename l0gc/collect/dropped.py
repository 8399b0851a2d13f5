"""Dropped objects: L1 and index objects that a journal named, and names no more.

What makes their deletion safe: an object is dropped by an entry, once, and is never named again. Until it is deleted the
journal lists it, with when it was dropped, so no listing is needed and nothing is guessed. It stays for `l1_grace` by the
store's clock and for two epochs, for readers that replayed the journal before. A reader that takes longer finds it gone,
replays, and reads what took its place (hazard 19). Only when it is gone an entry says so, and the journal forgets it; a
run that is killed in between deletes what is gone once more. An index object of a deleted topic is deleted after all that
it lists, so that what is left after a failure can still be found.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from l0gc.collect.garbage import GarbageSource, Lot
from l0gc.collect.remover import Remover
from l0gc.collect.scan import EligibleObject

GRACE_EPOCHS: Final = 2
"""So many epochs stay after an object was dropped, whatever the clocks say."""


class DroppedRemoval:
    """Removes what units have dropped, lot by lot.

    Args:
        remover_of: gives the remover of a kind.
        stop: set to end it after the lot that is under way.
    """

    def __init__(
        self, source: GarbageSource, remover_of: Callable[[str], Remover], stop: threading.Event, *, dry_run: bool
    ) -> None:
        self._source, self._remover_of, self._stop, self._dry_run = source, remover_of, stop, dry_run

    def run(self, now_ms: int, grace_ms: int, cluster_epoch: int) -> None:
        """Remove what was dropped long enough ago. Raises what ended it, and what the source raises."""
        for unit in self._source.units():
            for lot in self._source.dropped(unit, now_ms - grace_ms, cluster_epoch - GRACE_EPOCHS):
                if not self._remove(unit, lot):
                    break
            if self._stop.is_set():
                return

    def _remove(self, unit: int, lot: Lot) -> bool:
        """Whether all of the lot is gone, so that the next one may go."""
        gone: list[EligibleObject] = []
        remover = self._remover_of(lot.kind)
        remover.gone = gone.extend
        remover.take(lot.objects)
        remover.drain()
        if gone and lot.listed and not self._dry_run:
            self._source.purged(unit, gone)  # also of a lot that failed in part
        if remover.error is not None:
            raise remover.error
        return len(gone) == len(lot.objects) and not remover.full
