"""Following a topic: new records come once and in order, a look costs one request for each journal, and none is
skipped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from l0gc.errors import NotFoundError, OffsetOutOfRangeError, PartitionClosedError, UsageError
from l0gc.operations import Read
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.delete_records import delete_records
from l0gc.streamlog.follow import Follower
from l0gc.streamlog.topics import delete_topic
from tests.streamlog.test_reader import all_of, new_cluster, places, put, sweep
from tests.support.memory_store import another_process, store_of, topic_in_memory
from tests.support.reconcile import reconcile


class Looks:
    """Calls one function after each look, and stops the follower after the last one."""

    def __init__(self, *after: Callable[[], object]) -> None:
        self.stop, self._after = threading.Event(), list(after)

    def __call__(self) -> None:
        if self._after:
            self._after.pop(0)()
        else:
            self.stop.set()


def follow(cluster: ClusterHandles, looks: Looks | None = None, interval_s: float = 1, **wanted: Any) -> Follower:
    looks = looks or Looks()
    topic = cluster.controller.snapshot().topic("events")
    return Follower(cluster, topic, Read(**wanted), interval_s=interval_s, caught_up=looks, stop=looks.stop)


@pytest.mark.parametrize(("partitions", "journals"), [(1, 1), (7, 3)])
def test_records_come_once_and_in_order_as_they_land(tmp_path: Path, partitions: int, journals: int) -> None:
    cluster = new_cluster(tmp_path, partitions=partitions, journals=journals, reconciled=3, unreconciled=4)
    writer = another_process(cluster)

    def moved() -> None:
        put(writer, tmp_path, 7, 5)
        reconcile(writer)
        put(writer, tmp_path, 12, 2)
        sweep(writer)

    found = list(places(follow(cluster, Looks(lambda: None, moved, lambda: put(writer, tmp_path, 14, 1)))))
    assert sorted(found) == all_of(partitions, 0, 15)
    for p in range(partitions):
        assert [o for q, o in found if q == p] == [*range(15)]


def test_a_follower_continues_where_another_one_stopped(tmp_path: Path) -> None:
    cluster = new_cluster(tmp_path, partitions=3, unreconciled=4)
    first = follow(cluster, start={1: 2}, partition=None)
    begun = [next(first) for _ in range(5)]
    assert [(r.partition, r.offset) for r in begun] == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 2)]
    assert first.positions == {0: 4, 1: 3, 2: 0}
    put(another_process(cluster), tmp_path, 4, 1)
    rest = [*places(follow(another_process(cluster), start=first.positions))]
    assert rest == [(0, 4), (1, 3), (1, 4), *((2, o) for o in range(5))]


def test_positions_name_partitions_without_records_of_that_time(tmp_path: Path) -> None:
    cluster = new_cluster(tmp_path, partitions=2, unreconciled=4)
    store_of(cluster).clock.ms += 3_600_000
    followed = follow(cluster, from_time_ms=cluster.now_ms())
    assert list(followed) == []
    assert followed.positions == {0: 4, 1: 4}


def test_a_look_costs_requests_of_journals_and_not_partitions(tmp_path: Path) -> None:
    cluster = topic_in_memory(1000, 4)
    put(cluster, tmp_path, 0, 1)
    store, counted = store_of(cluster), list[int]()
    writer = another_process(cluster)

    def count() -> None:
        counted.append(store.requests.total())

    def land() -> None:
        put(writer, tmp_path, 1, 1)
        count()

    looks = Looks(count, count, count, land, count)
    assert len(list(follow(cluster, looks))) == 2000
    second, third = counted[1] - counted[0], counted[2] - counted[1]
    assert second == third == 4
    # A look that finds an entry also asks for the next one; the extents of each journal are then read from the object.
    assert counted[4] - counted[3] <= 4 * (2 + len(store.list("level_zero/data/").modified_ms))


def test_waits_grow_while_nothing_lands_and_shrink_afterwards(tmp_path: Path) -> None:
    cluster = new_cluster(tmp_path, unreconciled=1)
    clock, times = store_of(cluster).clock, list[int]()

    def note() -> None:
        times.append(clock.ms)

    def land() -> None:
        note()
        put(another_process(cluster), tmp_path, 1, 1)

    list(follow(cluster, Looks(note, note, note, note, note, note, land, note, note), interval_s=0.5))
    waits = [round((b - a) / 1000, 1) for a, b in pairwise(times)]
    assert waits == [0.5, 1, 2, 4, 4, 4, 4, 0.5]


def test_a_record_deleted_before_it_was_read_is_an_error(tmp_path: Path) -> None:
    cluster = new_cluster(tmp_path, partitions=2, unreconciled=4)
    other = another_process(cluster)

    def delete() -> None:
        put(other, tmp_path, 4, 3)
        delete_records(other, "events", 0, before_offset=6)

    with pytest.raises(OffsetOutOfRangeError, match=r"record 4 of partition events/0 was deleted; .* has offset 6"):
        list(follow(cluster, Looks(delete)))
    assert [*places(follow(other, start={1: 6}))] == [
        (0, 6),
        (1, 6),
    ]  # without a position, it starts at its first record


def test_a_position_above_the_end_is_refused(tmp_path: Path) -> None:
    cluster = new_cluster(tmp_path, partitions=3, unreconciled=2)
    with pytest.raises(OffsetOutOfRangeError, match="partition events/1 has no record 3 yet"):
        next(follow(cluster, start={0: 1, 1: 3}))


def test_the_topic_of_another_id_is_not_followed(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="it was deleted and created again"):
        next(follow(new_cluster(tmp_path), topic_id="another"))


def test_the_topics_deletion_ends_the_following(tmp_path: Path) -> None:
    cluster = new_cluster(tmp_path, unreconciled=1)
    with pytest.raises(PartitionClosedError, match=r"topic 'events' .* was deleted while it was read"):
        list(follow(cluster, Looks(lambda: delete_topic(another_process(cluster), "events"))))


@pytest.mark.parametrize("wanted", [{"before_offset": 3}, {"before_time_ms": 0}, {"pin": True}])
def test_what_has_an_end_or_a_pin_is_not_followed(tmp_path: Path, wanted: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="--follow has no end"):
        follow(new_cluster(tmp_path), **wanted)
    with pytest.raises(UsageError, match="--interval cannot be 0s"):
        follow(new_cluster(tmp_path), interval_s=0)
