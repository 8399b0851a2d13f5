"""Run independent store calls concurrently, or sequentially in tests that must replay their order.

These threads do not use `concurrent.futures`, which waits on conditions of `threading`. Conditions are written in
Python, so an exception such as Ctrl-C in a notebook can leave one locked, and a pool thread and its caller would wait
for ever (hazard 29).

Every wait ends. A task is refused if it is submitted after the threads have ended, in a forked child, which has no
threads, or during Python's exit. A task that was submitted before but has not begun ends with the same error.
"""

from __future__ import annotations

import _thread
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, suppress
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from l0gc.errors import UsageError

A = TypeVar("A")
B = TypeVar("B")

_BEGUN_S: Final = 1.0
"""How long a new thread may take to begin. After that, another one is started, since an asynchronous exception may have
ended it.
"""
_STARTS: Final = 60
"""How often a start is tried; during Python's exit, threads no longer start."""
_AHEAD: Final = 16
_MOST_AHEAD: Final = 64
_AHEAD_BYTES: Final = 24 << 20
"""How many bytes are requested ahead, at most. `_AHEAD` requests are sent ahead at first, and one more after each
answer.
"""


def grouped(items: Iterable[A], *limits: tuple[Callable[[A], int], int]) -> Iterator[list[A]]:
    """Yield the items in order, in groups that stay within each limit. A limit is a measure of an item and its largest
    sum.

    An item above a limit forms a group alone.
    """
    group: list[A] = []
    totals = [0] * len(limits)
    for item in items:
        counts = [count(item) for count, _ in limits]
        totals = [total + n for total, n in zip(totals, counts, strict=True)]
        if group and any(total > most for total, (_, most) in zip(totals, limits, strict=True)):
            yield group
            group, totals = [], counts
        group.append(item)
    if group:
        yield group


class InlineExecutor(Executor):
    """Runs submitted tasks at once, in the caller's thread."""

    def submit(self, fn: Callable[..., B], /, *args: Any, **kwargs: Any) -> Future[B]:
        future: Future[B] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as e:  # noqa: BLE001 - raised again where the result is asked for
            future.set_exception(e)
        return future


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_process(opened: int) -> None:
    """Raise `UsageError` if this process was forked from the given one, since it has that process's connections, but
    not its threads.
    """
    if opened != os.getpid():
        raise UsageError("the cluster was opened before this process was forked: open it again here, after the fork")


CLOSED: Final = "the cluster is closed: use it inside its with block, or open it again"


class _WorkerTask(Future[B]):
    """A task of a worker. Its lock is held until the task has ended, so that a caller can wait in one uninterruptible C
    call.
    """

    def __init__(self, do: Callable[[], B]) -> None:
        super().__init__()
        self._do, self._process = do, os.getpid()
        self._error: BaseException | None = None
        self._under_way = threading.Lock()
        self._under_way.acquire()

    def run(self) -> None:
        try:
            self._value = self._do()
        except BaseException as e:  # noqa: BLE001 - raised again where the result is asked for
            self._error = e
        self._under_way.release()
        del self  # breaks a cycle with the error, whose traceback has this frame and those of all callers

    def drop(self) -> None:
        """Discard the task."""
        self._error = UsageError(CLOSED)
        self._under_way.release()

    def cancel(self) -> bool:
        """Cancel the task unless a thread has begun it; return whether it was cancelled."""
        self._do = _cancelled
        return False

    def done(self) -> bool:
        return not self._under_way.locked()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if self._under_way.locked():
            check_process(self._process)  # in a forked child, no thread would ever end the task
        with self._under_way:
            return self._error

    def result(self, timeout: float | None = None) -> B:
        error = self.exception()
        try:
            if error is not None:
                raise error
            return self._value
        finally:
            del self, error  # as in `run`


def _cancelled() -> Any:
    raise UsageError(CLOSED)


