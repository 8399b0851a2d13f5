"""A journal's handle, on a store whose faults a test decides; several clusters on one store are several processes."""

from __future__ import annotations

import functools
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import pytest

from l0gc.errors import (
    AccessDeniedError,
    AmbiguousWriteError,
    AppendOutcomeUnknownError,
    EpochRegressionError,
    InvalidProducerEpochError,
    L0gcError,
    PartitionClosedError,
    SafetyError,
    StaleClusterEpochError,
    StoreUnreachableError,
    UnknownProducerError,
    UsageError,
)
from l0gc.keys import journal_log
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import PRODUCER_EXPIRY_MS, Topic
from l0gc.streamlog.journal.admission import EpochWindow
from l0gc.streamlog.journal.checkpoint import JournalMachine
from l0gc.streamlog.journal.entries import ObjectExtents
from l0gc.streamlog.journal.handle import AppendResult, JournalHandle
from l0gc.streamlog.journal.producers import InputSpan, ProducerBatch, landed_of
from l0gc.streamlog.journal.state import JournalState
from tests.support.fence import PATIENCE_S, within_patience
from tests.support.journal import extents_of
from tests.support.memory_store import (
    Call,
    MemoryStore,
    failing,
    lose_reply,
    memory_cluster,
    once,
    store_of,
    topic_in_memory,
)
from tests.support.tries import sampled

REVISION = 1


@dataclass(frozen=True)
class Where:
    """The first offset of partition 0's records, and the log offset of their entry."""

    base_offset: int
    log_offset: int


def extent(records: int = 1, producer: ProducerBatch | None = None, key: str = "some") -> ObjectExtents:
    return extents_of(
        0, {0: records}, key=f"level_zero/data/000/{key}", revision=REVISION, topic_id="?", producer=producer
    )


def offered(handle: JournalHandle, o: ObjectExtents, epoch: int) -> ObjectExtents:
    topic: Topic = handle._controller.snapshot().topic("events")
    return msgspec.structs.replace(o, epoch=epoch, topic_id=topic.topic_id)


def land(handle: JournalHandle, o: ObjectExtents, epoch: int) -> Where:
    """Append one object; raise the error that refuses it."""
    appended = handle.append([offered(handle, o, epoch)])
    if appended.error is not None:
        raise appended.error
    (done,) = appended.landed
    return Where(int(done.bases[0]) if done.bases is not None else -1, done.log_offset)


def processes(count: int, epoch: int = 20) -> list[ClusterHandles]:
    """Return `count` processes on one store, whose cluster is at `epoch` and has one topic with one partition, at
    revision 1.
    """
    store = MemoryStore()
    first = topic_in_memory(1, store=store)
    while first.controller.epoch() < epoch:
        first.controller.advance()
    return [first, *(memory_cluster(store, seed=i, bootstrap=False) for i in range(1, count))]


def handle_of(cluster: ClusterHandles) -> JournalHandle:
    return cluster.journal(0)


def a_process() -> tuple[ClusterHandles, JournalHandle]:
    """Return a process and its handle."""
    (a,) = processes(1)
    return a, handle_of(a)


def two_processes() -> tuple[ClusterHandles, JournalHandle, JournalHandle]:
    """Return a process, its handle, and another process's handle."""
    a, b = processes(2)
    return a, handle_of(a), handle_of(b)


def comes_true(condition: Callable[[], bool]) -> bool:
    """Wait up to 20 seconds for the condition, and return whether it came true."""
    for _ in range(2000):
        if condition():
            return True
        time.sleep(0.01)
    return False


def next_offset(handle: JournalHandle) -> int:
    return handle.catch_up().topic(REVISION).view(0).next_offset


def same(a: JournalState, b: JournalState) -> bool:
    return JournalMachine(0).encode(a) == JournalMachine(0).encode(b)


def entries_of(cluster: ClusterHandles) -> int:
    return sum(journal_log(0) + "log/" in k for k in store_of(cluster).objects)


