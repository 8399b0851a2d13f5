"""Housekeeping: a quiet cluster moves, a damaged partition holds up itself alone, and a report says what the log says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from l0gc.errors import AccessDeniedError
from l0gc.inspect.status import status
from l0gc.keys import REPORTS, PartitionId, partition_log
from l0gc.storage.replica import CHECKPOINT_EVERY
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.housekeep import housekeep
from l0gc.streamlog.journal.entries import Placeholder
from l0gc.streamlog.journal.handle import PartitionHandle
from l0gc.streamlog.journal.window import EpochWindow
from l0gc.watermark.compute import PartitionReport
from l0gc.watermark.reports import read_report_file
from tests.support.ingest import stored_values, upload
from tests.support.memory_store import Call, MemoryStore, memory_cluster
from tests.support.reconcile import reconcile

INTERVAL_MS = 600_000


def new_cluster(partitions: int = 2) -> Cluster:
    cluster = memory_cluster()
    cluster.controller.create_topic("events", partitions)
    return cluster


def another_process(cluster: Cluster, seed: int = 1) -> Cluster:
    return memory_cluster(store_of(cluster), seed=seed, bootstrap=False)


def store_of(cluster: Cluster) -> MemoryStore:
    assert isinstance(cluster.store, MemoryStore)
    return cluster.store


def ids(cluster: Cluster, topic: str = "events") -> list[PartitionId]:
    return cluster.controller.snapshot().topic(topic).ids()


def handle_of(cluster: Cluster, partition: int = 0) -> PartitionHandle:
    return cluster.partition(ids(cluster)[partition])


def windows(cluster: Cluster) -> list[EpochWindow]:
    return [cluster.partition(p).catch_up().window for p in ids(cluster)]


def pass_interval(cluster: Cluster) -> None:
    store_of(cluster).clock.ms += INTERVAL_MS


def reports(cluster: Cluster) -> list[PartitionReport]:
    found = []
    for key, o in store_of(cluster).objects.items():
        if key.startswith(REPORTS):
            found += [PartitionReport(**row) for row in read_report_file(o.body, key).to_pylist()]
    return found


def put(cluster: Cluster, tmp_path: Path, records: int = 4) -> None:
    path = tmp_path / "in"
    path.write_bytes(b"".join(b"%d\n" % n for n in range(records)))
    upload(cluster, "events", [path])


def damage(cluster: Cluster, p: PartitionId, body: bytes = b"{}") -> str:
    """Spoil the first entry of a partition's log."""
    key = min(k for k in store_of(cluster).objects if k.startswith(partition_log(p) + "log/"))
    store_of(cluster).objects[key].body = body
    return key


# -- the epoch and the windows -----------------------------------------------------------------------------------------


def test_m_follows_the_epoch_through_idle_partitions() -> None:
    cluster = new_cluster()
    epochs = []
    for n in range(4):
        pass_interval(cluster)
        result = housekeep(another_process(cluster, n))
        assert (result.ticked, result.advanced, result.partitions, result.broken) == (True, 2, 2, [])
        epochs.append(result.cluster_epoch)
        previous = epochs[-2] if n else 1
        assert windows(cluster) == [EpochWindow(previous, epochs[-1])] * 2
        assert status(cluster).computable == previous - 1
    assert epochs == [2, 3, 4, 5]


def test_before_the_interval_is_over_nothing_ticks_and_nothing_is_appended() -> None:
    cluster = new_cluster()
    pass_interval(cluster)
    housekeep(cluster)
    objects = {k for k in store_of(cluster).objects if not k.startswith(REPORTS)}
    store_of(cluster).clock.ms += INTERVAL_MS - 1
    result = housekeep(cluster)
    assert (result.ticked, result.advanced, result.cluster_epoch) == (False, 0, 2)
    assert {k for k in store_of(cluster).objects if not k.startswith(REPORTS)} == objects


def test_a_barrier_ticks_in_any_case_and_closes_every_window(tmp_path: Path) -> None:
    cluster = new_cluster()
    put(cluster, tmp_path)
    reconcile(cluster)
    result = housekeep(another_process(cluster), barrier=True)
    assert (result.ticked, result.barriers, result.advanced) == (True, 2, 0)
    assert windows(cluster) == [EpochWindow(2, 2)] * 2
    assert status(cluster).computable == 1  # all that was uploaded before can go


def test_a_barrier_frees_nothing_that_is_unreconciled(tmp_path: Path) -> None:
    cluster = new_cluster()
    put(cluster, tmp_path)
    for _ in range(3):
        housekeep(cluster, barrier=True)
    assert status(cluster).computable == 0
    assert stored_values(cluster, "events") == [[b"0", b"2"], [b"1", b"3"]]


