"""The life of L1 in the journal's state machine: merges, expiries, the fence, drops and purges."""

from __future__ import annotations

import cProfile
import itertools
import pstats
import random
import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from l0gc.errors import CorruptObjectError, PartitionClosedError, UsageError
from l0gc.streamlog.journal.admission import Admission, EpochWindow
from l0gc.streamlog.journal.checkpoint import JournalMachine
from l0gc.streamlog.journal.edits import (
    ANOTHER_TOPIC,
    BELOW,
    GONE,
    MOVED_ON,
    NAMED_TWICE,
    fits,
)
from l0gc.streamlog.journal.entries import (
    EXPIRE,
    MERGE,
    RECONCILE,
    Advance,
    Barrier,
    Closed,
    ClosedTopic,
    Edit,
    FenceL1,
    Purged,
    SetBack,
)
from l0gc.streamlog.journal.row_list import RowList
from l0gc.streamlog.journal.rows import (
    L1_ROW,
    NAME,
    OFFSET,
    START,
    Rows,
    in_order,
    name_bytes,
    pack,
)
from l0gc.streamlog.journal.state import JournalState
from l0gc.streamlog.journal.topic import TopicState
from tests.support.journal import (
    REVISION,
    TOPIC_ID,
    Journal,
    bound_of,
    edit,
    extents_of,
    gc_epoch_of,
    key_of,
    l1_row,
    l1_rows,
    name_of,
    of_parts,
    parts_of,
    reconciled,
    starts_of,
)

MACHINE = JournalMachine(0)
EPOCH = 7


def lifted(partitions: int = 2, objects: int = 4, records: int = 10, *, spare: int = 0) -> Journal:
    """Return partitions with `objects` L1 objects of `records` records each, then `spare` extents that are not in L1."""
    j = Journal()
    for n in range(objects + spare):
        j.land(extents_of(EPOCH, dict.fromkeys(range(partitions), records), key=key_of(EPOCH, n)))
        if n < objects:
            j.reconcile(dict.fromkeys(range(partitions), (n + 1) * records - 1), epoch=EPOCH)
    return j


def topic_of(j: Journal) -> TopicState:
    return j.state.topics[REVISION]


def merged(j: Journal, first: int, last: int, *, partition: int = 0, name: int = 1000, epoch: int = EPOCH) -> Edit:
    """Return an edit that merges a partition's L1 objects `first` to `last`, counted in the state, into one."""
    rows = topic_of(j).l1_of(partition)[first : last + 1]
    file = l1_row(partition, int(rows["base"][0]), int(rows["last"][-1]), epoch=epoch, name=name)
    return edit(MERGE, epoch, removed=rows, added=l1_rows(file))


def expired(starts: Mapping[int, int], topic_id: str = TOPIC_ID, /, **more: Rows) -> Edit:
    return edit(EXPIRE, 0, REVISION, topic_id, starts=starts_of(starts), **more)


def spans(rows: Rows) -> list[tuple[int, int]]:
    return [(int(r["base"]), int(r["last"])) for r in rows]


def why(j: Journal, entry: Edit) -> dict[int, str]:
    """Return why each partition is refused, and check that `apply` refuses the entry if any is."""
    refused = {partition: text for (_, partition), text in fits(j.state, entry).items()}
    before = MACHINE.encode(j.state)
    if refused:
        with pytest.raises(CorruptObjectError):
            j.apply(entry)
        assert MACHINE.encode(j.state) == before
    return refused


# -- merges ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("epoch", "recorded"), [(EPOCH - 1, EPOCH), (EPOCH + 1, EPOCH + 1)])
def test_a_drop_is_recorded_with_at_least_the_windows_epoch(epoch: int, recorded: int) -> None:
    """An object dropped below a pin's epoch was therefore dropped before the pin (hazard 36), however long the run
    took.
    """
    j = lifted()
    j.apply(merged(j, 1, 2, epoch=epoch))
    assert set(j.state.dropped["dropped_epoch"].tolist()) == {recorded}


