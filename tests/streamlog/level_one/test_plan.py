"""What a run reads, and what it may commit."""

from __future__ import annotations

import pytest

from l0gc.errors import CorruptObjectError
from l0gc.keys import PartitionId
from l0gc.streamlog.journal.entries import L1File, Placeholder, Unreconciled
from l0gc.streamlog.journal.state import PartitionState
from l0gc.streamlog.level_one.plan import ExtentRead, ObjectRead, PartitionPlan, commit_entry, make_plan, split


def partition(number: int, *extents: tuple[str, int, int], reconciled: int = -1) -> tuple[PartitionId, PartitionState]:
    """A partition whose unreconciled extents are (key, records, epoch)."""
    state = PartitionState.new(5)
    state.last_reconciled_offset = reconciled
    at = reconciled + 1
    for n, (key, records, epoch) in enumerate(extents):
        placeholder = Placeholder(key, 100 * number, 50, records, 0, at)
        state.placeholders.append(Unreconciled(placeholder, epoch, 10 + n))
        at += records
    state.next_offset = at
    return PartitionId("events", 5, number), state


PLAN = PartitionPlan(0, "events", 5, 2, base_offset=10, last_offset=19, log_offset=7)


def test_each_object_is_read_once_for_all_partitions() -> None:
    plan = make_plan([partition(0, ("b", 3, 6), ("a", 2, 7)), partition(1, ("b", 4, 6), reconciled=9)])
    assert [(p.id.partition, p.base_offset, p.last_offset, p.log_offset) for p in plan.partitions] == [
        (0, 0, 4, 11),
        (1, 10, 13, 10),
    ]
    assert [(o.key, [(e.index, e.epoch, e.placeholder.records) for e in o.extents]) for o in plan.objects] == [
        ("a", [(0, 7, 2)]),
        ("b", [(0, 6, 3), (1, 6, 4)]),
    ]
    assert [o.bytes for o in plan.objects] == [50, 100]
    assert plan.records == 9


def test_what_is_reconciled_or_closed_is_left_out_and_the_rest_numbered_on() -> None:
    closed = partition(1, ("b", 1, 6))
    closed[1].closed = True
    plan = make_plan([partition(0, reconciled=4), closed, partition(2, ("b", 1, 6))])
    assert [(p.index, p.partition) for p in plan.partitions] == [(0, 2)]
    assert plan.objects[0].extents[0].index == 0
    assert make_plan([]).objects == []


def test_files_of_a_plan_become_its_entry_in_order() -> None:
    files = [L1File("b", 15, 19, 1), L1File("a", 10, 14, 1)]
    entry = commit_entry(PLAN, files)
    assert (entry.base_offset, entry.last_offset, entry.log_offset) == (10, 19, 7)
    assert [f.key for f in entry.files] == ["a", "b"]


@pytest.mark.parametrize(
    "ranges",
    [
        [],
        [(10, 18)],
        [(11, 19)],
        [(10, 20)],
        [(9, 19)],
        [(10, 14), (16, 19)],
        [(10, 14), (14, 19)],
        [(10, 19), (10, 19)],
        [(10, 19), (20, 24)],
        [(0, 9), (10, 19)],
        [(10, 19), (15, 19)],
    ],
)
def test_files_that_do_not_hold_exactly_the_plan_are_refused(ranges: list[tuple[int, int]]) -> None:
    files = [L1File(f"{a}-{b}", a, b, 1) for a, b in ranges]
    with pytest.raises(CorruptObjectError, match=r"partition events/2 hold .* not 10 to 19; nothing is committed"):
        commit_entry(PLAN, files)


def test_objects_are_split_by_bytes_without_loss() -> None:
    def read(n: int, size: int) -> ObjectRead:
        return ObjectRead(str(n), [ExtentRead(0, 5, Placeholder(str(n), 0, size, 1, 0, n))])

    objects = [read(n, size) for n, size in enumerate([90, 10, 10, 10, 30, 30])]
    groups = split(objects, 2)
    assert sorted(o.key for g in groups for o in g) == [str(n) for n in range(6)]
    assert [sum(o.bytes for o in g) for g in groups] == [90, 90]
    assert len(split(objects, 100)) == 6
    assert split([], 4) == [[]]
