"""A bridge from Kafka: copy a topic of Kafka into a topic of l0gc with as many partitions, or back.

    python -m l0gc.integrations.kafka BOOTSTRAP_SERVERS KAFKA_TOPIC URL TOPIC [--from-beginning] [--back]

**Each record once, in its partition and in order.** The producer's position in a partition is that of the consumer: the
offset of the next record. It lands with the records, in one entry of the journal. Therefore the bridge may be killed at
any moment, and continues where the last entry ends. If a second bridge is started, the first one ends with an error at
its next batch, once it has read the controller's log again, some seconds later. If both send in that time, one of them
ends, and no record lands twice. Keys, headers and create times are kept.

**Each partition.** If a partition is added to Kafka's topic while the bridge runs, it is copied from its first record.
If the topic of l0gc has fewer partitions, the bridge ends with an error.

**No outdated position** (hazard 33). A position belongs to one topic of Kafka and one topic of l0gc. The ids of both,
which change if a topic is created again, are in the names of the producer and of the consumer group. If Kafka does not
have the position, if its topic is created again while it is read, or if no position is stored for a partition that has
records, the bridge ends with an error. Only with `--from-beginning` does it begin elsewhere.

The way back copies the current records and ends. If it runs again, it sends all of them again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from types import FrameType
from typing import Any, Final

import msgspec
from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

import l0gc
from l0gc.api import Record
from l0gc.errors import L0gcError, NotFoundError, SafetyError, UsageError
from l0gc.storage.entry import Place
from l0gc.streamlog.ingest.headers_and_times import MAX_TIME_MS

BATCH: Final = 10_000
"""The most records that land together."""
WAIT_S: Final = 1.0
"""The longest time for which records are gathered before they land."""
_COMMIT_S: Final = 3600.0
"""How often positions are committed to Kafka, which deletes them after a week, and the producer's run is renewed."""
_ANSWER_S: Final = 10.0
LOOK_S: Final = 30.0
"""How often the bridge looks for new partitions."""
_INT64: Final = 1 << 63
NULL: Final = ("kafka.null", None)
"""The header of a record whose value is null in Kafka (a tombstone), since a value in l0gc is never null."""
TIME: Final = "kafka.timestamp"
"""The header with a create time outside the years 1970 to 9999, such as one in microseconds."""
_OURS: Final = re.compile(r"=*kafka\.(null|timestamp)")
"""Names of Kafka's headers to which l0gc prepends a `=`, so that they are not mistaken for the two above."""


