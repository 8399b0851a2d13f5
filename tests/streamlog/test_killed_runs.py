"""Reconcilers, mergers and vacuums killed at each of their requests: a vacuum leaves exactly the objects that are
named.

Readers run all the time, without a grace: each returns every record once, and none reports a loss. After each kill and
vacuum, `l0gc verify --deep` finds nothing wrong with any object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from l0gc.streamlog import topics
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.ingest.headers_and_times import Record
from l0gc.streamlog.level_one.reconcile import reconcile
from l0gc.streamlog.reader import read_topic
from tests.streamlog.test_garbage import World
from tests.support.deep import deep_findings
from tests.support.memory_store import Call, memory_cluster
from tests.support.merge import merge
from tests.support.reconcile import named
from tests.support.tries import sampled
from tests.support.vacuum import vacuum

Work = Callable[[ClusterHandles], object]


class KilledError(BaseException):
    """The process is dead: no request of its cleanup reaches the store."""


def scene() -> World:
    """Create a cluster with objects to merge, records to lift, dropped objects, orphans and a deleted topic."""
    w = World(2, journals=2)
    w.cluster.controller.create_topic("deleted", 1)
    w.lift(4)
    w.merge()
    w.lift(4)
    w.upload()
    topics.delete_topic(w.cluster, "deleted")
    w.tick(3)
    return w


def merge_twice(cluster: ClusterHandles) -> object:
    return merge(cluster), reconcile(cluster), merge(cluster)


def a_process(w: World, seed: int) -> ClusterHandles:
    return memory_cluster(w.store, seed=seed, bootstrap=False)


def killed_at(w: World, work: Work, n: int, *, after: bool) -> bool:
    """Do the work in a process that dies at its n-th request; return whether it has that many."""
    seen, dead = 0, False

    def fault(call: Call) -> None:
        nonlocal seen, dead
        if dead:
            raise KilledError
        seen += call.when == "before"
        if seen == n and (call.when == "after") == after:
            dead = True
            raise KilledError

    process = a_process(w, 100 + n)
    w.store.fault = fault
    try:
        work(process)
    except KilledError:
        pass
    finally:
        w.store.fault = lambda call: None
    return seen >= n


def readers(w: World) -> list[Iterator[Record]]:
    """Return two readers in different processes: the first is read at the end, the second in steps."""
    found = []
    for seed in (200, 201):
        cluster = a_process(w, seed)
        found.append(read_topic(cluster, cluster.controller.snapshot().topic("events")))
    return found


def check_read(w: World, begun: list[Record], rest: Iterator[Record]) -> None:
    values: dict[int, list[bytes]] = {p: [] for p in w.values}
    for r in (*begun, *rest):
        assert r.offset == len(values[r.partition])
        values[r.partition].append(r.value)
    assert values == w.values


STEPS = [pytest.param(17, id="a sample"), pytest.param(3, id="a third", marks=[pytest.mark.thorough, pytest.mark.slow])]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("work", [reconcile, merge_twice, vacuum], ids=["reconcile", "merge", "vacuum"])
@pytest.mark.parametrize("after", sampled([False, True], [False]), ids=["before", "after"])
def test_vacuum_after_a_killed_run_leaves_named_objects(work: Work, after: bool, step: int) -> None:
    points = 1 - step
    while True:
        w = scene()
        fresh, begun = readers(w)
        seen = [next(begun) for _ in range(5)]
        points += step
        if not killed_at(w, work, points, after=after):
            break
        seen += [next(begun) for _ in range(5)]
        w.tick(3)
        other = a_process(w, 300)
        w.vacuum(cluster=other)
        seen += [next(begun) for _ in range(5)]
        w.tick(3)
        w.vacuum(cluster=other)
        assert w.l1("level_one/data/") == named(other, "events")
        check_read(w, seen, begun)
        check_read(w, [], fresh)
        assert not deep_findings(other)
        reconcile(other)
        w.whole()
    assert points > 15


@pytest.mark.parametrize("step", STEPS)
def test_a_run_that_slept_through_vacuum_continues_without_loss(step: int) -> None:
    """A merger and a reconciler pause between two of their requests, while another reconciler and a vacuum run."""
    points = 1 - step
    while True:
        w = scene()
        seen, vacuumed = 0, False
        process, other = a_process(w, 7), a_process(w, 8)
        points += step
        at = points

        def fault(call: Call) -> None:
            nonlocal seen, vacuumed
            seen += call.when == "before"
            if seen == at and not vacuumed:  # noqa: B023 - of this turn
                vacuumed = True
                w.store.fault = lambda call: None  # noqa: B023
                w.tick(3)  # noqa: B023
                reconcile(other)  # noqa: B023
                w.vacuum(cluster=other)  # noqa: B023

        w.store.fault = fault
        merge_twice(process)
        w.store.fault = lambda call: None
        if not vacuumed:
            break
        w.tick(3)
        w.vacuum(cluster=other)
        assert w.l1("level_one/data/") == named(other, "events")
        assert not deep_findings(other)
        reconcile(other)
        w.whole()
    assert points > 15


def test_what_verify_would_find_is_found_here() -> None:
    """The scene has a truncated L1 object, one with other bytes, and missing L0 objects."""
    w = scene()
    assert deep_findings(w.cluster) == []
    first, second, *_ = sorted(w.l1("level_one/data/") & named(w.cluster, "events"))
    body = w.store.objects[first].body
    w.store.put(first, body[:-1])
    at = len(w.store.objects[second].body) // 2
    w.store.put(second, w.store.objects[second].body[:at] + b"\xff" * 8 + w.store.objects[second].body[at + 8 :])
    for key in [k for k in w.store.objects if k.startswith("level_zero/")][-1:]:
        del w.store.objects[key]
    found = " ".join(deep_findings(w.cluster))
    assert first in found
    assert second in found
    assert "level_zero/" in found
