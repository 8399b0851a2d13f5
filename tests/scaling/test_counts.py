"""The formulas of logs and commands give exactly the requests of a run on a store in memory."""

from __future__ import annotations

import gc
import random
import tracemalloc
from functools import partial
from pathlib import Path

import pytest

from docs.programs import scaling as model
from docs.programs.scaling import Log, Requests
from l0gc.collect.record import recorded_attempt
from l0gc.keys import journal_log
from l0gc.storage.log import TRUNCATE_MIN_AGE_MS
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.epoch_source import JournalSource
from l0gc.streamlog.housekeep import housekeep
from l0gc.streamlog.journal.handle import JournalHandle
from l0gc.streamlog.producers import begin_run
from l0gc.watermark.pipeline import run_pipeline
from tests.scaling.counted import counted
from tests.support.generated_store import PagedStore
from tests.support.ingest import upload
from tests.support.journal import key_of, of_topic
from tests.support.memory_store import another_process, memory_cluster, store_of
from tests.support.merge import merge
from tests.support.reconcile import put, reconcile
from tests.support.tries import sampled

PARTITIONS = 200
CONTROLLER = Log(uncovered=2)
LINE = b"0123456789"
COUNTED_BYTES = len(LINE) + 16


def new_cluster(partitions: int = PARTITIONS, journals: int = 1) -> ClusterHandles:
    cluster = memory_cluster(PagedStore())
    cluster.controller.create_topic("events", partitions, journals)
    return cluster


def append(cluster: ClusterHandles, entries: int = 1, records: dict[int, int] | None = None) -> JournalHandle:
    topic, handle = cluster.controller.snapshot().topic("events"), cluster.journal(0)
    epoch = cluster.controller.epoch()
    for _ in range(entries):
        key = key_of(epoch, cluster.runtime.random.getrandbits(64))
        assert handle.append([of_topic(topic, epoch, records, key=key, per_block=100)]).error is None
    return handle


def run_upload(
    cluster: ClusterHandles, file: Path, batches: int, partitions: int = PARTITIONS, *, producer: str = ""
) -> None:
    """Do what `l0gc upload` does, with a record for each partition in each batch."""
    file.write_bytes((LINE + b"\n") * batches * partitions)
    cluster.controller.tick_if_due()
    session = begin_run(cluster, producer) if producer else None
    result = upload(cluster, "events", [file], batch_bytes=partitions * COUNTED_BYTES, session=session)
    assert (len(result.objects), len(result.placeholders)) == (batches, batches * partitions)


def run_housekeep(cluster: ClusterHandles) -> None:
    """Do what `l0gc housekeep` does."""
    with recorded_attempt(cluster, "housekeep"):
        housekeep(cluster)


def run_compute_watermark(cluster: ClusterHandles) -> None:
    """Do what `l0gc compute-watermark --no-scan` does, with a loop in place of Spark."""
    with recorded_attempt(cluster, "compute-watermark"):
        run_pipeline(cluster, JournalSource(cluster))


# -- logs -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entries", [0, 5, 30])
@pytest.mark.parametrize("kept", [False, True])
def test_reading_a_log_takes_its_checkpoint_and_what_comes_after_it(entries: int, kept: bool) -> None:
    cluster = new_cluster()
    append(cluster, 7)
    if kept:
        cluster.journal(0).replica.write_checkpoint()
    append(cluster, entries)
    handle = another_process(cluster, 2).journal(0)
    log = Log(entries, 7, 1) if kept else Log(entries + 7)
    assert counted(store_of(cluster), handle.replica.replay) == model.read_log(log)


def test_a_lost_race_costs_the_refusal_and_one_read() -> None:
    cluster = new_cluster()
    theirs = another_process(cluster, 2)
    for process in (cluster, theirs):
        process.controller.epoch()
        process.journal(0).catch_up()
    append(cluster, 1)
    topic, epoch = theirs.controller.snapshot().topic("events"), theirs.controller.epoch()
    found = counted(store_of(cluster), lambda: theirs.journal(0).append([of_topic(topic, epoch)]))
    assert found.puts == (model.lost_race() + Requests(puts=1)).puts
    assert found.gets <= (model.lost_race() + model.poll(1)).gets  # a writer that has seen others looks first


