"""L1 objects and index objects of any bytes: refused by name, or read as what the journal says of them.

Parquet is read in a process of its own, which must live on.
"""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Iterator
from contextlib import suppress

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from l0gc import columns
from l0gc.errors import CorruptObjectError
from l0gc.keys import PartitionId
from l0gc.runtime import Runtime
from l0gc.storage.entry import pack_sealed as sealed
from l0gc.storage.entry import unpack_sealed
from l0gc.storage.parallel import Parallel
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.journal.rows import L1_ROW, Rows
from l0gc.streamlog.journal.topic import L1File
from l0gc.streamlog.level_one import index
from l0gc.streamlog.level_one.index import index_key, read_index, spill, write_index
from l0gc.streamlog.level_one.parquet import L1_SCHEMA
from l0gc.streamlog.level_one.read import ROWS
from l0gc.streamlog.level_one.write import write_l1
from tests.fuzz.mutations import MSGPACK, fuzzing, hostile, refusal
from tests.fuzz.strict_store import StrictStore
from tests.fuzz.worker import KEY, READ, RECORDS, REFUSED, Worker, chunk
from tests.support.memory_store import MemoryStore
from tests.support.reconcile import l1_records

RUNTIME = Runtime(random=random.Random(0))


def l1_file(first: int = 0) -> bytes:
    """An L1 object with the records of `chunk`, as a reconciler writes it."""
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
def test_an_l1_object_that_was_cut_off_is_named_and_not_a_failure_of_the_store(left: int) -> None:
    """A large one is read by ranges, which begin at its end."""
    store = StrictStore()
    store.put(KEY, BODY[:left])
    file = L1File(0, 0, RECORDS - 1, len(BODY), 0, 3, str(uuid.UUID(int=1)))
    with pytest.raises(CorruptObjectError, match=KEY):
        list(l1_records(store, KEY, file))


# -- index objects --------------------------------------------------------------------------------------------------------

P, FAR = PartitionId("events", 3, 7), PartitionId("events", 3, 8)


def rows(first: int, count: int) -> Rows:
    """Rows of objects with ten records each, the first of them object number `first`."""
    return np.array(
        [(7, 10 * n, 10 * n + 9, 100 + n, 0, 5, uuid.UUID(int=n).bytes, 0) for n in range(first, first + count)], L1_ROW
    )


def written(store: MemoryStore, *counts: int) -> Rows:
    """Index objects of so many rows each, one after the other."""
    ends = itertools.accumulate(counts, initial=0)
    return np.concatenate([write_index(store, P, rows(a, b - a), 5, RUNTIME) for a, b in itertools.pairwise(ends)])


STORE = MemoryStore()
LINKS = written(STORE, 5, 4, 6)
INDEXES = [STORE.objects[index_key(P, link)].body for link in LINKS]


def contents() -> list[bytes]:
    decoder = msgspec.msgpack.Decoder(msgspec.Raw)
    return [
        bytes(unpack_sealed(index_key(P, link), body, decoder, 1 << 20))
        for link, body in zip(LINKS, INDEXES, strict=True)
    ]


CONTENTS = contents()


def with_index(number: int, body: bytes) -> MemoryStore:
    """The store in which the index object of this number holds `body`."""
    store = MemoryStore()
    for link, whole in zip(LINKS, INDEXES, strict=True):
        store.put(index_key(P, link), whole)
    store.put(index_key(P, LINKS[number]), body)
    return store


@fuzzing(200)
@given(st.data(), st.integers(0, 2))
def test_an_index_object_is_as_it_was_or_refused(data: st.DataObject, number: int) -> None:
    body = data.draw(hostile(INDEXES[number], INDEXES[number - 1]))
    store = with_index(number, body)
    refused = refusal(lambda: read_index(store, P, LINKS))
    if refused:
        assert index_key(P, LINKS[number]) in refused
    else:
        assert read_index(store, P, LINKS).tobytes() == rows(0, 15).tobytes()


@fuzzing(200)
@given(st.data(), st.integers(0, 2))
def test_a_sealed_body_lists_l1_objects_without_a_gap_or_is_refused(data: st.DataObject, number: int) -> None:
    content = data.draw(hostile(CONTENTS[number], CONTENTS[number - 1], MSGPACK))
    store = with_index(number, sealed(index_key(P, LINKS[number]), content, 1 << 20))
    found = None
    with suppress(CorruptObjectError):
        found = read_index(store, P, LINKS)
    if found is None:
        return
    assert found["base"][0] >= 0
    assert found["last"][-1] == LINKS["last"][-1]
    assert (found["base"][1:] == found["last"][:-1] + 1).all()
    assert (found["partition"] == P.partition).all()


@fuzzing(100)
@given(st.data())
def test_a_damaged_index_object_keeps_nobody_from_committing(data: st.DataObject) -> None:
    """Who writes on leaves what is there, whole or not; nothing of it is removed."""
    body = data.draw(hostile(INDEXES[-1], INDEXES[0]))
    store = with_index(2, body)
    before = {k: o.body for k, o in store.objects.items()}
    added, replaced = spill(store, P, rows(15, 70), LINKS, 6, RUNTIME)
    assert len(added) == 1
    assert before.items() <= {k: o.body for k, o in store.objects.items()}.items()
    assert added["last"][-1] == rows(15, 70 - index.KEPT_ROWS)["last"][-1]
    whole = np.concatenate([LINKS[: len(LINKS) - len(replaced)], added])
    refused = refusal(lambda: read_index(store, P, whole))
    if refused:
        assert index_key(P, LINKS[2]) in refused
    else:
        assert read_index(store, P, whole).tobytes() == rows(0, 85 - index.KEPT_ROWS).tobytes()


def test_an_index_object_of_another_partition_is_refused() -> None:
    store = with_index(2, INDEXES[2])
    assert index_key(FAR, LINKS[2]) not in store.objects
    store.put(index_key(FAR, LINKS[2]), INDEXES[2])
    assert index_key(FAR, LINKS[2]) in refusal(lambda: read_index(store, FAR, LINKS[2:]))
