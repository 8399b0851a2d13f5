"""Columns to L1: consecutive records are written once, in any order of arrival, and the rest is reported."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from l0gc import columns
from l0gc.errors import CorruptObjectError, StoreError
from l0gc.runtime import Runtime
from l0gc.storage.parallel import Parallel
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.ingest.extents import decode_block, select
from l0gc.streamlog.journal.topic import TopicState, l1_file, l1_key
from l0gc.streamlog.level_one import share, write
from l0gc.streamlog.level_one.plan import Fault
from l0gc.streamlog.level_one.read import ROWS, Row
from l0gc.streamlog.level_one.write import WrittenL1, write_l1
from tests.support.memory_store import MemoryStore, failing
from tests.support.reconcile import l1_records

REVISION = 5
TOPICS = {r: Topic(name, r, 1000, (2,), "id") for r, name in ((REVISION, "events"), (9, "other"))}
Place = tuple[int, int]
"""The partition and offset of a record."""


def batch(*places: Place, revision: int = REVISION, journal: int = 2) -> pa.RecordBatch:
    """Return records whose values are their places."""
    n = len(places)
    arrays = [
        columns.repeated(journal, n),
        columns.repeated(revision, n),
        columns.numbers(np.array([p for p, _ in places], np.int64)),
        columns.numbers(np.array([offset for _, offset in places], np.int64)),
        columns.repeated(1_700_000_000_000, n, ROWS.field("timestamp").type),
        columns.binary([None] * n),
        columns.binary([value(*place) for place in places]),
        columns.repeated(7, n),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ROWS)


def value(partition: int, offset: int) -> bytes:
    return b"%d/%d" % (partition, offset)


def span(partition: int, first: int, end: int) -> list[Place]:
    return [(partition, offset) for offset in range(first, end)]


def fault(*places: Place, revision: int = REVISION) -> Fault:
    partitions, bases = np.array([p for p, _ in places], np.int32), np.array([b for _, b in places], np.int64)
    return Fault(2, revision, "gone", partitions, bases)


def written(store: MemoryStore, *arriving: Row, held_bytes: int = write.HELD_BYTES) -> WrittenL1:
    runtime = Runtime(store.clock)
    return write_l1(store, TOPICS, 12, arriving, runtime, Parallel(), held_bytes)


def content(store: MemoryStore, w: WrittenL1) -> dict[tuple[int, int], list[int]]:
    """Return the offsets in L1 of each (revision, partition), after a check of each record's value."""
    found: dict[tuple[int, int], list[int]] = {}
    for (journal, revision), rows in w.files.items():
        assert journal == 2
        for f in map(l1_file, rows):
            assert f.epoch == 12
            p = TOPICS[revision].id(f.partition)
            for base, records in l1_records(store, l1_key(p, f), f):
                offsets = list(range(base, base + records.num_rows))
                assert records.column("value").to_pylist() == [value(f.partition, o) for o in offsets]
                found.setdefault((revision, f.partition), []).extend(offsets)
    for (journal, revision), objects in w.shared.items():
        for shared in objects:
            of_block = shared.extents()
            topic = TopicState(revision, "id", shared=(shared,))
            (o,) = topic.shared_objects(TOPICS[revision].name, journal)
            body = store.objects[o.key].body
            assert len(body) == shared.bytes
            for e in of_block:
                block = o.block(int(e["block"]))
                records = select(decode_block(body[block.start :][: block.length], o.key, block), e.reshape(1))
                offsets = list(range(int(e["base"]), int(e["base"] + e["records"])))
                assert records.column("value").to_pylist() == [value(int(e["partition"]), n) for n in offsets]
                assert records.column("epoch").to_pylist() == [7] * len(offsets)
                assert (revision, int(e["partition"])) not in found
                found[revision, int(e["partition"])] = offsets
    return found


def test_pieces_are_put_in_order_whatever_the_order_in_which_they_come() -> None:
    store = MemoryStore()
    arriving = [
        batch(*span(0, 14, 16), *span(1, 0, 2)),
        batch(*span(0, 10, 12), *span(3, 5, 6)),
        batch(*span(0, 12, 14), *span(1, 2, 4)),
    ]
    w = written(store, *arriving)
    assert content(store, w) == {(5, 0): list(range(10, 16)), (5, 1): [0, 1, 2, 3], (5, 3): [5]}
    assert w.faults == []
    assert len(store.objects) == 3


def test_records_of_two_topics_go_into_separate_objects() -> None:
    store = MemoryStore()
    w = written(store, batch(*span(0, 0, 2)), batch(*span(0, 7, 9), revision=9))
    assert content(store, w) == {(5, 0): [0, 1], (9, 0): [7, 8]}


