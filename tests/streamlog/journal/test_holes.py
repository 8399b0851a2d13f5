"""Records that were given up, in the journal's state machine: which may be, and what a hole is to all other entries."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping

import msgspec
import numpy as np
import pytest

from l0gc.errors import CorruptObjectError, L0gcError, NotFoundError, PartitionClosedError, ProtocolError, UsageError
from l0gc.streamlog.journal.checkpoint import JournalMachine
from l0gc.streamlog.journal.edits import fits
from l0gc.streamlog.journal.entries import EXPIRE, MERGE, RECONCILE, Closed, ClosedTopic, Edit, GaveUp, JournalEntry
from l0gc.streamlog.journal.holes import GIVEN_UP, check_give_up
from l0gc.streamlog.journal.rows import RANGE, is_hole, pack
from l0gc.streamlog.journal.topic import TopicState
from tests.support.journal import (
    REVISION,
    TOPIC_ID,
    Journal,
    bound_of,
    edit,
    extents_of,
    give_up,
    index_row,
    key_of,
    l1_row,
    l1_rows,
    reconciled,
    starts_of,
)

MACHINE = JournalMachine(0)


def landed(objects: int = 4, lifted: int = 1) -> Journal:
    """Partitions 0 and 1 with 10 records of each of so many objects, at the epochs 5, 6, …; the first ones are in L1."""
    j = Journal()
    for n in range(objects):
        j.land(extents_of(5 + n, {0: 10, 1: 10}, key=key_of(5 + n)), time_ms=1000 + n)
    if lifted:
        j.reconcile({0: 10 * lifted - 1, 1: 10 * lifted - 1})
    return j


def topic_of(j: Journal) -> TopicState:
    return j.state.topics[REVISION]


def spans(j: Journal, partition: int = 0) -> list[tuple[int, int, bool]]:
    """The partition's list of L1 objects in the state: from where to where, and whether that is a hole."""
    rows = topic_of(j).l1_of(partition)
    return list(zip(rows["base"].tolist(), rows["last"].tolist(), is_hole(rows).tolist(), strict=True))


def expired(starts: Mapping[int, int]) -> Edit:
    return edit(EXPIRE, 0, starts=starts_of(starts))


def why_not(j: Journal, ranges: Mapping[int, tuple[int, int]], error: type[L0gcError]) -> str:
    """Why records cannot be given up; nothing of the entry is taken then."""
    entry, before = give_up(ranges, j.state), MACHINE.encode(j.state)
    with pytest.raises(error) as refused:
        check_give_up(j.state.topics, entry, "events")
    with pytest.raises(CorruptObjectError):
        j.apply(entry)
    assert MACHINE.encode(j.state) == before
    return str(refused.value)


def test_what_is_reconciled_passes_a_hole_that_comes_next() -> None:
    j = landed()
    assert bound_of(j.state, REVISION, 0) == 6
    j.apply(give_up({0: (10, 19)}, j.state))
    assert topic_of(j).view(0).last_reconciled_offset == 19
    assert spans(j) == [(0, 9, False), (10, 19, True)]
    assert topic_of(j).l1_of(0)["max_timestamp"].tolist() == [0, 1001]
    assert bound_of(j.state, REVISION, 0) == 7
    assert topic_of(j).view(1).last_reconciled_offset == 9
    assert bound_of(j.state, REVISION, 1) == 6
    j.reconcile({0: 39, 1: 39})
    assert spans(j) == [(0, 9, False), (10, 19, True), (20, 39, False)]


def test_a_hole_in_the_middle_waits_until_all_before_it_is_reconciled() -> None:
    j = landed()
    j.apply(give_up({0: (20, 29)}, j.state))
    assert topic_of(j).view(0).last_reconciled_offset == 9
    assert spans(j) == [(0, 9, False)]
    assert [e.base_offset for e in topic_of(j).extents(0)] == [10, 30]
    j.reconcile({0: 19})
    assert spans(j) == [(0, 9, False), (10, 19, False), (20, 29, True)]
    j.reconcile({0: 39})
    assert topic_of(j).view(0).last_reconciled_offset == 39
    assert not len(j.state.dropped)


def test_holes_that_follow_each_other_are_passed_together() -> None:
    j = landed(5)
    for at in (30, 20, 10):
        j.apply(give_up({0: (at, at + 9)}, j.state))
    assert spans(j) == [(0, 9, False), (10, 19, True), (20, 29, True), (30, 39, True)]
    assert topic_of(j).view(0).last_reconciled_offset == 39


