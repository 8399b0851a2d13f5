"""Sweeping a span of shards: scan, delete, record; what the local engine does once, and each Spark task for its part.

Scanning and deleting overlap: scanners collect eligible objects into segments, a segment is put on record as planned, and
only then its batches go to the deleters. Few segments are under way at once, and scanners wait for them, each with no more
than the page in its hands, so memory does not grow with the bucket. A store that lists out of order (hazard 12) is noticed
by a scanner; then everything under way is finished, and the span is scanned once more, all of it and in one piece.
An operator's pause is looked for before each segment is put on record; it ends the run as a stop does.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Final

from l0gc.collect.deleter import DeleteOutcome, Deleter
from l0gc.collect.pacing import Pacer
from l0gc.collect.pause import describe, read_pause
from l0gc.collect.plan import SweepPlan
from l0gc.collect.record import DELETED, FAILED, LEFT, PLANNED, SEGMENT_OBJECTS, RecordSink, RunRecord, Segment
from l0gc.collect.scan import EligibleObject, OutOfOrderError, ScanCounts, SkipScan
from l0gc.events import event
from l0gc.runtime import Runtime
from l0gc.storage.objectstore import PAGE_SIZE, DeleteFailure, ObjectStore
from l0gc.storage.parallel import Parallel

_log: Final = logging.getLogger(__name__)

FAILURES_KEPT: Final = 20
_SEGMENTS_UNDER_WAY: Final = 8
"""Enough for all deleters to be busy, `DELETERS` requests of `PAGE_SIZE` objects."""


@dataclass(slots=True)
class Tally:
    """What was done.

    `limited`: more was eligible than the run was allowed to delete; `paused` is the pause that ended it.
    """

    counts: ScanCounts = field(default_factory=ScanCounts)
    deleted: int = 0
    bytes: int = 0
    failed: int = 0
    highest_deleted_epoch: int = -1
    delete_requests: int = 0
    delete_errors: int = 0
    throttled: int = 0
    backpressure_s: float = 0.0
    limited: bool = False
    paused: str = ""
    failures: list[DeleteFailure] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add what another worker did."""
        self.counts.add(other.counts)
        for name in ("deleted", "bytes", "failed", "delete_requests", "delete_errors", "throttled", "backpressure_s"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.highest_deleted_epoch = max(self.highest_deleted_epoch, other.highest_deleted_epoch)
        self.limited = self.limited or other.limited
        self.paused = self.paused or other.paused
        self.failures += other.failures[: max(0, FAILURES_KEPT - len(self.failures))]


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run is; `expected` is what the last scan saw as eligible, -1 if there was none."""

    expected: int
    deleted: int
    bytes: int
    listed: int
    shard: str
    rate: float | None
    throttled: int


@dataclass(slots=True)
class _UnderWay:
    """A segment whose objects are being deleted; `left` are the batches that have not ended."""

    segment: Segment
    objects: list[EligibleObject]
    left: int
    outcomes: list[DeleteOutcome] = field(default_factory=list)


class Sweeper:
    """One worker's sweep of the shards `first` to `end` (end excluded).

    Args:
        plan: its `started_ms` is now; the times on record count from there.
        worker: what this worker's segments are called.
        deleters: where the DELETE requests run.
        records: where the run record goes; by default into the bucket.
        stop: set to end the run: what is under way is finished and recorded, the rest is left.
        pacer: the process's pace, made with `stop`; by default one of this worker's own.
        progress: called after every request.
    """

    def __init__(
        self,
        store: ObjectStore,
        runtime: Runtime,
        plan: SweepPlan,
        *,
        worker: str,
        deleters: Executor,
        records: RecordSink | None = None,
        stop: threading.Event | None = None,
        pacer: Pacer | None = None,
        progress: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        self._store, self._runtime, self._plan, self._deleters = store, runtime, plan, deleters
        self._layout = plan.layout
        self._stop = stop or threading.Event()
        self._progress = progress
        self._pacer = pacer or Pacer(runtime, plan.max_rate, self._stop)
        self._throttled, self._backpressure_s = self._pacer.throttled, self._pacer.backpressure_s
        self._deleter = Deleter(store, runtime, self._pacer, self._stop, keep_history=plan.keeps_history)
        self._record = RunRecord(records or store, plan.run_id, worker, purge=plan.by_version)
        self._lock = threading.Lock()
        self._feeding = threading.Lock()
        self._places = threading.Semaphore(_SEGMENTS_UNDER_WAY)
        self._tally = Tally()
        self._waiting: list[EligibleObject] = []
        self._claimed = 0
        self._full = False
        self._error: BaseException | None = None
        self._began = runtime.clock.monotonic()
        self._listed = 0
        self._at = ""

    def run(self, ranges: Sequence[tuple[int, int]], scanners: Parallel) -> Tally:
        """Sweep the ranges, which follow each other. Raises what ended the run before its end."""
        try:
            try:
                self._scan_all(ranges, scanners, skip=True)
            except OutOfOrderError:
                self._drain()
                self._begin_again()
                self._scan_all([(ranges[0][0], ranges[-1][1])], scanners, skip=False)
            self._drain()
        except Exception:
            self._stop.set()
            self._drain()
            raise
        except BaseException:
            self._stop.set()  # the process is to die: nothing is waited for, and scanners on other threads end, too
            raise
        if self._error is not None:
            raise self._error
        return self.tally

    @property
    def tally(self) -> Tally:
        """What was done so far."""
        self._tally.throttled = self._pacer.throttled - self._throttled
        self._tally.backpressure_s = self._pacer.backpressure_s - self._backpressure_s
        return self._tally

    # -- scanning -----------------------------------------------------------------------------------------------------

    def _scan_all(self, ranges: Sequence[tuple[int, int]], scanners: Parallel, *, skip: bool) -> None:
        disordered: list[OutOfOrderError] = []

        def one(span: tuple[int, int]) -> None:
            try:
                self._scan(*span, skip=skip)
            except OutOfOrderError as e:
                disordered.append(e)
                self._full = True  # the other scanners may as well end

        scanners.map(one, ranges)
        if disordered:
            raise disordered[0]

    def _scan(self, first: int, end: int, *, skip: bool) -> None:
        plan = self._plan
        scan = SkipScan(
            self._store, self._layout, plan.watermark, first, end,
            older_than_ms=plan.older_than_ms, skip=skip, versions=plan.by_version,
        )  # fmt: skip
        seen = 0
        try:
            for batch in scan.batches():
                with self._lock:
                    self._listed, seen = self._listed + scan.counts.listed - seen, scan.counts.listed
                    self._at = scan.at
                self._take(batch)
                self._report()
                if self._full or self._stop.is_set():
                    return
        except BaseException:
            self._full = True
            raise
        finally:
            with self._lock:
                self._tally.counts.add(scan.counts)

    def _begin_again(self) -> None:
        """Count anew, without skipping. What was deleted is gone from the listing, so it keeps its place in the numbers."""
        gone, requests = self._tally.deleted, self._tally.counts.requests
        if self._plan.dry_run:
            self._tally = Tally(ScanCounts(requests=requests))
            gone = 0
        self._tally.counts = ScanCounts(listed=gone, eligible=gone, requests=requests)
        self._tally.failed, self._tally.failures, self._tally.limited = 0, [], False
        self._claimed, self._full, self._listed = gone, False, gone

    # -- deleting -----------------------------------------------------------------------------------------------------

    def _take(self, batch: list[EligibleObject]) -> None:
        """Claim what the limit leaves of a batch, and send off whole segments."""
        limit = self._plan.limit
        while batch:
            with self._feeding:
                if limit is not None and len(batch) > limit - self._claimed:
                    batch = batch[: limit - self._claimed]
                    self._tally.limited = self._full = True
                taken, batch = batch[:SEGMENT_OBJECTS], batch[SEGMENT_OBJECTS:]
                self._claimed += len(taken)
                self._waiting += taken
                if len(self._waiting) < SEGMENT_OBJECTS:
                    continue
                # Whoever comes next waits for this scanner, and this scanner for a place under way.
                self._places.acquire()
                objects, self._waiting = self._waiting[:SEGMENT_OBJECTS], self._waiting[SEGMENT_OBJECTS:]
            self._send(objects)

    def _drain(self) -> None:
        """Send off what is waiting, and wait for everything that is under way."""
        objects, self._waiting = self._waiting, []
        if objects and not self._stop.is_set():
            self._places.acquire()
            self._send(objects)
        for _ in range(_SEGMENTS_UNDER_WAY):
            self._places.acquire()
        for _ in range(_SEGMENTS_UNDER_WAY):
            self._places.release()

    def _send(self, objects: list[EligibleObject]) -> None:
        """Put a segment on record, then its batches to the deleters; its place under way is free when all have ended."""
        batches = [objects[i : i + PAGE_SIZE] for i in range(0, len(objects), PAGE_SIZE)]
        if self._plan.dry_run:
            self._places.release()
            with self._lock:
                self._add(DeleteOutcome(objects, requests=len(batches)))
            return
        under_way = None
        try:
            if not self._paused():
                under_way = _UnderWay(self._record.plan(objects), objects, len(batches))
        finally:
            if under_way is None:
                self._places.release()
        if under_way is None:
            return
        for number, batch in enumerate(batches):
            try:
                self._deleters.submit(self._delete, under_way, batch)
            except RuntimeError:  # no thread could be started: the rest of the segment stays planned
                with self._lock:
                    under_way.left -= len(batches) - number
                    last = under_way.left == 0
                if last:
                    self._places.release()
                raise

    def _paused(self) -> bool:
        """Whether sweeps are paused, which ends the run; it does not go on, though the pause may be gone again."""
        pause = read_pause(self._store)
        if pause is None:
            return False
        with self._lock:
            self._tally.paused = describe(pause)
        self._stop.set()
        _log.info("a pause ends the run: %s", describe(pause), extra=event("pause_seen"))
        return True

    def _delete(self, under_way: _UnderWay, batch: list[EligibleObject]) -> None:
        try:
            outcome = self._deleter.delete(batch)
        except BaseException as e:  # raised by `run`, since nothing catches it here
            self._fail(e)
            if not isinstance(
                e, Exception
            ):  # a kill, or a panic of obstore's Rust: write no more, and release those who wait
                self._places.release()
                raise
            outcome = DeleteOutcome()
        if outcome.error is not None:
            self._fail(outcome.error)
        with self._lock:
            self._add(outcome)
            under_way.outcomes.append(outcome)
            under_way.left -= 1
            last = under_way.left == 0
        if last:
            self._finish(under_way)
        self._report()

    def _report(self) -> None:
        with self._lock:
            progress = Progress(
                self._plan.expected,
                self._tally.deleted,
                self._tally.bytes,
                self._listed,
                self._layout.shard_text(self._at),
                self._pacer.rate(),
                self._pacer.throttled,
            )
        self._progress(progress)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._error = self._error or error
        self._stop.set()

    def _finish(self, under_way: _UnderWay) -> None:
        """Put on record what became of a segment."""
        passed_ms = int((self._runtime.clock.monotonic() - self._began) * 1000)
        statuses, version_ids = outcomes_of(under_way.objects, under_way.outcomes)
        try:
            self._record.write(under_way.segment, statuses, version_ids, self._plan.started_ms + passed_ms)
        except Exception as e:  # noqa: BLE001 - the record still says `planned`, which is true
            self._fail(e)
        finally:
            self._places.release()

    def _add(self, outcome: DeleteOutcome) -> None:
        t = self._tally
        t.delete_requests += outcome.requests
        t.delete_errors += outcome.errors
        t.deleted += len(outcome.deleted)
        t.bytes += sum(o.size for o in outcome.deleted)
        t.highest_deleted_epoch = max([t.highest_deleted_epoch, *(o.epoch for o in outcome.deleted)])
        t.failed += len(outcome.failures)
        t.failures += outcome.failures[: max(0, FAILURES_KEPT - len(t.failures))]


def outcomes_of(objects: Sequence[EligibleObject], outcomes: Sequence[DeleteOutcome]) -> tuple[list[str], list[str]]:
    """What became of each object of a segment, and the id of the version that went or of the marker that hides it.

    One of which nothing is known is still planned.
    """
    nothing_odd = not any(o.failures or o.left or o.markers for o in outcomes)
    if nothing_odd and sum(len(o.deleted) for o in outcomes) == len(objects):
        return [DELETED] * len(objects), [o.version_id for o in objects]
    status: dict[tuple[str, str], str] = {}
    markers: dict[str, str] = {}
    for outcome in outcomes:
        markers |= outcome.markers
        status |= {(o.key, o.version_id): DELETED for o in outcome.deleted}
        status |= {(o.key, o.version_id): LEFT for o in outcome.left}
        status |= {(f.key, f.version_id): FAILED for f in outcome.failures}
    statuses = [status.get((o.key, o.version_id), status.get((o.key, ""), PLANNED)) for o in objects]
    return statuses, [o.version_id or markers.get(o.key, "") for o in objects]
