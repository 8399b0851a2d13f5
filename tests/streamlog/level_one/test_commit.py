"""A commit counts when all is durable, once, and only for the reconciler that was first."""

from __future__ import annotations

from pathlib import Path

import pytest

from l0gc.errors import AppendOutcomeUnknownError, CorruptObjectError, StoreError, TopicNotFoundError
from l0gc.storage.objectstore import DeleteFailure
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.journal.state import PartitionState
from l0gc.streamlog.level_one.commit import commit_run, plan_run
from tests.support.ingest import stored_values, upload
from tests.support.memory_store import Call, MemoryStore, lose_reply, memory_cluster
from tests.support.reconcile import reconcile, write_plan


def records(count: int, prefix: str = "r") -> list[bytes]:
    return [f"{prefix}{n}".encode() for n in range(count)]


def put(cluster: Cluster, tmp_path: Path, values: list[bytes], topic: str = "events") -> None:
    path = tmp_path / "in"
    path.write_bytes(b"".join(v + b"\n" for v in values))
    upload(cluster, topic, [path], batch_bytes=80)


def two_processes(tmp_path: Path, count: int = 20) -> tuple[Cluster, Cluster]:
    a = memory_cluster()
    a.controller.create_topic("events", 2)
    put(a, tmp_path, records(count))
    return a, memory_cluster(store_of(a), seed=1, bootstrap=False)


def store_of(cluster: Cluster) -> MemoryStore:
    assert isinstance(cluster.store, MemoryStore)
    return cluster.store


def state_of(cluster: Cluster, partition: int = 0) -> PartitionState:
    return cluster.partition(cluster.controller.snapshot().topic("events").ids()[partition]).catch_up()


def l1_objects(cluster: Cluster) -> set[str]:
    return {k for k in store_of(cluster).objects if k.startswith("level_one/")}


def named(cluster: Cluster) -> set[str]:
    return {f.key for p in range(2) for f in state_of(cluster, p).l1}


def test_a_run_lifts_everything_and_the_records_stay_the_same(tmp_path: Path) -> None:
    a, b = two_processes(tmp_path)
    before = stored_values(a, "events")
    committed = reconcile(a)
    assert [c.lost for c in committed] == [False, False]
    for p in range(2):
        state = state_of(b, p)
        assert (state.last_reconciled_offset, state.placeholders) == (9, [])
        assert state.gc_epoch == state.previous_applied_epoch - 1
    assert l1_objects(a) == named(b)
    assert stored_values(b, "events") == before
    assert reconcile(b) == []  # nothing is left to do


def test_a_second_run_continues_the_first(tmp_path: Path) -> None:
    a, b = two_processes(tmp_path)
    reconcile(a)
    put(b, tmp_path, records(6, "s"))
    reconcile(b)
    assert [(f.base_offset, f.last_offset) for f in state_of(a).l1] == [(0, 9), (10, 12)]
    assert stored_values(a, "events") == [[*records(20)[p::2], *records(6, "s")[p::2]] for p in range(2)]


def test_one_topic_at_a_time_and_one_that_exists(tmp_path: Path) -> None:
    a, _ = two_processes(tmp_path)
    a.controller.create_topic("other", 1)
    put(a, tmp_path, records(3), "other")
    assert {c.plan.topic for c in reconcile(a, "other")} == {"other"}
    assert state_of(a).last_reconciled_offset == -1
    with pytest.raises(TopicNotFoundError, match="'othe'"):
        plan_run(a, "othe")


@pytest.mark.parametrize("meanwhile", ["the same range", "more", "the same range, then more"])
def test_a_zombie_reconciler_loses_and_only_its_own_objects_go(tmp_path: Path, meanwhile: str) -> None:
    """Hazard 9."""
    a, b = two_processes(tmp_path)
    plan, _ = plan_run(a, None)
    files = write_plan(a, plan)  # and then it sleeps
    theirs = {f.key for fs in files.values() for f in fs}
    if meanwhile != "more":
        reconcile(b)
    if meanwhile != "the same range":
        put(b, tmp_path, records(8, "s"))
        reconcile(b)
    before, winners = stored_values(b, "events"), named(b)
    warnings: list[str] = []
    committed = commit_run(a, plan, files, warnings.append)
    assert [(c.lost, c.files) for c in committed] == [(True, []), (True, [])]
    assert not warnings
    assert l1_objects(a) == named(a) == winners
    assert not theirs & winners
    assert stored_values(a, "events") == before


