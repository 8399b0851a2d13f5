"""How fast a sweep may delete: as fast as the store takes it, and no faster than the caller allows.

Additive increase, multiplicative decrease, on what the store really took. A 503 or a time-out sets the rate to nine tenths
of the objects per second that succeeded lately; from there it goes back to that in `REGAIN_S`, feels its way past it, and
gathers speed if nothing objects (the curve of TCP's CUBIC). Until the store objects the rate is unlimited. Nothing here
decides what is deleted. One pacer is shared by all workers of a process.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from functools import lru_cache
from typing import Final

from l0gc.events import event
from l0gc.runtime import Runtime
from l0gc.storage.objectstore import PAGE_SIZE

_log: Final = logging.getLogger(__name__)

DECREASE: Final = 0.1
"""The share that the rate goes down by: the store did take as much as that, so a little less is enough."""
REGAIN_S: Final = 5.0
"""How long the rate takes to be back where the store objected; in as long again it is as far above as it was below."""
WINDOW_S: Final = 5.0
"""How far back "lately" goes."""
FIRST_RATE: Final = 1000.0
"""Where to begin if the store objects before it has taken anything."""
LEAST_RATE: Final = 1.0
BATCH_S: Final = 0.25
"""A batch holds no more than so many seconds' worth of objects: when the store refuses one, so much time is lost."""
ASKED_BATCH_S: Final = 1.0
"""The same for the rate that the caller set, which no store refuses."""
LEAST_BATCH: Final = 1
SHRINK_AFTER: Final = 3
"""After so many reductions of the rate without a batch that was accepted whole, batches get smaller: a store may accept only
so many at once, whatever the rate."""
SHRUNK_S: Final = 60.0
"""How long batches stay small; then they grow by a tenth with each one that is taken."""
CREDIT_S: Final = 0.05
"""How much lost time is made up for: a sleep that ended late does not lower the rate."""
_SLICE_S: Final = 0.25
"""Waits are cut into slices, so that a stop and a change of rate take effect."""


