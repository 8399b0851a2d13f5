"""Delete batches of objects at the store's pace, unless an operator has paused deletions, and retry only failed
objects.

A delete is idempotent, and its keys stay eligible for ever, so a retry is always safe. Requests that the store throttles
are retried until it has accepted nothing at all for `PATIENCE_S`. Other failures are retried a few times, with full
jitter. Permanent failures (access denied, object lock) are reported and not retried.

The pause is a flag in the bucket that every run obeys, wherever it runs. In doubt, nothing is deleted: a flag that
cannot be read counts as a pause. A run checks the flag before it begins, before each segment, and before each request
if the last check is older than `PAUSE_READ_S`. After it has seen a pause, it records no more segments and sends no more
requests.

A run deletes as fast as the store accepts, and no faster than the caller allows. It has no limit until the store
answers 503 or times out. Then the rate falls slightly below the rate that the store accepted in the last few seconds.
It grows with each success: it recovers from a fall in some five seconds, and grows faster the longer the store accepts
everything. If the store accepts nothing at all, it is unavailable, and the rate stays. All workers of a process share
one pacer.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Final

import msgspec

from l0gc.decoding import UNDECODABLE
from l0gc.errors import (
    AmbiguousWriteError,
    L0gcError,
    NotFoundError,
    PausedError,
    PreconditionFailedError,
    RequestRefusedError,
    StoreError,
    StoreSilentError,
    StoreTimeoutError,
    ThrottledError,
)
from l0gc.events import event
from l0gc.formatting import Outcome
from l0gc.keys import PAUSED
from l0gc.runtime import SLICE_S, Clock, Runtime
from l0gc.storage.objectstore import PAGE_SIZE, DeleteFailure, ObjectStore, VersionedKey, VersionsDeleted, if_there
from l0gc.storage.refusals import Row, row_of_key

_log: Final = logging.getLogger(__name__)


class Deletable(msgspec.Struct, frozen=True, gc=False):
    """An object that may be deleted. `version_id` names one version; it is empty for the current object.

    It is a msgspec struct because these are created ten times as fast as dataclasses, and a sweep creates one per
    object.
    """

    key: str
    epoch: int
    size: int
    modified_ms: int = 0
    version_id: str = ""


# -- the pause ----------------------------------------------------------------------------------------------------------

_PAUSE_TRIES: Final = 5
_LAST_MS: Final = 253_402_300_799_999
"""The end of the year 9999, the last year with four digits."""


class Pause(msgspec.Struct, Outcome, frozen=True):
    """A pause of sweeps: the reason, who set it, and when, by the store's clock in milliseconds since 1970."""

    why: str
    by: str
    since_ms: Annotated[int, msgspec.Meta(ge=0, le=_LAST_MS)]


class NewPause(Pause, frozen=True):
    """The current pause, and whether it is `new`. An earlier pause stays in effect.

    Attributes:
        why: The reason for the current pause.
        by: The user who set it.
        since_ms: When it was set.
        new: Whether this command set it; false if sweeps were already paused.
    """

    new: bool


_PAUSE: Final = msgspec.json.Decoder(Pause)


def read_pause(store: ObjectStore) -> Pause | None:
    """Return the current pause, or None. Raises `StoreError` if it cannot be read; the sweep must then not continue."""
    stored = if_there(store.get, PAUSED)
    try:
        return None if stored is None else _PAUSE.decode(stored.body)
    except UNDECODABLE:
        return Pause("(the flag cannot be read)", "unknown", 0)


def set_pause(store: ObjectStore, why: str, by: str) -> tuple[Pause, bool]:
    """Pause sweeps unless they are already paused. Return the current pause, and whether this call set it.

    Raises:
        StoreError: the pause could not be set.
    """
    pause = Pause(why, by, store.now_ms())
    for _ in range(_PAUSE_TRIES):
        try:
            store.put_if_absent(PAUSED, msgspec.json.encode(pause))
        except (PreconditionFailedError, AmbiguousWriteError) as e:
            error: StoreError = e
            present = read_pause(store)
            if present is not None:
                return present, present == pause
        except StoreError as e:  # the remedy for a full store is a sweep, which contradicts a pause
            cause = str(e).partition("; add space")[0]
            raise type(e)(f"sweeps are not paused: {cause}; stop the jobs that sweep until a pause is set") from e
        else:
            return pause, True
    raise StoreError(f"sweeps are not paused: {error}") from error


def clear_pause(store: ObjectStore) -> Pause | None:
    """Resume sweeps, and return the pause that was set, or None.

    Raises:
        StoreError: the store did not remove the flag, so the pause stays.
    """
    pause = read_pause(store)
    if pause is not None:
        for f in store.delete([PAUSED]):
            raise StoreError(f"sweeps are still paused: {PAUSED} could not be removed ({f.why})")
    return pause


