"""Retention by Kafka's rules, with an L1 object as a segment."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from l0gc.errors import AccessDeniedError, NotFoundError, SafetyError, StoreError
from l0gc.keys import journal_log
from l0gc.runtime import Runtime
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.decisions import RetentionSettings
from l0gc.streamlog.controller.state import Retention
from l0gc.streamlog.journal.row_list import RowList
from l0gc.streamlog.journal.topic import TopicState
from l0gc.streamlog.level_one.expire import NewStart, expire, losses, starts_by_retention
from l0gc.streamlog.reader import read_topic
from tests.support.expire import cluster_with, log_starts, values
from tests.support.ingest import upload, write
from tests.support.journal import l1_row, l1_rows
from tests.support.memory_store import (
    FakeClock,
    MemoryStore,
    another_process,
    failing,
    memory_cluster,
    once,
    store_of,
    topic_in_memory,
)
from tests.support.reconcile import files, put, reconcile
from tests.support.wrong_dates import DAY_MS, MisdatedStore

NOW = 1_000_000


def topic_state(*partitions: tuple[int, Sequence[tuple[int, int]]], log_start: int = 0) -> TopicState:
    """Return a topic whose partitions have L1 objects of ten records each, given as (bytes, age of the newest record)."""
    rows = [
        l1_row(p, 10 * n, 10 * n + 9, name=1000 * p + n, size=size, max_timestamp=NOW - age)
        for p, objects in partitions
        for n, (size, age) in enumerate(objects)
    ]
    numbers = np.array([p for p, _ in partitions], np.int32)
    ends = np.array([10 * len(objects) for _, objects in partitions], np.int64)
    starts = np.full(len(partitions), log_start, np.int64)
    return TopicState(3, "id", numbers, ends.copy(), ends - 1, starts, [], RowList(l1_rows(*rows)))


def starts(topic: TopicState, ms: int = -1, size: int = -1) -> dict[int, int]:
    found = starts_by_retention(topic, Retention(ms, size), NOW)
    return dict(zip(*(column.tolist() for column in found), strict=True))


KAFKA: list[tuple[str, list[tuple[int, int]], int, int, int]] = [
    # name, (bytes, age of the newest record) of each segment, retention.ms, retention.bytes, segments that Kafka
    # deletes
    ("unlimited by default", [(100, 10**9)] * 3, -1, -1, 0),
    ("nothing is old", [(1, 10), (1, 5)], 10, -1, 0),
    ("as old as the retention is not older", [(1, 11), (1, 10)], 10, -1, 1),
    ("all are old", [(1, 30), (1, 20)], 10, -1, 2),
    ("the oldest stays, so all stay", [(1, 5), (1, 99), (1, 99)], 10, -1, 0),
    ("up to the first that stays", [(1, 99), (1, 99), (1, 5), (1, 99)], 10, -1, 2),
    ("of a time to come", [(1, -50), (1, 99)], 10, -1, 0),
    ("no time at all", [(1, 1), (1, 0)], 0, -1, 1),
    ("smaller than the retention", [(50, 1), (40, 1)], -1, 100, 0),
    ("as large as the retention", [(50, 1), (50, 1)], -1, 100, 0),
    ("it would get smaller than the retention", [(50, 1), (99, 1)], -1, 100, 0),
    ("exactly the retention is left", [(50, 1), (60, 1), (40, 1)], -1, 100, 1),
    ("a large one that must stay keeps those after it", [(90, 1), (5, 1), (20, 1)], -1, 100, 0),
    ("small ones leave as long as that leaves enough", [(10, 1), (10, 1), (10, 1), (95, 1)], -1, 100, 2),
    ("no bytes at all", [(10, 1), (10, 1)], -1, 0, 2),
    ("by time further than by size", [(10, 99), (10, 99), (100, 1)], 10, 105, 2),
    ("by size further than by time", [(50, 99), (50, 1), (100, 1)], 10, 100, 2),
    ("empty objects of no age", [(0, 0)], 10, 100, 0),
]


@pytest.mark.parametrize(("objects", "ms", "size", "deleted"), [c[1:] for c in KAFKA], ids=[c[0] for c in KAFKA])
def test_retention_deletes_what_kafka_would_delete(
    objects: list[tuple[int, int]], ms: int, size: int, deleted: int
) -> None:
    assert starts(topic_state((0, objects)), ms, size) == ({0: 10 * deleted} if deleted else {})
    # Each partition is decided alone.
    many = topic_state((0, [(1000, 0)]), (3, objects), (4, objects), (9, [(1, 0)]))
    assert {p: s for p, s in starts(many, ms, size).items() if p in {3, 4}} == (
        {3: 10 * deleted, 4: 10 * deleted} if deleted else {}
    )


def kafka(objects: list[tuple[int, int]], ms: int, size: int) -> int:
    """Count the segments that Kafka's UnifiedLog.deleteOldSegments would delete."""
    gone = 0
    if ms >= 0:
        while gone < len(objects) and objects[gone][1] > ms:
            gone += 1
    if size >= 0:
        diff = sum(b for b, _ in objects[gone:]) - size
        while gone < len(objects) and diff - objects[gone][0] >= 0:
            diff -= objects[gone][0]
            gone += 1
    return gone


