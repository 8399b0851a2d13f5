"""A run lifts, in rounds, the records that were there at its start; a fault in one place does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from l0gc.errors import NotFoundError, StoreError
from l0gc.storage.workers import LocalWorkers, Stage
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.level_one import reconcile as runs
from l0gc.streamlog.level_one.plan import Round, has_work, waiting_bytes
from l0gc.streamlog.level_one.reconcile import ReconcileResult
from tests.support.journal import lowest_of
from tests.support.memory_store import Call, another_process, memory_cluster, store_of
from tests.support.merge import PARTITIONS, a_cluster
from tests.support.reconcile import files, lifted, named, put, reconcile, unreconciled


def upload(cluster: ClusterHandles, count: int, first: int = 0, topic: str = "events") -> list[str]:
    """Upload objects with a record for each partition, each in its own entry; a record's value is its offset."""
    return [
        key
        for n in range(first, first + count)
        for key in put(cluster, topic, {p: [b"%d" % n] for p in range(PARTITIONS)})
    ]


def contents(cluster: ClusterHandles, topic: str = "events") -> list[list[int]]:
    return [[int(v) for v in lifted(cluster, topic, p)] for p in range(PARTITIONS)]


class Watched(LocalWorkers[ClusterHandles]):
    """Workers that record their rounds.

    Args:
        before: called before each round with the number of rounds done.
    """

    def __init__(self, cluster: ClusterHandles, before: Callable[[int], None] = lambda rounds: None) -> None:
        super().__init__(cluster)
        self.before = before
        self.rounds: list[Round] = []
        self.planned: list[list[int]] = []

    def map(self, work: Any, parts: Sequence[Any]) -> list[Any]:
        self.before(len(self.rounds))
        self.planned.append([w.journal for w in parts])
        return super().map(work, parts)

    def flow(self, parts: Sequence[Any], *stages: Stage) -> list[Any]:
        lift = stages[0].work.__self__  # type: ignore[attr-defined]
        self.rounds.append(lift.round)
        return super().flow(parts, *stages)


def test_a_run_lifts_everything_and_the_next_has_nothing_to_do() -> None:
    a = a_cluster()
    upload(a, 5)
    result = reconcile(a)
    assert (result.records, result.l1_objects, result.partitions, result.lost, result.rounds) == (20, 4, 4, 0, 1)
    assert result.bytes == sum(f.bytes for p in range(PARTITIONS) for f in files(a, "events", p))
    assert contents(another_process(a)) == [list(range(5))] * PARTITIONS
    assert {k for k in store_of(a).objects if k.startswith("level_one/")} == named(a, "events")
    state = a.journal(0).state
    assert lowest_of(state) == state.previous_applied_epoch
    again = reconcile(another_process(a))
    assert (again.records, again.rounds, again.partitions) == (0, 0, 0)


def test_a_second_run_continues_the_first() -> None:
    a = a_cluster()
    upload(a, 5)
    reconcile(a)
    upload(a, 3, first=5)
    reconcile(another_process(a))
    assert [(f.base_offset, f.last_offset) for f in files(a, "events", 0)] == [(0, 4), (5, 7)]
    assert contents(a) == [list(range(8))] * PARTITIONS


def test_one_topic_at_a_time_and_one_that_exists() -> None:
    a = a_cluster()
    a.controller.create_topic("other", PARTITIONS)
    upload(a, 2)
    upload(a, 3, topic="other")
    assert reconcile(a, "other").records == 12
    assert unreconciled(a, "events", 0) == 2
    assert contents(a, "other") == [[0, 1, 2]] * PARTITIONS
    with pytest.raises(NotFoundError, match="'othe'"):
        runs.reconcile(a, "othe")
    with pytest.raises(NotFoundError, match="'othe'"):
        has_work(a, "othe")


def test_a_cluster_without_topics_has_nothing_to_do() -> None:
    assert reconcile(memory_cluster()) == ReconcileResult()


def test_a_run_shows_how_many_records_it_has_lifted_of_how_many() -> None:
    a = a_cluster(journals=1)
    upload(a, 2)
    reconcile(a)
    upload(a, 3, first=2)
    said: list[tuple[str, float | None, float | None]] = []

    def progress(text: str, *, done: float | None = None, total: float | None = None, **fields: Any) -> None:
        said.append((text, done, total))

    runs.reconcile(a, round_bytes=1, workers=LocalWorkers(a, progress=progress))
    assert said[0] == ("reading the journals", None, None)
    at = "round 2, 4 of 12 records in L1"
    assert [s for s in said if s[0].startswith("round 2")] == [
        (at, 4, 12),
        (f"{at}; 4 more read, 0 written", 6, 12),
        (f"{at}; 4 more read, 4 written", 8, 12),
    ]
    assert said[-1] == ("round 3, 8 of 12 records in L1; 4 more read, 4 written", 12, 12)