def test_a_merge_puts_one_object_in_the_place_of_several() -> None:
    j = lifted()
    j.apply(merged(j, 1, 2), time_ms=5000)
    assert spans(topic_of(j).l1_of(0)) == [(0, 9), (10, 29), (30, 39)]
    assert spans(topic_of(j).l1_of(1)) == [(0, 9), (10, 19), (20, 29), (30, 39)]
    columns = ["revision", "partition", "base", "last", "bytes", "epoch", "dropped_ms", "dropped_epoch"]
    assert j.state.dropped[columns].tolist() == [
        (REVISION, 0, 10, 19, 100, EPOCH, 5000, EPOCH),
        (REVISION, 0, 20, 29, 100, EPOCH, 5000, EPOCH),
    ]
    assert {bytes(n) for n in j.state.dropped["name"]} == {name_bytes(name_of(n)) for n in (19, 29)}
    assert j.state.topic(REVISION).view(0).last_reconciled_offset == 39


def test_several_runs_of_a_partition_are_merged_by_one_entry() -> None:
    j = lifted(objects=5)
    rows = topic_of(j).l1_of(0)
    files = l1_rows(l1_row(0, 0, 19, epoch=EPOCH, name=1000), l1_row(0, 30, 49, epoch=EPOCH, name=1001))
    j.apply(edit(MERGE, EPOCH, removed=rows[[0, 1, 3, 4]], added=files))
    assert spans(topic_of(j).l1_of(0)) == [(0, 19), (20, 29), (30, 49)]


def test_a_losing_merge_does_not_hold_up_other_partitions() -> None:
    """Hazard 24: another merge may win one partition of an entry and not the others."""
    j = lifted()
    late = merged(j, 0, 1, name=2000)
    other = merged(j, 0, 3, partition=1, name=2001).topics[0].change
    mine = late.topics[0].change
    late = edit(
        MERGE,
        EPOCH,
        removed=np.concatenate([mine.removed, other.removed]),
        added=np.concatenate([mine.added, other.added]),
    )
    j.apply(merged(j, 1, 2))
    assert why(j, late) == {0: MOVED_ON}
    left = late.without({(REVISION, 0): ""})
    assert left is not None
    j.apply(left)
    assert spans(topic_of(j).l1_of(1)) == [(0, 39)]
    assert len(j.state.dropped) == 6
    assert why(j, left) == {1: MOVED_ON}  # the edit does not land a second time


def test_a_merge_after_expiry_or_topic_deletion_is_refused() -> None:
    j = lifted()
    late = merged(j, 0, 1)
    j.apply(expired({0: 10}))
    assert why(j, late) == {0: MOVED_ON}
    late = merged(j, 1, 2)
    j.apply(Closed([ClosedTopic(REVISION, TOPIC_ID)]))
    assert why(j, late) == {0: GONE}


@pytest.mark.parametrize("column", ["base", "last", "bytes", "max_timestamp", "epoch", "name"])
def test_what_a_merge_replaces_must_be_there_in_every_column(column: str) -> None:
    j = lifted()
    rows = topic_of(j).l1_of(0)[1:3].copy()
    if column == "name":
        rows["name"][0] = rows["name"][1]
    else:
        rows[column][0] += 1 if column != "last" else -1
    files = l1_rows(l1_row(0, int(rows["base"][0]), 29, epoch=EPOCH, name=1000))
    if column == "last":
        with pytest.raises(UsageError, match="exactly the records"):
            edit(MERGE, EPOCH, removed=rows, added=files)
    else:
        assert why(j, edit(MERGE, EPOCH, removed=rows, added=files)) == {0: MOVED_ON}


@pytest.mark.parametrize(
    "files", [[], [(0, 10, 28)], [(0, 9, 29)], [(0, 10, 19)], [(1, 10, 29)], [(0, 10, 19), (0, 19, 29)]]
)
def test_a_merge_that_does_not_hold_what_it_replaces_can_land_nowhere(files: list[tuple[int, int, int]]) -> None:
    j = lifted()
    rows = topic_of(j).l1_of(0)[1:3]
    found = l1_rows(*(l1_row(*f, epoch=EPOCH, name=1000 + f[1]) for f in files)) if files else rows[:0]
    with pytest.raises(UsageError):
        edit(MERGE, EPOCH, removed=rows, added=found)


def test_a_merged_object_has_a_name_that_nothing_had_before() -> None:
    j = lifted()
    for name in (9, 19):  # one that stays, and one that is replaced
        assert why(j, merged(j, 1, 2, name=name)) == {0: NAMED_TWICE}
    j.apply(merged(j, 1, 2))
    assert why(j, merged(j, 1, 2, name=19)) == {0: NAMED_TWICE}  # one that was dropped