class WorkerThreads(Executor):
    """A pool of at most `workers` threads, each of which is started when there is work for it.

    The pool is smaller if the machine allows fewer threads. If it allows none, tasks run in the caller's thread.
    """

    def __init__(self, workers: int, name: str) -> None:
        self.workers, self._name = workers, name
        self._process, self._closed = os.getpid(), False
        self._alive: list[threading.Lock] = []
        self._tasks: SimpleQueue[_WorkerTask[Any] | None] = SimpleQueue()

    def check_open(self) -> None:
        """Raise `UsageError` if these threads have ended, which they have after `shutdown` and in a forked child."""
        check_process(self._process)
        if self._closed:
            raise UsageError(CLOSED)

    def submit(self, fn: Callable[..., B], /, *args: Any, **kwargs: Any) -> Future[B]:
        self.check_open()
        if len(self._alive) < self.workers and not self._start(f"{self._name}_{len(self._alive)}"):
            self.workers = len(self._alive)
        if not self.workers:
            return InlineExecutor().submit(fn, *args, **kwargs)
        task = _WorkerTask(lambda: fn(*args, **kwargs))
        self._tasks.put(task)
        if self._closed:  # closed in the meantime, so the threads may have ended without running the task
            self._drop()
        return task

    def _start(self, name: str) -> bool:
        """Start a thread; return False if the machine does not allow another one."""
        alive, begun, refused = threading.Lock(), threading.Lock(), False
        begun.acquire()

        def start() -> None:
            nonlocal refused
            try:
                thread.start()
            except RuntimeError:
                refused = True
                begun.release()

        for _ in range(_STARTS):
            if sys.is_finalizing():
                break
            thread = threading.Thread(target=_work, args=(self._tasks, alive, begun), name=name, daemon=True)
            try:
                _thread.start_new_thread(start, ())  # this thread must not wait on the condition in `Thread.start`
            except RuntimeError:
                return False
            if begun.acquire(timeout=_BEGUN_S):
                if not refused:
                    self._alive.append(alive)
                return not refused
        raise UsageError("no thread can be started, since Python is ending: use the cluster before that")

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._closed = True
        if self._process != os.getpid():
            return
        if cancel_futures:
            self._drop()
        self._tasks.put(None)
        # Threads stop once the interpreter ends, so a cluster that was not closed must not wait for them.
        for alive in self._alive if wait and not sys.is_finalizing() else ():
            with alive:
                pass

    def _drop(self) -> None:
        """Discard the tasks that no thread has begun."""
        with suppress(Empty):
            while True:
                task = self._tasks.get_nowait()
                if task is not None:
                    task.drop()
        self._tasks.put(None)  # ends the threads that have not received their None yet

    def __del__(self) -> None:
        self.shutdown(wait=False)


def _work(tasks: SimpleQueue[_WorkerTask[Any] | None], alive: threading.Lock, begun: threading.Lock) -> None:
    if not alive.acquire(blocking=False):
        return  # it began so late that another thread has replaced it
    begun.release()
    while (task := tasks.get()) is not None:
        task.run()
        del task
    tasks.put(None)  # ends the other threads
    alive.release()


def _end(waiting: Iterable[tuple[Future[Any], int]]) -> None:
    for future, _ in waiting:
        future.cancel()


