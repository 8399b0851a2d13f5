"""The store's clock, and when a reply's date may decide what cannot be undone.

A reply's `Date` is the only clock that ages are measured with: it becomes the time of log entries, by which retention,
producers and graces go. One server of a store may be wrong by days. So a date that jumps, ahead by more minutes than a busy
process is idle or back by a day, is relied on only if a second reply confirms it (hazard 16): a cluster that nobody wrote to
for a week passes, two servers that disagree do not. Dates that agree with the last one cost no request, and a process that
begins compares those of its first replay, which takes two requests or more.

What this cannot find: servers that are all wrong, by the same.
"""

from __future__ import annotations

from typing import Final

from l0gc.errors import SafetyError
from l0gc.formatting import moment
from l0gc.storage.objectstore import ObjectStore

AHEAD_MS: Final = 10 * 60_000
"""A date that is further ahead of the last one is asked for again; and so far may two replies be apart that agree."""
BEHIND_MS: Final = 24 * 3_600_000
"""A date that is further behind is asked for again. A smaller step back makes what is old young, which is safe."""


class StoreTime:
    """The last date that one process relied on, and the check of the next. Safe for use by several threads."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._last_ms: int | None = None

    def saw(self, date_ms: int, *others: int) -> None:
        """Note the date of a reply, and those of `others` to the same process at the same time, which may confirm it."""
        if self._follows(date_ms) or (others and all(abs(o - date_ms) <= AHEAD_MS for o in others)):
            self._last_ms = date_ms

    def settle(self, date_ms: int) -> int:
        """Return the date of a reply, which may be relied on when this returns it.

        Raises:
            SafetyError: it jumped, and another reply does not confirm it.
            StoreError: it jumped, and the store does not answer.
        """
        if not self._follows(date_ms):
            again_ms = self._store.now_ms()
            if abs(again_ms - date_ms) > AHEAD_MS:
                raise SafetyError(
                    f"the store's clock cannot be relied on: one reply is dated {moment(date_ms, 'T')}, the next "
                    f"{moment(again_ms, 'T')}; nothing was decided by either: set the clocks of the store's servers, and "
                    "run the command again"
                )
        self._last_ms = date_ms
        return date_ms

    def now_ms(self) -> int:
        """Return the store's clock now. Raises as `settle` does."""
        return self.settle(self._store.now_ms())

    def _follows(self, date_ms: int) -> bool:
        return self._last_ms is not None and -BEHIND_MS <= date_ms - self._last_ms <= AHEAD_MS
