"""The in-process epoch fence: admits early and cheaply; the append is the gate.

Many uploads share one journal's handle. An epoch inside the seen window is admitted together with others; a newer one
waits until it is alone, slides the seen window, and goes on together with others; one below is refused before anything is
appended. The seen window is volatile: it is dropped whenever it may be ahead of the log (a lost append, a conflict, a
recovery), and admission then falls back to the applied window, so that a bump that never landed shuts nobody out
(hazards 3 and 4). Source: the epoch window fencing plan of Redpanda Cloud Topics.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from l0gc.errors import StaleClusterEpochError
from l0gc.streamlog.journal.window import EpochWindow


@dataclass(slots=True)
class FenceCounters:
    """What one fence has done since its process began, for metrics.

    `window_size` is of now: how many epochs lie in the window that admission uses. `last_rejected_gap` is by how much
    the last epoch that was refused lay below the window. `rejected_at_landing` are epochs that the fence had admitted and
    the log then refused, because another process had slid the window: how often the shortcut was wrong.
    """

    window_slides: int = 0
    window_size: int = 0
    rejected_below_window: int = 0
    rejected_at_landing: int = 0
    last_rejected_gap: int = 0
    fences_new_epoch: int = 0
    fences_known_epoch: int = 0


def sum_of(counters: Iterable[FenceCounters]) -> FenceCounters:
    """What several fences have done; of the window's size and the last gap, the largest."""
    total = FenceCounters()
    for c in counters:
        total.window_slides += c.window_slides
        total.rejected_below_window += c.rejected_below_window
        total.rejected_at_landing += c.rejected_at_landing
        total.fences_new_epoch += c.fences_new_epoch
        total.fences_known_epoch += c.fences_known_epoch
        total.window_size = max(total.window_size, c.window_size)
        total.last_rejected_gap = max(total.last_rejected_gap, c.last_rejected_gap)
    return total


class EpochFence:
    """A readers-writer fence over a window of epochs.

    Args:
        journal: its number, named in errors.
        applied: the window that the log has; read whenever there is no seen window.
    """

    def __init__(self, journal: int, applied: Callable[[], EpochWindow]) -> None:
        self._journal = journal
        self._applied = applied
        self._seen: EpochWindow | None = None
        self._turn = threading.Condition()
        self._holders = 0
        self._sliding = False
        self._counters = FenceCounters()

    @property
    def counters(self) -> FenceCounters:
        """A copy, all of one moment."""
        with self._turn:
            return replace(self._counters, window_size=self._window().size)

    @property
    def window(self) -> EpochWindow:
        """The window that admission uses now."""
        with self._turn:
            return self._window()

    def _window(self) -> EpochWindow:
        applied = self._applied()
        if self._seen is None or applied.oldest > self._seen.oldest or applied.newest > self._seen.newest:
            return applied
        return self._seen

    @contextmanager
    def fence_epoch(self, epoch: int) -> Iterator[EpochWindow]:
        """Hold the fence for `epoch` while its objects are appended; yields the window.

        Raises:
            StaleClusterEpochError: the epoch lies below the window.
        """
        window = self._acquire(epoch)
        try:
            yield window
        finally:
            with self._turn:
                self._holders -= 1
                self._turn.notify_all()

    def count_rejected_at_landing(self, error: StaleClusterEpochError) -> None:
        """The log has refused an epoch that this fence had admitted."""
        with self._turn:
            self._counters.rejected_at_landing += 1
            self._counters.last_rejected_gap = error.window[0] - error.epoch

    def _acquire(self, epoch: int) -> EpochWindow:
        with self._turn:
            while True:
                window = self._window()  # read again after every wait: it may have moved meanwhile
                if not window.admits(epoch):
                    raise self._rejected(epoch, window)
                if epoch in window:
                    if not self._sliding:
                        self._counters.fences_known_epoch += 1
                        self._holders += 1
                        return window
                    self._turn.wait()
                    continue
                if self._sliding:
                    self._turn.wait()
                    continue
                return self._slide(epoch)

    def _slide(self, epoch: int) -> EpochWindow:
        """Wait to be alone, slide, and stay as one holder among others. Called with the lock held."""
        self._sliding = True
        try:
            while self._holders:
                self._turn.wait()
            window = self._window()
            if not window.admits(epoch):  # only the log can have moved it: others were kept out
                raise self._rejected(epoch, window)
            slid = window.slide(epoch)
            if slid != window:
                self._counters.window_slides += 1
                self._counters.fences_new_epoch += 1
            else:  # the log has it by now
                self._counters.fences_known_epoch += 1
            self._seen = slid
            self._holders += 1
            return slid
        finally:
            self._sliding = False
            self._turn.notify_all()

    def _rejected(self, epoch: int, window: EpochWindow) -> StaleClusterEpochError:
        self._counters.rejected_below_window += 1
        self._counters.last_rejected_gap = window.oldest - epoch
        return StaleClusterEpochError(
            f"epoch {epoch} is below the window {window} of journal {self._journal}; stamp the data with a fresh epoch and "
            "upload it again",
            epoch=epoch,
            window=(window.oldest, window.newest),
        )

    def forget(self) -> None:
        """Drop the seen window: it may be ahead of the log."""
        with self._turn:
            self._seen = None
