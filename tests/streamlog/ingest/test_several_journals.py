"""A topic over several journals: each admits and counts its part of an object on its own (hazard 27)."""

from __future__ import annotations

from pathlib import Path

import pytest

from l0gc.errors import InvalidProducerEpochError, UnknownProducerError
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.ingest.placement import by_field
from l0gc.streamlog.journal.handle import JournalHandle
from l0gc.streamlog.producers import begin_run
from tests.support.ingest import SMALL, job, lines, round_robin, stored_values, upload, write
from tests.support.memory_store import Call, another_process, once, store_of, topic_in_memory

PARTITIONS = 4


def journals_of(cluster: ClusterHandles) -> list[JournalHandle]:
    return [cluster.journal(j) for j in cluster.controller.snapshot().topic("events").journals]


def test_each_journal_counts_inputs_and_objects_separately(tmp_path: Path) -> None:
    """A key places the records, so that one journal gets many of them and another one few."""
    cluster = topic_in_memory(8, 3)
    spread_by = by_field("k", 8)
    records = [b'{"k":%d}' % (n % 3 if n < 30 else n) for n in range(60)]
    path = write(tmp_path / "in", records)
    session = begin_run(cluster, "job")
    upload(cluster, "events", [path], session=session, partitioner=spread_by, batch_bytes=SMALL)
    topic = cluster.controller.snapshot().topic("events")
    for partition_range in topic.partition_ranges():
        state = cluster.journal(partition_range.journal).catch_up()
        (producer,) = state.producers.values()
        (progress,) = producer.inputs.values()
        assert progress.landed == state.topic(topic.revision).totals().records
        assert producer.next_sequence == len(state.topics[topic.revision].objects)
    assert sum(map(len, stored_values(cluster, "events"))) == 60


def _moves_on_at_the_second_object(cluster: ClusterHandles, moved: JournalHandle) -> list[str]:
    """Slide the window of `moved` when the second object is put; return the keys of all objects, as they are put."""
    process = another_process(cluster)
    puts: list[str] = []

    def fault(call: Call) -> None:
        if (call.kind, call.when) == ("put", "before"):
            puts.append(call.key)
            if len(puts) == 2:
                for _ in range(2):
                    process.journal(moved.journal).advance(process.controller.advance())

    store_of(cluster).fault = fault
    return puts


@pytest.mark.parametrize("repeat", [False, True])
def test_a_part_that_one_journal_refuses_is_neither_lost_nor_twice(tmp_path: Path, repeat: bool) -> None:
    """Hazard 27: the window of one journal slides, the other's does not. The job is repeated, or not."""
    cluster = topic_in_memory(PARTITIONS, 2)
    moved, other_journal = journals_of(cluster)
    puts = _moves_on_at_the_second_object(cluster, moved)
    records = lines(20)
    path = write(tmp_path / "in", records)
    result = job(cluster, [path])
    store_of(cluster).fault = lambda call: None
    assert (result.records, result.retries, len(puts)) == (20, 1, 6)
    stale, again = result.objects[1:3]
    revision = cluster.controller.snapshot().topic("events").revision
    keys = [[o.key for o in j.catch_up().topics[revision].objects] for j in (moved, other_journal)]
    assert stale.key not in keys[0]
    assert keys[0][1] == again.key
    assert keys[1][1] == stale.key
    assert again.key not in keys[1]
    if repeat:
        assert job(another_process(cluster, 5), [path]).skipped == 20
    assert stored_values(cluster, "events") == round_robin(records, partitions=PARTITIONS)


def test_landed_parts_are_not_resent_with_refused_ones(tmp_path: Path) -> None:
    """Without a producer, a journal could not detect that it gets its part twice."""
    cluster = topic_in_memory(PARTITIONS, 2)
    _moves_on_at_the_second_object(cluster, journals_of(cluster)[0])
    records = lines(20)
    assert upload(cluster, "events", [write(tmp_path / "in", records)], batch_bytes=SMALL).retries == 1
    store_of(cluster).fault = lambda call: None
    assert stored_values(cluster, "events") == round_robin(records, partitions=PARTITIONS)


def test_a_run_overtaken_in_any_journal_lands_nothing_more(tmp_path: Path) -> None:
    cluster = topic_in_memory(PARTITIONS, 2)
    records = lines(16)
    path = write(tmp_path / "in", records)
    late = begin_run(cluster, "job")
    store_of(cluster).fault = once(lambda: job(another_process(cluster, 8), [path]), "put", when="after")
    with pytest.raises((InvalidProducerEpochError, UnknownProducerError)):
        upload(cluster, "events", [path], session=late, batch_bytes=SMALL)
    store_of(cluster).fault = lambda call: None
    assert stored_values(cluster, "events") == round_robin(records, partitions=PARTITIONS)
