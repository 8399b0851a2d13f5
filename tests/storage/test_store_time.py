"""The store's clock: a date that jumps counts only if another reply confirms it, and other dates cost no request."""

from __future__ import annotations

import pytest

from l0gc.errors import SafetyError
from l0gc.storage.store_time import JUMP_MS, StoreTime
from tests.support.memory_store import MemoryStore
from tests.support.wrong_dates import DAY_MS, MisdatedStore


def known(store: MemoryStore) -> StoreTime:
    """Return the time as a process has it after a replay."""
    time = StoreTime(store)
    time.saw(store.clock.ms, store.clock.ms)
    store.requests.clear()
    return time


@pytest.mark.parametrize("by_ms", [0, 1, JUMP_MS, -1, -JUMP_MS])
def test_a_date_that_follows_the_last_one_costs_no_request(by_ms: int) -> None:
    store = MemoryStore()
    time = known(store)
    assert time.settle(store.clock.ms + by_ms) == store.clock.ms + by_ms
    assert not store.requests


@pytest.mark.parametrize("by_ms", [JUMP_MS + 1, 30 * DAY_MS, -JUMP_MS - 1])
def test_a_date_that_jumps_is_refused_unless_another_reply_confirms_it(by_ms: int) -> None:
    store = MemoryStore()
    time = known(store)
    with pytest.raises(
        SafetyError, match=r"one reply is dated 20\d\d-.*Z, the next 20\d\d-.*Z; nothing was decided"
    ) as e:
        time.settle(store.clock.ms + by_ms)
    assert e.value.exit_code == 4
    store.clock.ms += by_ms  # all servers agree from here on
    assert time.settle(store.clock.ms) == store.clock.ms
    assert store.requests["head"] == 2
    assert time.settle(store.clock.ms) == store.clock.ms
    assert store.requests["head"] == 2


def test_a_second_reply_confirms_a_processs_first_date() -> None:
    store = MemoryStore()
    time = StoreTime(store)
    time.saw(store.clock.ms, store.clock.ms + 30 * DAY_MS, store.clock.ms)
    assert time.settle(store.clock.ms) == store.clock.ms
    assert store.requests["head"] == 1
    time = StoreTime(store)
    time.saw(store.clock.ms)
    time.settle(store.clock.ms)
    assert store.requests["head"] == 2


def test_two_servers_that_disagree_end_what_asks_for_the_time() -> None:
    store = MisdatedStore(30 * DAY_MS)
    time = known(store)
    store.wrong = ["now_ms"]
    with pytest.raises(SafetyError, match="clock cannot be relied on"):
        time.now_ms()
    assert time.now_ms() == store.clock.ms
