"""Reconciles and merges on Spark: several journals, rounds, damage, and tasks that run twice."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow as pa
import pytest

from l0gc.events import Progress, quiet
from l0gc.runtime import Runtime
from l0gc.storage.config import StoreConfig
from l0gc.storage.parallel import Parallel
from l0gc.storage.s3 import S3Store
from l0gc.storage.workers import LocalWorkers, Stage
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.level_one import merge_plan, plan
from l0gc.streamlog.level_one import reconcile as runs
from l0gc.streamlog.level_one.merge import MergeResult
from l0gc.streamlog.level_one.read import ROWS
from tests.support.merge import merge
from tests.support.reconcile import files, lifted, named, put, reconcile, unreconciled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from l0gc.spark.workers import SparkWorkers

pytestmark = [pytest.mark.spark, pytest.mark.weed]

PARTITIONS = 6
VALUE = b"v" * 3000


@pytest.fixture
def cluster(store: S3Store) -> Iterator[ClusterHandles]:
    with Parallel(8) as threads:
        store.create_bucket()
        found = ClusterHandles(store, Runtime(), threads)
        found.controller.bootstrap(shards=4)
        found.controller.create_topic("events", PARTITIONS, 3)
        found.controller.create_topic("other", 1)
        yield found


def test_a_flow_on_spark_gives_what_it_gives_in_this_process(
    one_spark: SparkSession, cluster: ClusterHandles, bucket: StoreConfig
) -> None:
    """The flow has a shuffle of several tasks, whose rows are packed in transit, and slices of larger batches."""
    numbers = pa.array(range(30), pa.int64())
    columns = [numbers.cast(pa.string()).cast(f.type) if pa.types.is_binary(f.type) else numbers for f in ROWS]
    batch = pa.RecordBatch.from_arrays(columns, schema=ROWS)

    def cut(place: ClusterHandles, firsts: Iterable[int]) -> Iterator[tuple[int, runs.Packable]]:
        assert place.controller.snapshot().topics
        for first in firsts:
            for row in range(first, first + 10):
                yield row % 3, runs.Packable(batch.slice(row, 1))

    def added(place: ClusterHandles, rows: Iterable[runs.Packable]) -> Iterator[tuple[int, tuple[int, int]]]:
        values = [row.batch.column(3)[0].as_py() for row in rows]
        yield 0, (min(values), sum(values))

    def together(place: ClusterHandles, found: Iterable[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
        yield sorted(found)

    stages = [Stage(2, cut), Stage(3, added), Stage(1, together)]
    here: list[Any] = LocalWorkers(cluster).flow([0, 10, 20], *stages)
    assert here == [[(0, 135), (1, 145), (2, 155)]]
    assert workers_of(one_spark, bucket).flow([0, 10, 20], *stages) == here
    assert len(pickle.dumps(runs.Packable(batch.slice(3, 1)))) < len(pickle.dumps(runs.Packable(batch)))


def upload(cluster: ClusterHandles, count: int) -> list[str]:
    """Upload objects with large values and a small one for each partition; the large values fill separate blocks."""
    keys = []
    for n in range(count):
        values = [b"%d:%d" % (n, i) + VALUE for i in range(100)]
        keys += put(cluster, "events", {p: [*values, b"%d" % n] for p in range(PARTITIONS)})
    return keys


def expected(objects: list[int]) -> list[bytes]:
    return [v for n in objects for v in [*(b"%d:%d" % (n, i) + VALUE for i in range(100)), b"%d" % n]]


def workers_of(spark: SparkSession, bucket: StoreConfig, progress: Progress = quiet) -> SparkWorkers:
    from l0gc.spark.handles import ClusterAddress
    from l0gc.spark.workers import SparkWorkers

    return SparkWorkers(spark, ClusterAddress(bucket), progress)


def run(
    spark: SparkSession, cluster: ClusterHandles, bucket: StoreConfig, progress: Progress = quiet, **options: Any
) -> runs.ReconcileResult:
    return runs.reconcile(cluster, workers=workers_of(spark, bucket, progress), **options)


def l1_objects(cluster: ClusterHandles) -> set[str]:
    return {k for page in cluster.store.scan("level_one/") for k in page.keys}


@pytest.mark.thorough
def test_several_journals_and_rounds(one_spark: SparkSession, cluster: ClusterHandles, bucket: StoreConfig) -> None:
    upload(cluster, 4)
    put(cluster, "other", {0: [b"o"]})
    said: list[str] = []
    result = run(one_spark, cluster, bucket, lambda text, **fields: said.append(text), round_bytes=1)
    assert (result.errors, result.lost, result.partitions) == ([], 0, PARTITIONS + 1)
    assert result.records == 4 * PARTITIONS * 101 + 1
    assert result.rounds == len({text for text in said if text.startswith("round")}) > 4
    for p in range(PARTITIONS):
        assert lifted(cluster, "events", p) == expected([0, 1, 2, 3])
        assert len(files(cluster, "events", p)) == 4
    assert l1_objects(cluster) == named(cluster, "events") | named(cluster, "other")
    assert run(one_spark, cluster, bucket).rounds == 0


def test_damage_is_named_and_everything_else_is_lifted(
    one_spark: SparkSession, cluster: ClusterHandles, bucket: StoreConfig
) -> None:
    keys = upload(cluster, 4)
    topic = cluster.controller.snapshot().topic("events")
    body = cluster.store.get(keys[1]).body
    extent = cluster.journal(topic.journal_of(3)).catch_up().topic(topic.revision).extents(3)[1]
    at = extent.block.start + extent.block.length // 2
    cluster.store.put(keys[1], body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :])
    cluster.store.delete([keys[2]])
    journal = topic.journal_of(5)
    log = next(k for page in cluster.store.scan(f"l0gc/journal/{journal:04}/log/") for k in page.keys)
    entry = cluster.store.get(log).body
    cluster.store.put(log, b"?")
    result = run(one_spark, cluster, bucket)
    cluster.store.put(log, entry)
    unreadable, flipped, *gone = sorted(result.errors, key=lambda e: (keys[2] in e, keys[1] in e, e))
    assert log in unreadable
    assert "does not match the checksum in the log; restore that object from a version; it holds events/3" in flipped
    lost = "does not exist; restore that object from a version; it holds events/"
    held = [e[e.index(lost) + len(lost) :].partition("; without a copy, give its records up: ") for e in gone]
    assert [where for where, _, _ in held] == ["0, events/1", "2, events/3"]  # each journal names its own partitions
    assert all(way_out.startswith("l0gc give-up --object level_zero/") for _, _, way_out in held)
    reader = ClusterHandles(cluster.store, Runtime(), cluster.parallel)
    for p in range(4):
        assert lifted(reader, "events", p) == expected([0] if p == 3 else [0, 1])
        assert unreconciled(reader, "events", p) == 101 * (3 if p == 3 else 2)
    assert [lifted(reader, "events", p) for p in (4, 5)] == [[], []]
    assert l1_objects(cluster) == named(reader, "events")
    cluster.store.put(keys[1], body)
    later = run(one_spark, cluster, bucket)
    assert len(later.errors) == 3
    assert [len(lifted(reader, "events", p)) for p in range(PARTITIONS)] == [202] * PARTITIONS


def test_repeated_tasks_lift_and_count_once(
    one_spark: SparkSession, cluster: ClusterHandles, bucket: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kind of task fails at the end of its first run."""
    upload(cluster, 3)

    def twice(name: str) -> None:
        task = getattr(runs.Lift, name)

        def failing(self, cluster, arriving):  # type: ignore[no-untyped-def]
            from pyspark import TaskContext

            yield from task(self, cluster, arriving)
            context = TaskContext.get()
            if context is not None and context.attemptNumber() == 0:
                raise RuntimeError("the executor dies")

        monkeypatch.setattr(runs.Lift, name, failing)

    for name in ("hand_out", "read", "write", "commit"):
        twice(name)
    result = run(one_spark, cluster, bucket)
    assert (result.records, result.l1_objects, result.lost, result.errors) == (3 * PARTITIONS * 101, PARTITIONS, 0, [])
    for p in range(PARTITIONS):
        assert lifted(cluster, "events", p) == expected([0, 1, 2])
    assert named(cluster, "events") < l1_objects(cluster)  # vacuum deletes the objects of failed writers