def window_now(cluster: ClusterHandles) -> EpochWindow:
    """Return the log's window, as a new process reads it."""
    return handle_of(memory_cluster(store_of(cluster), seed=99, bootstrap=False)).state.window


def before_append(cluster: ClusterHandles, act: Callable[[], object]) -> None:
    """Call `act` once, just before the next append to a journal takes effect."""
    store_of(cluster).fault = once(act, "put_if_absent", "/journal/")


# -- landing -----------------------------------------------------------------------------------------------------------


def test_extents_land_one_after_the_other_and_move_the_window() -> None:
    a, b = processes(2)
    assert land(handle_of(a), extent(3), 10).base_offset == 0
    assert land(handle_of(a), extent(2), 12).base_offset == 3
    assert land(handle_of(b), extent(1), 11).base_offset == 5
    assert window_now(a) == EpochWindow(10, 12)


def test_a_fenced_object_below_a_moved_window_does_not_land() -> None:
    """Hazard 2: the fence admits the object, the window slides, and the log refuses the object."""
    a, b = processes(2)
    land(handle_of(a), extent(), 10)
    ours, theirs = handle_of(a), handle_of(b)

    def slide() -> None:
        assert ours.fence.window.admits(10)  # the fence has admitted it
        theirs.advance(15)
        theirs.advance(20)

    before_append(a, slide)
    with pytest.raises(StaleClusterEpochError, match=r"epoch 10 is below the window \[15, 20\]"):
        land(ours, extent(), 10)
    assert next_offset(handle_of(b)) == 1
    assert window_now(a) == EpochWindow(15, 20)
    assert land(ours, extent(), 15).base_offset == 1  # the handle still works


def test_a_fenced_object_inside_a_moved_window_lands() -> None:
    a, ours, theirs = two_processes()
    land(ours, extent(), 10)
    before_append(a, lambda: land(theirs, extent(4), 15))
    assert land(ours, extent(), 10).base_offset == 5


def test_a_barrier_in_another_process_shuts_a_straggler_out() -> None:
    a, b = processes(2)
    land(handle_of(a), extent(), 10)
    assert handle_of(b).barrier(20)
    assert not handle_of(b).barrier(20)
    with pytest.raises(StaleClusterEpochError, match=r"\[20, 20\]"):
        land(handle_of(a), extent(), 19)


def test_a_closed_topic_takes_nothing_more() -> None:
    a, b = processes(2)
    handle = handle_of(a)
    land(handle, extent(), 10)
    assert handle_of(b).close(REVISION)
    assert not handle_of(b).close(REVISION)
    with pytest.raises(PartitionClosedError):
        land(handle, extent(), 10)


def test_an_epoch_above_the_clusters_moves_no_window() -> None:
    """Hazard 14: the log's window does not move, and neither does the fence's, which would then refuse every writer."""
    (a,) = processes(1, epoch=20)
    handle = handle_of(a)
    land(handle, extent(), 10)
    slides = handle.fence.counters.window_slides
    for offer in (lambda e: land(handle, extent(), e), handle.advance, handle.barrier):
        for epoch in (21, 10**17, 10**18):
            with pytest.raises(SafetyError, match="above the cluster epoch"):
                offer(epoch)
    assert handle.fence.counters.window_slides == slides
    assert handle.fence.window == window_now(a) == EpochWindow(0, 10)
    assert land(handle, extent(), 5).base_offset == 1


def test_a_cached_cluster_epoch_does_not_make_a_newer_one_poisoned() -> None:
    a, b = processes(2)
    handle = handle_of(a)
    assert a.controller.epoch() == 20
    assert b.controller.advance() == 21
    assert a.controller.epoch() == 20  # cached
    land(handle, extent(), 21)
    assert window_now(a) == EpochWindow(0, 21)


