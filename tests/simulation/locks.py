"""Locks for greenlets: the simulated threads of one process exclude each other as real threads do.

All greenlets run in one thread of the machine, so a real lock would either exclude none of them (a re-entrant one) or
stop the whole simulation. These locks return control to the scheduler until they are free, and belong to a greenlet.
`instead_of_threads` substitutes them wherever l0gc requests locks from `threading`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType, SimpleNamespace, TracebackType
from typing import Protocol
from unittest import mock

from greenlet import getcurrent, greenlet

import l0gc.storage.replica
import l0gc.streamlog.cluster
import l0gc.streamlog.journal.fence
import l0gc.streamlog.journal.handle

_SHARED: tuple[ModuleType, ...] = (
    l0gc.streamlog.cluster,
    l0gc.streamlog.journal.fence,
    l0gc.streamlog.journal.handle,
    l0gc.storage.replica,
)
"""The modules whose locks several threads of one simulated process share."""


class Waiter(Protocol):
    """A simulated thread that can wait."""

    def wait_until(self, free: Callable[[], bool]) -> None:
        """Let others run until `free()`. Raises `Crashed` if the process dies before that."""
        ...


class Lock:
    """A lock, re-entrant or not; a thread that finds it taken lets others run."""

    def __init__(self, *, reentrant: bool = False) -> None:
        self._owner: greenlet | None = None
        self._depth = 0
        self._reentrant = reentrant

    def acquire(self, timeout: float = -1) -> bool:
        """Take the lock. `timeout` is ignored: a thread that had to wait that long would be a violation."""
        me = getcurrent()
        if self._owner is not me or not self._reentrant:
            _wait_until(lambda: self._owner is None)
        self._owner = me
        self._depth += 1
        return True

    def locked(self) -> bool:
        return self._owner is not None

    def release(self) -> None:
        if self._owner is not getcurrent():
            return  # the process died while this thread waited, and the lock with it
        self._depth -= 1
        if self._depth == 0:
            self._owner = None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None) -> None:
        self.release()


class Condition:
    """A condition with its own lock. Each wait ends with any `notify_all` after its beginning."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._woken = 0

    def wait(self) -> bool:
        seen = self._woken
        self._lock.release()
        _wait_until(lambda: self._woken != seen)
        return self._lock.acquire()

    def notify_all(self) -> None:
        self._woken += 1

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None) -> None:
        self._lock.release()


class Semaphore:
    def __init__(self, value: int = 1) -> None:
        self._value = value

    def acquire(self) -> bool:
        _wait_until(lambda: self._value > 0)
        self._value -= 1
        return True

    def release(self) -> None:
        self._value += 1


def _wait_until(free: Callable[[], bool]) -> None:
    if free():
        return
    me = getcurrent()
    assert hasattr(me, "wait_until"), "the world itself has run into a lock that an actor holds"
    me.wait_until(free)


@contextmanager
def instead_of_threads() -> Iterator[None]:
    """Give l0gc's handles the locks of this module until the block ends."""
    ours = SimpleNamespace(
        Lock=Lock,
        RLock=lambda: Lock(reentrant=True),
        Condition=Condition,
        BoundedSemaphore=Semaphore,
        Event=threading.Event,  # actors only check whether one is set
    )
    with ExitStack() as stack:
        for module in _SHARED:
            stack.enter_context(mock.patch.object(module, "threading", ours))
        yield
