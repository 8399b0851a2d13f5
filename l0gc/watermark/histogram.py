"""Count a bucket's objects at each epoch by listing the L0 prefix in ranges of keys.

Each reader sums its ranges, so the data that it returns grows with the number of epochs, not of keys.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Final

import msgspec

from l0gc.keys import KeyLayout
from l0gc.storage.objectstore import ListedPage
from l0gc.storage.ranges import FIRST_PAGES, KeyRange, RangeReader, read_in_rounds
from l0gc.storage.workers import Workers, Workplace

SAMPLES: Final = 5
"""How many of the keys that are not L0 keys are named."""


class EpochRow(msgspec.Struct, frozen=True, array_like=True):
    """The objects of the bucket at one epoch; `epoch` is None for keys that are not L0 keys.

    `sample_key` is the lowest key; `oldest_ms` is when the oldest object was written, by the store's clock.
    """

    epoch: int | None
    objects: int
    bytes: int
    sample_key: str
    oldest_ms: int = 0


class Histogram(msgspec.Struct):
    """A row for each epoch, and the first few of the keys that are not L0 keys."""

    rows: dict[int | None, EpochRow] = {}
    samples: list[str] = []

    def add_row(self, row: EpochRow) -> None:
        before = self.rows.get(row.epoch)
        if before is not None:
            row = EpochRow(
                row.epoch,
                before.objects + row.objects,
                before.bytes + row.bytes,
                min(before.sample_key, row.sample_key),
                min(before.oldest_ms, row.oldest_ms),
            )
        self.rows[row.epoch] = row

    def add(self, other: Histogram) -> Histogram:
        for row in other.rows.values():
            self.add_row(row)
        self.samples = sorted({*self.samples, *other.samples})[:SAMPLES]
        return self

    def add_page(self, layout: KeyLayout, page: ListedPage) -> None:
        """Add a page of a listing. Keys of one epoch are adjacent, so this works on runs of keys, not on single keys."""
        keys, sizes, times = page.keys, page.sizes, page.modified_ms
        end = 0
        for number, same in groupby(layout.epochs(keys)):
            start, end = end, end + sum(1 for _ in same)
            epoch = None if number < 0 else number
            self.add_row(
                EpochRow(epoch, end - start, sum(sizes[start:end]), min(keys[start:end]), min(times[start:end]))
            )
            if epoch is None:
                self.samples = sorted([*self.samples, *keys[start:end]])[:SAMPLES]


BucketScan = Callable[[KeyLayout, Callable[[], int]], Histogram]
"""A function that counts the bucket's objects at each epoch. Its second argument returns an epoch that hardly any
object exceeds.
"""


def read_listing(
    workers: Workers[Workplace], layout: KeyLayout, ceiling: Callable[[], int], *, first_pages: int | None = None
) -> Histogram:
    """Return the histogram of the listing, as a `BucketScan`.

    Args:
        first_pages: how many pages each reader reads in the first round; the default depends on the engine.
    """
    total = Histogram()

    def read(ranges: Sequence[KeyRange], pages: int) -> Iterable[KeyRange]:
        part = workers.reduce(functools.partial(_read_range, layout, pages), ranges, _merged)
        if part is None:
            return []
        total.add(part[0])
        return part[1]

    read_in_rounds(layout, workers.slots, ceiling, read, first_pages or FIRST_PAGES[workers.engine])
    return total


def _read_range(
    layout: KeyLayout, pages: int, workplace: Workplace, keys: KeyRange
) -> tuple[Histogram, list[KeyRange]]:
    histogram = Histogram()
    reader = RangeReader(workplace.store, layout, keys, pages)
    for page in reader.read():
        histogram.add_page(layout, page)
    return histogram, [reader.rest] if reader.rest is not None else []


def _merged(
    a: tuple[Histogram, list[KeyRange]], b: tuple[Histogram, list[KeyRange]]
) -> tuple[Histogram, list[KeyRange]]:
    return a[0].add(b[0]), a[1] + b[1]