def test_what_is_sent_twice_is_written_once() -> None:
    """Spark may run a reader's task again, and divide the same records differently."""
    store = MemoryStore()
    arriving = [batch(*span(0, 0, 4)), batch(*span(0, 0, 4)), batch(*span(0, 2, 7)), batch(*span(0, 3, 4))]
    w = written(store, *arriving)
    assert content(store, w) == {(5, 0): list(range(7))}
    assert w.faults == []


def test_a_piece_ends_where_offsets_or_partitions_do() -> None:
    pieces = write.pieces_of(batch((0, 5), (0, 6), (0, 9), (1, 10), (1, 11)), 0)
    assert pieces[["partition", "base", "records"]].tolist() == [(0, 5, 2), (0, 9, 1), (1, 10, 2)]


def test_a_partition_ends_at_missing_records_and_others_continue() -> None:
    store = MemoryStore()
    w = written(store, batch(*span(0, 0, 4), *span(1, 0, 2)), batch(*span(0, 6, 9)), batch(*span(1, 2, 5)))
    assert content(store, w) == {(5, 0): [0, 1, 2, 3], (5, 1): [0, 1, 2, 3, 4]}
    (gap,) = w.faults
    assert gap.message == "the records 4 to 5 of events/0 did not arrive at their writer"
    assert (gap.journal, gap.partitions.tolist(), gap.bases.tolist()) == (2, [0], [4])


@pytest.mark.parametrize("first", [True, False])
def test_a_partition_is_lifted_up_to_the_damage(first: bool) -> None:
    store = MemoryStore()
    arriving: list[Row] = [batch(*span(0, 0, 4), *span(1, 0, 2), *span(2, 5, 6)), batch(*span(0, 6, 9))]
    damage = fault((0, 4), (2, 4))
    w = written(store, *([damage, *arriving] if first else [*arriving, damage]))
    assert content(store, w) == {(5, 0): [0, 1, 2, 3], (5, 1): [0, 1]}
    assert w.faults == [damage]  # the damage is reported once
    assert len(store.objects) == 2  # records that cannot be committed are not written


def test_damage_at_the_end_is_said_too() -> None:
    store = MemoryStore()
    last, before = fault((0, 4)), fault((0, 2), (7, 0))
    assert content(store, written(store, batch(*span(0, 0, 4)), last)) == {(5, 0): [0, 1, 2, 3]}
    w = written(store, batch(*span(0, 0, 4)), last, before)
    assert content(store, w) == {(5, 0): [0, 1]}
    assert w.faults == [last, before]


def test_no_records_write_no_object() -> None:
    store = MemoryStore()
    w = written(store, batch())
    assert (w.files, w.faults, store.objects) == ({}, [], {})


def test_large_partitions_become_several_files_without_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "_ROW_GROUP_BYTES", 125)
    monkeypatch.setattr(write, "FILE_BYTES", 1000)
    store = MemoryStore()
    w = written(store, *(batch(*span(0, at, at + 10)) for at in range(0, 100, 10)))
    (rows,) = w.files.values()
    assert len(rows) > 3
    assert (rows["base"][1:] == rows["last"][:-1] + 1).all()
    assert content(store, w) == {(5, 0): list(range(100))}


@pytest.mark.parametrize("held_bytes", [0, 2000, 1 << 20])
def test_what_memory_does_not_hold_waits_on_disk(held_bytes: int) -> None:
    store = MemoryStore()
    arriving = [batch(*span(p, at, at + 10)) for at in range(50, -10, -10) for p in (1, 0)]
    w = written(store, *arriving, held_bytes=held_bytes)
    assert content(store, w) == {(5, 0): list(range(60)), (5, 1): list(range(60))}


