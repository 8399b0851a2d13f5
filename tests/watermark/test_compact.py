"""Compaction: no report is lost, whoever writes, compacts or dies meanwhile."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterable

import pyarrow as pa
import pytest
from greenlet import getcurrent, greenlet
from hypothesis import given, settings
from hypothesis import strategies as st

from l0gc.errors import (
    AccessDeniedError,
    CorruptObjectError,
    EpochRegressionError,
    ObjectNotFoundError,
    StoreError,
    WatermarkRegressionError,
)
from l0gc.keys import REPORTS, PartitionId
from l0gc.runtime import Runtime
from l0gc.streamlog.cluster import Cluster
from l0gc.watermark import job
from l0gc.watermark.compact import REPORTER, ReportFolder
from l0gc.watermark.compute import PartitionReport
from l0gc.watermark.job import kept_of
from l0gc.watermark.publication import PublishedWatermark, publish
from l0gc.watermark.reports import SCHEMA, best_of, publish_reports, read_report_file, report_keys, rows_of, table_of
from tests.support.memory_store import Call, MemoryStore, memory_cluster
from tests.support.reports import a_report

IDS = [PartitionId("t", 1, i) for i in range(4)]


class Killed(BaseException):
    """The process died at a store call."""


def best(rows: Iterable[PartitionReport]) -> dict[PartitionId, int]:
    """The highest gc epoch of each partition."""
    highest: dict[PartitionId, int] = {}
    for r in rows:
        highest[r.id] = max(r.gc_epoch, highest.get(r.id, -1))
    return highest


@functools.lru_cache(maxsize=1000)
def parsed(body: bytes) -> pa.Table:
    return read_report_file(body, "a report")


def reader(store: MemoryStore) -> Callable[[list[str]], pa.Table]:
    def read(keys: list[str]) -> pa.Table:
        tables = [SCHEMA.empty_table()]
        for key in keys:
            try:
                body = store.get(key).body
            except ObjectNotFoundError:
                continue
            try:
                tables.append(parsed(body))
            except CorruptObjectError:
                read_report_file(body, key)  # by its name
        return best_of(pa.concat_tables(tables))

    return read


def folder_of(store: MemoryStore, *, seed: int = 0, compact_files: int = 2) -> ReportFolder:
    return ReportFolder(store, Runtime(store.clock, random.Random(seed)), reader(store), compact_files=compact_files)


def readable(store: MemoryStore) -> dict[PartitionId, int]:
    """What anybody who reads the folder now learns."""
    fault, store.fault = store.fault, lambda call: None
    try:
        return best(rows_of(folder_of(store).read()))
    finally:
        store.fault = fault


def fill(store: MemoryStore, files: int, seed: int = 0) -> dict[PartitionId, int]:
    rng = random.Random(seed)
    runtime = Runtime(store.clock, rng)
    rows: list[PartitionReport] = []
    for _ in range(files):
        some = [a_report("c", p, rng.randrange(50)) for p in rng.sample(IDS, rng.randint(1, len(IDS)))]
        publish_reports(store, runtime, "upload", some)
        rows += some
    return best(rows)


def compact(store: MemoryStore, seed: int = 1) -> None:
    folder = folder_of(store, seed=seed)
    folder.compact(folder.read())


def test_many_files_become_one_that_says_the_same() -> None:
    store = MemoryStore()
    truth = fill(store, 20)
    compact(store)
    assert len(report_keys(store)) == 1
    assert report_keys(store)[0].startswith(f"{REPORTS}{REPORTER}/")
    assert readable(store) == truth


def test_few_files_are_left_as_they_are() -> None:
    store = MemoryStore()
    fill(store, 3)
    before = dict(store.objects)
    folder = folder_of(store, compact_files=4)
    assert folder.compact(folder.read()) is None
    assert store.objects == before


def test_a_file_that_was_not_read_stays() -> None:
    store = MemoryStore()
    fill(store, 5)
    folder = folder_of(store)
    table = folder.read()
    late = publish_reports(store, Runtime(store.clock), "upload", [a_report("c", IDS[0], 99)])
    folder.compact(table)
    assert late in store.objects
    assert readable(store)[IDS[0]] == 99


def test_a_run_that_is_killed_at_any_store_call_loses_nothing() -> None:
    calls: list[Call] = []
    store = MemoryStore(fault=calls.append)
    fill(store, 20)
    calls.clear()
    compact(store)
    assert {c.kind for c in calls} == {"list", "get", "put", "delete"}
    for n in range(len(calls)):
        left = [n]

        def die(call: Call, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise Killed

        store = MemoryStore()
        truth = fill(store, 20)
        store.fault = die
        with pytest.raises(Killed):
            compact(store)
        assert readable(store) == truth
        store.fault = lambda call: None
        compact(store, seed=2)
        assert readable(store) == truth
        assert len(report_keys(store)) == 1


def test_files_that_another_run_compacts_away_are_not_missed() -> None:
    store = MemoryStore()
    truth = fill(store, 10)
    inner = reader(store)
    compacted: list[int] = []

    def slow(keys: list[str]) -> pa.Table:
        if not compacted:
            compacted.append(1)
            compact(store, seed=3)
        return inner(keys)

    folder = ReportFolder(store, Runtime(store.clock), slow, compact_files=2)
    assert best(rows_of(folder.read())) == truth
    assert folder.files == report_keys(store)


def test_what_cannot_be_deleted_is_told_and_m_stands() -> None:
    store = MemoryStore()
    truth = fill(store, 20)

    def deny(call: Call) -> None:
        if call.kind == "delete":
            raise AccessDeniedError("no")

    store.fault = deny
    folder = folder_of(store)
    result = folder.compact(folder.read())
    assert result is not None
    assert (result.files, result.error) == (0, "no")
    assert readable(store) == truth


def test_without_a_durable_file_nothing_is_deleted() -> None:
    store = MemoryStore()
    truth = fill(store, 20)

    def fail(call: Call) -> None:
        if call.kind == "put":
            raise StoreError("no")

    store.fault = fail
    compact(store)
    assert len(report_keys(store)) == 20
    assert readable(store) == truth


def test_a_file_of_a_newer_kind_stops_the_run_and_stays() -> None:
    store = MemoryStore()
    fill(store, 20)
    store.put(f"{REPORTS}upload/new.parquet", b"PAR1 of the future")
    with pytest.raises(CorruptObjectError, match=r"new\.parquet"):
        compact(store)
    assert len(report_keys(store)) == 21


# -- several at once ------------------------------------------------------------------------------------------------------


def interleave(
    rng: random.Random, store: MemoryStore, actors: list[Callable[[], None]], check: Callable[[], None]
) -> None:
    """Run the actors, a store call at a time, in an order that `rng` draws; some of them die."""
    main = getcurrent()
    inside = [False]

    def step(call: Call) -> None:
        if inside[0] and call.when == "before":
            main.switch()
            if rng.random() < 0.02:
                raise Killed

    def life(body: Callable[[], None]) -> None:
        try:
            body()
        except Killed:
            return

    store.fault = step
    files = 0
    running = [greenlet(life) for _ in actors]
    starts = dict(zip(running, actors, strict=True))
    while running:
        g = rng.choice(running)
        inside[0] = True
        g.switch(*([starts.pop(g)] if g in starts else []))
        inside[0] = False
        running = [g for g in running if not g.dead]
        before, files = files, len(store.objects)
        if files < before:
            check()


@given(st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_writers_and_compactors_at_once_lose_no_report(seed: int) -> None:
    rng = random.Random(seed)
    store = MemoryStore()
    truth: dict[PartitionId, int] = {}

    def write(number: int) -> Callable[[], None]:
        runtime = Runtime(store.clock, random.Random(rng.getrandbits(64)))

        def body() -> None:
            for n in range(6):
                reports = [a_report("c", p, n * 8 + number) for p in rng.sample(IDS, 2)]
                publish_reports(store, runtime, "upload", reports)
                for r in reports:
                    truth[r.id] = max(r.gc_epoch, truth.get(r.id, -1))

        return body

    def compact_in_a_loop(seed: int) -> Callable[[], None]:
        def body() -> None:
            for n in range(5):
                compact(store, seed=seed + n)

        return body

    def check() -> None:
        now = readable(store)
        assert all(now.get(p, -1) >= gc_epoch for p, gc_epoch in truth.items())

    actors = [write(n) for n in range(3)] + [compact_in_a_loop(rng.getrandbits(32)) for _ in range(3)]
    interleave(rng, store, actors, check)
    compact(store, seed=rng.getrandbits(32))
    check()


# -- within a run of compute-watermark --------------------------------------------------------------------------------------


def run(cluster: Cluster, *, publish_it: bool = True) -> job.WatermarkResult:
    assert isinstance(cluster.store, MemoryStore)
    folder = ReportFolder(cluster.store, cluster.runtime, reader(cluster.store), compact_files=2)
    return job.run(cluster, folder.read, None, publish_it=publish_it, compact=folder.compact)


def with_reports(files: int = 5) -> tuple[Cluster, MemoryStore]:
    store = MemoryStore()
    cluster = memory_cluster(store)
    topic, _ = cluster.controller.create_topic("t", 2)
    cluster_id = cluster.controller.snapshot().cluster_id
    for _ in range(files):
        cluster.controller.advance()
    for n in range(files):
        rows = [a_report(cluster_id, p, topic.revision + n) for p in topic.ids()]
        publish_reports(store, cluster.runtime, "upload", rows)
    return cluster, store


def test_a_look_compacts_nothing() -> None:
    cluster, store = with_reports()
    before = set(store.objects)
    assert run(cluster, publish_it=False).compacted is None
    assert set(store.objects) == before


def test_a_run_that_refuses_compacts_nothing() -> None:
    cluster, store = with_reports()
    cluster_id = cluster.controller.snapshot().cluster_id
    publish_reports(store, cluster.runtime, "upload", [a_report(cluster_id, PartitionId("lost", 3, 0), 3)])
    before = set(store.objects)
    with pytest.raises(EpochRegressionError, match="'lost'"):
        run(cluster)
    assert set(store.objects) == before


def test_a_run_that_computes_a_lower_m_compacts_nothing() -> None:
    cluster, store = with_reports()
    state = cluster.controller.snapshot()
    publish(store, cluster.runtime, PublishedWatermark(state.cluster_id, state.epoch, state.epoch, 0))
    before = set(store.objects)
    with pytest.raises(WatermarkRegressionError):
        run(cluster)
    assert set(store.objects) == before


def test_m_is_the_same_before_and_after_a_compaction() -> None:
    cluster, store = with_reports()
    first = run(cluster)
    assert first.compacted is not None
    assert first.compacted.files == 5
    assert len(report_keys(store)) == 1
    assert run(cluster).watermark == first.watermark


def test_one_row_stays_of_a_deleted_topic_so_that_an_older_controller_log_is_found_out() -> None:
    """Hazard 10, behind a compaction."""
    cluster, store = with_reports()
    cluster.controller.delete_topic("t")
    cluster_id = cluster.controller.snapshot().cluster_id
    other = PartitionId("t", 1, 1)
    publish_reports(store, cluster.runtime, "upload", [a_report(cluster_id, other, 6)])
    assert run(cluster).watermark.partitions == 0
    (key,) = report_keys(store)
    rows = rows_of(read_report_file(store.get(key).body, key))
    assert [(r.id, r.max_applied_epoch) for r in rows] == [(other, 7)]

    restored = MemoryStore()  # a controller log that never had the topic, at the same epoch
    older = Cluster(restored, cluster.runtime)
    older.controller.bootstrap(cluster_id, shards=4)
    for _ in range(9):
        older.controller.advance()
    restored.put(key, store.get(key).body)
    with pytest.raises(EpochRegressionError, match="'t'"):
        run(older)


def test_rows_of_topics_that_are_there_are_all_kept() -> None:
    cluster, _ = with_reports()
    state = cluster.controller.snapshot()
    table = table_of([a_report(state.cluster_id, PartitionId("t", 1, i), i) for i in range(2)])
    assert kept_of(table, state).equals(table)