@settings(max_examples=200)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 9), st.integers(-2, 9)), min_size=1, max_size=8), min_size=1, max_size=5
    ),
    st.integers(-1, 9),
    st.integers(-1, 30),
)
def test_of_any_partitions_what_kafka_would_delete_leaves(
    partitions: list[list[tuple[int, int]]], ms: int, size: int
) -> None:
    topic = topic_state(*enumerate(partitions))
    expected = {p: 10 * kafka(objects, ms, size) for p, objects in enumerate(partitions)}
    assert starts(topic, ms, size) == {p: s for p, s in expected.items() if s}


def test_many_partitions_cost_a_few_columns() -> None:
    n = 100_000
    rows = np.zeros(2 * n, l1_rows(l1_row(0, 0, 0)).dtype)
    rows["partition"] = np.repeat(np.arange(n), 2)
    rows["base"], rows["last"] = np.tile([0, 10], n), np.tile([9, 19], n)
    rows["max_timestamp"] = np.tile([NOW - 50, NOW], n)
    ends = np.full(n, 20, np.int64)
    topic = TopicState(3, "id", np.arange(n, dtype=np.int32), ends, ends - 1, ends * 0, [], RowList(rows))
    partitions, begins = starts_by_retention(topic, Retention(10), NOW)
    assert (partitions == np.arange(n)).all()
    assert (begins == 10).all()


# -- runs -----------------------------------------------------------------------------------------------------------------


def retain(cluster: ClusterHandles, **settings: int) -> None:
    cluster.controller.alter_topic("events", RetentionSettings(**settings))


def test_expire_uses_the_topics_retention_before_the_clusters() -> None:
    cluster, topic = cluster_with()
    assert expire(cluster).partitions == 0
    cluster.controller.alter_defaults(RetentionSettings(ms=int(2.5 * 3_600_000)))
    result = expire(cluster, shown=1)
    assert (result.partitions, result.records, result.l1_objects, result.errors) == (2, 20, 2, [])
    assert result.starts == [NewStart("events", 0, 0, 10)]
    assert result.bytes == cluster.journal(0).state.dropped["bytes"].sum() > 0
    assert log_starts(cluster, topic) == [10, 10]
    assert values(cluster, topic, 1) == list(range(10, 30))
    retain(cluster, ms=-1)
    cluster.runtime.clock.sleep(10 * 3600)
    assert expire(cluster).partitions == 0
    retain(cluster, ms=1)
    assert expire(cluster, "events").records == 40
    assert log_starts(cluster, topic) == [30, 30]


def test_retention_counts_and_deletes_only_l1_records() -> None:
    cluster, topic = cluster_with(1, spare=2)
    retain(cluster, ms=0, bytes=0)
    assert expire(cluster).records == 20
    assert log_starts(cluster, topic) == [10, 10]
    assert values(cluster, topic, 0) == list(range(10, 30))


