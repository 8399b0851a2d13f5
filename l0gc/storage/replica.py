"""A replicated state machine on a shared log: replay, catch up, propose.

A decision is made against the state at the very offset where its entry lands: `propose` hands the state to `decide`,
appends at the next offset, and on a conflict catches up and asks `decide` again. The state holds only what has landed, so
a report or a checkpoint can never say more than the log (hazard 18).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Generic, Protocol, TypeVar

from l0gc.errors import LogConflictError, LogOvertakenError, ProtocolError, StoreError
from l0gc.events import event
from l0gc.runtime import Runtime
from l0gc.storage.log import Landed, SharedLog

_log: Final = logging.getLogger(__name__)

S = TypeVar("S")

CHECKPOINT_EVERY: Final = 100
"""Entries behind the newest checkpoint at which a writer keeps the state: it bounds what a replay reads, also where
nobody runs housekeeping. Truncation is housekeeping's alone."""
LOOK_AGAIN_S: Final = 60.0
"""An entry gets the store's time as of the writer's last look, and what is remembered of producers expires by that. A
writer that was idle for longer looks once more before it appends."""
_MAX_CONFLICTS: Final = 1000
"""Far above what contention can cause; a writer that meets this many is not making progress."""


class StateMachine(Protocol[S]):
    """The pure half: what an entry does to a state."""

    def initial(self) -> S:
        """The state before offset 0."""
        ...

    def apply(self, state: S, entry: Landed) -> None:
        """Change `state` by an entry; deterministic. Raises `CorruptObjectError`, before any change."""
        ...

    def encode(self, state: S) -> bytes:
        """For a checkpoint."""
        ...

    def decode(self, body: bytes, source: str) -> S:
        """From a checkpoint. Raises `CorruptObjectError`, naming `source`."""
        ...


class Replica(Generic[S]):
    """One process's copy of a state, and its way to change it. Safe for use by several threads."""

    def __init__(self, log: SharedLog, machine: StateMachine[S], runtime: Runtime) -> None:
        self.log = log
        self.lock = threading.RLock()
        self._machine = machine
        self._runtime = runtime
        self._state: S = machine.initial()
        self.offset = -1
        self.time_ms = 0
        self.as_of_ms: int | None = None
        self._looked_at = float("-inf")
        self.checkpoint_offset = -1
        self.covered = 0

    @property
    def state(self) -> S:
        """The state as of the last look at the log; replays it on first use."""
        with self.lock:
            if self.as_of_ms is None:
                self.replay()
            return self._state

    def peek(self) -> S:
        """The state without waiting for a change that is under way; for hints alone."""
        return self._state

    def replay(self) -> None:
        """Build the state anew from the log."""
        with self.lock:
            self._looked_at = self._runtime.clock.monotonic()
            r = self.log.replay()
            state, offset = self._machine.initial(), -1
            if r.checkpoint is not None:
                offset = r.checkpoint[0]
                state = self._machine.decode(r.checkpoint[1], self.log.checkpoint_key(offset))
            self._state, self.offset, self.checkpoint_offset = state, offset, offset
            for entry in r.entries:
                self._apply(entry)
            self.as_of_ms, self.covered = r.as_of_ms, r.covered

    def catch_up(self) -> S:
        """The state as the log has it now."""
        with self.lock:
            if self.as_of_ms is None:
                self.replay()
                return self._state
            self._looked_at = self._runtime.clock.monotonic()
            try:
                entries, as_of_ms = self.log.tail(self.offset, self.as_of_ms)
            except LogOvertakenError:
                self.replay()
                return self._state
            for entry in entries:
                self._apply(entry)
            self.as_of_ms = as_of_ms
            return self._state

    def propose(self, decide: Callable[[S, int], bytes | None]) -> int | None:
        """Append what `decide(state, offset)` returns, at that offset; None if it returns None.

        Raises:
            AppendOutcomeUnknownError: see `SharedLog.append`; the state is replayed before it is used again.
            Whatever `decide` raises to refuse.
        """
        with self.lock:
            if self.as_of_ms is None:
                self.replay()
            elif self._runtime.clock.monotonic() - self._looked_at > LOOK_AGAIN_S:
                self.catch_up()
            for conflict in range(_MAX_CONFLICTS):
                if conflict > 1:
                    self._runtime.clock.sleep(self._runtime.jitter(min(0.5, 0.005 * conflict)))
                offset = self.offset + 1
                payload = decide(self._state, offset)
                if payload is None:
                    return None
                assert self.as_of_ms is not None
                try:
                    landed = self.log.append(
                        offset, payload, time_ms=max(self.time_ms, self.as_of_ms), as_of_ms=self.as_of_ms
                    )
                except LogConflictError as e:
                    _log.debug("%s", e, extra=event("log_conflict", log=self.log.folder, offset=offset))
                    if isinstance(e, LogOvertakenError):
                        self.replay()
                    else:
                        self.catch_up()
                    continue
                except BaseException:
                    self.as_of_ms = None  # whatever happened to the append, the log knows
                    raise
                self._looked_at = self._runtime.clock.monotonic()
                self._apply(landed)
                self.as_of_ms = max(self.as_of_ms, landed.date_ms)
                if offset - self.checkpoint_offset >= CHECKPOINT_EVERY:
                    with suppress(StoreError):  # the entry has landed; somebody else will keep the state
                        self.write_checkpoint()
                return offset
            raise ProtocolError(f"the log {self.log.folder} could not be appended to after {_MAX_CONFLICTS} conflicts")

    def write_checkpoint(self) -> int:
        """Keep the state as it is now; returns its offset."""
        with self.lock:
            state = self.state
            if self.offset > self.checkpoint_offset:
                self.log.write_checkpoint(self.offset, self._machine.encode(state))
                self.checkpoint_offset = self.offset
            return self.offset

    def _apply(self, entry: Landed) -> None:
        self._machine.apply(self._state, entry)
        self.offset = entry.offset
        self.time_ms = max(self.time_ms, entry.time_ms)
