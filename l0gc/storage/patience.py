"""Limit how long a run waits for a silent store: one limit for all of its requests together.

Each request that ends without an answer adds the time that it took; time in which several threads waited counts once.
An answer about the same folder removes that folder's time, so a store that is slow or loses some requests does not end
a run, however long the run is. Once the limit is reached, requests of the unanswered kinds are not sent, since a
request that was not sent leaves no doubt. After a pause, the store is tried again, so that a program that keeps a
cluster open need not restart.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from typing import Final

from l0gc.storage.config import StoreConfig

_CLOCK: Final = time.monotonic
_LOGS: Final = "l0gc/"


class Patience:
    """The limit for one store; safe for use by several threads.

    Args:
        seconds: the limit. A single answer may take a quarter of it, and a request may be repeated for half of it.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = _CLOCK) -> None:
        self.seconds, self._clock = seconds, clock
        self._lock = threading.Lock()
        self._in_vain: defaultdict[tuple[str, str], float] = defaultdict(float)
        self._counted_until = self._ended_at = clock() - seconds
        self.last = ("", "")
        """The kind and the key of the last request without an answer."""

    @property
    def answer_s(self) -> float:
        """Return how long a single answer may take."""
        return self.seconds / 4

    def allows_again(self, began: float) -> bool:
        """Return whether a request that has waited since `began` may be sent again."""
        now = self._clock()
        with self._lock:
            in_vain = self._total() + now - max(began, self._counted_until)
        return now - began < self.seconds / 2 and in_vain < self.seconds

    def unanswered(self, kind: str, key: str, began: float) -> None:
        """Count a request that has waited since `began` and is not sent again."""
        with self._lock:
            now = self._clock()
            self._in_vain[kind, _folder(key)] += max(0.0, now - max(began, self._counted_until))
            self._counted_until = self._ended_at = now
            self.last = kind, key

    def answered(self, kind: str, key: str) -> None:
        """Remove the time for which requests of this kind about this folder have waited."""
        if self._in_vain:
            with self._lock:
                self._in_vain.pop((kind, _folder(key)), None)

    def is_over(self, kind: str) -> bool:
        """Return whether requests of this kind must not be sent."""
        if not self._in_vain:
            return False
        with self._lock:
            if self._total() < self.seconds:
                return False
            if self._clock() - self._ended_at >= self.seconds / 2:
                self._in_vain.clear()
            return any(kind == unanswered for unanswered, _ in self._in_vain)

    def _total(self) -> float:
        return sum(self._in_vain.values())


def patience_with(config: StoreConfig) -> Patience:
    """Return the limit that all clients of a bucket in this process share."""
    return _shared(config.endpoint_url, config.bucket, config.timeout_s)


@cache
def _shared(endpoint_url: str | None, bucket: str, seconds: float) -> Patience:
    return Patience(seconds)


def _folder(key: str) -> str:
    """Return the part of the bucket whose requests count together: one log, or all data of a level."""
    return key.rpartition("/")[0] if key.startswith(_LOGS) else key.partition("/")[0]
