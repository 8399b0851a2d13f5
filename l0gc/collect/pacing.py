"""Decide how fast a run may delete: as fast as the store accepts, and no faster than the caller allows.

There is no rate until the store answers 503 or times out. Then the rate is slightly less than what the store accepted in
the last few seconds. It grows with each success: it regains a fall in some five seconds, and grows faster the longer the
store accepts everything. If the store accepts nothing at all, it is unavailable, and the rate stays. Nothing here decides
what is deleted. All workers of a process share one pacer.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from functools import lru_cache
from typing import Final

from l0gc.events import event
from l0gc.runtime import Runtime

_log: Final = logging.getLogger(__name__)

DECREASE: Final = 0.9
"""The new rate as a share of what the store accepted: it did accept that much, so slightly less is enough."""
GROWTH: Final = 0.02
"""How much of what was accepted a success adds to the rate, until `REGAIN_S` after the last fall; then more, in
proportion.
"""
REGAIN_S: Final = 5.0
WINDOW_S: Final = 5.0
"""How far back the pacer looks to see what the store accepted."""
LEAST_RATE: Final = 1.0
GRANT_S: Final = 0.25
"""How many seconds' worth of the rate one request holds at most: so much time is lost if the store refuses it."""
_SLICE_S: Final = 0.25
"""Waits are cut into slices, so that a stop or a changed rate takes effect."""


class Pacer:
    """Decides when workers may send how many objects; safe for use by several threads.

    Attributes:
        throttled: how often the store asked for fewer requests, or did not answer in time.
        backpressure_s: for how long at least one worker waited because of that.
        last_success: when the store last accepted something, on the runtime's clock.

    Args:
        max_rate: objects per second: at any moment, no more than this many times the elapsed seconds have been sent.
        stop: set when the run is to end; it ends every wait.
    """

    def __init__(self, runtime: Runtime, max_rate: float | None = None, stop: threading.Event | None = None) -> None:
        self._clock = runtime.clock
        self._lock = threading.Lock()
        self._max_rate, self._store_rate = max_rate, float("inf")
        self._stop = stop or threading.Event()
        self._paid = self._counted = self.last_success = self._clock.monotonic()
        self._fell, self._fruitless = float("-inf"), True
        self._taken: deque[tuple[float, int]] = deque()
        self.throttled = 0
        self.backpressure_s = 0.0

    def rate(self) -> float | None:
        """Return the current rate in objects per second; None while there is no limit."""
        rate = min(self._store_rate, self._max_rate or self._store_rate)
        return rate if rate < float("inf") else None

    def wait(self, objects: int) -> int:
        """Wait until some of `objects` may be sent, and return how many; 0 if the run is to end.

        The number is decided at the end of the wait: a batch sized for too fast a pace would delay the others.
        """
        began = now = self._clock.monotonic()
        while not self._stop.is_set():
            with self._lock:
                rate, now = self.rate(), self._clock.monotonic()
                if rate == self._store_rate:  # otherwise the caller's limit holds it up
                    self.backpressure_s += max(0.0, now - max(began, self._counted))
                    self._counted = now
                if rate is None:
                    return objects
                granted = min(objects, max(1, int(rate * GRANT_S)))
                due = self._paid + granted / rate
                if due <= now:
                    self._paid = max(due, now - granted / rate)
                    return granted
            self._clock.sleep(min(due - now, _SLICE_S))
        return 0

    def pause(self, seconds: float) -> None:
        """Wait this long, or until the run is to end."""
        due = self._clock.monotonic() + seconds
        while not self._stop.is_set() and (left := due - self._clock.monotonic()) > 0:
            self._clock.sleep(min(left, _SLICE_S))

    def answered(self, sent_at: float, taken: int, *, slower: bool) -> bool:
        """Adjust the rate to an answer; return whether the store may only accept smaller requests.

        Args:
            sent_at: when the request was sent. A refusal of a request sent before the last fall is not new information.
            taken: how many objects the store accepted.
            slower: whether the store asked for fewer requests, or did not answer in time.
        """
        now = self._clock.monotonic()
        with self._lock:
            if taken:
                self.last_success, self._fruitless = now, False
                self._taken.append((now, taken))
                self._store_rate += GROWTH * taken * max(1.0, (now - self._fell) / REGAIN_S)
            while self._taken and self._taken[0][0] < now - WINDOW_S:
                self._taken.popleft()
            self.throttled += slower
            if not slower or sent_at <= self._fell:
                return False
            if self._fruitless or not self._taken:
                return True
            taken_per_s = sum(n for _, n in self._taken) / max(1.0, min(WINDOW_S, now - self._taken[0][0]))
            if self._store_rate < float("inf"):
                taken_per_s = min(self._store_rate, max(taken_per_s, self._store_rate / 2))
            self._store_rate = max(LEAST_RATE, DECREASE * taken_per_s)
            self._fell = self._paid = now
            self._fruitless = True
            rate, fields = self._store_rate, event("pace", rate=round(self._store_rate, 1), throttled=self.throttled)
        _log.info("the store asks to slow down: %.0f objects a second", rate, extra=fields)
        return False


@lru_cache(maxsize=1)
def pacer_of(run_id: str, max_rate: float | None) -> Pacer:
    """Return the pacer of a process that works for another process's run, shared by its tasks."""
    return Pacer(Runtime(), max_rate)
