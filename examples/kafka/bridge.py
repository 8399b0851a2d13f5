"""A topic of Kafka into a topic of l0gc with as many partitions: each record once, in its partition and in order.

    python examples/kafka/bridge.py BOOTSTRAP_SERVERS KAFKA_TOPIC URL TOPIC

The producer's position in a partition is the consumer's: the offset of the next record. It lands with the records, in one
entry of the journal. So the bridge may be killed at any moment, and goes on where the last entry ends; if a second one is
started, the first one is refused. Keys, headers and create times are kept.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaException, TopicPartition

import l0gc
from l0gc.api import NewRecord

BATCH = 10_000
"""At most so many records land together."""
NULL = ("kafka.null", None)
"""The header of a record whose value is null in Kafka (a tombstone): a value in l0gc is never null."""


def record_of(message: Any) -> NewRecord:
    kind, time = message.timestamp()
    value, headers = message.value(), tuple(message.headers() or ())
    return NewRecord(
        message.partition(),
        value if value is not None else b"",
        message.key(),
        headers if value is not None else (*headers, NULL),
        None if kind == TIMESTAMP_NOT_AVAILABLE else time,
    )


def run(servers: str, source: str, url: str, topic: str, stop: Callable[[int], bool] = lambda landed: False) -> None:
    """Copy until `stop` is true of how many records have landed."""
    name = f"kafka-{source}"
    settings = {"bootstrap.servers": servers, "group.id": f"l0gc-{topic}", "enable.auto.commit": False}
    consumer = Consumer(settings)
    try:
        with l0gc.open(url) as cluster, cluster.producers.sender(topic, name) as sender:
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
                sender.send(map(record_of, messages), positions)
    finally:
        consumer.close()


if __name__ == "__main__":
    servers, source, url, topic = sys.argv[1:]
    run(servers, source, url, topic)
