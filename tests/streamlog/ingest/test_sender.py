"""Sending another system's records: each lands once, even after crashes, and invalid ones are refused before they are
sent.
"""

from __future__ import annotations

import pytest

from l0gc.errors import InputPositionMovedError, InvalidProducerEpochError, StoreError, UsageError
from l0gc.limits import MAX_RECORD_BYTES
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.ingest.headers_and_times import Record
from l0gc.streamlog.ingest.sender import open_sender
from l0gc.streamlog.reader import read_topic
from tests.support.memory_store import another_process, failing, store_of, topic_in_memory
from tests.support.reconcile import reconcile

PARTITIONS = 4


T0 = 1_700_000_000_000


def record(partition: int, number: int) -> Record:
    headers = (("n", b"%d" % number), ("n", None)) if number % 2 else ()
    return Record(
        b"%d\n%d" % (partition, number),
        b"k" if number % 3 else None,
        headers,
        T0 + number if number else None,
        partition=partition,
    )


def some(first: int, end: int) -> tuple[list[Record], dict[int, int]]:
    """Return the records `first` to `end` of every partition, interleaved, and the positions after them."""
    return [record(p, n) for n in range(first, end) for p in range(PARTITIONS)], dict.fromkeys(range(PARTITIONS), end)


def content(cluster: ClusterHandles) -> list[list[Record]]:
    found: list[list[Record]] = [[] for _ in range(PARTITIONS)]
    r: Record
    for r in read_topic(cluster, cluster.controller.snapshot().topic("events")):
        found[r.partition].append(Record(r.value, r.key, r.headers, r.create_time_ms, partition=r.partition))
    return found


def expected(end: int) -> list[list[Record]]:
    return [[record(p, n) for n in range(end)] for p in range(PARTITIONS)]


@pytest.mark.parametrize("journals", [1, 3])
def test_a_run_goes_on_at_the_positions_of_the_one_before(journals: int) -> None:
    cluster = topic_in_memory(PARTITIONS, journals)
    with open_sender(cluster, "events", "bridge") as sender:
        assert sender.positions == {}
        sender.send(*some(0, 5))
        sender.send([], {})
        sender.send(*some(5, 9))
        assert sender.positions == dict.fromkeys(range(PARTITIONS), 9)
    reconcile(cluster)
    again = another_process(cluster)
    with open_sender(again, "events", "bridge") as sender:
        assert sender.positions == dict.fromkeys(range(PARTITIONS), 9)
        with pytest.raises(UsageError, match="position 9 of partition 0 is not above 9, which landed"):
            sender.send(*some(5, 9))
        sender.send(*some(9, 12))
    assert content(again) == expected(12)
    with open_sender(again, "events", "another") as sender:
        assert sender.positions == {}


def test_positions_may_leave_numbers_out() -> None:
    """Kafka skips offsets in compacted topics and at the ends of transactions."""
    cluster = topic_in_memory(PARTITIONS)
    with open_sender(cluster, "events", "bridge") as sender:
        sender.send([record(0, 7)], {0: 8})
        sender.send([record(0, 11)], {0: 20})
    with open_sender(another_process(cluster), "events", "bridge") as sender:
        assert sender.positions == {0: 20}


def test_the_next_run_completes_a_partly_landed_batch() -> None:
    cluster = topic_in_memory(PARTITIONS, 2)
    last = cluster.controller.snapshot().topic("events").partition_ranges()[1].journal
    with open_sender(cluster, "events", "bridge") as sender:
        sender.send(*some(0, 3))
        store_of(cluster).fault = failing(StoreError("down"), "put_if_absent", f"l0gc/journal/{last:04}/log/")
        with pytest.raises(StoreError, match="down"):
            sender.send(*some(3, 6))
        store_of(cluster).fault = lambda call: None
        with pytest.raises(StoreError, match="down"):
            sender.send(*some(3, 6))
    again = another_process(cluster)
    with open_sender(again, "events", "bridge") as sender:
        assert sorted(sender.positions.values()) == [3, 3, 6, 6]
        left = [(p, n) for p, at in sender.positions.items() for n in range(at, 8)]
        sender.send([record(p, n) for p, n in left], dict.fromkeys(range(PARTITIONS), 8))
    assert content(again) == expected(8)


def test_a_run_that_another_one_followed_is_refused() -> None:
    cluster = topic_in_memory(PARTITIONS, 2)
    with open_sender(cluster, "events", "bridge") as old:
        old.send(*some(0, 1))
        with open_sender(another_process(cluster), "events", "bridge") as new:
            new.send(*some(1, 3))
            with pytest.raises(InvalidProducerEpochError, match="another run took over"):
                old.send(*some(1, 3))
    assert content(cluster) == expected(3)


def test_a_run_ends_when_another_one_has_begun() -> None:
    cluster = topic_in_memory(PARTITIONS, 2)
    with open_sender(cluster, "events", "bridge") as old:
        old.send(*some(0, 1))
        with open_sender(another_process(cluster), "events", "bridge") as new:
            store_of(cluster).clock.sleep(20)  # longer than the controller's state stays cached
            for records in (some(1, 2), ([], {})):
                with pytest.raises(InvalidProducerEpochError, match=r"'bridge' began after this one.*let this one end"):
                    old.send(*records)
            new.send(*some(1, 3))
    assert content(cluster) == expected(3)


def test_one_of_two_concurrent_runs_ends_with_the_way_out() -> None:
    cluster = topic_in_memory(PARTITIONS, 1)
    with open_sender(cluster, "events", "bridge") as old:
        old.send(*some(0, 1))
        with open_sender(another_process(cluster), "events", "bridge") as new:
            old.send(*some(1, 2))
            with pytest.raises(InputPositionMovedError, match="another run sends it, too; let one of the two end"):
                new.send(*some(1, 2))
        with open_sender(cluster, "events", "bridge") as again:
            again.send(*some(2, 3))
    assert content(cluster) == expected(3)


