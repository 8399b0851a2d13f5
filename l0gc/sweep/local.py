"""The local engine: one process, shard ranges on threads, each scans and deletes its own.

Before anything is deleted: the published watermark must be this cluster's (hazard 11), and not above the cluster epoch
(hazard 10). M is read once; a higher one that is published meanwhile waits for the next run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from l0gc.cluster import Cluster
from l0gc.keys import PUBLISHED_WATERMARK, KeyLayout
from l0gc.storage.objectstore import PAGE_SIZE, DeleteFailure
from l0gc.storage.parallel import Parallel
from l0gc.sweep.deleter import delete_batch
from l0gc.sweep.record import RunRecord
from l0gc.sweep.scan import EligibleObject, OutOfOrderError, ScanCounts, SkipScan
from l0gc.watermark.compute import check_epochs
from l0gc.watermark.publication import read_published, watermark_of

WORKERS: Final = 8
_FAILURES_KEPT: Final = 20


@dataclass
class SweepResult:
    """What a sweep did, or would do. `deleted` of a dry run is what the real run deletes."""

    watermark: int
    run_id: str
    dry_run: bool
    counts: ScanCounts = field(default_factory=ScanCounts)
    deleted: int = 0
    bytes: int = 0
    failed: int = 0
    delete_requests: int = 0
    failures: list[DeleteFailure] = field(default_factory=list)


class LocalSweep:
    """One run.

    Args:
        min_age_ms: objects younger than this, by the store's clock, stay for now.
        max_objects: delete no more than this many.
        progress: told the listed and the deleted objects so far, every batch.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        dry_run: bool = False,
        min_age_ms: int = 0,
        max_objects: int | None = None,
        progress: Callable[[int, int], None] = lambda listed, deleted: None,
    ) -> None:
        self._cluster = cluster
        self._min_age_ms = min_age_ms
        self._left = max_objects
        self._progress = progress
        self._lock = threading.Lock()
        self.result = SweepResult(-1, cluster.runtime.new_id(), dry_run)
        self._record = RunRecord(cluster.store, self.result.run_id)

    def run(self, workers: Parallel, ranges: int = WORKERS) -> SweepResult:
        """Sweep all shards.

        Raises:
            NotInitialisedError, ClusterMismatchError, EpochRegressionError: nothing was deleted.
            AccessDeniedError: the credentials do not allow it.
        """
        state = self._cluster.controller.snapshot()
        published, _ = read_published(self._cluster.store, state.cluster_id)
        self.result.watermark = watermark_of(published)
        check_epochs(state.epoch, self.result.watermark, f"the watermark in {PUBLISHED_WATERMARK}")
        if published is None:
            return self.result
        layout = KeyLayout(state.key_template, state.shards)
        older_than_ms = self._cluster.store.now_ms() - self._min_age_ms
        n = min(ranges, layout.shards)
        cuts = [layout.shards * i // n for i in range(n + 1)]
        try:
            workers.map(lambda i: self._sweep_range(layout, cuts[i], cuts[i + 1], older_than_ms), range(n))
        finally:
            self._record.flush()
        return self.result

    def _sweep_range(self, layout: KeyLayout, first: int, end: int, older_than_ms: int) -> None:
        for skip in (True, False):
            scan = SkipScan(
                self._cluster.store,
                layout,
                self.result.watermark,
                first,
                end,
                older_than_ms=older_than_ms,
                skip=skip,
            )
            before = self.result.deleted
            try:
                self._sweep_scan(scan)
            except OutOfOrderError:
                # What was deleted is gone from the listing, so only a dry run would count it twice.
                scan.counts = ScanCounts(eligible=0 if self.result.dry_run else self.result.deleted - before)
                with self._lock:
                    self.result.counts.add(scan.counts)
                    if self.result.dry_run:
                        self.result.deleted = before
                continue
            with self._lock:
                self.result.counts.add(scan.counts)
            return

    def _sweep_scan(self, scan: SkipScan) -> None:
        waiting: list[EligibleObject] = []
        for batch in scan.batches():
            waiting += self._claim(batch)
            while len(waiting) >= PAGE_SIZE:
                self._delete(waiting[:PAGE_SIZE])
                waiting = waiting[PAGE_SIZE:]
            self._progress(scan.counts.listed, self.result.deleted)
        if waiting:
            self._delete(waiting)

    def _claim(self, batch: list[EligibleObject]) -> list[EligibleObject]:
        if self._left is None:
            return batch
        with self._lock:
            taken = batch[: self._left]
            self._left -= len(taken)
            return taken

    def _delete(self, objects: list[EligibleObject]) -> None:
        if self.result.dry_run:
            with self._lock:
                self.result.delete_requests += 1
                self.result.deleted += len(objects)
                self.result.bytes += sum(o.size for o in objects)
            return
        outcome = delete_batch(self._cluster.store, self._cluster.runtime, objects)
        self._record.add(outcome.deleted)
        with self._lock:
            self.result.delete_requests += outcome.requests
            self.result.deleted += len(outcome.deleted)
            self.result.bytes += sum(o.size for o in outcome.deleted)
            self.result.failed += len(outcome.failures)
            room = _FAILURES_KEPT - len(self.result.failures)
            self.result.failures += outcome.failures[: max(0, room)]