# -- appends that fail -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [AccessDeniedError("no"), StoreUnreachableError("away"), RuntimeError("a defect"), KeyboardInterrupt()],
    ids=lambda e: type(e).__name__,
)
def test_the_epoch_of_a_failed_append_shuts_nobody_out(error: BaseException) -> None:
    """Hazard 3: 10 lands, 14 is lost, 7 lands right after the loss, 12 and 13 land, and 11 is refused."""
    a, handle = a_process()
    land(handle, extent(), 10)
    store_of(a).fault = failing(error, "put_if_absent")
    with pytest.raises(type(error)):
        land(handle, extent(), 14)
    store_of(a).fault = lambda call: None
    assert handle.fence.window == window_now(a) == EpochWindow(0, 10)
    assert land(handle, extent(), 7).base_offset == 1
    land(handle, extent(), 12)
    land(handle, extent(), 13)
    with pytest.raises(StaleClusterEpochError, match=r"\[12, 13\]"):
        land(handle, extent(), 11)


def test_what_is_older_than_its_topic_shuts_nobody_out() -> None:
    """The fence admits the older object and slides, since the journal's window is lower; the log refuses the object."""
    a, handle = a_process()
    for epoch in (10, 12):
        land(handle, extent(), epoch)
    young, _ = a.controller.create_topic("young", 1)
    assert young.journals != (0,)
    older = extents_of(15, {0: 1}, key="older", revision=young.revision, topic_id=young.topic_id)
    appended = handle.append([older])
    assert isinstance(appended.error, StaleClusterEpochError)
    assert handle.fence.window == EpochWindow(10, 12)
    assert land(handle, extent(), 11).log_offset == 2


def test_a_conflict_drops_the_seen_window() -> None:
    """Hazard 4: another process slides the window while this one waits for the log."""
    a, ours, theirs = two_processes()
    land(ours, extent(), 10)

    def overtake() -> None:
        assert ours.fence.window == EpochWindow(10, 14)
        land(theirs, extent(), 12)

    before_append(a, overtake)
    land(ours, extent(), 14)
    assert ours.fence.window == window_now(a) == EpochWindow(12, 14)


def test_an_append_whose_reply_is_lost_lands_once() -> None:
    """Hazard 8: an append without a reply must not be repeated."""
    a, handle = a_process()
    store_of(a).fault = lose_reply("/journal/")
    assert land(handle, extent(3), 10).base_offset == 0
    assert land(handle, extent(), 10).base_offset == 3
    assert entries_of(a) == 2


def test_an_append_that_another_process_beat_ambiguously_lands_after_it() -> None:
    """Hazard 8: the reply is lost, and another process's entry has taken the offset."""
    a, ours, theirs = two_processes()
    land(ours, extent(), 10)

    def beaten() -> None:
        land(theirs, extent(5), 10)
        raise AmbiguousWriteError("cut off before it was sent")

    before_append(a, beaten)
    assert land(ours, extent(2), 10).base_offset == 6
    assert entries_of(a) == 3


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_batch_with_an_unknown_append_can_be_repeated(when: str) -> None:
    """Hazard 8: the outcome of the append is unknown, and the repeated batch lands once."""
    a, handle = a_process()
    batch = producer_batch(a)
    cut = [False]

    def fault(call: Call) -> None:
        if cut[0]:
            raise AmbiguousWriteError("no reply")
        if (call.kind, call.when) == ("put_if_absent", when):
            cut[0] = True
            raise AmbiguousWriteError("no reply")

    store_of(a).fault = fault
    with pytest.raises(AppendOutcomeUnknownError):
        land(handle, extent(4, batch), 10)
    store_of(a).fault = lambda call: None
    assert land(handle, extent(4, batch), 10).base_offset == 0
    assert entries_of(a) == 1
    assert next_offset(handle) == 4


# -- producers ---------------------------------------------------------------------------------------------------------


def producer_batch(cluster: ClusterHandles, *, sequence: int = 0) -> ProducerBatch:
    """Return a batch of a new run of the producer `job`."""
    p = cluster.controller.init_producer("job")
    return ProducerBatch(p.producer_id, p.epoch, p.run, sequence)


def test_a_repeated_batch_is_answered_and_appends_nothing() -> None:
    a, b = processes(2)
    batch = producer_batch(a)
    first = land(handle_of(a), extent(4, batch), 10)
    assert land(handle_of(b), extent(4, batch), 12) == first
    assert entries_of(a) == 1


