"""Deletion of records by hand: before an offset in L1 or L0, or before a time."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
import pytest

from l0gc.errors import AccessDeniedError, OffsetOutOfRangeError, StoreError, UsageError
from l0gc.keys import journal_log
from l0gc.streamlog.delete_records import HIGH_WATERMARK, delete_records
from l0gc.streamlog.journal.entries import MERGE
from l0gc.streamlog.journal.rows import name_bytes
from l0gc.streamlog.level_one.expire import ExpireResult, NewStart
from l0gc.streamlog.level_one.merge_plan import MergeRule
from l0gc.streamlog.reader import read_topic
from tests.support.expire import cluster_with, log_starts, values
from tests.support.journal import edit, l1_rows
from tests.support.memory_store import another_process, failing, memory_cluster, store_of, topic_in_memory
from tests.support.merge import merge
from tests.support.reconcile import files, put, reconcile
from tests.support.verify import put_l1


def test_a_start_inside_an_l1_object_keeps_the_object() -> None:
    cluster, topic = cluster_with()
    result = delete_records(cluster, "events", 0, before_offset=15, shown=5)
    assert (result.partitions, result.records, result.l1_objects) == (1, 15, 1)
    assert result.starts == [NewStart("events", 0, 0, 15)]
    assert log_starts(cluster, topic) == [15, 0]
    assert values(cluster, topic, 0) == list(range(15, 30))
    assert [f.base_offset for f in files(cluster, "events", 0)] == [10, 20]
    assert delete_records(cluster, "events", 0, before_offset=20).l1_objects == 1
    assert [f.base_offset for f in files(cluster, "events", 0)] == [20]


@pytest.mark.parametrize(
    ("before", "left", "reconciled", "extents"),
    [(19, 11, 19, [20]), (20, 10, 19, [20]), (25, 5, 19, [20]), (30, 0, 29, []), (HIGH_WATERMARK, 0, 29, [])],
    ids=["below the LRO", "at the LRO", "in the unreconciled part", "at the end", "the high watermark"],
)
def test_a_start_above_the_reconciled_records_drops_the_extents_below_it(
    before: int, left: int, reconciled: int, extents: list[int]
) -> None:
    cluster, topic = cluster_with(2, spare=1, partitions=1)
    delete_records(cluster, "events", before_offset=before)
    state = cluster.journal(0).state
    view = state.topic(topic.revision).view(0)
    assert (view.last_reconciled_offset, view.next_offset) == (reconciled, 30)
    assert [e.base_offset for e in state.topic(topic.revision).extents(0)] == extents
    assert values(cluster, topic, 0) == list(range(30 - left, 30))
    put(cluster, "events", {0: [b"0:30"]})
    reconcile(cluster)
    assert values(cluster, topic, 0) == list(range(30 - left, 31))


def test_beyond_the_end_nothing_is_deleted() -> None:
    cluster, topic = cluster_with(2, partitions=2)
    put(cluster, "events", {0: [b"0:20"]})
    with pytest.raises(
        OffsetOutOfRangeError, match=r"events/1 has no record before offset 21: its next one .* 20\. Nothing"
    ):
        delete_records(cluster, "events", before_offset=21)
    assert log_starts(cluster, topic) == [0, 0]
    assert delete_records(cluster, "events", before_offset=20).records == 40
    assert (
        delete_records(cluster, "events", before_offset=20).partitions == 0
    )  # repeated, or with a lower offset: nothing is left to delete
    assert delete_records(cluster, "events", before_offset=3).partitions == 0


def test_a_partition_without_records_has_none_to_delete() -> None:
    cluster = topic_in_memory(2)
    assert delete_records(cluster, "events", before_offset=HIGH_WATERMARK).partitions == 0
    assert delete_records(cluster, "events", before_offset=0).partitions == 0
    with pytest.raises(OffsetOutOfRangeError, match="will have offset 0"):
        delete_records(cluster, "events", 1, before_offset=1)


@pytest.mark.parametrize("arguments", [{}, {"before_offset": 1, "before_time_ms": 1}, {"before_offset": -2}])
def test_delete_records_takes_exactly_one_place(arguments: dict[str, int]) -> None:
    cluster, _ = cluster_with(1)
    with pytest.raises(UsageError):
        delete_records(cluster, "events", **arguments)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="partitions 0 to 1, not 2"):
        delete_records(cluster, "events", 2, before_offset=1)


@pytest.mark.parametrize(
    ("hours", "first"), [(-1, 0), (0, 0), (0.5, 10), (1, 10), (1.5, 20), (2, 20), (2.5, 30), (3, 30), (9, 40)]
)
def test_before_a_time_everything_older_goes_and_what_is_as_new_stays(hours: float, first: int) -> None:
    """The objects are an hour apart, and the last two are in L0."""
    cluster, topic = cluster_with(2, spare=2, partitions=1)
    begin = next(read_topic(cluster, topic)).timestamp_ms
    result = delete_records(cluster, "events", before_time_ms=begin + int(hours * 3_600_000))
    assert result.records == first
    assert values(cluster, topic, 0) == list(range(first, 40))


def test_before_a_time_in_the_middle_of_a_merged_object() -> None:
    cluster, topic = cluster_with(3, partitions=1)
    begin = next(read_topic(cluster, topic)).timestamp_ms
    handle = cluster.journal(0)
    rows = handle.state.topics[topic.revision].l1.copy()
    file = files(cluster, "events", 0)[0]
    merged = msgspec.structs.replace(file, last_offset=29, name=cluster.runtime.new_id(), max_timestamp=begin)
    size = put_l1(cluster.store, topic.id(0), merged)  # its records have the timestamp 0
    row = (0, 0, 29, size, begin, int(rows["epoch"].max()), name_bytes(merged.name), 0)
    which = (topic.revision, topic.topic_id)
    entry = edit(MERGE, int(rows["epoch"].max()), *which, removed=rows, added=l1_rows(row))
    assert handle.land(entry).refused == {}
    assert (
        delete_records(cluster, "events", before_time_ms=begin).records == 30
    )  # every record is older than the row's max_timestamp


def test_a_merge_between_the_reading_and_the_entry_hinders_no_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, topic = cluster_with(4, partitions=1)
    other = memory_cluster(cluster.store, seed=5, bootstrap=False)  # type: ignore[arg-type]
    handle = cluster.journal(0)
    original = handle.land

    def expire_late(entry: Any, *, dry_run: bool) -> Any:
        assert merge(other, rule=MergeRule(fan_in=2)).objects_after == 1
        return original(entry, dry_run=dry_run)

    monkeypatch.setattr(handle, "land", expire_late)
    result = delete_records(cluster, "events", before_offset=15)
    assert (result.records, result.l1_objects, result.lost) == (15, 0, 0)
    assert values(cluster, topic, 0) == list(range(15, 40))
    assert len(np.unique(handle.state.dropped["name"])) == len(handle.state.dropped) == 4


@pytest.mark.parametrize("place", [{"before_offset": HIGH_WATERMARK}, {"before_time_ms": 1 << 50}])
def test_what_lands_after_a_deletion_was_confirmed_stays(place: dict[str, Any]) -> None:
    cluster = topic_in_memory(2)
    put(cluster, "events", {0: [b"a", b"b"]})
    confirmed: list[int] = []

    def confirm(plan: ExpireResult) -> None:
        confirmed.append(plan.records)
        put(another_process(cluster), "events", {0: [b"c"], 1: [b"d"] * 4})

    result = delete_records(cluster, "events", confirm=confirm, **place)
    assert (confirmed, result.records) == ([2], 2)
    found = read_topic(another_process(cluster, 2), cluster.controller.snapshot().topic("events"))
    assert [r.value for r in found] == [b"c", *[b"d"] * 4]


def test_nothing_is_deleted_if_the_answer_is_no() -> None:
    cluster = topic_in_memory()
    put(cluster, "events", {0: [b"a"]})

    def refuse(plan: ExpireResult) -> None:
        raise UsageError("no")

    with pytest.raises(UsageError, match="no"):
        delete_records(cluster, "events", before_offset=HIGH_WATERMARK, confirm=refuse)
    (record,) = read_topic(cluster, cluster.controller.snapshot().topic("events"))
    assert record.value == b"a"


@pytest.mark.parametrize("after", range(8))
def test_an_unreadable_journal_deletes_no_more_than_was_confirmed(after: int) -> None:
    cluster = topic_in_memory(2, 2)
    put(cluster, "events", {0: [b"a"], 1: [b"b"]})
    store_of(cluster).fault = failing(AccessDeniedError("403"), "get", journal_log(1), after=after, times=1)
    confirmed: list[int] = []
    with suppress(StoreError):
        result = delete_records(
            another_process(cluster),
            "events",
            before_offset=HIGH_WATERMARK,
            confirm=lambda plan: confirmed.append(plan.records),
        )
        assert result.records <= confirmed[0]