def test_an_object_leaves_when_the_last_of_its_records_is_given_up() -> None:
    j = landed(2)
    j.apply(give_up({0: (10, 19), 1: (10, 19)}, j.state))
    assert not topic_of(j).objects
    assert [spans(j, p)[-1] for p in (0, 1)] == [(10, 19, True)] * 2


@pytest.mark.parametrize("base", [10, 20])
def test_no_commit_covers_a_hole(base: int) -> None:
    j = landed()
    begun = reconciled(j.state, {0: 39, 1: 39})
    j.apply(give_up({0: (base, base + 9)}, j.state))
    refused = fits(j.state, begun)
    assert set(refused) == {(REVISION, 0)}
    assert base == 10 or refused[REVISION, 0] == GIVEN_UP
    with pytest.raises(CorruptObjectError):
        j.apply(begun)


def test_no_commit_names_a_hole_and_no_merge_takes_its_place() -> None:
    j = landed()
    j.apply(give_up({0: (10, 19)}, j.state))
    file, hole = topic_of(j).l1_of(0)[:1], topic_of(j).l1_of(0)[1:]
    made_up = l1_rows((0, 20, 29, 0, 0, 0, bytes(hole["name"][0])))
    one = l1_rows(l1_row(0, 0, 19, name=77))
    with pytest.raises(UsageError, match="hole"):
        edit(RECONCILE, 0, added=made_up)
    for removed, added in (
        (topic_of(j).l1_of(0), one),
        (hole, l1_rows(l1_row(0, 10, 19, name=77))),
        (file, hole),
    ):
        with pytest.raises(UsageError, match="hole"):
            edit(MERGE, 0, removed=removed, added=added)


def test_an_index_object_may_list_a_hole() -> None:
    j = landed()
    j.apply(give_up({0: (10, 19)}, j.state))
    index = index_row(topic_of(j).l1_of(0), name=99)
    j.apply(edit(RECONCILE, 0, added=reconciled(j.state, {0: 29}).topics[0].change.added, indexes=index))
    assert spans(j) == [(20, 29, False)]
    assert topic_of(j).holes["base"].tolist() == [10]
    assert "given up already" in why_not(j, {0: (10, 19)}, UsageError)
    assert MACHINE.encode(MACHINE.decode(MACHINE.encode(j.state), "x")) == MACHINE.encode(j.state)


@pytest.mark.parametrize("start", [12, 20, 25, 30, 35, 40])
def test_a_start_offset_passes_holes_and_drops_no_object_for_them(start: int) -> None:
    j = landed()
    j.apply(give_up({0: (10, 19)}, j.state))
    j.apply(give_up({0: (30, 39)}, j.state))
    j.apply(expired({0: start}))
    view = topic_of(j).view(0)
    assert view.last_reconciled_offset == {12: 19, 20: 19, 25: 19, 30: 39, 35: 39, 40: 39}[start]
    assert topic_of(j).holes["last"].tolist() == [last for last in (19, 39) if last >= start]
    assert [int(d["last"]) for d in j.state.dropped] == [9]
    assert MACHINE.encode(MACHINE.decode(MACHINE.encode(j.state), "x")) == MACHINE.encode(j.state)
    j.apply(Closed([ClosedTopic(REVISION)]))
    assert not is_hole(j.state.dropped).any()


def test_what_is_not_lost_in_this_partition_is_refused_with_its_reason() -> None:
    j = landed()
    j.apply(give_up({0: (20, 29)}, j.state))
    assert "20 to 29 were given up already" in why_not(j, {0: (20, 29)}, UsageError)
    assert "20 to 29 were given up already" in why_not(j, {0: (10, 39)}, UsageError)
    assert "are in L1 up to 9" in why_not(j, {0: (0, 9)}, UsageError)
    assert "are in L1 up to 9" in why_not(j, {0: (5, 19)}, UsageError)
    assert "next one will have offset 40" in why_not(j, {0: (30, 40)}, NotFoundError)
    assert "next one will have offset 0" in why_not(j, {7: (0, 0)}, NotFoundError)
    assert "10 to 19 of partition events/0 lie together" in why_not(j, {0: (10, 12)}, UsageError)
    assert "10 to 19 of partition events/1 lie together" in why_not(j, {0: (10, 19), 1: (12, 19)}, UsageError)
    j.apply(expired({1: 12}))
    assert "begins at offset 12" in why_not(j, {1: (10, 19)}, NotFoundError)
    j.apply(give_up({1: (12, 19)}, j.state))
    assert spans(j, 1) == [(12, 19, True)]
    assert MACHINE.encode(MACHINE.decode(MACHINE.encode(j.state), "x")) == MACHINE.encode(j.state)


