"""Given-up records in the journal's state machine: which records may be given up, and how other entries treat a hole."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from l0gc.errors import CorruptObjectError, UsageError
from l0gc.streamlog.journal.checkpoint import JournalMachine
from l0gc.streamlog.journal.edits import NOT_AN_END, fits
from l0gc.streamlog.journal.entries import EXPIRE, GIVE_UP, MERGE, RECONCILE, Closed, ClosedTopic, JournalEntry
from l0gc.streamlog.journal.rows import is_hole
from l0gc.streamlog.journal.topic import TopicState
from tests.support.journal import (
    REVISION,
    Journal,
    bound_of,
    edit,
    extents_of,
    give_up,
    key_of,
    l1_row,
    l1_rows,
    reconciled,
    starts_of,
)

MACHINE = JournalMachine(0)


def landed(objects: int = 4, lifted: int = 1) -> Journal:
    """Land `objects` objects with 10 records of partitions 0 and 1 each, at the epochs 5, 6, …; lift the first
    `lifted`.
    """
    j = Journal()
    for n in range(objects):
        j.land(extents_of(5 + n, {0: 10, 1: 10}, key=key_of(5 + n)), time_ms=1000 + n)
    if lifted:
        j.reconcile({0: 10 * lifted - 1, 1: 10 * lifted - 1})
    return j


def topic_of(j: Journal) -> TopicState:
    return j.state.topics[REVISION]


def spans(j: Journal, partition: int = 0) -> list[tuple[int, int, bool]]:
    """Return the first and last offset of each of the partition's L1 rows, and whether the row is a hole."""
    rows = topic_of(j).l1_of(partition)
    return list(zip(rows["base"].tolist(), rows["last"].tolist(), is_hole(rows).tolist(), strict=True))


def test_what_is_reconciled_passes_a_hole_and_the_bound_rises() -> None:
    j = landed()
    assert bound_of(j.state, REVISION, 0) == 6
    j.apply(give_up({0: (10, 19)}))
    assert topic_of(j).view(0).last_reconciled_offset == 19
    assert spans(j) == [(0, 9, False), (10, 19, True)]
    assert (bound_of(j.state, REVISION, 0), bound_of(j.state, REVISION, 1)) == (7, 6)
    j.reconcile({0: 39, 1: 39})
    assert spans(j) == [(0, 9, False), (10, 19, True), (20, 39, False)]
    totals = topic_of(j).totals()
    assert (totals.l1_objects, totals.holes, totals.lost_records) == (5, 1, 10)


def test_an_object_leaves_when_the_last_of_its_records_is_given_up() -> None:
    j = landed(2)
    j.apply(give_up({0: (10, 19), 1: (10, 19)}))
    assert not topic_of(j).objects
    assert [spans(j, p)[-1] for p in (0, 1)] == [(10, 19, True)] * 2


@pytest.mark.parametrize(
    ("span", "why"),
    [
        ((0, 9), "is not next"),
        ((5, 19), "is not next"),
        ((20, 29), "is not next"),
        ((10, 12), NOT_AN_END),
        ((10, 40), NOT_AN_END),
    ],
)
def test_a_hole_starts_after_the_lro_and_ends_with_an_extent(span: tuple[int, int], why: str) -> None:
    """Hazard 35: a hole covers no record that is in L1."""
    j = landed()
    before = MACHINE.encode(j.state)
    entry = give_up({0: span, 1: (10, 19)})
    (refused,) = fits(j.state, entry).items()
    assert refused[0] == (REVISION, 0)
    assert why in refused[1]
    with pytest.raises(CorruptObjectError):
        j.apply(entry)
    assert MACHINE.encode(j.state) == before


@pytest.mark.parametrize("late", [RECONCILE, GIVE_UP])
def test_nothing_fills_a_hole_later(late: str) -> None:
    """Hazard 35: a commit that was prepared before the hole must not replace it."""
    j = landed()
    begun = reconciled(j.state, {0: 19, 1: 19}) if late == RECONCILE else give_up({0: (10, 19)})
    j.apply(give_up({0: (10, 29)}))
    assert (REVISION, 0) in fits(j.state, begun)
    with pytest.raises(CorruptObjectError):
        j.apply(begun)


