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

from l0gc.errors import AccessDeniedError, CorruptObjectError, ObjectNotFoundError, RefusedObjectError
from l0gc.keys import PartitionId
from l0gc.runtime import Runtime
from l0gc.storage.entry import pack_sealed as seal
from l0gc.streamlog.journal.rows import (
    INDEX_OBJECT,
    INDEX_TREE,
    NO_INDEX_ROWS,
    Rows,
    dropped_rows,
    in_order,
    index_rows,
    name_text,
    pack,
)
from l0gc.streamlog.journal.state import JournalState
from l0gc.streamlog.journal.topic import TopicState
from l0gc.streamlog.level_one import index as level_one_index
from l0gc.streamlog.level_one.index import (
    INDEX_ROWS,
    KEPT_ROWS,
    STATE_ROWS,
    IndexChange,
    cut_index,
    files_of,
    index_key,
    l1_key,
    read_index,
    replace_in_index,
    spill,
    write_index,
)
from tests.support.journal import l1_row, l1_rows
from tests.support.memory_store import MemoryStore, failing, memory_cluster
from tests.support.reconcile import files, lifted, put, reconcile

P = PartitionId("events", 3, 7)
RUNTIME = Runtime(random=random.Random(0))


def rows(first: int, count: int, partition: int = 7) -> Rows:
    """Rows of objects with ten records each, the first of them object number `first`."""
    numbers = range(first, first + count)
    return l1_rows(
        *(l1_row(partition, 10 * n, 10 * n + 9, epoch=5, name=n, size=100 + n, max_timestamp=n) for n in numbers)
    )


def written(store: MemoryStore, *counts: int) -> Rows:
    """Index objects of so many rows each, one after the other."""
    ends = list(itertools.accumulate(counts, initial=0))
    return np.concatenate([write_index(store, P, rows(a, b - a), 5, RUNTIME) for a, b in itertools.pairwise(ends)])


def state_of(newest: Rows, index: Rows = NO_INDEX_ROWS) -> JournalState:
    return JournalState(topics={3: TopicState(3, "id", l1=newest, index=index)})


def test_the_rows_of_all_index_objects_come_in_order() -> None:
    store = MemoryStore()
    index = written(store, 3, 1, 4)
    columns = ["partition", "base", "last", "rows", "bytes", "names", "head_bytes", "head_timestamp", "epoch"]
    low = [int.from_bytes(uuid.UUID(int=n).bytes[8:], "little") for n in range(8)]
    assert index[columns].tolist() == [
        (7, 0, 29, 3, 303, sum(low[:3]), 100, 0, 5),
        (7, 30, 39, 1, 103, low[3], 103, 3, 5),
        (7, 40, 79, 4, 422, sum(low[4:]) % 2**64, 104, 4, 5),
    ]
    keys = [index_key(P, row) for row in index]
    assert (
        keys == list(store.objects) == [f"level_one/index/events-3/00007/{5:018}/{name_text(n)}" for n in index["name"]]
    )
    assert index["size"].tolist() == [len(o.body) for o in store.objects.values()]
    assert read_index(store, P, index).tolist() == rows(0, 8).tolist()
    found = list(files_of(store, P, state_of(rows(8, 2), index)))
    assert [(f.base_offset, f.last_offset, f.bytes, f.max_timestamp, f.epoch) for f in found] == [
        (10 * n, 10 * n + 9, 100 + n, n, 5) for n in range(10)
    ]
    assert l1_key(P, found[9]) == (
        f"level_one/data/events-3/00007/{5:018}/{90:020}-{99:020}-00000000-0000-0000-0000-000000000009.parquet"
    )


def test_a_read_from_an_offset_fetches_no_more_index_objects_than_it_needs() -> None:
    store = MemoryStore()
    state = state_of(rows(8, 2), written(store, 3, 1, 4))
    for start, objects, first in [(80, 0, 80), (79, 1, 40), (40, 1, 40), (39, 2, 30), (29, 3, 0), (0, 3, 0)]:
        before = store.requests["get"]
        found = list(files_of(store, P, state, start))
        assert store.requests["get"] - before == objects
        assert (found[0].base_offset, found[-1].last_offset) == (first, 99)


