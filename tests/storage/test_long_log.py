"""A log whose long tail a pin holds: a replay lists only the part that it needs, and paged listings mislead no reader."""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from l0gc.errors import CorruptObjectError
from l0gc.limits import CHECKPOINT_LIMIT
from l0gc.runtime import Runtime
from l0gc.storage.entry import join_state, split_state
from l0gc.storage.log import READ_AT_ONCE, TRUNCATE_MIN_AGE_MS, Folder, SharedLog
from l0gc.storage.objectstore import StoredObject
from tests.support.memory_store import MemoryStore, once

FOLDER = "l0gc/x/"
AS_OF = 5
"""The offset that the pin holds."""
PAGE = 20


class ListsInAnyOrder(MemoryStore):
    by: Callable[[str], Any]

    def order(self, keys: list[str]) -> list[str]:
        return sorted(keys, key=self.by)


def a_log(store: MemoryStore, seed: int = 0) -> SharedLog:
    return SharedLog(store, FOLDER, Runtime(store.clock, random.Random(seed)))


def held_log(store: MemoryStore, count: int) -> SharedLog:
    """Create a log of `count` old entries with a checkpoint for every ten, truncated as far as the pin allows."""
    store.page_size, log = 1 << 30, a_log(store)
    for offset in range(count):
        log.append(offset, b"x", time_ms=store.clock.ms, as_of_ms=store.clock.ms)
        if offset % 10 == 3:
            log.write_checkpoint(offset, join_state(b"state %d" % offset), store.clock.ms)
    store.clock.ms += TRUNCATE_MIN_AGE_MS
    log.truncate(as_of={AS_OF})
    store.page_size = PAGE
    store.requests.clear()
    return log


def replayed(store: MemoryStore) -> tuple[bytes, list[int]]:
    """Return the checkpoint and the entries with which a process starts."""
    found = a_log(store, seed=1).replay()
    assert found.checkpoint is not None
    return split_state(found.checkpoint.payload)[0], [e.offset for e in found.entries]


def test_a_replay_costs_the_same_however_long_a_pin_holds_the_log() -> None:
    costs = []
    for count in (100, 1000):
        store = MemoryStore()
        held_log(store, count)
        assert replayed(store) == (b"state %d" % (count - 7), list(range(count - 6, count)))
        costs.append(dict(store.requests))
    assert costs[0] == costs[1]
    assert costs[0]["list"] + costs[0]["scan"] == 2
    assert len(store.objects) > 900  # the pin does hold the log


def test_checkpoints_between_a_pins_and_the_newest_are_not_kept() -> None:
    store = MemoryStore()
    held_log(store, 1000)
    kept = sorted(int(k[-20:]) for k in store.objects if "/checkpoint/" in k)
    assert kept == [3, 983, 993]


def test_a_pin_that_has_not_taken_effect_keeps_every_checkpoint() -> None:
    """An offset of -1 stands for such a pin, which may have read the log's end before the listing."""
    folder = Folder(dict.fromkeys(range(3, 100), 0), [3, 50, 90, 95], TRUNCATE_MIN_AGE_MS)
    assert folder.spent(2, {AS_OF, 50}) == []
    assert folder.spent(2, {AS_OF}) == [50]
    assert folder.spent(2, {AS_OF, -1}) == []


def test_a_replay_as_of_a_pin_reads_no_further() -> None:
    store = MemoryStore()
    log = held_log(store, 200)
    found = log.replay(AS_OF)
    assert found.checkpoint is not None
    assert (split_state(found.checkpoint.payload)[0], [e.offset for e in found.entries]) == (b"state 3", [4, 5])


def test_a_log_that_is_truncated_between_two_pages_is_read_again() -> None:
    """The second page shows neither the entries nor the checkpoint that covers them."""
    store = MemoryStore()
    log = held_log(store, 200)

    def truncated() -> None:
        log.write_checkpoint(199, join_state(b"state 199"), store.clock.ms)
        log.truncate()

    store.fault = once(truncated, "scan", FOLDER)
    assert replayed(store) == (b"state 199", [])


def by_age(key: str) -> tuple[bool, int]:
    """Sort the oldest checkpoint first, then entries from the newest on."""
    return not key.endswith("checkpoint/00000000000000000003"), "log/" not in key or -int(key[-20:])


@pytest.mark.parametrize("order", [by_age, lambda key: key[::-1], lambda key: zlib.crc32(key.encode())])
def test_a_store_that_lists_in_another_order_is_slower_and_never_wrong(order: Callable[[str], Any]) -> None:
    store = ListsInAnyOrder()
    store.by = order
    held_log(store, 200)
    assert replayed(store) == (b"state 193", list(range(194, 200)))


def test_a_first_page_of_checkpoints_alone_says_too_little() -> None:
    store = MemoryStore()
    held_log(store, 200)
    store.page_size = 3
    assert replayed(store) == (b"state 193", list(range(194, 200)))


def test_a_damaged_length_requests_no_more_than_a_checkpoint_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    store, lengths = MemoryStore(), list[int]()
    log, get_start = a_log(store), store.get_start

    def noted(key: str, length: int) -> StoredObject:
        lengths.append(length)
        return get_start(key, length)

    monkeypatch.setattr(store, "get_start", noted)
    store.put(log.checkpoint_key(3), b"\xff" * (READ_AT_ONCE + 1))
    with pytest.raises(CorruptObjectError):
        log.get_checkpoint(3, whole=False)
    assert max(lengths) == CHECKPOINT_LIMIT


@pytest.mark.parametrize("count", [18, 200])
def test_a_listing_has_the_first_offset_that_it_skipped(count: int) -> None:
    store = MemoryStore()
    held_log(store, count)
    folder = Folder.for_replay(store, FOLDER)
    listed = sorted(folder.entries)
    gap = next((a + 1 for a, b in itertools.pairwise(listed) if b != a + 1), None)
    assert folder.skipped == gap
    assert (gap is None) == (count < PAGE)


@pytest.mark.parametrize("skipped", [None, 50])
def test_what_was_not_listed_is_not_passed_by_a_boundary(skipped: int | None) -> None:
    entries = dict.fromkeys([*range(50), *range(80, 100)], 0)
    folder = Folder(entries, [3, 90], TRUNCATE_MIN_AGE_MS, skipped)
    assert folder.ripe(TRUNCATE_MIN_AGE_MS)[-1] == (49 if skipped else 89)