@pytest.mark.parametrize("group_bytes", [write._ROW_GROUP_BYTES, 1], ids=["in memory", "files"])
def test_an_object_is_named_only_when_it_is_in_the_store(group_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hazard 9: objects are uploaded while others are written, and all of them before the writer returns."""
    monkeypatch.setattr(write, "_ROW_GROUP_BYTES", group_bytes)
    store = MemoryStore()
    w = written(store, *(batch((p, 0)) for p in range(60)))
    assert len(store.objects) == len(w.files[2, 5]) == 60
    with pytest.raises(StoreError, match="full"):
        written(MemoryStore(fault=failing(StoreError("full"), "put", "/00059/")), *(batch((p, 0)) for p in range(60)))


def test_small_objects_upload_concurrently_and_large_ones_from_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    from_disk: list[str] = []

    class Store(MemoryStore):
        puts, most, lock = 0, 0, threading.Lock()

        def put_file(self, key: str, path: Path) -> None:
            from_disk.append(key)
            super().put_file(key, path)

        def put_bulk(self, key: str, body: bytes) -> None:
            with self.lock:
                self.puts += 1
                self.most = max(self.most, self.puts)
            time.sleep(0.002)
            super().put_bulk(key, body)
            with self.lock:
                self.puts -= 1

    store = Store()
    with Parallel(32) as threads:
        arriving = (batch((p, 0)) for p in range(200))
        write_l1(store, TOPICS, 1, arriving, Runtime(store.clock), threads, alone=TOPICS)
    assert len(store.objects) == 200
    assert 8 <= store.most <= 32
    assert not from_disk
    monkeypatch.setattr(write, "_ROW_GROUP_BYTES", 100)
    for part_bytes, n in ((1 << 20, 0), (1, 1)):
        monkeypatch.setattr(write, "_PART_BYTES", part_bytes)
        write_l1(store, TOPICS, 1, [batch(*span(0, 0, 9))], Runtime(store.clock), Parallel())
        assert len(from_disk) == n
    assert len(store.objects) == 202


def test_the_next_partitions_are_written_while_files_are_uploaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "_TASK_BYTES", 1)
    monkeypatch.setattr(write, "_PART_BYTES", 1)
    monkeypatch.setattr(write, "_ROW_GROUP_BYTES", 100)
    finish, finished, more_than_cores = write.L1Writer.finish, list[object](), threading.Event()

    def counted(writer: write.L1Writer) -> None:
        finish(writer)
        finished.append(writer)
        if len(finished) == 4:
            more_than_cores.set()

    class Store(MemoryStore):
        def put_file(self, key: str, path: Path) -> None:
            assert more_than_cores.wait(20)
            super().put_file(key, path)

    monkeypatch.setattr(write.L1Writer, "finish", counted)
    store = Store()
    with Parallel(8, cores=2) as threads:
        w = write_l1(store, TOPICS, 1, [batch(*span(p, 0, 9)) for p in range(6)], Runtime(store.clock), threads)
    assert len(store.objects) == len(w.files[2, 5]) == 6


PLACES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 12), st.integers(1, 5)), max_size=12
)  # partition, first offset, records


@settings(max_examples=100)
@given(
    PLACES,
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 15)), max_size=3),
    st.sampled_from([0, 1 << 20]),
    st.sampled_from([2, 64]),
)
def test_each_partition_gets_its_longest_run_from_the_first_record_on(
    spans: Sequence[tuple[int, int, int]], damaged: Sequence[Place], held_bytes: int, sharing: int
) -> None:
    """The rule holds for partitions that share an object, too."""
    with mock.patch.object(share, "LEAST_PARTITIONS", sharing):
        _check_runs(spans, damaged, held_bytes)


def _check_runs(spans: Sequence[tuple[int, int, int]], damaged: Sequence[Place], held_bytes: int) -> None:
    store = MemoryStore()
    arriving: list[Row] = [batch(*span(p, first, first + n)) for p, first, n in spans]
    arriving += [fault(place) for place in damaged]
    with Parallel(2) as threads:
        w = write_l1(store, TOPICS, 12, arriving, Runtime(store.clock), threads, held_bytes)
    expected: dict[tuple[int, int], list[int]] = {}
    for p in range(4):
        there = {o for q, first, n in spans if q == p for o in range(first, first + n)}
        limit = min((b for q, b in damaged if q == p), default=99)
        at = min(there, default=99)
        run = []
        while at in there and at < limit:
            run.append(at)
            at += 1
        if run:
            expected[REVISION, p] = run
    assert content(store, w) == expected


def test_partitions_are_written_on_all_cores_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "_TASK_BYTES", 1)
    arriving = [batch(*span(p, 0, 20), *span(p, 20, 30)) for p in range(6)]
    alone, finish, both = MemoryStore(), write.L1Writer.finish, threading.Barrier(2, timeout=20)
    expected = content(alone, written(alone, *arriving))

    def at_once(writer: write.L1Writer) -> None:
        both.wait()
        finish(writer)

    monkeypatch.setattr(write.L1Writer, "finish", at_once)
    store = MemoryStore()
    with Parallel(4, cores=2) as threads:
        w = write_l1(store, TOPICS, 12, arriving, Runtime(store.clock), threads)
    assert content(store, w) == expected


def test_an_error_on_one_core_ends_writing_after_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "_TASK_BYTES", 1)
    under_way: set[str] = set()
    finish = write.L1Writer.finish

    def failing_at_two(writer: write.L1Writer) -> None:
        under_way.add(str(writer.partition))
        if writer.partition.partition == 2:
            raise CorruptObjectError("two")
        time.sleep(0.02)
        finish(writer)
        under_way.discard(str(writer.partition))

    monkeypatch.setattr(write.L1Writer, "finish", failing_at_two)
    store = MemoryStore()
    with Parallel(4, cores=3) as threads, pytest.raises(CorruptObjectError, match="two"):
        write_l1(store, TOPICS, 1, [batch((p, 0)) for p in range(30)], Runtime(store.clock), threads)
    assert len(under_way) == 1