class PauseWatch:
    """Checks for a pause during a run, and sets `stop` if it finds one; safe for use by several threads.

    A pause ends the run, even if the pause is lifted later. `seen` describes that pause.
    """

    def __init__(self, store: ObjectStore, clock: Clock, stop: threading.Event) -> None:
        self._store, self._clock, self._stop = store, clock, stop
        self._read_at = float("-inf")
        self.seen = ""

    def is_set(self, after_s: float = 0.0) -> bool:
        """Return whether a pause has ended the run. Read the flag if the last check began at least `after_s` seconds
        ago.

        Raises:
            StoreError: the flag cannot be read, so nothing more may be deleted.
        """
        now = self._clock.monotonic()
        if not self.seen and now - self._read_at >= after_s:
            pause = read_pause(self._store)
            self._read_at = max(self._read_at, now)
            if pause is not None:
                self.seen = describe_pause(pause)
                self._stop.set()
                _log.info("a pause ends the run: %s", self.seen, extra=event("pause_seen"))
        return self.seen != ""


def paused_error(described: str) -> PausedError:
    """Return the error with which a sweep ends during a pause."""
    return PausedError(f"sweeps are paused: {described}; run l0gc resume to let them continue")


def describe_pause(pause: Pause) -> str:
    """Return a pause as `disk audit (ann@ops1, since 2026-01-31 23:59Z)`."""
    since = datetime.fromtimestamp(pause.since_ms / 1000, UTC)
    return f"{pause.why} ({pause.by}, since {since:%Y-%m-%d %H:%M}Z)"


# -- the pace -----------------------------------------------------------------------------------------------------------

DECREASE: Final = 0.9
"""The new rate as a share of the rate that the store accepted. The store coped with that rate, so slightly less is
enough.
"""
GROWTH: Final = 0.02
"""How much each accepted object adds to the rate, until `REGAIN_S` after the last fall. Later the growth rises in
proportion to the time since the fall.
"""
REGAIN_S: Final = 5.0
WINDOW_S: Final = 5.0
"""The period over which the pacer measures the rate that the store accepted."""
LEAST_RATE: Final = 1.0
GRANT_S: Final = 0.25
"""A request has at most as many objects as the rate allows in this time, which is lost if the store refuses the
request.
"""


class Pacer:
    """Decides how many objects workers may send, and when; safe for use by several threads.

    Attributes:
        throttled: how often the store asked for fewer requests, or did not answer in time.
        backpressure_s: how many seconds at least one worker waited because of that.
        last_success: when the store last accepted something, on the runtime's clock.

    Args:
        max_rate: the most objects per second, on average since the start, at any moment.
        stop: set to end the run and every wait.
    """

    def __init__(self, runtime: Runtime, max_rate: float | None = None, stop: threading.Event | None = None) -> None:
        self._runtime, self._clock = runtime, runtime.clock
        self._lock = threading.Lock()
        self._max_rate, self._store_rate = max_rate, float("inf")
        self._stop = stop or threading.Event()
        self._paid = self._counted = self.last_success = self._clock.monotonic()
        self._fell, self._fruitless = float("-inf"), True
        self._taken: deque[tuple[float, int]] = deque()
        self.throttled = 0
        self.backpressure_s = 0.0

    def rate(self) -> float | None:
        """Return the current rate in objects per second; None while there is no limit."""
        rate = min(self._store_rate, self._max_rate or self._store_rate)
        return rate if rate < float("inf") else None

    def wait(self, objects: int) -> int:
        """Wait until some of `objects` may be sent, and return how many; 0 if the run is to end.

        The number is decided at the end of the wait, since a batch for too fast a pace would delay the other batches.
        """
        began = now = self._clock.monotonic()
        while not self._stop.is_set():
            with self._lock:
                rate, now = self.rate(), self._clock.monotonic()
                if rate == self._store_rate:  # else the caller's limit causes the wait
                    self.backpressure_s += max(0.0, now - max(began, self._counted))
                    self._counted = now
                if rate is None:
                    return objects
                granted = min(objects, max(1, int(rate * GRANT_S)))
                due = self._paid + granted / rate
                if due <= now:
                    self._paid = max(due, now - granted / rate)
                    return granted
            self._clock.sleep(min(due - now, SLICE_S))
        return 0

    def pause(self, seconds: float) -> None:
        """Wait this long, or until the run is to end."""
        self._runtime.pause(seconds, self._stop)

    def answered(self, sent_at: float, taken: int, *, slower: bool) -> bool:
        """Adjust the rate to an answer. Return whether the store may accept only smaller requests.

        Args:
            sent_at: when the request was sent. The refusal of a request sent before the last fall is not new
                information.
            taken: how many objects the store accepted.
            slower: whether the store asked for fewer requests, or did not answer in time.
        """
        now = self._clock.monotonic()
        with self._lock:
            if taken:
                self.last_success, self._fruitless = now, False
                self._taken.append((now, taken))
                self._store_rate += GROWTH * taken * max(1.0, (now - self._fell) / REGAIN_S)
            while self._taken and self._taken[0][0] < now - WINDOW_S:
                self._taken.popleft()
            self.throttled += slower
            if not slower or sent_at <= self._fell:
                return False
            if self._fruitless or not self._taken:
                return True
            taken_per_s = sum(n for _, n in self._taken) / max(1.0, min(WINDOW_S, now - self._taken[0][0]))
            if self._store_rate < float("inf"):
                taken_per_s = min(self._store_rate, max(taken_per_s, self._store_rate / 2))
            self._store_rate = max(LEAST_RATE, DECREASE * taken_per_s)
            self._fell = self._paid = now
            self._fruitless = True
            rate, fields = self._store_rate, event("pace", rate=round(self._store_rate, 1), throttled=self.throttled)
        _log.info("the store asks to slow down: %.0f objects a second", rate, extra=fields)
        return False