def test_a_straggler_behind_a_barrier_uploads_again_and_loses_nothing(tmp_path: Path) -> None:
    cluster = new_cluster()
    put(cluster, tmp_path)
    done: list[int] = []

    def fault(call: Call) -> None:
        if call.kind == "put" and call.when == "after" and call.key.startswith("level_zero/") and not done:
            done.append(1)
            housekeep(another_process(cluster), barrier=True)

    store_of(cluster).fault = fault
    put(cluster, tmp_path)
    assert stored_values(cluster, "events") == [[b"0", b"2"] * 2, [b"1", b"3"] * 2]
    assert [u.epoch for u in handle_of(cluster).state.placeholders] == [1, 2]


# -- checkpoints and truncation ----------------------------------------------------------------------------------------


def test_what_a_writers_own_checkpoint_covers_is_truncated(tmp_path: Path) -> None:
    cluster = new_cluster(partitions=1)
    handle = handle_of(cluster)
    for _ in range(CHECKPOINT_EVERY + 2):
        handle.advance(cluster.controller.advance())
    assert handle.replica.checkpoint_offset == CHECKPOINT_EVERY - 1
    pass_interval(cluster)
    pass_interval(cluster)
    result = housekeep(another_process(cluster))
    assert result.checkpoints == 0
    assert result.truncated_entries >= CHECKPOINT_EVERY - 1
    assert another_process(cluster, 2).partition(ids(cluster)[0]).state == handle.catch_up()


def test_logs_are_checkpointed_and_what_is_old_is_truncated(tmp_path: Path) -> None:
    cluster = new_cluster()
    for _ in range(6):
        put(cluster, tmp_path)
        pass_interval(cluster)
    before = stored_values(cluster, "events")
    m = status(cluster).computable
    assert m is not None
    result = housekeep(cluster, checkpoint_entries=5)
    assert result.checkpoints == 2  # the controller's log is short
    assert result.truncated_entries > 0
    left = [k for k in store_of(cluster).objects if k.startswith(partition_log(ids(cluster)[0]) + "log/")]
    assert len(left) < 7
    fresh = another_process(cluster)
    assert stored_values(fresh, "events") == before
    after = status(fresh).computable
    assert after is not None
    assert after >= m
    assert handle_of(fresh).state == handle_of(cluster).state
    again = housekeep(another_process(cluster, 2), checkpoint_entries=5)
    assert (again.checkpoints, again.truncated_entries) == (0, 0)


def test_a_short_log_is_left_as_it_is(tmp_path: Path) -> None:
    cluster = new_cluster()
    put(cluster, tmp_path)
    assert housekeep(cluster).checkpoints == 0
    assert not [k for k in store_of(cluster).objects if "/checkpoint/" in k]


# -- what is broken, what is gone --------------------------------------------------------------------------------------


def test_a_damaged_partition_is_named_and_holds_m_while_the_others_move(tmp_path: Path) -> None:
    cluster = new_cluster(3)
    put(cluster, tmp_path)
    reconcile(cluster)
    key = damage(cluster, ids(cluster)[1])
    for n in range(3):
        pass_interval(cluster)
        process = another_process(cluster, n)
        result = housekeep(process)
        assert result.advanced == 2
        (broken,) = result.broken
        assert (broken.topic, broken.partition) == ("events", 1)
        assert key in broken.error
    now = status(process)
    assert now.computable == 0  # its revision, less one
    assert any(key in e for e in now.errors)
    assert {r.partition for r in reports(cluster)} == {0, 2}
    assert windows_of(process, 0) == windows_of(process, 2) == EpochWindow(3, 4)


def windows_of(cluster: Cluster, partition: int) -> EpochWindow:
    return cluster.partition(ids(cluster)[partition]).catch_up().window


def test_partitions_of_a_deleted_topic_are_closed_once() -> None:
    cluster = new_cluster()
    deleted = ids(cluster)
    cluster.controller.delete_topic("events")  # and the deleter crashed
    cluster.controller.create_topic("events", 1)
    process = another_process(cluster)
    assert housekeep(process).closed == 2
    assert housekeep(another_process(cluster, 2)).closed == 0
    assert all(process.partition(p).catch_up().closed for p in deleted)
    assert not handle_of(process).catch_up().closed  # its namesake


