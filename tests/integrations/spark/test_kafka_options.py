"""The options of Spark's Kafka connector: those that l0gc has mean the same, and the others are refused by name."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMinRows
from pyspark.sql.types import StructType

from l0gc.errors import OffsetOutOfRangeError, UsageError
from l0gc.integrations.spark.options import read_options
from l0gc.integrations.spark.source import SCHEMA, L0gcDataSource
from l0gc.integrations.spark.stream import Stream
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.journal.rows import MAX_OFFSET
from l0gc.streamlog.reader import read_topic
from tests.support.memory_store import store_of, topic_in_memory
from tests.support.reconcile import put, reconcile
from tests.support.spark_source import URL, Row, data_source, on, read, stream_reader


def timed(in_l1: bool = False) -> tuple[ClusterHandles, list[int]]:
    """Create two partitions with a record each at three times, and the second with one at a fourth; return these times,
    too.
    """
    cluster = topic_in_memory(2)
    for n in range(4):
        put(cluster, "events", {p: [b"%d:%d" % (p, n)] for p in range(2) if n < 3 or p == 1})
        store_of(cluster).clock.ms += 120_000
        if in_l1 and n == 1:
            reconcile(cluster)
    records = read_topic(cluster, cluster.controller.snapshot().topic("events"))
    return cluster, sorted(r.timestamp_ms for r in records if r.partition == 1)


def found(cluster: ClusterHandles, **options: str) -> dict[int, list[int]]:
    """Return the offsets of each partition that a batch reads."""
    rows: list[Row] = read(cluster, topic="events", **options)
    return {p: sorted(offset for at, offset, _ in rows if at == p) for p in range(2)}


@pytest.mark.parametrize("in_l1", [False, True])
def test_timestamps_by_partition_say_where_each_begins_and_ends(in_l1: bool) -> None:
    cluster, times = timed(in_l1)
    for a, b in product(range(3), range(4)):
        start = f'{{"events":{{"0":{times[a]},"1":{times[b]}}}}}'
        assert found(cluster, startingOffsetsByTimestamp=start) == {0: [*range(a, 3)], 1: [*range(b, 4)]}
        assert found(cluster, endingOffsetsByTimestamp=start) == {0: [*range(a)], 1: [*range(b)]}
    assert found(cluster, startingOffsetsByTimestamp=f'{{"events":{{"1":{times[2]}}}}}') == {0: [0, 1, 2], 1: [2, 3]}
    assert found(cluster, endingOffsetsByTimestamp=f'{{"events":{{"1":{times[2]}}}}}') == {0: [0, 1, 2], 1: [0, 1]}


@pytest.mark.parametrize("in_l1", [False, True])
def test_a_start_time_finds_records_of_idle_senders(in_l1: bool) -> None:
    """A record's time is the time at which it was sent, to 2 s, and not that of the last reply before it."""
    cluster, sent = topic_in_memory(2), []
    for n in range(4):
        store_of(cluster).clock.ms += 4_500
        sent.append(store_of(cluster).clock.ms)
        put(cluster, "events", {0: [b"0", b"1"], 1: [b"0"]}, {1: [b"1"]})
        if in_l1 and n == 2:
            reconcile(cluster)
    for a, b in ((0, 3), (1, 0), (2, 2), (3, 1)):
        start = f'{{"events":{{"0":{sent[a] - 2_000},"1":{sent[b] - 2_000}}}}}'
        assert found(cluster, startingOffsetsByTimestamp=start) == {0: [*range(2 * a, 8)], 1: [*range(2 * b, 8)]}


