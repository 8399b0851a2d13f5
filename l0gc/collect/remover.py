"""Remove objects in segments: record them, then delete them. All runs that delete share this code.

The caller finds objects, decides which may be deleted, and hands them over. A segment is recorded as planned before its
objects are deleted. The number of segments in progress is bounded, and so are the objects and bytes of each. The caller
waits for room with only one batch in memory, so memory grows neither with the bucket nor with the requests. The pause is
read before each segment is recorded, and again before a request if the last reading is old; it ends the run as a stop
does. A dry run takes the same path with a deleter that deletes nothing. It keeps no record unless it is a shadow run, and
a pause does not end it.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from itertools import accumulate
from queue import SimpleQueue
from typing import Any, Final

import msgspec

from l0gc.collect.deleter import DeleteOutcome, Deleter, DryDeleter
from l0gc.collect.pacing import Pacer
from l0gc.collect.pause import PauseWatch
from l0gc.collect.plan import BYTES, Removal
from l0gc.collect.record import DELETED, FAILED, LEFT, PLANNED, SEGMENT_OBJECTS, RecordedObject, Records, RunRecord
from l0gc.collect.scan import FAILURES_KEPT, Deletable, Tally
from l0gc.runtime import Runtime
from l0gc.storage.objectstore import ObjectStore

SEGMENTS_IN_HAND: Final = 20
"""Each has one request in flight. Twenty delete 20,000 objects per second if a request takes 0.3 s; sixteen did not."""
OBJECT_BYTES: Final = 620
"""The memory of an object in progress besides its key: the object itself, and its share of requests and of the record."""
SEGMENT_BYTES: Final = SEGMENT_OBJECTS * (OBJECT_BYTES + 200)
"""A segment of long keys holds fewer of them."""


class Budget:
    """What a run's limits leave to claim. Removers that run one after another may share one.

    Args:
        limits: see `Removal.limits`.
        done: what counts as claimed already.

    Attributes:
        limited_by: the option whose limit excluded an object, recorded here and nowhere else; empty until then. Nothing
            is claimed afterwards, so smaller objects do not pass the one that did not fit.
    """

    def __init__(self, limits: Mapping[str, int], done: Tally) -> None:
        self._left = {
            option: most - (done.bytes if option == BYTES else done.objects) for option, most in limits.items()
        }
        self.limited_by = ""

    def claim(self, batch: list[Deletable]) -> list[Deletable]:
        """Return the beginning of a batch, up to the first object that a limit excludes."""
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
        """Remove a limit for what is claimed from now on."""
        self._left.pop(option, None)


class Remover:
    """Removes for one worker; several threads may hand over objects.

    Args:
        plan: its `started_ms` is the current time; recorded times count from there.
        worker: the name of this worker's segments.
        deleters: where the DELETE requests run.
        records: where the run record goes; None for no record.
        stop: set to end the run: requests in flight are finished and recorded, the rest is left.
        pacer: the process's pace, made with `stop`; by default this worker has its own.
        progress: called after every DELETE request.
        budget: what may go; by default what the plan's limits allow.

    Attributes:
        full: a limit is reached, and no more objects are accepted.
        gone: called with the objects that a request removed, or would remove in a dry run.
    """

    def __init__(
        self,
        store: ObjectStore,
        runtime: Runtime,
        plan: Removal[Any],
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
        self._budget = budget or Budget(plan.limits, Tally())
        self.pacer = pacer or Pacer(runtime, plan.options.max_rate, self.stop)
        self._pause = None if plan.options.dry_run else PauseWatch(store, runtime.clock, self.stop)
        self._deleter: Deleter | DryDeleter = DryDeleter()
        if not plan.options.dry_run:
            self._deleter = Deleter(
                store, runtime, self.pacer, self.stop, pause=self._pause, keep_history=plan.keeps_history
            )
        shadow = plan.options.dry_run  # of the dry runs only a shadow run has records
        self._record = RunRecord(records, plan.run_id, worker, purge=plan.by_version, shadow=shadow)
        self.lock = threading.Lock()
        self._feeding = threading.Lock()
        # Of C, so that an exception in the middle of a wait cannot leave it locked (see `storage.parallel`).
        self._room: SimpleQueue[None] = SimpleQueue()
        for _ in range(SEGMENTS_IN_HAND):
            self._room.put(None)
        self.tally = Tally()
        """The totals so far."""
        self._waiting: list[Deletable] = []
        self._segments: deque[list[Deletable]] = deque()
        self.full = False
        self.error: BaseException | None = None
        self._began = runtime.clock.monotonic()

    def begin_again(self) -> None:
        """Reset the scan's counts for a scan that starts again. Deleted objects are not listed again, so they stay
        counted.
        """
        done = Tally(list_requests=self.tally.list_requests) if self.plan.options.dry_run else self.tally
        self.tally = msgspec.structs.replace(
            done, listed=done.objects, eligible=done.objects, held_by_age=0, unparsable=0, unparsable_samples=[],
            failed=0, failures=[], limited_by="",
        )  # fmt: skip
        self._budget = Budget(self.plan.limits, self.tally)
        self.full = False

    def count(self, counts: Tally) -> None:
        """Count what a scan has seen."""
        with self.lock:
            self.tally.count(counts)

    # -- handing over -------------------------------------------------------------------------------------------------

    def take_all(self, batches: Iterable[list[Deletable]]) -> None:
        """Take batches until they end, or until the run accepts no more."""
        for batch in batches:
            self.take(batch)
            if self.full or self.stop.is_set():
                return

    def take(self, batch: list[Deletable]) -> None:
        """Claim what the limits allow of a batch, and send off full segments."""
        with self._feeding:  # the next caller waits for this one, and this one for room
            batch = self._budget.claim(batch)
            if self._budget.limited_by:
                self.tally.limited_by, self.full = self._budget.limited_by, True
            self._waiting += batch
            longest = max(map(len, [o.key for o in batch]), default=0)
            most = max(1, min(SEGMENT_OBJECTS, SEGMENT_BYTES // (OBJECT_BYTES + longest)))
            while len(self._waiting) >= most:
                objects, self._waiting = self._waiting[:most], self._waiting[most:]
                self._send(objects)

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """Wrap the handing over: when the block ends, all segments have ended. Raises what ended the run early."""
        try:
            yield
        except Exception:
            self.stop.set()
            self.drain()
            raise
        except BaseException:
            self.stop.set()  # the process is to die: nothing is waited for, and scanners on other threads end, too
            raise
        self.drain()
        if self.error is not None:
            raise self.error

    def drain(self) -> None:
        """Send off what is waiting, and wait until all segments have ended."""
        objects, self._waiting = self._waiting, []
        if objects:
            self._send(objects)
        for _ in range(SEGMENTS_IN_HAND):
            self._room.get()
        for _ in range(SEGMENTS_IN_HAND):
            self._room.put(None)

    def _send(self, objects: list[Deletable]) -> None:
        """Have a segment removed once there is room for it."""
        self._room.get()
        self._segments.append(objects)
        try:
            self._deleters.submit(self._remove)
        except RuntimeError:  # no thread could be started; another one may take the segment before this one does
            self._remove()

    # -- deleting -----------------------------------------------------------------------------------------------------

    def _remove(self) -> None:
        """Remove the next segment: record it, delete it, and record the outcome.

        If something fails in between, the record still says `planned`, which is correct.
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
                Tally(
                    delete_requests=outcome.requests,
                    delete_errors=outcome.errors,
                    failed=len(outcome.failures),
                    failures=outcome.failures[:FAILURES_KEPT],
                )
            )
            now_ms = self.plan.started_ms + int((self._runtime.clock.monotonic() - self._began) * 1000)
            if not self.plan.options.dry_run:
                self._record.write(key, lambda: rows_of(objects, outcome, now_ms))
        except BaseException as e:  # raised in the caller's thread, since nothing catches it here
            self._fail(e)
            raise  # a kill, or a panic of obstore's Rust
        finally:
            if self._pause is not None:
                self.tally.paused = self._pause.seen
            self._room.put(None)

    def _count(self, gone: Sequence[Deletable]) -> None:
        """Count what one request has removed."""
        with self.lock:
            t = self.tally
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
    """Return each object of a segment with its outcome. An object of unknown outcome is still planned."""
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
