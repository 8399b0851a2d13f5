"""Doing independent store calls at once, or one after another where a test must replay their order.

The threads that do them are not those of `concurrent.futures`, which waits in conditions of `threading`. These are written
in Python: an exception in the middle of one, such as Ctrl-C in a notebook, leaves it locked, and then a thread of the pool
waits for ever, and so does its caller (hazard 29).

How many requests a store answers at once before they only queue there, nobody knows: `InFlight` finds out.
"""

from __future__ import annotations

import _thread
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Executor, Future
from contextlib import AbstractContextManager, suppress
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple, TypeVar, cast

from l0gc.runtime import Clock, SystemClock

A = TypeVar("A")
B = TypeVar("B")

_BEGUN_S: Final = 1.0
"""A thread that has not begun by then is started again: an exception that is set in the thread that starts it may come to
the new one, and end it."""

FIRST_IN_FLIGHT: Final = 20
"""A sweep of 40,000 objects sends 40 requests, and is done before another number is tried. Each holds 0.8 MiB; what
more of them are worth is in benchmarks/README.md. Twenty delete 20,000 objects a second where each request takes 0.3 s;
sixteen did not."""
LEAST_IN_FLIGHT: Final = 2
ANSWERS: Final = 24
"""A rate is that of so many answers, or of two for each request in flight."""
GAIN: Final = 0.25
"""A raise is kept if the rate grows by this share of it."""
LOSS: Final = 0.05
"""A step down is kept if the rate falls by no more than this share."""
HOLD: Final = 8
"""After a step that was not kept, as many rates are measured before the next one, the other way."""


def grouped(items: Iterable[A], *limits: tuple[Callable[[A], int], int]) -> Iterator[list[A]]:
    """The items in their order, as many together as stay within each limit, which comes with how an item counts.

    An item that is above a limit is alone.
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
    """Runs what is submitted at once, in the caller's thread."""

    def submit(self, fn: Callable[..., B], /, *args: Any, **kwargs: Any) -> Future[B]:
        future: Future[B] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as e:  # noqa: BLE001 - raised again where the result is asked for
            future.set_exception(e)
        return future


class _Submitted(Future[B]):
    """What a worker does. Its lock is held until it has ended, so one step of C waits for it."""

    def __init__(self, do: Callable[[], B]) -> None:
        super().__init__()
        self._do = do
        self._error: BaseException | None = None
        self._under_way = threading.Lock()
        self._under_way.acquire()

    def run(self) -> None:
        try:
            self._value = self._do()
        except BaseException as e:  # noqa: BLE001 - raised again where the result is asked for
            self._error = e
        self._under_way.release()

    def __call__(self) -> Answered:
        self.run()
        return Answered(1)

    def drop(self) -> None:
        """It is not done any more."""
        self._error = CancelledError()
        self._under_way.release()

    def done(self) -> bool:
        return not self._under_way.locked()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        with self._under_way:
            return self._error

    def result(self, timeout: float | None = None) -> B:
        error = self.exception()
        if error is not None:
            raise error
        return self._value


class WorkerThreads(Executor):
    """At most so many threads, `workers`; each is started when there is something to do."""

    def __init__(self, workers: int, name: str) -> None:
        self.workers, self._name = workers, name
        self._alive: list[threading.Lock] = []
        self._tasks: SimpleQueue[_Submitted[Any] | None] = SimpleQueue()

    def submit(self, fn: Callable[..., B], /, *args: Any, **kwargs: Any) -> Future[B]:
        if len(self._alive) < self.workers:
            self._start(f"{self._name}_{len(self._alive)}")
        task = _Submitted(lambda: fn(*args, **kwargs))
        self._tasks.put(task)
        return task

    def _start(self, name: str) -> None:
        alive, begun = threading.Lock(), threading.Lock()
        begun.acquire()
        while True:
            thread = threading.Thread(target=_work, args=(self._tasks, alive, begun), name=name, daemon=True)
            _thread.start_new_thread(thread.start, ())  # this thread must not wait in the condition of `start`
            if begun.acquire(timeout=_BEGUN_S):
                break
        self._alive.append(alive)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        if cancel_futures:
            with suppress(Empty):
                while (task := self._tasks.get_nowait()) is not None:
                    task.drop()
        self._tasks.put(None)
        # Once the interpreter ends, threads take no more steps: a cluster that nobody has closed must not wait for them.
        for alive in self._alive if wait and not sys.is_finalizing() else ():
            with alive:
                pass

    def __del__(self) -> None:
        self.shutdown(wait=False)


