"""The promises of living pins, counted by separate rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from l0gc.keys import CONTROLLER_LOG, journal_log
from l0gc.streamlog.controller.state import Pin
from tests.simulation.shadow_l1 import Wrong

if TYPE_CHECKING:
    from tests.simulation.watch import Watch


class Promises:
    """What must stay while pins live: all that journals name from the time at which a pin takes effect.

    A pin that a restored controller log brings back promises nothing.
    """

    def __init__(self) -> None:
        self.kept: dict[int, set[str]] = {}
        self._ended: set[int] = set()

    def see(self, watch: Watch) -> None:
        """Note an entry that has landed in a log."""
        living = self._living(watch)
        self._ended |= self.kept.keys() - {p.revision for p in living}
        self.kept = {p.revision: self.kept.get(p.revision, set()) for p in living if p.revision not in self._ended}
        for p in living:
            if p.revision in self.kept:
                self.kept[p.revision] |= watch.named() if p.level_one else watch.named() | watch.live.keys()

    def check_deleted(self, watch: Watch, key: str, objects: Mapping[str, object]) -> None:
        """Raise `Wrong` if a pin still keeps the deleted object, or needs it for a replay as of the pin."""
        for p in self._living(watch):
            if key in self.kept.get(p.revision, ()):
                raise Wrong(f"{key} was deleted, though {p} keeps it")
            for journal, as_of in p.ends or ():
                self._check_log(p, key, journal_log(journal), as_of.offset, objects)
            self._check_log(p, key, CONTROLLER_LOG, p.offset, objects)

    def check_published(self, watch: Watch, m: int) -> None:
        """Raise `Wrong` if M passes what a pin holds."""
        for p in self._living(watch):
            if p.revision in self.kept and not p.level_one and m > max(watch.watermark, p.watermark):
                raise Wrong(f"M = {m} was published, though {p} holds it")

    def _check_log(self, p: Pin, key: str, log: str, as_of: int, objects: Mapping[str, object]) -> None:
        if not key.startswith(log) or p.revision not in self.kept:
            return
        checkpoints = (int(k[-20:]) for k in objects if k.startswith(f"{log}checkpoint/"))
        start = max((c for c in checkpoints if c <= as_of), default=-1)
        for offset in range(start + 1, as_of + 1):
            if f"{log}log/{offset:020}" not in objects:
                raise Wrong(f"{key} was deleted, and no replay of {log} as of {as_of} is possible, though {p} lives")

    @staticmethod
    def _living(watch: Watch) -> list[Pin]:
        return [p for p in watch.controller.pins.values() if p.in_effect]
