"""Doing independent store calls at once, or one after another where a test must replay their order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

A = TypeVar("A")
B = TypeVar("B")


class InlineExecutor(Executor):
    """Runs what is submitted at once, in the caller's thread."""

    def submit(self, fn: Callable[..., B], /, *args: Any, **kwargs: Any) -> Future[B]:
        future: Future[B] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as e:  # noqa: BLE001 - raised again where the result is asked for
            future.set_exception(e)
        return future


class Parallel(Protocol):
    """Maps a function over items; results in the items' order; the first error is raised after all have ended."""

    def map(self, fn: Callable[[A], B], items: Iterable[A]) -> list[B]: ...


class Inline:
    """One after another, in the caller's thread."""

    def map(self, fn: Callable[[A], B], items: Iterable[A]) -> list[B]:
        return [fn(i) for i in items]


class Threads(AbstractContextManager["Threads"]):
    """At once, on a pool of threads. Calls from within the pool run inline, so that nesting cannot lock up."""

    def __init__(self, workers: int, name: str = "l0gc") -> None:
        self._prefix = name
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix=name)

    def map(self, fn: Callable[[A], B], items: Iterable[A]) -> list[B]:
        todo = list(items)
        if len(todo) < 2 or threading.current_thread().name.startswith(self._prefix):
            return [fn(i) for i in todo]
        futures = [self._pool.submit(fn, i) for i in todo]
        errors = [e for f in futures if (e := f.exception()) is not None]
        if errors:
            raise errors[0]
        return [f.result() for f in futures]

    def __exit__(self, *exc: object) -> None:
        self._pool.shutdown(cancel_futures=True)