def test_what_fails_in_a_task_is_reported_as_what_it_is(
    one_spark: SparkSession, cluster: ClusterHandles, bucket: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    from l0gc.errors import AccessDeniedError

    upload(cluster, 1)

    def denied(self, cluster, arriving):  # type: ignore[no-untyped-def]
        raise AccessDeniedError("the store refused access")

    monkeypatch.setattr(runs.Lift, "write", denied)
    with pytest.raises(AccessDeniedError, match="the store refused access"):
        run(one_spark, cluster, bucket)


# -- merges ---------------------------------------------------------------------------------------------------------------


def small_objects(cluster: ClusterHandles) -> None:
    """Create five L1 objects in each partition of `events`, and one in the other topic."""
    upload(cluster, 5)
    put(cluster, "other", {0: [b"o"]})
    assert reconcile(cluster, round_bytes=1).l1_objects == 5 * PARTITIONS + 1


def merge_on(spark: SparkSession, cluster: ClusterHandles, bucket: StoreConfig) -> MergeResult:
    return merge(cluster, workers=workers_of(spark, bucket))


@pytest.mark.thorough
def test_executors_merge_what_small_objects_there_are(
    one_spark: SparkSession, cluster: ClusterHandles, bucket: StoreConfig
) -> None:
    small_objects(cluster)
    result = merge_on(one_spark, cluster, bucket)
    assert (result.objects_before, result.objects_after, result.partitions) == (5 * PARTITIONS, PARTITIONS, PARTITIONS)
    assert (result.records, result.lost, result.errors) == (5 * PARTITIONS * 101, 0, [])
    for p in range(PARTITIONS):
        assert len(files(cluster, "events", p)) == 1
        assert lifted(cluster, "events", p) == expected([0, 1, 2, 3, 4])
    assert merge_on(one_spark, cluster, bucket).objects_before == 0


@pytest.mark.thorough
def test_a_repeated_merge_task_merges_and_loses_nothing(
    one_spark: SparkSession, cluster: ClusterHandles, bucket: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first journal's task fails after its commit, and another task before its commit."""
    from l0gc.streamlog.level_one import merge as merges
    from l0gc.streamlog.level_one import rewrite as rewrites
    from l0gc.streamlog.level_one.rewrite import rewrite

    small_objects(cluster)
    merge_share = merges._merge_share

    def attempt() -> int:
        from pyspark import TaskContext

        context = TaskContext.get()
        return context.attemptNumber() if context is not None else -1

    def failing(*args, **kwargs):  # type: ignore[no-untyped-def]
        written = rewrite(*args, **kwargs)
        if attempt() == 0 and any(m.partition == 0 for m in args[1]):
            raise RuntimeError("the executor dies before the commit")
        return written

    def failing_later(begin, cluster, share):  # type: ignore[no-untyped-def]
        with mock.patch.object(rewrites, "rewrite", failing):
            result = merge_share(begin, cluster, share)
        if attempt() == 0:
            raise RuntimeError("the executor dies after the commit")
        return result

    monkeypatch.setattr(merges, "_merge_share", failing_later)
    result = merge_on(one_spark, cluster, bucket)
    assert result.errors == []
    for p in range(PARTITIONS):
        assert len(files(cluster, "events", p)) == 1
        assert lifted(cluster, "events", p) == expected([0, 1, 2, 3, 4])
    assert named(cluster, "events") < l1_objects(cluster)  # vacuum deletes the failed task's objects


@pytest.mark.thorough
def test_shared_objects_are_written_drained_and_read_by_executors(
    one_spark: SparkSession, cluster: ClusterHandles, bucket: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support.spark_source import read

    monkeypatch.setattr(plan, "SMALL_TASK_BYTES", 2_000)
    cluster.controller.create_topic("many", 300, 2)
    wanted: dict[int, list[bytes]] = {}
    for n in range(2):
        batch = {p: [b"%d-%d" % (p, n), random.Random(p).randbytes(400)] for p in range(300)}
        put(cluster, "many", batch)
        wanted |= {p: wanted.get(p, []) + some for p, some in batch.items()}
        result = run(one_spark, cluster, bucket, topic="many")
        assert (result.errors, result.records) == ([], 600)
        assert result.l1_objects < 10
    found = dict[int, list[bytes]]()
    for partition, _, value in sorted(read(cluster, topic="many"), key=lambda row: row[:2]):
        found.setdefault(partition, []).append(bytes(value))
    assert found == wanted
    with monkeypatch.context() as patch:
        patch.setattr(merge_plan, "DRAINED_ROWS", 2)
        done = merge(cluster, "many", workers=workers_of(one_spark, bucket))
    assert (done.errors, done.drained, done.objects_after) == ([], 1200, 300)
    topic = cluster.controller.snapshot().topic("many")
    assert all(cluster.journal(j).catch_up().topic(topic.revision).shared == () for j in topic.journals)
    assert {p: lifted(cluster, "many", p) for p in range(300)} == wanted
