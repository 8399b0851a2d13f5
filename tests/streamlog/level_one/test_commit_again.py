"""A commit that runs again later: whatever happened to its objects, it deletes nothing and counts those that landed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import pyarrow as pa
import pytest

from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.delete_records import delete_records
from l0gc.streamlog.level_one import merge as merges
from l0gc.streamlog.level_one import write
from l0gc.streamlog.level_one.merge_plan import MergeRule, merges_of
from l0gc.streamlog.level_one.write import L1Writer
from l0gc.streamlog.topics import delete_topic
from tests.support.memory_store import MemoryStore, memory_cluster
from tests.support.merge import merge
from tests.support.reconcile import Begun, begin, put, reconcile
from tests.support.tries import sampled
from tests.support.vacuum import tick, vacuum_later

OBJECTS = 100
"""L1 objects of a round, in each partition."""
TOPIC = "events"
_write = L1Writer.write


class Scene:
    """A round of 100 L1 objects in each of two partitions, and a second process that acts before the commit runs again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        self.store = MemoryStore()
        self.a = memory_cluster(self.store)
        self.b = memory_cluster(self.store, seed=1, bootstrap=False)
        self.a.controller.create_topic(TOPIC, 2)
        put(self.a, TOPIC, *({p: [b"%d" % n] for p in range(2)} for n in range(OBJECTS)))
        with monkeypatch.context() as m:
            m.setattr(write, "FILE_BYTES", 1)
            m.setattr(write, "_ROW_GROUP_BYTES", 1)
            m.setattr(L1Writer, "write", _row_by_row)
            self.begun = begin(self.a)
        assert len(self.begun.keys) == 2 * OBJECTS

    def processes(self) -> tuple[ClusterHandles, ClusterHandles]:
        """Return the process that committed, and one that has read nothing yet."""
        return self.a, memory_cluster(self.store, seed=2, bootstrap=False)

    def vacuum(self) -> None:
        vacuum_later(self.b)

    def lift(self, times: int = 1) -> None:
        """Upload and lift more records in rounds, each with an object for each partition."""
        for n in range(times):
            put(self.b, TOPIC, {p: [b"later %d" % n] for p in range(2)})
            reconcile(self.b)

    def merge_some(self) -> None:
        """Merge the oldest objects of partition 0 into one, and leave the others."""
        real = merges_of

        def first(topic: Any, *others: Any) -> Any:
            return islice(real(topic, *others), 1)

        size = sum(len(self.store.objects[k].body) for k in sorted(self.begun.keys)[:10])
        with self.monkeypatch.context() as m:
            m.setattr(merges, "merges_of", first)
            done = merge(self.b, None, MergeRule(size, 2))
        assert not done.errors
        assert 0 < done.objects_before < OBJECTS

    def merge_all(self) -> None:
        done = merge(self.b, None, MergeRule(fan_in=2))
        assert not done.errors
        assert done.objects_before >= 2 * OBJECTS

    def expire(self, before: int, partition: int | None = None) -> None:
        assert not delete_records(self.b, TOPIC, partition, before_offset=before).errors


def _row_by_row(self: L1Writer, batch: pa.RecordBatch, width: float) -> None:
    for n in range(batch.num_rows):
        _write(self, batch.slice(n, 1), width)


In = Callable[[Scene], object]


def some_expired(s: Scene) -> None:
    s.expire(4)


def some_expired_and_purged(s: Scene) -> None:
    s.expire(4)
    s.vacuum()


def all_but_one_purged(s: Scene) -> None:
    s.expire(OBJECTS - 1)
    s.vacuum()


def some_purged_and_some_dropped(s: Scene) -> None:
    some_expired_and_purged(s)
    s.expire(40)


def some_merged(s: Scene) -> None:
    s.merge_some()


def some_merged_and_purged(s: Scene) -> None:
    s.merge_some()
    s.vacuum()


def some_merged_some_expired(s: Scene) -> None:
    s.merge_some()
    s.expire(50, 0)
    s.vacuum()
    s.expire(60)


def all_merged(s: Scene) -> None:
    s.merge_all()


def all_expired(s: Scene) -> None:
    s.lift()
    s.expire(OBJECTS)


def closed(s: Scene) -> None:
    delete_topic(s.b, TOPIC)


