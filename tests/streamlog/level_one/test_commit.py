"""A commit: it counts once, when all its objects are durable, and only for the reconciler that comes first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from l0gc.errors import StoreError
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.delete_records import delete_records
from l0gc.streamlog.journal import handle as journal_handle
from l0gc.streamlog.journal.entries import Edit, decode_journal_entry
from l0gc.streamlog.level_one.plan import Fault
from l0gc.streamlog.level_one.reconcile import ReconcileResult
from l0gc.streamlog.level_one.write import WrittenL1
from tests.support.memory_store import (
    Call,
    another_process,
    lose_reply,
    memory_cluster,
    store_of,
    topic_in_memory,
)
from tests.support.reconcile import Begun, begin, lifted, named, put, reconcile, unreconciled
from tests.support.vacuum import vacuum_later

JOURNAL = "l0gc/journal/0000/"


def records(count: int, prefix: str = "r") -> dict[int, list[bytes]]:
    return {p: [b"%s%d" % (prefix.encode(), n) for n in range(p, count, 2)] for p in range(2)}


def two_processes(count: int = 20, journals: int = 1) -> tuple[ClusterHandles, ClusterHandles]:
    a = topic_in_memory(2, journals)
    put(a, "events", records(count))
    return a, another_process(a)


def l1_objects(cluster: ClusterHandles) -> set[str]:
    return {k for k in store_of(cluster).objects if k.startswith("level_one/data/")}


def entries(cluster: ClusterHandles) -> list[Edit]:
    """Return the reconcilers' entries in journal 0."""
    log = cluster.journal(0).replica.log
    payloads = [decode_journal_entry(e.payload, "") for e in log.replay().entries]
    return [e for e in payloads if isinstance(e, Edit)]


def sums(found: Sequence[ReconcileResult]) -> tuple[int, int, int]:
    """Return the sums of records, L1 objects and partitions that were lost to another reconciler."""
    return sum(c.records for c in found), sum(c.l1_objects for c in found), sum(c.lost for c in found)


def test_one_entry_takes_all_partitions_of_a_journal_and_names_the_epoch() -> None:
    a, b = two_processes()
    a.controller.advance()
    begun = begin(a)
    assert sums(begun.commit()) == (20, 2, 0)
    (entry,) = entries(b)
    assert entry.epoch == 2
    assert entry.topics[0].change.added[["partition", "base", "last", "epoch"]].tolist() == [
        (0, 0, 9, 2),
        (1, 0, 9, 2),
    ]
    assert l1_objects(a) == named(b, "events") == begun.keys


def test_a_large_commit_is_several_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_handle, "ENTRY_BYTES", 244)
    a = topic_in_memory(10)
    put(a, "events", {p: [b"x"] for p in range(10)})
    assert sums(begin(a).commit()) == (10, 10, 0)
    assert [len(e.topics[0].change.added) for e in entries(a)] == [4, 4, 2]
    assert all(unreconciled(a, "events", p) == 0 for p in range(10))


@pytest.mark.parametrize("meanwhile", ["the same range", "more", "the same range, then more"])
def test_a_zombie_reconciler_loses_and_what_it_wrote_goes_with_a_vacuum(meanwhile: str) -> None:
    """Hazards 9 and 28: the commit itself deletes nothing."""
    a, b = two_processes()
    begun = begin(a)  # the reconciler sleeps here
    if meanwhile != "more":
        reconcile(b)
    if meanwhile != "the same range":
        put(b, "events", records(8, "s"))
        reconcile(b)
    before, winners = [lifted(b, "events", p) for p in range(2)], named(b, "events")
    (committed,) = begun.commit()
    assert (sums([committed]), committed.errors, committed.lifted) == ((0, 0, 2), [], {})
    assert l1_objects(a) == winners | begun.keys
    assert not begun.keys & winners
    vacuum_later(a)
    assert l1_objects(a) == named(a, "events") == winners
    assert [lifted(a, "events", p) for p in range(2)] == before


