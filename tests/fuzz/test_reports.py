"""Report files of any bytes: refused by name, or read as they were written. In a process of its own, which must live on."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from l0gc.errors import CorruptObjectError
from l0gc.keys import PartitionId
from l0gc.runtime import Runtime
from l0gc.streamlog.journal.state import PartitionState
from l0gc.watermark.reports import publish_reports, read_report_file, report_of
from tests.fuzz.mutations import fuzzing, hostile
from tests.fuzz.worker import Worker
from tests.support.memory_store import MemoryStore


def report_file(revision: int, partitions: int) -> bytes:
    store = MemoryStore()
    ids = [PartitionId("events", revision, i) for i in range(partitions)]
    reports = [report_of("c", p, PartitionState.new(revision), p.partition) for p in ids]
    key = publish_reports(store, Runtime(store.clock, random.Random(0)), "upload", reports)
    assert key is not None
    return store.get(key).body


FILES = report_file(5, 40), report_file(9, 3)


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker("report") as started:
        yield started


@fuzzing(300)
@given(hostile(*FILES, is_json=False))
def test_a_report_file_is_read_or_refused(worker: Worker, body: bytes) -> None:
    assert worker.answer(body) in {"read", "refused"}


@fuzzing(300)
@given(st.data())
def test_a_bit_that_flips_changes_nothing_that_is_believed(data: st.DataObject) -> None:
    """No flipped bit makes a report say another thing than it said."""
    body = bytearray(FILES[0])
    body[data.draw(st.integers(0, len(body) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        table = read_report_file(bytes(body), "the/key")
    except CorruptObjectError:
        return
    assert table.to_pylist() == read_report_file(FILES[0], "the/key").to_pylist()
