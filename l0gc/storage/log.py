"""The shared log: small entries in one folder, appended by the writer that creates the next offset's key.

Why it is safe without a server:
- An append is a conditional create, so an offset has one owner. A writer whose offset is taken learns it (412), applies
  the owner's entry, and decides again; that fences every stale writer.
- An append whose reply was lost is settled by reading the offset back and comparing the entry's id (hazard 8). It is
  repeated at the same offset only, never at another one while its outcome is open. A 412 alone does not say that the
  entry is another's: a proxy may have sent the request twice. A refusal is believed only after the offset
  was read: the store may have answered a proxy, and the proxy this writer.
- Truncation deletes entries that a checkpoint covers, after a boundary that keeps sleepers from believing in what they
  re-create there (`boundary.py`, hazard 7).
- Every object carries a checksum over its content and its key (`entry.py`); what fails it stops the log.

Layout: `log/{offset:020}`, `checkpoint/{offset:020}` (the state after that offset), `boundary.json` (entries below it may
be gone).
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from l0gc.errors import (
    AccessDeniedError,
    AmbiguousWriteError,
    AppendOutcomeUnknownError,
    CorruptObjectError,
    LogConflictError,
    LogOvertakenError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreError,
    StoreUnreachableError,
    ThrottledError,
)
from l0gc.events import event
from l0gc.runtime import Runtime
from l0gc.storage.boundary import CLOCKS_DIFFER_MS, Boundary, Folder, within
from l0gc.storage.entry import (
    CHECKPOINT_LIMIT,
    ENTRY_LIMIT,
    WRITER,
    Entry,
    Landed,
    decode_entry,
    encode_entry,
)
from l0gc.storage.objectstore import PAGE_SIZE, ObjectStore, if_there
from l0gc.storage.parallel import Parallel
from l0gc.storage.store_time import StoreTime

_log: Final = logging.getLogger(__name__)

TRUNCATE_MIN_AGE_MS: Final = 15 * 60_000
"""Entries younger than this are never truncated: it bounds how long a writer may go without asking the boundary."""
APPEND_DEADLINE_S: Final = 30.0
"""How long an ambiguous append is settled before its outcome is reported as unknown; far below the age above."""
KEPT_CHECKPOINTS: Final = 2
"""The newest, and the one before it, for readers that have just listed it."""
_REPLAYS: Final = 8
_CONNECTS: Final = 3
_WINDOW: Final = 16
"""The most entries of a tail that are read at once; a tail of unknown length is read in windows of 1, 2, 4, 8, 16."""
_BACKOFF_S: Final = 0.1


class OffsetTakenError(LogConflictError):
    """Another writer's entry owns the offset, and `landed` is that entry: a replica at the state before may apply it."""

    def __init__(self, message: str, landed: Landed) -> None:
        super().__init__(message)
        self.landed = landed


@dataclass(frozen=True, slots=True)
class Replay:
    """The newest checkpoint, the entries after it, and the listing that showed both.

    The offset after the last entry was free when the listing began.
    """

    checkpoint: Landed | None
    entries: list[Landed]
    folder: Folder