def test_a_repeated_batch_at_a_newer_epoch_shuts_nobody_out() -> None:
    """Hazard 3: nothing is appended at the newer epoch, so the seen window must not stay there."""
    (a,) = processes(1)
    batch = producer_batch(a)
    land(handle_of(a), extent(4, batch), 10)
    land(handle_of(a), extent(4, batch), 12)
    assert handle_of(a).fence.window == handle_of(a).state.window
    assert land(handle_of(a), extent(1), 9).base_offset == 4


def test_a_zombie_that_the_journal_never_knew_cannot_begin() -> None:
    """Hazard 17: the controller has bumped its epoch, and neither run has landed anything in this journal."""
    a, b = processes(2)
    zombie, current = producer_batch(a), producer_batch(b)
    with pytest.raises(UnknownProducerError, match=r"epoch 0 is not the newest .* bumps its epoch"):
        land(handle_of(a), extent(1, zombie), 10)
    assert land(handle_of(b), extent(1, current), 10).base_offset == 0
    handle_of(a).catch_up()
    with pytest.raises(InvalidProducerEpochError):
        land(handle_of(a), extent(1, zombie), 10)
    assert entries_of(a) == 1


@pytest.mark.parametrize("sequence", [0, 1])
def test_a_zombie_whose_state_was_lost_cannot_write(sequence: int) -> None:
    """Hazard 17: the zombie was fenced, and then the journal forgot both runs."""
    a, b = processes(2)
    zombie = producer_batch(a)
    land(handle_of(a), extent(1, zombie), 10)
    land(handle_of(b), extent(1, producer_batch(b)), 10)
    store_of(a).clock.ms += PRODUCER_EXPIRY_MS + 1
    handle_of(b).catch_up()  # an entry's time is the store's time at the last read
    land(handle_of(b), extent(1), 20)
    assert handle_of(b).state.producers == handle_of(a).catch_up().producers == {}
    with pytest.raises(UnknownProducerError):
        land(handle_of(a), extent(1, msgspec.structs.replace(zombie, sequence=sequence)), 20)


def test_the_producer_is_looked_up_again_if_the_log_moved() -> None:
    """Hazard 17: after the controller's answer and before the landing, a new run fences the producer and lands."""
    a, b = processes(2)
    batch = producer_batch(a)
    before_append(a, lambda: land(handle_of(b), extent(1, producer_batch(b)), 10))
    with pytest.raises(InvalidProducerEpochError):
        land(handle_of(a), extent(1, batch), 10)
    assert entries_of(a) == 1


def test_every_process_knows_how_far_an_input_got_also_after_a_checkpoint() -> None:
    a, b = processes(2)
    batch = msgspec.structs.replace(producer_batch(a), inputs=[InputSpan("day-1", 0, 6)])
    land(handle_of(a), extent(6, batch), 10)
    assert handle_of(a).replica.write_checkpoint() == 0
    assert landed_of(handle_of(b).state.producers, batch.producer_id, "day-1") == 6
    assert landed_of(handle_of(b).state.producers, batch.producer_id, "day-2") == 0
    assert handle_of(b).replica.checkpoint_offset == 0


# -- threads and processes ---------------------------------------------------------------------------------------------


def test_the_fence_does_not_wait_for_the_log() -> None:
    """A thread that holds the log may need the fence, to drop the seen window, so the fence must never need the log."""
    a, handle = a_process()
    land(handle, extent(), 10)
    seen: list[EpochWindow] = []

    def read_from_another_thread() -> None:  # called while the append holds the log
        other = threading.Thread(target=lambda: seen.append(handle.fence.window), daemon=True)
        other.start()
        other.join(PATIENCE_S)
        assert seen == [EpochWindow(0, 10)]

    before_append(a, read_from_another_thread)
    land(handle, extent(), 10)
    assert seen