def test_no_other_edit_adds_a_hole_and_no_merge_takes_its_place() -> None:
    j = landed()
    j.apply(give_up({0: (10, 19)}))
    file, hole = topic_of(j).l1_of(0)[:1], topic_of(j).l1_of(0)[1:]
    for removed, added in (
        (topic_of(j).l1_of(0), l1_rows(l1_row(0, 0, 19, name=77))),
        (hole, l1_rows(l1_row(0, 10, 19, name=77))),
        (file, l1_rows(l1_row(0, 0, 9, name=77, hole=1))),
    ):
        with pytest.raises(UsageError, match="hole"):
            edit(MERGE, 0, removed=removed, added=added)
    with pytest.raises(UsageError, match="only a give-up edit"):
        edit(RECONCILE, 0, added=l1_rows(l1_row(0, 20, 29, hole=1)))
    with pytest.raises(UsageError, match="only a give-up edit"):
        edit(GIVE_UP, 0, added=l1_rows(l1_row(0, 20, 29)))


@pytest.mark.parametrize("start", [12, 20, 25, 40])
def test_a_start_offset_drops_a_hole_like_any_object(start: int) -> None:
    j = landed()
    j.apply(give_up({0: (10, 19)}))
    j.apply(edit(EXPIRE, 0, starts=starts_of({0: start})))
    assert topic_of(j).view(0).last_reconciled_offset == (39 if start == 40 else 19)
    assert [int(d["last"]) for d in j.state.dropped] == [9, 19][: 1 + (start >= 20)]
    assert MACHINE.encode(MACHINE.decode(MACHINE.encode(j.state), "x")) == MACHINE.encode(j.state)
    j.apply(Closed([ClosedTopic(REVISION)]))
    assert 19 in [int(d["last"]) for d in j.state.dropped]


def test_any_history_with_holes_keeps_every_other_record_in_its_place() -> None:
    """Each record is in exactly one of L1, an extent, a hole and the deleted range, and checkpoints agree."""
    chance = random.Random(26)
    for _ in range(60):
        j, lost = landed(6, lifted=0), set[int]()
        for _ in range(12):
            view, n = topic_of(j).view(0), chance.randrange(6) * 10
            base = view.last_reconciled_offset + 1
            if n + 9 < base:
                continue
            what: JournalEntry = give_up({0: (base, n + 9)})
            if (roll := chance.random()) < 0.5:
                what = reconciled(j.state, {0: n + 9})
            elif roll < 0.7:
                what = edit(EXPIRE, 0, starts=starts_of({0: chance.randrange(view.log_start_offset, 50)}))
            try:
                j.apply(what)
            except CorruptObjectError:
                continue
            lost |= set(range(base, n + 10)) if roll >= 0.7 else set()
            topic = topic_of(j)
            view, rows = topic.view(0), topic.l1_of(0)
            held = [range(r["base"], r["last"] + 1) for r in rows]
            held += [range(e.base_offset, e.last_offset + 1) for e in topic.extents(0)]
            records = sorted(itertools.chain(*held))
            assert len(records) == len(set(records))
            assert set(range(view.log_start_offset, view.next_offset)) <= set(records)
            holes = set(itertools.chain(*(range(r["base"], r["last"] + 1) for r in rows[is_hole(rows)])))
            assert holes <= lost
            assert lost - holes <= set(range(view.log_start_offset))
            assert MACHINE.encode(MACHINE.decode(MACHINE.encode(j.state), "x")) == MACHINE.encode(j.state)


def test_what_holes_weigh_counts_like_any_object() -> None:
    j = landed()
    j.apply(give_up({0: (10, 19)}))
    assert topic_of(j).totals().l1_bytes == int(np.sum(topic_of(j).l1["bytes"]))
