"""A full store can be cleaned: the run record goes to a local folder, or nowhere if an option says so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import l0gc.collect.run
from l0gc.collect.deletion import set_pause
from l0gc.collect.history import list_runs, show_run
from l0gc.collect.record import DELETED, PLANNED, FolderRecords, read_segment
from l0gc.collect.sweep import SweepRun
from l0gc.errors import AccessDeniedError, L0gcError, NotFoundError, ObjectNotFoundError, StoreError, UsageError
from l0gc.keys import RUNS
from l0gc.operations import Sweep
from l0gc.streamlog.cluster import ClusterHandles
from tests.collect.test_sweep_local import a_cluster, expected_garbage, level_zero
from tests.support.memory_store import Call, failing, store_of


def a_full_cluster(error: type[StoreError] = StoreError) -> ClusterHandles:
    """Create a cluster whose store refuses every write, like a full disk, but still reads and deletes."""
    cluster = a_cluster()
    store_of(cluster).fault = failing(error("507 InsufficientStorage: no room left"), "put*")
    return cluster


def test_a_pause_of_a_full_store_advises_no_sweep() -> None:
    full = StoreError("the store is full (507 X) and does not take k; add space, or delete what may go: l0gc sweep")
    cluster = a_cluster()
    store_of(cluster).fault = failing(full, "put*")
    with pytest.raises(StoreError, match=r"sweeps are not paused: the store is full .* take k; stop the jobs") as e:
        set_pause(cluster.store, "audit", "ann")
    assert "l0gc sweep" not in str(e.value)


@pytest.mark.parametrize("error", [StoreError, AccessDeniedError])
def test_a_full_store_is_not_swept_without_a_record(error: type[StoreError]) -> None:
    cluster = a_full_cluster(error)
    before = level_zero(cluster)
    with pytest.raises(error, match=r"no room left; .*--record-dir DIR.*--no-record"):
        SweepRun(cluster).run()
    assert level_zero(cluster) == before


def test_a_full_store_is_swept_with_its_record_in_a_folder(tmp_path: Path) -> None:
    cluster = a_full_cluster()
    before, garbage = level_zero(cluster), expected_garbage(cluster, 4)
    result = SweepRun(cluster, Sweep(record_dir=tmp_path / "deep" / "records")).run()
    assert (result.deleted, level_zero(cluster)) == (len(garbage), before - garbage)
    assert not [k for k in store_of(cluster).objects if k.startswith(RUNS)]
    records = FolderRecords(tmp_path / "deep" / "records")
    runs, total = list_runs(records, 5)
    assert ([r.run_id for r in runs], total) == ([result.run_id], 1)
    assert runs[0].summary is not None
    assert (runs[0].summary.outcome, runs[0].summary.objects) == ("done", len(garbage))
    shown = show_run(cluster, result.run_id, records=records)
    assert shown.by_status == {DELETED: len(garbage)}
    with pytest.raises(NotFoundError):
        show_run(cluster, result.run_id)


def test_a_record_file_is_on_disk_when_the_write_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power failure loses everything without an `fsync`: content, a name, or a new folder's name in its parent."""
    synced = dict[Path, set[str] | bytes]()

    def fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        synced[path] = {p.name for p in path.iterdir()} if path.is_dir() else path.read_bytes()

    monkeypatch.setattr(os, "fsync", fsync)
    top = tmp_path / "deep" / "records"
    FolderRecords.created(top).put("l0gc/runs/a/b", b"segment")
    assert b"segment" in synced.values()
    path = top / "l0gc" / "runs" / "a" / "b"
    while path != tmp_path:
        assert path.name in synced[path.parent]
        path = path.parent


def test_a_full_store_is_swept_without_a_record_by_name(tmp_path: Path) -> None:
    cluster = a_full_cluster()
    garbage = expected_garbage(cluster, 4)
    assert SweepRun(cluster, Sweep(record=False)).run().deleted == len(garbage)
    assert level_zero(cluster) & garbage == set()
    assert list(tmp_path.iterdir()) == []


def test_a_killed_runs_deletions_are_recorded_locally_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(l0gc.collect.run, "SEGMENT_OBJECTS", 10)
    cluster = a_full_cluster()
    full = store_of(cluster).fault
    records = FolderRecords(tmp_path)

    def fault(call: Call) -> None:
        full(call)
        if call.kind == "delete":
            if call.when == "after":
                raise KeyboardInterrupt  # the process dies without recording the segment's end
            (segment,) = [k for k in records.list(RUNS).modified_ms if k.endswith(".parquet")]
            assert {r.status for r in read_segment(records, segment)} == {PLANNED}

    store_of(cluster).fault = fault
    with pytest.raises(KeyboardInterrupt):
        SweepRun(cluster, Sweep(record_dir=tmp_path)).run(1)
    store_of(cluster).fault = lambda call: None
    (run,), _ = list_runs(records, 5)
    assert run.summary is None
    assert show_run(cluster, run.run_id, records=records).by_status == {DELETED: 10}


def test_a_folder_is_tried_out_before_the_sweep(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cluster = a_cluster()
    before = level_zero(cluster)
    with pytest.raises(UsageError, match=r"--record-dir .*file/below cannot be written to"):
        SweepRun(cluster, Sweep(record_dir=tmp_path / "file" / "below"))
    with pytest.raises(UsageError, match="give one of the two"):
        SweepRun(cluster, Sweep(record_dir=tmp_path, record=False))
    assert level_zero(cluster) == before


def test_a_folder_reads_as_a_bucket_does(tmp_path: Path) -> None:
    records = FolderRecords(tmp_path)
    assert (list(records.scan(RUNS)), records.list(RUNS).modified_ms) == ([], {})
    for key in ("b/run.json", "a/1.parquet", "a/run.json"):
        records.put(f"{RUNS}{key}", b"{}")
    (tmp_path / RUNS / "a" / "2.parquet.partial").write_bytes(b"half of it")
    (page,) = records.scan(RUNS, f"{RUNS}a/1.parquet")
    assert (page.keys, page.sizes) == ([f"{RUNS}a/run.json", f"{RUNS}b/run.json"], [2, 2])
    assert list(records.list(f"{RUNS}a/").modified_ms) == [f"{RUNS}a/1.parquet", f"{RUNS}a/run.json"]
    assert records.get(f"{RUNS}b/run.json").body == b"{}"
    with pytest.raises(ObjectNotFoundError):
        records.get(f"{RUNS}c/run.json")
    (tmp_path / RUNS / "c").write_text("")
    for wrong in (lambda: records.put(f"{RUNS}c/run.json", b""), lambda: records.get(f"{RUNS}c/run.json")):
        with pytest.raises(L0gcError):
            wrong()