def test_two_objects_of_one_merge_have_two_names() -> None:
    j = lifted()
    rows = topic_of(j).l1_of(0)[1:3]
    for second, refused in ((1000, {0: NAMED_TWICE}), (1001, {})):
        files = l1_rows(l1_row(0, 10, 14, epoch=EPOCH, name=1000), l1_row(0, 15, 29, epoch=EPOCH, name=second))
        assert why(j, edit(MERGE, EPOCH, removed=rows, added=files)) == refused


# -- expiry ---------------------------------------------------------------------------------------------------------------


def test_the_log_start_moves_and_what_is_wholly_below_is_dropped() -> None:
    j = lifted()
    j.apply(expired({0: 20, 1: 25}), time_ms=70)
    assert [j.state.topic(REVISION).view(p).log_start_offset for p in (0, 1)] == [20, 25]
    assert spans(topic_of(j).l1_of(0)) == [(20, 29), (30, 39)]
    assert spans(topic_of(j).l1_of(1)) == [(20, 29), (30, 39)]  # the start cuts the first one, which stays
    assert j.state.dropped[["partition", "base", "dropped_ms"]].tolist() == [
        (0, 0, 70),
        (0, 10, 70),
        (1, 0, 70),
        (1, 10, 70),
    ]
    assert j.state.topic(REVISION).totals().records == 80 - 45


def test_a_log_start_never_goes_down_nor_beyond_the_end() -> None:
    j = lifted(spare=1)
    j.apply(expired({0: 15}))
    assert "already begins at record 15" in why(j, expired({0: 15}))[0]
    assert "already begins at record 15" in why(j, expired({0: 14, 1: 7}))[0]
    assert why(j, expired({0: 51})) == {0: "it has no record 50: its next one will be 50"}
    assert why(j, expired({9: 1})) == {9: "it has no record 0: its next one will be 0"}
    left = expired({0: 14, 1: 7}).without({(REVISION, 0): ""})
    assert left is not None
    j.apply(left)
    assert j.state.topic(REVISION).view(1).log_start_offset == 7


def test_extents_wholly_below_the_start_leave_and_raise_the_bound() -> None:
    j = lifted(objects=1, spare=2)
    j.land(extents_of(9, {0: 10, 1: 10}, key=key_of(9)))
    j.apply(Advance(11))
    j.apply(Advance(12))
    assert gc_epoch_of(j.state, REVISION, 0) == EPOCH - 1
    j.apply(expired({0: 30, 1: 25}))
    zero, one = (j.state.topic(REVISION).view(p) for p in (0, 1))
    assert (zero.last_reconciled_offset, zero.log_start_offset, zero.next_offset) == (29, 30, 40)
    assert (one.last_reconciled_offset, one.log_start_offset) == (19, 25)  # the start cuts an extent, which stays whole
    assert [e.base_offset for e in j.state.topic(REVISION).extents(0)] == [30]
    assert [e.base_offset for e in j.state.topic(REVISION).extents(1)] == [20, 30]
    assert (gc_epoch_of(j.state, REVISION, 0), gc_epoch_of(j.state, REVISION, 1)) == (8, EPOCH - 1)
    assert [len(o.extents) for o in topic_of(j).objects] == [1, 2]  # an object leaves with its last extent
    assert len(topic_of(j).l1) == 0


def test_after_a_start_among_unreconciled_records_the_next_range_continues() -> None:
    j = lifted(partitions=1, objects=1, spare=2)
    zombie = reconciled(j.state, {0: 19}, epoch=EPOCH)
    j.apply(expired({0: 25}))
    assert "not next" in why(j, zombie)[0]
    j.reconcile({0: 29}, epoch=EPOCH)
    assert spans(topic_of(j).l1) == [(20, 29)]
    assert j.state.topic(REVISION).view(0).log_start_offset == 25
    j.apply(expired({0: 30}))
    assert len(topic_of(j).l1) == 0
    assert j.state.topic(REVISION).view(0).unreconciled_records == 0
    j.land(extents_of(EPOCH, {0: 5}, key=key_of(EPOCH, 77)))
    j.reconcile({0: 34}, epoch=EPOCH)
    assert spans(topic_of(j).l1) == [(30, 34)]