def test_the_records_of_a_journal_that_waits_are_counted_once() -> None:
    a = a_cluster(journals=2)
    upload(a, 3)
    totals: list[float | None] = []

    def progress(text: str, *, done: float | None = None, total: float | None = None, **fields: Any) -> None:
        totals.append(total)

    result = runs.reconcile(a, round_bytes=1, workers=LocalWorkers(a, progress=progress))
    assert result.rounds > 1
    assert set(totals[1:]) == {3 * PARTITIONS}


# -- rounds ---------------------------------------------------------------------------------------------------------------


def test_each_round_is_committed_and_stamped_with_the_epoch_of_its_beginning() -> None:
    a = a_cluster(journals=1)
    upload(a, 3)
    watched = Watched(a, lambda rounds: ticks(a, rounds))
    result = runs.reconcile(a, round_bytes=1, workers=watched)
    assert (result.rounds, result.records, result.l1_objects, result.partitions) == (3, 12, 12, PARTITIONS)
    assert [r.epoch for r in watched.rounds] == [1, 2, 3]
    assert [f.epoch for f in files(a, "events", 0)] == [1, 2, 3]
    assert [[t.after for t in r.takes] for r in watched.rounds] == [[-1], [0], [1]]
    assert contents(a) == [[0, 1, 2]] * PARTITIONS


def ticks(cluster: ClusterHandles, rounds: int) -> None:
    assert cluster.controller.advance() == 2 + rounds


def test_a_run_that_is_killed_keeps_the_rounds_before() -> None:
    a = a_cluster(journals=1)
    upload(a, 4)
    store, seen = store_of(a), []

    def fault(call: Call) -> None:
        if call.kind == "put" and call.key.startswith("level_one/"):
            seen.append(call.key)
            if len(seen) > 12:
                raise StoreError("killed")

    store.fault = fault
    with pytest.raises(StoreError, match="killed"):
        runs.reconcile(a, round_bytes=1)
    store.fault = lambda call: None
    assert contents(another_process(a)) == [[0]] * PARTITIONS
    result = reconcile(another_process(a))
    assert result.records == 3 * PARTITIONS
    assert contents(a) == [list(range(4))] * PARTITIONS


def aged(epochs: int) -> ClusterHandles:
    """Create a cluster with one object for all partitions at each of `epochs` epochs, the first of which is 3."""
    a = a_cluster()
    for n in range(epochs):
        upload(a, 1, first=n)
        a.controller.advance()
    return a


def left(cluster: ClusterHandles) -> list[int]:
    """Return the epochs of the objects that are not in L1."""
    states = [cluster.journal(j).catch_up() for j in cluster.controller.snapshot().journals_in_use()]
    return sorted({o.epoch for s in states for t in s.topics.values() for o in t.objects})


def test_up_to_an_epoch_no_more_is_lifted_and_m_passes_it() -> None:
    a = aged(6)
    first, *_, last = epochs = left(a)
    result = reconcile(a, up_to=first + 2)
    assert (result.records, result.rounds, result.limited) == (3 * PARTITIONS, 1, False)
    assert left(a) == epochs[3:]
    assert not has_work(a, up_to=first + 2)
    assert reconcile(a, up_to=first + 2).rounds == 0
    assert reconcile(a, up_to=last + 99).records == 3 * PARTITIONS
    assert contents(another_process(a)) == [list(range(6))] * PARTITIONS