def _work(tasks: SimpleQueue[_Submitted[Any] | None], alive: threading.Lock, begun: threading.Lock) -> None:
    if not alive.acquire(blocking=False):
        return  # it began so late that another thread is in its place
    begun.release()
    while (task := tasks.get()) is not None:
        task.run()
        del task
    tasks.put(None)  # for the others
    alive.release()


class Answered(NamedTuple):
    """What a request came to: how much the store took, and whether something else than the store held it up."""

    taken: int
    held: bool = False


class InFlight:
    """Sends requests through an executor, as many at once as make the store faster.

    By Little's law more of them either raise the rate, or wait longer for their answers. So the number goes up by half while
    the rate grows with it, else back, and after a while a quarter down, which is kept if the rate stays. Nothing is learnt
    while requests are held up by a pace, or fewer than allowed are there to be sent. Safe for several threads.

    Args:
        executor: where they are sent; threads that are started for it are as many as may be sent at once.
        first: how many at once, to begin with.
        least: how many it always may be.
        most: how many it may be at most.
    """

    def __init__(
        self,
        clock: Clock,
        executor: Executor,
        first: int = FIRST_IN_FLIGHT,
        least: int = LEAST_IN_FLIGHT,
        most: int | None = None,
    ) -> None:
        self._clock, self._executor = clock, executor
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], Answered]] = deque()
        self._under_way = 0
        self._least, self._most = least, most
        self._kept, self._upwards, self._hold, self._rate = first, True, 0, 0.0
        self._measure(first)

    def submit(self, *requests: Callable[[], Answered], first: bool = False) -> None:
        """Send requests, when their turn comes; what they raise is lost where the executor is not inline.

        Args:
            first: whether they go before all that wait.
        """
        with self._lock:
            if first:
                self._waiting.extendleft(reversed(requests))
            else:
                self._waiting.extend(requests)
            room = max(0, self.limit - self._under_way)
        self._start(min(room, len(requests)))

    def forget(self) -> list[Callable[[], Answered]]:
        """The requests that still wait, which are not sent any more."""
        with self._lock:
            waiting, self._waiting = self._waiting, deque()
        return [*waiting]

    def _send(self) -> None:
        """Send what waits, one after another, for as long as it may be one more."""
        while True:
            with self._lock:
                if not self._waiting or self._under_way >= self.limit:
                    return
                request = self._waiting.popleft()
                self._under_way += 1
            answered = Answered(0, held=True)
            try:
                answered = request()
            except BaseException:
                self.count(answered, ended=True)
                self._send()
                raise
            self.count(answered, ended=True)

    def count(self, answered: Answered, *, ended: bool = False) -> None:
        """Count an answer, of a request that goes on unless it has `ended`; send more at once where that is decided on."""
        with self._lock:
            before = self.limit
            self._under_way -= ended
            self._learn(answered)
            more = min(self.limit - before, len(self._waiting) - ended)
        self._start(more)

    def _start(self, senders: int) -> None:
        for _ in range(senders):
            try:
                self._executor.submit(self._send)
            except RuntimeError:  # no thread could be started
                self._send()

    # -- with the lock held -------------------------------------------------------------------------------------------

    def _learn(self, answered: Answered) -> None:
        self._answers += 1
        if self._answers <= 0:  # sent before the limit changed
            self._since = self._clock.monotonic()
            return
        self._taken += answered.taken
        self._unsure += answered.held or not self._waiting
        if self._answers >= max(ANSWERS, 2 * self.limit):
            rate = self._taken / max(1e-9, self._clock.monotonic() - self._since)
            self._judge(rate if self._unsure * 4 <= self._answers else None)

    def _measure(self, limit: int) -> None:
        """Measure the rate anew, with this limit."""
        self.limit = max(self._least, limit if self._most is None else min(limit, self._most))
        if isinstance(self._executor, WorkerThreads):
            self._executor.workers = self.limit
        self._answers, self._taken, self._unsure = -self._under_way, 0, 0
        self._since = self._clock.monotonic()

    def _judge(self, rate: float | None) -> None:
        """Decide on the limit that was tried, and on the next one; None is a rate that was not measured."""
        step = self.limit / self._kept - 1
        least = 1 + step * GAIN if step > 0 else 1 - LOSS
        if rate is not None and (not step or rate >= self._rate * least):
            self._rate = max(rate, self._rate) if step < 0 else rate
            self._kept = self.limit
            self._hold = 0 if step else self._hold - 1
        elif step:
            self._upwards, self._hold = not self._upwards, HOLD
        if self._kept == self._least:
            self._upwards = True
        change = self._kept // 2 if self._upwards else -max(1, self._kept // 4)
        self._measure(self._kept + (change if rate is not None and self._hold <= 0 else 0))


