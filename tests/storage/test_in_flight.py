"""As many requests in flight as the store gains from, within seconds, whatever it takes and however long it needs."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from statistics import median
from typing import Any, cast

import pytest

from l0gc.collect.deleter import Deleter
from l0gc.collect.pacing import Pacer
from l0gc.collect.scan import Deletable
from l0gc.runtime import Runtime
from l0gc.storage.objectstore import PAGE_SIZE
from l0gc.storage.parallel import FIRST_IN_FLIGHT, Answered, InFlight, InlineExecutor
from tests.collect.test_pacing import Limited
from tests.support.virtual_time import VirtualClock, VirtualThreads

IN_HAND = FIRST_IN_FLIGHT + 4
PAGE = [Deletable(f"k{n}", 1, 1) for n in range(PAGE_SIZE)]


def requests_for(clock: VirtualClock, request: Callable[[], Answered], seconds: float) -> InFlight:
    """Always so many requests in hand, as a remover's segments have."""
    in_flight = InFlight(clock, VirtualThreads(clock))

    def again() -> Answered:
        answered = request()
        if clock.now < seconds:
            in_flight.submit(again)
        return answered

    def begin() -> None:
        for _ in range(IN_HAND):
            in_flight.submit(again)

    clock.run(begin)
    return in_flight


@pytest.mark.parametrize("latency_s", [0.005, 0.05, 0.3])
@pytest.mark.parametrize("limit", [3_500, 20_000])
def test_within_five_seconds_a_sweep_deletes_nine_tenths_of_what_the_store_takes(
    limit: float, latency_s: float
) -> None:
    clock, stop = VirtualClock(), threading.Event()
    server, runtime = Limited(clock, limit, 1, by_key=False, latency_s=latency_s), Runtime(clock, random.Random(1))
    deleter = Deleter(cast(Any, server), runtime, Pacer(runtime, None, stop), stop)
    failed = []

    def request() -> Answered:
        outcome = deleter.delete(PAGE)
        failed.extend(outcome.failures)
        return Answered(len(outcome.deleted), outcome.held)

    requests_for(clock, request, 30)
    assert not failed
    assert server.per_second(5, 30) >= 0.9 * limit


class Servers:
    """A store of a few servers, each of which answers one request at a time."""

    def __init__(self, clock: VirtualClock, servers: int, latency_s: float) -> None:
        self._clock, self._latency_s = clock, latency_s
        self._free_at = [0.0] * servers
        self._random = random.Random(servers)
        self.answered = self.under_way = 0
        self.at_once: list[int] = []

    def request(self) -> Answered:
        self.under_way += 1
        self.at_once.append(self.under_way)
        n = self._free_at.index(min(self._free_at))
        self._free_at[n] = max(self._free_at[n], self._clock.now) + self._latency_s * self._random.uniform(0.5, 1.5)
        self._clock.sleep(self._free_at[n] - self._clock.now)
        self.under_way -= 1
        self.answered += 1
        return Answered(PAGE_SIZE)


@pytest.mark.parametrize("servers", [2, 3, 4, 6, 9])
def test_a_store_that_would_only_queue_more_gets_no_more_than_it_gains_from(servers: int) -> None:
    clock = VirtualClock()
    store = Servers(clock, servers, 0.1)
    in_flight = requests_for(clock, store.request, 300)
    assert servers * 2 / 3 <= in_flight._kept <= servers * 1.75
    assert servers - 1 <= median(store.at_once) <= servers * 1.5
    assert store.answered >= 0.95 * servers * 10 * 300


def test_nothing_is_learnt_from_requests_that_were_held_up() -> None:
    clock = VirtualClock()

    def request() -> Answered:
        clock.sleep(0.1)
        return Answered(PAGE_SIZE, held=True)

    assert requests_for(clock, request, 30).limit == FIRST_IN_FLIGHT


def test_what_fails_does_not_keep_others_waiting() -> None:
    clock = VirtualClock()
    sent: list[int] = []
    in_flight = InFlight(clock, InlineExecutor())
    in_flight.limit = 1

    def request(number: int) -> Answered:
        sent.append(number)
        if number == 0:
            in_flight.submit(lambda: request(1))
            raise ValueError
        return Answered(1)

    in_flight.submit(lambda: request(0))
    assert sent == [0, 1]
    assert in_flight._under_way == 0