# -- commands -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("journals", [1, 4])
@pytest.mark.parametrize("partitions", [4, PARTITIONS])
def test_an_upload_costs_requests_per_object_and_journal(tmp_path: Path, partitions: int, journals: int) -> None:
    cluster, batches = new_cluster(partitions, journals), 3
    for seed, before in enumerate((0, batches)):
        process = another_process(cluster, seed)
        found = counted(store_of(cluster), partial(run_upload, process, tmp_path / "lines", batches, partitions))
        expected = model.upload(CONTROLLER, Log(before), journals=journals, objects=batches, entries=batches)
        assert found == expected


def test_an_upload_with_a_producer_reads_each_journal_once_more(tmp_path: Path) -> None:
    process = another_process(new_cluster(), 1)
    found = counted(store_of(process), lambda: run_upload(process, tmp_path / "lines", 3, producer="nightly"))
    # the journal does not know the producer, so the controller's log is read for it
    expected = model.upload(CONTROLLER, Log(0), journals=1, objects=3, entries=3, producer=True) + model.poll()
    assert found == expected


@pytest.mark.parametrize(("batches", "due"), [(3, False), (30, True)])
@pytest.mark.parametrize("partitions", [8, 800])
def test_housekeeping_costs_by_the_journal_and_never_by_the_partition(
    tmp_path: Path, partitions: int, batches: int, due: bool
) -> None:
    cluster, journals = new_cluster(partitions, 4), 4
    run_upload(cluster, tmp_path / "lines", batches, partitions)
    process = another_process(cluster, 2)
    found = counted(store_of(cluster), lambda: run_housekeep(process))
    assert found == model.housekeep(CONTROLLER, Log(batches), journals=journals, slide=False, due=due)


def test_an_idle_ticking_cluster_costs_a_dozen_requests_per_journal(tmp_path: Path) -> None:
    cluster, journals = new_cluster(1_024, 4), 4
    run_upload(cluster, tmp_path / "lines", 3, 1_024)
    for seed in range(2, 8):
        store_of(cluster).clock.ms += TRUNCATE_MIN_AGE_MS
        found = counted(store_of(cluster), lambda seed=seed: run_housekeep(another_process(cluster, seed)))  # type: ignore[misc]
        assert found.total <= 12 * journals + 20


def run_merge(cluster: ClusterHandles) -> None:
    """Do what `l0gc merge` does."""
    with recorded_attempt(cluster, "merge"):
        merge(cluster)


@pytest.mark.parametrize("journals", [1, 2])
@pytest.mark.parametrize("times", [3, 5])
@pytest.mark.parametrize("partitions", [2, 20])
def test_a_merge_costs_by_the_journal_and_by_what_it_merges(partitions: int, times: int, journals: int) -> None:
    cluster = new_cluster(partitions, journals)
    for n in range(times):
        put(cluster, "events", {p: [b"%d" % n] for p in range(partitions)})
        reconcile(cluster)
    process = another_process(cluster, 2)
    found = counted(store_of(cluster), lambda: run_merge(process))
    due = {"sources": times * partitions, "merges": partitions} if times > 3 else {}
    assert found == model.merge(CONTROLLER, Log(2 * times), journals=journals, **due)


@pytest.mark.parametrize(("partitions", "written"), [(63, 63), (64, 1), (5000, 2)])
def test_a_reconcile_writes_as_many_objects_as_the_formula_says(partitions: int, written: int) -> None:
    cluster = new_cluster(partitions)
    put(cluster, "events", {p: [b"1"] for p in range(partitions)})
    found = counted(store_of(cluster), lambda: reconcile(cluster))
    assert found.puts == model.l1_objects(partitions) + 1 == written + 1


