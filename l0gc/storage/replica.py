"""A replicated state machine on a shared log: replay, catch up, propose.

A decision is made on the state at the very offset at which its entry lands. `propose` passes the state to `decide` and
appends at the next offset; on a conflict it applies the winner's entry and calls `decide` again. Before it is appended,
an entry is encoded, decoded and checked, so nothing lands that a reader refuses (hazard 31). The state holds only what
has landed, so a checkpoint never contains more than the log (hazard 18).

An exception can occur between any two steps: Ctrl-C, a timeout, too little memory. Therefore the state counts as broken
while an entry changes it. A state that stays broken is replayed before it is used again (hazard 29).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from l0gc.errors import (
    CorruptObjectError,
    L0gcError,
    LogConflictError,
    LogOvertakenError,
    ObjectNotFoundError,
    ProtocolError,
    SetBackError,
    UsageError,
)
from l0gc.events import event
from l0gc.runtime import Runtime
from l0gc.storage.contention import WriterOrder
from l0gc.storage.entry import Place, StoredEntry
from l0gc.storage.log import KEPT_CHECKPOINTS, Folder, OffsetTakenError, SharedLog
from l0gc.storage.objectstore import if_there
from l0gc.storage.store_time import JUMP_MS

_log: Final = logging.getLogger(__name__)

S = TypeVar("S")

CHECKPOINT_BYTES: Final = 256 << 10
"""The size up to which a checkpoint is cheap. The next one is due once the entries after it weigh this much."""
CHECKPOINT_EVERY: Final = 64
"""The number of entries after a cheap checkpoint at which a writer stores the state. This bounds a replay, even if
housekeeping never runs. Each entry weighs at least 1/64 of `CHECKPOINT_BYTES`, since reading it takes a request.
"""
_CHECKPOINT_SHARE: Final = 2
"""The next checkpoint is due when the entries after the last one weigh this many times as much as the last one. All
checkpoints together thus cost half as much as the entries, plus the newest one, and a replay reads at most three times
the state.
"""
_OVERDUE: Final = 1.25
"""How much of the due weight other writers wait for. The writer whose entry makes a checkpoint due writes it; the
others check after a quarter more whether it did.
"""
_SMALL_CHECKPOINT_ENTRIES: Final = 4
"""The number of entries at which housekeeping writes a cheap checkpoint, and at which a truncation is worth its three
requests.
"""
READ_AGAIN_S: Final = 60.0
"""How much time an entry's time may add to the date of the last reply about the log's end, whatever this machine's
clock shows. A writer that was idle for longer reads the log before it appends.
"""
_MAX_CONFLICTS: Final = 1000
"""The number of conflicts after which a writer gives up; contention causes far fewer."""
_MAX_READS: Final = 200
"""How often a writer reads the log before it appends, even if it seems to be another writer's turn."""
PROPOSE_DEADLINE_S: Final = 300.0
"""How long a writer may lose offsets to others before it gives up."""


class StateMachine(Protocol[S]):
    """The pure part: how an entry changes a state."""

    def initial(self) -> S:
        """Return the state before offset 0."""

    def check(self, state: S, offset: int, payload: bytes) -> None:
        """Raise an error for the caller if `payload`, as readers will decode it, may not land at `offset`.

        Raises `CorruptObjectError` if it cannot be read.
        """

    def apply(self, state: S, entry: StoredEntry) -> None:
        """Change `state` by an entry, deterministically. Raises `CorruptObjectError` before any change."""

    def encode(self, state: S) -> bytes:
        """Encode a state for a checkpoint, in the form of `join_state`."""

    def decode(self, body: bytes, source: str) -> S:
        """Decode a state from a checkpoint. Without the second part, the state lacks the data of that part.

        Raises `CorruptObjectError`, naming `source`.
        """

    def lacks(self, state: S, entry: StoredEntry | None = None) -> bool:
        """Return whether a state lacks data or, given an entry, whether it lacks data that applying the entry needs."""


