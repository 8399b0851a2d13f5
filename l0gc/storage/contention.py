"""Whose turn it is, when many processes append to one log.

An attempt costs a request whether it wins or not, and only one wins an offset. Chance alone is unfair there: a writer
that has won knows the next offset at once, and wins again. But all writers see the same log, and each entry says who
wrote it. So where others are seen, a writer looks before it appends, and they take turns: the one whose last entry is
the oldest goes next, and each of the others waits for those before it. Where nothing lands for some turns, the next one
takes the turn of the writer that was waited for, so nobody waits long for one that has nothing to append.

Nothing rests on any of this: a turn that two have taken is a conflict like any other, one that nobody takes is lost time,
and a writer that is alone appends at once. Only now and then it leaves a gap, or one that comes later would never get in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from l0gc.runtime import Runtime

ACTIVE_S: Final = 5.0
_ACTIVE_ROUNDS: Final = 2
"""Who has not appended for so long, or for so many rounds of all, is not waiting for a turn."""
_REQUEST_S: Final = 0.02
"""How long a request takes, before one has been measured."""
_MOST_REQUEST_S: Final = 1.0
_SMOOTH: Final = 0.2
_TURN_REQUESTS: Final = 2
"""A turn is the look that finds the last entry, and the append."""
_SILENT_TURNS: Final = 2
"""Turns without an entry until a writer's turn is taken by the next one."""
_HASTE: Final = 0.7
"""A writer that is further behind looks again after this part of the time that those before it should take. If all came
as late as they reckon, the time between entries would only ever grow."""
_CROWD: Final = 16
"""The most turns that chance spreads writers over who have met conflicts: newcomers, whose order nobody knows."""
_GAP_EVERY: Final = 12
_GAP_REQUESTS: Final = 4
"""Behind every twelfth entry, those who are in the order leave so much time that a newcomer's look and append fit."""
_MANY: Final = 4
"""So many writers leave gaps without meaning to."""
_GAP_SHARE: Final = 0.5
"""How often a writer that keeps losing waits for a gap; else it tries right behind the next entry, as the next one in the
order does. Where one or two write without a break only a gap helps, and where many take turns there is none."""
_PATIENCE: Final = 32
"""The most looks by which a newcomer waits for a gap."""


class Turns:
    """One writer's view of the others; not for several threads at once."""

    def __init__(self, runtime: Runtime, writer: str) -> None:
        self._runtime = runtime
        self._writer = writer
        self._last: dict[str, tuple[int, float]] = {}
        self._landed_at = float("-inf")
        self._request_s = _REQUEST_S
        self._between_s = _TURN_REQUESTS * _REQUEST_S
        self._conflicts = 0
        self._offset = -1
        self._busy_looks = 0

    def looked(self, found: Sequence[tuple[int, str]]) -> None:
        """These entries (offset, writer) were found at once, or one was written."""
        now = self._runtime.clock.monotonic()
        self._busy_looks = self._busy_looks + 1 if found else 0
        for offset, writer in found:
            self._offset = offset
            self._last.pop(writer, None)
            self._last[writer] = offset, now
        if found:
            between = min(_MOST_REQUEST_S, max(0.0, now - self._landed_at) / len(found))
            self._between_s += _SMOOTH * (between - self._between_s)
            self._landed_at = now

    def lost(self, seconds: float) -> None:
        """Another writer was first; the append and the look at the winner's entry took so long."""
        self._conflicts += 1
        self._measured(seconds / 2)

    def won(self, seconds: float) -> None:
        """The append landed, and took so long."""
        self._conflicts = 0
        self._measured(seconds)

    def _measured(self, seconds: float) -> None:
        self._request_s += _SMOOTH * (min(_MOST_REQUEST_S, max(0.0, seconds)) - self._request_s)

    @property
    def shared(self) -> bool:
        """Whether others append to this log, too."""
        self._forget()
        return any(w != self._writer for w in self._last)

    @property
    def writers(self) -> int:
        """How many append to this log now, this one included."""
        self._forget()
        return len({self._writer, *self._last})

    def _forget(self) -> None:
        now = self._runtime.clock.monotonic()
        active_s = max(ACTIVE_S, _ACTIVE_ROUNDS * len(self._last) * self._between_s)
        self._last = {w: (offset, at) for w, (offset, at) in self._last.items() if now - at <= active_s}

    def gap_s(self) -> float:
        """How long this writer leaves to newcomers now."""
        if (self._offset + 1) % _GAP_EVERY or len(self._last) >= _MANY:
            return 0.0
        return max(0.0, _GAP_REQUESTS * self._request_s - (self._runtime.clock.monotonic() - self._landed_at))

    @property
    def expected(self) -> int:
        """How many entries to read at once: about half of what has probably landed since the last look."""
        if not self.shared:
            return 1
        silent = self._runtime.clock.monotonic() - self._landed_at
        return max(1, int(min(_CROWD, silent / max(self._between_s, 0.001)) / 2))

    @property
    def next(self) -> bool:
        """Whether one writer alone has its turn before this one."""
        return len(self._before()) == 1

    def _before(self) -> list[int]:
        """The last entries of the writers whose turns come before this one's."""
        mine = self._last.get(self._writer, (-1, 0.0))[0]
        return [offset for offset, _ in self._last.values() if offset < mine]

    def crowd_s(self) -> float:
        """A share of chance after conflicts: those whose order nobody knows spread out."""
        if self._conflicts < 2:
            return 0.0
        return self._runtime.jitter(min(_CROWD, 2**self._conflicts / 2 - 1)) * _TURN_REQUESTS * self._request_s

    def look_in_s(self) -> float:
        """How long to wait for the next look; 0 if it is this writer's turn."""
        self._forget()
        if self._conflicts > 1:  # the order is not what it seems: come in behind an entry, or where a gap is
            busy = 0 < self._busy_looks < _PATIENCE
            return 0.1 * self._request_s if busy and self._runtime.jitter(1) < _GAP_SHARE else 0.0
        before = self._before()
        if not before:
            return self.gap_s()
        silent = self._runtime.clock.monotonic() - self._landed_at
        turn = _TURN_REQUESTS * self._request_s
        if silent >= (_SILENT_TURNS + len(before)) * turn:
            self._last = {
                w: at for w, at in self._last.items() if at[0] not in before
            }  # they have let their turns pass
            return 0.0
        if len(before) == 1:
            return max(0.1 * turn, turn / 2 - silent)
        return max(turn, _HASTE * (len(before) - 1) * max(turn / 2, self._between_s))