class Parallel:
    """Maps a function over items, here one after another in the caller's thread; results in the items' order."""

    def map(self, fn: Callable[[A], B], items: Iterable[A]) -> list[B]:
        return [fn(i) for i in items]

    def answered(self) -> None:
        """To be called by a task that goes on after an answer of the store: so it shows how fast the store is."""

    def begin(self, fn: Callable[[], B]) -> Callable[[], B]:
        """Begin something, if this can do two things at once; it returns a function that gives the result, or raises."""
        return fn


class ThreadPool(Executor):
    """Does as many tasks at once as makes them faster: some workers' at least, and up to `MORE` times as many.

    A task is taken for a request. A shutdown may drop tasks that have not begun.
    """

    MORE: Final = 4

    def __init__(self, threads: Executor, workers: int, clock: Clock) -> None:
        self._threads = threads
        self.in_flight = InFlight(clock, threads, first=workers, least=workers, most=workers * self.MORE)

    def submit(self, fn: Callable[..., B], /, *args: Any, **kwargs: Any) -> Future[B]:
        task = _Submitted(lambda: fn(*args, **kwargs))
        self.in_flight.submit(task)
        return task

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for task in self.in_flight.forget() if cancel_futures else ():
            cast(_Submitted[Any], task).drop()
        self._threads.shutdown(wait, cancel_futures=cancel_futures)


class Threads(Parallel, AbstractContextManager["Threads"]):
    """At once, on a pool of threads; the first error is raised after all have ended.

    Calls from within the pool run inline, so that nesting cannot lock up.

    Args:
        workers: how many tasks are done at once, to begin with; more if that makes the store faster.
    """

    def __init__(self, workers: int, name: str = "l0gc", clock: Clock | None = None) -> None:
        self._prefix = name
        self._pool = ThreadPool(WorkerThreads(workers, name), workers, clock or SystemClock())

    def map(self, fn: Callable[[A], B], items: Iterable[A]) -> list[B]:
        todo = list(items)
        if len(todo) < 2 or self._within():
            return [fn(i) for i in todo]
        futures = [self._pool.submit(fn, i) for i in todo]
        errors = [e for f in futures if (e := f.exception()) is not None]
        if errors:
            raise errors[0]
        return [f.result() for f in futures]

    def answered(self) -> None:
        self._pool.in_flight.count(Answered(1))

    def begin(self, fn: Callable[[], B]) -> Callable[[], B]:
        return fn if self._within() else self._pool.submit(fn).result

    def pool(self) -> Executor | None:
        """The pool, for work that is handed in one by one; none within the pool, which must not wait for itself."""
        return None if self._within() else self._pool

    def _within(self) -> bool:
        return threading.current_thread().name.startswith(self._prefix)

    def __exit__(self, *exc: object) -> None:
        self._pool.shutdown(cancel_futures=True)
