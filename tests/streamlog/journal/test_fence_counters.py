"""The fence's counters; any sequence of writers leaves the window and the counters of a simple model."""

from __future__ import annotations

from contextlib import AbstractContextManager

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from l0gc.errors import StaleClusterEpochError
from l0gc.streamlog.journal.admission import EpochWindow
from l0gc.streamlog.journal.fence import FenceCounters
from tests.support.fence import Writer, fence_on, fenced, held


def test_counts_slides_sizes_refusals_and_fences() -> None:
    fence, _ = fence_on(5, 5)
    assert fence.counters == FenceCounters(window_size=1)
    for epoch in (5, 9, 7, 12, 12):
        fenced(fence, epoch)
    for epoch in (8, 6):
        with pytest.raises(StaleClusterEpochError):
            fenced(fence, epoch)
    assert fence.counters == FenceCounters(
        window_slides=2,
        window_size=4,
        rejected_below_window=2,
        rejected_at_landing=0,
        last_rejected_gap=3,
        fences_new_epoch=2,
        fences_known_epoch=3,
    )


def test_the_counted_window_size_is_that_of_the_window_now() -> None:
    fence, applied = fence_on(5, 8)
    assert fence.counters.window_size == 4  # this process has not slid the window yet
    fenced(fence, 20)
    assert fence.counters.window_size == 13
    fence.forget()
    assert fence.counters.window_size == 4
    applied.window = EpochWindow(30, 30)  # another process's barrier
    assert fence.counters.window_size == 1
    assert fence.counters.window_slides == 1


def test_epochs_the_log_refuses_after_the_fence_are_counted_apart() -> None:
    fence, _ = fence_on(5, 5)
    refused = StaleClusterEpochError("the log is at [9, 12]", epoch=6, window=(9, 12))
    with held(fence, 6):
        fence.count_rejected_at_landing(refused)
    c = fence.counters
    assert (c.rejected_below_window, c.rejected_at_landing, c.last_rejected_gap) == (0, 1, 3)


def test_counters_are_a_copy_of_one_moment() -> None:
    fence, _ = fence_on(5, 5)
    before = fence.counters
    fenced(fence, 9)
    assert before == FenceCounters(window_size=1)


def test_an_epoch_landing_elsewhere_while_waiting_is_not_new() -> None:
    fence, applied = fence_on(5, 5)
    with Writer(fence, applied, 5) as old, Writer(fence, applied, 6) as sliding:
        applied.window = EpochWindow(5, 6)  # another process landed at 6
        old.finish()
        sliding.finish()
        assert sliding.window == EpochWindow(5, 6)
    c = fence.counters
    assert (c.window_slides, c.fences_new_epoch, c.fences_known_epoch) == (0, 0, 2)


# -- random sequences --------------------------------------------------------------------------------------------------


class AnySequence(RuleBasedStateMachine):
    """Writers that hold the fence at the same time, slides, landings, losses and another process, in any order.

    The model keeps the log's window and the seen window, as the fencing plan describes; it omits calls that would wait.
    """

    @initialize(oldest=st.integers(0, 5), size=st.integers(1, 4))
    def begin(self, oldest: int, size: int) -> None:
        self.fence, self.applied = fence_on(oldest, oldest + size - 1)
        self.seen: EpochWindow | None = None
        self.held: list[tuple[int, AbstractContextManager[EpochWindow]]] = []
        self.fenced = self.rejected = self.slides = 0

    def window(self) -> EpochWindow:
        log = self.applied.window
        ahead = self.seen is not None and self.seen.oldest >= log.oldest and self.seen.newest >= log.newest
        return self.seen if ahead and self.seen is not None else log

    @rule(step=st.integers(-4, 6))
    def fence_it(self, step: int) -> None:
        before = self.window()
        epoch = before.newest + step
        if epoch > before.newest and self.held:
            return  # the writer would wait
        attempt = held(self.fence, epoch)
        if epoch < before.oldest:
            with pytest.raises(StaleClusterEpochError):
                attempt.__enter__()
            self.rejected += 1
            return
        after = EpochWindow(before.newest, epoch) if epoch > before.newest else before
        assert attempt.__enter__() == after
        if after != before:
            self.seen, self.slides = after, self.slides + 1
        self.held.append((epoch, attempt))
        self.fenced += 1

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 9), lost=st.booleans())
    def let_go(self, which: int, lost: bool) -> None:
        epoch, attempt = self.held.pop(which % len(self.held))
        if not lost and self.applied.window.admits(epoch):
            self.applied.window = self.applied.window.slide(epoch)
        else:
            self.fence.forget()
            self.seen = None
        attempt.__exit__(None, None, None)

    @rule(step=st.integers(1, 6), barrier=st.booleans())
    def another_process_moves_the_log(self, step: int, barrier: bool) -> None:
        epoch = self.applied.window.newest + step
        self.applied.window = EpochWindow(epoch, epoch) if barrier else self.applied.window.slide(epoch)

    @invariant()
    def the_window_is_the_models(self) -> None:
        if hasattr(self, "fence"):
            assert self.fence.window == self.window()

    @invariant()
    def what_the_log_would_take_is_refused_only_while_something_newer_is_on_its_way(self) -> None:
        if hasattr(self, "fence") and not self.held:
            assert self.fence.window == self.applied.window

    @invariant()
    def all_are_counted(self) -> None:
        if hasattr(self, "fence"):
            c = self.fence.counters
            assert (c.fences_new_epoch + c.fences_known_epoch, c.fences_new_epoch) == (self.fenced, self.slides)
            assert (c.window_slides, c.rejected_below_window) == (self.slides, self.rejected)
            assert c.window_size == self.window().size


TestAnySequence = AnySequence.TestCase
