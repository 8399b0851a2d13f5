"""The plan of a round: the objects that it takes, those that it skips, and the parts of its commit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.journal.edits import fits
from l0gc.streamlog.journal.entries import RECONCILE, Closed, ClosedTopic, Edit, EditedTopic
from l0gc.streamlog.journal.rows import L1_ROW, RANGE, Rows, ranges_of
from l0gc.streamlog.level_one.plan import (
    SMALL_TASK_BYTES,
    TASK_BYTES,
    Fault,
    JournalPlan,
    ObjectRead,
    Step,
    Window,
    choose_steps,
    is_unreconciled,
    make_round,
    steps_of,
    still_there,
    still_unreconciled,
    strangers,
    unreconciled,
    writers_of,
)
from tests.support.journal import REVISION, TOPIC_ID, Journal, extents_of, key_of

OTHER = REVISION + 4
TOPICS = {r: Topic(name, r, 100, (0,), TOPIC_ID) for r, name in ((REVISION, "events"), (OTHER, "other"))}
WINDOW = Window(0, TOPICS)


def taken(j: Journal, window: Window) -> list[tuple[int, str, list[int]]]:
    """Return (revision, key, partitions) of the objects that a round can take."""
    return [(r, o.key, o.extents["partition"].tolist()) for r, o in unreconciled(j.state, window)]


def rows(*files: tuple[int, int, int]) -> Rows:
    """Return L1 rows, given as (partition, base, last)."""
    return np.array(
        [(p, base, last, 10, 0, 5, bytes([p, base % 256, last % 256]) + bytes(13), 0) for p, base, last in files],
        L1_ROW,
    )


# -- windows --------------------------------------------------------------------------------------------------------------


def test_objects_come_in_order_of_the_log_whatever_their_topics() -> None:
    j = Journal()
    for n, revision in enumerate([REVISION, OTHER, REVISION]):
        j.land(extents_of(9, {0: 1}, key=f"k{n}", revision=revision))
    assert [key for _, key, _ in taken(j, WINDOW)] == ["k0", "k1", "k2"]
    assert [key for _, key, _ in taken(j, Window(0, {OTHER: TOPICS[OTHER]}))] == ["k1"]
    assert [key for _, key, _ in taken(j, Window(0, TOPICS, after=0, upto=1))] == ["k1"]


def test_what_is_reconciled_or_closed_is_left_out() -> None:
    j = Journal()
    j.land(extents_of(9, {0: 2, 1: 1}, key="a"), extents_of(9, {0: 1}, key="b", revision=OTHER))
    j.reconcile({0: 1})
    assert taken(j, WINDOW) == [(REVISION, "a", [1]), (OTHER, "b", [0])]
    j.apply(Closed([ClosedTopic(OTHER)]))
    assert taken(j, WINDOW) == [(REVISION, "a", [1])]


def test_a_partition_with_older_extents_left_waits_for_another_run() -> None:
    """A later round can therefore continue after damage, and never leaves a gap."""
    j = Journal()
    for key in "abc":
        j.land(extents_of(9, {0: 1, 1: 1}, key=key))
    j.reconcile({0: 0})  # partition 1 could not be lifted
    assert taken(j, Window(0, TOPICS, after=0)) == [(REVISION, "b", [0]), (REVISION, "c", [0])]
    assert taken(j, WINDOW) == [(REVISION, "a", [1]), (REVISION, "b", [0, 1]), (REVISION, "c", [0, 1])]


def test_a_topic_with_an_unknown_id_is_named_and_skipped() -> None:
    j = Journal()
    j.land(extents_of(9, topic_id="of another life"))
    (error,) = strangers(j.state, WINDOW)
    assert "'events' (revision 3)" in error
    assert taken(j, WINDOW) == []
    j = Journal()
    j.apply(Closed([ClosedTopic(REVISION)]))  # the journal records only that this topic is closed
    assert strangers(j.state, WINDOW) == []


STEPS = st.lists(st.tuples(st.booleans(), st.sets(st.integers(0, 4), min_size=1)), min_size=1, max_size=12)


@given(STEPS, st.integers(8, 16))
def test_up_to_an_epoch_takes_each_partition_no_further(uploads: list[tuple[bool, set[int]]], epoch: int) -> None:
    j, landed = Journal(), list[tuple[int, set[int]]]()
    for n, (newer, partitions) in enumerate(uploads):
        at = n if newer else max(0, n - 1)
        e = max(j.state.window.oldest, 9 + at)
        j.land(extents_of(e, dict.fromkeys(partitions, 1), key=f"{n:02}"))
        landed.append((e, partitions))
    last = {
        p: max((n for n, (e, parts) in enumerate(landed) if p in parts and e <= epoch), default=-1) for p in range(5)
    }
    expected = [(f"{n:02}", sorted(p for p in parts if n <= last[p])) for n, (_, parts) in enumerate(landed)]
    found = taken(j, Window(0, TOPICS, epoch=epoch))
    assert [(key, partitions) for _, key, partitions in found] == [(key, parts) for key, parts in expected if parts]
    steps, _ = steps_of(j.state, Window(0, TOPICS, epoch=epoch), 1 << 30)
    assert sum(s.objects for s in steps) == len(found)


# -- rounds ---------------------------------------------------------------------------------------------------------------


def test_a_round_takes_whole_entries_up_to_its_bytes() -> None:
    """An object of n partitions has blocks of two extents, and weighs 102 bytes a full block, 101 for one extent."""
    j = Journal()
    for n in range(4):
        j.land(extents_of(9 + n, {0: 1, 1: 1}, key=f"{n}a"), extents_of(9 + n, {2: 1, 3: 1, 4: 1}, key=f"{n}b"))
    weight = 102 + 102 + 101
    assert steps_of(j.state, WINDOW, 1) == ([Step(0, 9, 2, weight)], True)
    assert steps_of(j.state, WINDOW, 2 * weight) == ([Step(0, 9, 2, weight), Step(1, 10, 2, weight)], True)
    steps, more = steps_of(j.state, WINDOW, 1 << 30)
    assert (steps, more) == ([Step(3, 9, 8, 4 * weight)], False)
    assert steps_of(j.state, Window(0, TOPICS, after=3), 1) == ([], False)


def test_only_blocks_with_something_left_are_counted_and_read() -> None:
    j = Journal()
    j.land(extents_of(9, dict.fromkeys(range(6), 2), key="k"))
    j.reconcile({2: 1, 3: 1, 5: 1})
    assert steps_of(j.state, WINDOW, 1) == ([Step(0, 9, 1, 204)], False)
    ((revision, o),) = unreconciled(j.state, WINDOW)
    assert [(b.start, b.length) for b in map(o.block, o.needed)] == [(0, 102), (204, 102)]
    assert (o.bytes, o.key, o.epoch, revision) == (204, "k", 9, REVISION)
    assert o.extents[["partition", "block", "row", "records", "base"]].tolist() == [
        (0, 0, 0, 2, 0),
        (1, 0, 2, 2, 0),
        (4, 2, 0, 2, 0),
    ]


def plan(journal: int, *steps: tuple[int, int]) -> JournalPlan:
    """Return a plan with steps of (epoch, bytes)."""
    return JournalPlan(journal, 99, [Step(n, epoch, 1, size) for n, (epoch, size) in enumerate(steps)])


def test_the_lowest_epochs_go_first_because_they_hold_m() -> None:
    plans = [plan(0, (5, 10), (9, 10)), plan(1, (4, 10), (6, 10), (7, 10)), plan(2)]
    assert choose_steps(plans, 30) == {1: Step(1, 4, 2, 20), 0: Step(0, 5, 1, 10)}
    assert choose_steps(plans, 1000) == {1: Step(2, 4, 3, 30), 0: Step(1, 5, 2, 20)}


def test_a_round_takes_one_step_at_least_however_large() -> None:
    assert choose_steps([plan(3, (5, 1 << 40), (5, 1))], 1) == {3: Step(0, 5, 1, 1 << 40)}
    assert choose_steps([plan(0)], 1) == {}


def test_what_lies_before_an_old_epoch_in_its_journal_goes_with_it() -> None:
    plans = [plan(0, (5, 10), (5, 10)), plan(1, (9, 10), (4, 10), (9, 10))]
    assert choose_steps(plans, 30) == {1: Step(1, 4, 2, 20), 0: Step(0, 5, 1, 10)}


def test_a_first_step_beyond_what_is_left_is_not_taken() -> None:
    plans = [plan(0, (5, 10), (6, 10)), plan(1, (7, 5))]
    assert choose_steps(plans, 9, 9) == {}
    assert choose_steps(plans, 15, 15) == choose_steps(plans, 15) == {0: Step(0, 5, 1, 10)}


JOURNALS = st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 50)), max_size=6), min_size=1, max_size=5)


@given(JOURNALS, st.integers(1, 200))
def test_m_moves_as_far_as_the_bytes_allow(journals: list[list[tuple[int, int]]], budget: int) -> None:
    """If all extents up to an epoch fit the round's bytes, the round lifts them."""
    chosen = choose_steps([plan(n, *steps) for n, steps in enumerate(journals)], budget)
    for epoch in range(10):
        lasts = [max((n for n, (e, _) in enumerate(steps) if e <= epoch), default=-1) for steps in journals]
        if sum(size for last, steps in zip(lasts, journals, strict=True) for _, size in steps[: last + 1]) <= budget:
            assert all(last < 0 or chosen[journal].cut >= last for journal, last in enumerate(lasts))


