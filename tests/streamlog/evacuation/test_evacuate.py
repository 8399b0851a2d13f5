"""Evacuations over a store in memory: what is moved, what M passes then, and what goes wrong meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest

from l0gc.collect.plan import Removal
from l0gc.collect.sweep import Sweep
from l0gc.errors import NotFoundError, StoreError
from l0gc.storage.workers import LocalWorkers
from l0gc.streamlog.cluster import Handles
from l0gc.streamlog.epoch_source import JournalSource
from l0gc.streamlog.evacuation import copy as copies
from l0gc.streamlog.evacuation.evacuate import run_evacuation
from l0gc.streamlog.evacuation.plan import EvacuateResult, plan_evacuation
from l0gc.streamlog.give_up import give_up
from l0gc.streamlog.housekeep import housekeep
from l0gc.streamlog.level_one import reconcile as runs
from l0gc.streamlog.level_one.waiting import has_work
from l0gc.streamlog.pins import create_pin
from l0gc.streamlog.reader import read_topic
from l0gc.watermark.histogram import read_listing
from l0gc.watermark.pipeline import run_pipeline
from tests.support.ingest import stored_values
from tests.support.memory_store import MemoryStore, another_process, memory_cluster, store_of
from tests.support.reconcile import put, reconcile, reconcile_but

L0 = "level_zero/data/"
LAGGING = 3
ROUNDS = 6


def lagging(journals: int = 1, rounds: int = ROUNDS, partitions: int = 8) -> Handles:
    """Rounds of uploads into one topic, of which all partitions but one are reconciled, each at an epoch of its own."""
    cluster = memory_cluster(MemoryStore())
    cluster.controller.create_topic("events", partitions, journals)
    cluster.controller.create_topic("paused", partitions, 1)
    put(cluster, "paused", {LAGGING: [b"paused"]})
    for n in range(rounds):
        put(cluster, "events", *({p: [random.Random(n).randbytes(99)] for p in range(partitions)} for _ in range(2)))
        reconcile(cluster, "events")
        tick(cluster)
    return cluster


def tick(cluster: Handles) -> None:
    cluster.controller.advance()
    housekeep(cluster)
    store_of(cluster).clock.ms += 1000


def compute(cluster: Handles) -> int:
    workers = LocalWorkers(cluster)
    return run_pipeline(cluster, JournalSource(cluster, workers), partial(read_listing, workers)).watermark


def sweep(cluster: Handles) -> int:
    return Sweep(cluster, Removal()).run(2).deleted


def evacuate(cluster: Handles, **limits: float) -> EvacuateResult:
    plan = plan_evacuation(cluster, **limits)  # type: ignore[arg-type]
    result = run_evacuation(cluster, plan, LocalWorkers(cluster))
    if not result.errors:
        assert (result.target_epoch, result.moved, result.released) == (
            plan.expected.target_epoch,
            plan.expected.moved,
            plan.expected.released,
        )
    return result


def l0(cluster: Handles) -> list[str]:
    return [k for k in store_of(cluster).objects if k.startswith(L0)]


def test_after_an_evacuation_m_passes_what_the_lagging_partition_held() -> None:
    cluster = lagging()
    before = stored_values(cluster, "paused")
    held = compute(cluster)
    assert sweep(cluster) <= 1
    compute(cluster)
    result = evacuate(cluster)
    assert (result.moved.objects, result.moved.extents) == (1, 1)
    assert result.target_epoch is not None
    assert result.target_epoch > held
    assert (result.released.objects > 4, result.reason) == (True, "")
    tick(cluster)
    assert compute(cluster) >= result.target_epoch
    assert sweep(cluster) >= result.released.objects
    assert stored_values(cluster, "paused") == before
    reconcile(cluster)
    assert stored_values(cluster, "paused") == before


def test_a_topic_over_several_journals_and_extents_that_share_a_block_move_as_they_are() -> None:
    cluster = memory_cluster(MemoryStore())
    topic, _ = cluster.controller.create_topic("events", 30, 3)
    for n in range(ROUNDS):
        put(cluster, "events", {p: [b"%d-%d" % (n, p)] for p in range(30)})
        tick(cluster)
    put(cluster, "events", {0: [b"the end"]})
    reconcile_but(cluster, {7, 8, 25})
    before, times = stored_values(cluster, "events"), times_of(cluster)
    for _ in range(3):
        tick(cluster)
    compute(cluster)
    result = evacuate(cluster, ratio=0.1)
    assert result.moved.extents == 3 * ROUNDS
    state = cluster.journal(topic.journals[0]).catch_up().topic(topic.revision)
    assert len({o.key for o in state.objects}) == 1
    for _ in range(3):
        tick(cluster)
    compute(cluster)
    sweep(cluster)
    assert len(l0(cluster)) <= 2
    assert stored_values(cluster, "events") == before
    assert times_of(cluster) == times
    reconcile(cluster)
    assert stored_values(cluster, "events") == before
    assert times_of(cluster) == times


def times_of(cluster: Handles) -> list[tuple[int, int, int]]:
    topic = cluster.controller.snapshot().topic("events")
    return [(r.partition, r.offset, r.timestamp_ms) for r in read_topic(cluster, topic)]


def test_copies_are_about_so_large_and_many_old_objects_go_into_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "COPY_BYTES", 60)
    cluster = memory_cluster(MemoryStore())
    cluster.controller.create_topic("events", 1, 1)
    for n in range(9):
        put(cluster, "events", {0: [b"%d" % n]})
    for _ in range(3):
        tick(cluster)
    store_of(cluster).put(cluster_key(cluster), b"x" * 10_000)
    compute(cluster)
    before = set(l0(cluster))
    assert evacuate(cluster).moved.objects == 9
    assert 1 < len(set(l0(cluster)) - before) < 9


def cluster_key(cluster: Handles) -> str:
    """Garbage at an old epoch: an upload that was never committed."""
    return cluster.controller.layout().format(0, 1, cluster.runtime.new_id())


def test_what_waits_behind_a_hole_moves_and_is_lifted_later() -> None:
    """Reconcile cannot take it yet, but it holds M as the rest does."""
    cluster = memory_cluster(MemoryStore())
    cluster.controller.create_topic("events", 4)
    cluster.controller.create_topic("paused", 8)
    keys = []
    for n in range(4):
        keys += put(cluster, "paused", {LAGGING: [b"paused-%d" % n]})
        put(cluster, "events", {p: [b"x" * 400] for p in range(4)})
        reconcile(cluster, "events")
        tick(cluster)
    cluster.store.delete([keys[1]])
    give_up(cluster, "paused", LAGGING, (1, 1), "ann")
    tick(cluster)
    compute(cluster)
    result = evacuate(cluster)
    assert (result.moved.extents, result.target_epoch) == (3, 5)
    tick(cluster)
    assert compute(cluster) >= 5
    sweep(cluster)
    assert not set(keys) & set(l0(cluster))
    while has_work(cluster):
        reconcile(cluster)
    topic = cluster.controller.snapshot().topic("paused")
    left = [r.value for r in read_topic(cluster, topic, [LAGGING], skip_holes=True)]
    assert left == [b"paused-0", b"paused-2", b"paused-3"]


def test_what_is_not_worth_it_is_left_with_a_reason() -> None:
    cluster = lagging()
    compute(cluster)
    keys = set(l0(cluster))
    assert "and --ratio is 1e+09" in evacuate(cluster, ratio=1e9).reason
    assert "more than --max-bytes 1 B" in evacuate(cluster, max_bytes=1).reason
    assert evacuate(lagging_nothing()).reason.startswith("no partition that lags")
    assert set(l0(cluster)) == keys


def lagging_nothing() -> Handles:
    cluster = lagging()
    reconcile(cluster)
    compute(cluster)
    return cluster


def test_nothing_is_moved_that_a_pin_would_keep_from_being_released() -> None:
    cluster = lagging()
    compute(cluster)
    assert plan_evacuation(cluster).target.epoch is not None
    pin = create_pin(cluster, "backup", 3_600_000)
    plan = plan_evacuation(cluster)
    assert plan.target.epoch is None
    assert "or a pin is" in plan.target.why
    cluster.controller.delete_pin("backup", pin.revision)
    assert plan_evacuation(cluster).target.epoch is not None


def test_without_a_listing_since_the_last_sweep_nothing_is_moved() -> None:
    cluster = lagging()
    with pytest.raises(NotFoundError, match="nobody has listed the bucket yet"):
        plan_evacuation(cluster)
    compute(cluster)
    with pytest.raises(NotFoundError, match="a sweep has ended 9 s after the bucket was listed"):
        plan_evacuation(cluster, swept_ms=store_of(cluster).clock.ms + 9000)


@pytest.mark.parametrize("what", ["missing", "damaged", "short"])
def test_what_cannot_be_read_stays_and_is_named_and_the_rest_moves(what: str) -> None:
    cluster = lagging()
    put(cluster, "paused", {1: [b"other"]})
    put(cluster, "events", {p: [random.Random(p).randbytes(500)] for p in range(8)})
    reconcile(cluster, "events")
    for _ in range(3):
        tick(cluster)
    compute(cluster)
    store = store_of(cluster)
    topic = cluster.controller.snapshot().topic("paused")
    handle = cluster.journal(topic.journals[0])
    first, second = handle.catch_up().topic(topic.revision).objects
    match what:
        case "missing":
            del store.objects[first.key]
        case "damaged":
            store.objects[first.key].body = b"?" * len(store.objects[first.key].body)
        case "short":
            store.objects[first.key].body = store.objects[first.key].body[:-1]
    result = evacuate(cluster)
    assert len(result.errors) == 1
    assert "restore that object from a version" in result.errors[0]
    assert (result.moved.objects, result.released.objects) == (1, 0)
    objects = handle.catch_up().topic(topic.revision).objects
    assert [o.key == old.key for o, old in zip(objects, (first, second), strict=True)] == [True, False]


def meanwhile_reconciled(cluster: Handles) -> None:
    reconcile(another_process(cluster))


def meanwhile_moved(cluster: Handles) -> None:
    evacuate(another_process(cluster))


def meanwhile_deleted(cluster: Handles) -> None:
    cluster.controller.delete_topic("paused")
    housekeep(another_process(cluster))


@pytest.mark.parametrize("meanwhile", [meanwhile_reconciled, meanwhile_moved, meanwhile_deleted])
def test_what_others_did_between_the_copy_and_the_landing_stays_done(meanwhile: Callable[[Handles], None]) -> None:
    cluster = lagging()
    compute(cluster)
    plan, other = plan_evacuation(cluster), another_process(cluster)
    real = cluster.write_l0

    def write(body: bytes, epoch: int) -> str:
        key = real(body, epoch)
        meanwhile(other)
        return key

    cluster.write_l0 = write  # type: ignore[method-assign]
    result = run_evacuation(cluster, plan, LocalWorkers(cluster))
    assert (result.moved.extents, result.errors) == (0, [])
    for _ in range(3):
        tick(other)
    compute(other)
    sweep(other)
    if meanwhile is not meanwhile_deleted:
        assert stored_values(other, "paused")[LAGGING] == [b"paused"]
        reconcile(other)
        assert stored_values(other, "paused")[LAGGING] == [b"paused"]


def test_an_object_that_another_evacuation_moved_and_a_sweep_took_is_no_error() -> None:
    cluster = lagging()
    compute(cluster)
    plan, other = plan_evacuation(cluster), another_process(cluster)
    real = store_of(cluster).get_ranges

    def late(key: str, ranges: list[tuple[int, int]]) -> list[bytes]:
        if not swept:
            swept.append(1)
            evacuate(other)
            for _ in range(3):
                tick(other)
            compute(other)
            sweep(other)
        return real(key, ranges)

    swept: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_of(cluster), "get_ranges", late)
        result = run_evacuation(cluster, plan, LocalWorkers(cluster))
    assert (result.moved.extents, result.errors) == (0, [])
    assert stored_values(other, "paused")[LAGGING] == [b"paused"]


def test_a_store_that_is_full_ends_it_and_nothing_was_moved_by_halves() -> None:
    cluster = lagging()
    compute(cluster)

    def full(body: bytes, epoch: int) -> str:
        raise StoreError("no room is left")

    cluster.write_l0 = full  # type: ignore[method-assign]
    with pytest.raises(StoreError):
        evacuate(cluster)
    assert stored_values(another_process(cluster), "paused")[LAGGING] == [b"paused"]


def swept_after_a_move(cluster: Handles) -> None:
    compute(cluster)
    assert evacuate(cluster).moved.objects
    for _ in range(3):
        tick(cluster)
    compute(cluster)
    assert sweep(cluster) > 2


def test_a_reader_that_planned_with_an_object_that_was_moved_and_swept_looks_again() -> None:
    cluster = lagging()
    topic = cluster.controller.snapshot().topic("paused")
    real, done = store_of(cluster).get_ranges, list[int]()

    def late(key: str, ranges: list[tuple[int, int]]) -> list[bytes]:
        if not done:
            done.append(1)
            swept_after_a_move(another_process(cluster))
        return real(key, ranges)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_of(cluster), "get_ranges", late)
        assert [r.value for r in read_topic(cluster, topic)] == [b"paused"]
    assert done


def test_a_reconciler_that_planned_with_an_object_that_was_moved_and_swept_looks_again() -> None:
    cluster = lagging()
    put(cluster, "paused", {LAGGING: [b"later"]})
    real, done = store_of(cluster).get_ranges, list[int]()

    def late(key: str, ranges: list[tuple[int, int]]) -> list[bytes]:
        if not done:
            done.append(1)
            swept_after_a_move(another_process(cluster))
        return real(key, ranges)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_of(cluster), "get_ranges", late)
        result = runs.reconcile(cluster, "paused")
    assert (result.errors, result.records, result.lost) == ([], 2, 0)
    assert stored_values(cluster, "paused")[LAGGING] == [b"paused", b"later"]