def test_threads_with_mixed_epochs_and_a_second_process_never_lock_up() -> None:
    a, b = processes(2, epoch=60)
    ours, theirs = handle_of(a), handle_of(b)
    lock = threading.Lock()
    landed: list[tuple[int, int]] = []
    begin = threading.Barrier(6)

    def work(n: int) -> None:
        begin.wait(PATIENCE_S)
        for i in range(12):
            try:
                done = land(ours, extent(n + 1, key=f"{n}-{i}"), 4 * i + n)
            except StaleClusterEpochError:
                continue
            with lock:
                landed.append((done.base_offset, done.base_offset + n))

    within_patience(*(functools.partial(work, n) for n in range(6)))
    ranges = sorted(landed)
    assert ranges
    assert [first for first, _ in ranges] == [0, *(last + 1 for _, last in ranges[:-1])]
    assert same(theirs.catch_up(), ours.state)


@pytest.mark.parametrize("seed", sampled(range(6), range(3)))
def test_processes_that_interleave_agree_and_nothing_lands_below(seed: int) -> None:
    clusters = processes(3)
    handles = [handle_of(c) for c in clusters]
    chance = random.Random(seed)
    expected: dict[int, str] = {}
    refused: list[tuple[int, int]] = []
    for n in range(60):
        at = chance.randrange(3)
        cluster, handle = clusters[at], handles[at]
        other = handles[(at + 1) % 3]
        if chance.random() < 0.3:
            before_append(cluster, lambda other=other: _disturb(other, chance))  # type: ignore[misc]
        elif chance.random() < 0.2:
            store_of(cluster).fault = lose_reply("/journal/")
        else:
            store_of(cluster).fault = lambda call: None
        if chance.random() < 0.2:
            cluster.controller.advance()
        epoch = max(1, cluster.controller.epoch() - chance.randrange(4))
        oldest = window_oldest(clusters[0])
        try:
            landed = land(handle, extent(2, key=f"batch-{n}"), epoch)
        except StaleClusterEpochError as e:
            refused.append((epoch, e.window[0]))
            continue
        assert epoch >= oldest
        expected[landed.base_offset] = f"level_zero/data/000/batch-{n}"
    store_of(clusters[0]).fault = lambda call: None
    assert all(epoch < oldest for epoch, oldest in refused)
    states = [h.catch_up() for h in handles]
    assert same(states[0], states[1])
    assert same(states[1], states[2])
    stored = {e.base_offset: e.key for e in states[0].topic(REVISION).extents(0)}
    assert {k: v for k, v in stored.items() if "disturb" not in v} == expected


def _disturb(handle: JournalHandle, chance: random.Random) -> None:
    try:
        if chance.random() < 0.5:
            handle.advance(20 + chance.randrange(3))
        else:
            land(handle, extent(1, key="disturb"), 20)
    except L0gcError:
        return


def window_oldest(cluster: ClusterHandles) -> int:
    """Return the oldest epoch that the log admits, as of the last append."""
    store = store_of(cluster)
    fault, store.fault = store.fault, lambda call: None
    oldest = window_now(cluster).oldest
    store.fault = fault
    return oldest


def test_each_journal_has_one_handle_per_process() -> None:
    (a,) = processes(1)
    assert a.journal(3) is a.journal(3)


# -- group commit ------------------------------------------------------------------------------------------------------


def offers(handle: JournalHandle, count: int, epoch: int = 10) -> list[ObjectExtents]:
    return [offered(handle, extent(n + 1, key=f"object-{n}"), epoch) for n in range(count)]


def test_objects_that_are_offered_together_land_in_one_entry_in_their_order() -> None:
    a, handle = a_process()
    appended = handle.append(offers(handle, 3))
    assert appended.error is None
    assert [(w.log_offset, w.bases.tolist()) for w in appended.landed if w.bases is not None] == [
        (0, [0]),
        (0, [1]),
        (0, [3]),
    ]
    assert entries_of(a) == 1