@given(JOURNALS, st.integers(1, 200))
def test_rounds_end_and_take_each_step_once(journals: list[list[tuple[int, int]]], budget: int) -> None:
    rest = {n: list(plan(n, *steps).steps) for n, steps in enumerate(journals)}
    total = sum(s.objects for steps in rest.values() for s in steps)
    found = 0
    for _ in range(sum(map(len, rest.values()))):
        chosen = choose_steps([JournalPlan(n, 99, steps) for n, steps in rest.items()], budget)
        assert bool(chosen) == any(rest.values())
        size = sum(s.bytes for s in chosen.values())
        assert size <= budget or sum(s.objects for s in chosen.values()) == 1
        for journal, step in chosen.items():
            mine = [s for s in rest[journal] if s.cut <= step.cut]
            assert (step.objects, step.bytes) == (len(mine), sum(s.bytes for s in mine))
            assert step.epoch == min(s.epoch for s in mine)
            rest[journal] = rest[journal][len(mine) :]
            found += step.objects
    assert found == total
    assert not any(rest.values())


@pytest.mark.parametrize(
    ("size", "objects", "cores", "partitions", "expected"),
    [
        (100, 9, 8, 100, (1, 1)),
        (4 * SMALL_TASK_BYTES, 9, 8, 100, (4, 8)),
        (4 * SMALL_TASK_BYTES, 2, 8, 100, (2, 8)),
        (4 * SMALL_TASK_BYTES, 9, 8, 3, (4, 3)),
        (20 * TASK_BYTES, 900, 8, 10_000, (20, 20)),
        (900 * TASK_BYTES, 9000, 8, 10_000, (900, 200)),
        (900 * TASK_BYTES, 9000, 1, 10_000, (1, 1)),
    ],
)
def test_a_round_has_as_many_tasks_as_are_worth_it(
    size: int, objects: int, cores: int, partitions: int, expected: tuple[int, int]
) -> None:
    r = make_round(7, [WINDOW], {0: Step(5, 1, objects, size)}, cores, partitions)
    assert (r.readers, r.writers) == expected
    assert (r.epoch, r.bytes, r.topics()) == (7, size, TOPICS)
    assert (r.takes[0].after, r.takes[0].upto) == (-1, 5)