class Pacer:
    """Tells workers when they may send how many objects; safe for several threads.

    Attributes:
        throttled: how often the store wanted fewer requests, or did not answer in time.
        backpressure_s: for how long at least one worker waited because of that.
        last_success: when the store last took something, on the runtime's clock.

    Args:
        max_rate: objects per second: of any moment, no more than this many times the seconds passed have been sent.
        stop: set when the run is to end; nobody waits any longer then.
    """

    def __init__(self, runtime: Runtime, max_rate: float | None = None, stop: threading.Event | None = None) -> None:
        self._clock = runtime.clock
        self._lock = threading.Lock()
        self._max_rate = max_rate
        self._stop = stop or threading.Event()
        now = self._clock.monotonic()
        self._limit: float | None = None
        self._limited_at = float("-inf")
        self._paid = now
        self._queue: deque[list[int]] = deque()
        self._taken: deque[tuple[float, int]] = deque()
        self._cut_off = 0
        self._batch = PAGE_SIZE
        self._shrunk_at = float("-inf")
        self.throttled = 0
        self.backpressure_s = 0.0
        self.last_success = now

    def rate(self) -> float | None:
        """Objects per second as of now; None while there is no limit."""
        with self._lock:
            return self._rate_at(self._clock.monotonic())

    def wait(self, objects: int) -> int:
        """Wait until some of `objects` may be sent, after those who wait already; how many, 0 if the run is to end.

        How many is decided at the end of the wait: a batch of a pace that was too fast would hold up the others.
        """
        mine = [objects]
        with self._lock:
            self._queue.append(mine)
        try:
            slept = 0.0
            while not self._stop.is_set():
                with self._lock:
                    now = self._clock.monotonic()
                    first = self._queue[0] is mine
                    if first and self._held_by_store(now):
                        self.backpressure_s += slept
                    due = self._due(now, mine)
                    if due <= now:
                        granted = min(objects, self._size(now))
                        self._pay(now, granted)
                        return granted
                slept = min(due - now, _SLICE_S)
                self._clock.sleep(slept)
            return 0
        finally:
            with self._lock:
                self._queue.remove(mine)

    def pause(self, seconds: float) -> bool:
        """Wait so long; False as soon as the run is to end."""
        due = self._clock.monotonic() + seconds
        while not self._stop.is_set():
            left = due - self._clock.monotonic()
            if left <= 0:
                return True
            self._clock.sleep(min(left, _SLICE_S))
        return False

    def answered(self, sent_at: float, sent: int, taken: int, *, slower: bool) -> None:
        """What the store made of a request.

        Args:
            sent_at: when the request was sent. A request in flight when the rate was lowered does not lower it again.
            sent: how many objects it held.
            taken: how many of them the store has taken.
            slower: whether the store wanted fewer requests, or did not answer in time.
        """
        with self._lock:
            now = self._clock.monotonic()
            if taken:
                self.last_success = now
                self._taken.append((now, taken))
                while self._taken[0][0] < now - WINDOW_S:
                    self._taken.popleft()
            whole_batch = sent > self._size(now) // 2  # the small rest of one proves nothing
            if not slower:
                if whole_batch:
                    self._cut_off = 0
                if sent >= self._batch and now - self._shrunk_at > SHRUNK_S:
                    self._batch = min(PAGE_SIZE, self._batch + self._batch // 10 + 1)
                return
            self.throttled += 1
            if sent_at > self._limited_at:
                if whole_batch and sent <= self._batch:
                    self._shrink(now, sent, taken)
                self._lower(now)

    # -- with the lock held -------------------------------------------------------------------------------------------

    def _store_rate(self, now: float) -> float | None:
        """The rate that the store probably accepts: 0.9 of the limit, and back to it, and past it, with time."""
        if self._limit is None:
            return None
        return self._limit * (1 + DECREASE * ((now - self._limited_at) / REGAIN_S - 1) ** 3)

    def _rate_at(self, now: float) -> float | None:
        rates = [r for r in (self._store_rate(now), self._max_rate) if r is not None]
        return min(rates) if rates else None

    def _size(self, now: float) -> int:
        sizes = [float(self._batch)]
        store = self._store_rate(now)
        if store is not None:
            sizes.append(store * BATCH_S)
        if self._max_rate is not None:
            sizes.append(self._max_rate * ASKED_BATCH_S)
        return int(max(LEAST_BATCH, min(sizes)))

    def _held_by_store(self, now: float) -> bool:
        store = self._store_rate(now)
        return store is not None and (self._max_rate is None or store < self._max_rate)

    def _shrink(self, now: float, sent: int, taken: int) -> None:
        self._cut_off += 1
        if self._cut_off >= SHRINK_AFTER:
            self._batch, self._shrunk_at = max(LEAST_BATCH, taken, sent // 2), now
            self._cut_off = 0

    def _lower(self, now: float) -> None:
        rate, took = self._store_rate(now), self._took(now)
        if rate is None:
            self._limit = took or FIRST_RATE
        elif took:  # otherwise its limit is not known: a worker that was refused waits longer each time
            self._limit = max(LEAST_RATE, min(rate, max(took, rate / 2)))
        self._limited_at = self._paid = now
        assert self._limit is not None
        fields = event("pace", rate=round(self._limit, 1), throttled=self.throttled)
        _log.info("the store asks to slow down: %.0f objects a second", self._limit, extra=fields)

    def _due(self, now: float, mine: list[int]) -> float:
        """When those before and `mine` are paid for."""
        rate = self._rate_at(now)
        if rate is None:
            return now
        ahead, most = 0, self._size(now)
        for other in self._queue:
            ahead += min(other[0], most)
            if other is mine:
                break
        return self._paid + ahead / rate

    def _pay(self, now: float, objects: int) -> None:
        rate = self._rate_at(now)
        self._paid = now if rate is None else max(self._paid + objects / rate, now - CREDIT_S)

    def _took(self, now: float) -> float:
        """Objects per second that succeeded lately."""
        lately = [(t, n) for t, n in self._taken if t >= now - WINDOW_S]
        if not lately:
            return 0.0
        return sum(n for _, n in lately) / max(1.0, min(WINDOW_S, now - lately[0][0]))


@lru_cache(maxsize=1)
def pacer_of(run_id: str, max_rate: float | None) -> Pacer:
    """The pace of a process that works for a run of another one, task after task."""
    return Pacer(Runtime(), max_rate)
