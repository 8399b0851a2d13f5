"""The list of a partition's L1 objects: the newest rows in the state, older ones in index objects that are never changed."""

from __future__ import annotations

import itertools
import random
import uuid

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from l0gc.errors import CorruptObjectError, ObjectNotFoundError
from l0gc.keys import PartitionId
from l0gc.runtime import Runtime
from l0gc.storage.entry import pack as seal
from l0gc.streamlog.journal.entries import IndexObject
from l0gc.streamlog.journal.rows import L1_ROW, Rows, pack
from l0gc.streamlog.journal.state import JournalState
from l0gc.streamlog.journal.topic import TopicState
from l0gc.streamlog.level_one import index
from l0gc.streamlog.level_one.index import (
    INDEX_ROWS,
    KEPT_ROWS,
    STATE_ROWS,
    files_of,
    index_key,
    l1_key,
    read_index,
    spill,
)
from tests.support.memory_store import MemoryStore, memory_cluster
from tests.support.reconcile import files, lifted, put, reconcile

P = PartitionId("events", 3, 7)
RUNTIME = Runtime(random=random.Random(0))


def rows(first: int, count: int, partition: int = 7) -> Rows:
    """Rows of objects with ten records each, the first of them object number `first`."""
    return np.array(
        [(partition, 10 * n, 10 * n + 9, 100 + n, 5, uuid.UUID(int=n).bytes) for n in range(first, first + count)],
        L1_ROW,
    )


def written(store: MemoryStore, *counts: int) -> IndexObject:
    """Index objects of so many rows each, one linked to the other."""
    at, link = 0, None
    for count in counts:
        link = index._write(store, P, rows(at, count), link, 5, RUNTIME.new_id())
        at += count
    assert link is not None
    return link


def state_of(newest: Rows, link: IndexObject | None) -> JournalState:
    topic = TopicState(3, "id")
    topic.l1 = newest
    if link is not None:
        topic.indexes[7] = link
    return JournalState(topics={3: topic})


def test_the_rows_of_all_links_come_in_order() -> None:
    store = MemoryStore()
    link = written(store, 3, 1, 4)
    assert (link.rows, link.last_offset, link.partition) == (8, 79, 7)
    assert index_key(P, link) == f"level_one/index/events-3/00007/{5:018}/{link.name}"
    assert read_index(store, P, link).tolist() == rows(0, 8).tolist()
    found = list(files_of(store, P, state_of(rows(8, 2), link)))
    assert [(f.base_offset, f.last_offset, f.bytes, f.epoch) for f in found] == [
        (10 * n, 10 * n + 9, 100 + n, 5) for n in range(10)
    ]
    assert l1_key(P, found[9]) == (
        f"level_one/data/events-3/00007/{5:018}/{90:020}-{99:020}-00000000-0000-0000-0000-000000000009.parquet"
    )


def test_who_reads_from_an_offset_fetches_no_more_links_than_that_takes() -> None:
    store = MemoryStore()
    state = state_of(rows(8, 2), written(store, 3, 1, 4))
    for start, objects, first in [(80, 0, 80), (79, 1, 40), (40, 1, 40), (39, 2, 30), (29, 3, 0), (0, 3, 0)]:
        before = store.requests["get"]
        found = list(files_of(store, P, state, start))
        assert store.requests["get"] - before == objects
        assert (found[0].base_offset, found[-1].last_offset) == (first, 99)


def test_a_topic_or_partition_that_the_journal_does_not_know_has_no_files() -> None:
    state = state_of(rows(0, 1), None)
    assert list(files_of(MemoryStore(), PartitionId("events", 4, 7), state)) == []
    assert list(files_of(MemoryStore(), PartitionId("events", 3, 6), state)) == []


def test_what_is_read_is_as_of_the_call_however_the_state_changes() -> None:
    store = MemoryStore()
    state = state_of(rows(2, 2), written(store, 2))
    found = files_of(store, P, state)
    state.topics[3].l1 = rows(4, 1)
    state.topics[3].indexes.clear()
    assert [f.base_offset for f in found] == [0, 10, 20, 30]