def test_readers_get_about_the_same_each_and_all_of_it() -> None:
    windows = [Window(n, TOPICS) for n in range(3)]
    steps = {n: Step(5, 1, 40, 40 * SMALL_TASK_BYTES) for n in range(3)}
    r = make_round(7, windows, steps, 8, 100)
    loads = [0] * r.readers
    for take in r.takes:
        for n in range(40):
            loads[r.reader_of(take, n * SMALL_TASK_BYTES)] += 1
    assert sum(loads) == 120
    assert max(loads) - min(loads) <= 1
    assert r.reader_of(r.takes[2], 1 << 50) == r.readers - 1  # the journal has grown since the plan


def test_a_partition_belongs_to_one_writer_and_writers_share_them() -> None:
    partitions = np.arange(1000, dtype=np.int32)
    for revision in (0, 7, 2**53):
        of = writers_of(revision, partitions, 7)
        assert np.bincount(of, minlength=7).min() >= 142
        of = writers_of(revision, partitions, 7, {revision: 256})
        assert [len(set(some.tolist())) for some in np.split(of, [256, 512, 768])] == [1] * 4
    alone = [int(writers_of(revision, partitions[:1], 4)[0]) for revision in range(0, 400, 2)]
    assert min(np.bincount(alone, minlength=4)) > 20


# -- commits --------------------------------------------------------------------------------------------------------------


def test_consecutive_l1_objects_are_one_range() -> None:
    found = ranges_of(rows((0, 0, 4), (0, 5, 9), (3, 7, 7)))
    assert found.dtype == RANGE
    assert found.tolist() == [(0, 0, 9), (3, 7, 7)]


FILES = st.dictionaries(
    st.sampled_from([REVISION, OTHER, 99]),
    st.dictionaries(st.integers(0, 50), st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=12),
    min_size=1,
)


