"""Many writers on one log: each entry takes few attempts, and no writer is left behind.

The tests run real replicas in virtual time, on a store whose requests take about 22 ms each.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from l0gc.runtime import Runtime
from l0gc.storage.contention import WriterOrder
from l0gc.storage.entry import StoredEntry, join_state, split_state
from l0gc.storage.log import SharedLog
from l0gc.storage.objectstore import PutResult, StoredObject
from l0gc.storage.parallel import Parallel
from l0gc.storage.replica import Replica
from tests.support.memory_store import FakeClock, MemoryStore
from tests.support.tries import sampled
from tests.support.virtual_time import VirtualClock

A = TypeVar("A")
B = TypeVar("B")

REQUEST_S = (0.02, 0.025)


class Count:
    """A state that counts entries."""

    def initial(self) -> list[int]:
        return []

    def check(self, state: list[int], offset: int, payload: bytes) -> None:
        pass

    def apply(self, state: list[int], entry: StoredEntry) -> None:
        state.append(entry.offset)

    def lacks(self, state: list[int], entry: StoredEntry | None = None) -> bool:
        return False

    def encode(self, state: list[int]) -> bytes:
        return join_state(b"%d" % len(state))

    def decode(self, body: bytes, source: str) -> list[int]:
        return list(range(int(split_state(body)[0])))


class FarStore(MemoryStore):
    """A store whose requests take time before they arrive."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(FakeClock())
        self.virtual = clock
        self.random = random.Random(1)
        self.at_once = False
        self.attempts = 0

    def travel(self) -> None:
        if not self.at_once:
            self.virtual.sleep(self.random.uniform(*REQUEST_S))
            self.clock.ms = 1_700_000_000_000 + self.virtual.now_ms()

    def get(self, key: str) -> StoredObject:
        self.travel()
        return super().get(key)

    def put_if_absent(self, key: str, body: bytes) -> PutResult:
        self.travel()
        self.attempts += "/log/" in key
        return super().put_if_absent(key, body)


class Together(Parallel):
    """Runs several reads in the time of one."""

    def __init__(self, store: FarStore) -> None:
        self._store = store

    def map(self, fn: Callable[[A], B], items: Iterable[A]) -> list[B]:
        self._store.travel()
        self._store.at_once = True
        try:
            return [fn(i) for i in items]
        finally:
            self._store.at_once = False


@dataclass
class Race:
    """The results of writers that append as fast as they can for some seconds, each from its own start."""

    seconds: float = 30.0
    landed: Counter[int] = field(default_factory=Counter)
    waits: dict[int, list[float]] = field(default_factory=dict)

    def run(self, begins: list[float], *, pause_s: float = 0.0, most: list[int] | None = None) -> Race:
        clock = VirtualClock()
        self.clock, self.store = clock, FarStore(clock)

        def writer(n: int) -> Callable[[], None]:
            def work() -> None:
                runtime = Runtime(clock, random.Random(n))
                log = SharedLog(self.store, "l0gc/x/", runtime, parallel=Together(self.store))
                replica = Replica(log, Count(), runtime)
                clock.sleep(begins[n])
                while clock.now < self.seconds and (most is None or self.landed[n] < most[n]):
                    began = clock.now
                    assert replica.propose(lambda state, offset: "x") is not None
                    self.landed[n] += 1
                    self.waits.setdefault(n, []).append(clock.now - began)
                    if pause_s:
                        clock.sleep(pause_s)

            return work

        clock.run(*(writer(n) for n in range(len(begins))))
        return self

    @property
    def attempts_each(self) -> float:
        return self.store.attempts / self.landed.total()

    def __str__(self) -> str:
        slowest = max(w for waits in self.waits.values() for w in waits)
        return (
            f"{len(self.waits)} writers: {self.landed.total() / self.seconds:.1f}/s, {self.attempts_each:.2f} attempts and "
            f"{self.store.requests['get'] / self.landed.total():.1f} reads for each, {min(self.landed.values())} to "
            f"{max(self.landed.values())} entries each, longest wait {slowest:.2f} s"
        )


