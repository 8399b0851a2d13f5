"""Blocks of any bytes, even if the log's checksum fits, are refused by name, or read as the right number of records.

Another process reads them, and must survive.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import zstandard
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from l0gc.errors import CorruptObjectError
from l0gc.storage.parallel import Parallel
from l0gc.streamlog.ingest.extents import decode_block
from l0gc.streamlog.journal.rows import BLOCK, EXTENT, NUMBER
from l0gc.streamlog.journal.topic import Block, UnreconciledObject
from l0gc.streamlog.level_one.plan import Fault, ObjectRead
from l0gc.streamlog.level_one.read import read_rows
from tests.fuzz.mutations import changed, fuzzing, hostile
from tests.fuzz.worker import FEWER, KEY, MOST_BYTES, READ, RECORDS, REFUSED, TIME_MS, Worker, chunk, with_headers
from tests.support.blocks import pack
from tests.support.memory_store import MemoryStore


def block_of(first: int) -> bytes:
    """Return an L0 block with records of two partitions."""
    return pack([[chunk(first), chunk(first, 1, FEWER)]]).body


BODY, OTHER = block_of(0), block_of(1000)
WITH_HEADERS = pack([[with_headers(0), with_headers(0, 1, FEWER)]]).body
EXTENTS = np.array([(0, 0, 0, RECORDS, 0), (1, 0, RECORDS, FEWER, 0)], EXTENT)


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker("block") as started:
        yield started


def test_the_worker_reads_a_block(worker: Worker) -> None:
    assert worker.answer(BODY) == READ
    assert worker.answer(WITH_HEADERS) == READ


@fuzzing(300)
@given(hostile(BODY, OTHER) | hostile(WITH_HEADERS, BODY))
def test_a_block_whose_checksum_fits_is_read_or_refused(worker: Worker, body: bytes) -> None:
    assert worker.answer(body) in {READ, REFUSED}


@pytest.mark.thorough
@fuzzing(6000)
@given(hostile(BODY, OTHER) | hostile(WITH_HEADERS, BODY))
def test_any_block_whose_checksum_fits_is_read_or_refused(worker: Worker, body: bytes) -> None:
    assert worker.answer(body) in {READ, REFUSED}


@fuzzing(100)
@given(changed(BODY))
def test_a_block_that_was_changed_is_refused(body: bytes) -> None:
    if body == BODY:
        return
    with pytest.raises(CorruptObjectError, match=KEY):
        decode_block(body, KEY, Block(0, len(BODY), crc32c(BODY), MOST_BYTES, TIME_MS))


@fuzzing(150)
@given(hostile(BODY, OTHER), st.sampled_from([0, 3, len(BODY)]))
def test_a_reconciler_lifts_what_was_written_or_names_the_object(body: bytes, before: int) -> None:
    store = MemoryStore()
    store.put(KEY, bytes(before) + body)
    blocks = np.array([(len(BODY), crc32c(BODY), len(EXTENTS), MOST_BYTES)], BLOCK)
    read = ObjectRead(0, 3, UnreconciledObject(KEY, 1, 0, TIME_MS, before, blocks, EXTENTS))

    def needed(read: ObjectRead) -> ObjectRead:
        return read

    found = [row for _, row in read_rows(store, [read], 1, needed, Parallel())]
    assert sum(len(f.partitions) if isinstance(f, Fault) else f.num_rows for f in found) in {
        len(EXTENTS),
        RECORDS + FEWER,
    }
    for f in found:
        if isinstance(f, Fault):
            assert KEY in f.message
        else:
            assert f.column("value").to_pylist() == chunk().values + chunk(0, 1, FEWER).values  # type: ignore[operator]


N = RECORDS + FEWER


def frame_of(value: bytes) -> bytes:
    """Return a block with as many records of this value as the log names, in one zstd frame."""
    sizes = np.array([N, *[-1] * N, *[len(value)] * N], NUMBER)
    return b"\x02" + zstandard.ZstdCompressor(write_content_size=True).compress(sizes.tobytes() + value * N)


@pytest.mark.parametrize("declared", [2**62, 2**40, 3 << 30])
def test_a_block_that_says_it_is_huge_takes_no_memory(worker: Worker, declared: int) -> None:
    """A frame begins with the number of bytes that it unpacks to, first in 2 bytes, and then in 8."""
    body = frame_of(b"v" * 10)
    assert worker.answer(body) == READ
    header = zstandard.frame_header_size(body[1:])
    assert header == 7
    huge = body[1:5] + bytes([0xE0]) + declared.to_bytes(8, "little") + body[1 + header :]
    assert zstandard.get_frame_parameters(huge).content_size == declared
    assert worker.answer(body[:1] + huge) == REFUSED


def test_a_block_that_says_its_records_are_huge_takes_no_memory(worker: Worker) -> None:
    for numbers in ([N, *[-1] * N, *[2**31 - 1] * N], [2**31 - 1, 0, 0], [2**30, *[-1] * N, *[0] * N]):
        assert worker.answer(b"\x01" + np.array(numbers, NUMBER).tobytes()) == REFUSED


def test_a_block_that_unpacks_beyond_its_size_takes_no_memory(worker: Worker) -> None:
    body = frame_of(bytes(16 << 20))
    assert len(body) < 1 << 20
    assert worker.answer(body) == REFUSED
