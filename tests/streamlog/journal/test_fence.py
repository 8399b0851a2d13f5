"""The in-process fence: which writers it admits together, which wait, which it refuses, and what it forgets."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator

import pytest

from l0gc.errors import StaleClusterEpochError
from l0gc.streamlog.journal.admission import EpochWindow
from l0gc.streamlog.journal.fence import EpochFence
from tests.support.fence import PATIENCE_S, Applied, Writer, fence_on, fenced, held, within_patience
from tests.support.journal import of_topic
from tests.support.memory_store import MemoryStore, memory_cluster


def test_the_window_slides_over_two_epochs() -> None:
    fence, _ = fence_on(5, 5)
    assert fenced(fence, 5) == fence.window == EpochWindow(5, 5)
    assert fenced(fence, 6) == fence.window == EpochWindow(5, 6)
    assert fenced(fence, 7) == fence.window == EpochWindow(6, 7)


def test_below_the_window_is_refused_with_the_window_in_the_message() -> None:
    fence, _ = fence_on(5, 5)
    fenced(fence, 8)
    fenced(fence, 9)
    with pytest.raises(StaleClusterEpochError, match=r"epoch 6 is below the window \[8, 9\] of journal 3") as e:
        fenced(fence, 6)
    assert (e.value.epoch, e.value.window) == (6, (8, 9))
    assert fence.window == EpochWindow(8, 9)


def test_one_epoch_late_is_admitted_and_two_are_not() -> None:
    """N+1, N, N+2 in this order: the log's window keeps N, which the fencing plan's volatile window would refuse."""
    fence, _ = fence_on(5, 5)
    assert fenced(fence, 6) == EpochWindow(5, 6)
    assert fenced(fence, 5) == EpochWindow(5, 6)
    assert fenced(fence, 7) == EpochWindow(6, 7)
    with pytest.raises(StaleClusterEpochError):
        fenced(fence, 5)


def test_a_new_process_takes_its_whole_window_from_the_log() -> None:
    """A checkpoint has the window [10, 11] and the entries are deleted; another process fenced 14, which never lands."""
    first = memory_cluster()
    topic, _ = first.controller.create_topic("events", 1)
    while first.controller.epoch() < 20:
        first.controller.advance()
    handle = first.journal(0)
    for epoch in (10, 11):
        assert handle.append([of_topic(topic, epoch)]).error is None
    assert isinstance(first.store, MemoryStore)
    first.store.clock.sleep(3600)
    handle.replica.write_checkpoint()
    assert handle.replica.log.truncate() == 1
    assert fenced(handle.fence, 14) == EpochWindow(11, 14)

    anew = memory_cluster(first.store, seed=1, bootstrap=False).journal(0)
    assert anew.state.window == anew.fence.window == EpochWindow(10, 11)
    assert fenced(anew.fence, 11) == fenced(anew.fence, 10) == EpochWindow(10, 11)
    with pytest.raises(StaleClusterEpochError):
        fenced(anew.fence, 9)
    assert fenced(anew.fence, 12) == EpochWindow(11, 12)


# -- concurrent writers ------------------------------------------------------------------------------------------------


def test_writers_at_epochs_inside_the_window_hold_the_fence_together() -> None:
    fence, applied = fence_on(5, 6)
    with Writer(fence, applied, 6) as a, Writer(fence, applied, 6) as b, Writer(fence, applied, 5) as c:
        assert a.admitted.wait(PATIENCE_S)
        assert b.admitted.wait(PATIENCE_S)
        assert c.admitted.wait(PATIENCE_S)


def test_a_new_epoch_waits_to_be_exclusive() -> None:
    fence, applied = fence_on(5, 5)
    with Writer(fence, applied, 5) as old, Writer(fence, applied, 6) as new:
        assert old.admitted.wait(PATIENCE_S)
        assert new.waits
        assert fence.window == EpochWindow(5, 5)
        old.finish()
        assert new.admitted.wait(PATIENCE_S)
        with Writer(fence, applied, 6) as other, Writer(fence, applied, 5) as late:
            assert other.admitted.wait(PATIENCE_S)
            assert late.admitted.wait(PATIENCE_S)
            assert late.window == EpochWindow(5, 6)


def test_nobody_slips_in_while_a_slide_is_under_way() -> None:
    fence, applied = fence_on(5, 5)
    with Writer(fence, applied, 5) as old, Writer(fence, applied, 6) as new, Writer(fence, applied, 5) as late:
        assert late.waits  # otherwise the slide could wait for ever
        old.finish()
        assert new.admitted.wait(PATIENCE_S)
        assert late.admitted.wait(PATIENCE_S)


def test_two_writers_at_the_same_new_epoch_slide_once() -> None:
    fence, applied = fence_on(5, 5)
    with Writer(fence, applied, 5) as old, Writer(fence, applied, 6) as a, Writer(fence, applied, 6) as b:
        old.finish()
        assert a.admitted.wait(PATIENCE_S)
        assert b.admitted.wait(PATIENCE_S)
        assert fence.window == EpochWindow(5, 6)
        assert fence.counters.window_slides == 1


def test_writers_at_two_new_epochs_slide_one_after_the_other() -> None:
    fence, applied = fence_on(5, 5)
    with Writer(fence, applied, 5) as old, Writer(fence, applied, 6) as next_one, Writer(fence, applied, 7) as last:
        old.finish()
        assert next_one.admitted.wait(PATIENCE_S)
        _ = fence.window
        assert not last.admitted.is_set()  # 6 holds the fence, and 7 needs it alone
        assert next_one.window == EpochWindow(5, 6)
        next_one.finish()
        assert last.admitted.wait(PATIENCE_S)
        assert last.window == EpochWindow(6, 7)
    assert fence.counters.window_slides == 2


def test_a_smaller_waiting_epoch_stays_inside_the_greater_ones_window() -> None:
    fence, applied = fence_on(5, 5)
    with Writer(fence, applied, 5) as old, Writer(fence, applied, 9) as jump, Writer(fence, applied, 7) as between:
        assert jump.waits
        assert between.waits
        old.finish()
        assert jump.admitted.wait(PATIENCE_S)
        assert between.admitted.wait(PATIENCE_S)  # while 9 still holds the fence
        assert between.window == EpochWindow(5, 9)
    c = fence.counters
    assert (c.window_slides, c.fences_new_epoch, c.fences_known_epoch) == (1, 1, 2)


def test_a_slow_writer_is_not_refused_because_the_next_epoch_overtakes_it() -> None:
    """The writer's object was uploaded at 6, and it fences after 7 has landed."""
    fence, applied = fence_on(5, 6)
    with Writer(fence, applied, 7) as fast:
        assert fast.admitted.wait(PATIENCE_S)
        assert fast.window == EpochWindow(6, 7)
        applied.window = EpochWindow(6, 7)
        with Writer(fence, applied, 6) as slow:
            assert slow.admitted.wait(PATIENCE_S)
            assert slow.window == EpochWindow(6, 7)


