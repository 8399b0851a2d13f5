"""Create times and headers in blocks: both survive packing, and records without them are stored as before."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pyarrow as pa
import pytest
import zstandard
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from l0gc import columns
from l0gc.errors import CorruptObjectError, UsageError
from l0gc.streamlog.ingest.extents import SCHEMA, decode_block, select
from l0gc.streamlog.ingest.headers_and_times import (
    MAX_TIME_MS,
    NO_TIME,
    OPTIONAL,
    Headers,
    headers_column,
    headers_list,
    level,
    optional_of,
    times_column,
    times_of,
)
from l0gc.streamlog.journal.rows import BLOCK, EXTENT, NUMBER, unpack
from l0gc.streamlog.journal.topic import Block
from tests.support.blocks import Chunk, pack

KEY = "level_zero/data/000/000000000000000007/0"
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3).map(tuple)
TIMES = st.just(NO_TIME) | st.integers(0, MAX_TIME_MS)
RECORDS = st.lists(st.tuples(st.binary(max_size=9), st.none() | st.binary(max_size=5), TIMES, HEADERS), min_size=1)
Some = list[tuple[bytes, bytes | None, int, Headers]]
SOME: Headers = (("a", b"1"), ("a", None), ("", b""), ("é", b"\xff"))


def chunk(partition: int, records: Some) -> Chunk:
    values, keys, times, headers = zip(*records, strict=True)
    return Chunk(partition, values, keys, times, headers)


def decoded(body: bytes) -> pa.RecordBatch:
    return decode_block(body, KEY, Block(0, len(body), crc32c(body), 1 << 20, 7))


def values_of(batch: pa.RecordBatch) -> Some:
    n = batch.num_rows
    has = batch.schema.names
    times = times_of(batch.column("create_time")).tolist() if "create_time" in has else [NO_TIME] * n
    headers = headers_list(batch.column("headers")) if "headers" in has else [()] * n
    columns_of = (batch.column("value").to_pylist(), batch.column("key").to_pylist(), times, headers)
    return list(zip(*columns_of, strict=True))


@given(RECORDS, RECORDS)
def test_every_create_time_and_header_comes_out_as_it_went_in(first: Some, second: Some) -> None:
    body = pack([[chunk(0, first), chunk(1, second)]]).body
    batch = decoded(body)
    batch.validate(full=True)
    assert values_of(batch) == first + second
    assert (batch.schema == SCHEMA) == all(t == NO_TIME and not h for _, _, t, h in first + second)
    n = len(first)
    assert values_of(select(batch, np.array([(1, 0, n, len(second), 0)], EXTENT))) == second
    extents = np.array([(1, 0, n, len(second), 0), (0, 0, 0, n, 0)], EXTENT)
    assert values_of(select(batch, extents)) == second + first


def test_a_block_without_them_has_the_bytes_that_it_always_had() -> None:
    values, keys = [b"one", b"three", b""], [b"k", None, b""]
    sizes = np.array([3, 1, -1, 0, 3, 5, 0], NUMBER).tobytes()
    assert pack([[Chunk(0, values, keys)]]).body == b"\x01" + sizes + b"konethree"
    assert pack([[Chunk(0, values, keys, [NO_TIME] * 3, [()] * 3)]]).body == b"\x01" + sizes + b"konethree"


def test_only_the_block_of_a_record_with_headers_has_them() -> None:
    large = [b"v" * 1000] * 400
    plain = pack([[Chunk(0, large, [None] * 400), Chunk(1, large, [None] * 400)]])
    with_one = pack([[Chunk(0, large, [None] * 400), Chunk(1, large, [None] * 400, None, [SOME, *[()] * 399])]])
    before, after = (unpack(p.parts[0].extents.blocks, BLOCK) for p in (plain, with_one))
    assert before[0] == after[0]
    assert before[1]["bytes"] < after[1]["bytes"]


def test_columns_that_only_one_batch_has_are_null_in_the_others() -> None:
    plain = decoded(pack([[Chunk(0, [b"a"], [None])]]).body)
    timed = plain.append_column(OPTIONAL.field(0), times_column(np.array([5])))
    assert level([plain, plain]) == [plain, plain]
    headed = plain.append_column(OPTIONAL.field(1), headers_column([SOME]))
    leveled = level([plain, timed, headed])
    assert [b.schema.names[3:] for b in leveled] == [["create_time", "headers"]] * 3
    assert [values_of(b)[0][2:] for b in leveled] == [(NO_TIME, ()), (5, ()), (NO_TIME, SOME)]


def numbers(*values: int, kind: str = "<i4") -> bytes:
    return np.array(values, kind).tobytes()


TIME, NO_KEY_ONE_BYTE = numbers(9, kind="<i8"), numbers(-1, -1, 1) + b"v"


@pytest.mark.parametrize(
    "rest",
    [
        b"",
        TIME,
        numbers(MAX_TIME_MS + 1, kind="<i8") + numbers(0),
        numbers(-2, kind="<i8") + numbers(0),
        TIME + numbers(0) + b"x",
        TIME + numbers(-1),
        TIME + numbers(1, 1),
        TIME + numbers(1, 1, 1) + b"k",
        TIME + numbers(1, 1, 1) + b"kvv",
        TIME + numbers(1, -1, 1) + b"v",
        TIME + numbers(1, 0, -2),
        TIME + numbers(1, 1, 0) + b"\xff",
        TIME + numbers(2**31 - 1),
    ],
)
def test_a_block_with_other_bytes_after_its_values_is_corrupt(rest: bytes) -> None:
    right = TIME + numbers(1, 1, 1) + b"kv"
    assert values_of(decoded(b"\x01" + NO_KEY_ONE_BYTE + right)) == [(b"v", None, 9, (("k", b"v"),))]
    with pytest.raises(CorruptObjectError, match=f"^{KEY} at bytes .* does not hold valid records"):
        decoded(b"\x01" + NO_KEY_ONE_BYTE + rest)


def test_a_changed_block_is_refused_or_read_whole() -> None:
    body = pack([[chunk(0, [(b"one", b"k", 5, SOME), (b"two", None, NO_TIME, ())])]]).body
    content = zstandard.ZstdDecompressor().decompress(body[1:]) if body[0] == 2 else body[1:]
    for at in range(len(content)):
        for change in (0x80, 1):
            wrong = b"\x01" + bytes([*content[:at], content[at] ^ change, *content[at + 1 :]])
            with suppress(CorruptObjectError):
                assert len(values_of(decoded(wrong))) == 2


def test_bytes_below_a_null_do_not_count() -> None:
    column = pa.Array.from_buffers(
        pa.binary(), 3, [pa.py_buffer(b"\x05"), pa.py_buffer(numbers(0, 1, 3, 4)), pa.py_buffer(b"axxb")]
    )
    sizes, content = columns.uncut(column)
    assert (sizes.tolist(), bytes(content)) == ([1, -1, 1], b"ab")
    assert columns.uncut(column.slice(1, 1))[0].tolist() == [-1]


@given(st.sampled_from(["s", "ms", "us", "ns", "int64"]), st.integers(-(2**63), 2**63 - 1))
def test_a_create_time_is_kept_or_refused_and_never_becomes_another(unit: str, number: int) -> None:
    """Compares l0gc with Python's integers, which do not overflow."""
    kind = pa.int64() if unit == "int64" else pa.timestamp(unit, tz="UTC")
    rows = pa.record_batch({"create_time": pa.array([number, None], pa.int64()).cast(kind)})
    divisor = {"us": 1_000, "ns": 1_000_000}.get(unit, 1)
    expected = number * (1000 if unit == "s" else 1) // divisor
    if 0 <= expected <= MAX_TIME_MS:
        assert times_of(optional_of(rows, "a row", "ms")["create_time"]).tolist() == [expected, NO_TIME]
    else:
        with pytest.raises(UsageError, match="not in the years 1970 to 9999"):
            optional_of(rows, "a row", "ms")


@pytest.mark.parametrize(
    "times", [pa.array([2**63 // 1000 + 1]), pa.array([2**64 - 1], pa.uint64()), pa.array([2**61], pa.timestamp("s"))]
)
def test_a_create_time_that_overflows_is_refused(times: pa.Array) -> None:
    with pytest.raises(UsageError, match="not in the years 1970 to 9999"):
        optional_of(pa.record_batch({"create_time": times}), "a row")