@pytest.mark.parametrize(
    ("writers", "begins"),
    sampled(
        [(4, "at once"), (16, "at once"), (16, "staggered"), (32, "staggered")], [(16, "at once"), (16, "staggered")]
    ),
)
def test_few_attempts_are_made_for_each_entry_and_nobody_is_left_behind(writers: int, begins: str) -> None:
    chance = random.Random(writers)
    race = Race().run([0.0 if begins == "at once" else chance.random() for _ in range(writers)])
    assert race.attempts_each <= 2, str(race)
    assert max(race.landed.values()) <= 3 * min(race.landed.values()), str(race)
    assert race.landed.total() / race.seconds >= 10, str(race)


def test_a_lone_writer_makes_only_appends_and_does_not_wait() -> None:
    race = Race().run([0.0], pause_s=0.2)
    assert race.store.attempts == race.landed.total()
    assert race.store.requests["get"] == 0
    assert max(race.waits[0][1:]) <= 2 * REQUEST_S[1]  # the entry, and sometimes a checkpoint


def test_an_entry_that_lands_ends_the_count_of_conflicts() -> None:
    order = WriterOrder(Runtime(FakeClock(), random.Random(1)), "me")
    order.landed(["other"])
    for _ in range(5):
        order.lost()
    assert order.rank > 0
    order.landed(["me", "other", "other"])  # late, so this writer counts as a newcomer again
    order.lost()
    assert order.rank == 0


def test_a_reader_remembers_no_more_than_1000_writers() -> None:
    order = WriterOrder(Runtime(FakeClock(), random.Random(1)), "me")
    order.landed([f"writer {n}" for n in range(1002)])
    assert order.writers == 1001  # including this one


def test_one_slow_request_does_not_make_a_writer_wait_long() -> None:
    order = WriterOrder(Runtime(FakeClock(), random.Random(1)), "me")
    order.landed(["other", "me"])
    order.measured(3600)
    assert 0 < order.pause_s() < 1


def test_a_late_writer_appends_at_once() -> None:
    order = WriterOrder(Runtime(FakeClock(), random.Random(1)), "me")
    order.landed(["other"])
    for _ in range(5):
        order.lost()
    assert order.rank > 1
    order.landed(["me", "other", "other"])
    assert (order.joined, order.rank) == (False, 0)


def test_a_newcomer_gets_in_where_one_or_two_write_without_a_break() -> None:
    for busy in (1, 2):
        race = Race().run([0.0] * busy + [5.0])
        assert race.waits[busy][0] <= 4, str(race)
        assert max(race.landed.values()) <= 3 * race.landed[busy], str(race)


def test_writers_that_have_ended_hold_nobody_up() -> None:
    """Sixteen writers stop after three seconds, and a new one continues."""
    race = Race(3.0)
    race.run([0.0] * 16)
    clock, store = race.clock, race.store
    began = clock.now
    runtime = Runtime(clock, random.Random(99))
    replica = Replica(SharedLog(store, "l0gc/x/", runtime, parallel=Together(store)), Count(), runtime)
    done: list[float] = []

    def last() -> None:
        replica.catch_up()
        for _ in range(20):
            replica.propose(lambda state, offset: "x")
            done.append(clock.now - began)

    clock.run(last)
    assert done[-1] <= 5


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_finished_writers_do_not_delay_the_others(seed: int) -> None:
    chance = random.Random(seed)
    race = Race().run([chance.random() for _ in range(32)], most=[1 + n % 3 for n in range(32)])
    assert race.landed == Counter({n: 1 + n % 3 for n in range(32)})
    assert race.clock.now <= 10, str(race)  # 63 entries take 3 s if no turn is lost
    assert race.attempts_each <= 4, str(race)


def test_two_that_write_now_and_then_do_not_wait_for_each_other() -> None:
    race = Race(60.0).run([0.0, 0.7], pause_s=1.5)
    assert max(w for waits in race.waits.values() for w in waits[1:]) <= 0.2, str(race)
    assert race.attempts_each <= 1.2, str(race)


def test_a_writer_reads_before_it_appends_where_others_are_about() -> None:
    race = Race(60.0).run([0.0, 0.7], pause_s=1.5)
    assert race.store.attempts <= race.landed.total() + 2