# -- when the state would have too many ------------------------------------------------------------------------------------


def test_up_to_64_rows_stay_in_the_state() -> None:
    store = MemoryStore()
    assert spill(store, P, rows(0, STATE_ROWS), None, 5, RUNTIME) is None
    assert store.objects == {}


def test_beyond_that_the_older_ones_move_and_32_stay() -> None:
    store = MemoryStore()
    link = spill(store, P, rows(0, STATE_ROWS + 1), None, 6, RUNTIME)
    assert link is not None
    moved = STATE_ROWS + 1 - KEPT_ROWS
    assert (link.rows, link.last_offset, link.epoch) == (moved, 10 * moved - 1, 6)
    assert read_index(store, P, link).tolist() == rows(0, moved).tolist()


def test_the_newest_index_object_is_written_anew_until_it_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "INDEX_ROWS", 100)
    store = MemoryStore()
    link: IndexObject | None = None
    first, links = 0, []
    for end in range(65, 1000, 33):
        link = spill(store, P, rows(first, end - first), link, 5, RUNTIME)
        assert link is not None
        first = end - KEPT_ROWS
        assert read_index(store, P, link).tolist() == rows(0, first).tolist()
        links.append(_links(store, link))
    assert max(links) <= 1 + 1000 // (100 - 33)
    assert len(store.objects) == len(links)  # none was deleted: another process may still need it (hazard 26)


def _links(store: MemoryStore, link: IndexObject | None) -> int:
    count = 0
    while link is not None:
        link = index._read(store, P, link)[0].previous
        count += 1
    return count


def test_more_rows_than_one_object_takes_become_several() -> None:
    store = MemoryStore()
    link = spill(store, P, rows(0, 2 * INDEX_ROWS + 100), None, 5, RUNTIME)
    assert link is not None
    assert len(store.objects) == 3
    assert max(len(o.body) for o in store.objects.values()) < 256 << 10
    assert len(read_index(store, P, link)) == link.rows == 2 * INDEX_ROWS + 100 - KEPT_ROWS


@pytest.mark.parametrize("gone", [True, False])
def test_a_damaged_index_object_does_not_stop_who_writes_on(gone: bool) -> None:
    """Who reads is told; see below."""
    store = MemoryStore()
    link = written(store, 40)
    if gone:
        store.objects.clear()
    else:
        next(iter(store.objects.values())).body = b"?"
    newer = spill(store, P, rows(40, 70), link, 5, RUNTIME)
    assert newer is not None
    assert newer.rows == 40 + 70 - KEPT_ROWS
    with pytest.raises(ObjectNotFoundError if gone else CorruptObjectError, match=link.name):
        read_index(store, P, newer)
    assert len(read_index(store, P, newer, 400)) == 70 - KEPT_ROWS


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 150), min_size=1, max_size=12), st.integers(40, 200))
def test_whatever_the_commits_nothing_is_lost_and_the_state_stays_small(commits: list[int], per_object: int) -> None:
    store = MemoryStore()
    link: IndexObject | None = None
    first = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "INDEX_ROWS", per_object)
        for end in itertools.accumulate(commits):
            new = spill(store, P, rows(first, end - first), link, 5, RUNTIME)
            if new is not None:
                link, first = new, new.last_offset // 10 + 1
            assert end - first <= STATE_ROWS
            found = list(files_of(store, P, state_of(rows(first, end - first), link)))
            assert [f.base_offset for f in found] == [10 * n for n in range(end)]


# -- what is believed ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["flip", "cut", "other key", "garbage", "empty"])
def test_an_index_object_that_has_changed_is_named(wrong: str) -> None:
    store = MemoryStore()
    link = written(store, 3)
    key = index_key(P, link)
    body = store.objects[key].body
    store.objects[key].body = {
        "flip": body[:20] + bytes([body[20] ^ 4]) + body[21:],
        "cut": body[:-1],
        "other key": store.objects[index_key(P, written(store, 3))].body,
        "garbage": seal(key, b"\x93\x01\x02\x03", 100),
        "empty": b"",
    }[wrong]
    with pytest.raises(CorruptObjectError, match=f"^{key} "):
        read_index(store, P, link)


