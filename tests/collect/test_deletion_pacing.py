"""The pace: as fast as the store accepts deletions, never faster than allowed, however the store signals its limit."""

from __future__ import annotations

import bisect
import itertools
import random
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from l0gc.collect.deletion import GRANT_S, Deletable, Deleter, Pacer
from l0gc.errors import ThrottledError
from l0gc.runtime import Runtime
from l0gc.storage.objectstore import PAGE_SIZE, DeleteFailure
from tests.support.memory_store import FakeClock
from tests.support.virtual_time import VirtualClock

LATENCY_S = 0.02


class Limited:
    """A store that accepts `limit` objects a second, and bursts of up to `burst_s` seconds' worth.

    Args:
        by_key: whether it accepts a part of a request, and answers 200 with a SlowDown for each other key.
    """

    def __init__(
        self, clock: VirtualClock, limit: float, burst_s: float, *, by_key: bool, latency_s: float = LATENCY_S
    ) -> None:
        self._clock, self._limit, self._by_key, self._latency_s = clock, limit, by_key, latency_s
        self._most = self._tokens = limit * burst_s
        self._at = 0.0
        self.taken: list[tuple[float, int]] = []
        self.sent: list[tuple[float, int]] = []

    def delete_once(self, keys: Sequence[str]) -> list[DeleteFailure]:
        self._clock.sleep(self._latency_s / 2)
        now = self._clock.now
        self._tokens, self._at = min(self._most, self._tokens + (now - self._at) * self._limit), now
        self.sent.append((now, len(keys)))
        if not self._by_key and self._tokens < len(keys):
            self._clock.sleep(self._latency_s / 2)
            raise ThrottledError("503 SlowDown")
        n = min(len(keys), int(self._tokens))
        self._tokens -= n
        self.taken.append((now, n))
        self._clock.sleep(self._latency_s / 2)
        return [DeleteFailure(k, "SlowDown", "slow down") for k in keys[n:]]

    def per_second(self, first: float, end: float) -> float:
        return sum(n for t, n in self.taken if first <= t < end) / (end - first)


def sweep_against(
    limit: float, burst_s: float, *, by_key: bool, workers: int, seconds: float, max_rate: float | None = None
) -> tuple[Limited, Pacer, int]:
    """Run workers that always have something to delete; return the server, the pacer and the number of failed objects."""
    server = Limited(VirtualClock(), limit, burst_s, by_key=by_key)
    pacer, failed = sweep_until(server, workers, lambda clock: clock.sleep(seconds), max_rate)
    return server, pacer, failed


def sweep_until(
    server: Limited, workers: int, over: Callable[[VirtualClock], None], max_rate: float | None = None
) -> tuple[Pacer, int]:
    """Let workers delete until `over` returns; return the pacer and the number of failed objects."""
    clock, stop = server._clock, threading.Event()
    runtime = Runtime(clock, random.Random(1))
    pacer = Pacer(runtime, max_rate, stop)
    deleter = Deleter(cast(Any, server), runtime, pacer, stop)
    page = [Deletable(f"k{n}", 1, 1) for n in range(PAGE_SIZE)]
    failed = [0]

    def work() -> None:
        while not stop.is_set():
            failed[0] += len(deleter.delete(page).failures)

    def end() -> None:
        over(clock)
        stop.set()

    clock.run(*[work] * workers, end)
    return pacer, failed[0]


SETTLES = [
    (limit, workers, burst_s, by_key)
    for limit, workers in ((50, 8), (400, 1), (400, 8), (3500, 1), (3500, 8), (20_000, 8))
    for burst_s in (1, 5)
    for by_key in (False, True)
]


def quick(case: tuple[float, ...], *, if_whole: Collection[tuple[float, ...]]) -> Any:
    """Return the case, as a thorough one if the store refuses whole requests and `if_whole` does not contain it."""
    return case if case[-1] or case in if_whole else pytest.param(*case, marks=pytest.mark.thorough)


@pytest.mark.parametrize(
    ("limit", "workers", "burst_s", "by_key"), [quick(c, if_whole=[(3500, 1, 1, False)]) for c in SETTLES]
)
def test_the_pace_settles_within_a_tenth_of_the_stores_limit(
    limit: float, workers: int, burst_s: float, by_key: bool
) -> None:
    server, pacer, failed = sweep_against(limit, burst_s, by_key=by_key, workers=workers, seconds=60)
    assert failed == 0
    assert 0.9 <= server.per_second(20, 60) / limit <= 1.1
    assert pacer.throttled < 150


@pytest.mark.parametrize(
    ("limit", "burst_s", "by_key"),
    [
        quick((limit, burst_s, by_key), if_whole=[(20_000, 0.1, False)])
        for limit, burst_s in ((400, 0.2), (3500, 0.2), (20_000, 0.1))
        for by_key in (False, True)
    ],
)
def test_a_store_that_takes_little_at_once_gets_smaller_batches(limit: float, burst_s: float, by_key: bool) -> None:
    server, _, failed = sweep_against(limit, burst_s, by_key=by_key, workers=8, seconds=60)
    assert failed == 0
    assert server.per_second(20, 60) / limit >= 0.4


def test_a_store_that_was_away_gets_its_pace_back() -> None:
    """A store that answers only 503 for 15 seconds gets over half of its pace back within a minute."""
    server = Limited(VirtualClock(), 1e9, 1, by_key=False)

    def away(clock: VirtualClock) -> None:
        clock.sleep(5)
        tokens, server._most, server._tokens = server._most, 0, 0
        clock.sleep(15)
        server._most = server._tokens = tokens
        clock.sleep(60)

    _, failed = sweep_until(server, 4, away)
    before = server.per_second(0, 5)
    assert failed == 0
    assert server.per_second(10, 20) == 0
    assert server.per_second(65, 80) > 0.5 * before


