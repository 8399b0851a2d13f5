"""The formulas of logs and of commands give the requests that a run on a store in memory makes, to the last one."""

from __future__ import annotations

import gc
import tracemalloc
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from l0gc.collect.attempts import Noted
from l0gc.keys import REPORTS
from l0gc.storage.log import TRUNCATE_MIN_AGE_MS
from l0gc.storage.replica import CHECKPOINT_EVERY, LOOK_AGAIN_S
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.housekeep import housekeep
from l0gc.streamlog.journal.entries import Placeholder
from l0gc.streamlog.journal.handle import PartitionHandle
from l0gc.watermark import job
from l0gc.watermark.compact import COMPACT_FILES, ReportFolder
from l0gc.watermark.reports import publish_reports, read_report_file, report_of
from tests.scaling import model
from tests.scaling.counted import counted
from tests.scaling.model import Log, Requests
from tests.support.generated_store import PagedStore
from tests.support.ingest import producer_session, upload
from tests.support.memory_store import MemoryStore, memory_cluster
from tests.support.reconcile import reconcile

PARTITIONS = 200
CONTROLLER = Log(behind=2)
LINE = b"0123456789"
COUNTED_BYTES = len(LINE) + 16


def new_cluster(partitions: int = PARTITIONS) -> Cluster:
    cluster = memory_cluster(PagedStore())
    cluster.controller.create_topic("events", partitions)
    return cluster


def another_process(cluster: Cluster, seed: int) -> Cluster:
    return memory_cluster(store_of(cluster), seed=seed, bootstrap=False)


def store_of(cluster: Cluster) -> MemoryStore:
    assert isinstance(cluster.store, MemoryStore)
    return cluster.store


def partition_of(cluster: Cluster, number: int = 0) -> PartitionHandle:
    return cluster.partition(cluster.controller.snapshot().topic("events").ids()[number])


def append(handle: PartitionHandle, epoch: int, entries: int = 1) -> None:
    for _ in range(entries):
        key = f"level_zero/data/000/{epoch:018}/00000000-0000-4000-8000-000000000000"
        handle.append_placeholder(Placeholder(key, 0, 100, 10, 0, 0), epoch)


def run_upload(cluster: Cluster, file: Path, batches: int, partitions: int = PARTITIONS, *, producer: str = "") -> None:
    """What `l0gc upload` does, with a record for each partition in each batch."""
    file.write_bytes((LINE + b"\n") * batches * partitions)
    cluster.controller.tick_if_due()
    session = producer_session(cluster, producer) if producer else None
    result = upload(cluster, "events", [file], batch_bytes=partitions * COUNTED_BYTES, session=session)
    assert (len(result.objects), len(result.placeholders)) == (batches, batches * partitions)
    report_all(cluster, "upload", partitions)


def report_all(cluster: Cluster, reporter: str, partitions: int) -> None:
    state = cluster.controller.replica.state
    handles = [cluster.partition(p) for p in state.topic("events").ids()[:partitions]]
    publish_reports(
        cluster.store,
        cluster.runtime,
        reporter,
        [report_of(state.cluster_id, h.partition, h.state, h.replica.offset) for h in handles],
    )


# -- logs -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("new", [0, 1, 7])
@pytest.mark.parametrize("idle", [False, True])
def test_a_writer_that_is_behind_reads_each_entry_that_others_appended(new: int, idle: bool) -> None:
    cluster = new_cluster(1)
    ours, theirs = partition_of(cluster), partition_of(another_process(cluster, 2))
    append(ours, 1)
    append(theirs, 1, new)
    store_of(cluster).clock.ms += int(LOOK_AGAIN_S * 1000) + 1 if idle else 0
    cluster.controller.epoch()
    theirs.catch_up()
    assert counted(store_of(cluster), lambda: append(ours, 1)) == model.append_behind(new, idle=idle)


@pytest.mark.parametrize("entries", [0, 5, CHECKPOINT_EVERY - 1, CHECKPOINT_EVERY, 3 * CHECKPOINT_EVERY + 20])
def test_reading_a_log_takes_its_checkpoint_and_what_is_behind_it(entries: int) -> None:
    cluster = new_cluster(1)
    append(partition_of(cluster), 1, entries)
    checkpoints, behind = divmod(entries, CHECKPOINT_EVERY)
    reader = another_process(cluster, 2)
    handle = partition_of(reader)
    log = Log(behind, entries - behind, checkpoints)
    assert counted(store_of(cluster), handle.replica.replay) == model.read_log(log)


# -- upload and housekeep -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batches", [1, 3])
def test_an_upload(tmp_path: Path, batches: int) -> None:
    cluster = new_cluster()
    for seed, before in enumerate((0, batches)):
        process = another_process(cluster, seed)
        found = counted(store_of(cluster), partial(run_upload, process, tmp_path / "lines", batches))
        assert found == model.upload(
            CONTROLLER, Log(before), partitions=PARTITIONS, objects=batches, placeholders=batches * PARTITIONS
        )


def test_an_upload_with_a_producer_asks_the_controller_about_it_for_each_partition(tmp_path: Path) -> None:
    process = another_process(new_cluster(), 1)
    found = counted(store_of(process), lambda: run_upload(process, tmp_path / "lines", 3, producer="nightly"))
    assert found == model.upload(
        CONTROLLER, Log(0), partitions=PARTITIONS, objects=3, placeholders=3 * PARTITIONS, producer=True
    )


def test_an_upload_keeps_the_state_of_each_log_that_gets_long(tmp_path: Path) -> None:
    cluster, few = new_cluster(4), 4
    batches = CHECKPOINT_EVERY + 3
    found = counted(store_of(cluster), lambda: run_upload(cluster, tmp_path / "lines", batches, few))
    expected = model.upload(CONTROLLER, Log(0), partitions=few, objects=batches, placeholders=batches * few)
    # this process has read the controller's log already; it looks instead
    assert found == expected + Requests(lists=-1, gets=1 - CONTROLLER.behind)