@pytest.mark.parametrize("epoch", [5, 6])
def test_an_epoch_that_falls_below_while_it_waits_is_refused(epoch: int) -> None:
    fence, applied = fence_on(5, 5)
    with Writer(fence, applied, 5) as old, Writer(fence, applied, 6) as sliding, Writer(fence, applied, epoch) as late:
        applied.window = EpochWindow(9, 9)  # the log moves on
        old.finish()
        sliding.finish()
        late.finish()
        assert (sliding.window, late.window) == (None, None)
        assert sliding.error is not None
        assert late.error is not None
        assert late.error.window == (9, 9)
    c = fence.counters
    assert (c.fences_new_epoch, c.fences_known_epoch, c.rejected_below_window) == (0, 1, 2)
    assert fenced(fence, 9) == EpochWindow(9, 9)


def test_an_error_while_it_is_held_gives_the_fence_back() -> None:
    fence, applied = fence_on(5, 5)
    with pytest.raises(RuntimeError), held(fence, 5):
        raise RuntimeError
    with Writer(fence, applied, 6) as new:
        assert new.admitted.wait(PATIENCE_S)


def test_many_threads_at_many_epochs_all_come_through() -> None:
    fence, _ = fence_on(0, 0)
    inside: list[int] = []
    outcomes: list[int] = []
    begin = threading.Barrier(8)

    def work(seed: int) -> None:
        begin.wait(PATIENCE_S)
        for n in range(60):
            epoch = n // 4 + seed % 3
            try:
                with held(fence, epoch) as window:
                    inside.append(epoch)
                    assert epoch in window
                outcomes.append(1)
            except StaleClusterEpochError:
                outcomes.append(0)

    within_patience(*(functools.partial(work, seed) for seed in range(8)))
    assert len(outcomes) == 8 * 60
    assert sum(outcomes) == len(inside)
    c = fence.counters
    assert c.window_slides == c.fences_new_epoch
    assert c.fences_new_epoch + c.fences_known_epoch == sum(outcomes)
    assert c.rejected_below_window == len(outcomes) - sum(outcomes)


# -- the seen window against the log -----------------------------------------------------------------------------------


def landings(fence: EpochFence, applied: Applied, epochs: list[int]) -> Iterator[EpochWindow]:
    for epoch in epochs:
        yield fenced(fence, epoch)
        applied.window = applied.window.slide(epoch)


@pytest.mark.parametrize("forgotten", [True, False])
def test_a_bump_that_never_landed_lets_nobody_in_below_the_log(forgotten: bool) -> None:
    """Hazard 3: 10 lands, 14 is lost, 12 and 13 land; 11 is then below the window, even if the fence missed the loss."""
    fence, applied = fence_on(5, 5)
    list(landings(fence, applied, [10]))
    fenced(fence, 14)
    if forgotten:
        fence.forget()
    list(landings(fence, applied, [12, 13]))
    assert applied.window == EpochWindow(12, 13)
    with pytest.raises(StaleClusterEpochError):
        fenced(fence, 11)


def test_a_bump_that_never_landed_shuts_nobody_out() -> None:
    """Hazard 3: after 14 is lost, the log's window is [5, 10], so 7 may land."""
    fence, applied = fence_on(5, 5)
    list(landings(fence, applied, [10]))
    fenced(fence, 14)
    fence.forget()
    assert fence.window == EpochWindow(5, 10)
    assert fenced(fence, 7) == EpochWindow(5, 10)


def test_a_seen_window_ends_when_another_writer_moves_the_log_past_it() -> None:
    """Hazard 4: a seen window must not survive a change of writer."""
    fence, applied = fence_on(5, 5)
    list(landings(fence, applied, [10]))
    applied.window = EpochWindow(20, 21)  # as after a change of writer
    assert fence.window == EpochWindow(20, 21)
    with pytest.raises(StaleClusterEpochError):
        fenced(fence, 10)
    assert fenced(fence, 20) == EpochWindow(20, 21)


def test_a_seen_window_that_another_writer_has_overtaken_shuts_nobody_out() -> None:
    """Hazard 4: this process fences 14, but another one lands 15 first. 15 is then not a new epoch, and 12 may still
    land.
    """
    fence, applied = fence_on(10, 10)
    fenced(fence, 14)
    applied.window = EpochWindow(10, 15)
    fenced(fence, 15)
    assert fenced(fence, 12) == EpochWindow(10, 15)
