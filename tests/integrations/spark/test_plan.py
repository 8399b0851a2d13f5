"""Tasks together read exactly the planned ranges, in order, and none reads much more than another."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from l0gc.integrations.spark.options import read_options
from l0gc.integrations.spark.plan import Part, Planner, Ranges, Slice, split
from l0gc.streamlog.controller.state import PartitionRange, Topic
from tests.support.expire import cluster_with
from tests.support.memory_store import topic_in_memory
from tests.support.spark_source import URL

TOPIC: Topic = topic_in_memory(8).controller.snapshot().topic("events")


def part(ranges: list[tuple[int, int, float]], cuts: dict[int, list[tuple[int, float]]] | None = None) -> Part:
    """Return a part from each partition's first offset, end and weight."""
    starts, ends, weights = (np.array(c) for c in zip(*ranges, strict=True))
    return Part(TOPIC, PartitionRange(2, 5, len(ranges)), starts, ends, weights.astype(float), False, cuts or {})


def read_by(slices: list[Slice]) -> list[tuple[int, int]]:
    """Return partition and offset of every record, in the order of the tasks."""
    return [
        (int(r["partition"]), o) for s in slices for r in s.ranges() for o in range(int(r["base"]), int(r["last"]) + 1)
    ]


ranges = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 20), st.floats(0, 1000)).map(lambda r: (r[0], r[0] + r[1] - 3, r[2])),
    min_size=1,
    max_size=8,
)


@given(ranges, st.integers(1, 30), st.integers(1, 2000))
def test_the_tasks_read_each_record_once_and_each_partition_in_order(
    planned: list[tuple[int, int, float]], tasks: int, size: int
) -> None:
    slices = split([part(planned)], tasks, slice_bytes=size)
    expected = [(5 + p, o) for p, (start, end, _) in enumerate(planned) for o in range(start, end)]
    assert read_by(slices) == expected
    assert all(s.journal == 2 for s in slices)


def test_a_large_partition_is_cut_where_its_l1_objects_end() -> None:
    cuts = [(30, 100.0), (70, 210.0), (100, 300.0)]
    slices = split([part([(0, 100, 300.0)], {0: cuts})], slice_bytes=100)
    assert [(int(r["base"]), int(r["last"])) for s in slices for r in s.ranges()] == [(0, 29), (30, 69), (70, 99)]


def test_small_partitions_share_a_task_and_a_large_one_shares_with_nobody() -> None:
    slices = split([part([(0, 5, 10.0), (0, 5, 10.0), (0, 50, 200.0), (0, 5, 10.0)])], slice_bytes=100)
    assert [[int(r["partition"]) for r in s.ranges()] for s in slices] == [[5, 6], [7], [7], [8]]


@pytest.mark.parametrize(("mib", "cores", "tasks"), [(5.4, 2, 2), (5.4, 4, 4), (0.1, 4, 1), (40.0, 2, 8)])
def test_each_core_gets_a_task_if_there_is_enough_to_read(mib: float, cores: int, tasks: int) -> None:
    slices = split([part([(0, 50, mib * 2**20)] * 8)], cores=cores)
    assert [len(s.ranges()) for s in slices] == [8 // tasks] * tasks
    assert len(split([part([(0, 50, mib * 2**20)] * 8)], 8, cores)) == 8, "minPartitions says how many it likes"


def test_parts_of_equal_weight_fill_their_share_though_it_was_rounded() -> None:
    planned = part([(0, 3, 1.0)] * 12)
    for n in range(1, 400):
        planned.bytes = np.full(12, 2**20 + n / 10)
        assert [len(s.ranges()) for s in split([planned])] == [12]


@pytest.mark.parametrize("first", [0.98, 1.02])
def test_partitions_of_similar_weight_need_at_most_one_task_per_core(first: float) -> None:
    weights = [first, 1.01, 0.99, 1.0, 1.0, 1.0, 0.99, 1.01]
    slices = split([part([(0, 50, w * 2**22) for w in weights])], cores=2)
    assert [len(s.ranges()) for s in slices] == [4, 4]


def test_nothing_to_read_makes_no_task() -> None:
    assert split([part([(5, 5, 0.0), (7, 3, 9.0)])], 4) == []


def test_the_first_and_the_last_record_of_an_object_weigh_their_share() -> None:
    cluster, topic = cluster_with(2, partitions=3)
    options = read_options({"url": URL, "subscribe": "events"}, streaming=False)
    ranges = Ranges(topic, np.array([0, 9, 9]), np.array([1, 10, 11]))
    (part,) = Planner(cluster, options, cluster.journal).parts([ranges], {})
    first, last, both = part.bytes.tolist()
    assert first == pytest.approx(last, rel=0.1)
    assert both == pytest.approx(first + last, rel=0.1)
    assert not part.reads_l0
