"""Describing a producer: what the controller and each partition say of its newest run, without a change."""

from __future__ import annotations

from pathlib import Path

import pytest

from l0gc.errors import InvalidProducerEpochError, NotFoundError, UnknownProducerError
from l0gc.keys import partition_log
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.controller.state import NAME_EXPIRY_MS, PRODUCER_EXPIRY_MS, Producer
from l0gc.streamlog.ingest.partitioner import FixedPartition
from l0gc.streamlog.ingest.uploader import ProducerSession
from l0gc.streamlog.journal.entries import InputSpan, Placeholder, ProducerBatch
from l0gc.streamlog.producers import InputView, PartitionView, describe_producer, list_producers
from tests.support.ingest import producer_session, upload
from tests.support.memory_store import FakeClock, MemoryStore, memory_cluster

START_MS = FakeClock().ms


def new_cluster(partitions: int = 3) -> Cluster:
    cluster = memory_cluster()
    cluster.controller.create_topic("events", partitions)
    return cluster


def store_of(cluster: Cluster) -> MemoryStore:
    assert isinstance(cluster.store, MemoryStore)
    return cluster.store


def another(cluster: Cluster) -> Cluster:
    return memory_cluster(store_of(cluster), seed=1, bootstrap=False)


def send(cluster: Cluster, run: Producer, sequence: int, *, partition: int = 0, span: InputSpan | None = None) -> None:
    """Two records."""
    handle = cluster.partition(cluster.controller.snapshot().topic("events").ids()[partition])
    handle.catch_up()
    batch = ProducerBatch(run.producer_id, run.epoch, sequence, [span] if span else [])
    handle.append_placeholder(Placeholder("some", 0, 10, 2, 0, -1, batch), cluster.controller.epoch())


def put(cluster: Cluster, path: Path, records: int, session: ProducerSession, partition: int) -> None:
    path.write_bytes(b"".join(b"%d\n" % n for n in range(records)))
    upload(cluster, "events", [path], session=session, partitioner=FixedPartition(partition, 3))


def test_a_run_is_shown_as_the_partitions_have_it() -> None:
    cluster = new_cluster()
    run = cluster.controller.init_producer("job")
    store_of(cluster).clock.ms += 1000
    send(cluster, run, 0, span=InputSpan("day-1", 0, 2))
    send(cluster, run, 1, span=InputSpan("day-2", 0, 2))
    store_of(cluster).clock.ms += 1000
    send(cluster, run, 2, span=InputSpan("day-1", 2, 4))
    v = describe_producer(another(cluster), "job")
    assert (v.name, v.producer_id, v.epoch, v.last_epoch) == ("job", run.producer_id, 0, -1)
    assert (v.began_ms, v.last_used_ms, v.expires_ms) == (START_MS, START_MS + 2000, START_MS + NAME_EXPIRY_MS)
    assert (v.unknown_partitions, v.may_begin, v.errors) == (2, True, [])
    assert v.partitions == [
        PartitionView(
            topic="events",
            partition=0,
            epoch=0,
            next_sequence=3,
            last_offset=5,
            last_landed_ms=START_MS + 2000,
            inputs=[InputView("day-1", 4, START_MS + 2000), InputView("day-2", 2, START_MS + 1000)],
            open=True,
            meaning="open: the newest run goes on at sequence 3",
        )
    ]


def test_what_it_says_a_partition_takes_next_is_what_it_takes() -> None:
    """Partition 0 knows the newest run, 1 an older one, 2 a newer one than the controller, 3 none."""
    cluster = new_cluster(4)
    first = cluster.controller.init_producer("job")
    send(cluster, first, 0, partition=1)
    send(cluster, first, 0, partition=2)
    run = cluster.controller.init_producer("job")
    send(cluster, run, 0, partition=0)
    ahead = Producer(run.producer_id, 7, -1, 0)  # from a controller log that was restored to an older state since
    send(cluster, ahead, 0, partition=2)

    v = describe_producer(another(cluster), "job")
    assert [(p.partition, p.open, p.meaning) for p in v.partitions] == [
        (0, True, "open: the newest run goes on at sequence 1"),
        (1, True, "open: the newest run begins at sequence 0, and fences epoch 0"),
        (2, False, "refuses epoch 1, which is older; another upload bumps it"),
    ]
    assert (v.unknown_partitions, v.may_begin) == (1, True)
    send(cluster, run, 1, partition=0)
    send(cluster, run, 0, partition=1)
    with pytest.raises(InvalidProducerEpochError):
        send(cluster, run, 0, partition=2)
    send(cluster, run, 0, partition=3)


def test_a_run_that_began_over_a_week_ago_may_begin_nowhere() -> None:
    cluster = new_cluster()
    run = cluster.controller.init_producer("job")
    send(cluster, run, 0, partition=0)
    store_of(cluster).clock.ms += PRODUCER_EXPIRY_MS
    v = describe_producer(another(cluster), "job")
    assert (v.unknown_partitions, v.may_begin) == (2, False)
    with pytest.raises(UnknownProducerError):
        send(cluster, run, 0, partition=1)


def test_an_upload_is_shown_with_its_inputs(tmp_path: Path) -> None:
    cluster = new_cluster()
    put(cluster, tmp_path / "in", 7, producer_session(cluster, "job"), 1)
    v = describe_producer(cluster, "job")
    (p,) = v.partitions
    assert (p.partition, p.last_offset, [i.landed for i in p.inputs]) == (1, 6, [7])
    put(cluster, tmp_path / "in", 7, producer_session(cluster, "job"), 1)  # all of it has landed: nothing is sent
    assert describe_producer(cluster, "job").partitions[0].meaning.endswith("begins at sequence 0, and fences epoch 0")


def test_producers_are_not_mixed_up() -> None:
    cluster = new_cluster()
    a, b = cluster.controller.init_producer("b"), cluster.controller.init_producer("a")
    send(cluster, a, 0, partition=0)
    send(cluster, b, 0, partition=1)
    assert [p.partition for p in describe_producer(cluster, "b").partitions] == [0]
    assert list(list_producers(cluster)) == ["a", "b"]
    assert list_producers(cluster)["b"] == a


def test_a_name_that_is_not_there_is_answered_with_the_nearest() -> None:
    cluster = new_cluster()
    cluster.controller.init_producer("nightly")
    with pytest.raises(NotFoundError, match="did you mean 'nightly'") as e:
        describe_producer(cluster, "nightyl")
    assert e.value.exit_code == 5


def test_looking_changes_nothing_and_fences_nobody() -> None:
    cluster = new_cluster()
    run = cluster.controller.init_producer("job")
    send(cluster, run, 0)
    before = dict(store_of(cluster).objects)
    describe_producer(another(cluster), "job")
    list_producers(another(cluster))
    assert store_of(cluster).objects == before
    send(cluster, run, 1)


def test_a_log_that_cannot_be_read_is_named_and_the_others_are_shown() -> None:
    cluster = new_cluster()
    run = cluster.controller.init_producer("job")
    send(cluster, run, 0, partition=0)
    send(cluster, run, 0, partition=1)
    folder = partition_log(cluster.controller.snapshot().topic("events").ids()[0])
    key = min(k for k in store_of(cluster).objects if k.startswith(folder))
    store_of(cluster).objects[key].body = b"not an entry"
    v = describe_producer(another(cluster), "job")
    assert [key in e for e in v.errors] == [True]
    assert [p.partition for p in v.partitions] == [1]
    assert v.unknown_partitions == 1