def test_an_expiry_that_cannot_be_meant_is_refused_as_a_whole() -> None:
    j = lifted()
    rows = topic_of(j).l1_of(0)
    wrong: list[tuple[dict[int, int], dict[str, Rows]]] = [
        ({0: -1}, {}),
        ({-1: 5}, {}),
        ({}, {}),
        ({0: 30}, {"removed": rows[:1]}),  # an expiry does not list the rows that leave
        ({0: 30}, {"added": rows[:1]}),
    ]
    for starts, more in wrong:
        with pytest.raises(UsageError):
            expired(starts, **more)
    for twice in ([(0, 5), (0, 6)], [(1, 5), (0, 5)]):
        with pytest.raises(UsageError):
            edit(EXPIRE, 0, starts=np.array(twice, START))


def test_an_expiry_of_another_topic_with_the_same_revision_deletes_nothing() -> None:
    """Hazard 10: a restored controller log assigns a revision a second time."""
    j = lifted()
    assert why(j, expired({0: 10}, "another")) == {0: ANOTHER_TOPIC}


# -- the fence, closed topics and purges ----------------------------------------------------------------------------------


def test_the_l1_fence_only_rises() -> None:
    j = Journal()
    j.apply(FenceL1(5))
    for epoch in (5, 4, -1):
        with pytest.raises(CorruptObjectError):
            j.apply(FenceL1(epoch))
    assert j.state.l1_fence == 5


def test_an_older_log_is_accepted_once_at_a_fresh_epoch() -> None:
    """Hazard 38: each acceptance of an older log needs a fresh epoch and a higher number."""
    j = Journal()
    j.apply(FenceL1(5))
    j.apply(Barrier(6))
    for wrong in (SetBack(5, 1), SetBack(7, 0)):
        with pytest.raises(CorruptObjectError):
            j.apply(wrong)
    j.apply(SetBack(7, 1))
    assert (j.state.window, j.state.l1_fence, j.state.kept_below, j.state.set_backs) == (EpochWindow(7, 7), 7, 7, 1)
    with pytest.raises(CorruptObjectError, match="does not follow number 1"):
        j.apply(SetBack(8, 1))
    j.apply(SetBack(8, 4))
    assert j.state.set_backs == 4


def test_what_is_stamped_below_the_fence_is_never_named() -> None:
    """Hazard 25: vacuum deletes objects that are stamped below the fence and that the journal does not name."""
    j = lifted(spare=1)
    j.apply(FenceL1(EPOCH))
    for entry in (reconciled(j.state, {0: 49}, epoch=EPOCH - 1), merged(j, 0, 1, epoch=EPOCH - 1)):
        with pytest.raises(CorruptObjectError, match="fenced off all below 7; none of them counts: run it again"):
            j.apply(entry)


def test_a_closed_topics_rows_are_dropped_and_it_stays_closed() -> None:
    """Hazard 6: the closed topic's objects must become garbage, once."""
    j = lifted()
    rows = topic_of(j).l1
    j.apply(merged(j, 0, 1))
    j.apply(Closed([ClosedTopic(REVISION, TOPIC_ID)]), time_ms=90)
    assert j.state.topics == {}
    assert sorted(j.state.dropped[["partition", "base", "last"]].tolist()) == sorted(
        [(0, 0, 19), *((p, base, base + 9) for p in (0, 1) for base in (0, 10, 20, 30))]
    )
    assert j.state.has_named(REVISION, rows).all()
    j.apply(Purged(pack(np.unique(j.state.dropped["name"]))))
    assert not j.state.has_dropped(REVISION)
    assert len(j.state.dropped) == 0
    again = MACHINE.decode(MACHINE.encode(j.state), "a copy")
    with pytest.raises(PartitionClosedError):
        Admission(again.window, again.topics, again.producers, again.closed).admit(extents_of(9))
    j.apply(Closed([ClosedTopic(REVISION)]))  # as a second deleter closes it


def test_topics_are_closed_together_or_not_at_all() -> None:
    j = lifted()
    before = MACHINE.encode(j.state)
    for topics in ([], [ClosedTopic(5), ClosedTopic(5)], [ClosedTopic(5), ClosedTopic(REVISION, "another")]):
        with pytest.raises(CorruptObjectError, match="should never have landed"):
            j.apply(Closed(topics))
        assert MACHINE.encode(j.state) == before
    j.apply(Closed([ClosedTopic(9), ClosedTopic(REVISION, TOPIC_ID), ClosedTopic(5)]))
    assert j.state.closed_revisions.tolist() == sorted([5, 9, REVISION])
    assert j.state.topics == {}


