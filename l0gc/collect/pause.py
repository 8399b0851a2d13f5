"""The pause: a flag in the bucket that every sweep obeys, wherever it runs.

In doubt nothing is deleted: a flag that cannot be read counts as a pause. A run checks the flag before it begins, before
each segment, and before each request if the last reading is older than five seconds. After it has seen a pause, it
records no further segment and sends no further request.
"""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec

from l0gc.decoding import UNDECODABLE
from l0gc.errors import AmbiguousWriteError, PausedError, PreconditionFailedError, StoreError
from l0gc.events import event
from l0gc.formatting import Outcome
from l0gc.keys import PAUSED
from l0gc.runtime import Clock
from l0gc.storage.objectstore import ObjectStore, if_there

_log: Final = logging.getLogger(__name__)

_TRIES: Final = 5
_LAST_MS: Final = 253_402_300_799_999
"""The end of the year 9999, the last with four digits."""


class Pause(msgspec.Struct, Outcome, frozen=True):
    """Who paused sweeps, why, and since when (the store's clock, milliseconds since 1970)."""

    why: str
    by: str
    since_ms: Annotated[int, msgspec.Meta(ge=0, le=_LAST_MS)]


class NewPause(Pause, frozen=True):
    """The pause that is set, and whether it is `new`: the first one stays.

    Attributes:
        why: The reason of the pause that is set now.
        by: Who set it.
        since_ms: When.
        new: Whether this command set it; false if sweeps were paused already.
    """

    new: bool


_PAUSE: Final = msgspec.json.Decoder(Pause)


def read_pause(store: ObjectStore) -> Pause | None:
    """Return the pause that is set, or None. Raises `StoreError` if it cannot be read, and then the sweep must not
    continue.
    """
    stored = if_there(store.get, PAUSED)
    try:
        return None if stored is None else _PAUSE.decode(stored.body)
    except UNDECODABLE:
        return Pause("(the flag cannot be read)", "unknown", 0)


def set_pause(store: ObjectStore, why: str, by: str) -> tuple[Pause, bool]:
    """Pause sweeps; return the pause that is set, and whether it is this one: the first one stays.

    Raises:
        StoreError: the pause could not be set.
    """
    pause = Pause(why, by, store.now_ms())
    for _ in range(_TRIES):
        try:
            store.put_if_absent(PAUSED, msgspec.json.encode(pause))
        except (PreconditionFailedError, AmbiguousWriteError) as e:
            error: StoreError = e
            there = read_pause(store)
            if there is not None:
                return there, there == pause
        else:
            return pause, True
    raise StoreError(f"sweeps are not paused: {error}") from error


def clear_pause(store: ObjectStore) -> Pause | None:
    """Resume sweeps; return the pause that was set, or None.

    Raises:
        StoreError: the store did not remove the flag, so the pause stays.
    """
    pause = read_pause(store)
    if pause is not None:
        for f in store.delete([PAUSED]):
            raise StoreError(f"sweeps are still paused: {PAUSED} could not be removed ({f.why})")
    return pause


class PauseWatch:
    """Checks for a pause while a run works, and sets `stop` when there is one; safe for use by several threads.

    The run does not continue after that, even if the pause is lifted. `seen` describes the pause that ended it.
    """

    def __init__(self, store: ObjectStore, clock: Clock, stop: threading.Event) -> None:
        self._store, self._clock, self._stop = store, clock, stop
        self._read_at = float("-inf")
        self.seen = ""

    def is_set(self, after_s: float = 0.0) -> bool:
        """Return whether a pause has ended the run. Reads the flag if the last reading began at least `after_s` ago.

        Raises:
            StoreError: the flag cannot be read, and nothing more may be deleted.
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
    """Return the error that a sweep ends with while the pause `described` is set."""
    return PausedError(f"sweeps are paused: {described}; run l0gc resume to let them continue")


def describe_pause(pause: Pause) -> str:
    """Return a pause as `disk audit (ann@ops1, since 2026-01-31 23:59Z)`."""
    since = datetime.fromtimestamp(pause.since_ms / 1000, UTC)
    return f"{pause.why} ({pause.by}, since {since:%Y-%m-%d %H:%M}Z)"
