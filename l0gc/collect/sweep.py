"""Delete L0 objects at or below M, and abort their unfinished uploads: a sweep.

One process sweeps all shards with one queue, and a limit applies in key order. On Spark, each part is a range of
shards. Scanning and deleting overlap (`run.py`). If a store lists out of order (hazard 12), the scanner detects it, all
deletes in progress are finished, and the whole part is scanned again in one piece.

The parts of unfinished uploads cost money, and no listing of objects shows them. An upload is aborted only if its key
is an L0 key at or below M (hazard 13 applies here, too). Its completion could only create an object that M has already
passed, whose placeholder no partition accepts any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Final

import msgspec

from l0gc.collect.deletion import Deletable
from l0gc.collect.gc_steps import SWEEP
from l0gc.collect.history import on_record_as_shadow, usual_objects
from l0gc.collect.plan import DeletionPlan, plan_sweep
from l0gc.collect.run import DeletionQueue, DeletionRun, RunResult
from l0gc.collect.skip_scan import OutOfOrderError, RunCounts, SkipScan
from l0gc.epoch import NO_WATERMARK
from l0gc.errors import L0gcError, PartialFailureError
from l0gc.events import Progress, quiet
from l0gc.formatting import count, size
from l0gc.operations import Sweep
from l0gc.storage.objectstore import ObjectStore, UnfinishedUpload
from l0gc.storage.parallel import InlineExecutor
from l0gc.storage.workers import LOCAL, Workplace

LEVEL_ZERO: Final = "l0"
"""The kind of garbage that a sweep deletes."""

Ranges = Sequence[tuple[int, int]]
"""Consecutive ranges of shards, each from its first shard to the one after its last."""


class SweepResult(RunResult, kw_only=True):
    """The result of a sweep, or of its dry run.

    Attributes:
        watermark: The published M; -1 if none is published, in which case nothing is read or deleted.
        bound: The highest epoch that the run could delete: M, or less because of `--grace` or `--up-to`; -1 if none.
        dry_run: Whether it was a dry run or a shadow run.
        listed: The number of keys read; the skip-scan does not read all keys.
        eligible: The number of these keys at or below the bound, whatever their age.
        deleted: The number of deleted objects; in a dry run, of those that would be deleted; in a shadow run, of those
            that no earlier shadow run has recorded.
        bytes: Their size.
        failed: The number of objects that could not be deleted, e.g. because of Object Lock or a legal hold. If there
            are any, the exit code is 3.
        held_by_age: The number of eligible objects younger than `--min-age`.
        unparsable: The number of keys read that are not L0 keys; they stay.
        uploads_aborted: The number of unfinished multipart uploads that were aborted.
        requests: The numbers of `list` and `delete` requests, including repeated deletes but not repeated lists. A dry
            run counts the deletes of full batches; `--max-rate` and a slow store make batches smaller.
        throttled: How often the store asked to slow down, or did not answer in time.
        backpressure_seconds: How long deletions waited because of that.
        failures: Up to 20 failures, each with `key`, `code` and `message`.
        versioning: `off`, `enabled`, `suspended`, or `unknown` if the store does not allow reading it.
        engine: `local` or `spark`.
        engine_reason: Why this engine was chosen.
        stopped: Whether a signal or a pause ended the run.
        limited_by: The option whose limit left some eligible objects: `max_objects`, `max_bytes` or `max_delete_ratio`;
            null if none did. For `max_delete_ratio`, the exit code is 4.
        paused: The pause that ended the run, or that a dry run found; null if there was none. See [pause](#l0gc-pause).
        seconds: How long the run took, without the start of Spark.
        run_id: The folder below `l0gc/runs/` with the record of deletions. A run that deleted nothing and had no
            failures writes no record.
    """

    hidden: ClassVar[frozenset[str]] = RunResult.hidden | frozenset(
        ["objects", "unparsable_samples", "unknown", "unknown_folders"]
    )
    derived: ClassVar[tuple[str, ...]] = ("watermark", "bound", "deleted")

    plan: DeletionPlan[Sweep]

    @property
    def watermark(self) -> int:
        """Return M at the run's start."""
        return self.plan.watermark

    @property
    def bound(self) -> int:
        """Return the highest epoch that the run may delete: M or less."""
        return self.plan.bound

    @property
    def deleted(self) -> int:
        """Return how many objects were deleted."""
        return self.objects

    def measures(self) -> dict[str, Any]:
        names = ("highest_deleted_epoch", "list_errors", "delete_errors")
        return super().measures() | {name: getattr(self, name) for name in names}

    @property
    def left_traces(self) -> bool:
        return super().left_traces or self.uploads_aborted > 0

    @property
    def problem(self) -> L0gcError | None:
        """Return the error that kept the run from deleting everything that it was to delete."""
        if super().problem is not None:
            return super().problem
        if not self.failed:
            return None
        first = self.failures[0]
        return PartialFailureError(
            f"{count(self.failed, 'object')} could not be deleted, the rest is done; the first is {first.key}: "
            f"{first.why}. Run the sweep again"
        )


class SweepRun(DeletionRun[Sweep, SweepResult]):
    """One run."""

    operation = Sweep

    def run(
        self,
        ranges: int | None = None,
        gone: Callable[[Sequence[Deletable]], None] | None = None,
    ) -> SweepResult:
        """Sweep.

        Args:
            ranges: the number of ranges of shards, which are scanned separately; the default depends on the workers.
            gone: called, in key order, with the objects that each request deleted or, in a dry run, would delete. If
                the store lists out of order and the scan begins again, they are passed twice.

        Raises:
            The errors of `plan_sweep`, in which case nothing was deleted. UsageError: an option needs a single process.
            StoreError, BucketNotFoundError: the store failed, or the credentials lack a permission. The objects deleted
            until then are on record.
        """
        plan = plan_sweep(self._cluster, self._options, self._run_id, partial(usual_objects, self._cluster, SWEEP))
        if self._options.shadow:
            plan = msgspec.structs.replace(plan, known=on_record_as_shadow(self._cluster.store, plan.layout.shards))
        workers = self._workers
        result = SweepResult(plan=plan, paused=plan.paused, engine=workers.engine, engine_reason=workers.reason)
        self._begin(plan)
        if plan.bound == NO_WATERMARK:
            return result
        if gone is not None:
            self._deleters = InlineExecutor()
        with self._recording(result):
            queue, say = self._queue(LEVEL_ZERO), self._workers.say
            parts = self._parts(plan, ranges, in_order=bool(plan.limits) or gone is not None)
            if gone is not None:
                queue.gone = gone
            if self._workers.engine != LOCAL:
                say(f"{count(len(parts), 'range')} of shards")
                say = quiet
            self._spread(LEVEL_ZERO, partial(sweep_ranges, say), parts)
            if not queue.counts.over_ratio:
                self._abort_uploads(plan.layout.data_prefix, queue, result, partial(_may_be_aborted, plan))
        return result

    def _parts(self, plan: DeletionPlan[Sweep], ranges: int | None, *, in_order: bool) -> list[Ranges]:
        """Return the shards in parts. In key order, a limit covers the same objects in a dry run and in a real run."""
        workers = self._workers
        if workers.engine != LOCAL:
            # A rate is divided among the tasks, so there are no more tasks than can run at once.
            return [[r] for r in plan.ranges(workers.slots if plan.options.max_rate is None else workers.cores)]
        return [plan.ranges(1 if in_order else ranges or workers.slots)]


def _may_be_aborted(plan: DeletionPlan[Sweep], upload: UnfinishedUpload) -> bool:
    key = plan.layout.parse(upload.key)
    if key is None or key.epoch > plan.bound:
        return False
    return plan.first_shard <= key.shard < plan.end_shard and upload.initiated_ms <= plan.older_than_ms


# -- a part of the shards -------------------------------------------------------------------------------------------------


def sweep_ranges(progress: Progress, workplace: Workplace, queue: DeletionQueue, ranges: Ranges) -> None:
    """Find the objects in the ranges that may be deleted, and hand them to the queue.

    Args:
        progress: called after each request with the position of the run.
    """
    sweeper = _Sweeper(workplace.store, queue, progress)
    try:
        workplace.parallel.map(lambda span: sweeper.scan(*span), ranges)
    except OutOfOrderError:
        queue.drain()
        queue.begin_again()
        sweeper.scan(ranges[0][0], ranges[-1][1], skip=False)


class _Sweeper:
    """Scans ranges of shards, with one scanner each. A scanner that waits for deletes holds one page."""

    def __init__(self, store: ObjectStore, queue: DeletionQueue, progress: Progress) -> None:
        self._store, self._queue, self._progress = store, queue, progress
        self._at = ""
        queue.progress = self._report

    def scan(self, first: int, end: int, *, skip: bool = True) -> None:
        """Scan a range, and stop the other scanners if it cannot be scanned to its end."""
        queue = self._queue
        scan = SkipScan(self._store, queue.plan, first, end, skip=skip)
        try:
            for batch in scan.batches():
                self._at = scan.at
                self._count(scan)
                queue.take(batch)
                self._report()
                if queue.full or queue.stop.is_set():
                    return
        except BaseException:
            queue.full = True  # ends the other scanners, too
            raise
        finally:
            self._count(scan)

    def _count(self, scan: SkipScan) -> None:
        counts, scan.counts = scan.counts, RunCounts()
        self._queue.count(counts)

    def _report(self) -> None:
        queue, expected = self._queue, self._queue.plan.expected
        with queue.lock:
            done, rate = queue.counts, queue.pacer.rate()
            deleted, gone, listed = done.objects, done.bytes, done.listed
        shard = queue.plan.layout.shard_text(self._at)
        total = expected if expected >= deleted else None
        of = f" of {count(expected, 'object')}" if total is not None else ""
        limit = f", held to {rate:,.0f}/s" if rate is not None else ""
        text = f"{deleted:,}{of} deleted, {size(gone)}, shard {shard}{limit}"
        self._progress(
            text, done=deleted, total=total, deleted=deleted, bytes=gone, listed=listed, shard=shard, rate=rate
        )
