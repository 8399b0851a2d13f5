"""Filters: what is taken leaves exactly the rows that Spark would have left, and what is narrowed never loses one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from l0gc.integrations.spark.filters import PushedFilters

MEANING: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: lambda a, b: a == b,
    EqualNullSafe: lambda a, b: a == b,
    GreaterThan: lambda a, b: a > b,
    GreaterThanOrEqual: lambda a, b: a >= b,
    LessThan: lambda a, b: a < b,
    LessThanOrEqual: lambda a, b: a <= b,
    In: lambda a, b: a in b,
}
T0 = datetime(2025, 1, 1, tzinfo=UTC)


def left(wanted: PushedFilters, partition: int, offset: int, ms: int) -> bool:
    """Whether a row is left by what was taken."""
    return (
        (wanted.partitions is None or partition in wanted.partitions)
        and wanted.partition_span[0] <= partition <= wanted.partition_span[1]
        and wanted.offsets[0] <= offset <= wanted.offsets[1]
        and wanted.times.first <= ms <= wanted.times.last
    )


def time_of(us: int) -> datetime:
    return T0 + timedelta(microseconds=us)


comparisons = st.sampled_from([EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual])
numbers = st.tuples(st.sampled_from(["partition", "offset"]), st.integers(-1, 4))
one_filter = st.one_of(
    st.builds(lambda kind, at: kind((at[0],), at[1]), comparisons, numbers),
    st.builds(
        lambda name, values: In((name,), values),  # a list, as Spark gives it
        st.sampled_from(["partition", "offset"]),
        st.lists(st.integers(-1, 4) | st.none(), max_size=3),
    ),
    st.builds(lambda kind, us: kind(("timestamp",), time_of(us)), comparisons, st.integers(-1500, 3500)),
)


@given(st.lists(one_filter, max_size=4))
def test_no_row_is_lost_and_what_is_taken_need_not_be_read_again(filters: list[Any]) -> None:
    wanted = PushedFilters()
    again = list(wanted.push(filters))
    for partition in range(4):
        for offset in range(4):
            for ms in range(-1, 4):
                row = {"partition": partition, "offset": offset, "timestamp": time_of(1000 * ms)}
                passes = [MEANING[type(f)](row[f.attribute[0]], f.value) for f in filters]
                is_left = left(wanted, partition, offset, ms + int(T0.timestamp() * 1000))
                assert is_left or not all(passes)
                taken = [p for f, p in zip(filters, passes, strict=True) if not any(f is a for a in again)]
                assert not is_left or all(taken)


@pytest.mark.parametrize(
    "f",
    [
        EqualTo(("value",), b"x"),
        EqualTo(("partition", "deeper"), 1),
        EqualTo(("partition",), True),
        EqualTo(("partition",), None),
        EqualTo(("partition",), 1.5),
        Not(EqualTo(("partition",), 1)),
        IsNull(("key",)),
        IsNotNull(("key",)),
        StringStartsWith(("topic",), "e"),
        GreaterThan(("timestamp",), datetime(2025, 1, 1)),
        GreaterThan(("topic",), "a"),
        In(("partition",), ()),
    ],
)
def test_what_is_not_understood_stays_with_spark_and_changes_nothing(f: Filter) -> None:
    wanted = PushedFilters()
    assert list(wanted.push([f])) == [f]
    assert wanted == PushedFilters()


def test_columns_that_are_never_null_and_topics_are_done_with() -> None:
    wanted = PushedFilters()
    filters: list[Filter] = [
        IsNotNull(("Partition",)),
        IsNotNull(("timestamp",)),
        EqualTo(("topic",), "a"),
        In(("topic",), ("a", "b")),
    ]
    assert list(wanted.push(filters)) == []
    assert wanted.has("a")
    assert not wanted.has("b")


def test_a_time_in_another_zone_is_the_same_time() -> None:
    here, there = PushedFilters(), PushedFilters()
    list(here.push([GreaterThanOrEqual(("timestamp",), T0)]))
    list(there.push([GreaterThanOrEqual(("timestamp",), T0.astimezone(timezone(timedelta(hours=9))))]))
    assert here == there
    assert here.times.first == int(T0.timestamp() * 1000)
