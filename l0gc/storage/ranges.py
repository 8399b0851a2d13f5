"""Reading a whole listing in ranges of keys, by many readers at once, wherever the keys lie.

Nobody knows how keys are spread: one shard may hold most of them. So each reader reads its range up to so many pages and
says what is left; what is left is cut, and read in the next round. Every key is read exactly once whatever the cuts are:
ranges are made by cutting between strings, each key is compared with the two ends of its range, and a reader that stops goes
by the last key that it gave. Where the cuts lie decides only how even the work is. A store that lists out of order is
noticed and read to the end, with no rest (hazard 12).
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
"""How far a reader goes in the first round, by the engine: small buckets need no second one, which is a job on Spark."""
GROWTH: Final = 4
"""Each round goes so many times as far, in so many times as many ranges: even the largest bucket takes few rounds, and a
small one is not read in more requests than it has pages."""


class KeyRange(msgspec.Struct, frozen=True):
    """The keys after `start` up to `end`, itself included; without an end, up to the last one."""

    start: str = ""
    end: str | None = None


class RangeReader:
    """Reads the keys of a range, foreign ones included, up to `pages` pages; all of them without a limit.

    It stops at an L0 key alone: another one may be a "directory" name, which some stores skip where a listing begins at it.
    `rest` is what was left, once `read` has ended; `requests` counts its LIST requests.

    Args:
        folder: what is listed; by default the L0 objects.
    """

    def __init__(
        self,
        store: ObjectStore,
        layout: KeyLayout,
        keys: KeyRange,
        pages: int | None = None,
        folder: str | None = None,
    ) -> None:
        self._store, self._layout, self._keys, self._pages = store, layout, keys, pages
        self._folder = layout.data_prefix if folder is None else folder
        self.rest: KeyRange | None = None
        self.requests = 0

    def read(self) -> Iterator[ListedPage]:
        """Yield the pages; none of them is empty."""
        start, stop = self._keys.start, self._keys.end
        last, ordered = start, True
        self.requests = 1  # for the first page, also if it is empty
        for number, page in enumerate(self._store.scan(self._folder, start), 1):
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
                self.rest = KeyRange(last, stop)
                return


def read_in_rounds(
    layout: KeyLayout,
    readers: int,
    ceiling: Callable[[], int],
    read: Callable[[Sequence[KeyRange], int], Iterable[KeyRange]],
    first_pages: int,
) -> None:
    """Have everything below the data prefix read, at first in `readers` ranges.

    Args:
        ceiling: the epoch that hardly any object is above; asked once a round, and only where something is left.
        read: reads each of these ranges up to so many pages, and returns what is left.
        first_pages: how far each reader goes in the first round.
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
    """At most `count` ranges of as many shards each, which together are everything."""
    n = max(1, min(count, layout.shards))
    return cut_range(KeyRange(), [layout.before_shard(layout.shards * i // n) for i in range(1, n)])


def split_rest(layout: KeyLayout, rest: KeyRange, ceiling: int, parts: int) -> list[KeyRange]:
    """`rest` in pieces.

    A rest begins at a key that was read. What comes after it may lie in the same epoch of that shard, in the shard's later
    epochs, or in later shards: each of the three is cut evenly into about `parts`.
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
    """Return the range, cut after each of these keys that lies within it."""
    inside = sorted({k for k in at if keys.start < k and (keys.end is None or k < keys.end)})
    ends: list[str | None] = [*inside, keys.end]
    return [KeyRange(start, end) for start, end in zip([keys.start, *inside], ends, strict=True)]


def _evenly(first: int, last: int, count: int) -> list[int]:
    """At most `count` whole numbers from `first` to `last`, the first one among them."""
    n = min(count, last - first + 1)
    return [first + (last - first + 1) * i // n for i in range(n)]