def test_a_partition_that_was_lost_does_not_hold_up_the_others() -> None:
    a, b = two_processes()
    begun, other = begin(a), begin(b)
    only = {(j, r): rows[rows["partition"] == 0] for (j, r), rows in other.written.files.items()}
    assert sums(Begun(b, other.round, WrittenL1(only)).commit()) == (10, 1, 0)
    (committed,) = begun.commit()
    assert sums([committed]) == (10, 1, 1)
    assert {r: p.tolist() for r, p in committed.lifted.items()} == {1: [1]}
    assert [unreconciled(b, "events", p) for p in range(2)] == [0, 0]
    assert named(b, "events") <= l1_objects(b)


def test_records_that_arrive_while_a_run_writes_wait_for_the_next() -> None:
    a, b = two_processes()
    begun = begin(a)
    put(b, "events", records(8, "s"))
    assert sums(begun.commit()) == (20, 2, 0)
    assert [unreconciled(a, "events", p) for p in range(2)] == [4, 4]
    reconcile(b)
    assert [lifted(a, "events", p) for p in range(2)] == [[*records(20)[p], *records(8, "s")[p]] for p in range(2)]


def test_a_topic_deleted_during_a_run_loses_its_commit() -> None:
    a, b = two_processes()
    begun = begin(a)
    b.journal(0).close(b.controller.delete_topic("events").revision)
    (committed,) = begun.commit()
    assert (sums([committed]), committed.errors) == ((0, 0, 2), [])
    assert l1_objects(a) == begun.keys
    vacuum_later(a)
    assert l1_objects(a) == set()


def test_a_deleted_topic_does_not_hold_up_another() -> None:
    a = memory_cluster(bootstrap=False)
    a.controller.bootstrap(shards=4, journals=1)
    for topic in ("events", "other"):
        a.controller.create_topic(topic, 1)
        put(a, topic, {0: [topic.encode()]})
    begun, b = begin(a), another_process(a)
    b.journal(0).close(b.controller.delete_topic("events").revision)
    assert sums(begun.commit()) == (1, 1, 1)
    assert lifted(b, "other", 0) == [b"other"]


def test_each_of_many_lost_partitions_is_counted() -> None:
    a = topic_in_memory(1200)
    put(a, "events", {p: [b"x"] for p in range(1200)})
    begun = begin(a)
    reconcile(another_process(a))
    before = store_of(a).requests["delete"]
    (committed,) = begun.commit()
    assert (committed.lost, committed.errors) == (1200, [])
    assert store_of(a).requests["delete"] == before
    assert l1_objects(a) == named(a, "events") | begun.keys


# -- damage ---------------------------------------------------------------------------------------------------------------


def test_files_that_leave_a_gap_commit_nothing_and_stay_for_an_examination() -> None:
    a, _ = two_processes()
    begun = begin(a)
    ((topic, rows),) = begun.written.files.items()
    wrong = rows.copy()
    wrong["last"][0] += 1
    torn = np.concatenate([wrong[:1], rows])
    (committed,) = Begun(a, begun.round, WrittenL1({topic: torn})).commit()
    assert sums([committed]) == (0, 0, 0)
    assert "L1 objects overlap, or are not in order" in committed.errors[0]
    assert [unreconciled(a, "events", p) for p in range(2)] == [10, 10]


def fault(message: str, *places: tuple[int, int]) -> Fault:
    return Fault(0, 1, message, np.array([p for p, _ in places], np.int32), np.array([b for _, b in places], np.int64))


def test_unlifted_partitions_are_reported_once_per_cause() -> None:
    a, _ = two_processes()
    begun = begin(a)
    faults = [fault("k1 is gone", (0, 0)), fault("k1 is gone", (1, 0)), fault("k0 is damaged", (1, 5))]
    (committed,) = Begun(a, begun.round, WrittenL1({}, faults)).commit()
    (key,) = {o.key for o in a.journal(0).state.topics[1].objects}
    way = f"; without a copy, give its records up: l0gc give-up --object {key}"
    assert committed.errors == [
        f"k0 is damaged; it holds events/1{way}",
        f"k1 is gone; it holds events/0, events/1{way}",
    ]


def test_what_somebody_else_has_lifted_is_no_error() -> None:
    a, b = two_processes()
    begun = begin(a)
    reconcile(b)
    (committed,) = Begun(a, begun.round, WrittenL1({}, [fault("k1 is gone", (0, 0), (1, 3))])).commit()
    assert committed.errors == []