def test_a_damaged_partition_of_a_deleted_topic_stops_nobody(tmp_path: Path) -> None:
    cluster = new_cluster()
    put(cluster, tmp_path)
    key = damage(cluster, ids(cluster)[0])
    gone = cluster.controller.delete_topic("events")
    cluster.controller.create_topic("other", 1)
    pass_interval(cluster)
    process = another_process(cluster)
    result = housekeep(process)
    assert result.advanced == 1
    assert process.partition(gone.ids()[1]).catch_up().closed
    assert [key in b.error for b in result.broken] == [True]


# -- reports -----------------------------------------------------------------------------------------------------------


def test_a_report_for_every_partition_says_what_its_log_says(tmp_path: Path) -> None:
    cluster = new_cluster()
    put(cluster, tmp_path)
    pass_interval(cluster)
    housekeep(another_process(cluster))
    fresh = another_process(cluster, 2)
    found = reports(cluster)
    assert [r.partition for r in found] == [0, 1]
    for r in found:
        handle = fresh.partition(r.id)
        state = handle.catch_up()
        assert r.cluster_id == fresh.controller.snapshot().cluster_id
        assert (r.gc_epoch, r.log_offset, r.next_offset) == (state.gc_epoch, handle.replica.offset, state.next_offset)
        assert (r.previous_applied_epoch, r.max_applied_epoch) == (state.window.oldest, state.window.newest)
        assert (r.lowest_unreconciled_epoch, r.last_reconciled_offset) == (1, -1)


LOST: list[Callable[[PartitionHandle], object]] = [
    lambda handle: handle.append_placeholder(Placeholder("level_zero/data/000/b", 0, 10, 7, 0, -1), 6),
    lambda handle: handle.advance(6),
    lambda handle: handle.barrier(6),
]


@pytest.mark.parametrize("lose", LOST, ids=["placeholder", "advance", "barrier"])
def test_what_never_landed_is_in_no_report_and_in_no_checkpoint(lose: Callable[[PartitionHandle], object]) -> None:
    """Hazard 18."""
    cluster = new_cluster(1)
    for _ in range(5):
        cluster.controller.advance()
    handle = handle_of(cluster)
    handle.append_placeholder(Placeholder("level_zero/data/000/a", 0, 10, 1, 0, -1), 2)

    def fault(call: Call) -> None:
        if call.kind == "put_if_absent" and "/partition/" in call.key:
            raise AccessDeniedError("not now")

    store_of(cluster).fault = fault
    with pytest.raises(AccessDeniedError):
        lose(handle)
    store_of(cluster).fault = lambda call: None
    handle.replica.write_checkpoint()
    truth = handle_of(another_process(cluster)).catch_up()  # through that checkpoint
    entry_only = handle_of(without_checkpoints(cluster)).catch_up()
    assert truth == entry_only == handle.state
    assert truth.window == EpochWindow(1, 2)
    # The next thing that the same process reports goes by the log as well.
    housekeep(cluster)
    (report,) = reports(cluster)
    landed = handle_of(another_process(cluster)).catch_up()
    assert (report.gc_epoch, report.next_offset) == (landed.gc_epoch, landed.next_offset)


def without_checkpoints(cluster: Cluster) -> Cluster:
    copy = MemoryStore(store_of(cluster).clock)
    copy.objects = {k: o for k, o in store_of(cluster).objects.items() if "/checkpoint/" not in k}
    return memory_cluster(copy, seed=5, bootstrap=False)


def test_a_report_never_says_more_than_the_log_did_even_under_a_busy_writer(tmp_path: Path) -> None:
    """Hazard 18: another process appends and reconciles between housekeeping's append and its report."""
    cluster = new_cluster(1)
    put(cluster, tmp_path)
    busy = another_process(cluster)
    pass_interval(cluster)
    done: list[str] = []

    def fault(call: Call) -> None:
        landed = call.kind == "put_if_absent" and call.when == "after" and "/partition/" in call.key
        if landed and not done:
            done.append(call.key)
            put(busy, tmp_path)
            reconcile(busy)

    store_of(cluster).fault = fault
    housekeep(cluster)
    store_of(cluster).fault = lambda call: None
    assert done
    (report,) = reports(cluster)
    prefix = MemoryStore(store_of(cluster).clock)
    log = partition_log(ids(cluster)[0]) + "log/"
    prefix.objects = {
        k: o
        for k, o in store_of(cluster).objects.items()
        if not k.startswith(log) or int(k[len(log) :][:20]) <= report.log_offset
    }
    then = handle_of(memory_cluster(prefix, seed=6, bootstrap=False)).catch_up()
    assert (report.gc_epoch, report.next_offset) == (then.gc_epoch, then.next_offset)
