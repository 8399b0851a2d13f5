"""Reading: L1 below the last reconciled offset, L0 above it, each record once, whatever happens meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from l0gc.collect.local import LocalSweep
from l0gc.errors import CorruptObjectError, PartitionClosedError
from l0gc.inspect.status import status
from l0gc.storage.parallel import Inline
from l0gc.streamlog import reader
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.housekeep import housekeep
from l0gc.streamlog.ingest.partitioner import ByField
from l0gc.streamlog.journal.handle import PartitionHandle
from l0gc.streamlog.level_one import parquet
from l0gc.streamlog.level_one.commit import commit_run, plan_run
from l0gc.streamlog.reader import Record, read_partition
from l0gc.watermark.publication import PublishedWatermark, publish
from tests.support.ingest import upload
from tests.support.memory_store import MemoryStore, memory_cluster
from tests.support.reconcile import reconcile, write_plan


def put(cluster: Cluster, tmp_path: Path, first: int, count: int) -> None:
    """Upload the records `first` and so on, five to an L0 object; a record's value is its offset."""
    path = tmp_path / "in"
    path.write_bytes(b"".join(value(n) + b"\n" for n in range(first, first + count)))
    upload(cluster, "events", [path], partitioner=ByField("n", 1), batch_bytes=5 * (11 + 16))


def value(n: int) -> bytes:
    return b'{"n":"%03d"}' % n


def new_cluster(tmp_path: Path, *, reconciled: int = 0, unreconciled: int = 0) -> Cluster:
    cluster = memory_cluster()
    cluster.controller.create_topic("events", 1)
    if reconciled:
        put(cluster, tmp_path, 0, reconciled)
        reconcile(cluster)
    if unreconciled:
        put(cluster, tmp_path, reconciled, unreconciled)
    return cluster


def another_process(cluster: Cluster) -> Cluster:
    return memory_cluster(store_of(cluster), seed=1, bootstrap=False)


def store_of(cluster: Cluster) -> MemoryStore:
    assert isinstance(cluster.store, MemoryStore)
    return cluster.store


def handle_of(cluster: Cluster) -> PartitionHandle:
    return cluster.partition(cluster.controller.snapshot().topic("events").ids()[0])


def read(cluster: Cluster, start: int = 0) -> Iterator[Record]:
    return read_partition(cluster.store, handle_of(cluster), start)


def numbers(records: Iterator[Record]) -> list[int]:
    """The offsets, each record checked to be the one that belongs there."""
    found = []
    for r in records:
        assert r.value == value(r.offset)
        found.append(r.offset)
    return found


def sweep(cluster: Cluster) -> int:
    """Let M follow the epoch, publish it, and delete what it allows; returns how many objects."""
    for _ in range(2):
        cluster.controller.advance()
        housekeep(cluster, barrier=True)
    state = cluster.controller.snapshot()
    m = status(cluster).computable
    assert m is not None
    publish(cluster.store, cluster.runtime, PublishedWatermark(state.cluster_id, m, state.epoch, 0))
    return LocalSweep(cluster).run(Inline()).deleted


# -- what there is -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("reconciled", "unreconciled"), [(0, 0), (0, 12), (12, 0), (12, 13)])
@pytest.mark.parametrize("start", [0, 1, 11, 12, 13, 24, 25, 99])
def test_every_record_from_an_offset_on(tmp_path: Path, reconciled: int, unreconciled: int, start: int) -> None:
    cluster = new_cluster(tmp_path, reconciled=reconciled, unreconciled=unreconciled)
    expected = list(range(start, reconciled + unreconciled))
    assert numbers(read(another_process(cluster), start)) == expected


def test_a_record_has_its_partition_time_key_and_value(tmp_path: Path) -> None:
    cluster = new_cluster(tmp_path, reconciled=1, unreconciled=1)
    now = store_of(cluster).clock.ms
    assert list(read(cluster)) == [Record(0, n, now, b"%03d" % n, value(n)) for n in (0, 1)]


def test_l1_is_read_in_pieces_and_over_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "_ROW_GROUP_BYTES", 1)
    monkeypatch.setattr(parquet, "FILE_BYTES", 500)
    monkeypatch.setattr(reader, "_ROWS", 3)
    cluster = new_cluster(tmp_path, reconciled=40, unreconciled=3)
    assert len(handle_of(cluster).state.l1) > 1
    for start in (0, 7, 17, 39):
        assert numbers(read(cluster, start)) == list(range(start, 43))


def test_reading_ends_where_the_log_was_when_it_began(tmp_path: Path) -> None:
    cluster = new_cluster(tmp_path, unreconciled=10)
    records = read(cluster)
    first = next(records)
    put(another_process(cluster), tmp_path, 10, 10)
    assert [first.offset, *numbers(records)] == list(range(10))


