"""Checks each row of docs/work/spark.md's table on Spark's Kafka connector, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import ArrayType, StructType

from l0gc.errors import OffsetOutOfRangeError, UsageError
from l0gc.integrations.spark.source import SCHEMA
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.topics import delete_topic
from tests.support.ingest import stored_values
from tests.support.memory_store import topic_in_memory
from tests.support.reconcile import put
from tests.support.spark_source import (
    Rows,
    batch_reader,
    commit,
    data_source,
    on,
    read,
    staged,
    stream_reader,
    write_batch,
)

PAGE = Path(__file__).parents[3] / "docs/work/spark.md"
FUTURE = "5000000000000"
PAST = "1000000000000"
ALL = [(0, 0, b"a"), (0, 1, b"b"), (1, 0, b"c")]


def cluster_of_three() -> ClusterHandles:
    cluster = topic_in_memory(2)
    put(cluster, "events", {0: [b"a", b"b"], 1: [b"c"]})
    return cluster


def rows(**options: str) -> list[Any]:
    return sorted(read(cluster_of_three(), **{"topic": "events", **options}))


def refused(message: str, **options: str) -> None:
    with pytest.raises((UsageError, OffsetOutOfRangeError), match=message):
        rows(**options)


def named(by: str, value: str) -> None:
    assert rows(**{"topic": "", by: value}) == ALL


def kafkas_own() -> None:
    refused("option url names", **{"kafka.bootstrap.servers": "localhost:9092"})
    refused("for Kafka's clients", **{"kafka.security.protocol": "SSL"})


def assigned() -> None:
    assert rows(topic="", assign='{"events":[1]}') == ALL[2:]
    refused("name a partition of each topic", topic="", assign="{}")


def new_topics() -> None:
    cluster = topic_in_memory(1)
    with on(cluster):
        reader = stream_reader(subscribePattern=".*")
        start = reader.initialOffset()
        cluster.controller.create_topic("later", 1)
        put(cluster, "later", {0: [b"x"]})
        assert len(reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))) == 1


def offsets() -> None:
    assert rows(startingOffsets='{"events":{"0":1}}') == ALL[1:]
    assert rows(endingOffsets='{"events":{"1":0}}') == ALL[:2]


def times() -> None:
    assert rows(startingTimestamp="0", endingTimestamp=FUTURE) == ALL
    assert rows(endingTimestamp=PAST) == []


def times_by_partition() -> None:
    assert rows(endingOffsetsByTimestamp='{"events":{"0":0}}') == ALL[2:]
    assert rows(startingOffsetsByTimestamp='{"events":{"0":0}}') == ALL


def strategy() -> None:
    refused("has none", startingTimestamp=FUTURE)
    assert rows(startingTimestamp=FUTURE, startingOffsetsByTimestampStrategy="latest") == []


def loss() -> None:
    cluster = cluster_of_three()
    with on(cluster):
        lenient = stream_reader(topic="events", failOnDataLoss="false")
        start = lenient.initialOffset()
        delete_topic(cluster, "events")
        assert lenient.latestOffset(start, ReadAllAvailable()) == {}
        cluster.controller.create_topic("events", 1)
        with pytest.raises(OffsetOutOfRangeError, match="was deleted and created again"):
            stream_reader(topic="events").latestOffset(start, ReadAllAvailable())


def at_most() -> None:
    cluster = cluster_of_three()
    with on(cluster):
        reader = stream_reader(topic="events", startingOffsets="earliest", maxOffsetsPerTrigger="2")
        end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())["events"]
        assert end["0"] + end["1"] == 2
    assert rows(maxOffsetsPerTrigger="1") == ALL


def at_least() -> None:
    cluster = cluster_of_three()
    with on(cluster):
        reader = stream_reader(
            topic="events", minOffsetsPerTrigger="3", maxTriggerDelay="1d", startingOffsets="earliest"
        )
        start = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
        put(cluster, "events", {0: [b"d"]})
        assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start
        reader.prepareForTriggerAvailableNow()
        assert reader.latestOffset(start, reader.getDefaultReadLimit())["events"]["0"] == 3


def at_least_tasks() -> None:
    with on(cluster_of_three()):
        assert len(batch_reader(topic="events", minPartitions="3").partitions()) >= 2


def idle() -> None:
    names = ("groupIdPrefix", "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs")
    assert rows(**dict.fromkeys(names, "1")) == ALL


def headers() -> None:
    schema = data_source(topic="events", includeHeaders="true").schema()
    assert "headers" in schema.fieldNames()
    assert "headers" not in data_source(topic="events", includeHeaders="false").schema().fieldNames()


def columns() -> None:
    kafkas = ["key", "value", "topic", "partition", "offset", "timestamp"]
    assert SCHEMA.fieldNames() == [*kafkas, "epoch"]


def the_topic() -> None:
    cluster = topic_in_memory(1)
    write_batch(cluster, {"value": [b"x"], "topic": ["no such topic"]}, topic="events")
    assert stored_values(cluster, "events") == [[b"x"]]


def sink_columns() -> None:
    cluster = topic_in_memory(2)
    write_batch(cluster, {"value": [b"x"], "key": [b"k"], "topic": ["events"], "partition": [1]})
    assert stored_values(cluster, "events") == [[], [b"x"]]
    without: list[Rows] = [{"value": [None], "topic": ["events"]}, {"value": [b"x"], "topic": [None]}]
    for bad in without:
        with pytest.raises(UsageError, match=r"has no value|names no topic"):
            write_batch(cluster, bad)


def optional_columns() -> None:
    header = StructType().add("key", "string").add("value", "binary")
    schema = StructType().add("value", "binary").add("timestamp", "timestamp").add("headers", ArrayType(header))
    assert data_source(topic="events").writer(schema, False) is not None


def other_columns() -> None:
    cluster = topic_in_memory(1)
    write_batch(cluster, {"value": [b"x"], "colour": [b"red"]}, topic="events")
    assert stored_values(cluster, "events") == [[b"x"]]


def modes(streaming: bool) -> None:
    source, schema = data_source(topic="events"), StructType().add("value", "binary")
    make = source.streamWriter if streaming else source.writer
    assert make(schema, False) is not None
    with pytest.raises(UsageError, match="only be appended to"):
        make(schema, True)


def once() -> None:
    cluster = topic_in_memory(1)
    for _ in range(2):
        commit(cluster, [staged(cluster, {"value": [b"x"]}, 0, topic="events")], 0)
    assert stored_values(cluster, "events") == [[b"x"]]


def lag() -> None:
    with on(cluster_of_three()):
        reader = stream_reader(topic="events", startingOffsets="earliest")
        assert not hasattr(reader, "metrics")
        behind = json.loads(json.dumps(reader.reportLatestOffset()))["events"]
        assert (behind["0"], behind["1"]) == (2, 1)


CHECKS: dict[str, Callable[[], None]] = {
    "`kafka.bootstrap.servers`, all other `kafka.…`": kafkas_own,
    "`assign`": assigned,
    "`subscribe`": lambda: named("subscribe", "events"),
    "`subscribePattern`": lambda: named("subscribePattern", "ev.*"),
    "new topics of a query": new_topics,
    "`startingOffsets`, `endingOffsets`": offsets,
    "`startingTimestamp`, `endingTimestamp`": times,
    "`startingOffsetsByTimestamp`, `endingOffsetsByTimestamp`": times_by_partition,
    "`startingOffsetsByTimestampStrategy`": strategy,
    "a start or an end by offsets and by time": lambda: refused(
        "exclude each other", startingOffsets="earliest", startingTimestamp="0"
    ),
    "a start after the end": lambda: refused("after endingTimestamp", startingTimestamp=FUTURE, endingTimestamp=PAST),
    "JSON with other partitions for the end": lambda: refused(
        "name different partitions", startingOffsets='{"events":{"0":0}}', endingOffsets='{"events":{"1":1}}'
    ),
    "`failOnDataLoss`": loss,
    "`maxOffsetsPerTrigger`": at_most,
    "`minOffsetsPerTrigger`, `maxTriggerDelay`": at_least,
    "`minPartitions`": at_least_tasks,
    "`maxRecordsPerPartition`": lambda: refused("minPartitions", maxRecordsPerPartition="1"),
    "`includeHeaders`": headers,
    "`groupIdPrefix`, `kafkaConsumer.pollTimeoutMs`, `fetchOffset.numRetries`, `fetchOffset.retryIntervalMs`": idle,
    "options that do not exist": lambda: refused("does not exist", colour="red"),
    "columns of the source": columns,
    "sink option `topic`": the_topic,
    "sink columns `key`, `value`, `topic`, `partition`": sink_columns,
    "sink columns `headers`, `timestamp`": optional_columns,
    "other sink columns": other_columns,
    "save mode": lambda: modes(streaming=False),
    "output mode": lambda: modes(streaming=True),
    "delivery to the sink": once,
    "`avgOffsetsBehindLatest` and the other metrics in `lastProgress`": lag,
}


def test_the_table_has_the_rows_that_are_checked() -> None:
    table = PAGE.read_text().split("## Comparison with Spark's Kafka connector\n")[1].split("\n## ")[0]
    found = [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines() if line.startswith("| ")][2:]
    assert found == list(CHECKS)


@pytest.mark.parametrize("row", CHECKS)
def test_a_row_of_the_table_is_true(row: str) -> None:
    CHECKS[row]()
