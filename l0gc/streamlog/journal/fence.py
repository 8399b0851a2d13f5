"""The in-process epoch fence: it admits early and cheaply; the append is the gate.

Holders of an epoch inside the seen window share the fence. A newer epoch waits until it is alone, slides the seen window,
and then shares the fence; a lower one is refused. The seen window is dropped whenever it may be ahead of the log (a lost
append, a conflict, a recovery), and admission falls back to the applied window (hazards 3 and 4). Source: the epoch
window fencing plan of Redpanda Cloud Topics.

A thread may be interrupted anywhere, and must not keep what it held (hazard 29). So each holder has its own lock, which
`with` acquires and releases without an intermediate step; a condition of `threading`, or a counter, would need several.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from l0gc.errors import StaleClusterEpochError
from l0gc.storage.log import APPEND_DEADLINE_S
from l0gc.streamlog.journal.admission import EpochWindow

MOST_HELD_S: Final = APPEND_DEADLINE_S
"""How long a new epoch waits for a holder; after that, only the log decides whether the holder's objects land."""


_LARGEST: Final = ("window_size", "last_rejected_gap")


class FenceCounters(msgspec.Struct):
    """Counts of one fence since its process began, for metrics.

    `window_size` is the current number of epochs in the window that admission uses. `last_rejected_gap` is how far the
    last refused epoch was below the window. `rejected_at_landing` counts epochs that the fence had admitted and the log
    then refused, because another process had slid the window.
    """

    window_slides: int = 0
    window_size: int = 0
    rejected_below_window: int = 0
    rejected_at_landing: int = 0
    last_rejected_gap: int = 0
    fences_new_epoch: int = 0
    fences_known_epoch: int = 0


def sum_of(counters: Sequence[FenceCounters]) -> FenceCounters:
    """Return the totals of several fences; for the window's size and the last gap, the largest."""
    columns = {name: [getattr(c, name) for c in counters] for name in FenceCounters.__struct_fields__}
    return FenceCounters(**{name: (max if name in _LARGEST else sum)(column) for name, column in columns.items()})


class EpochFence:
    """A readers-writer fence over a window of epochs. `applied` returns the log's window, which counts if the seen
    window is unset or has fallen behind it.
    """

    def __init__(self, journal: int, applied: Callable[[], EpochWindow]) -> None:
        self._journal = journal
        self._applied = applied
        self._seen: EpochWindow | None = None
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._holders: list[threading.Lock] = []
        self._counters = FenceCounters()

    @property
    def counters(self) -> FenceCounters:
        """Return a consistent copy."""
        with self._lock:
            return msgspec.structs.replace(self._counters, window_size=self._window().size)

    @property
    def window(self) -> EpochWindow:
        with self._lock:
            return self._window()

    def _window(self) -> EpochWindow:
        applied = self._applied()
        if self._seen is None or applied.oldest > self._seen.oldest or applied.newest > self._seen.newest:
            return applied
        return self._seen

    def enter(self, epoch: int, hold: threading.Lock) -> EpochWindow:
        """Hold the fence for `epoch` and return the window. Raises `StaleClusterEpochError` if the epoch is below it.

        The caller has acquired the lock `hold`, and releases it once the objects of `epoch` are appended.
        """
        with self._lock:
            window = self._admitting(epoch)
            if epoch in window and not self._turn.locked():
                return self._join(window, hold)
        with self._turn:  # one new epoch at a time; others wait while one waits to be alone
            with self._lock:
                window = self._admitting(epoch)
                if epoch in window:
                    return self._join(window, hold)
                holders = self._holders
            alone = all(_is_given_back(other) for other in holders)
            with self._lock:
                if not alone:
                    self._seen, self._holders = None, []
                window = self._admitting(epoch)  # only the log can have moved it: others were kept out
                slid = window.slide(epoch)
                if slid == window:  # the log has reached this epoch in the meantime
                    return self._join(window, hold)
                self._counters.window_slides += 1
                self._counters.fences_new_epoch += 1
                self._seen, self._holders = slid, [hold]
                return slid

    def _admitting(self, epoch: int) -> EpochWindow:
        """Return the window if it admits the epoch. The caller holds the lock."""
        window = self._window()
        if not window.admits(epoch):
            self._counters.rejected_below_window += 1
            self._counters.last_rejected_gap = window.oldest - epoch
            raise StaleClusterEpochError(
                f"epoch {epoch} is below the window {window} of journal {self._journal}; stamp the data with a fresh epoch "
                "and upload it again",
                epoch=epoch,
                window=(window.oldest, window.newest),
            )
        return window

    def _join(self, window: EpochWindow, hold: threading.Lock) -> EpochWindow:
        self._counters.fences_known_epoch += 1
        self._holders = [*(h for h in self._holders if h.locked()), hold]
        return window

    def count_rejected_at_landing(self, error: StaleClusterEpochError) -> None:
        """Count an epoch that this fence had admitted and the log has refused."""
        with self._lock:
            self._counters.rejected_at_landing += 1
            self._counters.last_rejected_gap = error.window[0] - error.epoch

    def forget(self) -> None:
        """Drop the seen window, which may be ahead of the log."""
        with self._lock:
            self._seen = None


def _is_given_back(hold: threading.Lock) -> bool:
    """Wait for a holder; return False if that takes too long."""
    if not hold.acquire(timeout=MOST_HELD_S):
        return False
    hold.release()
    return True