@given(
    st.floats(1, 5000),
    st.integers(1, 8),
    st.sampled_from([50, 1000, 1e9]),
    st.booleans(),
)
@settings(max_examples=12)
def test_the_rate_that_was_requested_is_never_exceeded(
    max_rate: float, workers: int, limit: float, by_key: bool
) -> None:
    server, _, failed = sweep_against(limit, 1, by_key=by_key, workers=workers, seconds=20, max_rate=max_rate)
    assert failed == 0
    sent = 0
    for at, n in server.sent:
        sent += n
        assert sent <= max_rate * at + 1
    times = [at for at, _ in server.sent]
    for i, first in enumerate(times):  # no second exceeds the rate by more than one batch
        in_one_second = sum(n for _, n in server.sent[i : bisect.bisect_left(times, first + 1)])
        assert in_one_second <= max_rate * 1.1 + 2 * min(PAGE_SIZE, max(1, max_rate))
    if limit > max_rate * 2:
        assert server.per_second(5, 20) > 0.9 * max_rate - max_rate / 10


def a_pacer() -> tuple[Pacer, FakeClock]:
    clock = FakeClock()
    return Pacer(Runtime(clock)), clock


def test_without_an_objection_there_is_no_rate() -> None:
    pacer, clock = a_pacer()
    began = clock.ms
    for _ in range(100):
        assert pacer.wait(PAGE_SIZE) == PAGE_SIZE
        pacer.answered(clock.monotonic(), PAGE_SIZE, slower=False)
    assert clock.ms == began
    assert (pacer.rate(), pacer.throttled, pacer.backpressure_s) == (None, 0, 0)


def test_idle_time_earns_no_burst() -> None:
    clock = FakeClock()
    pacer = Pacer(Runtime(clock), 100)
    clock.ms += 60_000
    began, left = clock.monotonic(), 100
    while left:
        left -= pacer.wait(left)
    assert clock.monotonic() - began >= 1 - 2 * GRANT_S


def a_slowed_pacer() -> tuple[Pacer, FakeClock]:
    """Return a pacer whose store accepted 1,000 objects in a second and then refused more."""
    pacer, clock = a_pacer()
    sent_at = clock.monotonic()
    clock.ms += 1000
    pacer.answered(sent_at, 1000, slower=False)
    assert not pacer.answered(sent_at, 0, slower=True)
    assert pacer.rate() == 900
    return pacer, clock


def test_requests_that_were_under_way_do_not_lower_the_rate_again() -> None:
    pacer, clock = a_slowed_pacer()
    pacer.answered(clock.monotonic() - 1, 100, slower=False)
    lowered, fell_at = pacer.rate(), clock.monotonic()
    for sent_at in (fell_at - 0.1, fell_at):
        assert not pacer.answered(sent_at, 0, slower=True)
    assert pacer.rate() == lowered
    assert pacer.throttled == 3


def test_a_refused_burst_lowers_the_pace_by_at_most_half() -> None:
    pacer, clock = a_slowed_pacer()
    clock.ms += 10_000
    pacer.answered(clock.monotonic(), 1, slower=False)
    assert not pacer.answered(clock.monotonic(), 0, slower=True)
    assert pacer.rate() == pytest.approx(0.9 * 900 / 2, rel=0.01)


def test_the_rate_is_back_after_five_seconds_and_grows_ever_faster() -> None:
    pacer, clock = a_slowed_pacer()
    rates = list[float]()
    for _ in range(4):
        for _ in range(50):
            clock.ms += 100
            pacer.answered(clock.monotonic(), int((pacer.rate() or 0) / 10), slower=False)
        rates.append(pacer.rate() or 0)
    assert rates[0] == pytest.approx(1000, rel=0.02)
    growth = [later / earlier for earlier, later in itertools.pairwise(rates)]
    assert growth == sorted(growth)
    assert growth[0] > 1.1


def test_nothing_is_lowered_while_nothing_is_taken_but_requests_get_smaller() -> None:
    pacer, clock = a_pacer()
    for _ in range(10):
        clock.ms += 1000
        assert pacer.answered(clock.monotonic(), 0, slower=True)
    assert pacer.rate() is None
    pacer, clock = a_slowed_pacer()
    for _ in range(10):
        clock.ms += 1000
        assert pacer.answered(clock.monotonic(), 0, slower=True)
    assert pacer.rate() == 900


def test_a_request_gets_its_size_when_its_turn_comes() -> None:
    """Otherwise a request with the size of an earlier, faster pace would delay all requests behind it."""
    pacer, clock = a_slowed_pacer()
    began = clock.monotonic()
    assert pacer.wait(PAGE_SIZE) == 900 * GRANT_S
    assert clock.monotonic() - began == pytest.approx(GRANT_S, abs=0.01)
    assert pacer.backpressure_s == pytest.approx(GRANT_S, abs=0.01)


@pytest.mark.parametrize("waiting", ["for the rate", "in a pause"])
def test_a_stop_ends_every_wait(waiting: str) -> None:
    stop = threading.Event()
    clock = FakeClock()
    pacer = Pacer(Runtime(clock), 0.1, stop)
    began, sleep = clock.ms, clock.sleep

    def watched(seconds: float) -> None:
        sleep(seconds)
        if clock.ms - began >= 2000:
            stop.set()

    clock.sleep = watched  # type: ignore[method-assign]
    if waiting == "for the rate":
        assert not pacer.wait(1000)
    else:
        pacer.pause(1000)
    assert clock.ms - began < 2500
    assert not pacer.wait(1)
