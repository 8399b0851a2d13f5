"""Removing what is handed over: into segments, on record, then deleted; what every run that deletes has in common.

The caller finds objects, decides which may go, and hands them over. A segment is put on record as planned, and only then
its objects are deleted. The requests in flight follow what the store can take (`InFlight`). Segments in progress hold no
more than so many bytes, and the caller waits for room, with only the batch in its hands; so memory grows neither with the
bucket nor with the requests. An operator's pause is read before each segment is put on record, which is when its requests
are next; it ends the run as a stop does. A dry run goes the same way, with a deleter that deletes nothing: it keeps no
record, and a pause does not end it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from l0gc.collect.deleter import DeleteOutcome, Deleter, DryDeleter
from l0gc.collect.pacing import Pacer
from l0gc.collect.pause import describe_pause, read_pause
from l0gc.collect.plan import Removal
from l0gc.collect.record import DELETED, FAILED, LEFT, PLANNED, SEGMENT_OBJECTS, RecordedObject, Records, RunRecord
from l0gc.collect.scan import FAILURES_KEPT, Deletable, Tally
from l0gc.events import event
from l0gc.runtime import Runtime
from l0gc.storage.objectstore import PAGE_SIZE, ObjectStore
from l0gc.storage.parallel import FIRST_IN_FLIGHT, Answered, InFlight

_log: Final = logging.getLogger(__name__)

SEGMENTS_IN_FLIGHT: Final = FIRST_IN_FLIGHT * PAGE_SIZE // SEGMENT_OBJECTS + 4
"""Of keys as l0gc makes them. Some wait for their turn, since nothing can be learnt of the store where none does; others for
their record: where a request takes 0.3 s, twelve segments deleted 18,000 objects a second, and fourteen 20,000."""
OBJECT_BYTES: Final = 620
"""What an object in hand costs in addition to its key: itself, and its share of requests and of the record."""
HAND_BYTES: Final = SEGMENTS_IN_FLIGHT * SEGMENT_OBJECTS * (OBJECT_BYTES + 80)


@dataclass(slots=True)
class Budget:
    """How many objects may still be claimed; None for no limit. Removers that work one after another may share one."""

    left: int | None = None


class _Hand:
    """The bytes of the segments in progress."""

    def __init__(self) -> None:
        self._held = 0
        self._changed = threading.Condition()

    def take(self, size: int) -> None:
        """Wait until there is room for a segment; one that is too large for the hand is alone in it."""
        with self._changed:
            self._changed.wait_for(lambda: not self._held or self._held + size <= HAND_BYTES)
            self._held += size

    @property
    def has_room(self) -> bool:
        """Whether another segment as large as they come would not have to wait."""
        return self._held + HAND_BYTES // SEGMENTS_IN_FLIGHT <= HAND_BYTES

    def give(self, size: int) -> None:
        with self._changed:
            self._held -= size
            self._changed.notify_all()

    def empty(self) -> None:
        """Wait until no segment is in progress."""
        with self._changed:
            self._changed.wait_for(lambda: not self._held)


@dataclass(slots=True)
class _Segment:
    """Objects that are being removed; `open` requests have not ended, and `known` is whether all others ended well."""

    objects: list[Deletable]
    size: int
    key: str = ""
    open: int = 0
    known: bool = True
    outcome: DeleteOutcome = field(default_factory=DeleteOutcome)


class Remover:
    """Removes for one worker; safe for several threads that hand over.

    Args:
        plan: its `started_ms` is now; the times on record count from there.
        worker: what this worker's segments are called.
        deleters: where the DELETE requests run.
        records: where the run record goes; None for no record.
        stop: set to end the run: requests in flight are finished and recorded, the rest is left.
        pacer: the process's pace, made with `stop`; by default this worker has its own.
        progress: called after every DELETE request.
        budget: how many objects may go; by default as many as the plan's limit says.

    Attributes:
        full: no more is wanted: the limit is reached.
        gone: called with what a request has removed, or would remove in a dry run.
    """

    def __init__(
        self,
        store: ObjectStore,
        runtime: Runtime,
        plan: Removal,
        *,
        worker: str,
        deleters: Executor,
        records: Records | None,
        stop: threading.Event | None = None,
        pacer: Pacer | None = None,
        progress: Callable[[], None] = lambda: None,
        budget: Budget | None = None,
    ) -> None:
        self._store, self._runtime, self.plan = store, runtime, plan
        self._deleters = deleters
        self.stop = stop or threading.Event()
        self.progress = progress
        self.gone: Callable[[Sequence[Deletable]], None] = lambda objects: None
        self._budget = budget or Budget(plan.limit)
        self.pacer = pacer or Pacer(runtime, plan.max_rate, self.stop)
        self._deleter: Deleter | DryDeleter = DryDeleter()
        if not plan.dry_run:
            self._deleter = Deleter(store, runtime, self.pacer, self.stop, keep_history=plan.keeps_history)
        self._record = RunRecord(records, plan.run_id, worker, purge=plan.by_version)
        self.lock = threading.Lock()
        self._feeding = threading.Lock()
        self._hand = _Hand()
        self._in_flight = InFlight(runtime.clock, deleters)
        self.tally = Tally()
        """What was done so far."""
        self._waiting: list[Deletable] = []
        self.full = False
        self.error: BaseException | None = None
        self._began = runtime.clock.monotonic()

    def begin_again(self) -> None:
        """Count anew, for a scan that begins again. What was deleted is not listed any more, so it stays in the numbers."""
        done = Tally(list_requests=self.tally.list_requests) if self.plan.dry_run else self.tally
        seen = done.deleted
        self.tally = replace(done, listed=seen, eligible=seen, held_by_age=0, unparsable=0, unparsable_samples=[])
        self.tally.failed, self.tally.failures, self.tally.limited = 0, [], False
        self._budget.left = None if self.plan.limit is None else self.plan.limit - self.tally.deleted
        self.full = False

    # -- handing over -------------------------------------------------------------------------------------------------

    def take_all(self, batches: Iterable[list[Deletable]]) -> None:
        """Take batches until they end, or until the run wants nothing more."""
        for batch in batches:
            self.take(batch)
            if self.full or self.stop.is_set():
                return

    def take(self, batch: list[Deletable]) -> None:
        """Claim what the limit leaves of a batch, and send off whole segments."""
        budget = self._budget
        while batch:
            with self._feeding:
                if budget.left is not None and len(batch) > budget.left:
                    batch = batch[: budget.left]
                    self.tally.limited = self.full = True
                taken, batch = batch[:SEGMENT_OBJECTS], batch[SEGMENT_OBJECTS:]
                if budget.left is not None:
                    budget.left -= len(taken)
                self._waiting += taken
                if len(self._waiting) < SEGMENT_OBJECTS:
                    continue
                objects, self._waiting = self._waiting[:SEGMENT_OBJECTS], self._waiting[SEGMENT_OBJECTS:]
                segment = self._segment(objects)  # the next caller waits for this one, and this one for room
            self._send(segment)

    @property
    def is_starved(self) -> bool:
        """Whether objects are removed sooner than they are handed over."""
        return self._hand.has_room

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """Around the handing over: when it ends, all segments have. Raises what ended the run before its end."""
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
            self._send(self._segment(objects))
        self._hand.empty()

    def _segment(self, objects: list[Deletable]) -> _Segment:
        """A segment, once there is room for it."""
        segment = _Segment(objects, sum(OBJECT_BYTES + len(o.key) + len(o.version_id) for o in objects))
        self._hand.take(segment.size)
        return segment

    def _send(self, segment: _Segment) -> None:
        """Have a segment removed, when its turn comes; there is room again when that has ended."""
        self._in_flight.submit(partial(self._begin, segment))

    # -- deleting -----------------------------------------------------------------------------------------------------

    def _begin(self, segment: _Segment) -> Answered:
        """Put a segment on record, and have its requests sent next; nothing of it once the run ends.

        It is one of the requests in flight. So a segment is begun only when those that are begun leave room for it, and a
        pause that is set in the meantime ends the run before it.
        """
        parts: list[list[Deletable]] = []
        try:
            if not self.stop.is_set() and not self._paused():
                segment.key = self._record.plan(segment.objects)
                parts = [segment.objects[i : i + PAGE_SIZE] for i in range(0, len(segment.objects), PAGE_SIZE)]
        except BaseException as e:
            self._fail(e)
            raise
        finally:
            segment.open = len(parts)
            if not parts:
                self._hand.give(segment.size)
        self._in_flight.submit(*(partial(self._delete, segment, part) for part in parts), first=True)
        return Answered(0)

    def _delete(self, segment: _Segment, part: list[Deletable]) -> Answered:
        """Delete objects of a segment; when the last of them have ended, it is recorded what became of all.

        If that fails, the record still says `planned`, which is true.
        """
        outcome: DeleteOutcome | None = None
        try:
            outcome = self._deleter.delete(part, self._count)
            self._add(outcome)
            return Answered(len(outcome.deleted), outcome.held)
        except BaseException as e:  # raised in the caller's thread, since nothing catches it here
            self._fail(e)
            raise  # a kill, or a panic of obstore's Rust
        finally:
            with self.lock:
                segment.open -= 1
                segment.known = segment.known and outcome is not None
                if outcome is not None:
                    segment.outcome.add(outcome)
                ended = not segment.open
            if ended:
                self._close(segment)

    def _close(self, segment: _Segment) -> None:
        """Record what became of a segment's objects, on a thread that waits for no answer; then there is room."""

        def write() -> None:
            try:
                if segment.known:
                    passed_ms = int((self._runtime.clock.monotonic() - self._began) * 1000)
                    now_ms = self.plan.started_ms + passed_ms
                    self._record.write(segment.key, lambda: rows_of(segment.objects, segment.outcome, now_ms))
            except BaseException as e:
                self._fail(e)
                raise
            finally:
                self._hand.give(segment.size)

        try:
            self._deleters.submit(write)
        except RuntimeError:  # no thread could be started
            write()

    def _paused(self) -> bool:
        """Whether deletions are paused, which ends the run; it does not go on, though the pause may be gone again."""
        pause = None if self.plan.dry_run else read_pause(self._store)
        if pause is None:
            return False
        with self.lock:
            self.tally.paused = describe_pause(pause)
        self.stop.set()
        _log.info("a pause ends the run: %s", describe_pause(pause), extra=event("pause_seen"))
        return True

    def _count(self, gone: Sequence[Deletable]) -> None:
        """Count what one request has removed."""
        with self.lock:
            t = self.tally
            t.deleted += len(gone)
            t.bytes += sum(o.size for o in gone)
            t.highest_deleted_epoch = max([t.highest_deleted_epoch, *(o.epoch for o in gone)])
            self.gone(gone)
        self.progress()

    def _add(self, outcome: DeleteOutcome) -> None:
        """Count the requests, and what they could not remove."""
        if outcome.error is not None:
            self._fail(outcome.error)
        with self.lock:
            t = self.tally
            t.delete_requests += outcome.requests
            t.delete_errors += outcome.errors
            t.failed += len(outcome.failures)
            t.failures += outcome.failures[: max(0, FAILURES_KEPT - len(t.failures))]

    def _fail(self, error: BaseException) -> None:
        with self.lock:
            self.error = self.error or error
        self.stop.set()


def rows_of(objects: Sequence[Deletable], outcome: DeleteOutcome, now_ms: int) -> list[RecordedObject]:
    """What became of each object of a segment. One of which nothing is known is still planned."""
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
