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
from l0gc.keys import KeyLayout
from l0gc.storage.objectstore import PAGE_SIZE, DeleteFailure
from l0gc.storage.parallel import Parallel
from l0gc.sweep.deleter import DeleteOutcome, delete_batch
from l0gc.sweep.record import RunRecord
from l0gc.sweep.scan import EligibleObject, OutOfOrderError, ScanCounts, SkipScan
from l0gc.watermark.publication import refuse_if_behind, watermark_of

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


@dataclass(slots=True)
class _Tally:
    """What one range has done. `claimed` counts against `max_objects`."""

    claimed: int = 0
    deleted: int = 0
    bytes: int = 0
    delete_requests: int = 0
    failed: int = 0
    failures: list[DeleteFailure] = field(default_factory=list)


class LocalSweep:
    """One run.

    Args:
        min_age_ms: objects younger than this, by the store's clock, stay for now.
        max_objects: delete no more than this many.
        progress: told how many objects are deleted so far, after every request.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        dry_run: bool = False,
        min_age_ms: int = 0,
        max_objects: int | None = None,
        progress: Callable[[int], None] = lambda deleted: None,
    ) -> None:
        self._cluster = cluster
        self._min_age_ms = min_age_ms
        self._left = max_objects
        self._gone = 0
        self._progress = progress
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.result = SweepResult(-1, cluster.runtime.new_id(), dry_run)
        self._record = RunRecord(cluster.store, self.result.run_id)

    def run(self, workers: Parallel, ranges: int = WORKERS) -> SweepResult:
        """Sweep all shards.

        Raises:
            NotInitialisedError, ClusterMismatchError, EpochRegressionError: nothing was deleted.
            AccessDeniedError: the credentials do not allow it.
        """
        state, published = refuse_if_behind(self._cluster)
        self.result.watermark = watermark_of(published)
        if published is None:
            return self.result
        layout = KeyLayout(state.key_template, state.shards)
        older_than_ms = self._cluster.store.now_ms() - self._min_age_ms
        n = min(ranges, layout.shards)
        cuts = [layout.shards * i // n for i in range(n + 1)]
        try:
            workers.map(lambda i: self._sweep_range(layout, cuts[i], cuts[i + 1], older_than_ms), range(n))
        except BaseException:
            self._stop.set()  # the ranges end behind the request that is under way
            raise
        finally:
            self._record.flush()
        return self.result

    def _sweep_range(self, layout: KeyLayout, first: int, end: int, older_than_ms: int) -> None:
        def scanner(*, skip: bool) -> SkipScan:
            return SkipScan(
                self._cluster.store, layout, self.result.watermark, first, end, older_than_ms=older_than_ms, skip=skip
            )

        scan, tally = scanner(skip=True), _Tally()
        try:
            self._sweep_scan(scan, tally)
        except OutOfOrderError:
            # Begin again without skipping. What was deleted is gone from the listing, so it keeps its place in the
            # numbers; what was only looked at will be seen again.
            requests = scan.counts.requests
            if self.result.dry_run:
                self._give_back(tally.claimed)
                tally = _Tally()
            else:
                self._give_back(tally.claimed - tally.deleted)
                tally.claimed, tally.failed, tally.failures = tally.deleted, 0, []
            scan = scanner(skip=False)
            scan.counts = ScanCounts(listed=tally.deleted, eligible=tally.deleted, requests=requests)
            self._sweep_scan(scan, tally)
        finally:
            self._add(scan.counts, tally)

    def _sweep_scan(self, scan: SkipScan, tally: _Tally) -> None:
        waiting: list[EligibleObject] = []
        for batch in scan.batches():
            taken = self._claim(batch)
            tally.claimed += len(taken)
            waiting += taken
            while len(waiting) >= PAGE_SIZE:
                self._delete(waiting[:PAGE_SIZE], tally)
                waiting = waiting[PAGE_SIZE:]
            if self._left == 0 or self._stop.is_set():
                break
        if waiting:
            self._delete(waiting, tally)

    def _claim(self, batch: list[EligibleObject]) -> list[EligibleObject]:
        """As much of the batch as `max_objects` leaves."""
        with self._lock:
            if self._left is None:
                return batch
            taken = batch[: self._left]
            self._left -= len(taken)
            return taken

    def _give_back(self, claimed: int) -> None:
        with self._lock:
            if self._left is not None:
                self._left += claimed

    def _delete(self, objects: list[EligibleObject], tally: _Tally) -> None:
        if self.result.dry_run:
            outcome = DeleteOutcome(objects, requests=1)
        else:
            outcome = delete_batch(self._cluster.store, self._cluster.runtime, objects)
            self._record.add(outcome.deleted)
        tally.delete_requests += outcome.requests
        tally.deleted += len(outcome.deleted)
        tally.bytes += sum(o.size for o in outcome.deleted)
        tally.failed += len(outcome.failures)
        tally.failures += outcome.failures[: max(0, _FAILURES_KEPT - len(tally.failures))]
        with self._lock:
            self._gone += len(outcome.deleted)
            gone = self._gone
        self._progress(gone)

    def _add(self, counts: ScanCounts, tally: _Tally) -> None:
        """The numbers of a range that has ended, well or not."""
        with self._lock:
            self.result.counts.add(counts)
            self.result.deleted += tally.deleted
            self.result.bytes += tally.bytes
            self.result.delete_requests += tally.delete_requests
            self.result.failed += tally.failed
            self.result.failures += tally.failures[: max(0, _FAILURES_KEPT - len(self.result.failures))]