def test_a_purge_forgets_what_it_names_and_nothing_else() -> None:
    j = lifted()
    j.apply(merged(j, 0, 2), time_ms=10)
    j.apply(merged(j, 0, 1, name=1001), time_ms=20)
    assert not j.state.is_dropped_before(9, 99).any()
    assert not j.state.is_dropped_before(10, EPOCH - 1).any()
    assert spans(j.state.dropped[j.state.is_dropped_before(10, EPOCH)]) == [(0, 9), (10, 19), (20, 29)]
    j.apply(Purged(pack(j.state.dropped["name"][1:3])))
    assert spans(j.state.dropped) == [(0, 9), (0, 29), (30, 39)]
    with pytest.raises(CorruptObjectError, match="purges nothing"):
        j.apply(Purged(pack(np.array([b"?" * 16], NAME))))


def test_a_checkpoint_holds_all_of_it() -> None:
    j = lifted(spare=1)
    j.apply(merged(j, 0, 1))
    j.apply(expired({1: 15}))
    j.apply(FenceL1(EPOCH))
    j.apply(Closed([ClosedTopic(99)]))
    j.apply(SetBack(EPOCH + 9, 2))
    copy = MACHINE.decode(MACHINE.encode(j.state), "a copy")
    assert MACHINE.encode(copy) == MACHINE.encode(j.state)
    assert (copy.l1_fence, copy.closed(99), len(copy.dropped)) == (EPOCH + 9, True, 3)
    assert (copy.set_backs, copy.kept_below) == (2, EPOCH + 9)
    assert copy.topics[REVISION].l1.tolist() == topic_of(j).l1.tolist()


@pytest.mark.parametrize(
    ("field", "value"),
    [(8, b"x"), (8, pack(np.array([5, 3], OFFSET))), (9, -1), (10, b"\xff" * 112), (11, -1), (12, 1)],
)
def test_a_checkpoint_with_impossible_dropped_rows_or_fences_is_refused(field: int, value: Any) -> None:
    checkpoint, rows = parts_of(MACHINE.encode(lifted().state))
    checkpoint[field] = value
    with pytest.raises(CorruptObjectError):
        MACHINE.decode(of_parts(checkpoint, rows), "the checkpoint")


def test_a_checkpoint_whose_sums_are_not_those_of_its_rows_is_refused() -> None:
    checkpoint, rows = parts_of(MACHINE.encode(lifted().state))
    assert checkpoint[4][0][9] == [8, 800, 0, 0]
    for place in range(4):
        wrong = [n + (at == place) for at, n in enumerate([8, 800, 0, 0])]
        head = [*checkpoint[:4], [[*checkpoint[4][0][:9], wrong, *checkpoint[4][0][10:]]], *checkpoint[5:]]
        with pytest.raises(CorruptObjectError, match="do not add up"):
            MACHINE.decode(of_parts(head, rows), "the checkpoint")


def test_a_checkpoint_whose_lists_of_l1_objects_contradict_its_offsets_is_refused() -> None:
    j = lifted(spare=1)
    j.apply(expired({1: 15}))
    topic = topic_of(j)
    rows, log_start, done = topic.l1, topic.log_start, topic.reconciled

    def refused(**wrong: Any) -> None:
        saved = {name: getattr(topic, name) for name in wrong}
        for name, value in wrong.items():
            setattr(topic, name, value)
        body = MACHINE.encode(j.state)
        for name, value in saved.items():
            setattr(topic, name, value)
        with pytest.raises(
            CorruptObjectError, match=f"the L1 objects of revision {REVISION} are not those of the records"
        ):
            MACHINE.decode(body, "the checkpoint")

    refused(listed=RowList(rows[:0]))  # 40 records are reconciled
    refused(listed=RowList(rows[rows["partition"] == 0]))
    refused(listed=RowList(rows[rows["base"] > 0]))  # partition 0 begins at record 0
    refused(listed=RowList(rows[rows["last"] < 39]))  # partition 0 has 40 records in L1
    refused(listed=RowList(np.concatenate([rows, l1_rows(l1_row(5, 0, 9, epoch=EPOCH, name=77))])))
    refused(log_start=np.array([0, 9], OFFSET))  # the list of partition 1 begins at record 10
    refused(log_start=np.array([0, 45], OFFSET))  # all records in L1 are deleted, but their rows are listed
    MACHINE.decode(MACHINE.encode(j.state), "the checkpoint")
    assert (log_start.tolist(), done.tolist()) == ([0, 15], [39, 39])