def test_of_much_damage_only_so_much_is_reported() -> None:
    a = topic_in_memory(100)
    put(a, "events", {p: [b"x"] for p in range(100)})
    begun = begin(a)
    faults = [fault(f"k{n:02}", *((p, 0) for p in range(100))) for n in range(30)]
    (committed,) = Begun(a, begun.round, WrittenL1({}, faults)).commit()
    assert len(committed.errors) == 21
    assert committed.errors[0].startswith("k00; it holds events/0, events/1, ")
    (key,) = {o.key for o in a.journal(0).state.topics[1].objects}
    way = f"without a copy, give its records up: l0gc give-up --object {key}"
    assert committed.errors[0].endswith(f"events/19 and 80 more partitions; {way}")
    assert committed.errors[-1] == "and 10 more of that kind in journal 0"


def test_a_journal_that_cannot_be_read_is_named_and_nothing_is_removed() -> None:
    a, b = two_processes()
    begun = begin(b)
    key = next(k for k in store_of(a).objects if k.startswith(f"{JOURNAL}log/"))
    store_of(a).objects[key].body = b"?"
    (committed,) = Begun(another_process(a, 2), begun.round, begun.written).commit()
    assert committed.errors[0].startswith(f"journal 0: {key} does not match its checksum")
    assert l1_objects(a) == begun.keys


# -- repeated commits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("meanwhile", ["expired", "closed"])
def test_a_repeated_commit_leaves_what_was_dropped_since(meanwhile: str) -> None:
    """Hazard 26: readers may still need the dropped objects; vacuum deletes them after the grace."""
    a, b = two_processes()
    begun = begin(a)
    assert sums(begun.commit()) == (20, 2, 0)
    if meanwhile == "expired":
        delete_records(b, "events", before_offset=10)
    else:
        b.journal(0).close(1)
    assert len(b.journal(0).state.dropped) == 2
    assert sums(begun.commit()) == (20, 2, 0)
    assert begun.keys <= l1_objects(a)


def test_a_repeated_commit_counts_its_own_objects() -> None:
    """Spark may run a task again although its first run landed."""
    a, b = two_processes()
    begun = begin(a)
    assert sums(begun.commit()) == sums(begun.commit()) == (20, 2, 0)
    again = Begun(b, begun.round, begun.written)
    assert sums(again.commit()) == (20, 2, 0)
    assert l1_objects(a) == named(a, "events") == begun.keys
    assert len(entries(b)) == 1


def test_a_deleted_topics_committed_objects_stay_named() -> None:
    a, b = two_processes()
    begun = begin(a)
    begun.commit()
    b.journal(0).close(b.controller.delete_topic("events").revision)
    assert sums(begun.commit()) == (20, 2, 0)
    assert l1_objects(a) == begun.keys


def test_a_commit_whose_reply_is_lost_counts_once_and_keeps_its_objects() -> None:
    """Hazard 8: a commit without a reply must not be taken for lost."""
    a, b = two_processes()
    begun = begin(a)
    store_of(a).fault = lose_reply(JOURNAL)
    assert sums(begun.commit()) == (20, 2, 0)
    assert l1_objects(a) == named(b, "events")


def test_an_unknown_commit_removes_nothing_and_others_continue() -> None:
    a, b = two_processes(journals=2)
    begun = begin(a)
    lose = lose_reply(JOURNAL)
    cut: list[Call] = []

    def unplugged(call: Call) -> None:
        if cut and JOURNAL in call.key:
            raise StoreError("unplugged")
        try:
            lose(call)
        except StoreError:
            cut.append(call)
            raise

    store_of(a).fault = unplugged
    first, second = begun.commit()
    store_of(a).fault = lambda call: None
    assert sums([first]) == (0, 0, 0)
    assert first.errors[0].startswith("journal 0: ")
    assert sums([second]) == (10, 1, 0)
    assert named(b, "events") == l1_objects(b) == begun.keys
    assert [unreconciled(b, "events", p) for p in range(2)] == [0, 0]
