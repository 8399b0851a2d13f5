"""What a listing holds at each epoch, added up page by page: all that leaves an executor of the keys it has read."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from l0gc.keys import KeyLayout
from l0gc.storage.objectstore import ListedPage


class Sums(NamedTuple):
    """Objects of one epoch (None for keys that are no L0 keys): how many, their bytes, the lowest key, the oldest time."""

    epoch: int | None
    objects: int
    bytes: int
    sample_key: str
    oldest_ms: int


class Histogram:
    """Sums for each epoch.

    Args:
        samples: how many of the keys that are no L0 keys are kept in `unparsable`, the lowest ones.
    """

    def __init__(self, layout: KeyLayout, samples: int) -> None:
        self._layout, self._samples = layout, samples
        self._sums: dict[int, Sums] = {}
        self.unparsable: list[str] = []

    def add(self, page: ListedPage) -> None:
        """Add a page. Keys of one epoch lie together, so it goes from run to run and not from key to key."""
        keys, sizes, times = page.keys, page.sizes, page.modified_ms
        at = 0
        for epoch, same in groupby(self._layout.epochs(keys)):
            end = at + sum(1 for _ in same)
            objects, size, oldest = end - at, sum(sizes[at:end]), min(times[at:end])
            sample = min(keys[at:end])
            so_far = self._sums.get(epoch)
            if so_far is not None:
                objects, size = objects + so_far.objects, size + so_far.bytes
                oldest, sample = min(oldest, so_far.oldest_ms), min(sample, so_far.sample_key)
            self._sums[epoch] = Sums(None if epoch < 0 else epoch, objects, size, sample, oldest)
            if epoch < 0:
                self.unparsable = sorted([*self.unparsable, *keys[at:end]])[: self._samples]
            at = end

    def rows(self) -> Iterator[Sums]:
        """What was added, in no order."""
        return iter(self._sums.values())