def test_a_topic_or_partition_that_the_journal_does_not_know_has_no_files() -> None:
    state = state_of(rows(0, 1))
    assert list(files_of(MemoryStore(), PartitionId("events", 4, 7), state)) == []
    assert list(files_of(MemoryStore(), PartitionId("events", 3, 6), state)) == []


def test_what_is_read_is_as_of_the_call_however_the_state_changes() -> None:
    store = MemoryStore()
    state = state_of(rows(2, 2), written(store, 2))
    found = files_of(store, P, state)
    state.topics[3].l1 = rows(4, 1)
    state.topics[3].index = NO_INDEX_ROWS
    assert [f.base_offset for f in found] == [0, 10, 20, 30]


# -- when the state would have too many ------------------------------------------------------------------------------------


def test_up_to_64_rows_stay_in_the_state() -> None:
    store = MemoryStore()
    added, replaced = spill(store, P, rows(0, STATE_ROWS), NO_INDEX_ROWS, 5, RUNTIME)
    assert (len(added), len(replaced), store.objects) == (0, 0, {})


def test_beyond_that_the_older_ones_move_and_32_stay() -> None:
    store = MemoryStore()
    added, replaced = spill(store, P, rows(0, STATE_ROWS + 1), NO_INDEX_ROWS, 6, RUNTIME)
    moved = STATE_ROWS + 1 - KEPT_ROWS
    assert added[["rows", "last", "epoch"]].tolist() == [(moved, 10 * moved - 1, 6)]
    assert len(replaced) == 0
    assert read_index(store, P, added).tolist() == rows(0, moved).tolist()


def test_the_newest_index_object_is_replaced_until_it_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(level_one_index, "INDEX_ROWS", 100)
    store = MemoryStore()
    index, first, runs = NO_INDEX_ROWS, 0, 0
    for end in range(65, 1000, 33):
        index = applied(index, spill(store, P, rows(first, end - first), index, 5, RUNTIME))
        first, runs = end - KEPT_ROWS, runs + 1
        assert read_index(store, P, index).tolist() == rows(0, first).tolist()
    assert len(index) <= 1 + 1000 // (100 - 33)
    assert len(store.objects) == runs  # none was deleted: another process may still need it (hazard 26)


def applied(index: Rows, change: IndexChange) -> Rows:
    """A partition's index objects after a change."""
    kept = index[~np.isin(index["base"], change.removed_indexes["base"])]
    return in_order(np.concatenate([kept, change.indexes]))


def test_more_rows_than_one_object_takes_become_several() -> None:
    store = MemoryStore()
    index, _ = spill(store, P, rows(0, 2 * INDEX_ROWS + 100), NO_INDEX_ROWS, 5, RUNTIME)
    assert len(store.objects) == len(index) == 3
    assert max(len(o.body) for o in store.objects.values()) < 256 << 10
    assert len(read_index(store, P, index)) == index["rows"].sum() == 2 * INDEX_ROWS + 100 - KEPT_ROWS


@pytest.mark.parametrize(
    ("how", "error"), [("gone", ObjectNotFoundError), ("damaged", CorruptObjectError), ("withheld", RefusedObjectError)]
)
def test_an_index_object_that_cannot_be_read_does_not_stop_who_writes_on(how: str, error: type[Exception]) -> None:
    """A reader gets an error; see below."""
    store = MemoryStore()
    old = written(store, 40)
    (bad,) = store.objects
    if how == "gone":
        store.objects.clear()
    elif how == "damaged":
        store.objects[bad].body = b"?"
    elif how == "withheld":
        store.fault = failing(AccessDeniedError(f"{bad} was archived"), "get", bad)
    change = spill(store, P, rows(40, 70), old, 5, RUNTIME)
    assert (change.indexes["rows"].tolist(), len(change.removed_indexes)) == ([70 - KEPT_ROWS], 0)
    index = applied(old, change)
    with pytest.raises(error, match=name_text(old["name"][0])):
        read_index(store, P, index)
    assert len(read_index(store, P, index, 400)) == 70 - KEPT_ROWS


