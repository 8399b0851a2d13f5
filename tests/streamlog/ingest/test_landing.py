"""An object that is written again equals the staged one, whatever a bad replica returns (hazard 34)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from l0gc.errors import CorruptObjectError
from l0gc.integrations.spark import sink
from l0gc.storage.objectstore import READS
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.ingest.extents import fetch_blocks
from l0gc.streamlog.ingest.landing import WrittenObject
from l0gc.streamlog.journal.topic import Block
from l0gc.streamlog.level_one.reconcile import reconcile
from tests.support.ingest import journal_of, slide, stored_values
from tests.support.memory_store import another_process, copy_of, store_of, topic_in_memory
from tests.support.misread import WAYS, misread
from tests.support.spark_source import Rows, staged

VALUES = [b"%04d" % n for n in range(20)]
L0 = "level_zero/"


def late(partitions: int = 2, journals: int = 1) -> tuple[ClusterHandles, Sequence[WrittenObject]]:
    """Return a cluster with a topic, and an object staged for it before the windows slid past its epoch."""
    cluster = topic_in_memory(partitions, journals)
    rows: Rows = {"value": VALUES, "partition": [n % partitions for n in range(len(VALUES))]}
    objects = staged(cluster, rows, 0, topic="events").objects
    slide(cluster, 4)
    return cluster, objects


def landed(partitions: int = 2) -> list[list[bytes]]:
    return [VALUES[p::partitions] for p in range(partitions)]


@pytest.mark.parametrize("way", WAYS)
def test_one_bad_reading_of_a_staged_object_is_read_again(way: str) -> None:
    cluster, objects = late()
    with misread(cluster, L0, WAYS[way], 1) as bad:
        sink.commit(cluster, objects)
    assert bad.keys == [objects[0].object.key]
    store_of(cluster).delete(bad.keys)  # as a sweep deletes it once M has passed it
    assert stored_values(cluster, "events") == landed()


@pytest.mark.parametrize("way", WAYS)
def test_what_never_matches_the_log_is_not_written_on(way: str) -> None:
    cluster, objects = late()
    before = copy_of(store_of(cluster), L0)
    with (
        misread(cluster, L0, WAYS[way], 100),
        pytest.raises(CorruptObjectError, match=r"does not match the checksum .* Nothing of its batch is committed"),
    ):
        sink.commit(cluster, objects)
    assert copy_of(store_of(cluster), L0) == before
    assert stored_values(cluster, "events") == [[], []]
    sink.commit(cluster, objects)
    assert stored_values(cluster, "events") == landed()


def test_only_the_parts_that_have_not_landed_are_written_anew() -> None:
    cluster, (o,) = late(4, 2)
    topic = cluster.controller.snapshot().topic("events")
    moved = journal_of(cluster).journal
    result = sink.commit(cluster, [o])
    assert result.retries == 1
    again = result.objects[1]
    sizes = [b.length for j in topic.journals for b in _blocks(cluster, j, again.key)]
    assert again.bytes == sum(sizes)
    (first,) = (j for j in topic.journals if j != moved)
    assert all(x.key == o.object.key for x in cluster.journal(first).catch_up().topics[topic.revision].objects)
    store_of(cluster).fault = lambda call: None
    assert stored_values(another_process(cluster), "events") == landed(4)


def _blocks(cluster: ClusterHandles, journal: int, key: str) -> list[Block]:
    topics = cluster.journal(journal).catch_up().topics.values()
    return [o.block(n) for t in topics for o in t.objects if o.key == key for n in range(len(o.blocks))]


@pytest.mark.parametrize("way", WAYS)
def test_a_reconcile_reads_a_block_again_that_differs(way: str) -> None:
    cluster, objects = late()
    sink.commit(cluster, objects)
    with misread(cluster, L0, WAYS[way], 1) as bad:
        result = reconcile(cluster)
    assert (result.errors, result.records, len(bad.keys)) == ([], len(VALUES), 1)


def test_a_block_that_differs_each_time_is_left_to_its_reader() -> None:
    cluster, objects = late()
    sink.commit(cluster, objects)
    (o,) = journal_of(cluster).catch_up().topics[cluster.controller.snapshot().topic("events").revision].objects
    with misread(cluster, o.key, WAYS["zeros"], 100) as bad:
        assert fetch_blocks(cluster.store, o.key, [o.block(0)]) == [bytes(o.block(0).length)]
    assert len(bad.keys) == READS
