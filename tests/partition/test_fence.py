"""The in-process fence: who is let in together, who waits, who is refused, and what it forgets.

Threads meet at events, never by waiting some time. `fence.window` takes the fence's lock, so once a thread has asked for the
applied window, reading `fence.window` means that the thread now waits or is through.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import TracebackType

import pytest

from l0gc.errors import StaleClusterEpochError
from l0gc.keys import PartitionId
from l0gc.partition.fence import EpochFence
from l0gc.partition.window import EpochWindow

P = PartitionId("events", 5, 0)
PATIENCE_S = 20.0
"""Only a test that fails waits this long."""


class Applied:
    """The log's window, as the fence is told it; `asked` says that another thread has looked at it."""

    def __init__(self, oldest: int, newest: int) -> None:
        self.window = EpochWindow(oldest, newest)
        self.asked = threading.Event()
        self._owner = threading.current_thread()

    def __call__(self) -> EpochWindow:
        if threading.current_thread() is not self._owner:
            self.asked.set()
        return self.window


class Writer:
    """A thread that fences an epoch and holds the fence until it is let go."""

    def __init__(self, fence: EpochFence, applied: Applied, epoch: int) -> None:
        self._fence, self._applied, self._epoch = fence, applied, epoch
        self.admitted = threading.Event()
        self.window: EpochWindow | None = None
        self.error: StaleClusterEpochError | None = None
        self._go_on = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            with self._fence.fence_epoch(self._epoch) as self.window:
                self.admitted.set()
                self._go_on.wait(PATIENCE_S)
        except StaleClusterEpochError as e:
            self.error = e

    def __enter__(self) -> Writer:
        """Returns once the thread is admitted, refused, or known to wait."""
        self._applied.asked.clear()
        self._thread.start()
        assert self._applied.asked.wait(PATIENCE_S)
        _ = self._fence.window
        return self

    def finish(self) -> None:
        self._go_on.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), f"the writer at {self._epoch} is stuck"

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None) -> None:
        self.finish()


def fence_on(oldest: int, newest: int) -> tuple[EpochFence, Applied]:
    applied = Applied(oldest, newest)
    return EpochFence(P, applied), applied


def fenced(fence: EpochFence, epoch: int) -> EpochWindow:
    """Fence and let go."""
    with fence.fence_epoch(epoch) as window:
        return window


def test_the_window_slides_over_two_epochs() -> None:
    fence, _ = fence_on(5, 5)
    assert fenced(fence, 5) == fence.window == EpochWindow(5, 5)
    assert fenced(fence, 6) == fence.window == EpochWindow(5, 6)
    assert fenced(fence, 7) == fence.window == EpochWindow(6, 7)


def test_below_the_window_is_refused_with_the_window_in_the_message() -> None:
    fence, _ = fence_on(5, 5)
    fenced(fence, 8)
    fenced(fence, 9)
    with pytest.raises(
        StaleClusterEpochError, match=r"epoch 6 is below the window \[8, 9\] of partition events/0"
    ) as e:
        fenced(fence, 6)
    assert (e.value.epoch, e.value.window) == (6, (8, 9))
    assert fence.window == EpochWindow(8, 9)


def test_epochs_need_not_be_contiguous() -> None:
    fence, _ = fence_on(5, 5)
    fenced(fence, 10)
    for epoch in (6, 7, 8, 9):
        assert fenced(fence, epoch) == EpochWindow(5, 10)
    assert fence.counters.window_slides == 1


def test_one_epoch_late_is_admitted_and_two_are_not() -> None:
    """N+1, N, N+2 in that order: the log's window keeps N, which the plan's volatile window would refuse."""
    fence, _ = fence_on(5, 5)
    assert fenced(fence, 6) == EpochWindow(5, 6)
    assert fenced(fence, 5) == EpochWindow(5, 6)
    assert fenced(fence, 7) == EpochWindow(6, 7)
    with pytest.raises(StaleClusterEpochError):
        fenced(fence, 5)


def test_right_after_recovery_the_applied_window_is_admitted_whole() -> None:
    fence, _ = fence_on(5, 6)  # a new process: the fence has seen nothing
    assert fenced(fence, 6) == EpochWindow(5, 6)
    assert fenced(fence, 5) == EpochWindow(5, 6)
    assert fence.counters.window_slides == 0
    with pytest.raises(StaleClusterEpochError):
        fenced(fence, 4)


def test_counts_slides_sizes_refusals_and_fences() -> None:
    fence, _ = fence_on(5, 5)
    for epoch in (5, 9, 7, 12, 12):
        fenced(fence, epoch)
    for epoch in (8, 6):
        with pytest.raises(StaleClusterEpochError):
            fenced(fence, epoch)
    c = fence.counters
    assert (c.window_slides, c.window_size) == (2, 4)
    assert (c.fences_new_epoch, c.fences_known_epoch) == (2, 3)
    assert (c.rejected_below_window, c.last_rejected_gap) == (2, 3)


