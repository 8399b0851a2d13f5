"""Run sweeps and vacuums: take objects that may be deleted, record them, delete them, and record how the run ends.

The caller finds objects, decides which may be deleted, and hands them over. A segment is recorded as planned before its
objects are deleted. The number of segments in progress is bounded, and so are the objects and bytes of each. The caller
waits for room with only one batch in memory, so memory does not grow with the bucket or the requests. The pause is
checked before each segment is recorded, and again before a request if the last check is old; like a signal to stop, it
ends the run. A dry run takes the same path with a deleter that deletes nothing. It keeps no record unless it is a
shadow run, and a pause does not end it.

In this process, all parts of a run share one queue, with one record, pace, limit and stop. On executors, each part has
its own queue. If an executor dies, its part is repeated and finds the rest. The dead executor's deletions are counted
from the record, so the totals cover the whole run, whichever task did the work. The totals of a stopped run are
completed in the same way.

`run.json` is written when a run ends, even if it failed or was stopped. There are two exceptions: dry runs that are not
shadow runs, and runs that deleted no data and had no failures. A process that is killed, for example by a second
signal, writes no `run.json`. `history` recognises a killed run by that, and the segments record its deletions
(`record.py`).
"""

from __future__ import annotations

import functools
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import accumulate
from queue import SimpleQueue
from typing import Any, ClassVar, Final, Generic, TypeVar

import msgspec

from l0gc.collect.deletion import (
    Deletable,
    DeleteOutcome,
    Deleter,
    DryDeleter,
    Pacer,
    PauseWatch,
    pacer_of,
    paused_error,
)
from l0gc.collect.gc_steps import SWEEP
from l0gc.collect.history import deleted_on_record
from l0gc.collect.plan import BYTES, D, DeletionPlan
from l0gc.collect.record import (
    DELETED,
    DONE,
    FAILED,
    LEFT,
    PLANNED,
    SEGMENT_OBJECTS,
    STOPPED,
    STOPPED_CODE,
    FolderRecords,
    ObjectTotals,
    RecordedObject,
    Records,
    RunRecord,
    RunSummary,
    folder,
    worker_of,
    write_summary,
)
from l0gc.collect.skip_scan import FAILURES_KEPT, RunCounts
from l0gc.errors import L0gcError, SafetyError, StoppedError, StoreError, UsageError
from l0gc.formatting import Outcome, count
from l0gc.operations import Deletion, Sweep, Vacuum
from l0gc.runtime import Runtime
from l0gc.storage.objectstore import ObjectStore, UnfinishedUpload
from l0gc.storage.parallel import InlineExecutor
from l0gc.storage.workers import LOCAL, LocalWorkers, Workers, Workplace
from l0gc.watermark.source import ClusterView

SEGMENTS_IN_HAND: Final = 20
"""How many segments are in progress, each with one request in flight. Twenty delete 20,000 objects per second if a
request takes 0.3 s; sixteen did not.
"""
OBJECT_BYTES: Final = 620
"""The memory that an object in progress takes in addition to its key: the object itself, and its share of requests and
of the record.
"""
SEGMENT_BYTES: Final = SEGMENT_OBJECTS * (OBJECT_BYTES + 200)
"""The memory of a segment. A segment with long keys has fewer objects."""


class Budget:
    """The amount that a run's limits still allow. Queues that are used one after another may share one.

    Args:
        limits: see `DeletionPlan.limits`.
        done: the totals that already count as claimed.

    Attributes:
        limited_by: the option whose limit excluded an object, recorded only here; empty until then. Nothing is claimed
            afterwards, so smaller objects do not overtake the object that did not fit.
    """

    def __init__(self, limits: Mapping[str, int], done: RunCounts) -> None:
        self._left = {
            option: most - (done.bytes if option == BYTES else done.objects) for option, most in limits.items()
        }
        self.limited_by = ""

    def claim(self, batch: list[Deletable]) -> list[Deletable]:
        """Return the start of a batch, up to the first object that a limit excludes."""
        if self.limited_by:
            return []
        fits = len(batch)
        for option, left in self._left.items():
            most = bisect_right([*accumulate(o.size for o in batch)], left) if option == BYTES else left
            if most < fits:
                fits, self.limited_by = most, option
        claimed = batch[:fits]
        for option in self._left:
            self._left[option] -= sum(o.size for o in claimed) if option == BYTES else fits
        return claimed

    def lift(self, option: str) -> None:
        """Remove a limit for all later claims."""
        self._left.pop(option, None)