def test_a_partition_that_was_lost_does_not_hold_up_the_others(tmp_path: Path) -> None:
    a, b = two_processes(tmp_path)
    plan, _ = plan_run(a, None)
    files = write_plan(a, plan)
    other, _ = plan_run(b, None)
    first = [p for p in other.partitions if p.partition == 0]
    commit_run(b, type(other)(first, other.objects), write_plan(b, other), lambda w: None)
    assert [c.lost for c in commit_run(a, plan, files, lambda w: None)] == [True, False]
    assert state_of(b, 1).last_reconciled_offset == 9


def test_records_that_arrive_while_a_run_writes_wait_for_the_next(tmp_path: Path) -> None:
    a, b = two_processes(tmp_path)
    plan, _ = plan_run(a, None)
    files = write_plan(a, plan)
    put(b, tmp_path, records(8, "s"))
    assert [c.lost for c in commit_run(a, plan, files, lambda w: None)] == [False, False]
    assert state_of(a).unreconciled_records == 4
    assert stored_values(b, "events") == [[*records(20)[p::2], *records(8, "s")[p::2]] for p in range(2)]


def test_a_topic_that_is_deleted_meanwhile_loses_the_run_and_its_objects(tmp_path: Path) -> None:
    a, b = two_processes(tmp_path)
    plan, _ = plan_run(a, None)
    files = write_plan(a, plan)
    for p in b.controller.delete_topic("events").ids():
        b.partition(p).close()
    assert [c.lost for c in commit_run(a, plan, files, lambda w: None)] == [True, True]
    assert l1_objects(a) == set()


def test_a_plan_without_all_its_files_commits_nothing(tmp_path: Path) -> None:
    a, _ = two_processes(tmp_path)
    plan, _ = plan_run(a, None)
    files = write_plan(a, plan)
    with pytest.raises(CorruptObjectError, match=r"partition events/0 .* nothing is committed"):
        commit_run(a, plan, {1: files[1]}, lambda w: None)
    assert state_of(a).last_reconciled_offset == -1


def test_a_commit_whose_reply_is_lost_counts_once_and_keeps_its_objects(tmp_path: Path) -> None:
    """Hazard 8: taken for lost, its files would be removed, and the log names them."""
    a, b = two_processes(tmp_path)
    plan, _ = plan_run(a, None)
    files = write_plan(a, plan)
    before = stored_values(b, "events")
    store_of(a).fault = lose_reply("/partition/events-1/00000/")
    committed = commit_run(a, plan, files, lambda w: None)
    assert [c.lost for c in committed] == [False, False]
    assert l1_objects(a) == named(b)
    assert stored_values(b, "events") == before


def test_a_commit_of_unknown_outcome_removes_nothing(tmp_path: Path) -> None:
    a, b = two_processes(tmp_path)
    plan, _ = plan_run(a, None)
    files = write_plan(a, plan)
    lose = lose_reply("/partition/events-1/00000/")
    cut: list[Call] = []

    def fault(call: Call) -> None:
        if cut:
            raise StoreError("unplugged")
        try:
            lose(call)
        except StoreError:
            cut.append(call)
            raise

    store_of(a).fault = fault
    with pytest.raises(AppendOutcomeUnknownError):
        commit_run(a, plan, files, lambda w: None)
    store_of(a).fault = lambda call: None
    assert named(b) <= l1_objects(b)
    assert state_of(b, 0).last_reconciled_offset == 9
    reconcile(b)
    assert stored_values(b, "events") == [records(20)[p::2] for p in range(2)]


@pytest.mark.parametrize("how", ["error", "refused"])
def test_objects_that_cannot_be_removed_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    a, b = two_processes(tmp_path)
    plan, _ = plan_run(a, None)
    files = write_plan(a, plan)
    reconcile(b)

    def delete(keys: list[str]) -> list[DeleteFailure]:
        if how == "error":
            raise StoreError("away")
        return [DeleteFailure(keys[0], "AccessDenied", "no")]

    monkeypatch.setattr(a.store, "delete", delete)
    warnings: list[str] = []
    assert all(c.lost for c in commit_run(a, plan, files, warnings.append))
    assert [w.split(",")[0] for w in warnings] == [f.key for p in (0, 1) for f in files[p]]


def test_a_partition_whose_log_is_damaged_is_left_out_and_named(tmp_path: Path) -> None:
    a, b = two_processes(tmp_path)
    key = next(k for k in store_of(a).objects if k.startswith("l0gc/partition/events-1/00000/log/"))
    store_of(a).objects[key].body = b"{}"
    plan, errors = plan_run(b, None)
    assert [p.partition for p in plan.partitions] == [1]
    assert len(errors) == 1
    assert key in errors[0]