@pytest.mark.parametrize(("batches", "due", "old"), [(3, False, False), (60, True, False), (60, True, True)])
def test_housekeeping(tmp_path: Path, batches: int, due: bool, old: bool) -> None:
    cluster, partitions = new_cluster(20), 20
    run_upload(cluster, tmp_path / "lines", batches, partitions)
    store_of(cluster).clock.ms += TRUNCATE_MIN_AGE_MS if old else 0
    process = another_process(cluster, 2)
    found = counted(store_of(cluster), lambda: run_housekeep(process))
    # with the 15 minutes an epoch has passed: a tick, and each window slides to it
    assert found == model.housekeep(
        CONTROLLER, Log(batches), partitions=partitions, slide=old, due=due, old=batches if old else 0, tick=old
    )


def run_housekeep(cluster: Cluster) -> None:
    """What `l0gc housekeep` does."""
    with Noted(cluster, "housekeep"):
        housekeep(cluster)


def test_housekeeping_removes_the_checkpoint_before_the_last_two(tmp_path: Path) -> None:
    cluster, partitions, batches = new_cluster(5), 5, 60
    for _ in range(2):
        run_upload(cluster, tmp_path / "lines", batches, partitions)
        housekeep(cluster)
    run_upload(cluster, tmp_path / "lines", batches, partitions)
    process = another_process(cluster, 2)
    found = counted(store_of(cluster), lambda: run_housekeep(process))
    log = Log(batches, 2 * batches, checkpoints=2)
    assert found == model.housekeep(CONTROLLER, log, partitions=partitions, slide=False, due=True, old=0)


# -- compute-watermark ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("files", [0, 1, COMPACT_FILES - 1, COMPACT_FILES, 1100])
def test_computing_m(files: int) -> None:
    cluster = new_cluster(1)
    partition_of(cluster).catch_up()
    for _ in range(files):
        report_all(cluster, "housekeep", 1)
    process = another_process(cluster, 2)
    found = counted(store_of(cluster), lambda: run_compute_watermark(process))
    assert found == model.compute_watermark(CONTROLLER, files=files, compact=files >= COMPACT_FILES)
    left = sum(k.startswith(REPORTS) for k in store_of(cluster).objects)
    assert left == (1 if files >= COMPACT_FILES else files)


def run_compute_watermark(cluster: Cluster, histogram: job.ReadHistogram | None = None) -> None:
    """What `l0gc compute-watermark` does, with loops in the place of Spark."""
    store = store_of(cluster)
    folder = ReportFolder(
        store,
        cluster.runtime,
        lambda keys: pa.concat_tables([read_report_file(store.get(k).body, k) for k in keys]),
    )
    with Noted(cluster, "compute-watermark"):
        cluster.controller.snapshot()
        job.run(cluster, folder.read, histogram, compact=folder.compact)


# -- what logs hold -------------------------------------------------------------------------------------------------------


def test_the_sizes_that_growth_is_worked_out_with(tmp_path: Path) -> None:
    """Within a tenth: they grow by a byte with each digit of an offset."""
    cluster, entries = new_cluster(1), 400
    run_upload(cluster, tmp_path / "lines", entries, 1)
    folder = f"l0gc/partition/{partition_of(cluster).partition.path}/"
    sizes = [len(o.body) for k, o in store_of(cluster).objects.items() if k.startswith(f"{folder}log/")]
    assert sum(sizes) / len(sizes) == pytest.approx(model.ENTRY_BYTES, rel=0.1)
    assert checkpoint_bytes(cluster, folder) / entries == pytest.approx(model.PLACEHOLDER_BYTES, rel=0.1)
    gc.collect()
    tracemalloc.start()
    reader = another_process(cluster, 2)
    assert len(partition_of(reader).catch_up().placeholders) == entries
    gc.collect()
    assert tracemalloc.get_traced_memory()[0] / entries == pytest.approx(model.STATE_BYTES, rel=0.1)
    tracemalloc.stop()
    del reader


def test_the_size_of_a_report_in_memory() -> None:
    cluster, partitions = new_cluster(1000), 1000
    report_all(cluster, "housekeep", partitions)
    (key,) = (k for k in store_of(cluster).objects if k.startswith(REPORTS))
    rows = read_report_file(store_of(cluster).get(key).body, key)
    assert rows.nbytes / partitions == pytest.approx(model.REPORT_ROW_BYTES, rel=0.1)


def checkpoint_bytes(cluster: Cluster, folder: str) -> int:
    found = [k for k in store_of(cluster).objects if k.startswith(f"{folder}checkpoint/")]
    return len(store_of(cluster).objects[max(found)].body)


def test_each_reconcile_run_leaves_a_row_for_its_l1_object(tmp_path: Path) -> None:
    cluster, runs = new_cluster(1), 50
    for _ in range(runs):
        run_upload(cluster, tmp_path / "lines", 1, 1)
        reconcile(cluster)
    partition_of(cluster).replica.write_checkpoint()
    folder = f"l0gc/partition/{partition_of(cluster).partition.path}/"
    assert checkpoint_bytes(cluster, folder) / runs == pytest.approx(model.L1_ROW_BYTES, rel=0.15)


def test_a_listing_of_a_folder_counts_as_many_requests_as_s3_takes() -> None:
    store = PagedStore()
    for i in range(2001):
        store.put(f"a/{i:05}", b"")
    assert counted(store, lambda: store.list("a/")) == Requests(lists=model.pages(2001))