class DeletionQueue:
    """Records and deletes objects for one worker; several threads may hand over objects.

    Args:
        plan: the plan, whose `started_ms` is the current time; recorded times count from there.
        worker: the name of this worker's segments.
        deleters: the executor that runs DELETE requests.
        records: the place of the run record; None for no record.
        stop: set to end the run; requests in flight are finished and recorded, and the rest is left.
        pacer: the pacer of the process, created with `stop`; by default, this worker has its own.
        progress: called after each DELETE request.
        budget: the amount that may be deleted; by default, the plan's limits.

    Attributes:
        full: whether a limit is reached, so that no more objects are accepted.
        gone: called with the objects that a request deleted or, in a dry run, would delete.
    """

    def __init__(
        self,
        store: ObjectStore,
        runtime: Runtime,
        plan: DeletionPlan[Any],
        *,
        worker: str,
        deleters: Executor,
        records: Records | None,
        stop: threading.Event | None = None,
        pacer: Pacer | None = None,
        progress: Callable[[], None] = lambda: None,
        budget: Budget | None = None,
    ) -> None:
        self._runtime, self.plan = runtime, plan
        self._deleters = deleters
        self.stop = stop or threading.Event()
        self.progress = progress
        self.gone: Callable[[Sequence[Deletable]], None] = lambda objects: None
        self._budget = budget or Budget(plan.limits, RunCounts())
        self.pacer = pacer or Pacer(runtime, plan.options.max_rate, self.stop)
        self._pause = None if plan.options.dry_run else PauseWatch(store, runtime.clock, self.stop)
        self._deleter: Deleter | DryDeleter = DryDeleter()
        if not plan.options.dry_run:
            self._deleter = Deleter(
                store, runtime, self.pacer, self.stop, pause=self._pause, keep_history=plan.keeps_history
            )
        shadow = plan.options.dry_run  # a dry run has records only if it is a shadow run
        self._record = RunRecord(records, plan.run_id, worker, purge=plan.by_version, shadow=shadow)
        self.lock = threading.Lock()
        self._feeding = threading.Lock()
        # SimpleQueue is written in C, so that an exception during a wait cannot leave it locked (see
        # `storage.parallel`).
        self._room: SimpleQueue[None] = SimpleQueue()
        for _ in range(SEGMENTS_IN_HAND):
            self._room.put(None)
        self.counts = RunCounts()
        """The totals so far."""
        self._waiting: list[Deletable] = []
        self._segments: deque[list[Deletable]] = deque()
        self.full = False
        self.error: BaseException | None = None
        self._began = runtime.clock.monotonic()

    def begin_again(self) -> None:
        """Reset the counts of a scan that starts again. Deleted objects are not listed again, so they stay counted."""
        done = RunCounts(list_requests=self.counts.list_requests) if self.plan.options.dry_run else self.counts
        self.counts = msgspec.structs.replace(
            done, listed=done.objects, eligible=done.objects, held_by_age=0, unparsable=0, unparsable_samples=[],
            failed=0, failures=[], limited_by="",
        )  # fmt: skip
        self._budget = Budget(self.plan.limits, self.counts)
        self.full = False

    def count(self, counts: RunCounts) -> None:
        """Count the keys that a scan has read."""
        with self.lock:
            self.counts.include(counts)

    # -- handing over -------------------------------------------------------------------------------------------------

    def take_all(self, batches: Iterable[list[Deletable]]) -> None:
        """Take batches until they end, or until the run accepts no more objects."""
        for batch in batches:
            self.take(batch)
            if self.full or self.stop.is_set():
                return

    def take(self, batch: list[Deletable]) -> None:
        """Claim as much of a batch as the limits allow, and start full segments."""
        with self._feeding:  # other callers wait for this one, which may wait for room
            batch = self._budget.claim(batch)
            if self._budget.limited_by:
                self.counts.limited_by, self.full = self._budget.limited_by, True
            self._waiting += batch
            longest = max(map(len, [o.key for o in batch]), default=0)
            most = max(1, min(SEGMENT_OBJECTS, SEGMENT_BYTES // (OBJECT_BYTES + longest)))
            while len(self._waiting) >= most:
                objects, self._waiting = self._waiting[:most], self._waiting[most:]
                self._send(objects)

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """Wrap the block that hands over objects: when it ends, all segments have ended. Raises the error that ended
        the run early.
        """
        try:
            yield
        except Exception:
            self.stop.set()
            self.drain()
            raise
        except BaseException:
            self.stop.set()  # the process is dying, so do not wait, but end scanners on other threads
            raise
        self.drain()
        if self.error is not None:
            raise self.error

    def drain(self) -> None:
        """Start a segment of the waiting objects, and wait until all segments have ended."""
        objects, self._waiting = self._waiting, []
        if objects:
            self._send(objects)
        for _ in range(SEGMENTS_IN_HAND):
            self._room.get()
        for _ in range(SEGMENTS_IN_HAND):
            self._room.put(None)

    def _send(self, objects: list[Deletable]) -> None:
        """Start the deletion of a segment once there is room for it."""
        self._room.get()
        self._segments.append(objects)
        try:
            self._deleters.submit(self._delete)
        except RuntimeError:  # no thread could be started; a running one may take the segment first
            self._delete()

    # -- deleting -----------------------------------------------------------------------------------------------------

    def _delete(self) -> None:
        """Delete the next segment: record it, delete it, and record the outcome.

        If a step fails in between, the record still says `planned`, which is correct.
        """
        try:
            objects = self._segments.popleft()
        except IndexError:
            return
        try:
            if self.stop.is_set() or (self._pause is not None and self._pause.is_set()):
                return
            key = self._record.plan(objects)
            outcome = self._deleter.delete(objects, self._count)
            if outcome.error is not None:
                self._fail(outcome.error)
            self.count(
                RunCounts(
                    delete_requests=outcome.requests,
                    delete_errors=outcome.errors,
                    failed=len(outcome.failures),
                    failures=outcome.failures[:FAILURES_KEPT],
                )
            )
            now_ms = self.plan.started_ms + int((self._runtime.clock.monotonic() - self._began) * 1000)
            if not self.plan.options.dry_run:
                self._record.write(key, lambda: rows_of(objects, outcome, now_ms))
        except BaseException as e:  # the caller's thread raises it, since nothing catches it here
            self._fail(e)
            raise  # a kill, or a panic of obstore's Rust
        finally:
            if self._pause is not None:
                self.counts.paused = self._pause.seen
            self._room.put(None)

    def _count(self, gone: Sequence[Deletable]) -> None:
        """Count the deletions of one request."""
        with self.lock:
            t = self.counts
            t.objects += len(gone)
            t.bytes += sum(o.size for o in gone)
            t.highest_deleted_epoch = max([t.highest_deleted_epoch, *(o.epoch for o in gone)])
            self.gone(gone)
        self.progress()

    def _fail(self, error: BaseException) -> None:
        with self.lock:
            self.error = self.error or error
        self.stop.set()


def rows_of(objects: Sequence[Deletable], outcome: DeleteOutcome, now_ms: int) -> list[RecordedObject]:
    """Return each object of a segment with its outcome. An object with an unknown outcome stays planned."""
    if len(outcome.deleted) == len(objects) and not outcome.markers:
        return [RecordedObject.of(o, DELETED, now_ms=now_ms) for o in objects]
    status = {(o.key, o.version_id): DELETED for o in outcome.deleted}
    status |= {(o.key, o.version_id): LEFT for o in outcome.left}
    status |= {(f.key, f.version_id): FAILED for f in outcome.failures}
    return [
        RecordedObject.of(
            o,
            status.get((o.key, o.version_id), status.get((o.key, ""), PLANNED)),
            outcome.markers.get(o.key, ""),
            now_ms,
        )
        for o in objects
    ]


A = TypeVar("A")
R = TypeVar("R", bound="RunResult")

Find = Callable[[Workplace, DeletionQueue, A], None]
"""A function that finds the objects that may be deleted in a part of the work, hands them to the queue, and updates its
counts.
"""

_LOOK_EVERY_S: Final = 0.2

_KILLED: Final = ""
"""The outcome of a killed run, which records no outcome."""


class RunResult(RunCounts, Outcome, kw_only=True):
    """The result of a run that deletes. A dry run reports as deleted the objects that a real run would delete.

    `stopped` is whether the caller or a pause ended the run, and `paused` the current pause, or the one that ended the
    run.
    """

    command: ClassVar[str] = SWEEP
    hidden: ClassVar[frozenset[str]] = frozenset(
        [
            "plan",
            "uploads_note",
            "list_requests",
            "list_errors",
            "highest_deleted_epoch",
            "delete_requests",
            "delete_errors",
        ]
    )

    plan: DeletionPlan[Sweep] | DeletionPlan[Vacuum]
    engine: str = LOCAL
    engine_reason: str = ""
    stopped: bool = False
    seconds: float = 0.0
    uploads_note: str = ""
    """Why not all uploads were listed; empty if they were."""

    @property
    def run_id(self) -> str:
        """Return the run's name."""
        return self.plan.run_id

    @property
    def dry_run(self) -> bool:
        """Return whether the run deleted nothing."""
        return self.plan.options.dry_run

    @property
    def versioning(self) -> str:
        """Return whether the bucket keeps versions."""
        return self.plan.versioning

    @property
    def requests(self) -> dict[str, int]:
        """Return how many LIST and DELETE requests the run sent."""
        return {"list": self.list_requests, "delete": self.delete_requests}

    @property
    def kinds(self) -> dict[str, ObjectTotals]:
        """Return the totals of each kind of garbage that was deleted, if the run deletes several kinds."""
        return {}

    @property
    def left_traces(self) -> bool:
        """Return whether the run deleted data or had failures, in which case it writes `run.json`."""
        return self.objects > 0 or self.failed > 0

    @property
    def problem(self) -> L0gcError | None:
        """Return the error that kept the run from deleting everything, or None."""
        if self.paused and not self.dry_run:
            return paused_error(self.paused)
        if self.stopped:
            return StoppedError(
                f"stopped; requests in progress are done, and another {self.command} continues from there",
                STOPPED_CODE,
            )
        if self.over_ratio:
            allowed = count(self.plan.ratio_limit or 0, "object is", "objects are")
            return SafetyError(
                f"more than {allowed} eligible, the share that --max-delete-ratio allows; look at l0gc {self.command} "
                "--dry-run without it, and raise it if that is right"
            )
        return None

    def measures(self) -> dict[str, Any]:
        return {"limited": self.limited}

    def to_json(self) -> dict[str, Any]:
        """Return the fields as `--json` prints them."""
        more = {name: getattr(self, name) for name in ("run_id", "dry_run", "versioning", "requests")}
        more |= {"limited_by": self.limited_by or None, "paused": self.paused or None}
        more |= {"backpressure_seconds": round(self.backpressure_seconds, 3)}
        return super().to_json() | more

    def summary(self, outcome: str, ended_ms: int) -> RunSummary:
        """Return the run's summary for its record."""
        plan = self.plan
        return RunSummary(
            **{name: getattr(self, name) for name in RunCounts.__struct_fields__},
            run_id=plan.run_id,
            command=self.command,
            started_ms=plan.started_ms,
            ended_ms=ended_ms,
            outcome=outcome,
            engine=self.engine,
            seconds=round(self.seconds, 3),
            watermark=plan.watermark,
            bound=plan.bound,
            cluster_epoch=plan.cluster_epoch,
            versioning=plan.versioning,
            purge_versions=plan.by_version,
            first_shard=plan.first_shard,
            end_shard=plan.end_shard,
            kinds=self.kinds,
            older_than_ms=min(plan.older_than_ms, plan.started_ms),
            ends=plan.ends,
        )


class DeletionRun(Generic[D, R]):
    """A run that deletes.

    Args:
        workers: the workers that run the work; by default, those of this process.
        run_id: the name of the run; by default, a new one.
        stop: when set, the run finishes its requests in flight, records them, and returns. An error or a pause also
            sets it.
        deleters: the executor that runs DELETE requests of this process; by default, the thread that scans runs them.
    """

    operation: type[D]

    def __init__(
        self,
        cluster: ClusterView,
        options: D | None = None,
        workers: Workers[Any] | None = None,
        *,
        run_id: str = "",
        stop: threading.Event | None = None,
        deleters: Executor | None = None,
    ) -> None:
        self._cluster, self._options, self._run_id = cluster, options or self.operation(), run_id
        self._workers: Workers[Any] = workers or LocalWorkers(cluster)
        self._deleters = deleters or InlineExecutor()
        self._records = sink_of(cluster.store, self._options)
        self.stop = stop or threading.Event()
        self._queues: dict[str, DeletionQueue] = {}
        self._began = cluster.runtime.clock.monotonic()

    def _begin(self, plan: DeletionPlan[D]) -> None:
        if self._workers.engine != LOCAL and self._options.in_one_process:
            raise UsageError(f"only one process can keep {self._options.in_one_process}: use --engine local")
        self._plan = plan
        self._pacer = Pacer(self._cluster.runtime, self._options.max_rate, self.stop)
        self._budget = Budget(plan.limits, RunCounts())

    def _queue(self, kind: str, *, record: bool = True) -> DeletionQueue:
        """Return this process's queue for a kind of garbage. All kinds share pace and limits.

        Args:
            record: whether the deletions are recorded.
        """
        if kind not in self._queues:
            self._queues[kind] = DeletionQueue(
                self._cluster.store,
                self._cluster.runtime,
                self._plan,
                worker=kind,
                deleters=self._deleters,
                records=self._records if record else None,
                stop=self.stop,
                pacer=self._pacer,
                progress=functools.partial(self._report, kind),
                budget=self._budget,
            )
        return self._queues[kind]

    def _report(self, kind: str) -> None:
        """Report the deletions of a kind. This is called after each DELETE request of this process."""

    @contextmanager
    def _recording(self, result: R) -> Iterator[None]:
        """Wrap the work of a run. When it ends or fails, total its result and write `run.json`.

        Raises:
            The errors of the work, with the result as `so_far`. StoreError: `run.json` cannot be written.
        """
        clock = self._cluster.runtime.clock

        def end(outcome: str) -> None:
            self._total(result)
            result.seconds = clock.monotonic() - self._began
            if self._records is not None and outcome and (outcome != DONE or result.left_traces):
                write_summary(self._records, result.summary(outcome, self._cluster.store.now_ms()))

        try:
            yield
        except BaseException as e:
            self.stop.set()  # also ends threads that scan
            vars(e)["so_far"] = result
            with suppress(StoreError):  # the error that ended the run is the one to report
                end(FAILED if isinstance(e, Exception) else _KILLED)
            raise
        result.stopped = self.stop.is_set()
        end(STOPPED if result.stopped else DONE)

    def _total(self, result: R) -> None:
        """Add up the counts of all workers in the result."""
        result.include(RunCounts(throttled=self._pacer.throttled, backpressure_seconds=self._pacer.backpressure_s))
        for queue in self._queues.values():
            result.include(queue.counts)

    @property
    def _ended(self) -> bool:
        """Return whether nothing more is to be deleted."""
        return self.stop.is_set() or any(r.full for r in self._queues.values())

    def _spread(self, kind: str, find: Find[A], parts: Sequence[A]) -> None:
        """Have the workers delete the objects that `find` finds in the parts. Raises the error that ended the run
        early.
        """
        queue = self._queue(kind)
        if self._workers.engine == LOCAL:
            with queue.finishing():
                self._workers.map(lambda workplace, part: find(workplace, queue, part), parts)
            return
        plan, rate, done = self._plan, self._options.max_rate, dict[str, RunCounts]()
        if rate is not None:
            options = msgspec.structs.replace(self._options, max_rate=rate / len(parts))
            plan = msgspec.structs.replace(plan, options=options)
        try:
            with _cancelling(self._workers, self.stop):
                if not self.stop.is_set():
                    done = dict(self._workers.map(functools.partial(_elsewhere, find, plan, kind), parts))
        except Exception as e:
            if not self.stop.is_set() or not isinstance(e, L0gcError):
                with suppress(StoreError):  # the error that ended the run is the one to report
                    self._settle(kind, [])
                raise
        for counts in done.values():
            queue.count(counts)
        self._settle(kind, done)
        if queue.counts.paused:
            self.stop.set()

    def _abort_uploads(
        self, prefix: str, queue: DeletionQueue, result: R, may_go: Callable[[UnfinishedUpload], bool]
    ) -> None:
        """Abort the unfinished uploads below `prefix` that `may_go` accepts; a dry run only counts them."""
        store, counts = self._cluster.store, queue.counts
        counts.list_requests += 1  # the first page, even if it is empty
        try:
            for number, page in enumerate(store.uploads(prefix)):
                counts.list_requests += number > 0
                for upload in filter(may_go, page):
                    if self.stop.is_set():
                        return
                    if not result.dry_run:
                        store.abort(upload)
                    counts.uploads_aborted += 1
        except StoreError as e:
            result.uploads_note = f"unfinished multipart uploads were not all listed: {e}"

    def _settle(self, kind: str, reported: Collection[str]) -> None:
        """Count, from the record, deletions that workers did not report.

        If there are any, all segments of the kind are counted, since an object that a lost worker recorded may have
        been deleted by its replacement.
        """
        if self._records is None or self._options.dry_run:
            return
        segments = self._cluster.store.list(folder(self._plan.run_id)).modified_ms
        workers = {key: worker_of(key) for key in segments if worker_of(key).startswith(f"{kind}-")}
        if set(workers.values()) <= set(reported):
            return
        deleted, size = deleted_on_record(self._cluster, workers)
        queue = self._queues[kind]
        more, more_bytes = deleted - queue.counts.objects, size - queue.counts.bytes
        queue.count(RunCounts(listed=more, eligible=more, objects=more, bytes=more_bytes))


def sink_of(store: ObjectStore, options: Deletion) -> Records | None:
    """Return the place of a run's record; None if it keeps none, as in a dry run that is not a shadow run.

    Raises:
        UsageError: both a folder and no record are requested, the folder is not writable, or a shadow run's record
            would not be in the bucket.
    """
    if isinstance(options, Sweep) and options.shadow:
        if options.record_dir is not None or not options.record:
            raise UsageError("--shadow keeps its record in the bucket: leave out --record-dir and --no-record")
        return store
    if options.record_dir is not None and not options.record:
        raise UsageError(
            "--record-dir keeps the run record in a folder, and --no-record keeps none: give one of the two"
        )
    folder = FolderRecords.created(options.record_dir) if options.record_dir is not None else None
    if options.dry_run or not options.record:
        return None
    return folder or store


def _elsewhere(
    find: Find[A], plan: DeletionPlan[Any], kind: str, workplace: Workplace, part: A
) -> tuple[str, RunCounts]:
    """Run one part on an executor. Return the name of its segments and its counts."""
    store, runtime, pacer = workplace.store, Runtime(), pacer_of(plan.run_id, plan.options.max_rate)
    throttled, waited = pacer.throttled, pacer.backpressure_s
    worker = f"{kind}-{runtime.new_id()}"  # a repeated part gets a new name
    with ThreadPoolExecutor(SEGMENTS_IN_HAND) as deleters:
        queue = DeletionQueue(
            store,
            runtime,
            msgspec.structs.replace(plan, started_ms=store.now_ms()),  # the part may have waited for hours
            worker=worker,
            deleters=deleters,
            records=sink_of(store, plan.options),
            pacer=pacer,
        )
        with queue.finishing():
            find(workplace, queue, part)
    counts = queue.counts
    counts.throttled, counts.backpressure_seconds = pacer.throttled - throttled, pacer.backpressure_s - waited
    return worker, counts


@contextmanager
def _cancelling(workers: Workers[Any], stop: threading.Event) -> Iterator[None]:
    """Cancel the workers' work if a stop is set during the block."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.is_set():
            if stop.wait(_LOOK_EVERY_S) and not ended.is_set():
                workers.cancel()
                return

    thread = threading.Thread(target=watch, name="l0gc-stop", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
