"""Which objects a sweep may delete, found by skip-scan.

Safe because of what it does not rely on: an object is eligible only if its own key parses as an L0 key with an epoch at or
below M (hazard 13) and, where there is a minimum age, if it is that old by the store's clock (hazard 16). The order of
the listing only saves requests: keys sort by shard, then epoch, so after a page that ends above M everything up to the
next shard is live, and the scan jumps there. A store that lists out of order is noticed and read in full (hazard 12).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from l0gc.errors import StoreError
from l0gc.keys import KeyLayout
from l0gc.storage.objectstore import PAGE_SIZE, ListedPage, ObjectStore, VersionPage


class Deletable(msgspec.Struct, frozen=True, gc=False):
    """An object that may go; `version_id` names one version of it, and is empty for the object as it is.

    A struct of msgspec is made in a tenth of a dataclass's time, and there is one for each object that a sweep deletes.
    """

    key: str
    epoch: int
    size: int
    modified_ms: int = 0
    version_id: str = ""


@dataclass(slots=True)
class ScanCounts:
    """What a scan has seen. `eligible` counts by epoch alone; `held_by_age` are those of them that are too young."""

    listed: int = 0
    eligible: int = 0
    held_by_age: int = 0
    unparsable: int = 0
    unparsable_sample: str = ""
    highest_epoch: int = -1
    requests: int = 0
    errors: int = 0

    def add(self, other: ScanCounts) -> None:
        self.listed += other.listed
        self.eligible += other.eligible
        self.held_by_age += other.held_by_age
        self.unparsable += other.unparsable
        self.unparsable_sample = self.unparsable_sample or other.unparsable_sample
        self.highest_epoch = max(self.highest_epoch, other.highest_epoch)
        self.requests += other.requests
        self.errors += other.errors


class OutOfOrderError(Exception):
    """The store lists out of key order, so the scan has to begin again without skipping."""


class SkipScan:
    """The eligible objects of the shards `first` to `end` (end excluded), page by page.

    Args:
        watermark: M.
        older_than_ms: objects changed after this (by the store's clock) are held by age.
        skip: whether to jump over what is live; False reads everything.
        versions: list every version and delete marker, not the objects as they are.
    """

    def __init__(
        self,
        store: ObjectStore,
        layout: KeyLayout,
        watermark: int,
        first: int,
        end: int,
        *,
        older_than_ms: int,
        skip: bool = True,
        versions: bool = False,
    ) -> None:
        self._store, self._layout, self._watermark = store, layout, watermark
        self._older_than_ms = older_than_ms
        self._start = layout.before_shard(first)
        self._end = layout.before_shard(end) if end < layout.shards else None
        self._skip = skip
        self._versions = versions
        self.counts = ScanCounts()
        self.at = self._start

    def batches(self) -> Iterator[list[Deletable]]:
        """The eligible objects of each page, of a page without any an empty list: the caller may stop at each.

        Raises:
            OutOfOrderError: a page was not in key order, while skipping.
        """
        cursor: str | None = self._start
        while cursor is not None:
            start, cursor = cursor, None
            last = start
            self.counts.requests += 1  # for the first page, also if it is empty
            for number, page in enumerate(self._counting_errors(self._pages(start))):
                self.counts.requests += number > 0
                keys = page.keys
                if self._skip and self._disordered(keys, last):
                    raise OutOfOrderError
                last = self.at = keys[-1]
                yield self._classify(page)
                if not self._skip:
                    continue
                if self._end is not None and last > self._end:
                    return
                cursor = self._jump(last) if len(page) >= PAGE_SIZE else None
                if cursor is not None:
                    if self._end is not None and cursor >= self._end:
                        return
                    break

    def _disordered(self, keys: list[str], last: str) -> bool:
        """Whether a page does not go on after `last`, in order; versions of one key may follow each other."""
        if keys[0] < last or sorted(keys) != keys:
            return True
        return not self._versions and (keys[0] == last or len(set(keys)) < len(keys))

    def _pages(self, start: str) -> Iterator[ListedPage | VersionPage]:
        if self._versions:
            return self._store.history.versions(self._layout.data_prefix, start)
        return self._store.scan(self._layout.data_prefix, start)

    def _counting_errors(self, pages: Iterator[ListedPage | VersionPage]) -> Iterator[ListedPage | VersionPage]:
        try:
            yield from pages
        except StoreError:
            self.counts.errors += 1
            raise

    def _jump(self, last: str) -> str | None:
        """Where to go on if everything up to the next shard is live; None to read on."""
        parsed = self._layout.parse(last)
        if parsed is None or parsed.epoch <= self._watermark:
            return None
        following = parsed.shard + 1
        if following >= self._layout.shards:
            return self._layout.shard_prefix(parsed.shard) + "~"
        return self._layout.before_shard(following)

    def _classify(self, page: ListedPage | VersionPage) -> list[Deletable]:
        counts, end, start, watermark = self.counts, self._end, self._start, self._watermark
        ids = page.version_ids if isinstance(page, VersionPage) else [""] * len(page)
        eligible: list[Deletable] = []
        rows = zip(page.keys, self._layout.epochs(page.keys), page.sizes, page.modified_ms, ids, strict=True)
        for key, epoch, size, modified, version in rows:
            if key <= start or (end is not None and key > end):
                continue
            counts.listed += 1
            if epoch < 0:
                counts.unparsable += 1
                counts.unparsable_sample = counts.unparsable_sample or key
                continue
            if epoch > counts.highest_epoch:
                counts.highest_epoch = epoch
            if epoch > watermark:
                continue
            counts.eligible += 1
            if modified > self._older_than_ms:
                counts.held_by_age += 1
                continue
            eligible.append(Deletable(key, epoch, size, modified, version))
        return eligible
