"""Kafka to l0gc and back, with librdkafka's own broker: each record once and in order, whenever the bridge is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

import l0gc
from l0gc.api import Record
from l0gc.integrations import kafka as bridge
from l0gc.storage.config import StoreConfig
from l0gc.streamlog.journal import apply

ROOT = Path(__file__).parents[2]
PARTITIONS = 4
"""As many as that broker gives a topic."""
Found = list[list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]]]


@pytest.fixture
def kafka() -> tuple[Producer, str]:
    """A producer, and the addresses of the brokers that run in it."""
    producer = Producer({"bootstrap.servers": "in this process", "test.mock.num.brokers": 2, "log_level": 2})
    brokers = producer.list_topics(timeout=10).brokers.values()
    return producer, ",".join(f"{b.host}:{b.port}" for b in brokers)


@pytest.fixture
def url(bucket: StoreConfig) -> str:
    with l0gc.open(bucket.url) as cluster:
        cluster.init(create_bucket=True)
        cluster.topics.create("events", partitions=PARTITIONS, journals=2)
    return bucket.url


def produce(producer: Producer, first: int, end: int) -> None:
    for n in range(first, end):
        value = None if n % 100 == 7 else b"%d\n\xff" % n
        headers: list[Any] = [("a", b"%d" % n), ("a", None)] if n % 3 == 0 else []
        producer.produce("clicks", value, b"k" if n % 2 else None, n % PARTITIONS, timestamp=1000 + n, headers=headers)
        producer.poll(0)
    assert producer.flush(20) == 0


def expected(end: int) -> Found:
    found: Found = [[] for _ in range(PARTITIONS)]
    for n in range(end):
        value = None if n % 100 == 7 else b"%d\n\xff" % n
        headers = [("a", b"%d" % n), ("a", None)] if n % 3 == 0 else []
        found[n % PARTITIONS].append((value, b"k" if n % 2 else None, headers, 1000 + n))
    return found


def as_in_kafka(r: Record) -> tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]:
    assert r.create_time_ms is not None
    headers = [h for h in r.headers if h != bridge.NULL]
    return None if bridge.NULL in r.headers else r.value, r.key, headers, r.create_time_ms


def in_l0gc(url: str) -> Found:
    found: Found = [[] for _ in range(PARTITIONS)]
    with l0gc.open(url) as cluster:
        for r in cluster.read("events"):
            found[r.partition].append(as_in_kafka(r))
    return found


def in_kafka(servers: str, topic: str, count: int) -> Found:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "test"})
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(PARTITIONS)])
    found: Found = [[] for _ in range(PARTITIONS)]
    while sum(map(len, found)) < count:
        messages: list[Any] = consumer.consume(count, 5.0)
        assert messages
        for m in messages:
            found[m.partition()].append((m.value(), m.key(), m.headers() or [], m.timestamp()[1]))
    consumer.close()
    return found


def test_records_go_to_l0gc_and_back_with_keys_headers_and_times(kafka: tuple[Producer, str], url: str) -> None:
    producer, servers = kafka
    for first, end in ((0, 300), (300, 400)):
        produce(producer, first, end)
        bridge.to_l0gc(servers, "clicks", url, "events", lambda landed, count=end - first: landed >= count)  # type: ignore[misc]
        assert in_l0gc(url) == expected(end)
    bridge.to_kafka(servers, "copy", url, "events")
    assert in_kafka(servers, "copy", 400) == expected(400)


def test_a_bridge_whose_positions_are_forgotten_goes_on_at_the_offsets_that_it_committed_to_kafka(
    kafka: tuple[Producer, str], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after 21 days; also those of a batch that landed before the bridge was killed, once it was started again."""
    producer, servers = kafka
    produce(producer, 0, 100)
    with monkeypatch.context() as patch:
        patch.setattr(bridge, "Consumer", type("Killed", (Consumer,), {"commit": lambda *_, **__: None}))
        bridge.to_l0gc(servers, "clicks", url, "events", lambda landed: landed >= 100)
    bridge.to_l0gc(servers, "clicks", url, "events", lambda landed: True)
    monkeypatch.setattr(apply, "PRODUCER_EXPIRY_MS", 0)
    monkeypatch.setattr(apply, "_EXPIRY_STEP_MS", 0)
    with l0gc.open(url) as cluster:
        cluster.housekeep(barrier=True)
        with cluster.producers.sender("events", "kafka-clicks") as sender:
            assert sender.positions == {}
    produce(producer, 100, 200)
    bridge.to_l0gc(servers, "clicks", url, "events", lambda landed: landed >= 100)
    assert in_l0gc(url) == expected(200)


@pytest.mark.thorough
def test_a_bridge_that_is_killed_and_started_again_lands_each_record_once(
    kafka: tuple[Producer, str], url: str
) -> None:
    producer, servers = kafka
    small = "from l0gc.integrations import kafka; kafka.BATCH = 500; kafka.main()"
    command = [sys.executable, "-c", small, servers, "clicks", url, "events"]
    produced, landed = 0, 0
    for delay in (0.0, 0.05, 0.3):
        produce(producer, produced, produced + 5_000)
        produced += 5_000
        with subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}) as process:
            for _ in range(300):
                if (now := sum(map(len, in_l0gc(url)))) > landed:
                    break
                assert process.poll() is None
                time.sleep(0.05)
            landed = now
            time.sleep(delay)
            process.send_signal(signal.SIGKILL)
    left = produced - sum(map(len, in_l0gc(url)))
    if left:
        bridge.to_l0gc(servers, "clicks", url, "events", lambda count: count >= left)
    assert in_l0gc(url) == expected(produced)
