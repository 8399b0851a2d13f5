"""What the bucket holds, read from the store's listing of the L0 prefix, in ranges of keys.

The sums of each range are made where it is read, so that what is moved grows with the epochs and not with the keys.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

import msgspec

from l0gc.keys import KeyLayout
from l0gc.storage.ranges import FIRST_PAGES, KeyRange, RangeReader, read_in_rounds
from l0gc.storage.workers import Place, Workers
from l0gc.watermark.histogram import Histogram

LISTING: Final = "listing"
INVENTORY: Final = "inventory"
"""What a scan reads: the store's listing, or an S3 Inventory in its place."""


class BucketScan(Protocol):
    """Reads what the bucket holds."""

    @property
    def source(self) -> str:
        """LISTING or INVENTORY."""
        ...

    @property
    def taken_ms(self) -> int | None:
        """When the bucket was so, by the store's clock; None for now, and where it is not known."""
        ...

    def read(self, layout: KeyLayout, ceiling: Callable[[], int]) -> Histogram:
        """What it holds at each epoch.

        Args:
            ceiling: gives the epoch that hardly any object is above.
        """
        ...


class ListingScan:
    """Reads the listing.

    Args:
        first_pages: how far each reader goes in the first round.
    """

    source = LISTING
    taken_ms = None

    def __init__(self, workers: Workers[Place], *, first_pages: int = FIRST_PAGES) -> None:
        self._workers, self._first_pages = workers, first_pages

    def read(self, layout: KeyLayout, ceiling: Callable[[], int]) -> Histogram:
        total = Histogram()

        def read(ranges: Sequence[KeyRange], pages: int) -> Iterable[KeyRange]:
            work = functools.partial(_read_range, layout, pages)
            part = self._workers.reduce(work, ranges, _merged)
            if part is None:
                return []
            total.add(part.histogram)
            return part.rests

        read_in_rounds(layout, self._workers.slots, ceiling, read, self._first_pages)
        return total


class _RangesRead(msgspec.Struct):
    """What was read of some ranges, and what is left of them."""

    histogram: Histogram
    rests: list[KeyRange]


def _read_range(layout: KeyLayout, pages: int, place: Place, keys: KeyRange) -> _RangesRead:
    histogram = Histogram()
    reader = RangeReader(place.store, layout, keys, pages)
    for page in reader.read():
        histogram.add_page(layout, page)
    return _RangesRead(histogram, [reader.rest] if reader.rest is not None else [])


def _merged(a: _RangesRead, b: _RangesRead) -> _RangesRead:
    a.histogram.add(b.histogram)
    a.rests += b.rests
    return a
