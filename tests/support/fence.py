"""Runs threads that hold a fence over a window that a test moves.

Threads meet at events, and never wait for a fixed time. A thread reads the applied window under the fence's lock, and
its decision is counted before it releases the lock. So the counters, read after that, show whether the thread waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from l0gc.errors import StaleClusterEpochError
from l0gc.streamlog.journal.admission import EpochWindow
from l0gc.streamlog.journal.fence import EpochFence

JOURNAL = 3
PATIENCE_S = 20.0
"""The longest wait in seconds; only a failing test waits this long."""


class Applied:
    """The log's window, as the fence reads it; `was_read` is set once another thread has read it."""

    def __init__(self, oldest: int, newest: int) -> None:
        self.window = EpochWindow(oldest, newest)
        self.was_read = threading.Event()
        self._owner = threading.current_thread()

    def __call__(self) -> EpochWindow:
        if threading.current_thread() is not self._owner:
            self.was_read.set()
        return self.window


class Writer:
    """A thread that fences an epoch and holds the fence until `finish`."""

    def __init__(self, fence: EpochFence, applied: Applied, epoch: int) -> None:
        self._fence, self._applied, self._epoch = fence, applied, epoch
        self.waits = False
        self.admitted = threading.Event()
        self.window: EpochWindow | None = None
        self.error: StaleClusterEpochError | None = None
        self._go_on = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            with held(self._fence, self._epoch) as self.window:
                self.admitted.set()
                self._go_on.wait(PATIENCE_S)
        except StaleClusterEpochError as e:
            self.error = e

    def __enter__(self) -> Writer:
        """Return once the thread is admitted, refused, or known to wait, and record in `waits` whether it waits."""
        before = self._decided()
        self._applied.was_read.clear()
        self._thread.start()
        assert self._applied.was_read.wait(PATIENCE_S)
        self.waits = self._decided() == before
        return self

    def _decided(self) -> int:
        """Return how many threads were admitted or refused; this takes the fence's lock, as every decision does."""
        c = self._fence.counters
        return c.fences_known_epoch + c.fences_new_epoch + c.rejected_below_window

    def finish(self) -> None:
        self._go_on.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), f"the writer at {self._epoch} is stuck"

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None) -> None:
        self.finish()


def fence_on(oldest: int, newest: int) -> tuple[EpochFence, Applied]:
    applied = Applied(oldest, newest)
    return EpochFence(JOURNAL, applied), applied


def fenced(fence: EpochFence, epoch: int) -> EpochWindow:
    """Enter the fence and leave it."""
    with held(fence, epoch) as window:
        return window


def within_patience(*works: Callable[[], object]) -> None:
    """Do each of them on its own thread; all must end."""
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads), "one waits for ever"


@contextmanager
def held(fence: EpochFence, epoch: int) -> Iterator[EpochWindow]:
    """Hold the fence, as a thread that appends does."""
    hold = threading.Lock()
    with hold:
        yield fence.enter(epoch, hold)