# -- many at once ------------------------------------------------------------------------------------------------------


def test_writers_at_epochs_inside_the_window_hold_the_fence_together() -> None:
    fence, applied = fence_on(5, 6)
    with Writer(fence, applied, 6) as a, Writer(fence, applied, 6) as b, Writer(fence, applied, 5) as c:
        assert a.admitted.is_set()
        assert b.admitted.is_set()
        assert c.admitted.is_set()


def test_a_new_epoch_waits_until_it_is_alone_and_then_lets_others_in() -> None:
    fence, applied = fence_on(5, 5)
    with Writer(fence, applied, 5) as old, Writer(fence, applied, 6) as new:
        assert old.admitted.is_set()
        assert not new.admitted.is_set()
        assert fence.window == EpochWindow(5, 5)
        old.finish()
        assert new.admitted.wait(PATIENCE_S)
        with Writer(fence, applied, 6) as other, Writer(fence, applied, 5) as late:
            assert other.admitted.is_set()
            assert late.admitted.is_set()
            assert late.window == EpochWindow(5, 6)


def test_nobody_slips_in_while_a_slide_is_under_way() -> None:
    fence, applied = fence_on(5, 5)
    with Writer(fence, applied, 5) as old, Writer(fence, applied, 6) as new, Writer(fence, applied, 5) as late:
        assert not late.admitted.is_set()  # or the slide could wait for ever
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


@pytest.mark.parametrize("epoch", [5, 6])
def test_an_epoch_that_falls_below_while_it_waits_is_refused(epoch: int) -> None:
    fence, applied = fence_on(5, 5)
    with Writer(fence, applied, 5) as old, Writer(fence, applied, 6) as sliding, Writer(fence, applied, epoch) as late:
        applied.window = EpochWindow(9, 9)  # the log moved on
        old.finish()
        sliding.finish()
        late.finish()
        assert (sliding.window, late.window) == (None, None)
        assert sliding.error is not None
        assert late.error is not None
        assert late.error.window == (9, 9)
    assert fenced(fence, 9) == EpochWindow(9, 9)


def test_an_error_while_it_is_held_gives_the_fence_back() -> None:
    fence, applied = fence_on(5, 5)
    with pytest.raises(RuntimeError), fence.fence_epoch(5):
        raise RuntimeError
    with Writer(fence, applied, 6) as new:
        assert new.admitted.is_set()


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
                with fence.fence_epoch(epoch) as window:
                    inside.append(epoch)
                    assert epoch in window
                outcomes.append(1)
            except StaleClusterEpochError:
                outcomes.append(0)

    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(PATIENCE_S)
    assert not any(t.is_alive() for t in threads)
    assert len(outcomes) == 8 * 60
    assert sum(outcomes) == len(inside)
    c = fence.counters
    assert c.fences_new_epoch + c.fences_known_epoch == sum(outcomes)
    assert c.rejected_below_window == len(outcomes) - sum(outcomes)


# -- the seen window against the log -----------------------------------------------------------------------------------


def landings(fence: EpochFence, applied: Applied, epochs: list[int]) -> Iterator[EpochWindow]:
    for epoch in epochs:
        yield fenced(fence, epoch)
        applied.window = applied.window.slide(epoch)


@pytest.mark.parametrize("forgotten", [True, False])
def test_a_bump_that_never_landed_lets_nobody_in_below_the_log(forgotten: bool) -> None:
    """Hazard 3: 10 lands, 14 is lost, 12 and 13 land; 11 is below, whether or not the fence heard of the loss."""
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
    """Hazard 3: with 14 lost the log is at [5, 10], so 7 may land."""
    fence, applied = fence_on(5, 5)
    list(landings(fence, applied, [10]))
    fenced(fence, 14)
    fence.forget()
    assert fence.window == EpochWindow(5, 10)
    assert fenced(fence, 7) == EpochWindow(5, 10)


def test_a_seen_window_ends_when_another_writer_moves_the_log_past_it() -> None:
    """Hazard 4."""
    fence, applied = fence_on(5, 5)
    list(landings(fence, applied, [10]))
    applied.window = EpochWindow(20, 21)  # as read after a change of writer
    assert fence.window == EpochWindow(20, 21)
    with pytest.raises(StaleClusterEpochError):
        fenced(fence, 10)
    assert fenced(fence, 20) == EpochWindow(20, 21)


def test_a_seen_window_that_another_writer_has_overtaken_shuts_nobody_out() -> None:
    """Hazard 4: this process fences 14; another one lands 15 first. 15 then is no new epoch, and 12 may still land."""
    fence, applied = fence_on(10, 10)
    fenced(fence, 14)
    applied.window = EpochWindow(10, 15)
    fenced(fence, 15)
    assert fenced(fence, 12) == EpochWindow(10, 15)
