"""Log entries, checkpoints and boundaries of any bytes: what was changed is refused by name, nothing else is believed."""

from __future__ import annotations

import random

import pytest
from hypothesis import given

from l0gc.errors import CorruptObjectError
from l0gc.runtime import Runtime
from l0gc.storage.log import SharedLog
from tests.fuzz.mutations import fuzzing, hostile, refusal
from tests.support.memory_store import MemoryStore

ENTRIES = 5
PAYLOADS = [b'{"type":"advance","epoch":%d}' % e for e in range(2, 2 + ENTRIES)]
STATES = [b'{"revision":1,"min_epoch_lower_bound":%d}' % e for e in range(ENTRIES)]


def a_log(store: MemoryStore) -> SharedLog:
    return SharedLog(store, "a/log/of/", Runtime(store.clock, random.Random(0)))


def a_store() -> MemoryStore:
    """A log with a checkpoint after its second entry, truncated up to that."""
    store = MemoryStore()
    log = a_log(store)
    for i, payload in enumerate(PAYLOADS):
        log.append(i, payload, time_ms=1000 + i, as_of_ms=store.clock.ms)
        if i in {1, 2}:
            log.write_checkpoint(i, STATES[i])
        store.clock.sleep(1 if i > 1 else 1000)
    store.clock.sleep(15 * 60 - 10)
    log.truncate()
    assert log.boundary_key in store.objects
    return store


def body_of(key: str) -> bytes:
    return a_store().objects[key].body


LOG = a_log(MemoryStore())


def replayed(key: str, body: bytes) -> tuple[object, ...]:
    """What a replay believes when `key` holds `body`."""
    store = a_store()
    store.put(key, body)
    r = a_log(store).replay()
    return r.checkpoint, [(e.offset, e.time_ms, e.payload) for e in r.entries]


def unchanged_or_refused(key: str, body: bytes) -> None:
    refused = refusal(lambda: replayed(key, body))
    assert key in refused if refused else replayed(key, body) == replayed(key, body_of(key))


@fuzzing(300)
@given(hostile(body_of(LOG.entry_key(3)), body_of(LOG.entry_key(4)), is_json=True))
def test_a_log_entry_is_as_it_was_or_refused(body: bytes) -> None:
    unchanged_or_refused(LOG.entry_key(3), body)


@fuzzing(200)
@given(hostile(body_of(LOG.entry_key(4)), body_of(LOG.entry_key(3)), is_json=True))
def test_an_entry_that_is_read_behind_the_others_is_as_it_was_or_refused(body: bytes) -> None:
    store = a_store()
    store.put(LOG.entry_key(4), body)
    refused = refusal(lambda: a_log(store).tail(3, store.clock.ms))
    if refused:
        assert LOG.entry_key(4) in refused
        return
    entries, _ = a_log(store).tail(3, store.clock.ms)
    assert [(e.offset, e.time_ms, e.payload) for e in entries] == [(4, 1004, PAYLOADS[4])]


@fuzzing(300)
@given(hostile(body_of(LOG.checkpoint_key(2)), body_of(LOG.checkpoint_key(1)), is_json=False))
def test_a_checkpoint_is_as_it_was_or_refused(body: bytes) -> None:
    unchanged_or_refused(LOG.checkpoint_key(2), body)


@fuzzing(200)
@given(hostile(body_of(LOG.boundary_key), b'{"boundary":3}\n{"crc32":0}\n', is_json=False))
def test_a_boundary_is_as_it_was_or_stops_the_truncation(body: bytes) -> None:
    store = a_store()
    store.put(LOG.boundary_key, body)
    before = set(store.objects)
    log = a_log(store)
    log.write_checkpoint(4, STATES[4])
    store.clock.sleep(15 * 60)
    refused = refusal(log.truncate)
    if refused:
        assert LOG.boundary_key in refused
        assert before <= set(store.objects)
    else:
        assert body == body_of(LOG.boundary_key)


def test_a_key_that_is_no_offset_is_left_alone() -> None:
    store = a_store()
    for name in ("log/x.json", "log/00000000000000000001.json~", "log/-0000000000000000001.json", "checkpoint/9.json"):
        store.put(f"{LOG.folder}{name}", b"\xff")
    assert [e.offset for e in a_log(store).replay().entries] == [3, 4]


def test_an_offset_far_ahead_is_a_gap() -> None:
    store = a_store()
    store.put(LOG.entry_key(10**20 - 1), b"\xff")
    with pytest.raises(CorruptObjectError, match="is missing, though a later entry exists"):
        a_log(store).replay()
