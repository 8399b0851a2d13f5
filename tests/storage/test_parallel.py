"""Threads for tasks: their results, and that an interruption leaves no caller waiting for ever."""

from __future__ import annotations

import _thread
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from l0gc.errors import UsageError
from l0gc.storage import parallel
from l0gc.storage.parallel import Parallel, WorkerThreads
from tests.support.cycles import held_by_caller, without_cycle_search
from tests.support.interrupting import Interrupt, interrupted

PATIENCE_S = 20.0
"""Only a failing test waits this long, in seconds."""


def in_time(work: Callable[[], object]) -> None:
    """Run the work on another thread, which must end in time."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "the thread waits for ever"


def named(name: str) -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith(name)]


def test_results_keep_the_items_order_and_the_first_error_raises() -> None:
    with Parallel(4, "answers") as threads:
        assert threads.map(lambda n: n * n, range(50)) == [n * n for n in range(50)]
        with pytest.raises(ZeroDivisionError):
            threads.map(lambda n: 1 // n, [3, 0, 1])
        assert threads.map(lambda n: sum(threads.map(abs, [n, -n])), [1, 2]) == [2, 4]


def test_at_most_one_item_per_core_is_computed_at_once() -> None:
    begun: list[int] = []
    both = threading.Barrier(2, timeout=PATIENCE_S)

    def work(n: int) -> int:
        begun.append(n)
        both.wait()
        return n

    with Parallel(8, "cores", cores=2) as threads:
        found = threads.compute_ahead(work, range(20))
        for n in range(17):
            assert next(found) == n
            assert len(begun) <= n + 1 + 2
        both.abort()
    assert (
        list(Parallel(8, "one", cores=1).compute_ahead(lambda _: threading.current_thread(), [1, 2]))
        == [threading.main_thread()] * 2
    )


def test_every_core_computes_while_a_result_is_used() -> None:
    all_three = threading.Barrier(3, timeout=PATIENCE_S)

    def work(n: int) -> int:
        if n:
            all_three.wait()
        return n

    with Parallel(8, "used", cores=2) as threads:
        for n in threads.compute_ahead(work, range(3)):
            if n == 0:
                all_three.wait()


def test_what_is_fetched_ahead_is_bounded_by_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_AHEAD_BYTES", 100)
    asked: list[int] = []

    def items() -> Iterator[int]:
        for n in range(30):
            asked.append(n)
            yield n

    with Parallel(8, "fetch") as threads:
        found = threads.fetch_ahead(lambda n: threading.current_thread(), items(), lambda n: 0 if n == 29 else 30)
        first = next(found)
        assert first is not threading.main_thread()
        assert asked == [0, 1, 2, 3]
        assert [*found][-1] is threading.main_thread()


@pytest.mark.parametrize("cores", [1, 2])
def test_the_first_error_ends_queued_work_after_running_items(cores: int) -> None:
    begun, ended = list[int](), list[int]()

    def work(n: int) -> int:
        begun.append(n)
        if n == 3:
            raise ZeroDivisionError
        time.sleep(0.01)
        ended.append(n)
        return n

    found: list[int] = []
    with Parallel(8, "error", cores=cores) as threads, pytest.raises(ZeroDivisionError):
        found.extend(threads.compute_ahead(work, range(50)))
    assert sorted({*begun} - {*ended}) == [3]
    assert len(begun) <= 3 + cores + 2


@pytest.mark.parametrize("ahead", ["compute_ahead", "fetch_ahead"])
def test_an_error_of_the_items_comes_after_earlier_results(ahead: str) -> None:
    def items() -> Iterator[int]:
        yield from range(3)
        raise ZeroDivisionError

    found: list[int] = []
    with Parallel(8, "items", cores=8) as threads, pytest.raises(ZeroDivisionError):
        found.extend(getattr(threads, ahead)(lambda n: n, items(), lambda n: n % 2))
    assert found == [0, 1, 2]


def test_who_stops_iterating_leaves_the_rest_undone() -> None:
    go, begun = threading.Event(), list[int]()

    def work(n: int) -> int:
        begun.append(n)
        if n:
            go.wait(PATIENCE_S)
        return n

    with Parallel(2, "stops") as threads:
        found = threads.fetch_ahead(work, range(100), lambda _: 1)
        assert next(found) == 0
        found.close()  # type: ignore[attr-defined]
        go.set()
    assert len(begun) <= 4


def test_one_worker_does_what_it_is_given_in_order() -> None:
    done: list[int] = []
    with WorkerThreads(1, "one") as workers:
        futures = [workers.submit(done.append, n) for n in range(100)]
        assert all(f.exception() is None for f in futures)
    assert done == list(range(100))


def test_a_shutdown_ends_threads_and_finishes_or_cancels_work() -> None:
    begun, go = threading.Event(), threading.Event()

    def wait() -> bool:
        begun.set()
        return go.wait(PATIENCE_S)

    for cancel in (False, True):
        workers = WorkerThreads(1, f"ends-{cancel}")
        first, second = workers.submit(wait), workers.submit(abs, -1)
        assert begun.wait(PATIENCE_S)
        ending = threading.Thread(target=workers.shutdown, kwargs={"cancel_futures": cancel}, daemon=True)
        ending.start()
        while cancel and not second.done():
            time.sleep(0.001)
        go.set()
        ending.join(PATIENCE_S)
        assert first.result() is True
        assert isinstance(second.exception(), UsageError) if cancel else second.result() == 1
        for thread in named(f"ends-{cancel}"):
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        begun.clear()
        go.clear()


def test_a_thread_that_never_begins_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_BEGUN_S", 0.01)
    lost, start = [3], _thread.start_new_thread

    def started(function: Callable[[], object], arguments: tuple[()]) -> int:
        if lost[0]:
            lost[0] -= 1  # as if an exception meant for the caller had ended the thread
            return 0
        return start(function, arguments)

    monkeypatch.setattr(_thread, "start_new_thread", started)
    with WorkerThreads(1, "again") as workers:
        assert workers.submit(abs, -1).result() == 1


def test_what_is_handed_in_after_the_end_is_refused() -> None:
    threads = Parallel(2, "ended")
    assert threads.map(abs, [-1, -2]) == [1, 2]
    threads.__exit__()
    with pytest.raises(UsageError, match="the cluster is closed"):
        threads.map(abs, [1, 2])
    with pytest.raises(UsageError, match="the cluster is closed"):
        threads.begin(list)


def test_an_end_next_to_the_work_of_others_leaves_nobody_waiting() -> None:
    """Each caller gets its result or an error, wherever in `submit` the shutdown comes."""
    for _ in range(100):
        threads, others = Parallel(2, "next-to"), list[threading.Thread]()

        def work(threads: Parallel = threads) -> None:
            with suppress(UsageError):
                while True:
                    threads.map(abs, range(3))

        for _ in range(3):
            others.append(threading.Thread(target=work, daemon=True))
            others[-1].start()
        threads.__exit__()
        for other in others:
            other.join(PATIENCE_S)
            assert not other.is_alive(), "the thread waits for ever"


def test_a_task_may_end_its_own_threads() -> None:
    threads = Parallel(2, "own")

    def work() -> None:
        with suppress(UsageError):  # of the second call, which comes after the shutdown
            threads.map(lambda _: threads.__exit__(), range(2))

    in_time(work)


def test_a_forked_child_cannot_use_the_parents_threads() -> None:
    with Parallel(2, "parent") as threads:
        assert threads.map(abs, [-1, -2]) == [1, 2]
        child = os.fork()
        if not child:  # the child runs no code of pytest
            signal.alarm(int(PATIENCE_S))
            code = 1
            try:
                threads.map(abs, [-1, -2])
            except UsageError as e:
                code = 0 if "before this process was forked" in str(e) else 2
            threads.__exit__()
            os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert threads.map(abs, [-1, -2]) == [1, 2]


def test_a_forked_child_does_not_wait_for_the_parents_task() -> None:
    go_on = threading.Event()
    with Parallel(2, "parent") as threads:
        ahead = threads.fetch_ahead(lambda n: n == 0 or go_on.wait(), range(4), lambda n: 1)
        under_way = threads.begin(go_on.wait)
        child = os.fork()
        if not child:
            signal.alarm(int(PATIENCE_S))
            codes = []
            for wait in (under_way, lambda: [*ahead]):
                try:
                    wait()
                except UsageError as e:
                    codes.append("before this process was forked" in str(e))
            os._exit(0 if codes == [True, True] else 1)
        assert os.waitpid(child, 0)[1] == 0
        go_on.set()
        assert [*ahead] == [True] * 4
        assert under_way()


def test_a_caller_that_is_interrupted_while_it_waits_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_BEGUN_S", PATIENCE_S)  # keeps late threads from adding steps to the count

    def call(threads: Parallel) -> None:
        threads.map(abs, range(3))

    threads = Parallel(2, "counted")
    with interrupted(-1, as_signals=True) as steps:
        call(threads)
    threads.__exit__()
    for at in range(1, steps[0] + 1):
        threads = Parallel(2, "interrupted")
        with pytest.raises(Interrupt), interrupted(at, as_signals=True):
            call(threads)
        in_time(lambda threads=threads: threads.map(abs, range(3)))  # type: ignore[misc]
        in_time(lambda threads=threads: threads.__exit__())  # type: ignore[misc]


def test_a_process_ends_that_never_closed_its_threads() -> None:
    """A program that opens a cluster without `with` ends like this; its threads take no step once Python ends."""
    program = """