def test_records_in_an_object_that_was_not_tried_are_refused() -> None:
    j = landed()
    entry = msgspec.structs.replace(give_up({0: (10, 29)}, j.state), keys=[key_of(6)])
    with pytest.raises(ProtocolError, match=f"{key_of(7)} now, which was not tried"):
        check_give_up(j.state.topics, entry, "events")


def test_records_of_another_or_a_deleted_topic_are_refused() -> None:
    j = landed()
    ranges = pack(np.array([(0, 10, 19)], RANGE))
    with pytest.raises(L0gcError, match="another topic"):
        check_give_up(j.state.topics, GaveUp(REVISION, "other", ranges, [key_of(6)]), "events")
    with pytest.raises(PartitionClosedError, match="'events'"):
        check_give_up(j.state.topics, GaveUp(REVISION + 1, TOPIC_ID, ranges, []), "events")


@pytest.mark.parametrize(
    "rows", [[], [(1, 10, 19), (0, 10, 19)], [(0, 10, 19), (0, 20, 29)], [(0, 19, 10)], [(-1, 0, 0)]]
)
def test_ranges_that_cannot_be_meant_are_refused(rows: list[tuple[int, int, int]]) -> None:
    j = landed()
    with pytest.raises(UsageError):
        check_give_up(j.state.topics, GaveUp(REVISION, TOPIC_ID, pack(np.array(rows, RANGE)), []), "events")


@pytest.mark.parametrize("lifted", [1, 2])
def test_a_checkpoint_whose_holes_do_not_fit_is_refused(lifted: int) -> None:
    j = landed(lifted=lifted)
    j.apply(give_up({0: (20, 29)}, j.state))
    whole = topic_of(j).holes
    for holes in (whole[:0], np.concatenate([whole, whole]), whole.copy()):
        topic_of(j).holes = holes
        if len(holes) == 1:
            holes["last"] = 28
        with pytest.raises(CorruptObjectError):
            MACHINE.decode(MACHINE.encode(j.state), "x")


def test_any_history_with_holes_keeps_every_other_record_in_its_place() -> None:
    """Each record is in L1, in an extent, in a hole or deleted, and in one of them only; checkpoints say the same."""
    chance = random.Random(26)
    for _ in range(60):
        j, lost = landed(6, lifted=0), set[int]()
        for _ in range(12):
            view, n = topic_of(j).view(0), chance.randrange(6) * 10
            what: JournalEntry = give_up({0: (n, n + 9)}, j.state)
            if chance.random() < 0.5:
                what = reconciled(j.state, {0: n + 9}) if n + 9 > view.last_reconciled_offset else what
            elif chance.random() < 0.2:
                what = expired({0: chance.randrange(view.log_start_offset, 50)})
            try:
                j.apply(what)
            except CorruptObjectError:
                continue
            lost |= set(range(n, n + 10)) if isinstance(what, GaveUp) else set()
            topic = topic_of(j)
            view, rows = topic.view(0), topic.l1_of(0)
            waiting = topic.waiting_holes()
            of_holes = [*rows[is_hole(rows)].tolist(), *waiting.tolist()]
            held = [range(r[1], r[2] + 1) for r in [*rows[~is_hole(rows)].tolist(), *of_holes]]
            held += [range(e.base_offset, e.last_offset + 1) for e in topic.extents(0)]
            records = sorted(itertools.chain(*held))
            assert len(records) == len(set(records))
            assert set(range(view.log_start_offset, view.next_offset)) <= set(records)
            holes = set(itertools.chain(*(range(r[1], r[2] + 1) for r in of_holes)))
            assert holes <= lost
            assert lost - holes <= set(range(view.log_start_offset))
            assert MACHINE.encode(MACHINE.decode(MACHINE.encode(j.state), "x")) == MACHINE.encode(j.state)
