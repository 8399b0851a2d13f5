"""Extents of any bytes, even such that the log's checksum fits: refused by name, or read as so many records.

In a process of its own, which must live on.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from crc32c import crc32c
from hypothesis import given

from l0gc.errors import CorruptObjectError
from l0gc.streamlog.ingest import extents
from l0gc.streamlog.journal.entries import Placeholder
from tests.fuzz.mutations import changed, fuzzing, hostile
from tests.fuzz.worker import RECORDS, Worker, chunk

BODY, OTHER = extents.encode(chunk()), extents.encode(chunk(1000))


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker("extent") as started:
        yield started


def test_the_worker_reads_an_extent(worker: Worker) -> None:
    assert worker.answer(BODY) == "read"


@fuzzing(600)
@given(hostile(BODY, OTHER, is_json=False))
def test_an_extent_whose_checksum_fits_is_read_or_refused(worker: Worker, body: bytes) -> None:
    assert worker.answer(body) in {"read", "refused"}


@fuzzing(300)
@given(changed(BODY))
def test_an_extent_that_was_changed_is_refused(body: bytes) -> None:
    extent = Placeholder("the/key", 0, len(BODY), RECORDS, crc32c(BODY), 0)
    if body == BODY:
        return
    with pytest.raises(CorruptObjectError, match="the/key"):
        extents.decode(body, extent)
