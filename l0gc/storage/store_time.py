"""Read the store's clock, and decide when a reply's date is reliable enough for what cannot be undone.

A reply's `Date` is the only clock that ages are measured with. It becomes the time of log entries, which retention,
producers and grace periods follow. One server of a store may be wrong by days. So a date that jumps, in either direction
by more minutes than a busy process is idle, is relied on only if a second reply confirms it (hazard 16). A date that is
ahead makes old what is young, and so does a date that is behind, once it is stored as the time of something. A cluster that
was not written to for a week passes; two servers that disagree do not. Dates that agree with the last one
cost no request. A new process compares the dates of its first replay, which takes two requests or more.

This cannot detect servers that are all wrong by the same amount.
"""

from __future__ import annotations

from typing import Final

from l0gc.errors import SafetyError
from l0gc.formatting import moment
from l0gc.storage.objectstore import ObjectStore

JUMP_MS: Final = 10 * 60_000
"""A date further from the last one is checked again; two replies that agree may be this far apart."""


class StoreTime:
    """The last date that one process relied on, and the check of the next. Safe for use by several threads."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._last_ms: int | None = None

    def saw(self, date_ms: int, *others: int) -> None:
        """Note the date of a reply, and the dates in `others` to the same process at the same time, which may confirm it."""
        if self._follows(date_ms) or (others and all(abs(o - date_ms) <= JUMP_MS for o in others)):
            self._last_ms = date_ms

    def settle(self, date_ms: int) -> int:
        """Return a reply's date once it is reliable.

        Raises:
            SafetyError: it jumped, and another reply does not confirm it.
            StoreError: it jumped, and the store does not answer.
        """
        if not self._follows(date_ms):
            again_ms = self._store.now_ms()
            _check_agreement(date_ms, again_ms)
        self._last_ms = date_ms
        return date_ms

    def now_ms(self) -> int:
        """Return the store's clock now. Raises the errors of `settle`."""
        return self.settle(self._store.now_ms())

    def between_ms(self) -> tuple[int, int]:
        """Return the earlier and the later of two replies' dates: what is stored as the time of something is never too
        early by the later one, and an age is never too high by the earlier one.

        Raises:
            SafetyError: they do not agree.
            StoreError: the store does not answer.
        """
        first, second = self.now_ms(), self._store.now_ms()
        _check_agreement(first, second)
        return min(first, second), max(first, second)

    def _follows(self, date_ms: int) -> bool:
        return self._last_ms is not None and abs(date_ms - self._last_ms) <= JUMP_MS


def _check_agreement(date_ms: int, again_ms: int) -> None:
    if abs(again_ms - date_ms) > JUMP_MS:
        raise SafetyError(
            f"the store's clock cannot be relied on: one reply is dated {moment(date_ms, 'T')}, the next "
            f"{moment(again_ms, 'T')}; nothing was decided by either: set the clocks of the store's servers, and "
            "run the command again"
        )
