"""Read a whole listing in key ranges, with many concurrent readers, however the keys are distributed.

The distribution of keys is unknown: one shard may hold most of them. Therefore each reader reads a limited number of
pages of its range and returns the rest, which is cut again and read in the next round. Every key is read exactly once,
wherever the cuts are: ranges are cut between strings, each key is compared with both ends of its range, and a reader
that stops reports the last key that it returned. The cuts only affect how evenly the work is spread. If a store is
found to list out of order, the range is read to its end and leaves no rest (hazard 12).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import lt
from typing import Final

import msgspec

from l0gc.keys import KeyLayout
from l0gc.storage.objectstore import ListedPage, ObjectStore
from l0gc.storage.workers import LOCAL, SPARK

FIRST_PAGES: Final = {LOCAL: 16, SPARK: 256}
"""How many pages a reader reads in the first round, by engine. Small buckets need no second round, which would be
another job on Spark.
"""
GROWTH: Final = 4
"""The factor by which the pages of a reader and the number of ranges grow with each round. The largest bucket thus
takes few rounds, and a small one takes no more requests than it has pages.
"""


class KeyRange(msgspec.Struct, frozen=True):
    """The keys in `folder` after `start`, up to and including `end`. Without an end, the range extends to the last key;
    without a folder, it consists of L0 objects.
    """

    start: str = ""
    end: str | None = None
    folder: str = ""


class RangeReader:
    """Reads up to `pages` pages of the keys in a range, including foreign keys, or all pages if there is no limit.

    It stops only at an L0 key. Any other key may be a "directory" name, which some stores skip if a listing begins
    there. After `read`, `rest` is the part that was not read, and `requests` the number of LIST requests.
    """

    def __init__(self, store: ObjectStore, layout: KeyLayout, keys: KeyRange, pages: int | None = None) -> None:
        self._store, self._layout, self._keys, self._pages = store, layout, keys, pages
        self.rest: KeyRange | None = None
        self.requests = 0

    def read(self) -> Iterator[ListedPage]:
        """Yield the pages that are not empty."""
        start, stop = self._keys.start, self._keys.end
        last, ordered = start, True
        self.requests = 1  # the first page, even if it is empty
        for number, page in enumerate(self._store.scan(self._keys.folder or self._layout.data_prefix, start), 1):
            self.requests, keys = number, page.keys
            ordered = ordered and keys[0] > last and all(map(lt, keys, keys[1:]))
            last = keys[-1]
            if ordered and (stop is None or last <= stop):
                yield page
            elif inside := [i for i, k in enumerate(keys) if k > start and (stop is None or k <= stop)]:
                yield ListedPage(
                    [keys[i] for i in inside],
                    [page.sizes[i] for i in inside],
                    [page.modified_ms[i] for i in inside],
                )
            if ordered and stop is not None and last >= stop:
                return
            if ordered and self._pages is not None and number >= self._pages and self._layout.parse(last) is not None:
                self.rest = KeyRange(last, stop, self._keys.folder)
                return


def read_in_rounds(
    layout: KeyLayout,
    readers: int,
    ceiling: Callable[[], int],
    read: Callable[[Sequence[KeyRange], int], Iterable[KeyRange]],
    first_pages: int,
) -> None:
    """Read all keys below the data prefix, at first in `readers` ranges.

    Args:
        ceiling: returns an epoch that hardly any object exceeds; called once per round, and only if something is left.
        read: reads each of these ranges up to a number of pages, and returns the rest.
        first_pages: how many pages each reader reads in the first round.
    """
    ranges, pages = of_shards(layout, readers), first_pages
    while ranges:
        rests = list(read(ranges, pages))
        if not rests:
            return
        readers *= GROWTH
        top, parts = ceiling(), max(2, -(-readers // len(rests)))
        ranges = [part for rest in rests for part in split_rest(layout, rest, top, parts)]
        pages *= GROWTH


def of_shards(layout: KeyLayout, count: int) -> list[KeyRange]:
    """Return at most `count` ranges with equally many shards, which together cover all keys."""
    n = max(1, min(count, layout.shards))
    return cut_range(KeyRange(), [layout.before_shard(layout.shards * i // n) for i in range(1, n)])


def split_rest(layout: KeyLayout, rest: KeyRange, ceiling: int, parts: int) -> list[KeyRange]:
    """Return `rest` cut into pieces.

    The rest begins after a key that was read. Its keys may be in the same epoch of that shard, in later epochs of the
    shard, or in later shards. Each of the three parts is cut evenly into about `parts` ranges.
    """
    boundaries = [layout.before_shard(s) for s in range(1, layout.shards)]
    later = [k for k in boundaries if rest.start < k and (rest.end is None or k < rest.end)]
    cuts = [later[i] for i in _evenly(0, len(later) - 1, parts)]
    at = layout.parse(rest.start)
    if at is not None:
        cuts += [layout.before_epoch(at.shard, e) for e in _evenly(at.epoch + 1, ceiling + 1, parts)]
        cuts += [layout.before_name(at.shard, at.epoch, n) for n in _evenly(int(at.name[:2], 16) + 1, 255, parts)]
    return cut_range(rest, cuts)


def cut_range(keys: KeyRange, at: Iterable[str]) -> list[KeyRange]:
    """Return the range, cut after each of these keys that is inside it."""
    inside = sorted({k for k in at if keys.start < k and (keys.end is None or k < keys.end)})
    ends: list[str | None] = [*inside, keys.end]
    return [KeyRange(start, end, keys.folder) for start, end in zip([keys.start, *inside], ends, strict=True)]


def _evenly(first: int, last: int, count: int) -> list[int]:
    """Return at most `count` evenly spaced whole numbers from `first` to `last`, including `first`."""
    n = min(count, last - first + 1)
    return [first + (last - first + 1) * i // n for i in range(n)]