from contextlib import contextmanager
from l0gc.storage.parallel import Parallel

@contextmanager
def opened():
    with Parallel(2) as threads:
        yield threads

kept = opened()
kept.__enter__().map(str, range(4))
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], check=False, timeout=PATIENCE_S, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("allowed", [0, 1, 3])
@pytest.mark.parametrize("where", ["raw", "in it"])
def test_a_machine_that_allows_few_threads_gets_few(allowed: int, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    started = 0
    monkeypatch.setattr(parallel, "_STARTS", 1)  # keeps a failing test from waiting for more threads
    real: Any = _thread.start_new_thread if where == "raw" else threading.Thread.start

    def few(*args: Any) -> Any:
        nonlocal started
        if started == allowed:
            raise RuntimeError("can't start new thread")
        started += 1
        return real(*args)

    pool = WorkerThreads(8, "few")
    if where == "raw":
        monkeypatch.setattr(_thread, "start_new_thread", few)
    else:
        monkeypatch.setattr(threading.Thread, "start", few)
    results = [f.result() for f in [pool.submit(int.__mul__, n, n) for n in range(20)]]
    monkeypatch.undo()
    assert results == [n * n for n in range(20)]
    assert pool.workers == allowed
    in_time(pool.shutdown)


def test_no_more_threads_compute_than_there_are_cores() -> None:
    """Arrow's allocator keeps memory for every thread that has decoded data."""
    with Parallel(16, cores=2) as threads:
        assert sum(threads.map(lambda n: 1 - n, [0] * 200)) == 200  # all sixteen threads have started

        def computed(_: int) -> str:
            time.sleep(0.001)
            return threading.current_thread().name

        assert len({*threads.compute_ahead(computed, range(200))}) <= 2


def _fail(_: int) -> None:
    raise KeyError


@pytest.mark.parametrize(
    "call",
    [
        lambda threads: threads.map(_fail, [1, 2]),
        lambda threads: threads.map(_fail, [1]),
        lambda threads: threads.begin(lambda: _fail(1))(),
        lambda threads: [*threads.fetch_ahead(_fail, [1, 2], lambda _: 1)],
        lambda threads: [*threads.compute_ahead(_fail, [1, 2])],
        lambda threads: [*threads.compute_ahead(abs, map(_fail, [1, 2]))],
    ],
)
def test_an_error_keeps_nothing_of_its_callers_alive(call: Callable[[Parallel], object]) -> None:
    with without_cycle_search(), Parallel(2, cores=2) as threads:
        body = held_by_caller(lambda: call(threads), KeyError)
        threads.map(abs, range(8))  # so that each thread has dropped its last task
        assert body() is None
