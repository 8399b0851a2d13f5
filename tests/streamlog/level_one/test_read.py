"""L0 to columns: each wanted record with its place, and an error for bytes that do not match the journal."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from l0gc.errors import StoreError
from l0gc.storage.parallel import Parallel
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.ingest import extents
from l0gc.streamlog.ingest.extents import BLOCK_BYTES
from l0gc.streamlog.level_one import read, reconcile
from l0gc.streamlog.level_one.plan import Fault, ObjectRead, writers_of
from l0gc.streamlog.level_one.read import ROWS, Row, read_rows
from tests.support.memory_store import FakeClock, failing, memory_cluster, store_of, topic_in_memory
from tests.support.reconcile import Records, planned, put
from tests.support.reconcile import reconcile as lift

LARGE = b"x" * BLOCK_BYTES


def uploaded(*objects: Records, partitions: int = 8, journals: int = 1) -> ClusterHandles:
    cluster = topic_in_memory(partitions, journals)
    put(cluster, "events", *objects)
    return cluster


def reads(cluster: ClusterHandles) -> list[ObjectRead]:
    r = planned(cluster)
    return [read for _, read in reconcile.Lift(r).hand_out(cluster, range(len(r.takes)))]


def rows_of(cluster: ClusterHandles, objects: Sequence[ObjectRead], writers: int = 1) -> list[tuple[int, Row]]:
    needed = reconcile.still_needed(cluster.journal)
    return list(read_rows(cluster.store, objects, writers, needed, Parallel()))


def records(found: Sequence[tuple[int, Row]]) -> dict[tuple[int, int], bytes]:
    """Map (partition, offset) to the value, and check each batch."""
    values: dict[tuple[int, int], bytes] = {}
    for _, batch in found:
        if isinstance(batch, Fault):
            continue
        assert batch.schema.equals(ROWS)
        batch.validate(full=True)
        for p, offset, value in zip(
            *(batch.column(c).to_pylist() for c in ("partition", "offset", "value")), strict=True
        ):
            assert (p, offset) not in values
            values[p, offset] = value
    return values


def faults(found: Sequence[tuple[int, Row]]) -> list[Fault]:
    return [f for _, f in found if isinstance(f, Fault)]


def test_every_record_comes_with_its_journal_revision_partition_offset_and_epoch() -> None:
    cluster = uploaded({0: [b"a", b"k:b"], 5: [b"c"]}, {5: [b"d"], 0: [b"e"]}, journals=2)
    found = rows_of(cluster, reads(cluster))
    assert records(found) == {(0, 0): b"a", (0, 1): b"k:b", (0, 2): b"e", (5, 0): b"c", (5, 1): b"d"}
    (table,) = [pa.Table.from_batches([b for _, b in found if not isinstance(b, Fault)])]
    assert set(table["revision"].to_pylist()) == {1}
    assert set(table["epoch"].to_pylist()) == {1}
    assert dict(zip(table["partition"].to_pylist(), table["journal"].to_pylist(), strict=True)) == {0: 0, 5: 1}
    assert dict(zip(table["value"].to_pylist(), table["key"].to_pylist(), strict=True))[b"k:b"] == b"k"
    (time,) = {t.timestamp() * 1000 for t in table["timestamp"].to_pylist()}
    assert FakeClock().ms <= time <= store_of(cluster).clock.ms


def test_batches_are_in_order_of_partition_and_offset_for_each_writer() -> None:
    cluster = uploaded(*({p: [b"%d-%d" % (n, p)] * 2 for p in range(n % 3, 8, 2)} for n in range(9)))
    for writers in (1, 3):
        found = rows_of(cluster, reads(cluster), writers)
        assert len(records(found)) == 2 * sum(len(range(n % 3, 8, 2)) for n in range(9))
        for writer, batch in found:
            assert not isinstance(batch, Fault)
            places = list(zip(batch.column("partition").to_pylist(), batch.column("offset").to_pylist(), strict=True))
            assert places == sorted(places)
            assert set(writers_of(1, np.array([p for p, _ in places]), writers).tolist()) == {writer}


def test_what_is_in_l1_is_not_read_again() -> None:
    cluster = uploaded({0: [LARGE], 1: [b"a"], 2: [b"b"], 3: [LARGE]})
    (before,) = reads(cluster)
    assert len(before.object.needed) == 3
    lift(cluster)
    assert reads(cluster) == []
    put(cluster, "events", {0: [LARGE], 1: [b"c"], 2: [b"d"], 3: [LARGE]})
    (new,) = reads(cluster)
    only = new.object.extents[new.object.extents["partition"] == 2]
    found = rows_of(cluster, [ObjectRead(0, 1, msgspec.structs.replace(new.object, extents=only))])
    assert records(found) == {(2, 1): b"d"}


@pytest.mark.parametrize("wanted", [[1, 3], [0, 2], [2], [0, 1, 2, 3], [3]])
def test_any_of_the_extents_of_a_block_can_be_taken(wanted: list[int]) -> None:
    cluster = uploaded({p: [b"%d.%d" % (p, n) for n in range(p + 1)] for p in range(4)})
    (whole,) = reads(cluster)
    only = whole.object.extents[np.isin(whole.object.extents["partition"], wanted)]
    found = rows_of(cluster, [ObjectRead(0, 1, msgspec.structs.replace(whole.object, extents=only))])
    assert records(found) == {(p, n): b"%d.%d" % (p, n) for p in wanted for n in range(p + 1)}


@pytest.mark.parametrize("damage", ["flip", "cut", "swap"])
def test_a_damaged_block_names_its_partitions_and_others_continue(damage: str) -> None:
    objects = [{0: [b"a%d" % n, LARGE], 1: [b"b%d" % n], 2: [b"c%d" % n], 3: [LARGE]} for n in range(3)]
    cluster = uploaded(*objects)
    store, (_, second, third) = store_of(cluster), reads(cluster)
    body, block = store.objects[second.object.key].body, second.object.block(1)
    at = block.start + 10
    store.objects[second.object.key].body = {
        "flip": body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :],
        "cut": body[: block.start + block.length - 1],
        "swap": body[: block.start] + store.objects[third.object.key].body[block.start :],
    }[damage]
    found = rows_of(cluster, reads(cluster), 1)
    of_block = faults(found)[0]
    assert of_block.message.startswith(f"{second.object.key} at bytes {block.start} to {block.start + block.length} ")
    assert (of_block.partitions.tolist(), of_block.bases.tolist()) == ([1, 2], [1, 1])
    lost = {(int(p), int(base)) for f in faults(found) for p, base in zip(f.partitions, f.bases, strict=True)}
    assert {p for p, _ in lost} == {"flip": {1, 2}, "cut": {1, 2, 3}, "swap": {1, 2}}[damage]
    expected = {(p, n) for n in range(3) for p in (1, 2, 3)} - lost | {(0, n) for n in range(6)}
    assert set(records(found)) == expected


def test_an_extent_that_claims_more_rows_than_its_block_has_is_named() -> None:
    cluster = uploaded({0: [b"a"], 1: [b"b"], 2: [b"c"]})
    (whole,) = reads(cluster)
    longer = whole.object.extents.copy()
    longer["records"][2] = 2
    found = rows_of(cluster, [ObjectRead(0, 1, msgspec.structs.replace(whole.object, extents=longer))])
    (fault,) = faults(found)
    assert "holds 3 records, fewer than the journal records" in fault.message
    assert fault.partitions.tolist() == [2]
    assert set(records(found)) == {(0, 0), (1, 0)}


def test_a_missing_object_is_a_fault_of_all_its_partitions() -> None:
    cluster = uploaded({0: [b"a"], 1: [b"b"]}, {0: [b"c"]})
    first, _ = reads(cluster)
    plan = reads(cluster)
    del store_of(cluster).objects[first.object.key]
    found = rows_of(cluster, plan, 2)
    assert {f.message for f in faults(found)} == {
        f"memory://{first.object.key} does not exist; restore that object from a version"
    }
    assert sorted(p for f in faults(found) for p in f.partitions.tolist()) == [0, 1]
    assert {w for w, f in found if isinstance(f, Fault)} == {0, 1}
    assert set(records(found)) == {(0, 1)}


def test_an_object_lifted_and_swept_by_others_is_not_a_fault() -> None:
    """Hazard 19, for reconcilers: the journal is read again before a missing object is called lost."""
    cluster = uploaded({0: [b"a"], 1: [b"b"]})
    plan = reads(cluster)
    lift(memory_cluster(store_of(cluster), seed=1, bootstrap=False))
    del store_of(cluster).objects[plan[0].object.key]
    assert rows_of(cluster, plan) == []


def test_an_object_of_a_topic_that_was_deleted_meanwhile_is_no_fault() -> None:
    cluster = uploaded({0: [b"a"]})
    plan = reads(cluster)
    del store_of(cluster).objects[plan[0].object.key]
    cluster.controller.delete_topic("events")
    cluster.journal(0).close(1)
    assert rows_of(cluster, plan) == []


def test_where_the_journal_cannot_be_read_a_missing_object_stays_a_fault() -> None:
    cluster = uploaded({0: [b"a"]})
    plan = reads(cluster)
    store = store_of(cluster)
    del store.objects[plan[0].object.key]
    for key in [k for k in store.objects if k.startswith("l0gc/journal/0000/log/")]:
        store.objects[key].body = b"?"
    other = memory_cluster(store, seed=1, bootstrap=False)
    assert [f.partitions.tolist() for f in faults(rows_of(other, plan))] == [[0]]


@pytest.mark.parametrize("truncated", [False, True])
def test_a_refused_or_short_object_is_a_named_fault(truncated: bool) -> None:
    """Some stores answer a range beyond the end with their own error."""
    cluster = uploaded({0: [b"a"]})
    plan = reads(cluster)
    store = store_of(cluster)
    if truncated:
        store.objects[plan[0].object.key].body = b"short"
    store.fault = failing(StoreError("416"), "get", plan[0].object.key)
    (found,) = faults(rows_of(cluster, plan))
    assert ("has 5 bytes, but the log records" if truncated else "416") in found.message


def test_objects_are_decoded_on_all_cores_and_come_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = uploaded(*({0: [b"%d" % n]} for n in range(8)))
    decode, both = extents.decode_block, threading.Barrier(2, timeout=20)

    def at_once(*arguments: Any) -> pa.RecordBatch:
        both.wait()
        return decode(*arguments)

    monkeypatch.setattr(read, "decode_block", at_once)
    monkeypatch.setattr(read, "BATCH_BYTES", 1)
    needed = reconcile.still_needed(cluster.journal)
    with Parallel(4, cores=2) as threads:
        found = [row for _, row in read_rows(cluster.store, reads(cluster), 1, needed, threads)]
    assert [r.column("offset").to_pylist() for r in found if not isinstance(r, Fault)] == [[n] for n in range(8)]


def test_records_are_read_in_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "BATCH_BYTES", 1000)
    cluster = uploaded(*({p: [b"x" * 50] for p in range(8)} for _ in range(20)))
    found = rows_of(cluster, reads(cluster))
    assert len(found) > 5
    assert len(records(found)) == 160


def test_thousands_of_tiny_extents_cost_no_python_object_each() -> None:
    """Whole blocks become columns, so 16,384 extents take few batches and few calls."""
    cluster = uploaded({p: [b"%d" % p] for p in range(16_384)}, partitions=16_384)
    plan = reads(cluster)
    calls: list[int] = []
    needed = reconcile.still_needed(cluster.journal)

    def counted() -> Iterator[tuple[int, Row]]:
        for writer, batch in read_rows(cluster.store, plan, 4, needed, Parallel()):
            calls.append(1)
            yield writer, batch

    assert records(list(counted())) == {(p, 0): b"%d" % p for p in range(16_384)}
    assert len(calls) == 4


@settings(max_examples=40)
@given(
    st.lists(
        st.dictionaries(
            st.integers(0, 7), st.lists(st.binary(max_size=6), min_size=1, max_size=4), min_size=1, max_size=5
        ),
        min_size=1,
        max_size=6,
    ),
    st.integers(1, 5),
    st.integers(1, 200),
    st.integers(1, 3),
)
def test_all_that_was_uploaded_is_read_once(
    objects: list[dict[int, list[bytes]]], writers: int, batch_bytes: int, journals: int
) -> None:
    cluster = uploaded(*objects, journals=journals)
    expected: dict[tuple[int, int], bytes] = {}
    ends = [0] * 8
    for o in objects:
        for p, values in o.items():
            for value in values:
                expected[p, ends[p]] = value
                ends[p] += 1
    with pytest.MonkeyPatch.context() as patch, Parallel(2) as threads:
        patch.setattr(read, "BATCH_BYTES", batch_bytes)
        needed = reconcile.still_needed(cluster.journal)
        assert records(list(read_rows(cluster.store, reads(cluster), writers, needed, threads))) == expected


def test_a_row_is_checked_before_it_is_believed() -> None:
    """The checksum is compared first, so bytes that are not a block are never decoded."""
    cluster = uploaded({0: [b"a"]})
    plan = reads(cluster)
    store_of(cluster).objects[plan[0].object.key].body = b"?" * plan[0].object.bytes
    (fault,) = faults(rows_of(cluster, plan))
    assert "does not match the checksum in the log" in fault.message
