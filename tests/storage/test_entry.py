"""The content of a log's object: read as it was written or refused by name, and never unpacked beyond its limit."""

from __future__ import annotations

import random
import zlib

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from l0gc.errors import CorruptObjectError, ProtocolError
from l0gc.limits import CHECKPOINT_LIMIT
from l0gc.storage.entry import (
    Checkpoint,
    Entry,
    compressed,
    decode_checkpoint,
    decode_entry,
    encode_checkpoint,
    encode_entry,
    head_length,
    join_state,
)
from tests.support.tries import tries

KEY = "l0gc/x/log/00000000000000000007"
ENTRY = Entry("f00dcafe-1", 1_700_000_000_000, b"payload " * 40)
BODY = encode_entry(KEY, ENTRY)


def sealed(content: bytes, key: str = KEY) -> bytes:
    return content + zlib.crc32(content, zlib.crc32(key.encode())).to_bytes(4, "little")


def decoded(body: bytes) -> Entry | str:
    """Return the entry, or the sentence that refuses it."""
    try:
        return decode_entry(KEY, body)
    except CorruptObjectError as e:
        return str(e)


@given(st.text(max_size=60), st.integers(0, 2**63 - 1), st.binary(max_size=3000))
def test_an_entry_comes_back_byte_for_byte(entry_id: str, time_ms: int, payload: bytes) -> None:
    entry = Entry(entry_id, time_ms, payload)
    assert decode_entry(KEY, encode_entry(KEY, entry)) == entry


@given(st.integers(0, 2**63 - 1), st.binary(max_size=3000))
def test_a_checkpoint_comes_back_byte_for_byte(time_ms: int, state: bytes) -> None:
    checkpoint = Entry("", time_ms, state)
    assert decode_entry(KEY, encode_entry(KEY, checkpoint, CHECKPOINT_LIMIT), CHECKPOINT_LIMIT) == checkpoint


def test_only_repetitive_content_is_compressed() -> None:
    assert len(encode_entry(KEY, Entry("a", 0, b"x" * 100_000))) < 200
    noise = random.Random(0).randbytes(100_000)
    assert len(encode_entry(KEY, Entry("a", 0, noise))) < len(noise) + 40
    assert compressed(noise)[1:] == noise


def test_each_single_changed_bit_is_found() -> None:
    for at in range(len(BODY)):
        for bit in range(8):
            changed = bytearray(BODY)
            changed[at] ^= 1 << bit
            with pytest.raises(CorruptObjectError, match=KEY):
                decode_entry(KEY, bytes(changed))


def test_an_entry_of_another_key_is_refused() -> None:
    with pytest.raises(CorruptObjectError, match="does not match its checksum"):
        decode_entry(KEY[:-1] + "8", BODY)


@given(st.binary(max_size=400))
@tries(200)
def test_any_bytes_are_refused_by_name(body: bytes) -> None:
    found = decoded(body)
    assert isinstance(found, str)
    assert KEY in found


@given(st.binary(max_size=400), st.sampled_from([b"\x00", b"\x01", b"\x02", b"\xff"]))
@tries(200)
def test_content_with_a_valid_checksum_decodes_or_is_refused_by_name(content: bytes, kind: bytes) -> None:
    found = decoded(sealed(kind + content))
    assert isinstance(found, Entry) or KEY in found


@pytest.mark.parametrize(
    "content",
    [
        msgspec.msgpack.encode(["id", -1, b""]),
        msgspec.msgpack.encode(["id", "1", b""]),
        msgspec.msgpack.encode([1, 1, b""]),
        msgspec.msgpack.encode(["id", 1]),
        msgspec.msgpack.encode(["id", 1, "text"]),
        msgspec.msgpack.encode({"id": "id", "time_ms": 1, "payload": b""}),
        msgspec.msgpack.encode(["id", 1, b""]) + b"\x00",
        b"\x93\xa2\xff\xff\x01\xc4\x00",
        b"\x91" * 100_000,
    ],
)
def test_content_of_another_shape_is_refused(content: bytes) -> None:
    with pytest.raises(CorruptObjectError, match=KEY):
        decode_entry(KEY, sealed(b"\x01" + content))