def in_l1(*ranges: tuple[int, int, int]) -> Rows:
    return l1_rows(*(l1_row(p, base, last, epoch=EPOCH, name=100 + last) for p, base, last in ranges))


@pytest.mark.parametrize(
    ("files", "log_start"),
    [
        (in_l1((0, 5, 9)), 0),
        (in_l1((0, 0, 4), (0, 6, 9)), 0),
        (in_l1((0, 0, 4), (0, 4, 9)), 0),
        (in_l1((0, 0, 4), (0, 0, 4), (0, 5, 9)), 0),
        (in_l1((0, 0, 4)), 0),
        (in_l1((0, 0, 4), (0, 5, 12)), 0),
        (in_l1(), 0),
        (in_l1((0, 0, 9), (3, 0, 9)), 0),  # partition 3 has no offsets
        (in_l1((0, 3, 9)), 2),  # record 2 is neither deleted nor in L1
    ],
)
def test_a_checkpoint_whose_l1_objects_leave_a_gap_or_overlap_is_refused(files: Rows, log_start: int) -> None:
    def checkpoint(files: Rows, log_start: int) -> bytes:
        j = Journal()
        j.land(extents_of(4, {0: 10, 2: 10}, key=key_of(4)))
        j.reconcile({0: 9, 2: 9})
        topic_of(j).listed = RowList(in_order(np.concatenate([files, in_l1((2, 0, 9))])))
        topic_of(j).log_start[0] = log_start
        return MACHINE.encode(j.state)

    with pytest.raises(CorruptObjectError, match="L1"):
        MACHINE.decode(checkpoint(files, log_start), "the checkpoint")
    for right in ((in_l1((0, 0, 9)), 0), (in_l1((0, 3, 9)), 3)):
        MACHINE.decode(checkpoint(*right), "the checkpoint")


def test_an_empty_checkpoint_without_l1_objects_is_read() -> None:
    j = lifted(spare=1)
    j.apply(expired({0: 40, 1: 50}))
    assert len(MACHINE.decode(MACHINE.encode(j.state), "the checkpoint").topics[REVISION].l1) == 0
    j.apply(expired({0: 45}))  # amid records that are not in L1
    copy = MACHINE.decode(MACHINE.encode(j.state), "the checkpoint")
    assert copy.topic(REVISION).view(0).log_start_offset == 45


def test_a_merged_object_wholly_below_the_log_start_is_refused() -> None:
    j = lifted(1, 3)
    j.apply(expired({0: 5}))
    rows = topic_of(j).l1_of(0)[:2]
    for middle, refused in ((4, True), (5, False)):
        files = l1_rows(l1_row(0, 0, middle, epoch=EPOCH, name=1000), l1_row(0, middle + 1, 19, epoch=EPOCH, name=1001))
        assert why(j, edit(MERGE, EPOCH, removed=rows, added=files)) == ({0: BELOW} if refused else {})


# -- random histories -----------------------------------------------------------------------------------------------------


class Books:
    """A model of the L1 lists, built from the entries alone."""

    def __init__(self) -> None:
        self.lists: dict[int, list[tuple[int, int, bytes]]] = {0: [], 1: []}
        self.dropped: set[bytes] = set()
        self.purged: set[bytes] = set()

    def check(self, state: JournalState) -> None:
        topic = state.topics.get(REVISION)
        named = set()
        for partition, rows in self.lists.items():
            if topic is None:
                continue
            found = [(int(r["base"]), int(r["last"]), bytes(r["name"])) for r in topic.l1_of(partition)]
            assert found == rows
            named |= {bytes(name) for _, _, name in rows}
            view = state.topic(REVISION).view(partition)
            assert all(a[1] + 1 == b[0] for a, b in itertools.pairwise(rows))
            if rows:
                assert rows[-1][1] == view.last_reconciled_offset
            elif view.log_start_offset <= view.last_reconciled_offset:
                raise AssertionError("the list of L1 objects lacks records that are kept")
        in_state = {bytes(r["name"]) for r in state.dropped}
        assert not in_state & named
        assert not in_state & self.purged
        assert len(np.unique(state.dropped["name"])) == len(state.dropped)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 10**6)), max_size=40))
