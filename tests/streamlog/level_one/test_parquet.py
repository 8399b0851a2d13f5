"""L0 to L1: every record once and in order, and nothing that does not match the log."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from l0gc.errors import CorruptObjectError, ObjectNotFoundError, StoreError
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.ingest.partitioner import ByField
from l0gc.streamlog.journal.entries import L1File
from l0gc.streamlog.level_one import parquet
from l0gc.streamlog.level_one.commit import plan_run
from l0gc.streamlog.level_one.parquet import L1_SCHEMA, read_object, write_l1
from l0gc.streamlog.level_one.plan import ObjectRead, Plan
from tests.support.ingest import upload
from tests.support.memory_store import Call, MemoryStore, memory_cluster
from tests.support.reconcile import l1_rows, write_plan


def uploaded(tmp_path: Path, records: int = 40, partitions: int = 2) -> tuple[Cluster, Plan]:
    """Records with keys, in batches of eight, and what there is to reconcile."""
    cluster = memory_cluster()
    cluster.controller.create_topic("events", partitions)
    path = tmp_path / "in"
    path.write_bytes(b"".join(b'{"k":%d}\n' % n for n in range(records)))
    upload(cluster, "events", [path], partitioner=ByField("k", partitions), batch_bytes=8 * 24)
    plan, errors = plan_run(cluster, "events")
    assert not errors
    return cluster, plan


def store_of(cluster: Cluster) -> MemoryStore:
    assert isinstance(cluster.store, MemoryStore)
    return cluster.store


def table_of(cluster: Cluster, file: L1File) -> pa.Table:
    return pq.read_table(pa.BufferReader(cluster.store.get(file.key).body))


def test_l1_holds_every_record_with_its_offset_time_key_and_epoch(tmp_path: Path) -> None:
    cluster, plan = uploaded(tmp_path)
    found: list[int] = []
    for index, files in write_plan(cluster, plan).items():
        (file,) = files
        table = table_of(cluster, file)
        assert table.schema.equals(L1_SCHEMA)
        p = plan.partitions[index]
        assert (file.base_offset, file.last_offset) == (p.base_offset, p.last_offset)
        assert file.key.startswith(f"level_one/data/events-1/{p.partition:05}/{0:020}-{p.last_offset:020}-")
        assert file.bytes == len(cluster.store.get(file.key).body)
        assert table["offset"].to_pylist() == list(range(p.last_offset + 1))
        assert set(table["epoch"].to_pylist()) == {cluster.controller.epoch()}
        values = [msgspec.json.decode(v)["k"] for v in table["value"].to_pylist()]
        assert values == sorted(values)
        assert [int(k) for k in table["key"].to_pylist()] == values
        assert {t.timestamp() * 1000 for t in table["timestamp"].to_pylist()} == {store_of(cluster).clock.ms}
        found += values
    assert sorted(found) == list(range(40))


@pytest.mark.parametrize("damage", ["flip", "cut", "swap"])
def test_an_extent_that_does_not_match_the_log_is_named_and_no_l1_is_written(tmp_path: Path, damage: str) -> None:
    cluster, plan = uploaded(tmp_path)
    store, victim = store_of(cluster), plan.objects[2].key
    body = store.objects[victim].body
    store.objects[victim].body = {
        "flip": body[:50] + bytes([body[50] ^ 1]) + body[51:],
        "cut": body[:-1],
        "swap": store.objects[plan.objects[1].key].body,
    }[damage]
    with pytest.raises(CorruptObjectError, match=f"^{victim} at bytes "):
        write_plan(cluster, plan)
    assert not [k for k in store.objects if k.startswith("level_one/")]


def test_a_missing_object_is_told_apart_from_a_damaged_one(tmp_path: Path) -> None:
    cluster, plan = uploaded(tmp_path)
    del store_of(cluster).objects[plan.objects[0].key]
    with pytest.raises(ObjectNotFoundError, match=plan.objects[0].key):
        list(read_object(cluster.store, plan.objects[0]))


def test_only_the_extents_of_the_plan_are_read(tmp_path: Path) -> None:
    cluster, plan = uploaded(tmp_path)
    read = plan.objects[0]
    assert len(read.extents) == 2
    ((index, batch),) = read_object(cluster.store, ObjectRead(read.key, read.extents[1:]))
    assert (index, batch.num_rows) == (read.extents[1].index, read.extents[1].placeholder.records)


@pytest.mark.parametrize(
    "wrong", ["first missing", "middle missing", "last missing", "swapped", "twice", "all missing"]
)
def test_records_that_are_not_exactly_the_plans_are_refused(tmp_path: Path, wrong: str) -> None:
    cluster, plan = uploaded(tmp_path, partitions=1)
    rows = l1_rows(cluster, plan)
    assert len(rows) == 5
    changed = {
        "first missing": rows[1:],
        "middle missing": [*rows[:2], *rows[3:]],
        "last missing": rows[:-1],
        "swapped": [rows[0], rows[2], rows[1], *rows[3:]],
        "twice": [rows[0], rows[0], *rows[1:]],
        "all missing": rows[:0],
    }[wrong]
    with_gap = write_l1(cluster.store, {0: plan.partitions[0]}, changed, cluster.runtime)
    if wrong == "all missing":
        assert list(with_gap) == []  # and so there is nothing to commit: see `commit_entry`
        return
    with pytest.raises(CorruptObjectError, match=r"partition events/0: "):
        list(with_gap)


@pytest.mark.parametrize("offsets", [[0, 2, 1, 3], [0, 1, 1, 3], [-1, 1, 2, 3], [0, 1, 2, 4], [1, 2, 3, 4]])
def test_offsets_inside_a_batch_must_continue(tmp_path: Path, offsets: list[int]) -> None:
    cluster, plan = uploaded(tmp_path, records=4, partitions=1)
    (row,) = l1_rows(cluster, plan)
    turned = row.set_column(1, "offset", pa.array(offsets, pa.int64()))
    message = f"records {offsets[0]} to {offsets[-1]} arrived where 0 is next"
    with pytest.raises(CorruptObjectError, match=message):
        list(write_l1(cluster.store, {0: plan.partitions[0]}, [turned], cluster.runtime))


def test_large_plans_become_several_files_without_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "_ROW_GROUP_BYTES", 1)
    monkeypatch.setattr(parquet, "FILE_BYTES", 500)
    cluster, plan = uploaded(tmp_path, partitions=1)
    files = write_plan(cluster, plan)[0]
    assert len(files) > 1
    at = 0
    for f in files:
        assert table_of(cluster, f)["offset"].to_pylist() == list(range(at, f.last_offset + 1))
        assert f.base_offset == at
        at = f.last_offset + 1
    assert at == 40


def test_plans_that_share_a_batch_of_rows_are_kept_apart(tmp_path: Path) -> None:
    cluster, plan = uploaded(tmp_path)
    rows = pa.Table.from_batches(l1_rows(cluster, plan)).combine_chunks().to_batches()
    assert len(rows) == 1
    plans = {p.index: p for p in plan.partitions}
    files = dict(write_l1(cluster.store, plans, rows, cluster.runtime))
    assert {i: (f.base_offset, f.last_offset) for i, f in files.items()} == {
        i: (p.base_offset, p.last_offset) for i, p in plans.items()
    }


def test_a_file_is_named_only_when_it_is_stored(tmp_path: Path) -> None:
    """Hazard 9: what a driver is told of is durable."""
    cluster, plan = uploaded(tmp_path)

    def fault(call: Call) -> None:
        if call.kind == "put" and call.key.startswith("level_one/"):
            raise StoreError("no room")

    rows = l1_rows(cluster, plan)
    store_of(cluster).fault = fault
    plans = {p.index: p for p in plan.partitions}
    named = write_l1(cluster.store, plans, rows, cluster.runtime)
    with pytest.raises(StoreError, match="no room"):
        next(named)