def test_no_more_bytes_are_lifted_than_said_and_the_oldest_first() -> None:
    a = aged(6)
    epochs = left(a)
    (part,) = {o.bytes for t in a.journal(0).state.topics.values() for o in t.objects}
    size = len(a.controller.snapshot().journals_in_use()) * part
    result = reconcile(a, max_bytes=2 * size + 1, round_bytes=size)
    assert (result.records, result.rounds, result.limited) == (2 * PARTITIONS, 2, True)
    assert left(a) == epochs[2:]
    result = reconcile(a, max_bytes=1)
    assert (result.records, result.limited) == (PARTITIONS * part // size, True), "at least one entry"
    result = reconcile(a, up_to=epochs[3], max_bytes=2 * size)
    assert (result.partitions, result.limited) == (PARTITIONS, False)
    assert left(a) == epochs[4:]
    assert contents(another_process(a)) == [list(range(4))] * PARTITIONS


def test_a_run_ends_though_uploads_go_on() -> None:
    a = a_cluster()
    upload(a, 3)
    uploads = iter(range(3, 100))

    def more(rounds: int) -> None:
        upload(a, 1, next(uploads))

    result = runs.reconcile(a, round_bytes=1, workers=Watched(a, more))
    assert 3 * PARTITIONS <= result.records <= 4 * PARTITIONS
    assert next(uploads) < 20
    reconcile(a)
    assert contents(a) == [list(range(next(uploads) - 1))] * PARTITIONS


def test_a_journal_without_work_is_read_once() -> None:
    a = a_cluster(journals=4)
    for n in range(4):
        put(a, "events", {1: [b"%d" % n]})
    put(a, "events", {2: [b"0"]})
    watched = Watched(a)
    runs.reconcile(a, round_bytes=1, workers=watched)
    assert watched.planned[0] == [0, 1, 2, 3]
    assert {j for planned in watched.planned[1:] for j in planned} <= {1, 2}


def test_a_single_round_needs_no_second_plan() -> None:
    a = a_cluster()
    upload(a, 3)
    watched = Watched(a)
    runs.reconcile(a, workers=watched)
    assert len(watched.planned) == 1


def test_a_topic_that_is_deleted_meanwhile_is_left_out_of_later_rounds() -> None:
    a = a_cluster(journals=1)
    upload(a, 3)

    def delete(rounds: int) -> None:
        if rounds == 0:
            a.controller.delete_topic("events")

    watched = Watched(a, delete)
    result = runs.reconcile(a, round_bytes=1, workers=watched)
    assert result.rounds == 1
    assert [list(t.topics) for r in watched.rounds for t in r.takes] == [[1]]


# -- faults ---------------------------------------------------------------------------------------------------------------


def test_an_unreadable_journal_is_named_and_others_are_reconciled() -> None:
    a = a_cluster()
    upload(a, 2)
    key = next(k for k in store_of(a).objects if k.startswith("l0gc/journal/0001/log/"))
    store_of(a).objects[key].body = b"{}"
    b = another_process(a)
    result = runs.reconcile(b)
    assert len(result.errors) == 1
    assert key in result.errors[0]
    assert (result.records, result.partitions) == (4, 2)
    assert lifted(b, "events", 0) == [b"0", b"1"]


@pytest.mark.parametrize("gone", [True, False])
@pytest.mark.parametrize("round_bytes", [1, 1 << 30])
def test_a_partition_is_lifted_up_to_its_damage(gone: bool, round_bytes: int) -> None:
    a = a_cluster(journals=1)
    keys = upload(a, 2) + put(a, "events", {1: [b"2"], 2: [b"2"]}) + put(a, "events", {0: [b"2"]})
    upload(a, 2, first=3)
    if gone:
        del store_of(a).objects[keys[2]]
    else:
        store_of(a).objects[keys[2]].body = b"?" * len(store_of(a).objects[keys[2]].body)
    result = runs.reconcile(a, round_bytes=round_bytes)
    (error,) = result.errors
    assert keys[2] in error
    way = f"without a copy, give its records up: l0gc give-up --object {keys[2]}"
    assert error.endswith(f"restore that object from a version; it holds events/1, events/2; {way}")
    assert [lifted(a, "events", p) for p in (1, 2)] == [[b"0", b"1"]] * 2
    assert lifted(a, "events", 0) == [b"0", b"1", b"2", b"3", b"4"]
    assert lifted(a, "events", 3) == [b"0", b"1", b"3", b"4"]
    assert result.partitions == PARTITIONS
    assert {k for k in store_of(a).objects if k.startswith("level_one/")} == named(a, "events")
    again = runs.reconcile(a, round_bytes=round_bytes)
    assert (again.records, again.errors) == (0, result.errors)


def test_a_partition_whose_first_record_is_damaged_costs_no_l1_object() -> None:
    a = a_cluster(journals=1)
    (key,) = put(a, "events", {0: [b"0"]})
    upload(a, 2, first=1)
    store_of(a).objects[key].body = b""
    puts = store_of(a).requests["put"]
    result = runs.reconcile(a)
    assert store_of(a).requests["put"] - puts == PARTITIONS - 1
    assert (result.records, result.partitions, len(result.errors)) == (6, 3, 1)


def test_a_topic_with_another_identity_is_named_and_skipped() -> None:
    """A restored controller log has assigned its revision a second time."""
    a = a_cluster(journals=1)
    upload(a, 2)
    a.journal(0).state.topics[1].topic_id = "of another life"
    result = runs.reconcile(a)
    assert (result.records, result.rounds) == (0, 0)
    assert "topic 'events' (revision 1) is not the one in journal 0" in result.errors[0]


def test_what_another_reconciler_lifts_between_planning_and_reading_is_left_to_it() -> None:
    a = a_cluster(journals=1)
    keys = upload(a, 3)

    class Overtaken(LocalWorkers[ClusterHandles]):
        def flow(self, parts: Sequence[Any], *stages: Stage) -> list[Any]:
            reconcile(another_process(a))
            for key in keys:  # a sweep has deleted them already
                del store_of(a).objects[key]
            return super().flow(parts, *stages)

    result = runs.reconcile(a, workers=Overtaken(a))
    assert (result.records, result.errors, result.lost) == (0, [], 0)
    assert contents(a) == [[0, 1, 2]] * PARTITIONS


# -- work that is due -----------------------------------------------------------------------------------------------------


def test_has_work_keeps_no_journal() -> None:
    a = a_cluster(journals=4)
    b = another_process(a)
    assert not has_work(b)
    put(a, "events", {3: [b"x"]})
    assert has_work(b)
    assert has_work(b, "events")
    put(a, "events", *[{p: [b"x"]} for p in range(PARTITIONS)])
    (all_of_it,) = {waiting_bytes(b, None, enough) for enough in (1 << 20, 1 << 40)}
    assert waiting_bytes(b, None, all_of_it // 2) > all_of_it // 2
    assert b._journals == {}
    reconcile(a)
    assert (has_work(b), waiting_bytes(b, None, 1)) == (False, 0)


def test_an_unreadable_journal_counts_as_work() -> None:
    a = a_cluster()
    upload(a, 1)
    reconcile(a)
    assert not has_work(a)
    store_of(a).objects[next(k for k in store_of(a).objects if "journal/0001/log/" in k)].body = b"?"
    assert has_work(another_process(a))


# -- random histories -----------------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.dictionaries(st.integers(0, 3), st.integers(1, 4), min_size=1)),
        st.tuples(st.just("damage"), st.integers(0, 5)),
        st.tuples(st.just("mend"), st.just(0)),
        st.tuples(st.just("reconcile"), st.sampled_from([1, 400, 1 << 30])),
    ),
    max_size=14,
)