def test_a_longer_entry_of_a_newer_version_is_read() -> None:
    content = msgspec.msgpack.encode(["id", 1, b"payload", {"more": 1}])
    assert decode_entry(KEY, sealed(b"\x01" + content)) == Entry("id", 1, b"payload")


def test_what_would_unpack_to_too_much_is_refused_before_memory_is_taken() -> None:
    large = msgspec.msgpack.encode(["id", 1, bytes(5000)])
    frames = [
        zstandard.ZstdCompressor(write_content_size=True).compress(large),
        zstandard.ZstdCompressor(write_content_size=False).compress(large),
        zstandard.ZstdCompressor().compress(msgspec.msgpack.encode(["id", 1, b""])) * 2,
    ]
    for frame in frames:
        with pytest.raises(CorruptObjectError, match=KEY):
            decode_entry(KEY, sealed(b"\x02" + frame), 1000)
    with pytest.raises(CorruptObjectError, match=KEY):
        decode_entry(KEY, sealed(b"\x01" + large), 1000)
    with pytest.raises(ProtocolError, match=f"{KEY} would hold"):
        encode_entry(KEY, Entry("id", 1, bytes(5000)), 1000)


def test_a_frame_that_lies_about_its_size_takes_no_memory_for_it() -> None:
    """The frame has a few bytes, and claims a content size of 2^60."""
    frame = b"\x28\xb5\x2f\xfd\xe0" + (1 << 60).to_bytes(8, "little") + b"\x01\x00\x00"
    with pytest.raises(CorruptObjectError, match="would unpack to more than"):
        decode_entry(KEY, sealed(b"\x02" + frame), 1000)


# -- checkpoints ----------------------------------------------------------------------------------------------------------

HEAD, REST = b"head" * 100, b"rest" * 300
WHOLE = encode_checkpoint(KEY, "id", 77, join_state(HEAD, REST))


def test_a_checkpoint_is_read_whole_or_up_to_its_second_part() -> None:
    end = head_length(WHOLE)
    assert decode_checkpoint(KEY, WHOLE) == Checkpoint("id", 77, join_state(HEAD, REST), len(WHOLE))
    for cut in range(end, len(WHOLE)):
        assert decode_checkpoint(KEY, WHOLE[:cut]) == Checkpoint("id", 77, join_state(HEAD), len(WHOLE))
    for cut in range(end):
        with pytest.raises(CorruptObjectError):
            decode_checkpoint(KEY, WHOLE[:cut])
    alone = encode_checkpoint(KEY, "id", 77, join_state(HEAD))
    assert decode_checkpoint(KEY, alone) == Checkpoint("id", 77, join_state(HEAD), len(alone))


def test_each_changed_bit_of_a_checkpoint_is_found() -> None:
    for at in range(len(WHOLE)):
        for bit in range(8):
            changed = bytearray(WHOLE)
            changed[at] ^= 1 << bit
            with pytest.raises(CorruptObjectError, match=KEY):
                decode_checkpoint(KEY, bytes(changed))


def test_a_checkpoints_parts_cannot_be_exchanged() -> None:
    end = head_length(WHOLE)
    head, rest = WHOLE[20:end], WHOLE[end:]
    for parts in ((rest, head), (head, head), (rest, rest)):
        with pytest.raises(CorruptObjectError):
            decode_checkpoint(KEY, sealed(b"".join(len(p).to_bytes(8, "little") for p in parts)) + b"".join(parts))
    with pytest.raises(CorruptObjectError):
        decode_checkpoint(f"{KEY}0", WHOLE)
    with pytest.raises(CorruptObjectError):
        decode_checkpoint(KEY, WHOLE + b"x")
