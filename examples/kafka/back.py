"""A topic of l0gc into a topic of Kafka with as many partitions, with keys, headers and create times.

    python examples/kafka/back.py URL TOPIC BOOTSTRAP_SERVERS KAFKA_TOPIC

It copies what is there, and ends. If it is run again it sends everything again.
"""

from __future__ import annotations

import sys

from confluent_kafka import KafkaError, KafkaException, Message, Producer

import l0gc

NULL = ("kafka.null", None)
"""What the bridge marks a null value with."""


def run(url: str, topic: str, servers: str, target: str) -> None:
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


if __name__ == "__main__":
    url, topic, servers, target = sys.argv[1:]
    run(url, topic, servers, target)
