"""The sliding window of epochs (pure).

Two epochs wide rather than one, so that a writer with a slightly stale epoch is not refused; never wider, so that the
epochs below it are done with. A window only ever moves up. Source: sliding-window epoch tracking, and the epoch window
fencing plan, of Redpanda Cloud Topics.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EpochWindow:
    """The epochs `oldest` to `newest`, both included, whether or not each of them was ever seen."""

    oldest: int
    newest: int

    def __contains__(self, epoch: int) -> bool:
        return self.oldest <= epoch <= self.newest

    def admits(self, epoch: int) -> bool:
        """Whether data at `epoch` may land: inside the window, or above it (and then the window slides)."""
        return epoch >= self.oldest

    def slide(self, epoch: int) -> EpochWindow:
        """The window after `epoch` was seen: a newer epoch becomes the newest, and the newest becomes the oldest."""
        return EpochWindow(self.newest, epoch) if epoch > self.newest else self

    @property
    def size(self) -> int:
        return self.newest - self.oldest + 1

    def __str__(self) -> str:
        return f"[{self.oldest}, {self.newest}]"