def test_none_lands_behind_one_that_was_refused() -> None:
    _, handle = a_process()
    for epoch in (10, 12):
        land(handle, extent(), epoch)
    first, second, third = offers(handle, 3, epoch=12)
    second = msgspec.structs.replace(second, records=b"")
    appended = handle.append([first, second, third])
    assert len(appended.landed) == 1
    assert isinstance(appended.error, UsageError)
    appended = handle.append([*offers(handle, 1, epoch=12), *offers(handle, 1, epoch=9), *offers(handle, 1, epoch=12)])
    assert len(appended.landed) == 1
    assert isinstance(appended.error, StaleClusterEpochError)
    assert next_offset(handle) == 4


def test_landed_objects_are_reported_before_the_next_epochs_failure() -> None:
    a, handle = a_process()
    objects = [*offers(handle, 1, epoch=10), *offers(handle, 1, epoch=11)]
    store_of(a).fault = failing(StoreUnreachableError("away"), key=f"log/{1:020}")
    appended = handle.append(objects)
    store_of(a).fault = lambda call: None
    assert [w.log_offset for w in appended.landed] == [0]
    assert isinstance(appended.error, StoreUnreachableError)
    assert next_offset(handle) == 1


def test_batches_finished_during_an_append_share_the_next_entry() -> None:
    a, handle = a_process()
    objects = offers(handle, 6)
    queued: list[bool] = []
    threads: list[threading.Thread] = []
    errors: list[L0gcError | None] = []

    def offer(o: ObjectExtents) -> None:
        errors.append(handle.append([o]).error)

    def others_come() -> None:
        for o in objects[1:]:
            threads.append(threading.Thread(target=offer, args=(o,), daemon=True))
            threads[-1].start()
        queued.append(comes_true(lambda: len(handle._queue) == 6))

    before_append(a, others_come)
    offer(objects[0])
    for thread in threads:
        thread.join(PATIENCE_S)
    assert queued == [True]
    assert errors == [None] * 6
    assert entries_of(a) == 2
    assert next_offset(handle) == 21


def test_after_a_conflict_the_entry_takes_what_has_queued_meanwhile() -> None:
    a, b = processes(2)
    handle = handle_of(a)
    first, second = offers(handle, 2)
    done: list[object] = []

    def beaten() -> None:
        land(handle_of(b), extent(9, key="winner"), 10)
        thread = threading.Thread(target=lambda: done.append(handle.append([second])), daemon=True)
        thread.start()
        comes_true(lambda: len(handle._queue) == 2)

    before_append(a, beaten)
    appended = handle.append([first])
    assert appended.landed[0].log_offset == 1
    assert comes_true(lambda: bool(done))
    assert entries_of(a) == 2  # the winner's entry, and one for both objects


def test_an_entry_is_bounded_and_what_waits_goes_into_the_next_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("l0gc.streamlog.journal.handle.ENTRY_BYTES", 1)
    a, handle = a_process()
    appended = [handle.append([o]) for o in offers(handle, 3)]
    assert [x.error for x in appended] == [None] * 3
    assert entries_of(a) == 3


def test_a_request_whose_replay_failed_is_not_committed_by_another_thread() -> None:
    a, handle = a_process()
    _ = handle.state
    handle.replica._whole = False  # as after an append that failed
    store_of(a).fault = failing(StoreUnreachableError("away"))
    with pytest.raises(StoreUnreachableError):
        handle._append_epoch(10, offers(handle, 1), AppendResult())
    store_of(a).fault = lambda call: None
    assert not handle._queue


def test_a_window_above_the_cluster_epoch_means_the_controller_went_back() -> None:
    """Hazard 10: otherwise the object would be stamped anew for ever."""
    a, b = processes(2)
    handle_of(a).advance(20)
    for epoch in (21, 22):
        b.controller.advance()
        handle_of(b).advance(epoch)
    store = store_of(a)
    for offset in (21, 22):
        del store.objects[f"l0gc/controller/log/{offset:020}"]
    c = memory_cluster(store, seed=9, bootstrap=False)
    with pytest.raises(EpochRegressionError, match="looks restored"):
        land(handle_of(c), extent(), 20)