@settings(max_examples=25)
@given(st.lists(st.integers(1, 150), min_size=1, max_size=12), st.integers(40, 200))
def test_any_commits_lose_nothing_and_keep_the_state_small(commits: list[int], per_object: int) -> None:
    store = MemoryStore()
    index, first = NO_INDEX_ROWS, 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(level_one_index, "INDEX_ROWS", per_object)
        for end in itertools.accumulate(commits):
            index = applied(index, spill(store, P, rows(first, end - first), index, 5, RUNTIME))
            first = int(index["last"][-1]) // 10 + 1 if len(index) else 0
            assert end - first <= STATE_ROWS
            found = list(files_of(store, P, state_of(rows(first, end - first), index)))
            assert [f.base_offset for f in found] == [10 * n for n in range(end)]


# -- merges and expiries ---------------------------------------------------------------------------------------------------


def merged(first: int, last: int) -> Rows:
    """An object with the records of the objects number `first` to `last`."""
    return l1_rows(l1_row(7, 10 * first, 10 * last + 9, epoch=6, name=1000 + first, size=50))


def test_a_merge_writes_the_index_objects_anew_that_list_what_it_replaces() -> None:
    store = MemoryStore()
    topic = TopicState(3, "id", l1=rows(8, 2), index=written(store, 3, 1, 4))
    cases: list[tuple[int, int, list[int], list[int | tuple[int, int]]]] = [
        (1, 2, [0], [0, (1, 2)]),
        (2, 4, [0, 1, 2], [0, 1, (2, 4), 5, 6, 7]),
        (3, 3, [1], [(3, 3)]),
        (7, 9, [2], [4, 5, 6]),  # the state names what reaches beyond
        (4, 8, [2], []),
        (8, 9, [], []),
    ]
    for first, last, old, left in cases:
        files = merged(first, last)
        change = replace_in_index(store, P, topic, rows(first, last - first + 1), files, 6, RUNTIME)
        assert change.removed_indexes.tolist() == topic.index[old].tolist()
        expected = [files if isinstance(n, tuple) else rows(n, 1) for n in left]
        found = read_index(store, P, change.indexes)
        assert found.tolist() == [row for some in expected for row in some.tolist()]


def test_what_an_index_object_does_not_list_cannot_be_merged_in_it() -> None:
    store = MemoryStore()
    topic = TopicState(3, "id", l1=rows(8, 2), index=written(store, 8))
    other = rows(1, 2)
    other["bytes"] += 1
    with pytest.raises(CorruptObjectError, match="do not list"):
        replace_in_index(store, P, topic, other, merged(1, 2), 6, RUNTIME)
    with pytest.raises(CorruptObjectError, match="no L1 object with record 210"):
        replace_in_index(store, P, topic, rows(20, 2), merged(20, 21), 6, RUNTIME)


@pytest.mark.parametrize(
    ("start", "left", "dropped"),
    [(0, None, 0), (9, None, 0), (10, 2, 1), (25, 1, 2), (30, None, 0), (31, None, 0), (70, 1, 3)],
)
def test_an_expiry_cuts_the_index_object_in_which_it_begins(start: int, left: int | None, dropped: int) -> None:
    store = MemoryStore()
    index = written(store, 3, 1, 4)
    change, gone = cut_index(store, P, index, start, 6, RUNTIME)
    assert len(gone) == dropped
    assert change.indexes["rows"].tolist() == ([] if left is None else [left])
    assert (gone["last"] < start).all()
    assert len(change.removed_indexes) == len(change.indexes)


def test_a_dropped_index_object_can_be_read_as_long_as_it_is_there() -> None:
    store = MemoryStore()
    dropped = dropped_rows(3, INDEX_TREE, written(store, 5), 0, 0)
    assert read_index(store, P, index_rows(dropped[:1])).tolist() == rows(0, 5).tolist()
    assert index_key(P, dropped[0]) in store.objects
    assert dropped[["bytes", "rows", "row_bytes"]].tolist() == [(len(next(iter(store.objects.values())).body), 5, 510)]


