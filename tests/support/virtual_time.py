"""Workers that wait on their own clock: hours of a sweep take a moment, and every run is the same.

Each worker is a greenlet. When a worker sleeps, the one that wakes up first continues, and the clock moves to its time.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from greenlet import getcurrent, greenlet


class VirtualClock:
    """A `Clock` on which only waiting takes time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._waiting: list[tuple[float, int, greenlet]] = []
        self._numbers = itertools.count()
        self._hub: greenlet | None = None

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return int(self.now * 1000)

    def sleep(self, seconds: float) -> None:
        if self._hub is None:
            self.now += seconds
            return
        heapq.heappush(self._waiting, (self.now + max(seconds, 1e-6), next(self._numbers), getcurrent()))
        self._hub.switch()

    def start(self, worker: Callable[[], None]) -> None:
        """Start another worker at the present time."""
        heapq.heappush(self._waiting, (self.now, next(self._numbers), greenlet(worker, self._hub)))

    def run(self, *workers: Callable[[], None]) -> None:
        """Run the workers to their ends, and raise what one of them raises."""
        self._hub = getcurrent()
        try:
            for worker in workers:
                self.start(worker)
            while self._waiting:
                self.now, _, next_up = heapq.heappop(self._waiting)
                next_up.switch()
        finally:
            self._hub = None


class VirtualThreads(Executor):
    """Runs as many greenlets as are requested."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self._clock.start(lambda: fn(*args, **kwargs))
        return Future()
