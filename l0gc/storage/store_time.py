"""Read the store's clock, and decide when the date of a reply is reliable enough for irreversible actions.

Ages are measured only by the `Date` of replies. It becomes the time of log entries, which retention, producers and
grace periods follow. One server of a store may be wrong by days. Therefore a date that jumps, in either direction and
by more minutes than a busy process is idle, is used only if a second reply confirms it (hazard 16). A date that is
ahead makes young objects look old, and so does a date that is behind, if it is stored as the time of something. After a
week without writes, two replies agree, and the date is used; if two servers disagree, it is not. Dates that agree with
the last one cost no request. A new process compares the dates of its first replay, which takes at least two requests.

This cannot detect servers that are all wrong by the same amount.
"""

from __future__ import annotations

from typing import Final

from l0gc.errors import SafetyError
from l0gc.formatting import moment
from l0gc.storage.objectstore import ObjectStore

JUMP_MS: Final = 10 * 60_000
"""A date that differs by more than this from the last one is checked again. Two replies agree if they differ by at most
this.
"""


class StoreTime:
    """The last date on which a process relied, and the check of the next one. Safe for use by several threads."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._last_ms: int | None = None

    def saw(self, date_ms: int, *others: int) -> None:
        """Record the date of a reply. The dates in `others`, of replies to the same process at the same time, may
        confirm it.
        """
        if self._follows(date_ms) or (others and all(abs(o - date_ms) <= JUMP_MS for o in others)):
            self._last_ms = date_ms

    def settle(self, date_ms: int) -> int:
        """Return the date of a reply if it is reliable.

        Raises:
            SafetyError: the date jumped, and a second reply does not confirm it.
            StoreError: the date jumped, and the store does not answer.
        """
        if not self._follows(date_ms):
            again_ms = self._store.now_ms()
            _check_agreement(date_ms, again_ms)
        self._last_ms = date_ms
        return date_ms

    def now_ms(self) -> int:
        """Return the store's current time. Raises the errors of `settle`."""
        return self.settle(self._store.now_ms())

    def between_ms(self) -> tuple[int, int]:
        """Return the earlier and the later of the dates of two replies. If the later one is stored as a time, that time
        is not too early; if an age is measured by the earlier one, the age is not too high.

        Raises:
            SafetyError: the dates do not agree.
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