@settings(max_examples=30)
@given(STEPS, st.integers(1, 3))
def test_each_partition_is_lifted_up_to_the_first_damage(steps: list[tuple[str, object]], journals: int) -> None:
    a = a_cluster(journals=journals)
    store = store_of(a)
    objects: list[tuple[str, dict[int, int]]] = []
    kept: dict[str, bytes] = {}
    expected: dict[int, list[bytes]] = {p: [] for p in range(PARTITIONS)}
    ends = dict.fromkeys(expected, 0)
    for number, (kind, what) in enumerate(steps):
        process = another_process(a, seed=number + 1)
        if kind == "put":
            assert isinstance(what, dict)
            values = {p: [b"%d" % (ends[p] + i) for i in range(n)] for p, n in what.items()}
            (key,) = put(process, "events", values)
            objects.append((key, what))
            for p, n in what.items():
                ends[p] += n
        elif kind == "damage" and isinstance(what, int) and what < len(objects):
            key = objects[what][0]
            kept.setdefault(key, store.objects[key].body)
            store.objects[key].body = b"?"
        elif kind == "mend":
            for key, body in kept.items():
                store.objects[key].body = body
            kept.clear()
        elif kind == "reconcile":
            assert isinstance(what, int)
            result = runs.reconcile(process, round_bytes=what)
            left = sum(unreconciled(process, "events", p) for p in range(PARTITIONS))
            assert bool(result.errors) == bool(left)
            before = {p: len(expected[p]) for p in expected}
            for p in expected:
                expected[p] = list(_up_to_damage(objects, kept, p, before[p]))
            assert result.records == sum(len(v) for v in expected.values()) - sum(before.values())
        assert {p: lifted(process, "events", p) for p in expected} == expected


def _up_to_damage(
    objects: Sequence[tuple[str, dict[int, int]]], damaged: dict[str, bytes], partition: int, lifted_before: int
) -> list[bytes]:
    values: list[bytes] = []
    for key, counts in objects:
        if counts.get(partition) and key in damaged and len(values) >= lifted_before:
            break
        values += [b"%d" % (len(values) + n) for n in range(counts.get(partition, 0))]
    return values
