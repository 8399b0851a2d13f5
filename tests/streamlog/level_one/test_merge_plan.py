"""Runs of small neighbours become one object, chosen by size, so that few objects remain and bytes are seldom
rewritten.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from l0gc.errors import UsageError
from l0gc.streamlog.controller.state import Retention
from l0gc.streamlog.journal.row_list import RowList
from l0gc.streamlog.journal.rows import L1_ROW, Rows
from l0gc.streamlog.journal.topic import TopicState
from l0gc.streamlog.level_one.merge_plan import MERGED_AT_ONCE, MergeGroup, MergeRule, candidates, merges_of, spans
from tests.support.journal import l1_row, l1_rows

RULE = MergeRule(target_bytes=1000)
"""A rule that leaves objects of 500 bytes alone."""


def merged(sizes: Sequence[int], rule: MergeRule, *, grows: bool = True) -> list[int]:
    """Return the sizes after a merge of objects of these sizes."""
    after, at = [], 0
    for first, end in spans(sizes, rule, grows=grows):
        after += [*sizes[at:first], sum(sizes[first:end])]
        at = end
    return [*after, *sizes[at:]]


def rewritten(sizes: Sequence[int], rule: MergeRule, *, grows: bool = True) -> int:
    return sum(sum(sizes[first:end]) for first, end in spans(sizes, rule, grows=grows))


# -- runs -----------------------------------------------------------------------------------------------------------------


def test_what_stands_alone_or_is_large_stays_as_it_is() -> None:
    for sizes in ([], [1], [500], [499, 500, 499], [500, 1, 999, 1, 2000], [600, 600, 600, 600, 600]):
        assert merged(sizes, RULE, grows=False) == sizes


def test_a_run_that_a_large_object_ends_is_merged_once() -> None:
    assert merged([10, 20, 500, 7], RULE) == [30, 500, 7]
    assert merged([500, 10, 20, 30, 500, 1, 1], RULE) == [500, 60, 500, 1, 1]
    assert spans([30, 500, 7], RULE, grows=True) == []


def test_the_run_at_the_end_is_left_alone_while_it_is_short() -> None:
    assert merged([10, 10, 10], RULE) == [10, 10, 10]
    assert merged([10, 10, 10, 10], RULE) == [40]
    assert merged([10, 10, 10], RULE, grows=False) == [30]


def test_a_large_old_object_waits_until_what_comes_after_it_has_grown() -> None:
    assert merged([100, 10, 10, 10], RULE) == [100, 30]
    assert merged([100, 40, 10, 10], RULE) == [160]


def test_a_merged_object_never_exceeds_the_target() -> None:
    assert merged([400, 400, 400, 400, 400], RULE) == [800, 800, 400]
    assert merged([499] * 7, RULE) == [998, 998, 998, 499]
    assert merged([300] * 10, RULE) == [900, 900, 900, 300]


def test_a_history_of_tiny_objects_shrinks_at_once() -> None:
    rule = MergeRule()
    assert merged([2_000] * 3_000, rule) == [6_000_000]
    assert spans([2_000] * (MERGED_AT_ONCE + 1), rule, grows=True) == [(0, MERGED_AT_ONCE)]
    assert len(merged([2_000] * 10_000, rule)) == -(-10_000 // MERGED_AT_ONCE)


def test_a_rule_that_cannot_be_meant_is_refused() -> None:
    with pytest.raises(UsageError, match="target of 1 bytes"):
        MergeRule(target_bytes=1)
    with pytest.raises(UsageError, match="fan-in of 1"):
        MergeRule(fan_in=1)


SIZES = st.lists(st.integers(0, 1200), max_size=40)


@given(SIZES, st.booleans(), st.integers(2, 16))
def test_spans_are_ordered_small_and_fit_the_target(sizes: list[int], grows: bool, fan_in: int) -> None:
    rule, at = MergeRule(1000, fan_in), 0
    for first, end in spans(sizes, rule, grows=grows):
        assert at <= first
        assert first + 2 <= end
        assert sum(sizes[first:end]) <= 1000
        assert all(size < 500 for size in sizes[first:end])
        at = end


@given(SIZES, st.integers(2, 16))
def test_merging_again_and_again_ends_with_few_objects(sizes: list[int], fan_in: int) -> None:
    rule = MergeRule(1000, fan_in)
    while (after := merged(sizes, rule)) != sizes:
        assert len(after) < len(sizes)
        sizes = after
    large = [i for i, size in enumerate(sizes) if size >= 500]
    begins = [0, *(i + 1 for i in large)]
    runs = [sizes[first:end] for first, end in zip(begins, [*large, len(sizes)], strict=True)]
    assert all(len(run) < 2 for run in runs[:-1])
    tail = [max(1, size) for size in runs[-1]]
    assert len(tail) <= max(3.0, log(sum(tail) / min(tail), fan_in) + 1e-9 if tail else 0)


# -- a history of reconciles, with a merge after each --------------------------------------------------------------------


def history(sizes: Sequence[int], rule: MergeRule) -> tuple[int, float]:
    """Return the largest number of undersized objects after a merge, and how often a byte is rewritten on average."""
    objects: list[int] = []
    most = work = 0
    for size in sizes:
        objects.append(size)
        work += rewritten(objects, rule)
        objects = merged(objects, rule)
        most = max(most, sum(1 for o in objects if o < rule.enough_bytes))
    return most, work / sum(sizes)


def test_two_hundred_reconciles_merge_into_three_objects() -> None:
    """No order of merges that leaves three objects rewrites a record less than 6.3 times."""
    most, times = history([1000] * 200, MergeRule())
    assert most == 3
    assert times < 6.6


@pytest.mark.parametrize("number", [16, 64, 256, 1024, 4096])
def test_a_record_is_rewritten_about_as_often_as_the_history_doubles(number: int) -> None:
    most, times = history([1000] * number, MergeRule())
    assert most <= max(3, log(number, 4))
    assert times <= log(number, 2)


def test_reconciles_of_all_sizes_leave_few_objects_and_rewrite_little() -> None:
    random.seed(1)
    most, times = history([int(random.lognormvariate(10, 1.5)) + 1000 for _ in range(1500)], MergeRule())
    assert most <= 7
    assert times < 11


def test_a_larger_fan_in_leaves_fewer_objects() -> None:
    assert history([1000] * 4096, MergeRule(fan_in=16))[0] < history([1000] * 4096, MergeRule(fan_in=2))[0]


def test_large_reconciles_are_not_rewritten() -> None:
    assert history([70 << 20] * 50, MergeRule()) == (0, 0.0)
    assert history([40 << 20] * 50, MergeRule())[1] <= 1.1


# -- limits from a retention ----------------------------------------------------------------------------------------------


def test_only_objects_of_the_same_quarter_of_a_retention_are_merged() -> None:
    listed = Listed([10] * 9)
    listed.topic.l1["max_timestamp"] = [0, 99, 100, 150, 199, 1000, 1001, 1002, 1003]
    rule = RULE.within(Retention(ms=400))
    assert [m.sources["max_timestamp"].tolist() for m in listed.merges(rule)] == [
        [0, 99], [100, 150, 199], [1000, 1001, 1002, 1003],
    ]  # fmt: skip
    listed.topic.listed = RowList(listed.topic.l1[[0, 2, 5, 6, 7]])
    assert listed.merges(rule) == []


def test_a_retention_of_less_than_4_ms_still_limits_what_is_merged() -> None:
    assert [RULE.within(Retention(ms=ms)).window_ms for ms in (0, 3, 4, 8)] == [1, 1, 1, 2]


def test_no_object_becomes_larger_than_a_quarter_of_what_a_retention_keeps() -> None:
    assert RULE.within(Retention(bytes=400)).target_bytes == 100
    assert RULE.within(Retention(bytes=1 << 40)).target_bytes == 1000
    assert RULE.within(Retention()) == RULE
    assert merged([30] * 10, RULE.within(Retention(bytes=400))) == [90, 90, 90, 30]
    for retention in (Retention(0, 0), Retention(1, 1)):
        assert merged([10] * 10, RULE.within(retention)) == [10] * 10


def test_retention_keeps_at_most_a_quarter_more() -> None:
    """A reconcile and a merge run each minute, and records older than an hour expire."""
    rule, times = MergeRule().within(Retention(ms=3600)), 60
    objects: list[tuple[int, int, int]] = []  # first and last time, size
    for now in range(0, 100 * 3600, times):
        objects = [o for o in objects if now - o[1] <= 3600]
        objects.append((now, now, 1000))
        listed = Listed([size for _, _, size in objects])
        listed.topic.l1["max_timestamp"] = [last for _, last, _ in objects]
        for m in reversed(listed.merges(rule)):
            first, end = int(m.sources["base"][0]) // 10, int(m.sources["last"][-1]) // 10 + 1
            together = objects[first:end]
            objects[first:end] = [(together[0][0], together[-1][1], sum(size for _, _, size in together))]
        assert now - objects[0][0] <= 3600 * 1.25 + times
        assert len(objects) <= 8


# -- merges that are due in a topic ---------------------------------------------------------------------------------------


def rows_of(partition: int, sizes: Sequence[int], first: int = 0) -> Rows:
    """Return rows of L1 objects of ten records each."""
    columns = [
        (partition, 10 * i, 10 * i + 9, size, 0, 0, np.void(bytes([partition]) + i.to_bytes(15)), 0)
        for i, size in enumerate(sizes, first)
    ]
    return np.array(columns, L1_ROW)


class Listed:
    """The state of a topic whose partitions have L1 objects of these sizes."""

    def __init__(self, *partitions: Sequence[int]) -> None:
        rows = [rows_of(partition, sizes) for partition, sizes in enumerate(partitions)]
        self.topic = TopicState(7, "t", listed=RowList(np.concatenate(rows)))

    def merges(self, rule: MergeRule = RULE) -> list[MergeGroup]:
        return list(merges_of(self.topic, rule, lambda p: np.ones(len(p), bool)))

    def spans(self) -> list[tuple[int, int, int]]:
        """Return each merge's partition, and the numbers of its first object and of the one after its last."""
        return [(m.partition, m.sources["base"][0] // 10, m.sources["last"][-1] // 10 + 1) for m in self.merges()]


def test_each_partition_is_merged_by_itself() -> None:
    listed = Listed([10] * 4, [10] * 3, [500, 10], [10, 10, 600, 9], [])
    assert listed.spans() == [(0, 0, 4), (3, 0, 2)]
    first = listed.merges()[0]
    assert (first.revision, first.records, first.bytes) == (7, 40, 40)
    assert Listed([10] * 3, [500, 10, 10]).merges() == []


def test_only_the_partitions_that_are_wanted_are_planned() -> None:
    merges = list(merges_of(Listed(*[[10] * 4] * 3).topic, RULE, lambda p: p == 1))
    assert {m.partition for m in merges} == {1}


SIZES = st.lists(st.one_of(st.integers(1, 1200), st.integers(1, 130)), max_size=40)


@given(st.lists(SIZES, min_size=1, max_size=4), st.integers(0, 3))
def test_a_partition_is_examined_only_if_a_run_may_be_too_long(partitions: list[list[int]], window: int) -> None:
    rule = MergeRule(target_bytes=1000, window_ms=window)
    topic = Listed(*partitions).topic
    rows = topic.l1.copy()
    rows["max_timestamp"] = rows["base"] // 70
    topic.listed = RowList(rows)
    found = set(candidates(topic, rule).tolist())
    for partition in range(len(partitions)):
        mine = topic.l1_of(partition)
        parts = np.split(mine, np.flatnonzero(np.diff(mine["max_timestamp"] // (window or 2**62))) + 1)
        due = any(spans(part["bytes"].tolist(), rule, grows=part is parts[-1]) for part in parts)
        assert partition in found or not due
        assert due or partition not in found or len(parts[-1]) > 3


def test_objects_with_rows_of_shared_ones_between_them_are_not_joined() -> None:
    """The merged object would have a gap, which the journal refuses."""
    spans = [(n, n) for n in range(5)] + [(n, n) for n in range(20, 25)]
    rows = l1_rows(*(l1_row(0, base, last, size=10) for base, last in spans))
    topic = TopicState(1, "id", listed=RowList(rows))
    found = list(merges_of(topic, MergeRule(1000, 2), lambda partitions: np.ones(len(partitions), bool)))
    assert [(m.sources["base"][0], m.sources["last"][-1]) for m in found] == [(0, 4), (20, 24)]
