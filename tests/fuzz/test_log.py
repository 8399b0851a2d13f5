"""Log entries, checkpoints and boundaries of any bytes: changed bytes are refused by name, and never believed."""

from __future__ import annotations

import random
import resource
import zlib

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from l0gc.errors import CorruptObjectError
from l0gc.limits import CHECKPOINT_LIMIT, ENTRY_LIMIT
from l0gc.runtime import Runtime
from l0gc.storage.entry import Entry, decode_entry, join_state, seal
from l0gc.storage.log import SharedLog
from tests.fuzz.mutations import JSON, MSGPACK, fuzzing, hostile, refusal
from tests.support.memory_store import MemoryStore

ENTRIES = 5
PAYLOADS = [msgspec.msgpack.encode(["a", e]) for e in range(2, 2 + ENTRIES)]
STATES = [join_state(msgspec.msgpack.encode([1, e, "x" * 200]), b"rest") for e in range(ENTRIES)]
PLAIN, ZSTD = b"\x01", b"\x02"


def a_log(store: MemoryStore) -> SharedLog:
    return SharedLog(store, "a/log/of/", Runtime(store.clock, random.Random(0)))


def a_store() -> MemoryStore:
    """Return a log with a checkpoint after its second entry, truncated up to that."""
    store = MemoryStore()
    log = a_log(store)
    for i, payload in enumerate(PAYLOADS):
        log.append(i, payload, time_ms=1000 + i, as_of_ms=store.clock.ms)
        if i in {1, 2}:
            log.write_checkpoint(i, STATES[i], 1000 + i)
        store.clock.sleep(1 if i > 1 else 1000)
    store.clock.sleep(15 * 60 - 10)
    log.truncate()
    assert log.boundary.key in store.objects
    return store


def body_of(key: str) -> bytes:
    return a_store().objects[key].body


LOG = a_log(MemoryStore())


def replayed(key: str, body: bytes) -> tuple[object, ...]:
    """Return what a replay accepts when `key` holds `body`."""
    store = a_store()
    store.put(key, body)
    r = a_log(store).replay()
    return r.checkpoint, [(e.offset, e.time_ms, e.payload) for e in r.entries]


def unchanged_or_refused(key: str, body: bytes) -> None:
    refused = refusal(lambda: replayed(key, body))
    assert key in refused if refused else replayed(key, body) == replayed(key, body_of(key))


@fuzzing(300)
@given(hostile(body_of(LOG.entry_key(3)), body_of(LOG.entry_key(4))))
def test_a_log_entry_is_as_it_was_or_refused(body: bytes) -> None:
    unchanged_or_refused(LOG.entry_key(3), body)


@fuzzing(200)
@given(hostile(body_of(LOG.entry_key(4)), body_of(LOG.entry_key(3))))
def test_a_reread_entry_is_unchanged_or_refused(body: bytes) -> None:
    store = a_store()
    store.put(LOG.entry_key(4), body)
    refused = refusal(lambda: a_log(store).tail(3, store.clock.ms))
    if refused:
        assert LOG.entry_key(4) in refused
        return
    entries, _ = a_log(store).tail(3, store.clock.ms)
    assert [(e.offset, e.time_ms, e.payload) for e in entries] == [(4, 1004, PAYLOADS[4])]


@fuzzing(300)
@given(hostile(body_of(LOG.checkpoint_key(2)), body_of(LOG.checkpoint_key(1))))
def test_a_checkpoint_is_as_it_was_or_refused(body: bytes) -> None:
    unchanged_or_refused(LOG.checkpoint_key(2), body)