@given(FILES, st.integers(1, 2000))
def test_a_commit_is_cut_between_partitions_and_names_everything_once(
    topics: dict[int, dict[int, list[int]]], limit: int
) -> None:
    files: dict[int, Rows] = {}
    for revision, partitions in topics.items():
        spans = []
        for p, lengths in sorted(partitions.items()):
            ends = list(itertools.accumulate(lengths, initial=p))
            spans += [(p, a, b - 1) for a, b in itertools.pairwise(ends)]
        files[revision] = rows(*spans)
    found: dict[int, list[Rows]] = {}
    whole = Edit(
        RECONCILE,
        5,
        [EditedTopic.of(r, f"id-{r}", added=f) for r, f in files.items()],
    )
    for entry in whole.divided(limit):
        assert (entry.kind, entry.epoch) == (RECONCILE, 5)
        assert len({t.revision for t in entry.topics}) == len(entry.topics)
        partitions_in = 0
        size = 0
        for t in entry.topics:
            assert t.topic_id == f"id-{t.revision}"
            found.setdefault(t.revision, []).append(t.change.added)
            partitions_in += len(t.change.partitions)
            size += len(t.added)
        assert size <= limit or partitions_in == 1
    assert {r: np.concatenate(parts).tolist() for r, parts in found.items()} == {
        r: f.tolist() for r, f in files.items()
    }


def test_a_round_lands_and_moves_each_partition_to_its_end() -> None:
    j = Journal()
    for n in range(5):
        j.land(extents_of(9, {n % 3: 2, 3: 1}, key=key_of(9, n)))
    (step,), _ = steps_of(j.state, Window(0, TOPICS, upto=2), 1 << 20)
    ends: dict[int, int] = {}
    for _, o in unreconciled(j.state, Window(0, TOPICS, upto=step.cut)):
        for e in o.extents:
            ends[int(e["partition"])] = int(e["base"] + e["records"] - 1)
    files = rows(*((p, 0, last) for p, last in sorted(ends.items())))
    entry = Edit(RECONCILE, 9, [EditedTopic.of(REVISION, TOPIC_ID, added=files)])
    assert fits(j.state, entry) == {}
    j.apply(entry)
    assert j.state.topic(REVISION).view(3).last_reconciled_offset == 2


# -- records that could not be lifted ---------------------------------------------------------------------------------------


def fault(*at: tuple[int, int], revision: int = REVISION) -> Fault:
    return Fault(0, revision, "gone", np.array([p for p, _ in at], np.int32), np.array([b for _, b in at], np.int64))


def test_a_fault_counts_only_where_nobody_has_lifted_the_records() -> None:
    j = Journal()
    j.land(extents_of(9, {0: 3, 1: 3, 4: 3}))
    j.reconcile({1: 2})
    left = still_there(j.state, fault((0, 0), (1, 0), (3, 0), (4, 0)))
    assert left is not None
    assert (left.partitions.tolist(), left.bases.tolist(), left.message) == ([0, 4], [0, 0], "gone")
    assert still_there(j.state, fault((1, 2))) is None
    assert still_there(j.state, fault((0, 0), revision=77)) is None
    j.apply(Closed([ClosedTopic(REVISION)]))
    assert still_there(j.state, fault((0, 0))) is None


def test_unreadable_extents_are_needed_only_at_their_offsets() -> None:
    """An object may have landed again, after others, in a journal that was set back and accepted."""
    j = Journal()
    j.land(extents_of(9, {0: 3, 1: 3}))
    ((revision, o),) = unreconciled(j.state, Window(0, TOPICS))
    read = ObjectRead(0, revision, o)
    j.reconcile({0: 2})
    left = still_unreconciled(j.state.topics[REVISION], read)
    assert left is not None
    assert left.object.extents["partition"].tolist() == [1]
    again = Journal()
    again.land(extents_of(9, {1: 5}, key="another"))
    again.land(extents_of(9, {0: 3, 1: 3}))
    left = still_unreconciled(again.state.topics[REVISION], read)
    assert left is not None
    assert left.object.extents["partition"].tolist() == [0]


def test_of_a_partition_that_a_journal_does_not_know_nothing_is_unreconciled() -> None:
    j = Journal()
    j.land(extents_of(9, {2: 1}))
    topic = j.state.topics[REVISION]
    assert is_unreconciled(topic, np.array([0, 2, 9]), np.array([0, 0, 0])).tolist() == [False, True, False]
    topic.partitions = topic.partitions[:0]
    topic.reconciled = topic.reconciled[:0]
    assert is_unreconciled(topic, np.array([0]), np.array([0])).tolist() == [False]
