"""Find the objects that a sweep may delete, by skip-scan.

This is safe because an object is eligible only if its own key parses as an L0 key with an epoch at or below M (hazard
13) and, if there is a minimum age, the object has reached it by the store's clock (hazard 16). The order of the listing
only saves requests. Keys sort by shard, then epoch, so if a page ends above M, everything up to the next shard is live,
and the scan jumps there. A store that lists out of order is detected and read in full (hazard 12).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from l0gc.collect.deletion import Deletable
from l0gc.collect.plan import RATIO, DeletionPlan
from l0gc.errors import StoreError
from l0gc.operations import Deletion, Sweep, written
from l0gc.storage.objectstore import PAGE_SIZE, DeleteFailure, ListedPage, ObjectStore, VersionPage

SAMPLES: Final = 3
FAILURES_KEPT: Final = 20


class RunCounts(msgspec.Struct, kw_only=True):
    """The totals of a deletion, real or simulated, for a scan, a worker, a whole run, its result or its summary.

    Attributes:
        eligible: the eligible objects by epoch alone; `held_by_age` counts those that are too young.
        unparsable: the keys that cannot be parsed, which are kept; `unparsable_samples` has a few of them.
        unknown: the objects of topics that no log has; `unknown_folders` are a few of these topics' folders.
        objects: the deleted objects; `bytes` is their size.
        failures: the first few of the `failed` objects.
        limited_by: the option whose limit left some eligible objects; empty if none did.
        paused: the pause that ended the run; empty if none did.
    """

    listed: int = 0
    eligible: int = 0
    held_by_age: int = 0
    unparsable: int = 0
    unparsable_samples: list[str] = []
    unknown: int = 0
    unknown_folders: list[str] = []
    list_requests: int = 0
    list_errors: int = 0
    objects: int = 0
    bytes: int = 0
    failed: int = 0
    failures: list[DeleteFailure] = []
    highest_deleted_epoch: int = -1
    delete_requests: int = 0
    delete_errors: int = 0
    uploads_aborted: int = 0
    throttled: int = 0
    backpressure_seconds: float = 0.0
    limited_by: str = ""
    paused: str = ""

    @property
    def limited(self) -> bool:
        """Return whether more objects were eligible than the run may delete."""
        return self.limited_by != ""

    @property
    def rest(self) -> str:
        """Return which option left the rest, as text; empty if none did."""
        return f"--{written(Deletion, self.limited_by)} left the rest" if self.limited else ""

    @property
    def over_ratio(self) -> bool:
        """Return whether more objects were eligible than the allowed share."""
        return self.limited_by == RATIO

    def include(self, other: RunCounts) -> None:
        """Add the counts of another scan or worker."""
        for name in RunCounts.__struct_fields__:
            mine, theirs = getattr(self, name), getattr(other, name)
            setattr(self, name, _TOGETHER[name](mine, theirs) if name in _TOGETHER else mine + theirs)


_TOGETHER: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "unparsable_samples": lambda mine, theirs: (mine + theirs)[:SAMPLES],
    "unknown_folders": lambda mine, theirs: sorted({*mine, *theirs})[:SAMPLES],
    "failures": lambda mine, theirs: (mine + theirs)[:FAILURES_KEPT],
    "highest_deleted_epoch": max,
    "limited_by": lambda mine, theirs: mine or theirs,
    "paused": lambda mine, theirs: mine or theirs,
}
"""The functions that combine fields that are not added."""


class OutOfOrderError(Exception):
    """The store lists out of key order, so the scan has to begin again without skipping."""


class SkipScan:
    """Finds the eligible objects of the shards from `first` to before `end`, page by page, by the plan's bound and
    ages.

    Args:
        skip: whether to jump over live objects. If False, everything is read.
    """

    def __init__(
        self, store: ObjectStore, plan: DeletionPlan[Sweep], first: int, end: int, *, skip: bool = True
    ) -> None:
        self._store, self._plan, self._layout, self._skip = store, plan, plan.layout, skip
        self._start = plan.layout.before_shard(first)
        self._end = plan.layout.before_shard(end) if end < plan.layout.shards else None
        self.counts = RunCounts()
        self.at = self._start

    def batches(self) -> Iterator[list[Deletable]]:
        """Yield the eligible objects of each page, even if there are none, so that the caller can stop after each page.

        Raises:
            OutOfOrderError: a page was out of key order during a scan that skips.
        """
        cursor: str | None = self._start
        while cursor is not None:
            start, cursor = cursor, None
            last = start
            self.counts.list_requests += 1  # the first page, even if it is empty
            for number, page in enumerate(self._pages(start)):
                self.counts.list_requests += number > 0
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
        """Return whether a page is not in order, or does not continue after `last`. Versions of one key may follow each
        other.
        """
        if keys[0] < last or sorted(keys) != keys:
            return True
        return not self._plan.by_version and (keys[0] == last or len(set(keys)) < len(keys))

    def _pages(self, start: str) -> Iterator[ListedPage | VersionPage]:
        list_pages = self._store.versions if self._plan.by_version else self._store.scan
        try:
            yield from list_pages(self._layout.data_prefix, start)
        except StoreError:
            self.counts.list_errors += 1
            raise

    def _jump(self, last: str) -> str | None:
        """Return the key from which to continue if everything up to the next shard is live; None to read the next page."""
        parsed = self._layout.parse(last)
        if parsed is None or parsed.epoch <= self._plan.bound:
            return None
        following = parsed.shard + 1
        if following >= self._layout.shards:
            return self._layout.shard_prefix(parsed.shard) + "~"
        return self._layout.before_shard(following)

    def _classify(self, page: ListedPage | VersionPage) -> list[Deletable]:
        counts, end, start, bound = self.counts, self._end, self._start, self._plan.bound
        (known_epoch, known_ms), older_than_ms = self._plan.known, self._plan.older_than_ms
        ids = page.version_ids if isinstance(page, VersionPage) else [""] * len(page)
        eligible: list[Deletable] = []
        rows = zip(page.keys, self._layout.epochs(page.keys), page.sizes, page.modified_ms, ids, strict=True)
        for key, epoch, size, modified, version in rows:
            if key <= start or (end is not None and key > end):
                continue
            counts.listed += 1
            if epoch < 0:
                counts.unparsable += 1
                counts.unparsable_samples += [key] if len(counts.unparsable_samples) < SAMPLES else []
                continue
            if epoch > bound:
                continue
            counts.eligible += 1
            if modified > older_than_ms:
                counts.held_by_age += 1
                continue
            if epoch <= known_epoch and modified < known_ms:
                continue
            eligible.append(Deletable(key, epoch, size, modified, version))
        return eligible
