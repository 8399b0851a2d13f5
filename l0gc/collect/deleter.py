"""Delete batches of keys at the store's pace, and retry only what failed.

A delete is idempotent, and its keys stay eligible for ever, so a retry is always safe. Requests that the store throttles
are retried until it has accepted nothing at all for `PATIENCE_S`. Other failures are retried a few times, with full
jitter. Permanent failures (access denied, object lock) are reported and not retried.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from l0gc.collect.pacing import Pacer
from l0gc.collect.pause import PauseWatch
from l0gc.collect.scan import Deletable
from l0gc.errors import L0gcError, NotFoundError, RequestRefusedError, StoreError, StoreTimeoutError, ThrottledError
from l0gc.runtime import Runtime
from l0gc.storage.objectstore import PAGE_SIZE, DeleteFailure, ObjectStore, VersionedKey, VersionsDeleted
from l0gc.storage.refusals import Row, row_of_key

PATIENCE_S: Final = 120.0
PAUSE_READ_S: Final = 5.0
"""Before a request, the pause is read again if the last reading is older than this."""
TRIES: Final = 6
_BACKOFF_S: Final = 0.2
_LONGEST_S: Final = 10.0
_TIMEOUT: Final = "RequestTimeout"
_UNANSWERED: Final = ""
_GONE: Final = {"NoSuchKey", "NoSuchVersion"}


@dataclass(slots=True)
class DeleteOutcome:
    """The outcome of a batch.

    Attributes:
        left: objects not tried because the run ended. Excludes objects that an unanswered request may have deleted.
        markers: the delete marker that hides a key, if it is known to be the only one of this run.
        error: why nothing more was tried; objects in none of the lists may or may not be gone.
    """

    deleted: list[Deletable] = field(default_factory=list)
    failures: list[DeleteFailure] = field(default_factory=list)
    left: list[Deletable] = field(default_factory=list)
    markers: dict[str, str] = field(default_factory=dict)
    requests: int = 0
    errors: int = 0
    error: L0gcError | None = None


class Deleter:
    """Deletes for one process; safe for use by several threads.

    Args:
        stop: set when the run is to end: the request in flight is the last one.
        pause: checked before a request; by default there is none.
        keep_history: whether the bucket may keep versions, so that the ids of delete markers are useful.
    """

    def __init__(
        self,
        store: ObjectStore,
        runtime: Runtime,
        pacer: Pacer,
        stop: threading.Event,
        *,
        pause: PauseWatch | None = None,
        keep_history: bool = False,
    ) -> None:
        self._store, self._runtime, self._pacer, self._stop, self._pause = store, runtime, pacer, stop, pause
        self._keep_history = keep_history

    def delete(
        self,
        objects: Sequence[Deletable],
        requested: Callable[[Sequence[Deletable]], None] = lambda gone: None,
    ) -> DeleteOutcome:
        """Delete objects, in requests as large as the pace allows. The outcome's `error` is what ended it early.

        Args:
            requested: called after each answered request with the objects that it removed.
        """
        outcome = DeleteOutcome()
        todo = list(objects)
        tries, most = 0, PAGE_SIZE
        began = self._runtime.clock.monotonic()
        unsure: set[str] = set()  # keys that may have a marker whose id is not known: a second try makes a second one
        while todo:
            size = 0 if self._stop.is_set() else self._pacer.wait(min(len(todo), most))
            batch, rest = todo[:size], todo[size:]
            try:
                if not batch or (self._pause is not None and self._pause.is_set(PAUSE_READ_S)):
                    outcome.left = _without(todo, unsure)
                    break
                sent_at = self._runtime.clock.monotonic()
                reply = self._send(batch, outcome)
            except L0gcError as e:
                outcome.error = e
                # A request that was refused as a whole deleted nothing; what another one did is not known.
                untouched = todo if isinstance(e, RequestRefusedError | NotFoundError) else rest
                outcome.left = _without(untouched, unsure)
                break
            slower = any(_row(f).slower for f in reply.failures)
            smaller = self._pacer.answered(sent_at, len(batch) - len(reply.failures), slower=slower)
            most = max(1, len(batch) // 2) if smaller else PAGE_SIZE
            failed, gone = list[tuple[Deletable, DeleteFailure]](), batch
            if reply.failures:
                lost = {(f.key, f.version_id): f for f in reply.failures}
                failed = [(o, f) for o in batch if (f := lost.get((o.key, o.version_id)) or lost.get((o.key, "")))]
                gone = [o for o in batch if (o.key, o.version_id) not in lost and (o.key, "") not in lost]
            outcome.deleted += gone
            requested(gone)
            outcome.markers |= {k: v for k, v in reply.markers.items() if k not in unsure}
            unsure |= {o.key for o, f in failed if _row(f).unsure}
            again = [(o, f) for o, f in failed if _row(f).again]
            outcome.failures += [f for _, f in failed if not _row(f).again]
            tries = 0 if gone else tries + 1
            if again and self._is_hopeless(began, tries, slower=slower):
                outcome.failures += [f for _, f in again]
                again = []
            if again:
                self._pacer.pause(self._runtime.jitter(min(_LONGEST_S, _BACKOFF_S * 2 ** min(tries, 6))))
            todo = [o for o, _ in again] + rest
        return outcome

    def _is_hopeless(self, began: float, tries: int, *, slower: bool) -> bool:
        if not slower:
            return tries >= TRIES
        return self._runtime.clock.monotonic() - max(began, self._pacer.last_success) > PATIENCE_S

    def _send(self, batch: list[Deletable], outcome: DeleteOutcome) -> VersionsDeleted:
        """Send one request. Raises errors that a retry cannot fix."""
        outcome.requests += 1
        try:
            if self._keep_history:
                done = self._store.delete_versions([VersionedKey(o.key, o.version_id) for o in batch])
            else:
                done = VersionsDeleted(self._store.delete_once([o.key for o in batch]))
            return VersionsDeleted(_of_batch(batch, [f for f in done.failures if f.code not in _GONE]), done.markers)
        except StoreError as e:
            outcome.errors += 1
            if isinstance(e, RequestRefusedError):
                raise
            kinds = ((ThrottledError, "SlowDown"), (StoreTimeoutError, _TIMEOUT))
            code = next((code for kind, code in kinds if isinstance(e, kind)), _UNANSWERED)
            return VersionsDeleted([DeleteFailure(o.key, code, str(e)) for o in batch])


class DryDeleter:
    """Deletes nothing; the outcome is that of requests that succeed."""

    def delete(self, objects: Sequence[Deletable], requested: Callable[[Sequence[Deletable]], None]) -> DeleteOutcome:
        """Report all objects as deleted."""
        requested(objects)
        return DeleteOutcome(list(objects), requests=-(-len(objects) // PAGE_SIZE))


def _row(f: DeleteFailure) -> Row:
    """Return what the store's table says of a key that is not deleted: whether it is tried again, more slowly, and
    whether it may be gone, hidden by a delete marker. A request without a usable answer counts as a server error.
    """
    return row_of_key(f.code if f.code != _UNANSWERED else "InternalError")


def _without(objects: list[Deletable], keys: set[str]) -> list[Deletable]:
    return [o for o in objects if o.key not in keys] if keys else objects


def _of_batch(batch: list[Deletable], failures: list[DeleteFailure]) -> list[DeleteFailure]:
    """Return the failures if each names an object of the batch; otherwise report the whole batch as failed."""
    if failures:
        requested = {(o.key, o.version_id) for o in batch} | {(o.key, "") for o in batch}
        for f in failures:
            if (f.key, f.version_id) not in requested:
                why = f"the store reports a failure for {f.key!r}, which was not in the request: {f.code} {f.message}"
                return [DeleteFailure(o.key, _UNANSWERED, why) for o in batch]
    return failures