def test_a_dry_run_says_what_the_run_does_and_does_nothing() -> None:
    cluster, topic = cluster_with(6)
    retain(cluster, ms=int(3.5 * 3_600_000))
    assert isinstance(cluster.store, MemoryStore)
    before = set(cluster.store.objects)
    planned = expire(cluster, dry_run=True, shown=9)
    assert set(cluster.store.objects) == before
    assert log_starts(cluster, topic) == [0, 0]
    assert expire(cluster, shown=9) == planned
    assert (planned.partitions, planned.records, planned.l1_objects) == (2, 60, 6)
    assert expire(cluster, dry_run=True).partitions == 0
    assert values(cluster, topic, 0) == list(range(30, 60))
    assert [f.base_offset for f in files(cluster, "events", 0)] == [30, 40, 50]
    retain(cluster, ms=0)
    assert expire(cluster).records == 60
    assert len(cluster.journal(0).state.dropped) == 12
    assert values(cluster, topic, 0) == []


def test_what_another_run_has_expired_meanwhile_is_not_lost() -> None:
    cluster, topic = cluster_with(2)
    retain(cluster, ms=0)
    other = another_process(cluster)
    store_of(cluster).fault = once(lambda: expire(other), "put_if_absent", journal_log(0))
    result = expire(cluster)
    assert (result.partitions, result.records, result.lost) == (0, 0, 0)
    assert log_starts(cluster, topic) == [20, 20]


def test_what_fails_for_one_journal_is_reported_and_the_others_are_done() -> None:
    cluster, topic = cluster_with(2, partitions=2, journals=2)
    retain(cluster, ms=0)
    store = store_of(cluster)
    store.fault = failing(StoreError("no"), "[!g]*", f"journal/{topic.journals[1]:04}/log")
    result = expire(cluster)
    store.fault = lambda call: None
    assert result.partitions == 1
    assert result.problem is not None
    assert f"journal {topic.journals[1]}: " in str(result.problem)
    assert log_starts(cluster, topic) == [20, 0]


def test_a_topic_that_does_not_exist_is_named() -> None:
    cluster, _ = cluster_with(1)
    with pytest.raises(NotFoundError, match="topic"):
        expire(cluster, "evnts")


# -- time ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("years", [-1, 1])
def test_a_wrong_uploader_clock_does_not_change_retention(years: int, tmp_path: Path) -> None:
    store = MemoryStore()
    memory_cluster(store)
    uploader = ClusterHandles(store, Runtime(FakeClock(store.clock.ms + years * 365 * DAY_MS), random.Random(1)))
    topic, _ = uploader.controller.create_topic("events", 1)
    retain(uploader, ms=7 * DAY_MS)
    upload(uploader, "events", [write(tmp_path / "records", [b"a", b"b"])])
    reconcile(uploader)
    (record, _) = read_topic(uploader, topic)
    assert abs(record.timestamp_ms - store.clock.ms) < 60_000
    assert files(uploader, "events", 0)[0].max_timestamp == record.timestamp_ms
    assert expire(uploader).partitions == 0
    store.clock.ms += 7 * DAY_MS - 60_000
    assert expire(uploader).partitions == 0
    store.clock.ms += 120_000
    assert expire(uploader).records == 2


def test_one_reply_that_is_weeks_ahead_deletes_nothing() -> None:
    store = MisdatedStore(30 * DAY_MS)
    cluster = topic_in_memory(1, store=store)
    retain(cluster, ms=7 * DAY_MS)
    put(cluster, "events", {0: [b"a"]})
    reconcile(cluster)
    store.wrong = ["get"] * 100
    with pytest.raises(SafetyError):
        expire(cluster)
    store.wrong = []
    assert expire(cluster).partitions == 0
    assert [r.value for r in read_topic(cluster, cluster.controller.snapshot().topic("events"))] == [b"a"]


def test_an_unreadable_journal_makes_the_effect_of_a_shorter_retention_unknown() -> None:
    """If the effect is unknown, `topic alter` asks for confirmation, too."""
    cluster = topic_in_memory(2, 2)
    put(cluster, "events", {0: [b"a"], 1: [b"b"]})
    reconcile(cluster)
    assert losses(another_process(cluster), "events", RetentionSettings(msgspec.UNSET, 0)).unknown == []
    store_of(cluster).fault = failing(AccessDeniedError("403"), "get", journal_log(1))
    by_topic, unknown, _ = losses(another_process(cluster), "events", RetentionSettings(msgspec.UNSET, 0))
    assert [(loss.topic, loss.records, loss.present) for loss in by_topic] == [("events", 1, 1)]
    assert unknown == ["journal 1: 403"]
