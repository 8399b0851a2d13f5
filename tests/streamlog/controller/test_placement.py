"""The placement of a topic's partitions: the log alone decides, and fills the emptiest journals with unbroken runs."""

from __future__ import annotations

import tracemalloc
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from l0gc.errors import UsageError
from l0gc.streamlog.controller.entries import MAX_PARTITIONS, Bootstrap, DeleteTopic
from l0gc.streamlog.controller.state import ControllerState, PartitionRange, Topic
from tests.support.controller import FOUNDED, MACHINE, created, landed, state_of

PLANS = st.lists(
    st.one_of(
        st.tuples(st.integers(1, 50), st.integers(1, 5)),  # a topic with this many partitions, in this many journals
        st.integers(0, 20),  # deletes the topic with this number
    ),
    max_size=30,
)


def held(state: ControllerState) -> Counter[int]:
    """Count the partitions of each journal, one by one."""
    return Counter(t.journal_of(p) for t in state.topics.values() for p in range(t.partitions))


@given(PLANS)
def test_a_topic_goes_to_the_emptiest_lowest_numbered_journals(
    plan: list[tuple[int, int] | int],
) -> None:
    states = [state_of(Bootstrap("c", 4, journals=5)) for _ in range(2)]
    state = states[0]
    for step in plan:
        if isinstance(step, int):
            if f"t{step}" not in state.topics:
                continue
            entry = landed(state.epoch + 1, DeleteTopic(f"t{step}", state.topic(f"t{step}").revision))
            for s in states:
                MACHINE.apply(s, entry)
            continue
        partitions, journals = step[0], min(step)
        before = held(state)
        name = f"t{len(state.topics) + len(state.deleted)}"
        entry = landed(state.epoch + 1, created(name, partitions, journals))
        for s in states:
            MACHINE.apply(s, entry)
        topic = state.topic(name)
        assert list(topic.journals) == sorted(range(5), key=lambda j: (before[j], j))[:journals]
        assert states[1] == state
    assert state.partition_count == held(state).total()
    assert state.journals_in_use() == sorted(held(state))


@given(st.integers(1, 300), st.integers(1, 20), st.data())
def test_runs_are_consecutive_complete_and_even(partitions: int, journals: int, data: st.DataObject) -> None:
    journals = min(partitions, journals)
    numbers = tuple(data.draw(st.permutations(range(20))))[:journals]
    topic = Topic("t", 1, partitions, numbers, "id")
    ranges = topic.partition_ranges()
    assert [r.journal for r in ranges] == list(numbers)
    assert [p for r in ranges for p in range(r.first, r.first + r.count)] == list(range(partitions))
    assert max(r.count for r in ranges) - min(r.count for r in ranges) <= 1
    for r in ranges:
        assert {topic.journal_of(p) for p in range(r.first, r.first + r.count)} == {r.journal}
        assert topic.range_in(r.journal) == r
    assert topic.range_in(99) is None


def test_ten_partitions_are_split_over_four_journals_as_evenly_as_can_be() -> None:
    topic = state_of(FOUNDED, created("s"), created("t", 10, 4)).topic("t")
    assert topic.partition_ranges() == [
        PartitionRange(1, 0, 2),
        PartitionRange(2, 2, 3),
        PartitionRange(3, 5, 2),
        PartitionRange(0, 7, 3),
    ]


def test_a_journal_knows_its_topics_by_name() -> None:
    state = state_of(FOUNDED, created("u", 4, 4), created("t", 2), created("gone"), DeleteTopic("gone", 3))
    assert [(t.name, run) for t, run in state.topics_of(0)] == [
        ("t", PartitionRange(0, 0, 2)),
        ("u", PartitionRange(0, 0, 1)),
    ]
    assert [t.name for t, _ in state.topics_of(1)] == ["u"]
    assert state.topics_of(4) == []


def test_a_deleted_topic_makes_room() -> None:
    state = state_of(FOUNDED, created("a", 100), created("b", 4, 4), DeleteTopic("a", 1), created("c"))
    assert state.topic("c").journals == (0,)


@pytest.mark.parametrize("partition", [-1, 3, 10**9])
def test_a_partition_that_the_topic_lacks_is_a_usage_error(partition: int) -> None:
    topic = state_of(FOUNDED, created("t", 3)).topic("t")
    with pytest.raises(UsageError, match="'t' has the partitions 0 to 2, not"):
        topic.journal_of(partition)
    with pytest.raises(UsageError, match="'t' has the partitions 0 to 2, not"):
        topic.id(partition)


def test_partitions_cost_nothing() -> None:
    """A hundred topics of a million partitions weigh as much as a hundred topics of one partition."""
    weights = []
    for partitions in (1, MAX_PARTITIONS):
        state = state_of(FOUNDED)
        tracemalloc.start()
        for i in range(100):
            MACHINE.apply(state, landed(i + 1, created(f"t{i}", partitions)))
            state.copy()
        body = MACHINE.encode(state)
        assert MACHINE.decode(body, "") == state
        weights.append((len(body), tracemalloc.get_traced_memory()[1]))
        tracemalloc.stop()
        assert state.partition_count == 100 * partitions
    (body_of_few, peak_of_few), (body_of_many, peak_of_many) = weights
    assert body_of_many <= body_of_few + 100 * 4  # each number takes up to 4 bytes
    assert peak_of_many <= 1.2 * peak_of_few
