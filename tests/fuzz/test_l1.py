"""L1 objects of any bytes are refused by name, or read as what the journal records of them.

Another process reads the Parquet, and must survive.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from l0gc import columns
from l0gc.errors import CorruptObjectError
from l0gc.runtime import Runtime
from l0gc.storage.parallel import Parallel
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.journal.topic import L1File
from l0gc.streamlog.level_one.parquet import L1_SCHEMA
from l0gc.streamlog.level_one.read import ROWS
from l0gc.streamlog.level_one.write import write_l1
from tests.fuzz.mutations import fuzzing, hostile
from tests.fuzz.strict_store import StrictStore
from tests.fuzz.worker import KEY, READ, RECORDS, REFUSED, Worker, chunk
from tests.support.memory_store import MemoryStore
from tests.support.reconcile import l1_records

RUNTIME = Runtime(random=random.Random(0))


def l1_file(first: int = 0) -> bytes:
    """Return an L1 object with the records of `chunk`, as a reconciler writes it."""
    c = chunk(first)
    arrays = {
        "offset": columns.numbers(np.arange(first, first + RECORDS)),
        "timestamp": columns.repeated(1_700_000_000_000 + first, RECORDS, L1_SCHEMA.field("timestamp").type),
        "key": columns.binary(c.keys),
        "value": columns.binary(c.values),
    }
    of = {"journal": 0, "revision": 1, "partition": 0, "epoch": 3}
    batch = pa.RecordBatch.from_arrays(
        [arrays[f.name] if f.name in arrays else columns.repeated(of[f.name], RECORDS) for f in ROWS], schema=ROWS
    )
    store = MemoryStore()
    write_l1(store, {1: Topic("events", 1, 1, (0,), "id")}, 3, [batch], RUNTIME, Parallel())
    (o,) = store.objects.values()
    return o.body


BODY, OTHER = l1_file(), l1_file(1000)


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker("l1") as started:
        yield started


def test_the_worker_reads_an_l1_object(worker: Worker) -> None:
    assert worker.answer(BODY) == READ
    assert worker.answer(OTHER) == REFUSED


@fuzzing(300)
@given(hostile(BODY, OTHER))
def test_an_l1_object_is_read_or_refused(worker: Worker, body: bytes) -> None:
    assert worker.answer(body) in {READ, REFUSED}


@pytest.mark.thorough
@fuzzing(3000)
@given(hostile(BODY, OTHER))
def test_any_l1_object_is_read_or_refused(worker: Worker, body: bytes) -> None:
    assert worker.answer(body) in {READ, REFUSED}


@pytest.mark.parametrize("left", [0, 1, len(BODY) // 2, len(BODY) - 1])
def test_a_cut_l1_object_is_named_as_damaged(left: int) -> None:
    """A large one is read by ranges, which begin at its end."""
    store = StrictStore()
    store.put(KEY, BODY[:left])
    file = L1File(0, 0, RECORDS - 1, len(BODY), 0, 3, str(uuid.UUID(int=1)))
    with pytest.raises(CorruptObjectError, match=KEY):
        list(l1_records(store, KEY, file))