@pytest.mark.parametrize("option", ["startingTimestamp", "startingOffsetsByTimestamp"])
def test_a_start_after_the_last_record_is_an_error_by_default(option: str) -> None:
    cluster, times = timed()
    start = str(times[3]) if option == "startingTimestamp" else f'{{"events":{{"0":{times[3]},"1":{times[3]}}}}}'
    latest = {option: start, "startingOffsetsByTimestampStrategy": "latest"}
    with pytest.raises(
        OffsetOutOfRangeError, match=rf"{option} asks for records since {times[3]}, .* events/0 has none"
    ):
        found(cluster, **{option: start})
    assert found(cluster, **latest) == {0: [], 1: [3]}
    with on(cluster):
        with pytest.raises(OffsetOutOfRangeError, match="events/0 has none"):
            stream_reader(topic="events", **{option: start}).initialOffset()
        begun = stream_reader(topic="events", **latest).initialOffset()["events"]
        assert {"0": 3, "1": 3}.items() <= begun.items()
        # a partition that is not read needs no match
        assert (
            stream_reader(assign='{"events":[1]}', startingTimestamp=str(times[3])).initialOffset()["events"]["1"] == 3
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"startingOffsets": '{"events":{"0":2}}', "endingOffsets": '{"events":{"0":1}}'},
            "has 2 for .*, after .* at 1",
        ),
        (
            {
                "startingOffsetsByTimestamp": '{"events":{"0":1000000000002}}',
                "endingOffsetsByTimestamp": '{"events":{"0":1000000000001}}',
            },
            "has 1000000000002 for .*, after endingOffsetsByTimestamp at 1000000000001",
        ),
        (
            {"startingOffsets": '{"events":{"0":2}}', "endingTimestamp": "1000000000005"},
            "begins partition events/0 at record 2, and endingTimestamp ends it before, at 0",
        ),
        ({"startingOffsets": "earliest", "startingOffsetsByTimestamp": "{}"}, "exclude each other"),
        ({"startingTimestamp": "0", "startingOffsetsByTimestamp": "{}"}, "exclude each other"),
        (
            {"startingTimestamp": "1704067200"},
            "1704067200 milliseconds are 1970-01-20, so it is probably in another unit",
        ),
        ({"endingOffsetsByTimestamp": '{"events":{"0":1704067200}}'}, "are 1970-01-20"),
        ({"startingOffsetsByTimestamp": "yesterday"}, "must be JSON like"),
        ({"startingOffsetsByTimestamp": '{"events":{"0":-1}}'}, "has -1 for partition 0"),
        ({"startingOffsetsByTimestampStrategy": "first"}, "must be error or latest"),
        ({"topic": "", "assign": '{"events":[]}'}, "name a partition of each topic"),
        ({"topic": "", "subscribePattern": "eve(nts"}, "is not a regular expression"),
        ({"subscribePattern": "e.*"}, "one of the options topic, subscribe"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "is 9, and maxOffsetsPerTrigger is less: 8"),
        ({"maxTriggerDelay": "soon"}, "a span of time such as 15m"),
    ],
)
def test_ranges_and_limits_that_cannot_be_meant_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read(timed()[0], **{"topic": "events", **options})


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("startingOffset", "did you mean 'startingOffsets'"),
        ("offsets", "option 'offsets' does not exist$"),
        ("kafka.group.id", "the checkpoint holds how far"),
        ("kafka.auto.offset.reset", "option startingOffsets sets"),
        ("kafka.isolation.level", "all records of a topic are committed"),
        ("path", "name it with option topic"),
        ("paths", "with option subscribe"),
    ],
)
def test_an_ineffective_option_is_refused_by_name(option: str, message: str) -> None:
    options = {"topic": "events", "startingOffsets": "earliest", option: "true"}
    with pytest.raises(UsageError, match=message):
        read(timed()[0], **options)
    with pytest.raises(UsageError, match=message):
        data_source(**options).schema()
    with pytest.raises(UsageError, match=message):
        stream_reader(**options)


def test_options_for_talking_to_kafka_change_nothing() -> None:
    cluster, _ = timed()
    added = {"checkpointlocation": "/a", "queryname": "a"}
    idle = {"groupIdPrefix": "a", "kafkaConsumer.pollTimeoutMs": "1", "fetchOffset.numRetries": "1"}
    assert found(cluster, **added, **idle, includeHeaders="false") == found(cluster) == {0: [0, 1, 2], 1: [0, 1, 2, 3]}


