"""L1 objects of any bytes: refused by name, or read as so many records. In a process of its own, which must live on."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given

from l0gc import columns
from l0gc.runtime import Runtime
from l0gc.streamlog.level_one.parquet import L1_SCHEMA, L1Writer
from l0gc.streamlog.level_one.plan import PartitionPlan
from tests.fuzz.mutations import fuzzing, hostile
from tests.fuzz.worker import RECORDS, Worker, chunk
from tests.support.memory_store import MemoryStore


def l1_file(first: int = 0) -> bytes:
    """An L1 object with the records of `chunk`, as a reconciler writes it."""
    c = chunk(first)
    arrays = [
        columns.counting(first, RECORDS),
        columns.repeated(c.timestamp_ms, RECORDS, L1_SCHEMA.field("timestamp").type),
        columns.binary(c.keys),
        columns.binary(c.values),
        columns.repeated(3, RECORDS),
    ]
    store = MemoryStore()
    plan = PartitionPlan(0, "events", 1, 0, first, first + RECORDS - 1, 0)
    with tempfile.TemporaryDirectory() as directory:
        writer = L1Writer(store, plan, Runtime(store.clock, random.Random(first)), Path(directory))
        writer.write(pa.RecordBatch.from_arrays(arrays, schema=L1_SCHEMA))
        (file,) = writer.finish()
    return store.get(file.key).body


BODY, OTHER = l1_file(), l1_file(1000)


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker("l1") as started:
        yield started


def test_the_worker_reads_an_l1_object(worker: Worker) -> None:
    assert worker.answer(BODY) == "read"


@fuzzing(300)
@given(hostile(BODY, OTHER, is_json=False))
def test_an_l1_object_is_read_or_refused(worker: Worker, body: bytes) -> None:
    assert worker.answer(body) in {"read", "refused"}
