"""What is computed in columns is what `compute` makes of all partitions and all reports."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from l0gc.keys import PartitionId
from l0gc.watermark.compute import PartitionReport, compute
from l0gc.watermark.lowest import compute_of, lowest, partitions_table
from l0gc.watermark.reports import SCHEMA, best_of, rows_of, table_of
from tests.support.reports import a_report, best_reports

A, B = PartitionId("t", 3, 0), PartitionId("t", 3, 1)


def a_case(rng: random.Random) -> tuple[int, list[PartitionId], list[PartitionReport]]:
    """A snapshot, and reports of some of its partitions, of partitions that went, and of former incarnations."""
    epoch = rng.randrange(3, 40)
    topics = {f"t{i}": rng.randrange(1, epoch + 1) for i in range(rng.randrange(4))}
    ids = [PartitionId(t, r, p) for t, r in topics.items() for p in range(rng.randrange(1, 9))]
    strangers = [PartitionId(p.topic, p.revision - 1, p.partition) for p in ids] + [PartitionId("gone", 1, 0)]
    reports = []
    for p in rng.choices(ids + strangers, k=rng.randrange(30)):
        report = a_report("c", p, rng.randrange(p.revision - 1, 45))
        reports.append(report)
    return epoch, ids, reports


@given(st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_columns_give_what_compute_gives(rng: random.Random) -> None:
    epoch, ids, reports = a_case(rng)
    assert compute_of(epoch, partitions_table(ids), best_of(table_of(reports))) == compute(
        epoch, ids, best_reports(reports)
    )


@given(st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_the_best_rows_are_the_highest_of_each_partition(rng: random.Random) -> None:
    _, _, reports = a_case(rng)
    assert {r.id: r for r in rows_of(best_of(table_of(reports)))} == best_reports(reports)


def test_of_equal_gc_epochs_the_later_report_is_the_best() -> None:
    older = PartitionReport("c", "t", 3, 0, 5, 6, 6, 9, -1, 6, 1, 0)
    newer = PartitionReport("c", "t", 3, 0, 5, 8, 6, 12, 2, None, 4, 0)
    assert rows_of(best_of(table_of([newer, older]))) == [newer]


def test_the_lowest_come_first_and_partitions_without_a_report_stand_at_their_revision() -> None:
    found = lowest(partitions_table([A, B]), best_of(table_of([a_report("c", A, 9)])), 5)
    assert list(found) == [B, A]
    assert found[B] is None


def test_a_partition_without_a_report_comes_before_one_that_is_done_with_its_revision() -> None:
    assert list(lowest(partitions_table([A, B]), table_of([a_report("c", A, 3)]), 1)) == [B]


def test_without_partitions_m_is_the_epoch() -> None:
    assert compute_of(7, partitions_table([]), SCHEMA.empty_table()).watermark == 7


def test_a_report_of_a_former_incarnation_says_nothing_about_a_partition() -> None:
    """Hazard 6."""
    again = PartitionId(A.topic, A.revision + 5, A.partition)
    found = lowest(partitions_table([again]), best_of(table_of([a_report("c", A, 9)])), 5)
    assert found == {again: None}