def closed_and_created_again(s: Scene) -> None:
    delete_topic(s.b, TOPIC)
    s.b.controller.create_topic(TOPIC, 2)
    put(s.b, TOPIC, {p: [b"new"] for p in range(2)})
    reconcile(s.b)


def fenced_off(s: Scene) -> None:
    """Fence off the run's stamp, by a vacuum after the commit landed."""
    s.vacuum()


IN_THE_STATE = [
    some_expired, some_expired_and_purged, all_but_one_purged, some_purged_and_some_dropped, some_merged,
    some_merged_and_purged, some_merged_some_expired, all_merged, all_expired, closed, closed_and_created_again, fenced_off,
]  # fmt: skip
"""Changes after which the state still shows that the commit landed."""


QUICK = set(IN_THE_STATE) - {some_expired, some_merged, some_merged_some_expired, closed}
"""Those that are not a part of another one."""


def all_expired_and_purged(s: Scene) -> None:
    s.lift()
    s.expire(OBJECTS)
    s.vacuum()


def all_merged_and_purged(s: Scene) -> None:
    s.merge_all()
    s.vacuum()


def closed_and_purged(s: Scene) -> None:
    delete_topic(s.b, TOPIC)
    s.vacuum()


FORGOTTEN = [all_expired_and_purged, all_merged_and_purged, closed_and_purged]
"""Changes after which the state no longer shows it."""


def again(s: Scene, process: ClusterHandles) -> tuple[tuple[int, int, int], list[str]]:
    """Commit once more, which must not change the bucket; return (records, objects, lost partitions), and errors."""
    before = {k: o.etag for k, o in s.store.objects.items()}
    (committed,) = Begun(process, s.begun.round, s.begun.written).commit()
    assert {k: o.etag for k, o in s.store.objects.items()} == before
    if committed.l1_objects:
        assert {r: p.tolist() for r, p in committed.lifted.items()} == {1: [0, 1]}
        assert committed.bytes == sum(int(rows["bytes"].sum()) for rows in s.begun.written.files.values())
    else:
        assert (committed.lifted, committed.bytes) == ({}, 0)
    return (committed.records, committed.l1_objects, committed.lost), committed.errors


@pytest.mark.parametrize("between", sampled(IN_THE_STATE, QUICK), ids=lambda f: f.__name__)
def test_a_commit_that_is_done_again_deletes_nothing_and_counts_once_more(
    monkeypatch: pytest.MonkeyPatch, between: In
) -> None:
    """Hazard 28: a retry, or a lost reply, runs a commit again after its objects have changed."""
    s = Scene(monkeypatch)
    (first,) = s.begun.commit()
    assert (first.records, first.l1_objects, first.lost, first.errors) == (2 * OBJECTS, 2 * OBJECTS, 0, [])
    between(s)
    for process in s.processes():
        assert again(s, process) == ((2 * OBJECTS, 2 * OBJECTS, 0), [])


@pytest.mark.parametrize("between", FORGOTTEN, ids=lambda f: f.__name__)
def test_a_repeated_commit_with_vacuumed_objects_is_lost(monkeypatch: pytest.MonkeyPatch, between: In) -> None:
    s = Scene(monkeypatch)
    s.begun.commit()
    between(s)
    for process in s.processes():
        assert again(s, process) == ((0, 0, 2), [])


def test_each_partition_is_checked_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    s = Scene(monkeypatch)
    s.begun.commit()
    s.lift()
    s.expire(OBJECTS, 0)
    s.vacuum()
    s.expire(4, 1)
    (committed,) = s.begun.commit()
    assert (committed.records, committed.l1_objects, committed.lost) == (OBJECTS, OBJECTS, 1)
    assert {r: p.tolist() for r, p in committed.lifted.items()} == {1: [1]}


def test_a_fenced_commit_that_never_landed_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    s = Scene(monkeypatch)
    tick(s.b, 3)
    s.b.journal(0).fence_l1(3)
    (committed,) = s.begun.commit()
    assert (committed.records, committed.lost) == (0, 0)
    (error,) = committed.errors
    assert "vacuum has fenced off all below 3; none of them counts: run it again" in error
    assert s.begun.keys <= set(s.store.objects)
    s.vacuum()
    assert not s.begun.keys & set(s.store.objects)


def test_a_fenced_commit_that_lost_to_another_is_not_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    s = Scene(monkeypatch)
    reconcile(s.b)
    s.vacuum()
    assert again(s, s.a) == ((0, 0, 2), [])
