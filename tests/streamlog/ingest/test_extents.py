"""Extents and blocks: a reader gets exactly what was packed, or an error."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from l0gc.errors import CorruptObjectError, ObjectNotFoundError, StoreError
from l0gc.streamlog.ingest import extents
from l0gc.streamlog.ingest.extents import PackedObject, decode_block, fetch, select
from l0gc.streamlog.journal.admission import check_object
from l0gc.streamlog.journal.rows import BLOCK, EXTENT, NUMBER, unpack
from l0gc.streamlog.journal.topic import Block, Extent, TopicState
from tests.support.blocks import Chunk, pack
from tests.support.memory_store import MemoryStore, failing

KEY = "level_zero/data/000/000000000000000007/0"
NOW_MS = 1_700_000_000_123
CHUNKS = st.lists(
    st.lists(st.tuples(st.binary(max_size=20), st.none() | st.binary(max_size=5)), min_size=1, max_size=20),
    min_size=1,
    max_size=12,
)


def chunk(partition: int, values: Sequence[bytes], keys: Sequence[bytes | None] | None = None) -> Chunk:
    return Chunk(partition, values, keys if keys is not None else [None] * len(values))


def extents_of(packed: PackedObject, part: int = 0) -> list[Extent]:
    """Return the extents that a journal keeps of the object."""
    o = msgspec.structs.replace(packed.parts[part].extents, key=KEY, epoch=7)
    topic = TopicState(3, "id")
    check_object(o)
    topic.land(o, 0, NOW_MS)
    return [e for partition in unpack(o.partitions, NUMBER) for e in topic.extents(int(partition))]


def read(packed: PackedObject, extent: Extent) -> pa.RecordBatch:
    block = extent.block
    body = packed.body[block.start : block.start + block.length]
    rows = np.array([(extent.partition, 0, extent.row, extent.records, 0)], EXTENT)
    return select(decode_block(body, KEY, block, extent.row + extent.records), rows)


def one_block(*values: bytes) -> tuple[bytes, Block]:
    packed = pack([[chunk(0, values)]])
    return packed.body, extents_of(packed)[0].block


# -- packing and reading back ------------------------------------------------------------------------------------------


@given(st.lists(CHUNKS, min_size=1, max_size=3), st.sampled_from([1, 60, 200, 1 << 18]))
def test_every_record_comes_out_as_it_went_in(
    groups: list[list[list[tuple[bytes, bytes | None]]]], block_bytes: int
) -> None:
    made: list[list[Chunk]] = []
    partition = 0
    for group in groups:
        made.append([])
        for part in group:
            partition += 3
            made[-1].append(chunk(partition, [v for v, _ in part], [k for _, k in part]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extents, "BLOCK_BYTES", block_bytes)
        packed = pack(made)
    at = 0
    for number, chunks in enumerate(made):
        mine = packed.parts[number]
        p = mine.extents
        assert p.start == at
        assert mine.records == sum(len(c.values) for c in chunks)
        assert mine.bytes == sum(len(v) for c in chunks for v in c.values)
        for c, extent in zip(chunks, extents_of(packed, number), strict=True):
            assert (extent.partition, extent.records) == (c.partition, len(c.values))
            batch = read(packed, extent)
            assert batch.column("value").to_pylist() == list(c.values)
            assert batch.column("key").to_pylist() == list(c.keys)
            assert set(batch.column("timestamp").cast(pa.int64()).to_pylist()) == {NOW_MS}
        at += int(unpack(p.blocks, BLOCK)["length"].sum())
    assert at == len(packed.body)


def test_small_extents_share_a_block_and_large_ones_do_not() -> None:
    small = [chunk(p, [b"x" * 1000] * 2) for p in range(500)]
    large = chunk(500, [b"y" * 1000] * 500)
    more = [chunk(501 + p, [b"z" * 1000]) for p in range(10)]
    blocks = unpack(pack([[*small, large, *more]]).parts[0].extents.blocks, BLOCK)
    assert blocks["extents"].sum() == 511
    assert blocks["extents"].tolist()[-2:] == [1, 10]
    assert len(blocks) == 4 + 2
    per_block = extents.BLOCK_BYTES // (2 * 1016)
    assert blocks["extents"].tolist()[:3] == [per_block] * 3


def test_an_object_does_not_grow_by_its_extents() -> None:
    values = [b'{"n":%06d,"text":"the same"}' % n for n in range(4000)]
    random.Random(0).shuffle(values)  # shuffled, since a sorted column compresses better than its slices
    whole = pack([[chunk(0, values)]])
    spread = pack([[chunk(p, values[p::2000]) for p in range(2000)]])
    assert len(spread.body) < 1.5 * len(whole.body)
    p = spread.parts[0].extents
    assert len(p.partitions) + len(p.records) == 8 * 2000
    assert len(p.blocks) <= 2 * BLOCK.itemsize


# -- bytes that contradict the log -------------------------------------------------------------------------------------


def test_a_changed_a_missing_and_a_foreign_byte_are_reported_by_name() -> None:
    body, block = one_block(b"one", b"two")
    flipped = bytes([*body[:-9], body[-9] ^ 1, *body[-8:]])
    for wrong in (flipped, body[:-1], body + b"x", b""):
        with pytest.raises(CorruptObjectError, match=f"{KEY} at bytes 0 to {len(body)} does not match the checksum"):
            decode_block(wrong, KEY, block)


def claimed(body: bytes) -> Block:
    """Return a block whose checksum and length match these bytes."""
    return Block(0, len(body), crc32c(body), 1 << 20, NOW_MS)


def test_a_checksummed_object_without_blocks_is_named() -> None:
    body, _ = one_block(b"one" * 50, b"two" * 50)
    for wrong in [b"no Arrow at all", *(body[:n] for n in range(1, len(body) - 8, 7))]:
        with pytest.raises(CorruptObjectError, match=f"^{KEY} at bytes "):
            decode_block(wrong, KEY, claimed(wrong))


def test_fewer_records_than_the_log_says_are_corrupt() -> None:
    body, block = one_block(b"one", b"two")
    with pytest.raises(CorruptObjectError, match=f"^{KEY} at bytes .* holds 2 records, but the log records 3"):
        decode_block(body, KEY, block, 3)
    assert decode_block(body, KEY, block, 2).num_rows == 2


@pytest.mark.parametrize(
    ("numbers", "rest"),
    [
        ([0], b""),
        ([1, -1, -1], b""),
        ([1, 1, -1], b"k"),
        ([1, -2, 1], b"v"),
        ([1, -1, 1], b""),
        ([1, -1, 1], b"vv"),
        ([1, 2, 1], b"v"),
        ([2, -1, -1], b""),
        ([-1, -1, 1], b"v"),
        ([2, -1, -1, 2**31 - 1, -(2**31) + 1], b""),
    ],
)
def test_a_block_without_records_or_without_a_value_is_corrupt(numbers: list[int], rest: bytes) -> None:
    body = b"\x01" + np.array(numbers, NUMBER).tobytes() + rest
    with pytest.raises(CorruptObjectError, match="does not hold valid records"):
        decode_block(body, KEY, claimed(body))


def test_an_overlong_block_is_refused_before_unpacking() -> None:
    body, block = one_block(bytes(8 << 20))
    assert len(body) < 10_000
    assert decode_block(body, KEY, block).column("value").to_pylist() == [bytes(8 << 20)]
    before = pa.total_allocated_bytes()
    with pytest.raises(
        CorruptObjectError, match=f"^{KEY} at bytes .* would unpack to .* where the log has {block.bytes - 1:,}"
    ):
        decode_block(body, KEY, block._replace(bytes=block.bytes - 1))
    assert pa.total_allocated_bytes() == before


def test_a_block_whose_sizes_are_not_those_of_its_records_is_corrupt() -> None:
    body, _ = one_block(b"one", b"two")
    for at in range(len(body)):
        wrong = bytes([*body[:at], body[at] ^ 0x80, *body[at + 1 :]])
        with suppress(CorruptObjectError):
            batch = decode_block(wrong, KEY, claimed(wrong))
            assert len(batch.column("value").to_pylist()) == len(batch.column("key").to_pylist())


# -- fetching ----------------------------------------------------------------------------------------------------------


def test_a_short_object_is_corrupt_and_a_failing_store_is_not() -> None:
    store = MemoryStore()
    store.put(KEY, bytes(100))
    store.fault = failing(StoreError("no such range"), "get")
    with pytest.raises(CorruptObjectError, match=f"^{KEY} has 100 bytes, but the log records 120"):
        fetch(store, KEY, [(0, 10), (50, 70)])
    with pytest.raises(StoreError, match="no such range"):
        fetch(store, KEY, [(0, 10), (50, 50)])
    store.fault = lambda call: None
    assert fetch(store, KEY, [(0, 10), (50, 50)]) == [bytes(10), bytes(50)]
    with pytest.raises(ObjectNotFoundError):
        fetch(store, "another", [(0, 1)])


def test_partitions_are_those_of_the_records() -> None:
    packed = pack([[chunk(2, [b"a"]), chunk(7, [b"b", b"c"])], [chunk(9, [b"d"])]])
    assert [unpack(p.extents.partitions, NUMBER).tolist() for p in packed.parts.values()] == [[2, 7], [9]]
    assert [unpack(p.extents.records, NUMBER).tolist() for p in packed.parts.values()] == [[1, 2], [1]]
    assert all(np.frombuffer(p.extents.blocks, BLOCK)["crc32c"].all() for p in packed.parts.values())