def test_a_schema_lets_through_what_a_batch_or_a_stream_may_have() -> None:
    for options in ({"startingOffsets": "latest"}, {"endingOffsets": "latest"}):
        assert data_source(topic="events", **options).schema()


def test_every_call_reports_wrong_stream_options() -> None:
    reader = data_source(topic="events", endingTimestamp="1000000000005").streamReader(
        data_source(topic="events").schema()
    )
    calls = (
        reader.initialOffset,
        lambda: reader.latestOffset({}, reader.getDefaultReadLimit()),
        lambda: reader.partitions({}, {}),
        lambda: reader.read(None),  # type: ignore[arg-type]
    )
    for call in calls:
        with pytest.raises(UsageError, match="a stream has no end: option endingTimestamp is for batches only"):
            call()
    reader.stop()


class Clock:
    """A clock in seconds, which a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_micro_batch_waits_for_enough_records_or_for_the_delay() -> None:
    cluster, clock = topic_in_memory(1), Clock()
    options = {"topic": "events", "minOffsetsPerTrigger": "3", "maxTriggerDelay": "10s", "startingOffsets": "earliest"}
    with on(cluster):
        assert stream_reader(**options).getDefaultReadLimit() == ReadMinRows(3)
        stream = Stream(cluster, read_options({"url": URL, **options}, streaming=True), clock)
        start: dict[str, Any] = stream.initial()
        moments = [(0, 1, 1), (5, 1, 1), (9, 1, 1), (9, 1, 4), (15, 1, 4), (19, 1, 6), (21, 2, 6), (29, 1, 9)]
        for seconds, records, reached in moments:
            clock.now = seconds
            put(cluster, "events", {0: [b"x"] * records})
            end = stream.next_end(start, everything=False)
            assert end["events"]["0"] == reached, (seconds, records)
            start = end
        put(cluster, "events", {0: [b"x"]})
        assert stream.next_end(start, everything=False) == start
        assert stream.newest()["events"]["0"] == 10, "though the micro-batch waits"
        assert stream.next_end(start, everything=True)["events"]["0"] == 10
        stream.stop_at_newest()
        assert stream.next_end(start, everything=False)["events"]["0"] == 10


@pytest.mark.parametrize("url", [None, URL])
def test_a_catalog_table_has_the_columns_but_no_options(monkeypatch: pytest.MonkeyPatch, url: str | None) -> None:
    """A table's reader gets only the options that a query gives by WITH, even if a variable names the cluster."""
    if url is not None:
        monkeypatch.setenv("L0GC_URL", url)
    created, value = {"provider": "l0gc", "owner": "a"}, StructType([SCHEMA["value"]])
    assert L0gcDataSource(created).schema() == SCHEMA
    with pytest.raises(
        UsageError, match=r"^a table of Spark's catalog keeps no options .* WITH .* CREATE TEMPORARY VIEW"
    ):
        L0gcDataSource({**created, "option.topic": "events", "topic": "events"}).schema()
    for refused in (lambda: L0gcDataSource({}).reader(SCHEMA), lambda: L0gcDataSource({}).writer(value, False)):
        with pytest.raises(UsageError, match=r"^a table of Spark's catalog keeps no options"):
            refused()


def test_the_largest_long_is_no_limit() -> None:
    """Spark's own programs pass it to read everything."""
    place = {"url": URL, "topic": "events"}
    assert read_options(place | {"maxOffsetsPerTrigger": str(2**63 - 1)}, streaming=True).max_offsets == MAX_OFFSET
    with pytest.raises(UsageError, match="must be a whole number from 1 to 9223372036854775807"):
        read_options(place | {"maxOffsetsPerTrigger": str(2**63)}, streaming=True)
