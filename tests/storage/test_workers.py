"""Work receives the place and its part, and results come back in the order of the parts, even through several stages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from l0gc.storage.workers import LocalWorkers, Stage
from tests.support.memory_store import memory_cluster


def test_a_map_keeps_the_order_of_the_parts() -> None:
    cluster = memory_cluster()
    assert LocalWorkers(cluster).map(lambda place, n: (place is cluster, n * n), [3, 1, 2]) == [
        (True, 9),
        (True, 1),
        (True, 4),
    ]


def test_a_reduction_of_nothing_is_none() -> None:
    workers = LocalWorkers(memory_cluster())
    assert workers.reduce(lambda place, n: n, [], int.__add__) is None
    assert workers.reduce(lambda place, n: n, [1, 2, 3], int.__add__) == 6


def test_a_flow_sends_each_item_to_the_task_that_it_names() -> None:
    def by_remainder(place: object, numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
        return ((n % 3, n) for n in numbers)

    def sums(place: object, numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
        yield 0, sum(numbers)

    def sort(place: object, found: Iterable[int]) -> Iterator[int]:
        return iter(sorted(found))

    stages = [Stage(2, by_remainder), Stage(3, sums), Stage(1, sort)]
    assert LocalWorkers(memory_cluster()).flow(range(10), *stages) == [12, 15, 18]


def test_a_stage_of_several_tasks_begins_when_the_one_before_has_ended() -> None:
    order: list[str] = []

    def first(place: object, numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
        for n in numbers:
            order.append(f"first {n}")
            yield n, n

    def second(place: object, numbers: Iterable[int]) -> Iterator[int]:
        order.append("second")
        return iter(numbers)

    LocalWorkers(memory_cluster()).flow([0, 1], Stage(1, first), Stage(2, second))
    assert order == ["first 0", "first 1", "second", "second"]