@fuzzing(200)
@given(hostile(body_of(LOG.boundary.key), b'{"boundary":3}\n{"crc32":0}\n'))
def test_a_boundary_is_as_it_was_or_stops_the_truncation(body: bytes) -> None:
    store = a_store()
    store.put(LOG.boundary.key, body)
    before = set(store.objects)
    log = a_log(store)
    log.write_checkpoint(4, STATES[4], 1004)
    store.clock.sleep(15 * 60)
    refused = refusal(log.truncate)
    if refused:
        assert LOG.boundary.key in refused
        assert before <= set(store.objects)
    else:
        assert body == body_of(LOG.boundary.key)


def test_a_key_that_is_no_offset_is_left_alone() -> None:
    store = a_store()
    for name in (
        "log/x",
        "log/00000000000000000001~",
        "log/00000000000000000001.json",
        "log/-0000000000000000001",
        "checkpoint/9",
    ):
        store.put(f"{LOG.folder}{name}", b"\xff")
    assert [e.offset for e in a_log(store).replay().entries] == [3, 4]


def test_an_offset_far_ahead_is_a_gap() -> None:
    store = a_store()
    store.put(LOG.entry_key(10**20 - 1), b"\xff")
    with pytest.raises(CorruptObjectError, match="is missing, though a later entry exists"):
        a_log(store).replay()


# -- valid seals --------------------------------------------------------------------------------------------------------


def sealed(key: str, kind: bytes, content: bytes) -> bytes:
    """Return the content as the log stores it: packed in this way, with a checksum that fits."""
    packed = kind + content
    return packed + zlib.crc32(packed, zlib.crc32(key.encode())).to_bytes(4, "little")


@fuzzing(150)
@given(hostile(b'{"boundary":3}', b"{}", JSON))
def test_a_sealed_body_is_a_boundary_or_refused(content: bytes) -> None:
    store = a_store()
    store.put(LOG.boundary.key, seal(LOG.boundary.key, content))
    refused = refusal(a_log(store).boundary.read)
    assert LOG.boundary.key in refused if refused else a_log(store).boundary.read()[0] >= 0


ENTRY = msgspec.msgpack.encode(Entry("id", 1, PAYLOADS[0]))
FRAME = zstandard.ZstdCompressor(write_content_size=True).compress(ENTRY)


@fuzzing(400)
@given(
    st.sampled_from([PLAIN, ZSTD, b"\x00", b"\x03", b""]), hostile(ENTRY, STATES[0], MSGPACK) | hostile(FRAME, ENTRY)
)
def test_a_sealed_body_is_an_entry_or_refused(kind: bytes, content: bytes) -> None:
    refused = refusal(lambda: decode_entry("the/key", sealed("the/key", kind, content)))
    assert not refused or "the/key" in refused
    refused = refusal(lambda: decode_entry("the/key", sealed("the/key", kind, content), CHECKPOINT_LIMIT))
    assert not refused or "the/key" in refused


REAL = 96 << 20


def bomb(declared: int | None) -> bytes:
    """Return a frame that unpacks to this many zeros, and declares `declared` bytes (None: it declares no size)."""
    compressor = zstandard.ZstdCompressor(level=1, write_content_size=declared is not None)
    frame = bytearray(compressor.compress(bytes(REAL)))
    if declared is not None:
        at = frame.index(REAL.to_bytes(4, "little"))
        frame[at : at + 4] = declared.to_bytes(4, "little")
    return bytes(frame)


@pytest.mark.parametrize(
    ("limit", "declared"),
    [
        (ENTRY_LIMIT, None),
        (ENTRY_LIMIT, REAL),
        (ENTRY_LIMIT, 10),
        (CHECKPOINT_LIMIT, None),
        (CHECKPOINT_LIMIT, CHECKPOINT_LIMIT + 1),
        (CHECKPOINT_LIMIT, 10),
    ],
)
def test_a_bomb_takes_no_memory(limit: int, declared: int | None) -> None:
    body = sealed("the/key", ZSTD, bomb(declared))
    assert len(body) < 1 << 20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CorruptObjectError, match="the/key"):
        decode_entry("the/key", body, limit)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < ENTRY_LIMIT >> 10