# -- what is believed ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["flip", "cut", "other key", "garbage", "empty"])
def test_an_index_object_that_has_changed_is_named(wrong: str) -> None:
    store = MemoryStore()
    index = written(store, 3)
    key = index_key(P, index[0])
    body = store.objects[key].body
    store.objects[key].body = {
        "flip": body[:20] + bytes([body[20] ^ 4]) + body[21:],
        "cut": body[:-1],
        "other key": store.objects[index_key(P, written(store, 3)[0])].body,
        "garbage": seal(key, b"\x93\x01\x02\x03", 100),
        "empty": b"",
    }[wrong]
    with pytest.raises(CorruptObjectError, match=f"^{key} "):
        read_index(store, P, index)


TWO = l1_rows(l1_row(7, 0, 9, epoch=5), l1_row(7, 10, 29, epoch=5))
"""Two rows that go as far as three of the others."""
OTHERS = rows(0, 3)
OTHERS["name"] = rows(3, 3)["name"]
LARGER = rows(0, 3)
LARGER["bytes"][1] += 1


@pytest.mark.parametrize(
    ("partition", "body"),
    [
        ("events-3/00008", rows(0, 3)),
        (P.path, rows(0, 0)),
        (P.path, rows(0, 2)),
        (P.path, rows(0, 4)),
        (P.path, rows(1, 3)),
        (P.path, TWO),
        (P.path, OTHERS),
        (P.path, LARGER),
        (P.path, rows(0, 3, partition=8)),
        (P.path, rows(0, 4)[[0, 1, 3]]),
        (P.path, rows(0, 3)[::-1]),
    ],
)
def test_an_index_object_that_does_not_list_what_the_state_says_is_named(partition: str, body: Rows) -> None:
    store = MemoryStore()
    index = written(store, 3)
    key = index_key(P, index[0])
    store.put(key, seal(key, msgspec.msgpack.encode([partition, pack(body)]), 1 << 20))
    with pytest.raises(
        CorruptObjectError, match=f"^{key} (does not list the L1 objects of events/7|is not an index object)"
    ):
        read_index(store, P, index)


@pytest.mark.parametrize("column", ["bytes", "epoch"])
def test_rows_with_numbers_that_cannot_be_are_named(column: str) -> None:
    store = MemoryStore()
    bad = rows(0, 3)
    bad[column][1] = -1
    with pytest.raises(CorruptObjectError, match="is not an index object"):
        read_index(store, P, write_index(store, P, bad, 5, RUNTIME))


def test_half_a_row_is_no_row() -> None:
    store = MemoryStore()
    index = written(store, 1)
    key = index_key(P, index[0])
    store.put(key, seal(key, msgspec.msgpack.encode([P.path, pack(rows(0, 1))[:-1]]), 1 << 20))
    with pytest.raises(CorruptObjectError, match=f"^{key} is not an index object"):
        read_index(store, P, index)


# -- with a journal --------------------------------------------------------------------------------------------------------


def test_after_a_hundred_runs_the_state_has_at_most_64_rows_and_every_record_is_found() -> None:
    cluster = memory_cluster()
    topic, _ = cluster.controller.create_topic("events", 2)
    for n in range(100):
        put(cluster, "events", {0: [b"%d" % n]} if n % 3 else {0: [b"%d" % n], 1: [b"x"]})
        reconcile(cluster)
        state = cluster.journal(0).state
        assert len(state.topic(topic.revision).files(0)) <= STATE_ROWS
    assert lifted(cluster, "events", 0) == [b"%d" % n for n in range(100)]
    assert len(files(cluster, "events", 0)) == 100
    index = state.topics[topic.revision].index
    assert index[["partition", "rows"]].tolist() == [(0, 100 - len(state.topic(topic.revision).files(0)))]
    assert state.dropped["kind"].tolist() == [INDEX_OBJECT]  # the one that it has replaced
    assert state.topic(topic.revision).totals().l1_objects == 134
    assert state.topic(topic.revision).totals().l1_bytes == sum(
        f.bytes for p in (0, 1) for f in files(cluster, "events", p)
    )
    another = memory_cluster(cluster.store, seed=1, bootstrap=False)  # type: ignore[arg-type]
    assert lifted(another, "events", 0) == [b"%d" % n for n in range(100)]
