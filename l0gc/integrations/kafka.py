"""A bridge from Kafka: a topic of Kafka into a topic of l0gc with as many partitions, and back.

    python -m l0gc.integrations.kafka BOOTSTRAP_SERVERS KAFKA_TOPIC URL TOPIC [--back]

**Each record once, in its partition and in order.** The producer's position in a partition is the consumer's: the offset of
the next record. It lands with the records, in one entry of the journal. So the bridge may be killed at any moment, and goes
on where the last entry ends; if a second one is started, the first one is refused. Keys, headers and create times are kept.

The way back copies what is there, and ends. If it is run again it sends everything again.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

import l0gc
from l0gc.api import NewRecord
from l0gc.errors import L0gcError

BATCH: Final = 10_000
"""How many records land together at most."""
NULL: Final = ("kafka.null", None)
"""The header of a record whose value is null in Kafka (a tombstone): a value in l0gc is never null."""


def to_l0gc(
    servers: str, source: str, url: str, topic: str, stop: Callable[[int], bool] = lambda landed: False
) -> None:
    """Copy a topic of Kafka until `stop` is true of how many records have landed."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": f"l0gc-{topic}", "enable.auto.commit": False})
    try:
        with l0gc.open(url) as cluster, cluster.producers.sender(topic, f"kafka-{source}") as sender:
            wanted = [TopicPartition(source, p) for p in consumer.list_topics(source, 10).topics[source].partitions]
            for p in consumer.committed(wanted, 10):  # for partitions in which l0gc remembers no position any more
                p.offset = sender.positions.get(p.partition, p.offset if p.offset >= 0 else OFFSET_BEGINNING)
                consumer.incremental_assign([p])
            positions = dict(sender.positions)
            while True:
                if positions:
                    offsets = [TopicPartition(source, p, at) for p, at in positions.items()]
                    consumer.commit(offsets=offsets, asynchronous=False)
                if stop(sender.result.records):
                    break
                messages: list[Any] = consumer.consume(BATCH, timeout=1.0)
                if failed := next((m.error() for m in messages if m.error()), None):
                    raise KafkaException(failed)
                positions = {m.partition(): m.offset() + 1 for m in messages}
                sender.send(map(_record_of, messages), positions)
    finally:
        consumer.close()


def _record_of(message: Any) -> NewRecord:
    kind, time = message.timestamp()
    value, headers = message.value(), tuple(message.headers() or ())
    return NewRecord(
        message.partition(),
        value if value is not None else b"",
        message.key(),
        headers if value is not None else (*headers, NULL),
        None if kind == TIMESTAMP_NOT_AVAILABLE else time,
    )


def to_kafka(servers: str, target: str, url: str, topic: str) -> None:
    """Copy what a topic of l0gc has now. Raises `KafkaException`: some of it was not delivered."""
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    with l0gc.open(url) as cluster:
        for r in cluster.read(topic):
            while True:
                try:
                    producer.produce(
                        target,
                        None if NULL in r.headers else r.value,
                        r.key,
                        r.partition,
                        on_delivery=delivered,
                        timestamp=r.timestamp_ms if r.create_time_ms is None else r.create_time_ms,
                        headers=[h for h in r.headers if h != NULL],
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
    parser.add_argument("--back", action="store_true", help="copy what is in l0gc to Kafka, once")
    given = parser.parse_args()
    copy = to_kafka if given.back else to_l0gc
    try:
        copy(given.servers, given.kafka_topic, given.url, given.topic)
    except L0gcError as e:
        parser.exit(e.exit_code, f"error: {e}\n")


if __name__ == "__main__":
    main()