def to_l0gc(
    servers: str,
    source: str,
    url: str,
    topic: str,
    stop: Callable[[int], bool] = lambda landed: False,
    *,
    from_beginning: bool = False,
) -> None:
    """Copy a topic of Kafka until `stop` returns True for the number of landed records.

    Args:
        from_beginning: begin at the first record of partitions without a stored position, or whose next records Kafka
            has deleted.

    Raises:
        NotFoundError: the topic does not exist in Kafka or in the cluster.
        UsageError: the topic of l0gc has fewer partitions.
        SafetyError: a position is missing or outdated; see the module.
        KafkaException: Kafka refuses, or does not answer.
    """
    admin = AdminClient({"bootstrap.servers": servers})
    partitions, cluster_id = _partitions(servers, source)
    read_id = topic_id(admin, source)
    with l0gc.open(url) as cluster:
        described = cluster.topics.describe(topic, limit=1 << 31)
        filled = {o.partition for o in described.offsets if o.next_offset}
        of_source = f"{cluster_id}-{read_id}-{source}"
        consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": f"l0gc-{topic}-{described.topic_id}-{of_source}-{_digest(cluster.url)}",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
            }
        )
        with closing(consumer), cluster.producers.sender(topic, f"kafka-{of_source}"[:200]) as sender:
            positions = dict(sender.positions)

            def begin(partitions: list[int]) -> None:
                """Begin to read these partitions. Raises the `SafetyError` and `UsageError` of `to_l0gc`."""
                if partitions and partitions[-1] >= described.partitions:
                    raise UsageError(
                        f"topic {source!r} of Kafka has partition {partitions[-1]}, and topic {topic!r} only "
                        f"{described.partitions} partitions: create a topic with as many, and copy into that one"
                    )
                assigned = [TopicPartition(source, p) for p in partitions]
                # Kafka also has positions for partitions for which l0gc no longer has one.
                for p in consumer.committed(assigned, _ANSWER_S) if assigned else ():
                    if p.offset >= 0 and sender.holds(p.partition, _place_of(p.metadata)):
                        positions.setdefault(p.partition, p.offset)
                missing = sorted(filled.intersection(partitions) - positions.keys())
                if missing and not from_beginning:
                    raise SafetyError(
                        f"partition {missing[0]} of topic {topic!r} has records, but no position in topic {source!r} (id "
                        f"{read_id}) of Kafka cluster {cluster_id} is stored: that topic was created again, the bridge "
                        f"was down for weeks, or the records have another source; if they do, start the bridge with "
                        f"--from-beginning"
                    )
                for p in assigned:
                    p.offset = positions.get(p.partition, OFFSET_BEGINNING)
                    if from_beginning and p.offset < consumer.get_watermark_offsets(p, _ANSWER_S)[0]:
                        p.offset = OFFSET_BEGINNING
                    consumer.incremental_assign([p])

            begin(partitions)
            commit_at, check_at = 0.0, time.monotonic() + LOOK_S
            while True:
                if time.monotonic() >= check_at:
                    new = sorted(set(_partitions(servers, source)[0]).difference(partitions))
                    begin(new)
                    partitions += new
                    check_at = time.monotonic() + LOOK_S
                if positions and time.monotonic() >= commit_at:
                    offsets = [TopicPartition(source, p, at, json.dumps(sender.end(p))) for p, at in positions.items()]
                    consumer.commit(offsets=offsets, asynchronous=False)
                    sender.send([], {})
                    commit_at = time.monotonic() + _COMMIT_S
                if stop(sender.result.records):
                    break
                messages: list[Any] = consumer.consume(BATCH, timeout=WAIT_S)
                if failed := next((m for m in messages if m.error()), None):
                    raise _why(consumer, failed, positions)
                if not messages:
                    continue
                if (now_id := topic_id(admin, source)) != read_id:
                    raise SafetyError(
                        f"Kafka's topic {source!r} had the id {read_id} and now has {now_id}: it was created again "
                        f"while it was read, and nothing of the new one was copied; start the bridge again"
                    )
                ends = {m.partition(): m.offset() + 1 for m in messages}
                sender.send(map(_record_of, messages), ends)
                positions |= ends
                commit_at = 0.0


def _digest(url: str) -> str:
    """Return a text that distinguishes the consumer group of a cluster from that of its copy at another URL (hazard
    40).
    """
    return hashlib.sha256(url.encode()).hexdigest()[:8]


def _place_of(metadata: str | None) -> Place:
    """Return the place that was committed with a position; if there is none, return a place that no journal has."""
    try:
        return msgspec.json.decode(metadata or "", type=Place)
    except msgspec.DecodeError:
        return Place(1 << 62)


def _partitions(servers: str, source: str) -> tuple[list[int], str]:
    """Return the partitions of Kafka's topic, and the id of its cluster. A consumer's request does not create the
    topic.
    """
    with closing(Consumer({"bootstrap.servers": servers, "group.id": "l0gc"})) as consumer:
        metadata = consumer.list_topics(source, _ANSWER_S)
    about = metadata.topics[source]
    if about.error is not None and about.error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
        raise KafkaException(about.error)
    if about.error is not None:
        raise NotFoundError(f"Kafka at {servers} has no topic {source!r}; create it there, or correct the name")
    return sorted(about.partitions), metadata.cluster_id


def topic_id(admin: AdminClient, source: str) -> str:
    """Return the id of Kafka's topic, which changes if the topic is created again. Brokers before 2.8 give all topics
    the same id.
    """
    (description,) = admin.describe_topics(TopicCollection([source]), request_timeout=_ANSWER_S).values()
    return str(description.result().topic_id)


def _why(consumer: Consumer, failed: Any, positions: Mapping[int, int]) -> Exception:
    """Return the exception for a message that is an error."""
    if failed.error().code() != KafkaError._AUTO_OFFSET_RESET:
        return KafkaException(failed.error())
    partition = failed.partition()
    first, end = consumer.get_watermark_offsets(TopicPartition(failed.topic(), partition), _ANSWER_S)
    return SafetyError(
        f"the bridge is at offset {positions.get(partition, 0)} of partition {partition} of topic "
        f"{failed.topic()!r}, but Kafka has the offsets from {first} to {end}: if it deleted records before they "
        f"were read, continue at the first one left with --from-beginning; if the topic was created again, copy it "
        f"into another topic of l0gc"
    )


