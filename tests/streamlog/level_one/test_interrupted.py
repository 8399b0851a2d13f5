"""A signal while L1 is written: each kind of run commits the objects that it has written, and the next run does the
rest.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.level_one import parquet, rewrite
from l0gc.streamlog.level_one.give_up import give_up
from l0gc.streamlog.level_one.reconcile import reconcile
from tests.support.memory_store import Call, another_process, store_of, topic_in_memory
from tests.support.merge import content, fill, merge
from tests.support.reconcile import named, put
from tests.support.sharing import a_day_passes, loaded, values
from tests.support.tries import sampled

PARTITIONS = 12
TASK_BYTES = "l0gc.streamlog.level_one.write._TASK_BYTES"


def unreconciled() -> ClusterHandles:
    cluster = topic_in_memory(PARTITIONS)
    put(cluster, "events", {p: [b"%d" % n for n in range(5)] for p in range(PARTITIONS)})
    return cluster


def unmerged() -> ClusterHandles:
    cluster = topic_in_memory(PARTITIONS, 2)
    fill(cluster, 4, partitions=PARTITIONS)
    return cluster


def undrained() -> ClusterHandles:
    cluster, _, _ = loaded(2)
    a_day_passes(cluster)
    return cluster


ROADS: list[
    tuple[Callable[[], ClusterHandles], Callable[[ClusterHandles], object], Callable[[ClusterHandles], Any]]
] = [
    (unreconciled, reconcile, values),
    (unmerged, merge, lambda cluster: content(cluster, partitions=PARTITIONS)),
    (undrained, merge, values),
]


@pytest.mark.parametrize("cores", sampled([1, 4], [4]))
@pytest.mark.parametrize(("prepared", "run", "contents"), ROADS, ids=["reconcile", "merge", "drain"])
def test_an_interrupted_run_commits_all_that_it_has_written(
    monkeypatch: pytest.MonkeyPatch,
    prepared: Callable[[], ClusterHandles],
    run: Callable[[ClusterHandles], object],
    contents: Callable[[ClusterHandles], Any],
    cores: int,
) -> None:
    monkeypatch.setattr(TASK_BYTES, 1)  # one task for each partition
    a = prepared()
    before = contents(another_process(a))
    monkeypatch.setattr(a.parallel, "cores", cores)
    written = list[str]()

    def note(call: Call) -> None:
        if (call.kind, call.when) == ("put", "before") and call.key.startswith("level_one/"):
            assert held.is_set()
            written.append(call.key)
            if interrupts.is_set():
                stop.set()

    @contextmanager
    def writing() -> Iterator[threading.Event]:
        held.set()
        yield stop
        held.clear()
        assert set(written) <= named(another_process(a), "events")
        if stop.is_set():
            raise KeyboardInterrupt

    stop, held, interrupts = threading.Event(), threading.Event(), threading.Event()
    interrupts.set()
    a.writing = writing
    store_of(a).fault = note
    with pytest.raises(KeyboardInterrupt):
        run(a)
    first = len(written)
    assert first > 0
    assert contents(another_process(a)) == before
    interrupts.clear()
    stop.clear()
    run(a)
    assert len(written) > first  # the first run left partitions to the second
    assert contents(another_process(a)) == before


def test_an_interrupted_give_up_commits_its_holes() -> None:
    a = topic_in_memory(2)
    keys = put(a, "events", {p: [b"lost"] for p in range(2)})
    for key in keys:
        store_of(a).objects.pop(key)

    @contextmanager
    def writing() -> Iterator[threading.Event]:
        assert not named(a, "events")
        yield threading.Event()
        assert len(named(a, "events")) == 2
        raise KeyboardInterrupt

    a.writing = writing
    with pytest.raises(KeyboardInterrupt):
        give_up(a, "ann@host", objects=keys)


@pytest.mark.parametrize("at", [1, 10], ids=["opened", "copied"])
def test_a_merge_interrupted_while_it_reads_writes_nothing(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    monkeypatch.setattr(rewrite, "WHOLE_BYTES", 0)
    monkeypatch.setattr(parquet, "_LEAST_TAIL", 8)
    monkeypatch.setattr(rewrite, "FETCHED", 4)  # as many sources as one partition has
    a = topic_in_memory(PARTITIONS)
    fill(a, 4, partitions=PARTITIONS)
    before = content(a, partitions=PARTITIONS)
    reads, stop = list[str](), threading.Event()

    def note(call: Call) -> None:
        if call.when == "before" and call.key.startswith("level_one/"):
            assert call.kind != "put"
            reads.append(call.key)
            if len(reads) == at:
                stop.set()

    @contextmanager
    def writing() -> Iterator[threading.Event]:
        yield stop
        raise KeyboardInterrupt

    a.writing = writing
    store_of(a).fault = note
    with pytest.raises(KeyboardInterrupt):
        merge(a)
    assert len(set(reads)) <= 8  # the sources of two partitions
    assert content(another_process(a), partitions=PARTITIONS) == before
