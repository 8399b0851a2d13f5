"""Creating and deleting topics: never in a log older than the published epoch, and closed in every journal with a part of
it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from l0gc.errors import EpochRegressionError, NotFoundError, PartitionClosedError
from l0gc.keys import CONTROLLER_LOG, PUBLISHED_COPY, PUBLISHED_WATERMARK, journal_log
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.housekeep import housekeep
from l0gc.streamlog.journal.entries import Barrier
from l0gc.streamlog.reader import read_topic
from l0gc.streamlog.topics import delete_topic
from l0gc.watermark.publication import refuse_if_behind
from tests.support.deep import deep_findings
from tests.support.journal import of_topic
from tests.support.memory_store import Call, MemoryStore, copy_of, memory_cluster, publish_m, put_back, store_of
from tests.support.reconcile import put
from tests.support.topics import create_topic, topics_of


def went_back(cluster: ClusterHandles, watermark: int, epoch: int) -> None:
    """Publish an M of a later epoch, as a cluster whose journals need nothing up to M would publish it."""
    for topic in cluster.controller.snapshot().topics.values():
        for journal in topic.journals:
            cluster.journal(journal)._propose(lambda state: Barrier(watermark + 1))
    publish_m(cluster, watermark, epoch)


def test_a_topic_is_created_once_in_so_many_journals() -> None:
    cluster = memory_cluster()
    topic = topics_of(cluster).create("t", 8, 3)
    assert (topic.journals, topic.created) == ((0, 1, 2), True)
    again = topics_of(cluster).create("t", 8)
    assert (again.revision, again.created) == (topic.revision, False)


def test_a_deleted_topic_is_closed_in_each_of_its_journals() -> None:
    cluster = memory_cluster()
    create_topic(cluster, "stays", 1)
    topic = create_topic(cluster, "t", 6, 3)
    late = memory_cluster(store_of(cluster), seed=1, bootstrap=False)
    late.journal(topic.journals[1]).catch_up()
    assert delete_topic(cluster, "t") == (topic, [])
    for journal in topic.journals:
        assert late.journal(journal).catch_up().closed(topic.revision)
        error = late.journal(journal).append([of_topic(topic, late.controller.epoch())]).error
        assert isinstance(error, PartitionClosedError)
    with pytest.raises(NotFoundError, match="does not exist"):
        delete_topic(cluster, "t")


def test_a_journal_that_cannot_close_a_topic_is_named() -> None:
    cluster = memory_cluster()
    topic = create_topic(cluster, "t", 3, 3)
    cluster.journal(1).append([of_topic(topic, cluster.controller.epoch(), {1: 1})])
    key = next(k for k in store_of(cluster).objects if k.startswith(journal_log(1)))
    store_of(cluster).objects[key].body = b"not an entry"
    deleter = memory_cluster(store_of(cluster), seed=1, bootstrap=False)
    deleted, broken = delete_topic(deleter, "t")
    assert deleted == topic
    assert [b.journal for b in broken] == [1]
    assert key in broken[0].error
    assert [deleter.journal(j).catch_up().closed(topic.revision) for j in (0, 2)] == [True, True]
    assert deleter.controller.snapshot().deleted_of() == {0: [topic], 1: [topic], 2: [topic]}


def a_log_that_went_back(store: MemoryStore) -> tuple[Topic, dict[str, bytes]]:
    """Create a topic over two journals, and restore the controller log to before it; return the topic and the newest
    log.
    """
    first = memory_cluster(store, bootstrap=False)
    first.controller.bootstrap(shards=4, journals=2)
    old = copy_of(store, CONTROLLER_LOG)
    topic = create_topic(first, "t", 2, 2)
    newest = copy_of(store, CONTROLLER_LOG)
    put_back(store, CONTROLLER_LOG, old)
    return topic, newest


def acknowledge(store: MemoryStore, newest: dict[str, bytes]) -> None:
    """Land records in one partition of the topic, before the log is set back."""
    old = put_back(store, CONTROLLER_LOG, newest)
    put(memory_cluster(store, seed=7, bootstrap=False), "t", {0: [b"acknowledged"]})
    put_back(store, CONTROLLER_LOG, old)


def test_a_topic_with_a_reissued_revision_ends_alone() -> None:
    """An operator who missed the restore creates a topic and deletes it; then the newest log is restored."""
    store = MemoryStore()
    topic, newest = a_log_that_went_back(store)
    acknowledge(store, newest)
    second = memory_cluster(store, seed=1, bootstrap=False)
    other, _ = second.controller.create_topic("other", 1)  # as if the journal that shows the restore could not be read
    assert other.revision == topic.revision
    assert delete_topic(second, "other") == (other, [])
    assert housekeep(second).closed == 0
    put_back(store, CONTROLLER_LOG, newest)
    reader = memory_cluster(store, seed=2, bootstrap=False)
    assert [r.value for r in read_topic(reader, topic)] == [b"acknowledged"]
    assert reader.journal(0).close(topic.revision, topic.topic_id)
    assert not reader.journal(0).close(topic.revision)


def test_no_revision_of_a_topic_with_records_is_reissued() -> None:
    """Deleting the new topic would permanently close the old one in the journals where it has no records yet."""
    store = MemoryStore()
    topic, newest = a_log_that_went_back(store)
    acknowledge(store, newest)
    before = copy_of(store, "")
    with pytest.raises(EpochRegressionError, match="journal 0 is at epoch 1, above the cluster epoch 0"):
        create_topic(memory_cluster(store, seed=1, bootstrap=False), "other", 2, 2)
    assert copy_of(store, "") == before
    put_back(store, CONTROLLER_LOG, newest)
    put(memory_cluster(store, seed=2, bootstrap=False), "t", {0: [b"more"], 1: [b"other"]})
    values = [r.value for r in read_topic(memory_cluster(store, seed=3, bootstrap=False), topic)]
    assert sorted(values) == [b"acknowledged", b"more", b"other"]


def test_a_topic_without_records_whose_revision_was_given_twice_is_created_again() -> None:
    """Nothing showed the restore, so the topic is recreated afterwards, as docs/work/operate-logs.md describes."""
    store = MemoryStore()
    topic, newest = a_log_that_went_back(store)
    second = memory_cluster(store, seed=1, bootstrap=False)
    other = create_topic(second, "other", 2, 2)
    assert other.revision == topic.revision
    delete_topic(second, "other")
    put_back(store, CONTROLLER_LOG, newest)
    cluster = memory_cluster(store, seed=2, bootstrap=False)
    assert isinstance(cluster.journal(0).append([of_topic(topic, topic.revision)]).error, PartitionClosedError)
    assert ["has ended there, though it exists" in found for found in deep_findings(cluster)] == [True, True]
    assert delete_topic(cluster, "t") == (topic, [])
    again = create_topic(cluster, "t", 2, 2)
    put(cluster, "t", {0: [b"new"]})
    assert [r.value for r in read_topic(cluster, again)] == [b"new"]
    assert deep_findings(cluster) == []


def test_an_epoch_begun_during_the_reading_is_not_a_restore() -> None:
    cluster = memory_cluster()
    create_topic(cluster, "t", 1)
    other = memory_cluster(store_of(cluster), seed=1, bootstrap=False)

    def meanwhile(call: Call) -> None:
        if call.when == "before" and journal_log(0) in call.key:
            store_of(cluster).fault = lambda call: None
            other.controller.advance()
            put(other, "t", {0: [b"meanwhile"]})

    store_of(cluster).fault = meanwhile
    topic = create_topic(cluster, "u", 1)
    assert topic.revision > other.journal(0).catch_up().max_applied_epoch


@pytest.mark.parametrize(("watermark", "epoch"), [(50, 50), (1, 50)])
def test_an_epoch_below_the_published_one_writes_nothing(watermark: int, epoch: int) -> None:
    """Hazard 10: an M far below the epoch of its computation still shows that the log went back."""
    cluster = memory_cluster()
    topic = create_topic(cluster, "t", 1)
    producer = cluster.controller.init_producer("p")
    went_back(cluster, watermark, epoch)
    store_of(cluster).clock.sleep(601)  # a tick is due
    process = memory_cluster(store_of(cluster), seed=1, bootstrap=False)
    before = dict(store_of(cluster).objects)
    attempts: list[Callable[[], object]] = [
        lambda: create_topic(process, "u", 1),
        lambda: delete_topic(process, "t"),
        lambda: process.controller.init_producer("p", producer.producer_id, producer.epoch, producer.run),
        lambda: process.controller.init_producer("p"),
        process.controller.tick_if_due,
        process.controller.advance,
    ]
    for attempt in attempts:
        with pytest.raises(EpochRegressionError):
            attempt()
    assert store_of(cluster).objects == before
    assert process.controller.advance_above(epoch) == epoch + 1
    for attempt in attempts:
        attempt()
    refuse_if_behind(process)
    assert process.controller.snapshot().topic("u").revision > epoch
    assert topic.revision < epoch


@pytest.mark.parametrize("published", [True, False])
def test_a_change_of_the_controllers_log_costs_these_requests(published: bool) -> None:
    """The published object is read before the one write, and also its copy if nothing is published."""
    cluster = memory_cluster()
    cluster.controller.snapshot()
    if published:
        publish_m(cluster, -1)
    calls: list[str] = []

    def note(call: Call) -> None:
        if call.when == "before":
            calls.append(f"{call.kind} {re.sub(r'/[0-9]{20}$', '', call.key)}")

    store_of(cluster).fault = note
    cluster.controller.create_topic("t", 100_000)
    read, copy, write = "get l0gc/controller/log", f"get {PUBLISHED_COPY}", "put_if_absent l0gc/controller/log"
    assert calls == [read, f"get {PUBLISHED_WATERMARK}", *([] if published else [copy]), read, write]
