"""Decide whose turn it is when many processes append to one log.

Each attempt costs a request, and only one attempt wins an offset. Chance alone is unfair: the last winner is the first
to know the next offset, and wins again. But all writers read the same log, and each entry names its writer, so they
take turns. The writer whose last entry is the oldest goes next. The others read the log until the writers before them
have appended. If nothing lands, the next writer takes over after a few turns. Writers further back wait longer, but
only by the logarithm of their rank: if a dozen writers have finished, the thirteenth must not wait for a dozen turns.

A writer that appends before its turn ends the turns of all writers before it, which have finished or are late. All
writers see this in the log, so each such turn is waited for only once. A late writer appends at once, as a newcomer does.
After a second conflict, both let a few random entries pass, and more after each further conflict, so that many such
writers spread out.

A lone writer appends without reading. After every twelfth entry it leaves a gap, because a newcomer would otherwise lose
every offset.

Safety does not depend on any of this. Two writers that append at once cause an ordinary conflict, and an unused turn
costs only time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from l0gc.runtime import Runtime

_REQUEST_S: Final = 0.02
"""The assumed duration of a request before one has been measured."""
_MOST_REQUEST_S: Final = 1.0
"""The longest duration that is counted; a longer one means a suspended process or a repeated request."""
_SMOOTH: Final = 0.2
_TURN_REQUESTS: Final = 2
"""The requests of a turn: the read that finds the last entry, and the append."""
_SILENT_TURNS: Final = 2
"""The number of turns without an entry, plus the logarithm of its rank, after which a writer takes over."""
_POLL_TURNS: Final = 0.1
"""The interval, in turns, at which the next writer reads the log, once the writer before it should be done."""
_EARLY: Final = 0.7
"""A writer further back reads again after this fraction of the time that the writers before it should take."""
_SPREAD: Final = 3
_MOST_SPREAD: Final = 16
"""The most entries that a newcomer lets pass. It lets up to 3 more pass after each further conflict in a row."""
_MOST_WRITERS: Final = 1000
"""The most writers that a process remembers if it only reads the log."""
_GAP_EVERY: Final = 12
_GAP_REQUESTS: Final = 4
"""The requests in the gap that a lone writer leaves: enough for a newcomer's read and append."""


class WriterOrder:
    """The order of a log's writers, as one of them sees it; not safe for use by several threads."""

    def __init__(self, runtime: Runtime, writer: str) -> None:
        self._runtime = runtime
        self._writer = writer
        self._order: list[str] = []
        self._to_pass = 0
        self._conflicts = 0
        self._in_a_row = 0
        self._landed_at = float("-inf")
        self._request_s = _REQUEST_S

    def landed(self, writers: Sequence[str]) -> None:
        """Record entries by these writers, in order. Each writer moves to the end, and the writers before it lose their
        turns.
        """
        for writer in writers:
            self._to_pass = max(0, self._to_pass - 1)
            if writer in self._order:
                turn = self._order.index(writer)
                if self._writer in self._order[:turn]:  # this writer is late
                    self._to_pass = 0
                del self._order[: turn + 1]
            self._order.append(writer)
            del self._order[:-_MOST_WRITERS]
            if writer == self._writer:
                self._in_a_row, self._conflicts = self._in_a_row + 1, 0
            else:
                self._in_a_row = 0
            self._landed_at = self._runtime.clock.monotonic()

    def lost(self) -> None:
        """Record that another writer won the offset."""
        self._conflicts += 1
        self._to_pass = int(self._runtime.jitter(min(_MOST_SPREAD, _SPREAD * (self._conflicts - 1))))

    def measured(self, seconds: float) -> None:
        """Record how long a request took."""
        self._request_s += _SMOOTH * (min(_MOST_REQUEST_S, max(0.0, seconds)) - self._request_s)

    @property
    def writers(self) -> int:
        """Return the number of writers in the order, including this one."""
        return len({self._writer, *self._order})

    @property
    def joined(self) -> bool:
        """Return whether this writer is in the order. A newcomer and a writer that others have overtaken are not."""
        return self._writer in self._order

    @property
    def rank(self) -> int:
        """Return how many entries by other writers should land before this writer appends."""
        return self._order.index(self._writer) if self.joined else self._to_pass

    def pause_s(self) -> float:
        """Return how many seconds to wait before reading the log again; 0 means that it is this writer's turn."""
        silent = self._runtime.clock.monotonic() - self._landed_at
        if self.writers == 1:
            gap = self._in_a_row > 0 and self._in_a_row % _GAP_EVERY == 0
            return max(0.0, _GAP_REQUESTS * self._request_s - silent) if gap else 0.0
        turn = _TURN_REQUESTS * self._request_s
        left = (_SILENT_TURNS + math.log2(1 + self.rank)) * turn - silent
        if self.rank == 0 or left <= 0:
            return 0.0
        due = turn / 2 - silent if self.rank == 1 else _EARLY * (self.rank - 1) * turn
        return max(_POLL_TURNS * turn, min(left, due))