@pytest.mark.parametrize("journals", [1, 4])
def test_computing_m_costs_by_the_journal(journals: int) -> None:
    cluster = new_cluster(PARTITIONS, journals)
    append(cluster, 3)
    process = another_process(cluster, 2)
    found = counted(store_of(cluster), lambda: run_compute_watermark(process))
    unused = cluster.controller.snapshot().journals - 1
    expected = model.compute_watermark(CONTROLLER, Log(3), journals=1) + unused * model.read_log(Log(0))
    assert found == expected


# -- contents of journals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("objects", "extents", "together"), sampled([(3000, 10, 10), (60, 500, 1)], [(60, 500, 1)]))
def test_the_sizes_that_growth_is_worked_out_with(objects: int, extents: int, together: int) -> None:
    """The sizes agree within a quarter, since compression depends on the numbers."""
    cluster = new_cluster(10_000)
    chance, topic, handle = random.Random(1), cluster.controller.snapshot().topic("events"), cluster.journal(0)
    for _ in range(objects // together):
        offered = [
            of_topic(
                topic,
                1,
                {p: chance.randrange(1, 20) for p in chance.sample(range(10_000), extents)},
                key=key_of(1, chance.getrandbits(128)),
                per_block=extents,
            )
            for _ in range(together)
        ]
        assert handle.append(offered).error is None
    sizes = [len(o.body) for k, o in store_of(cluster).objects.items() if k.startswith(f"{journal_log(0)}log/")]
    entry = model.ENTRY_OBJECT_BYTES + extents * model.ENTRY_EXTENT_BYTES
    assert sum(sizes) / objects == pytest.approx(entry, rel=0.25)
    handle.replica.write_checkpoint()
    kept = model.CHECKPOINT_OBJECT_BYTES + extents * model.CHECKPOINT_EXTENT_BYTES
    assert handle.replica.checkpoint_weight / objects == pytest.approx(kept, rel=0.25)
    reader = another_process(cluster, 2)
    gc.collect()
    tracemalloc.start()
    assert len(reader.journal(0).catch_up().topics[1].objects) == objects
    gc.collect()
    held = tracemalloc.get_traced_memory()[0] / objects
    tracemalloc.stop()
    assert held == pytest.approx(model.STATE_OBJECT_BYTES + extents * model.STATE_EXTENT_BYTES, rel=0.25)


def test_an_l1_row_in_a_checkpoint(tmp_path: Path) -> None:
    cluster, partitions = new_cluster(50), 50
    for _ in range(20):
        run_upload(cluster, tmp_path / "lines", 1, partitions)
        reconcile(cluster)
    handle = cluster.journal(0)
    handle.replica.write_checkpoint()
    rows = len(handle.state.topics[1].l1)
    assert rows == 20 * partitions
    assert handle.replica.checkpoint_weight / rows == pytest.approx(model.L1_ROW_BYTES, rel=0.25)


def test_a_row_of_a_shared_object_in_a_checkpoint() -> None:
    cluster, partitions, chance = new_cluster(500), 500, random.Random(1)
    handle, sizes = cluster.journal(0), []
    for rounds in (1, 20):
        for _ in range(rounds):
            put(cluster, "events", {p: [b"1"] * chance.randrange(1, 80) for p in range(partitions)})
            reconcile(cluster)
        handle.replica.write_checkpoint()
        sizes.append(handle.replica.checkpoint_weight)
    assert 2 < (sizes[1] - sizes[0]) / (20 * partitions) <= model.SHARED_ROW_BYTES  # more with timestamps that differ


def test_a_listing_of_a_folder_counts_as_many_requests_as_s3_takes() -> None:
    store = PagedStore()
    for i in range(2001):
        store.put(f"a/{i:05}", b"")
    assert counted(store, lambda: store.list("a/")) == Requests(lists=model.pages(2001))
