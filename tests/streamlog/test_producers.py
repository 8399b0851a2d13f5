"""The description of a producer: the records of its newest run at the controller and in each journal."""

from __future__ import annotations

import msgspec
import pytest

from l0gc.errors import InvalidProducerEpochError, NotFoundError, UnknownProducerError
from l0gc.keys import journal_log
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import NAME_EXPIRY_MS, RUN_LIMIT_MS, Producer
from l0gc.streamlog.journal.producers import InputSpan, ProducerBatch
from l0gc.streamlog.producers import InputView, JournalView, KnownProducer, describe_producer, list_producers
from tests.support.journal import of_topic
from tests.support.memory_store import (
    FakeClock,
    another_process,
    store_of,
    topic_in_memory,
)

START_MS = FakeClock().ms


def send(
    cluster: ClusterHandles, run: Producer, sequence: int, *, journal: int = 0, span: InputSpan | None = None
) -> None:
    """Append two records to the journal's first partition."""
    topic = cluster.controller.snapshot().topic("events")
    producer = ProducerBatch(run.producer_id, run.epoch, run.run, sequence, [span] if span else [])
    o = of_topic(topic, cluster.controller.epoch(), {topic.partition_ranges()[journal].first: 2}, producer=producer)
    handle = cluster.journal(journal)
    handle.catch_up()
    appended = handle.append([o])
    if appended.error is not None:
        raise appended.error


def test_a_run_is_shown_as_the_journals_have_it() -> None:
    cluster = topic_in_memory(3, 3)
    run = cluster.controller.init_producer("job")
    store_of(cluster).clock.ms += 500
    send(cluster, run, 0, span=InputSpan("day-1", 0, 2))
    store_of(cluster).clock.ms += 500
    send(cluster, run, 1, span=InputSpan("day-2", 0, 2))
    store_of(cluster).clock.ms += 1000
    cluster.journal(0).catch_up()
    send(cluster, run, 2, span=InputSpan("day-1", 2, 4))
    v = describe_producer(another_process(cluster), "job")
    assert (v.name, v.producer_id, v.epoch, v.last_epoch) == ("job", run.producer_id, 0, -1)
    assert (v.began_ms, v.last_used_ms, v.expires_ms) == (START_MS, START_MS + 2000, START_MS + NAME_EXPIRY_MS)
    assert (v.unknown_journals, v.may_begin, v.errors) == (2, True, [])
    assert v.journals == [
        JournalView(
            journal=0,
            epoch=0,
            next_sequence=3,
            last_landed_ms=START_MS + 2000,
            inputs=[InputView("day-1", 4, START_MS + 2000), InputView("day-2", 2, START_MS + 1000)],
            open=True,
            meaning="open: the newest run continues at sequence 3",
        )
    ]


def test_what_it_says_a_journal_takes_next_is_what_it_takes() -> None:
    """Journal 0 has the newest run, 1 an older one, 2 a newer one than the controller, 3 none, 4 another at the same
    epoch.
    """
    cluster = topic_in_memory(5, 5)
    first = cluster.controller.init_producer("job")
    for journal in (1, 2, 4):
        send(cluster, first, 0, journal=journal)
    run = cluster.controller.init_producer("job")
    send(cluster, run, 0, journal=0)
    # These runs come from a controller log that has since been restored to an older state.
    send(cluster, msgspec.structs.replace(run, epoch=7, run="gone"), 0, journal=2)
    send(cluster, msgspec.structs.replace(run, run="gone"), 0, journal=4)

    v = describe_producer(another_process(cluster), "job")
    assert [(j.journal, j.open, j.meaning) for j in v.journals] == [
        (0, True, "open: the newest run continues at sequence 1"),
        (1, True, "open: the newest run begins at sequence 0, and fences epoch 0"),
        (2, False, "refuses epoch 1, which is older; another upload bumps it"),
        (4, False, "refuses the newest run: another one had epoch 1, too; another upload bumps it"),
    ]
    assert (v.unknown_journals, v.may_begin) == (1, True)
    send(cluster, run, 1, journal=0)
    send(cluster, run, 0, journal=1)
    for journal in (2, 4):
        with pytest.raises(InvalidProducerEpochError):
            send(cluster, run, 0, journal=journal)
    send(cluster, run, 0, journal=3)


def test_a_run_that_began_over_a_week_ago_may_begin_nowhere() -> None:
    cluster = topic_in_memory(3, 3)
    run = cluster.controller.init_producer("job")
    send(cluster, run, 0, journal=0)
    store_of(cluster).clock.ms += RUN_LIMIT_MS
    v = describe_producer(another_process(cluster), "job")
    assert (v.unknown_journals, v.may_begin) == (2, False)
    with pytest.raises(UnknownProducerError):
        send(cluster, run, 0, journal=1)


def test_producers_are_not_mixed_up() -> None:
    cluster = topic_in_memory(3, 3)
    a, b = cluster.controller.init_producer("b"), cluster.controller.init_producer("a")
    send(cluster, a, 0, journal=0)
    send(cluster, b, 0, journal=1)
    assert [j.journal for j in describe_producer(cluster, "b").journals] == [0]
    known = list_producers(cluster).producers
    assert [p.name for p in known] == ["a", "b"]
    assert known[1] == KnownProducer("b", a.producer_id, a.epoch, a.time_ms)


def test_a_name_that_is_not_there_is_answered_with_the_nearest() -> None:
    cluster = topic_in_memory(3, 3)
    cluster.controller.init_producer("nightly")
    with pytest.raises(NotFoundError, match="did you mean 'nightly'") as e:
        describe_producer(cluster, "nightyl")
    assert e.value.exit_code == 5


def test_looking_changes_nothing_and_fences_nobody() -> None:
    cluster = topic_in_memory(3, 3)
    run = cluster.controller.init_producer("job")
    send(cluster, run, 0)
    before = dict(store_of(cluster).objects)
    describe_producer(another_process(cluster), "job")
    list_producers(another_process(cluster))
    assert store_of(cluster).objects == before
    send(cluster, run, 1)


def test_a_description_asks_journals_and_not_partitions() -> None:
    cluster = topic_in_memory(100_000, 2)
    cluster.controller.init_producer("job")
    requests_before = store_of(cluster).requests.total()
    assert describe_producer(another_process(cluster), "job").unknown_journals == 2
    assert store_of(cluster).requests.total() - requests_before <= 12


def test_an_unreadable_log_is_named_and_others_are_shown() -> None:
    cluster = topic_in_memory(3, 3)
    run = cluster.controller.init_producer("job")
    send(cluster, run, 0, journal=0)
    send(cluster, run, 0, journal=1)
    key = min(k for k in store_of(cluster).objects if k.startswith(journal_log(0)))
    store_of(cluster).objects[key].body = b"not an entry"
    v = describe_producer(another_process(cluster), "job")
    assert [key in e for e in v.errors] == [True]
    assert [j.journal for j in v.journals] == [1]
    assert v.unknown_journals == 1
