"""A stream of `format("l0gc")`: micro-batches read each record once, and read the same records again when they are
replayed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from l0gc.errors import NotFoundError, OffsetOutOfRangeError, PartitionClosedError, UsageError
from l0gc.inspect.lag import query_lag
from l0gc.integrations.spark.plan import Ranges
from l0gc.integrations.spark.readers import StreamReader
from l0gc.integrations.spark.stream import limited
from l0gc.storage.entry import Place
from l0gc.storage.log import SharedLog
from l0gc.storage.objectstore import LocalFolder
from l0gc.storage.replica import Replica
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.topics import delete_topic
from tests.support.ingest import l0_objects
from tests.support.memory_store import another_process, copy_of, put_back, store_of, topic_in_memory
from tests.support.reconcile import put, reconcile
from tests.support.spark_source import Row, on, rows_of, stream_reader, table

Offsets = dict[str, Any]


def values(partition: int, first: int, end: int) -> list[bytes]:
    return [b"%d:%04d" % (partition, n) for n in range(first, end)]


def add(cluster: ClusterHandles, first: int, end: int, partitions: int = 3) -> None:
    put(cluster, "events", {p: values(p, first, end) for p in range(partitions)})


def rows(first: int, end: int, partitions: int = 3) -> list[Row]:
    return [(p, n, v) for p in range(partitions) for n, v in enumerate(values(p, first, end), first)]


def stored(offsets: Offsets) -> Offsets:
    """Return the offsets as a checkpoint restores them."""
    found: Offsets = json.loads(json.dumps(offsets))
    return found


def batch(reader: StreamReader, start: Offsets, end: Offsets) -> list[Row]:
    return rows_of(table(reader, reader.partitions(stored(start), stored(end))))


def test_a_new_query_starts_at_latest_or_its_starting_offsets() -> None:
    cluster = topic_in_memory(3)
    add(cluster, 0, 10)
    with on(cluster):
        revision = cluster.controller.snapshot().topic("events").revision
        journals = {"journals": {"0": list(cluster.journal(0).replica.end)}}
        newest = {"events": {"revision": revision, **journals, "0": 10, "1": 10, "2": 10}}
        assert stream_reader(topic="events").initialOffset() == newest
        assert stream_reader(topic="events").reportLatestOffset() == newest
        earliest = stream_reader(topic="events", startingOffsets="earliest").initialOffset()
        assert earliest == {"events": {"revision": revision, **journals, "0": 0, "1": 0, "2": 0}}
        some = stream_reader(topic="events", startingOffsets='{"events":{"0":4,"1":-1}}').initialOffset()
        assert some == {"events": {"revision": revision, **journals, "0": 4, "1": 10, "2": 0}}
        with pytest.raises(UsageError, match="a stream has no end"):
            stream_reader(topic="events", endingOffsets="latest")


def test_a_replayed_micro_batch_gives_the_same_records_once() -> None:
    cluster = topic_in_memory(3)
    with on(cluster):
        start = stream_reader(topic="events").initialOffset()
        seen: list[Row] = []
        for n in range(4):
            add(cluster, 10 * n, 10 * n + 10)
            reader = stream_reader(topic="events")
            end = reader.latestOffset(stored(start), ReadAllAvailable())
            first = batch(reader, start, end)
            add_reconciled = n % 2 == 0
            if add_reconciled:
                reconcile(cluster)
                store_of(cluster).delete(l0_objects(cluster))
            assert batch(stream_reader(topic="events"), start, end) == first
            seen += first
            start = end
        assert sorted(seen) == rows(0, 40)
        assert stream_reader(topic="events").latestOffset(stored(start), ReadAllAvailable()) == start
        assert stream_reader(topic="events").partitions(stored(start), stored(start)) == []


def test_planning_a_micro_batch_looks_at_each_log_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = topic_in_memory(3)
    add(cluster, 0, 10)
    reconcile(cluster)
    looks: list[str] = []
    tail = SharedLog.tail

    def counted(log: SharedLog, *given: Any, **more: Any) -> Any:
        looks.append(log.folder)
        return tail(log, *given, **more)

    with on(cluster):
        reader = stream_reader(
            topic="events", startingOffsets="earliest", maxOffsetsPerTrigger="9", maxBytesPerTrigger="99"
        )
        start = reader.initialOffset()
        monkeypatch.setattr(SharedLog, "tail", counted)
        end = reader.latestOffset(stored(start), reader.getDefaultReadLimit())
        newest = reader.reportLatestOffset()
        tasks = reader.partitions(stored(start), stored(end))
        assert len(looks) == len(set(looks)) == 2
        assert newest["events"] == {**start["events"], "0": 10, "1": 10, "2": 10}
        found = rows_of(table(reader, tasks))
        assert found
        assert batch(reader, start, end) == found
        assert len(set(looks)) < len(looks)  # a micro-batch that is planned again is looked up again


def test_a_micro_batch_costs_requests_per_log_task_and_object() -> None:
    """The planner requests the controller's log and each journal, and each task its journal; an object costs its footer
    and rows.
    """
    cluster = topic_in_memory(4, 2)
    for n in range(4):
        add(cluster, 10 * n, 10 * n + 10, 4)
        reconcile(cluster)
    asked: list[str] = []
    with on(cluster):
        reader = stream_reader(topic="events", startingOffsets="earliest", maxOffsetsPerTrigger="40")
        at, found = reader.initialOffset(), []
        store_of(cluster).fault = lambda call: asked.append(call.key) if call.when == "before" else None
        for _ in range(4):
            asked.clear()
            end = reader.latestOffset(stored(at), reader.getDefaultReadLimit())
            reader.reportLatestOffset()
            tasks = reader.partitions(stored(at), stored(end))
            found += rows_of(table(reader, tasks))
            reader.commit(stored(end))
            objects = {key for key in asked if "/data/" in key}
            assert len(objects) == 4
            assert sum("/data/" in key for key in asked) <= 2 * len(objects)
            assert sum("/data/" not in key for key in asked) <= 1 + 2 + len(tasks)
            at = end
    assert sorted(found) == rows(0, 40, 4)


def test_a_stale_micro_batch_plan_is_checked_against_the_logs() -> None:
    cluster = topic_in_memory(3)
    add(cluster, 0, 10)
    with on(cluster):
        reader = stream_reader(topic="events", startingOffsets="earliest", maxOffsetsPerTrigger="9")
        start = reader.initialOffset()
        end = reader.latestOffset(stored(start), reader.getDefaultReadLimit())
        expire(cluster, 2)
        other = {"events": {**end["events"], "0": 9}}
        with pytest.raises(OffsetOutOfRangeError, match="record 0 of partition events/0 was deleted"):
            reader.partitions(stored(start), other)


@pytest.mark.parametrize("options", [{"maxOffsetsPerTrigger": "12"}, {"maxBytesPerTrigger": "40"}])
@pytest.mark.parametrize("in_l1", [False, True])
def test_a_limit_holds_a_micro_batch_small_and_every_partition_goes_on(options: dict[str, str], in_l1: bool) -> None:
    cluster = topic_in_memory(3)
    put(cluster, "events", {0: values(0, 0, 100), 1: values(1, 0, 20), 2: values(2, 0, 1)})
    if in_l1:
        reconcile(cluster)
    with on(cluster):
        reader = stream_reader(topic="events", startingOffsets="earliest", **options)
        limit = reader.getDefaultReadLimit()
        assert isinstance(limit, ReadMaxRows if "maxOffsetsPerTrigger" in options else ReadMaxBytes)
        start = reader.initialOffset()
        seen: list[Row] = []
        sizes = []
        while (end := reader.latestOffset(stored(start), limit)) != start:
            found = batch(reader, start, end)
            assert {p for p, _, _ in found} >= {p for p in (0, 1) if start["events"][str(p)] < (100, 20)[p]}
            seen += found
            sizes.append(len(found))
            start = end
        assert sorted(seen) == sorted([*rows(0, 100, 1), *[r for r in rows(0, 20, 2) if r[0] == 1], (2, 0, b"2:0000")])
        assert len(sizes) > 3
        assert max(sizes) <= (15 if "maxOffsetsPerTrigger" in options else 60)
        everything = reader.latestOffset(stored(reader.initialOffset()), ReadAllAvailable())
        assert everything == reader.reportLatestOffset()


def test_available_now_stops_at_what_was_there_when_it_began() -> None:
    cluster = topic_in_memory(3)
    add(cluster, 0, 10)
    with on(cluster):
        reader = stream_reader(topic="events", startingOffsets="earliest", maxOffsetsPerTrigger="9")
        start = reader.initialOffset()
        reader.prepareForTriggerAvailableNow()
        seen: list[Row] = []
        for n in range(100):
            end = reader.latestOffset(stored(start), reader.getDefaultReadLimit())
            if end == start:
                break
            seen += batch(reader, start, end)
            add(cluster, 10 + n, 11 + n)
            start = end
        assert sorted(seen) == rows(0, 10)


def expire(cluster: ClusterHandles, before: int) -> None:
    """Delete the records below this offset."""
    topic = cluster.controller.snapshot().topic("events")
    state = cluster.journal(topic.journals[0]).catch_up().topics[topic.revision]
    state.log_start[:] = before  # as the entry `expired` does


@pytest.mark.parametrize("in_l1", [False, True])
def test_deleted_unread_records_stop_a_query_unless_accepted(in_l1: bool) -> None:
    cluster = topic_in_memory(3)
    add(cluster, 0, 10)
    add(cluster, 10, 20)
    if in_l1:
        reconcile(cluster)
    with on(cluster):
        options = {"topic": "events", "startingOffsets": "earliest"}
        start = stream_reader(**options).initialOffset()
        planned = stream_reader(**options).partitions(start, stream_reader(**options).reportLatestOffset())
        expire(cluster, 7)
        strict, lenient = stream_reader(**options), stream_reader(**options, failOnDataLoss="false")
        with pytest.raises(OffsetOutOfRangeError, match="first record that is left has offset 7"):
            strict.latestOffset(stored(start), ReadAllAvailable())
        end = lenient.latestOffset(stored(start), ReadAllAvailable())
        with pytest.raises(OffsetOutOfRangeError, match="failOnDataLoss=false"):
            strict.partitions(stored(start), stored(end))
        assert sorted(batch(lenient, start, end)) == rows(7, 20)
        # Deletion between the plan and the task is reported, too.
        with pytest.raises(OffsetOutOfRangeError, match="were deleted before they were read"):
            table(strict, planned)
        assert sorted(rows_of(table(lenient, planned))) == rows(7, 20)


def test_a_checkpoint_of_other_or_recreated_topics_is_refused() -> None:
    cluster = topic_in_memory(3)
    cluster.controller.create_topic("other", 1)
    add(cluster, 0, 10)
    with on(cluster):
        start = stream_reader(topic="events").initialOffset()
        with pytest.raises(
            OffsetOutOfRangeError, match="the checkpoint has topic events, which was deleted or is not in"
        ):
            stream_reader(topic="other").latestOffset(stored(start), ReadAllAvailable())
        reader = stream_reader(topic="events")
        delete_topic(cluster, "events")
        cluster.controller.create_topic("events", 3)
        add(cluster, 0, 10)
        with pytest.raises(OffsetOutOfRangeError, match="was deleted and created again"):
            reader.latestOffset(stored(start), ReadAllAvailable())
        with pytest.raises(OffsetOutOfRangeError, match="was deleted and created again"):
            reader.partitions(stored(start), stored(start))
        assert PartitionClosedError.__name__


def test_a_topic_that_went_back_to_before_a_checkpoint_is_reported() -> None:
    cluster = topic_in_memory(3)
    add(cluster, 0, 10)
    with on(cluster):
        start = stream_reader(topic="events").initialOffset()
        start["events"]["1"] = 11
        with pytest.raises(OffsetOutOfRangeError, match="looks restored from a backup"):
            stream_reader(topic="events").latestOffset(stored(start), ReadAllAvailable())
        lenient = stream_reader(topic="events", failOnDataLoss="false")
        end = lenient.latestOffset(stored(start), ReadAllAvailable())
        assert end == lenient.reportLatestOffset()
        assert batch(lenient, start, end) == []
        add(cluster, 10, 12)
        newest = lenient.latestOffset(stored(end), ReadAllAvailable())
        assert sorted(batch(lenient, end, newest)) == rows(10, 12)


def test_a_checkpoint_of_a_log_set_back_and_grown_is_refused(tmp_path: Path) -> None:
    """Hazard 38: the checkpoint's offsets exist again, with other records. The same happens if a query reads a copy of
    the cluster.
    """
    cluster = topic_in_memory(3)
    add(cluster, 0, 10)
    copy = copy_of(store_of(cluster), "l0gc/journal/")
    with on(cluster):
        start = stream_reader(topic="events").initialOffset()
        add(cluster, 10, 20)
        end = stream_reader(topic="events").latestOffset(stored(start), ReadAllAvailable())
    put_back(store_of(cluster), "l0gc/journal/", copy)
    cluster = another_process(cluster)
    for first in (10, 20, 30):
        add(cluster, first, first + 10)
    with on(cluster):
        for checkpoint in (end, {"events": {**end["events"], "0": 1, "1": 1, "2": 1}}):
            with pytest.raises(OffsetOutOfRangeError, match="journal 0 does not have the entry at offset 1 from which"):
                stream_reader(topic="events").latestOffset(stored(checkpoint), ReadAllAvailable())
        lenient = stream_reader(topic="events", failOnDataLoss="false")
        newest = lenient.latestOffset(stored(end), ReadAllAvailable())
        assert sorted(batch(lenient, end, newest)) == rows(20, 40)
        assert stream_reader(topic="events").latestOffset(stored(newest), ReadAllAvailable()) == newest
    for name, text in (("offsets", json.dumps(end)), ("commits", "{}")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0").write_text(f"v1\n{{}}\n{text}\n")
    with pytest.raises(OffsetOutOfRangeError, match="was written by another log: journal 0 does not have the entry"):
        query_lag(cluster, LocalFolder(tmp_path), "c")


def test_a_query_asks_once_for_each_place_of_its_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """A place that a process has not replayed costs a request, and Spark polls many times a second."""
    cluster = topic_in_memory(1)
    put(cluster, "events", {0: [b"a"]})
    asked: list[Place] = []
    holds = Replica.holds

    def counted(replica: Replica[Any], place: Place) -> bool:
        asked.append(place)
        return holds(replica, place)

    with on(cluster):
        reader = stream_reader(topic="events")
        start = stored(reader.initialOffset())
        monkeypatch.setattr(Replica, "holds", counted)
        for _ in range(3):
            reader.latestOffset(start, ReadAllAvailable())
    assert len(asked) == len(set(asked)) == 1


def test_entries_of_other_topics_begin_no_micro_batch() -> None:
    cluster = topic_in_memory(1)
    cluster.controller.create_topic("other", 1)
    put(cluster, "events", {0: [b"a"]})
    with on(cluster):
        reader = stream_reader(topic="events")
        end = stored(reader.initialOffset())
        for _ in range(2):
            put(cluster, "other", {0: [b"b"]})
            assert reader.latestOffset(end, ReadAllAvailable()) == end
        put(cluster, "events", {0: [b"c"]})
        assert reader.latestOffset(end, ReadAllAvailable()) != end


def follow(reader: StreamReader, start: Offsets) -> tuple[list[tuple[str, int, bytes]], Offsets]:
    """Return what the next micro-batch reads, with the topics of its records, and where it ends."""
    end = reader.latestOffset(stored(start), ReadAllAvailable())
    found = table(reader, reader.partitions(stored(start), stored(end)))
    columns = [found.column(name).to_pylist() for name in ("topic", "partition", "value")]
    return sorted(zip(*columns, strict=True)), stored(end)


@pytest.mark.parametrize("by", ["subscribe", "subscribePattern"])
def test_a_topic_added_later_is_read_from_its_first_record(by: str) -> None:
    cluster = topic_in_memory(1)
    put(cluster, "events", {0: [b"a"]})
    cluster.controller.create_topic("eve", 1)
    put(cluster, "eve", {0: [b"of no matching name"]})
    with on(cluster):
        reader = stream_reader(**{by: "events" if by == "subscribe" else "events.*"})
        start = reader.initialOffset()
        assert set(start) == {"events"}
        cluster.controller.create_topic("events2", 2)
        put(cluster, "events2", {1: [b"before"]})
        put(cluster, "events", {0: [b"b"]})
        if by == "subscribe":
            reader = stream_reader(subscribe="events2,events")
        found, end = follow(reader, start)
        assert found == [("events", 0, b"b"), ("events2", 1, b"before")]
        cluster.controller.create_topic("events3", 1)
        put(cluster, "events3", {0: [b"later"]})
        again = reader.partitions(stored(start), end)  # a replay reads what was planned
        assert sorted(rows_of(table(reader, again))) == [(0, 1, b"b"), (1, 0, b"before")]
        found, end = follow(reader, end)
        assert found == ([] if by == "subscribe" else [("events3", 0, b"later")])


def test_available_now_reads_only_existing_matches_of_a_pattern() -> None:
    cluster = topic_in_memory(1)
    with on(cluster):
        reader = stream_reader(subscribePattern="clicks-.*")
        start = reader.initialOffset()
        assert start == reader.latestOffset(start, ReadAllAvailable()) == {}
        assert reader.partitions(start, start) == []
        reader.prepareForTriggerAvailableNow()
        cluster.controller.create_topic("clicks-eu", 1)
        put(cluster, "clicks-eu", {0: [b"x"]})
        assert follow(reader, start)[0] == []
        assert follow(stream_reader(subscribePattern="clicks-.*"), start)[0] == [("clicks-eu", 0, b"x")]
        with pytest.raises(UsageError, match="names topic 'events', which option subscribePattern does not match"):
            stream_reader(subscribePattern="c.*", startingOffsets='{"events":{"0":1}}').initialOffset()


@pytest.mark.parametrize("by", ["subscribe", "subscribePattern"])
@pytest.mark.parametrize("again", [False, True])
def test_a_loss_tolerant_query_survives_a_recreated_topic(by: str, again: bool) -> None:
    cluster = topic_in_memory(3)
    cluster.controller.create_topic("other", 1)
    add(cluster, 0, 10)
    options = {by: "events,other" if by == "subscribe" else "events|other"}
    with on(cluster):
        reader = stream_reader(**options, failOnDataLoss="false", startingOffsets='{"events":{"0":-2}}')
        start = reader.initialOffset()
        planned = reader.latestOffset(stored(start), ReadAllAvailable())
        tasks = reader.partitions(start, planned)
        delete_topic(cluster, "events")
        if again:
            cluster.controller.create_topic("events", 2)
            put(cluster, "events", {1: [b"new"]})
        put(cluster, "other", {0: [b"o"]})
        assert table(reader, tasks).num_rows == 0
        assert reader.partitions(start, planned) == []
        for position in (start, planned):
            found, end = follow(reader, position)
            assert found == [*([("events", 1, b"new")] if again else []), ("other", 0, b"o")]
            assert follow(reader, end) == ([], end)
        strict = stream_reader(**options)
        with pytest.raises(NotFoundError):
            strict.latestOffset(stored(planned), ReadAllAvailable())
        with pytest.raises(NotFoundError):
            strict.partitions(stored(start), stored(planned))
        with pytest.raises(PartitionClosedError):
            table(strict, tasks)


def test_a_topic_missing_at_the_start_is_always_an_error() -> None:
    with on(topic_in_memory(1)), pytest.raises(NotFoundError):
        stream_reader(subscribe="events,evnts", failOnDataLoss="false").initialOffset()


def test_a_stream_of_several_topics_reads_all_of_them() -> None:
    cluster = topic_in_memory(3, 2)
    cluster.controller.create_topic("other", 2)
    with on(cluster):
        reader = stream_reader(subscribe="events,other")
        start = reader.initialOffset()
        add(cluster, 0, 5)
        put(cluster, "other", {1: [b"x"]})
        end = reader.latestOffset(stored(start), ReadAllAvailable())
        assert sorted(batch(reader, start, end)) == sorted([*rows(0, 5), (1, 0, b"x")])


def test_a_stream_of_assigned_partitions_reads_no_other() -> None:
    cluster = topic_in_memory(3)
    add(cluster, 0, 5)
    with on(cluster):
        reader = stream_reader(assign='{"events":[1]}', startingOffsets="earliest", maxOffsetsPerTrigger="3")
        start = reader.initialOffset()
        first = reader.latestOffset(stored(start), reader.getDefaultReadLimit())
        second = reader.latestOffset(stored(first), reader.getDefaultReadLimit())
        assert batch(reader, start, first) + batch(reader, first, second) == [r for r in rows(0, 5) if r[0] == 1]
        assert reader.latestOffset(stored(second), ReadAllAvailable()) == second


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=8), st.integers(1, 20_000))
def test_a_limit_is_kept_but_for_one_record_of_each_partition(sizes: list[int], limit: int) -> None:
    topic = topic_in_memory(8).controller.snapshot().topic("events")
    starts = np.arange(len(sizes)) * 7
    ranges = {"events": Ranges(topic, starts, starts + sizes)}
    taken = limited(ranges, sum(sizes), limit)["events"] - starts
    assert (taken <= sizes).all()
    assert ((taken > 0) == (np.array(sizes) > 0)).all()
    assert min(sum(sizes), limit) <= taken.sum() <= limit + len(sizes)
    if sum(sizes) <= limit:
        assert (taken == sizes).all()
