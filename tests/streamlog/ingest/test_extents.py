"""Extents: what was packed comes out again, or nothing does."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from l0gc.errors import CorruptObjectError
from l0gc.streamlog.ingest import extents
from l0gc.streamlog.ingest.extents import Chunk
from l0gc.streamlog.journal.entries import InputSpan, Placeholder

KEY = "level_zero/data/000/000000000000000007/0"
RECORDS = st.lists(st.tuples(st.binary(max_size=20), st.none() | st.binary(max_size=5)), min_size=1, max_size=20)


def chunk(values: list[bytes], partition: int = 0, keys: list[bytes | None] | None = None) -> Chunk:
    return Chunk(partition, 1_700_000_000_123, values, keys or [None] * len(values))


@settings(deadline=None)
@given(st.lists(RECORDS, min_size=1, max_size=4))
def test_every_record_comes_out_as_it_went_in(parts: list[list[tuple[bytes, bytes | None]]]) -> None:
    chunks = [chunk([v for v, _ in part], i, [k for _, k in part]) for i, part in enumerate(parts)]
    body, placed = extents.pack(chunks, KEY)
    at = 0
    for c, extent in zip(chunks, placed, strict=True):
        assert (extent.key, extent.start, extent.records) == (KEY, at, len(c))
        at += extent.length
        batch = extents.decode(body[extent.start : at], extent)
        assert batch.column("value").to_pylist() == c.values
        assert batch.column("key").to_pylist() == c.keys
        assert {t.timestamp() for t in batch.column("timestamp").to_pylist()} == {1_700_000_000.123}
    assert at == len(body)


def test_a_changed_a_missing_and_a_foreign_byte_are_told_by_name() -> None:
    body, (extent,) = extents.pack([chunk([b"one", b"two"])], KEY)
    flipped = bytes([*body[:-9], body[-9] ^ 1, *body[-8:]])
    for wrong in (flipped, body[:-1], body + b"x", b""):
        with pytest.raises(CorruptObjectError, match=f"{KEY} at bytes 0 to {len(body)} does not match the checksum"):
            extents.decode(wrong, extent)


def test_what_has_the_right_checksum_and_is_no_extent_is_told_by_name() -> None:
    body, (extent,) = extents.pack([chunk([b"one" * 50, b"two" * 50])], KEY)
    for wrong in [b"no Arrow at all", *(body[:n] for n in range(1, len(body) - 8, 7))]:
        claimed = msgspec.structs.replace(extent, length=len(wrong), crc32c=crc32c(wrong))
        with pytest.raises(CorruptObjectError, match=f"^{KEY} at bytes "):
            extents.decode(wrong, claimed)


def test_another_number_of_records_than_the_log_says_is_corrupt() -> None:
    body, (extent,) = extents.pack([chunk([b"one", b"two"])], KEY)
    with pytest.raises(CorruptObjectError, match="holds 2 records"):
        extents.decode(body, msgspec.structs.replace(extent, records=3))


@pytest.mark.parametrize(
    "rows", [[], [{"timestamp": 0, "key": None, "value": None}], [{"timestamp": None, "value": b""}]]
)
def test_an_extent_without_records_or_without_a_value_is_corrupt(rows: list[dict[str, object]]) -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, extents.SCHEMA) as writer:
        writer.write_table(pa.Table.from_pylist(rows, extents.SCHEMA))
    body = sink.getvalue().to_pybytes()
    claimed = Placeholder(KEY, 0, len(body), len(rows), crc32c(body), 0)
    with pytest.raises(CorruptObjectError, match="records of another kind"):
        extents.decode(body, claimed)


def test_an_extent_whose_buffers_are_not_what_it_says_of_them_is_corrupt() -> None:
    body, _ = extents.pack([chunk([b"one", b"two"])], KEY)
    for at in range(len(body)):
        wrong = bytes([*body[:at], body[at] ^ 0x80, *body[at + 1 :]])
        claimed = Placeholder(KEY, 0, len(wrong), 2, crc32c(wrong), 0)
        with suppress(CorruptObjectError):
            batch = extents.decode(wrong, claimed)
            assert len(batch.column("value").to_pylist()) == len(batch.column("key").to_pylist()) == 2


@pytest.mark.parametrize(
    ("landed", "values", "spans"),
    [
        ([4, 0], [b"a4", b"a5", b"b0", b"b1"], [InputSpan("a", 4, 6), InputSpan("b", 0, 2)]),
        ([5, 0], [b"a5", b"b0", b"b1"], [InputSpan("a", 5, 6), InputSpan("b", 0, 2)]),
        ([6, 1], [b"b1"], [InputSpan("b", 1, 2)]),
        ([9, 9], [], []),
    ],
)
def test_what_another_run_has_landed_leaves_the_chunk(
    landed: list[int], values: list[bytes], spans: list[InputSpan]
) -> None:
    c = chunk([b"a4", b"a5", b"b0", b"b1"], 3, [b"4", b"5", b"0", b"1"])
    c.spans = [InputSpan("a", 4, 6), InputSpan("b", 0, 2)]
    rest = c.without_landed(landed)
    assert (rest.values, rest.spans) == (values, spans)
    assert rest.keys == [v[1:] for v in values]
    assert (rest.partition, rest.timestamp_ms) == (3, c.timestamp_ms)