class SharedLog:
    """The log below `folder` (which ends with a slash)."""

    def __init__(
        self,
        store: ObjectStore,
        folder: str,
        runtime: Runtime,
        *,
        parallel: Parallel | None = None,
        truncate_min_age_ms: int = TRUNCATE_MIN_AGE_MS,
        store_time: StoreTime | None = None,
    ) -> None:
        """All logs of a process share a `store_time`."""
        self.folder = folder
        self.store_time = store_time or StoreTime(store)
        self.min_age_ms = truncate_min_age_ms
        self.boundary = Boundary(store, folder, runtime, truncate_min_age_ms)
        self._store = store
        self._runtime = runtime
        self._parallel: Parallel = parallel or Parallel()
        self.writer = runtime.new_id()[:WRITER]

    def entry_key(self, offset: int) -> str:
        return f"{self.folder}log/{offset:020}"

    def checkpoint_key(self, offset: int) -> str:
        return f"{self.folder}checkpoint/{offset:020}"

    # -- reading ------------------------------------------------------------------------------------------------------

    def replay(self, as_of: int | None = None) -> Replay:
        """All that a state is built from: the newest checkpoint and every entry after it.

        Args:
            as_of: the state after this entry, which a pin keeps readable, in place of the newest.

        Raises:
            CorruptObjectError: an entry is missing between two others, or does not parse.
        """
        gap = ""
        for attempt in range(_REPLAYS):
            if attempt:
                self._runtime.clock.sleep(self._runtime.jitter(_BACKOFF_S * attempt))
            began = self._runtime.clock.monotonic()
            folder = self.list_folder(whole=attempt > 0)
            start = folder.needed_from(as_of)
            offsets = sorted(o for o in folder.entries if o > start)
            if as_of is not None:
                offsets = list(range(start + 1, as_of + 1))
            if offsets != list(range(start + 1, start + 1 + len(offsets))):
                missing = next(o for i, o in enumerate(range(start + 1, offsets[-1])) if offsets[i] != o)
                gap = f"{self.entry_key(missing)} is missing, though a later entry exists"
                continue
            try:
                kept = None if start < 0 else self.get_checkpoint(start)
                entries = self._parallel.map(self.get, offsets)
            except ObjectNotFoundError as e:  # truncated while we read: there is a newer checkpoint
                gap = str(e)
                continue
            # If that took long, a sleeper may have re-created what was truncated in between.
            slept = (self._runtime.clock.monotonic() - began) * 1000 >= self.min_age_ms / 3
            read_ms = max((e.date_ms for e in entries), default=folder.date_ms)
            if self.boundary.if_due(0 if slept else folder.date_ms, read_ms)[0] > start + 1:
                gap = f"it was truncated past {self.entry_key(start + 1)} while it was read"
                continue
            self.store_time.saw(folder.date_ms, *(e.date_ms for e in (kept, *entries) if e is not None))
            return Replay(kept, entries, folder)
        raise CorruptObjectError(
            f"the log {self.folder} cannot be replayed: {gap}; restore it from a backup or a version"
        )

    def tail(self, after: int, as_of_ms: int, *, expected: int = 1, hasty: bool = False) -> tuple[list[Landed], int]:
        """The entries after offset `after`, read in windows that grow; and when the offset after them was free.

        Args:
            after: the last offset that the caller holds.
            as_of_ms: when, by the store's clock, the caller last knew that to be the end of the log.
            expected: how many entries there probably are: the first window is of so many.
            hasty: if they are there, do not read on. The offset after them was free when the caller last knew.

        Raises:
            LogOvertakenError: the log may have been truncated past `after`; replay it.
        """
        entries: list[Landed] = []
        window = max(1, min(_WINDOW, expected))
        while True:
            first = after + 1 + len(entries)
            for found in self._parallel.map(self._get_if_there, range(first, first + window)):
                if isinstance(found, Landed):
                    entries.append(found)
                    continue
                # Whatever was found after this offset has been written since it was seen to be free.
                if self.boundary.if_due(as_of_ms, found)[0] > after + 1:
                    raise LogOvertakenError(f"the log {self.folder} was truncated past offset {after}")
                self.store_time.saw(found)
                return entries, found
            if hasty and not self.boundary.is_due(as_of_ms, entries[-1].date_ms):
                return entries, as_of_ms
            window = min(_WINDOW, 2 * window)

    def _get_if_there(self, offset: int) -> Landed | int:
        """The entry at `offset`, or the store's clock when it did not exist."""
        try:
            return self.get(offset)
        except ObjectNotFoundError as e:
            return e.date_ms if e.date_ms is not None else self._store.now_ms()

    def get(self, offset: int) -> Landed:
        """The entry at `offset`. Raises `ObjectNotFoundError`: it is not there, or no longer."""
        return self._read(self.entry_key(offset), offset, ENTRY_LIMIT)

    def get_checkpoint(self, offset: int) -> Landed:
        """The checkpoint of `offset`. Raises `ObjectNotFoundError`, as `get` does."""
        return self._read(self.checkpoint_key(offset), offset, CHECKPOINT_LIMIT)

    def _read(self, key: str, offset: int, limit: int) -> Landed:
        stored = self._store.get(key)
        e = decode_entry(key, stored.body, limit)
        return Landed(offset, e.time_ms, e.payload, stored.date_ms, len(stored.body), e.id, stored.modified_ms)

    def list_folder(self, *, whole: bool = True) -> Folder:
        """What the log's folder holds now, or what a replay needs of that."""
        return Folder.for_replay(self._store, self.folder, whole=whole)

    # -- appending ----------------------------------------------------------------------------------------------------

    def append(self, offset: int, payload: bytes, *, time_ms: int, as_of_ms: int) -> Landed:
        """Create `offset` with `payload`; when this returns, the entry is in the log for good.

        Args:
            offset: one after the last entry that the decision was made on.
            time_ms: the entry's time.
            as_of_ms: when, by the store's clock, the caller last knew `offset` to be free.

        Raises:
            OffsetTakenError: another writer's entry owns the offset; the error holds it.
            LogConflictError: the same, but the log has to be read before that entry may be believed.
            LogOvertakenError: the log was truncated past the offset; the entry is not part of it.
            AppendOutcomeUnknownError: it could not be learned whether the entry landed.
            ProtocolError: the entry is too large.
            StoreError: the store refused, and the entry did not land; `AccessDeniedError` among them.
        """
        key = self.entry_key(offset)
        entry_id = f"{self.writer}-{self._runtime.new_id()}"
        body = encode_entry(key, Entry(entry_id, time_ms, payload))
        began = self._runtime.clock.monotonic()
        doubt, owner, date = self._create(offset, entry_id, body, began + APPEND_DEADLINE_S)
        # Who was asleep for so long may have landed, and been truncated since.
        slept = self._runtime.clock.monotonic() - began >= self.min_age_ms / 1000
        if owner is not None and owner.id != entry_id:
            taken = f"{key} belongs to another writer"
            if slept:
                raise self._unknown(offset, LogConflictError(taken))
            if self.boundary.is_due(as_of_ms, date):
                raise LogConflictError(taken)
            raise OffsetTakenError(taken, owner)
        try:
            # Whatever the dates say: the one that `as_of_ms` comes from may have been ahead by as much.
            boundary, seen_ms = self.boundary.if_due(0 if slept else as_of_ms, date)
        except StoreError as e:
            raise self._unknown(offset, e) from e
        if boundary > offset:
            # The dates may differ by less than has passed: one of them may have been ahead.
            slept = self._runtime.clock.monotonic() - began >= self.min_age_ms / 1000
            overtaken = LogOvertakenError(f"the log {self.folder} was truncated past offset {offset}; it is replayed")
            # Either the offset was re-created after a truncation, or the entry landed and was truncated since, inside
            # a checkpoint. Only the minimum age distinguishes them, and the age of an entry that was found is unknown.
            if doubt is not None or owner is not None or slept or not within(date, seen_ms, self.min_age_ms):
                raise self._unknown(offset, overtaken) from overtaken
            raise overtaken
        if doubt is not None:
            _log.info("an append whose reply was lost has landed: %s", doubt, extra=event("append_settled", key=key))
        self.store_time.saw(date)
        # Of an entry that was found, only the time of its writing says when the offset after it was free.
        date = date if owner is None else min(date, owner.created_ms)
        return Landed(offset, time_ms, payload, date, len(body), entry_id)

    def _create(
        self, offset: int, entry_id: str, body: bytes, deadline: float
    ) -> tuple[StoreError | None, Landed | None, int]:
        """Create the entry, unless the offset has an owner.

        Returns what was in doubt on the way, the owner as read back (None: this writer, by the store's own word), and the
        store's clock.
        """
        doubt: StoreError | None = None
        attempt = 0
        while True:
            try:
                return doubt, None, self._store.put_if_absent(self.entry_key(offset), body).date_ms
            except PreconditionFailedError as e:
                try:
                    owner = self._owner(offset)
                except StoreError as unread:
                    doubt = doubt or unread
                    owner = self._settle(offset, deadline, doubt)
                if owner is None:  # it was there, and is not: it may have been this writer's
                    raise self._unknown(offset, doubt or e) from e
            except (AmbiguousWriteError, ThrottledError) as e:
                doubt = e
                owner = self._settle(offset, deadline, doubt)
            except StoreError as e:
                if doubt is not None:  # an earlier try may still land
                    raise self._unknown(offset, doubt) from e
                if isinstance(e, StoreUnreachableError):  # no connection was made, so nothing was sent
                    attempt += 1
                    if attempt >= _CONNECTS:
                        raise
                    self._pause(attempt)
                    continue
                doubt, owner = e, self._landed_though(offset, entry_id, e, deadline)
            if owner is not None:
                return doubt, owner, owner.date_ms
            attempt += 1
            self._pause(attempt)

    def _settle(self, offset: int, deadline: float, cause: StoreError) -> Landed | None:
        """Who owns the offset after an ambiguous append; None if it has no owner yet. A process that slept reads it once."""
        attempt = 0
        while True:
            with suppress(StoreError):
                owner = self._owner(offset)
                if owner is not None or self._runtime.clock.monotonic() <= deadline:
                    return owner
            if self._runtime.clock.monotonic() > deadline:
                raise self._unknown(offset, cause) from cause
            attempt += 1
            self._pause(attempt)

    def _landed_though(self, offset: int, entry_id: str, refusal: StoreError, deadline: float) -> Landed:
        """This writer's entry, where it landed in spite of a refusal, which is raised where it did not."""
        try:
            owner = self._owner(offset)
        except StoreError as e:
            if isinstance(refusal, AccessDeniedError) and isinstance(e, AccessDeniedError):
                raise refusal from e  # credentials that may not even read have written nothing
            raise self._unknown(offset, refusal) from e
        if owner is None and self._runtime.clock.monotonic() > deadline:
            raise self._unknown(offset, refusal)  # a process that slept: it may have landed, and been truncated
        if owner is None or owner.id != entry_id:
            raise refusal
        return owner

    def _owner(self, offset: int) -> Landed | None:
        return if_there(self.get, offset)

    def _pause(self, attempt: int) -> None:
        self._runtime.clock.sleep(self._runtime.jitter(min(5.0, _BACKOFF_S * 2**attempt)))

    def _unknown(self, offset: int, cause: Exception) -> AppendOutcomeUnknownError:
        return outcome_unknown(self.entry_key(offset), str(cause))

    # -- checkpoints and truncation -----------------------------------------------------------------------------------

    def write_checkpoint(self, offset: int, state: bytes, time_ms: int) -> tuple[int, bool]:
        """Keep the state after `offset`; returns its weight, and whether it is there for certain.

        Another process may have kept it before: the state is the same, since `apply` is deterministic.
        """
        key = self.checkpoint_key(offset)
        body = encode_entry(key, Entry("", time_ms, state), CHECKPOINT_LIMIT)
        try:
            self._store.put_if_absent(key, body)
        except PreconditionFailedError:
            pass
        except AmbiguousWriteError:
            return len(body), False
        return len(body), True

    def newest_checkpoint(self) -> tuple[int, int] | None:
        """The offset and the weight of the newest checkpoint, of any writer."""
        listing = self._store.list(f"{self.folder}checkpoint/")
        kept = Folder.of(listing, self.folder).checkpoints
        if not kept:
            return None
        return kept[-1], self._store.head(self.checkpoint_key(kept[-1])).size

    def truncate(self, folder: Folder | None = None, as_of: Collection[int] = ()) -> int:
        """Delete what may go of what `folder` shows, by default of what is there now; returns how many entries.

        Args:
            as_of: a replay as of each of these offsets stays possible.
        """
        folder = folder if folder is not None else self.list_folder()
        old = folder.ripe(self.min_age_ms, min(as_of, default=None))
        if old and self.boundary.lift(old[-1] + 1) < folder.date_ms - CLOCKS_DIFFER_MS:
            return 0  # the listing's clock, by which they were old, was ahead
        spent = folder.spent(KEPT_CHECKPOINTS, as_of)
        keys = [self.entry_key(o) for o in old] + [self.checkpoint_key(o) for o in spent]
        for at in range(0, len(keys), PAGE_SIZE):
            failures = self._store.delete(keys[at : at + PAGE_SIZE])
            if failures:
                raise StoreError(f"{failures[0].key} could not be deleted: {failures[0].why}")
        for o in old:
            del folder.entries[o]
        folder.checkpoints[:] = [c for c in folder.checkpoints if c not in spent]
        return len(old)


def outcome_unknown(what: str, why: str) -> AppendOutcomeUnknownError:
    """The error for an append of which it could not be learned whether it landed."""
    return AppendOutcomeUnknownError(
        f"whether {what} was written is not known ({why}); "
        "run the command again with the same --producer, which repeats nothing"
    )