def _record_of(message: Any) -> Record:
    kind, create_time = message.timestamp()
    value = message.value()
    headers = [(f"={k}" if _OURS.fullmatch(k) else k, v) for k, v in message.headers() or ()]
    if value is None:
        headers.append(NULL)
    if kind == TIMESTAMP_NOT_AVAILABLE:
        create_time = None
    elif not 0 <= create_time <= MAX_TIME_MS:
        headers.append((TIME, b"%d" % create_time))
        create_time = None
    return Record(value or b"", message.key(), tuple(headers), create_time, message.partition(), message.offset())


def in_kafka(record: Record) -> tuple[bytes | None, list[tuple[str, str | bytes | None]], int]:
    """Return the value, the headers and the create time that a record has in Kafka."""
    value: bytes | None = record.value
    create_time = record.timestamp_ms if record.create_time_ms is None else record.create_time_ms
    headers: list[tuple[str, str | bytes | None]] = []
    for k, v in record.headers:
        if (k, v) == NULL and not value:
            value = None
        elif k == TIME and v is not None and re.fullmatch(rb"-?[0-9]{1,19}", v) and -_INT64 <= int(v) < _INT64:
            create_time = int(v)
        else:
            headers.append((k[1:] if k.startswith("=") and _OURS.fullmatch(k) else k, v))
    return value, headers, create_time


def to_kafka(servers: str, target: str, url: str, topic: str) -> None:
    """Copy the current records of a topic of l0gc to Kafka. Raises `KafkaException` if some of them were not delivered."""
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    with l0gc.open(url) as cluster:
        for r in cluster.read(topic):
            value, headers, create_time = in_kafka(r)
            while True:
                try:
                    producer.produce(
                        target,
                        value,
                        r.key,
                        r.partition,
                        on_delivery=delivered,
                        timestamp=create_time or 1,  # the client reads 0 as the current time
                        headers=headers,
                    )
                    break
                except BufferError:  # the queue is full
                    producer.poll(0.1)
            producer.poll(0)
    producer.flush()
    if failed:
        raise KafkaException(failed[0])


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m l0gc.integrations.kafka", description="Copy a topic of Kafka into l0gc."
    )
    parser.add_argument("servers", metavar="BOOTSTRAP_SERVERS")
    parser.add_argument("kafka_topic", metavar="KAFKA_TOPIC")
    parser.add_argument("url", metavar="URL", help="the cluster: s3://bucket[/prefix]")
    parser.add_argument("topic", metavar="TOPIC", help="the topic of l0gc, with as many partitions")
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--back", action="store_true", help="copy the records in l0gc to Kafka, once")
    way.add_argument(
        "--from-beginning",
        action="store_true",
        help="begin at the first record where no position is stored, or where Kafka has deleted the next records",
    )
    given = parser.parse_args()
    landed = stopped_by = 0

    def stop(number: int, _: FrameType | None) -> None:
        nonlocal stopped_by
        if stopped_by or given.back:
            stopped_by = number
            raise KeyboardInterrupt
        stopped_by = number
        sys.stderr.write("stopping after the present batch; a second signal ends the bridge at once\n")

    def is_stopped(records: int) -> bool:
        nonlocal landed
        landed = records
        return bool(stopped_by)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    route = given.servers, given.kafka_topic, given.url, given.topic
    try:
        if given.back:
            to_kafka(*route)
        else:
            to_l0gc(*route, is_stopped, from_beginning=given.from_beginning)
            parser.exit(128 + stopped_by, f"stopped: {landed} records landed; start the bridge again to go on\n")
    except KeyboardInterrupt:
        again = "sends everything again" if given.back else "goes on behind what has landed"
        parser.exit(128 + stopped_by, f"stopped; if it is started again, it {again}\n")
    except L0gcError as e:
        parser.exit(e.exit_code, f"error: {e}\n")
    except KafkaException as e:
        parser.exit(1, f"error: {e.args[0].str()}\n")


if __name__ == "__main__":
    main()