# -- what happens meanwhile --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [1, 5, 12, 17])
@pytest.mark.parametrize("same_process", [False, True])
def test_what_is_reconciled_and_swept_meanwhile_is_read_from_l1(tmp_path: Path, after: int, same_process: bool) -> None:
    """Hazard 19: the object is gone between the replay that named it and the read of it."""
    cluster = new_cluster(tmp_path, reconciled=10, unreconciled=15)
    worker = cluster if same_process else another_process(cluster)
    before = len([k for k in store_of(cluster).objects if k.startswith("level_zero/")])

    records = read(cluster)
    found = [next(records).offset for _ in range(after)]  # the reader has looked at the log
    reconcile(worker)
    assert sweep(worker) == before == 5
    assert [*found, *numbers(records)] == list(range(25))


@pytest.mark.parametrize("same_process", [False, True])
def test_what_is_partly_reconciled_meanwhile_leaves_no_hole(tmp_path: Path, same_process: bool) -> None:
    """Hazard 19: a run that planned before the last upload commits while L1 is being read."""
    cluster = new_cluster(tmp_path, reconciled=10, unreconciled=10)
    worker = cluster if same_process else another_process(cluster)
    plan, _ = plan_run(worker, None)
    files = write_plan(worker, plan)
    put(another_process(cluster), tmp_path, 20, 5)
    records = read(cluster)
    first = next(records)
    commit_run(worker, plan, files, lambda warning: None)
    assert [first.offset, *numbers(records)] == list(range(25))


def test_each_of_many_moves_under_the_reader_is_survived(tmp_path: Path) -> None:
    """Hazard 19, again and again: whenever a record is read, what follows is reconciled and swept."""
    cluster = new_cluster(tmp_path)
    worker = another_process(cluster)
    for first in range(0, 40, 10):
        put(worker, tmp_path, first, 10)
    found = []
    for n, record in enumerate(read(cluster)):
        assert record.value == value(record.offset)
        found.append(record.offset)
        if n % 7 == 0:
            reconcile(worker)
            sweep(worker)
    assert found == list(range(40))


def test_a_topic_that_is_deleted_and_swept_meanwhile_is_no_loss(tmp_path: Path) -> None:
    cluster = new_cluster(tmp_path, unreconciled=15)
    worker = another_process(cluster)
    records = read(cluster)
    next(records)
    for p in worker.controller.delete_topic("events").ids():
        worker.partition(p).close()
    assert sweep(worker) == 3
    with pytest.raises(PartitionClosedError, match="'events'"):
        list(records)


# -- what is really lost -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("level", "at"), [("level_zero/", 12), ("level_one/", 0)])
def test_an_object_that_the_log_needs_and_that_is_gone_is_a_loss(tmp_path: Path, level: str, at: int) -> None:
    cluster = new_cluster(tmp_path, reconciled=12, unreconciled=5)
    needed = {u.placeholder.key for u in handle_of(cluster).state.placeholders}
    (key,) = (k for k in store_of(cluster).objects if k.startswith(level) and ("zero" not in level or k in needed))
    del store_of(cluster).objects[key]
    records = read(another_process(cluster))
    assert [next(records).offset for _ in range(at)] == list(range(at))
    with pytest.raises(CorruptObjectError, match=f"{key} does not exist, though .* record {at}; restore"):
        next(records)


@pytest.mark.parametrize("level", ["level_zero/", "level_one/"])
@pytest.mark.parametrize("damage", ["cut", "empty", "garbage"])
def test_an_object_that_is_damaged_is_named(tmp_path: Path, level: str, damage: str) -> None:
    cluster = new_cluster(tmp_path, reconciled=12, unreconciled=5)
    needed = {u.placeholder.key for u in handle_of(cluster).state.placeholders}
    (key,) = (k for k in store_of(cluster).objects if k.startswith(level) and ("zero" not in level or k in needed))
    o = store_of(cluster).objects[key]
    o.body = {"cut": o.body[:-20], "empty": b"", "garbage": bytes(len(o.body))}[damage]
    with pytest.raises(CorruptObjectError, match=key):
        list(read(another_process(cluster)))


@pytest.mark.parametrize("wrong", ["fewer", "other"])
def test_an_l1_object_with_other_records_than_the_log_says_is_named(tmp_path: Path, wrong: str) -> None:
    cluster = new_cluster(tmp_path, reconciled=12)
    if wrong == "fewer":
        other = new_cluster(tmp_path, reconciled=7)
    else:
        other = new_cluster(tmp_path, reconciled=3)
        put(other, tmp_path, 3, 12)
        reconcile(other)
    (key,) = (f.key for f in handle_of(cluster).state.l1)
    file = handle_of(other).state.l1[-1]
    store_of(cluster).objects[key] = store_of(other).objects[file.key]
    handle_of(cluster).state.l1[0] = type(file)(key, 0, 11, file.bytes)
    with pytest.raises(CorruptObjectError, match=key):
        list(read(cluster))