class Parallel(AbstractContextManager["Parallel"]):
    """Runs tasks on several threads, or sequentially in the caller's thread. Results are in the order of the tasks.

    The first error is raised after all tasks have ended. Calls from within the threads run inline, so that nesting cannot
    deadlock.

    Args:
        cores: how many cores are used for computing, as opposed to waiting for the store. By default, if there are
            threads, all cores that this process may use. Pass 1 if other processes use the other cores.
    """

    def __init__(self, workers: int = 0, name: str = "l0gc", cores: int = 0) -> None:
        self._prefix = name
        self._threads = WorkerThreads(workers, name) if workers else None
        self.cores = (cores or _usable_cores()) if workers else 1
        # Arrow's allocator keeps memory that each thread has freed, so few threads decode: a read took 200 MB instead
        # of 430.
        self._computing = WorkerThreads(self.cores, f"{name}-compute") if workers else None

    def check_open(self) -> None:
        """Raise `UsageError` if no more tasks can run."""
        if self._threads is not None:
            self._threads.check_open()

    def map(self, fn: Callable[[A], B], items: Iterable[A]) -> list[B]:
        self.check_open()
        pool = self.pool()
        if pool is None:
            return [fn(i) for i in items]
        todo = list(items)
        if len(todo) < 2:
            return [fn(i) for i in todo]
        futures = [pool.submit(fn, i) for i in todo]
        errors = [e for f in futures if (e := f.exception()) is not None]
        try:
            if errors:
                raise errors[0]
            return [f.result() for f in futures]
        finally:
            del errors, futures, e  # breaks the error's cycle with its traceback

    def fetch_ahead(self, work: Callable[[A], B], items: Iterable[A], weigh: Callable[[A], int]) -> Iterator[B]:
        """Yield the result of `work` for each item, in order, while data for the next items is fetched.

        `weigh` returns how many bytes an item fetches; the caller's thread does the work of an item that fetches
        nothing.
        """
        return self._ahead(self._threads, work, items, weigh, _AHEAD_BYTES)

    def compute_ahead(
        self, work: Callable[[A], B], items: Iterable[A], is_worth: Callable[[A], bool] = lambda _: True
    ) -> Iterator[B]:
        """Yield the result of `work` for each item, in order, while each core computes one of the next results."""
        if self.cores == 1:
            return map(work, items)
        return self._ahead(self._computing, work, items, is_worth, self.cores + 1)

    def _ahead(
        self,
        threads: WorkerThreads | None,
        work: Callable[[A], B],
        items: Iterable[A],
        weigh: Callable[[A], int],
        limit: int,
    ) -> Iterator[B]:
        """Start work on items until those in progress weigh `limit`. Items without weight are done in the caller's
        thread.

        The first error is raised once the work in progress has ended; an error of `items` itself is raised after the
        results of the items before it. A caller that stops iterating does not wait for the work in progress.
        """
        self.check_open()
        pool = None if self._within() else threads
        if pool is None:
            yield from map(work, items)
            return
        waiting: deque[tuple[Future[B], int]] = deque()
        inline, weight_ahead, ahead = InlineExecutor(), 0, _AHEAD
        failed: list[Exception] = []

        def until_failed() -> Iterator[A]:
            try:
                yield from items
            except Exception as e:  # noqa: BLE001 - it is raised in its turn
                failed.append(e)

        try:
            for item in until_failed():
                weight = weigh(item)
                waiting.append(((pool if weight else inline).submit(work, item), weight))
                weight_ahead += weight
                while len(waiting) > ahead or weight_ahead >= limit:
                    weight_ahead -= waiting[0][1]
                    ahead = min(ahead + 1, _MOST_AHEAD)
                    yield waiting.popleft()[0].result()
            while waiting:
                yield waiting.popleft()[0].result()
            if failed:
                raise failed.pop()
        except Exception:
            _end(waiting)
            for future, _ in waiting:
                future.exception()
            raise
        finally:
            _end(waiting)
            failed.clear()  # breaks an error's cycle with its traceback

    def begin(self, fn: Callable[[], B]) -> Callable[[], B]:
        """Start a task, in parallel if possible; return a function that gives its result or raises its error."""
        pool = self.pool()
        return fn if pool is None else pool.submit(fn).result

    def pool(self) -> Executor | None:
        """Return the threads, for tasks that are submitted one by one. Return None within these threads, which must not
        wait for themselves.
        """
        return None if self._within() else self._threads

    def _within(self) -> bool:
        return threading.current_thread().name.startswith(self._prefix)

    def __exit__(self, *exc: object) -> None:
        for threads in (self._threads, self._computing):
            if threads is not None:
                threads.shutdown(wait=not self._within(), cancel_futures=True)