def test_a_history_drops_nothing_twice_and_lowers_no_bound(
    steps: list[tuple[int, int]],
) -> None:
    j, books, number = Journal(), Books(), itertools.count(10_000)
    epoch = 5
    bounds = {0: 0, 1: 0}
    for kind, seed in steps:
        rng = random.Random(seed)
        p = rng.randrange(2)
        view = j.state.topic(REVISION).view(p)
        topic = j.state.topics.get(REVISION)
        if kind == 0:
            epoch += rng.randrange(2)
            j.land(extents_of(epoch, {p: rng.randrange(1, 5)}, key=key_of(epoch, next(number))))
        elif kind == 1 and (extents := j.state.topic(REVISION).extents(p)):
            last = extents[rng.randrange(len(extents))].last_offset
            files = reconciled(j.state, {p: last}, epoch=epoch).topics[0].change.added.copy()
            files["name"][0] = uuid.UUID(int=next(number)).bytes
            j.apply(edit(RECONCILE, epoch, added=files))
            books.lists[p].append((int(files["base"][0]), last, bytes(files["name"][0])))
        elif kind == 2 and topic is not None and len(topic.l1_of(p)) > 1:
            first = rng.randrange(len(topic.l1_of(p)) - 1)
            last = rng.randrange(first + 1, len(topic.l1_of(p)))
            entry = merged(j, first, last, partition=p, name=next(number), epoch=epoch)
            gone = books.lists[p][first : last + 1]
            name = bytes(entry.topics[0].change.added["name"][0])
            j.apply(entry)
            books.lists[p][first : last + 1] = [(gone[0][0], gone[-1][1], name)]
            books.dropped |= {n for _, _, n in gone}
            assert fits(j.state, entry)  # the merge does not fit a second time
        elif kind == 3 and view.next_offset > view.log_start_offset:
            start = rng.randrange(view.log_start_offset + 1, view.next_offset + 1)
            j.apply(expired({p: start}))
            books.lists[p] = [f for f in books.lists[p] if f[1] >= start]
            assert j.state.topic(REVISION).view(p).log_start_offset == start
        elif kind == 4 and len(j.state.dropped):
            names = j.state.dropped["name"][: rng.randrange(1, 4)]
            books.purged |= {bytes(n) for n in names}
            j.apply(Purged(pack(names)))
        elif kind == 5 and epoch > j.state.max_applied_epoch:
            j.apply(Advance(epoch))
        else:
            epoch += 1
            j.apply(Advance(epoch))
        books.check(j.state)
        for partition in (0, 1):
            bound = bound_of(j.state, REVISION, partition)
            assert bound >= bounds[partition]
            bounds[partition] = bound
    assert MACHINE.encode(MACHINE.decode(MACHINE.encode(j.state), "")) == MACHINE.encode(j.state)


def test_an_entry_for_a_hundred_thousand_partitions_is_a_few_columns() -> None:
    """Counts calls rather than seconds: one call for each partition would make 100,000."""
    n = 100_000
    j = Journal()
    j.land(extents_of(EPOCH, dict.fromkeys(range(n), 2), key=key_of(EPOCH)))
    bases = np.arange(n)
    files = np.zeros(n, L1_ROW)
    files["partition"], files["last"], files["bytes"], files["epoch"] = bases, 1, 20, EPOCH
    files["name"] = np.frombuffer(np.c_[bases, bases].astype("<u8").tobytes(), NAME)
    calls = {}
    merge = files.copy()
    merge["name"] = np.frombuffer(np.c_[bases, bases + n].astype("<u8").tobytes(), NAME)
    starts = np.zeros(n, START)
    starts["partition"], starts["offset"] = bases, 2
    for name, entry in (
        ("reconciled", edit(RECONCILE, EPOCH, added=files)),
        ("merged", edit(MERGE, EPOCH, removed=files, added=merge)),
        ("expired", edit(EXPIRE, EPOCH, starts=starts)),
    ):
        profile = cProfile.Profile()
        profile.enable()
        j.apply(entry)
        profile.disable()
        calls[name] = sum(row[0] for row in pstats.Stats(profile).stats.values())  # type: ignore[attr-defined]
    assert max(calls.values()) < n / 4, calls
    assert (len(topic_of(j).l1), len(j.state.dropped)) == (0, 2 * n)
    assert in_order(j.state.dropped[:n])["partition"].tolist() == bases.tolist()
    j.apply(Closed([ClosedTopic(REVISION)]))
    assert len(MACHINE.decode(MACHINE.encode(j.state), "").dropped) == 2 * n