class Replica(Generic[S]):
    """A process's copy of a state, through which the process changes the state. Safe for use by several threads.

    Until a caller needs more than the `head`, the state lacks the second part of its checkpoint. The entries after the
    checkpoint are kept, and are applied again once that part is read.

    No thread holds `lock` while it waits for other writers' appends.
    """

    def __init__(
        self, log: SharedLog, machine: StateMachine[S], runtime: Runtime, *, as_of: Place | None = None
    ) -> None:
        """Open the replica. With `as_of`, it always has the state after that entry, which a pin keeps readable."""
        self.log, self._as_of = log, as_of
        self.lock = threading.RLock()
        self._machine = machine
        self._runtime = runtime
        self._order = WriterOrder(runtime, log.writer)
        self._state: S = machine.initial()
        self._whole = False
        self._since: list[StoredEntry] | None = None
        self._base = -1
        self.offset = -1
        self.time_ms = 0
        self.as_of_ms: int | None = None
        self._as_of_at = float("-inf")
        self._read_at = float("-inf")
        self._folder = Folder()
        self.checkpoint_offset = -1
        self.checkpoint_weight = 0
        self._charges: list[int] = []
        self._ids = {-1: ""}
        self._behind = 0

    @property
    def state(self) -> S:
        """Return the state as of the last read of the log. Replay the log on first use."""
        with self.lock:
            if not self._whole:
                self.replay()
            elif self._since is not None:
                self._complete()
            return self._state

    @property
    def head(self) -> S:
        """Return the state, which may lack the second part of its checkpoint; see `StateMachine.decode`."""
        with self.lock:
            if not self._whole:
                self.replay(whole=False)
            return self._state

    def _complete(self) -> None:
        """Read the whole checkpoint, and apply the entries after it again."""
        assert self._since is not None
        try:
            kept = self.log.get_checkpoint(self._base)
        except ObjectNotFoundError:  # truncated in the meantime, so there is a newer one
            self.replay()
            return
        state = self._machine.decode(kept.payload, self.log.checkpoint_key(self._base))
        for entry in self._since:
            self._machine.apply(state, entry)
        self._state, self._since = state, None

    def peek(self) -> S:
        """Return the state without waiting for a change in progress. It may be partly changed, so use it only for
        hints.
        """
        return self._state

    def replay(self, *, whole: bool = True) -> Folder:
        """Rebuild the state from the log, and return the listing of the log. See `SharedLog.replay`."""
        with self.lock:
            self._whole = False
            self._read_at = self._runtime.clock.monotonic()
            r = self.log.replay(None if self._as_of is None else self._as_of.offset, whole=whole)
            kept = r.checkpoint or StoredEntry(-1, 0, b"", 0)
            state = self._machine.initial()
            if r.checkpoint is not None:
                state = self._machine.decode(kept.payload, self.log.checkpoint_key(kept.offset))
            self._state, self.offset, self.time_ms = state, kept.offset, kept.time_ms
            self._ids = {kept.offset: kept.id}
            self._base, self._since = kept.offset, [] if self._machine.lacks(state) else None
            self._kept(kept.offset, kept.weight)
            self._folder = r.folder
            self._take(r.entries, r.folder.date_ms)
            if self._as_of is not None and not self.holds(self._as_of):
                self._whole = False
                raise SetBackError(
                    f"entry {self._as_of.offset} of the log {self.log.folder} is not the one that was pinned: the log was "
                    "set back to an older copy, and has grown again; run l0gc pin delete, and create another pin"
                )
            return r.folder

    def catch_up(self, *, whole: bool = True, hasty: bool = False) -> S:
        """Return the state up to the log's current end.

        Args:
            whole: False if the `head` is enough.
            hasty: only find out whether the writer before this one has taken its turn.
        """
        with self.lock:
            if not self._whole or self._as_of is not None:
                return self.state if whole else self.head
            assert self.as_of_ms is not None
            now = self._runtime.clock.monotonic()
            # A jump of the store's clock must not hide that much time has passed by this machine's clock.
            slept = (now - self._read_at) * 1000 >= self.log.min_age_ms / 3
            try:
                entries, as_of_ms = self.log.tail(
                    self.offset, 0 if slept else self.as_of_ms, expected=max(1, self._order.rank // 2), hasty=hasty
                )
            except LogOvertakenError:
                self.replay(whole=whole)
                return self._state
            self._read_at = now
            self._take(entries, as_of_ms)
            requests = 1 if hasty or not entries else 2
            self._order.measured((self._runtime.clock.monotonic() - now) / requests)
            self._order.landed([e.writer for e in entries])
            return self.state if whole else self._state

    @property
    def end(self) -> Place:
        """Return the place of the last entry that the state contains."""
        with self.lock:
            return Place(self.offset, self._ids[self.offset])

    def holds(self, place: Place) -> bool:
        """Return whether the part of the log that was read has the entry recorded as `place`. All places are checked
        here.

        False means that the log was set back to an older copy, even if it has grown past that offset since. An entry
        that was truncated counts as the recorded one, even if a stale writer has created its offset again, since each
        process checks the recorded places before it truncates.

        Raises:
            CorruptObjectError, StoreError: the entry, or an object that shows whether it was truncated, cannot be read.
        """
        with self.lock:
            if place.offset > self.offset:
                return False
            if not place.id or place.offset < 0:
                return True
            entry_id = self._ids.get(place.offset)
            if entry_id is not None:
                return entry_id == place.id
            entry = if_there(self.log.get, place.offset)
            return entry is None or entry.id == place.id or self.log.is_re_created(place.offset)

    # -- changing the state -------------------------------------------------------------------------------------------

    def payload(self, entry: object) -> bytes:
        """Encode an entry, and check the entry that a reader would decode against the current state (hazard 31).

        Raises:
            UsageError: a value is of the wrong type, or out of range.
            The errors of the machine's `check`.
        """
        try:
            payload = msgspec.msgpack.encode(entry)
            self._machine.check(self.head, self.offset + 1, payload)
        except (CorruptObjectError, OverflowError, TypeError, UnicodeEncodeError) as e:
            raise UsageError(f"{type(entry).__name__} cannot be recorded, and nothing was written: {e}") from e
        return payload

    def propose(self, decide: Callable[[S, int], object | None], *, whole: bool = True) -> int | None:
        """Append the entry that `decide(state, offset)` returns, and return its offset; return None if there is
        nothing to append.

        If `decide` itself reads the log and receives other writers' entries, it is called again.

        Args:
            whole: False if the `head` of the state is enough to decide.

        Raises:
            AppendOutcomeUnknownError: see `SharedLog.append`; the state is replayed before it is used again.
            ProtocolError: other writers won every offset, or the entry is too large. The errors of `decide` and
                `payload`.
        """
        assert self._as_of is None
        clock = self._runtime.clock
        deadline = clock.monotonic() + PROPOSE_DEADLINE_S
        conflicts = 0
        while True:
            self._wait_for_turn(just_read=conflicts > 0)
            with self.lock:
                if self._whole and clock.monotonic() - self._read_at > READ_AGAIN_S:
                    self.catch_up(whole=whole)
                state, end = self.state if whole else self.head, self.end
                offset = end.offset + 1
                entry = decide(state, offset)
                if entry is None:
                    return None
                if self._whole and self.end == end:
                    payload = self.payload(entry)
                    began = clock.monotonic()
                    if self._append(offset, payload):
                        self._order.measured(clock.monotonic() - began)
                        return offset
                    # Half of the time was the append, half reading the winner's entry.
                    self._order.measured((clock.monotonic() - began) / 2)
                    self._order.lost()
            conflicts += 1
            if conflicts >= _MAX_CONFLICTS or clock.monotonic() > deadline:
                raise ProtocolError(
                    f"the log {self.log.folder} could not be appended to: other writers were first {conflicts} "
                    f"times; run the "
                    "command again, with fewer writers at once"
                )

    @property
    def writers(self) -> int:
        """Return how many writers, including this one, have recently appended to the log."""
        with self.lock:
            return self._order.writers

    def _wait_for_turn(self, *, just_read: bool) -> None:
        """Let the writers before this one append, if there are any."""
        with self.lock:
            has_read = self._order.writers == 1 or (just_read and self._order.joined)
        for _ in range(_MAX_READS):
            with self.lock:
                pause, is_next = self._order.pause_s(), self._order.rank == 1
            if has_read and not pause:
                return
            if pause:
                self._runtime.clock.sleep(pause)
            self.catch_up(whole=False, hasty=is_next and (has_read or just_read))
            has_read = True

    def _append(self, offset: int, payload: bytes) -> bool:
        """Append and apply the entry. If another writer won the offset, apply that writer's entry and return False."""
        assert self.as_of_ms is not None
        self._whole = False  # the state is replayed unless the outcome of the append is certain
        try:
            time_ms = max(self.time_ms, self._now_ms())  # the log keeps this time for ever
            landed = self.log.append(offset, payload, time_ms=time_ms, as_of_ms=self.as_of_ms)
        except LogConflictError as e:
            self._whole = True
            _log.debug("%s", e, extra=event("log_conflict", log=self.log.folder, offset=offset))
            if isinstance(e, OffsetTakenError):
                self._take([e.landed], self.as_of_ms)
                self._order.landed([e.landed.writer])
            elif isinstance(e, LogOvertakenError):
                self.replay(whole=False)
            else:
                self.catch_up(whole=False)
            return False
        self._read_at = self._runtime.clock.monotonic()
        was_due = self.checkpoint_due()
        self._take([landed], landed.date_ms)
        self._order.landed([landed.writer])
        if self.checkpoint_due():
            # The entry has landed even if the checkpoint fails; another writer will store the state.
            with suppress(L0gcError):
                self._checkpoint_in_turn(was_due)
        return True

    def _take(self, entries: Sequence[StoredEntry], as_of_ms: int) -> None:
        """Apply the next entries; the offset after them was free at `as_of_ms`. The state is valid only at the end."""
        self._whole = False
        if as_of_ms != self.as_of_ms:
            self._as_of_at = self._runtime.clock.monotonic()
        for entry in entries:
            if self._since is not None and self._machine.lacks(self._state, entry):
                self._complete()
                if self._whole:
                    return  # the checkpoint was gone, so the log was replayed to its end
            self._apply(entry)
        self.as_of_ms = as_of_ms
        self._whole = True

    def _now_ms(self) -> int:
        """Return the store's time to within 2 s, never ahead of the date of a later reply, because dates and the
        elapsed time are truncated to whole seconds.

        Raises:
            SafetyError, StoreError: see `StoreTime.settle`.
        """
        assert self.as_of_ms is not None
        passed_s = min(self._runtime.clock.monotonic() - self._as_of_at, READ_AGAIN_S)
        return self.log.store_time.settle(self.as_of_ms) + 1000 * int(passed_s)

    def _apply(self, entry: StoredEntry) -> None:
        self._machine.apply(self._state, entry)
        if self._since is not None:
            self._since.append(entry)
        self.offset = entry.offset
        self._ids[entry.offset] = entry.id
        self.time_ms = max(self.time_ms, entry.time_ms)
        self._charges.append(max(entry.weight, -(-CHECKPOINT_BYTES // CHECKPOINT_EVERY)))
        self._behind += self._charges[-1]

    # -- checkpoints and truncation -----------------------------------------------------------------------------------

    def checkpoint_due(self, *, housekeeping: bool = False) -> bool:
        """Return whether the state should be stored: the entries after the newest checkpoint weigh enough.

        Args:
            housekeeping: whether a cheap checkpoint is also due if it saves readers some requests.
        """
        if (
            housekeeping
            and self.checkpoint_weight <= CHECKPOINT_BYTES
            and len(self._charges) >= _SMALL_CHECKPOINT_ENTRIES
        ):
            return True
        return self._behind >= self._due_weight

    @property
    def _due_weight(self) -> int:
        return max(CHECKPOINT_BYTES, _CHECKPOINT_SHARE * self.checkpoint_weight)

    def _checkpoint_in_turn(self, was_due: bool) -> None:
        if was_due:
            if self._behind < _OVERDUE * self._due_weight:
                return
            with suppress(ObjectNotFoundError):  # truncated in the meantime, after a newer one was written
                newest = self.log.newest_checkpoint()
                if newest is not None and self.checkpoint_offset < newest[0] <= self.offset:
                    self._kept(*newest)
            if not self.checkpoint_due():
                return
        self.write_checkpoint()

    def write_checkpoint(self) -> int:
        """Store the current state; return its offset."""
        with self.lock:
            state = self.state
            if self.offset > self.checkpoint_offset:
                encoded = self._machine.encode(state)
                weight, certain = self.log.write_checkpoint(self.offset, encoded, self.time_ms, self.end.id)
                self._kept(self.offset, weight)
                if certain:
                    self._folder.checkpoints.append(self.offset)
            return self.offset

    def _kept(self, offset: int, weight: int) -> None:
        """Record that a checkpoint of `offset` exists."""
        self._charges = self._charges[len(self._charges) - (self.offset - offset) :]
        self._behind = sum(self._charges)
        self._ids = {o: entry_id for o, entry_id in self._ids.items() if o >= offset}
        self.checkpoint_offset, self.checkpoint_weight = offset, weight

    def truncate(self, pinned_at: Callable[[], Collection[int]] = tuple) -> int:
        """Delete entries that a checkpoint covers and that are old enough, if that is worth the requests. Return the
        number of entries.

        The listing of the replay is enough to decide, so a log with nothing to delete costs no request.

        Args:
            pinned_at: returns the offsets as of which a replay stays possible. It is called after the listing, so that
                a pin that it does not include is newer than all deleted entries (hazard 36).
        """
        with self.lock:
            _ = self.head
            assert self.as_of_ms is not None
            unlisted = self.checkpoint_offset - max(self._folder.entries, default=-1)
            if unlisted >= _SMALL_CHECKPOINT_ENTRIES and self.as_of_ms - self._folder.date_ms >= self.log.min_age_ms:
                self._folder = self.log.list_folder(whole=False)
            skipped = self._folder.skipped
            if skipped is not None and self._folder.needed_from(min(pinned_at(), default=None)) > skipped:
                self._folder = self.log.list_folder()
            spent = len(self._folder.checkpoints) > KEPT_CHECKPOINTS
            if not spent and len(self._folder.ripe(self.log.min_age_ms)) < _SMALL_CHECKPOINT_ENTRIES:
                return 0
            if self.as_of_ms - self._folder.date_ms > JUMP_MS:  # a second reply could not confirm the date of the first
                self._folder = self.log.list_folder()
            self.log.store_time.settle(self._folder.date_ms)
            return self.log.truncate(self._folder, pinned_at())