BEFORE = IndexObject(7, "n", 5, 2, 19)
"""What comes before `rows(2, 1)`."""
TWO = np.array([(7, 0, 9, 1, 5, bytes(16)), (7, 10, 29, 1, 5, bytes(16))], L1_ROW)
"""Two rows that go as far as three of the others."""


@pytest.mark.parametrize(
    ("partition", "previous", "body"),
    [
        ("events-3/00008", None, rows(0, 3)),
        (P.path, None, rows(0, 0)),
        (P.path, None, rows(0, 2)),
        (P.path, None, rows(0, 4)),
        (P.path, None, TWO),
        (P.path, None, rows(0, 3, partition=8)),
        (P.path, None, rows(0, 4)[[0, 1, 3]]),
        (P.path, None, rows(0, 3)[::-1]),
        (P.path, BEFORE, rows(0, 3)[1:]),
        (P.path, msgspec.structs.replace(BEFORE, partition=8), rows(2, 1)),
        (P.path, msgspec.structs.replace(BEFORE, last_offset=9), rows(2, 1)),
        (P.path, msgspec.structs.replace(BEFORE, rows=3), rows(2, 1)),
    ],
)
def test_an_index_object_that_cannot_be_is_named(partition: str, previous: IndexObject | None, body: Rows) -> None:
    store = MemoryStore()
    link = IndexObject(7, "n2", 5, 3, 29)
    key = index_key(P, link)
    store.put(key, seal(key, msgspec.msgpack.encode([partition, previous, pack(body)]), 1 << 20))
    with pytest.raises(CorruptObjectError, match=f"^{key} does not list the L1 objects of events/7 up to record 29"):
        read_index(store, P, link)


@pytest.mark.parametrize("column", ["bytes", "epoch"])
def test_rows_with_numbers_that_cannot_be_are_named(column: str) -> None:
    store = MemoryStore()
    bad = rows(0, 3)
    bad[column][1] = -1
    link = index._write(store, P, bad, None, 5, RUNTIME.new_id())
    with pytest.raises(CorruptObjectError, match="does not list"):
        read_index(store, P, link)


def test_half_a_row_is_no_row() -> None:
    store = MemoryStore()
    link = IndexObject(7, "n", 5, 1, 9)
    key = index_key(P, link)
    store.put(key, seal(key, msgspec.msgpack.encode([P.path, None, pack(rows(0, 1))[:-1]]), 1 << 20))
    with pytest.raises(CorruptObjectError, match=f"^{key} is no index object"):
        read_index(store, P, link)


# -- with a journal --------------------------------------------------------------------------------------------------------


def test_after_a_hundred_runs_the_state_has_at_most_64_rows_and_every_record_is_found() -> None:
    cluster = memory_cluster()
    topic, _ = cluster.controller.create_topic("events", 2)
    for n in range(100):
        put(cluster, "events", {0: [b"%d" % n]} if n % 3 else {0: [b"%d" % n], 1: [b"x"]})
        reconcile(cluster)
        state = cluster.journal(0).state
        assert len(state.files(topic.revision, 0)) <= STATE_ROWS
    assert lifted(cluster, "events", 0) == [b"%d" % n for n in range(100)]
    assert len(files(cluster, "events", 0)) == 100
    assert cluster.journal(0).state.topics[topic.revision].indexes[0].rows == 100 - len(state.files(topic.revision, 0))
    assert 1 not in cluster.journal(0).state.topics[topic.revision].indexes
    another = memory_cluster(cluster.store, seed=1, bootstrap=False)  # type: ignore[arg-type]
    assert lifted(another, "events", 0) == [b"%d" % n for n in range(100)]