def days_pass(cluster: ClusterHandles, days: float) -> None:
    store_of(cluster).clock.ms += int(days * 24 * 3_600_000)
    cluster.controller.tick_if_due()


def test_the_next_sender_fences_a_weeks_old_one() -> None:
    """A name is kept for two weeks after its newest run began; afterwards the next run would get a new id (hazard 33)."""
    cluster = topic_in_memory(PARTITIONS)
    with open_sender(cluster, "events", "bridge") as old:
        for day in range(15):
            old.send(*some(day, day + 1))
            days_pass(another_process(cluster), 1.1)
        with open_sender(another_process(cluster), "events", "bridge") as new:
            new.send(*some(15, 17))
            with pytest.raises(InvalidProducerEpochError):
                old.send(*some(15, 17))
    assert content(cluster) == expected(17)


@pytest.mark.parametrize("followed", [True, False])
def test_an_idle_sender_resumes_only_without_a_successor(followed: bool) -> None:
    cluster = topic_in_memory(PARTITIONS)
    with open_sender(cluster, "events", "bridge") as old:
        old.send(*some(0, 1))
        for _ in range(10):
            days_pass(another_process(cluster), 1.5)
            old.send([], {})
        days_pass(another_process(cluster), 13)
        if not followed:
            old.send(*some(1, 3))
            assert content(cluster) == expected(3)
            return
        days_pass(another_process(cluster), 2)
        with open_sender(another_process(cluster), "events", "bridge") as new:
            new.send(*some(1, 3))
            for records in (some(1, 3), ([], {})):
                with pytest.raises(InvalidProducerEpochError, match="began after this one"):
                    old.send(*records)
    assert sum(map(len, content(cluster))) == 3 * PARTITIONS


def test_a_journal_that_got_nothing_for_a_week_takes_its_first_record() -> None:
    cluster = topic_in_memory(PARTITIONS, 2)
    with open_sender(cluster, "events", "bridge") as sender:
        for day in range(9):
            sender.send([record(0, day)], {0: day + 1})
            days_pass(another_process(cluster), 1)
        sender.send([record(3, 0)], {3: 1})
    assert [len(records) for records in content(cluster)] == [9, 0, 0, 1]


@pytest.mark.parametrize(
    ("records", "positions", "error", "message"),
    [
        ([record(0, 1)], {}, UsageError, r"for the partitions \[0\], and positions for \[\]"),
        ([], {0: 1}, UsageError, r"for the partitions \[\], and positions for \[0\]"),
        ([record(4, 1)], {4: 2}, UsageError, "partition 4 is out of range: the topic has partitions 0 to 3"),
        ([Record(b"", create_time_ms=-2, partition=0)], {0: 1}, UsageError, "not in the years 1970 to 9999"),
        ([Record(b"", create_time_ms=2**60, partition=0)], {0: 1}, UsageError, "not in the years 1970 to 9999"),
        ([Record(b"", create_time_ms=1_700_000_000, partition=0)], {0: 1}, UsageError, "probably in another unit"),
        ([Record(b"", create_time_ms=2**70, partition=0)], {0: 1}, UsageError, "that cannot be stored"),
        ([Record(b"", create_time_ms=1.5, partition=0)], {0: 1}, UsageError, "create_time_ms cannot be of type float"),  # type: ignore[arg-type]
        ([Record("text", partition=0)], {0: 1}, UsageError, "value cannot be of type str"),  # type: ignore[arg-type]
        ([Record(b"", key=7, partition=0)], {0: 1}, UsageError, "key cannot be of type int"),  # type: ignore[arg-type]
        ([Record(b"", partition=0.0)], {0: 1}, UsageError, "partition cannot be of type float"),  # type: ignore[arg-type]
        ([Record(b"", None, ((7, b""),), partition=0)], {0: 1}, UsageError, "that cannot be stored"),  # type: ignore[arg-type]
        ([Record(b"", None, (("k", "v"),), partition=0)], {0: 1}, UsageError, "that cannot be stored"),  # type: ignore[arg-type]
        ([Record(b"", None, (("\udc80", b""),), partition=0)], {0: 1}, UsageError, "that cannot be stored"),
        ([record(0, 1)], {0: 2**62 + 1}, UsageError, "positions cannot be"),
        ([record(0, 1)], {0: 2.0}, UsageError, "positions cannot be"),
        ([record(0, 1)], {0: True}, UsageError, "positions cannot be"),
        (
            [Record(b"", None, (("k", bytes(MAX_RECORD_BYTES)),), partition=0)],
            {0: 1},
            UsageError,
            "longer than the 16777216",
        ),
    ],
)
def test_what_cannot_be_sent_is_refused_before_anything_is(
    records: list[Record], positions: dict[int, int], error: type[Exception], message: str
) -> None:
    cluster = topic_in_memory(PARTITIONS)
    with open_sender(cluster, "events", "bridge") as sender:
        before = dict(store_of(cluster).objects)
        with pytest.raises(error, match=message):
            sender.send(records, positions)
        assert store_of(cluster).objects == before
        sender.send(*some(0, 1))
    assert content(cluster) == expected(1)


def test_a_sender_refuses_more_partitions_than_a_journal_remembers_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("l0gc.streamlog.ingest.sender.INPUTS_KEPT", 2)
    for partitions, journals in ((2, 1), (4, 2)):
        with open_sender(topic_in_memory(partitions, journals), "events", "bridge"):
            pass
    with (
        pytest.raises(UsageError, match="more than 2 partitions in a journal"),
        open_sender(topic_in_memory(3, 1), "events", "bridge"),
    ):
        pass