@lru_cache(maxsize=1)
def pacer_of(run_id: str, max_rate: float | None) -> Pacer:
    """Return the pacer that all tasks of an executor share for a run of another process."""
    return Pacer(Runtime(), max_rate)


# -- the requests -------------------------------------------------------------------------------------------------------

PATIENCE_S: Final = 120.0
PAUSE_READ_S: Final = 5.0
"""The age of the last check at which the pause is checked again before a request."""
TRIES: Final = 6
_BACKOFF_S: Final = 0.2
_TIMEOUT: Final = "RequestTimeout"
_UNANSWERED: Final = ""
_GONE: Final = {"NoSuchKey", "NoSuchVersion"}


class DeleteOutcome(msgspec.Struct):
    """The outcome of a batch.

    Attributes:
        left: the objects that were not tried because the run ended, except those that an unanswered request may have
            deleted.
        markers: the delete marker that hides each key, if this run is known to have created only one.
        error: why nothing more was tried. Objects that are in no list may or may not be gone.
    """

    deleted: list[Deletable] = []
    failures: list[DeleteFailure] = []
    left: list[Deletable] = []
    markers: dict[str, str] = {}
    requests: int = 0
    errors: int = 0
    error: L0gcError | None = None


class Deleter:
    """Deletes for one process; safe for use by several threads.

    Args:
        stop: set to end the run after the request in flight.
        pause: checked before each request; by default, there is no check.
        keep_history: whether the bucket may keep versions, in which case the ids of delete markers are useful.
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
        """Delete objects, in requests as large as the pace allows. If an error ends this early, it is the outcome's
        `error`.

        Args:
            requested: called after each answered request with the objects that it deleted.
        """
        outcome = DeleteOutcome()
        todo = list(objects)
        tries, most = 0, PAGE_SIZE
        began = self._runtime.clock.monotonic()
        unsure: set[str] = set()  # keys that may have an unknown marker; a second try creates another
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
                # A request that was refused as a whole deleted nothing; the outcome of any other failed request is
                # unknown.
                untouched = todo if isinstance(e, RequestRefusedError | NotFoundError) else rest
                outcome.left = _without(untouched, unsure)
                break
            rows = {code: _row(code) for code in {f.code for f in reply.failures}}
            slower = any(row.slower for row in rows.values())
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
            unsure |= {o.key for o, f in failed if rows[f.code].unsure}
            again = [(o, f) for o, f in failed if rows[f.code].again]
            outcome.failures += [f for _, f in failed if not rows[f.code].again]
            tries = 0 if gone else tries + 1
            if again and self._is_hopeless(began, tries, slower=slower):
                outcome.failures += [f for _, f in again]
                again = []
            if again:
                self._pacer.pause(self._runtime.jitter(_BACKOFF_S * 2 ** min(tries, 6)))
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
            if isinstance(e, RequestRefusedError | StoreSilentError):
                raise
            kinds = ((ThrottledError, "SlowDown"), (StoreTimeoutError, _TIMEOUT))
            code = next((code for kind, code in kinds if isinstance(e, kind)), _UNANSWERED)
            message = str(e)  # only once, since removing secrets takes 0.1 ms, and a batch has 1,000 keys
            return VersionsDeleted([DeleteFailure(o.key, code, message) for o in batch])


class DryDeleter:
    """Deletes nothing, and returns the outcome of successful requests."""

    def delete(self, objects: Sequence[Deletable], requested: Callable[[Sequence[Deletable]], None]) -> DeleteOutcome:
        """Report all objects as deleted."""
        requested(objects)
        return DeleteOutcome(list(objects), requests=-(-len(objects) // PAGE_SIZE))


def _row(code: str) -> Row:
    """Return the row of the store's table for a key that was not deleted: whether to try again, and more slowly, and
    whether the key may be gone, hidden by a delete marker. A request without a usable answer counts as a server error.
    """
    return row_of_key(code if code != _UNANSWERED else "InternalError")


def _without(objects: list[Deletable], keys: set[str]) -> list[Deletable]:
    return [o for o in objects if o.key not in keys] if keys else objects


def _of_batch(batch: list[Deletable], failures: list[DeleteFailure]) -> list[DeleteFailure]:
    """Return the failures if each names an object of the batch. If one does not, return a failure for each object."""
    if failures:
        requested = {(o.key, o.version_id) for o in batch} | {(o.key, "") for o in batch}
        for f in failures:
            if (f.key, f.version_id) not in requested:
                why = f"the store reports a failure for {f.key!r}, which was not in the request: {f.code} {f.message}"
                return [DeleteFailure(o.key, _UNANSWERED, why) for o in batch]
    return failures
