"""The shared log: small entries in one folder. The writer that creates the next offset's key appends the entry.

The log is safe without a server, for these reasons:
- An append is a conditional create, so an offset has one owner. A writer whose offset is taken gets 412, applies the
  owner's entry, and decides again, which fences every stale writer.
- An append whose reply was lost is settled by reading the offset back and comparing the entry's id (hazard 8). It is
  repeated only at the same offset, never at a different one while its outcome is unknown. A 412 alone does not prove
  that another writer owns the entry, since a proxy may have sent the request twice. A refusal is trusted only after the
  offset was read, since a proxy may have sent the request again and returned the second answer.
- Truncation deletes entries that a checkpoint covers. It first raises a boundary, so that a writer that slept does not
  trust an entry that it creates again below it (`Boundary`, hazard 7).
- Every object has a checksum over its content and its key (`entry.py`); a mismatch stops the log.

Layout: `log/{offset:020}`, `checkpoint/{offset:020}` (the state after that offset), `boundary.json` (entries below it may
be gone).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from contextlib import suppress
from typing import Annotated, Final

import msgspec

from l0gc.decoding import decoded
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
    StoreTimeoutError,
    StoreUnreachableError,
    ThrottledError,
)
from l0gc.events import event
from l0gc.limits import CHECKPOINT_LIMIT
from l0gc.runtime import Runtime
from l0gc.storage.entry import (
    WRITER,
    Entry,
    StoredEntry,
    decode_checkpoint,
    decode_entry,
    encode_checkpoint,
    encode_entry,
    head_length,
    seal,
    unseal,
)
from l0gc.storage.objectstore import PAGE_SIZE, Listing, ObjectStore, StoredObject, ask_of_one, if_there, read_again
from l0gc.storage.parallel import Parallel
from l0gc.storage.store_time import StoreTime

_log: Final = logging.getLogger(__name__)

TRUNCATE_MIN_AGE_MS: Final = 15 * 60_000
"""The least age of a truncated entry. It bounds how long a writer may work without reading the boundary."""
APPEND_DEADLINE_S: Final = 30.0
"""How long an ambiguous append may take to resolve before its outcome is reported as unknown; far below
`TRUNCATE_MIN_AGE_MS`.
"""
KEPT_CHECKPOINTS: Final = 2
"""How many checkpoints are kept: the newest, and the previous one for readers that have just listed it."""
READ_AT_ONCE: Final = 256 << 10
"""How much of a checkpoint is read at first if only its first part is needed. A smaller checkpoint is thus read whole.
"""
_REPLAYS: Final = 8
_CONNECTS: Final = 3
_WINDOW: Final = 16
"""The most entries of a tail that are read at once. A tail of unknown length is read in windows of 1, 2, 4, 8 and 16
entries.
"""
_BACKOFF_S: Final = 0.1
RAISE_DEADLINE_S: Final = 30.0
"""How long a store may refuse to raise the boundary before the truncation gives up without deleting."""
_TRIES: Final = 4
"""The least number of attempts, since a suspended process does not try while its time passes."""
_CHECK_SHARE: Final = 3
CLOCKS_DIFFER_MS: Final = 5_000
"""How far the clocks of one store's servers may differ. A `Date` that goes back by less has no meaning."""
_BACKOFF_MOST_S: Final = 5.0
_NAME: Final = re.compile(r"(log|checkpoint)/([0-9]{20})\Z")


class _Boundary(msgspec.Struct, frozen=True):
    boundary: Annotated[int, msgspec.Meta(ge=0)]


_DECODER: Final = msgspec.json.Decoder(_Boundary)


class Folder(msgspec.Struct, frozen=True):
    """The listing of a log: its entries with their write times, and its checkpoints in order.

    `date_ms` is the store's time when the listing began. An old listing stays valid: entries that it allows to truncate
    may still be deleted. If `skipped` is not None, the entries from that offset up to the newest checkpoint were not
    listed.
    """

    entries: dict[int, int] = msgspec.field(default_factory=dict)
    checkpoints: list[int] = msgspec.field(default_factory=list)
    date_ms: int = 0
    skipped: int | None = None

    @classmethod
    def of(cls, listing: Listing, folder: str) -> Folder:
        """Return the part of `listing` that belongs to the log below `folder`."""
        entries: dict[int, int] = {}
        checkpoints: list[int] = []
        for key, modified in listing.modified_ms.items():
            if (m := _NAME.fullmatch(key.removeprefix(folder))) is None:
                continue
            if m[1] == "log":
                entries[int(m[2])] = modified
            else:
                checkpoints.append(int(m[2]))
        return cls(entries, sorted(checkpoints), listing.date_ms)

    @classmethod
    def for_replay(cls, store: ObjectStore, folder: str, *, whole: bool = False) -> Folder:
        """List what a replay of the log below `folder` needs: all checkpoints, and the entries after the newest one.

        A log of one page is listed in full. A longer log may be held by a pin. Its first page shows all checkpoints,
        whose keys sort first, and the listing then continues after the newest checkpoint. If there is a gap after it,
        everything is listed: either the store lists in a different order, or the log was truncated between the pages.
        The newest entry is never truncated, so both cases leave a gap.

        Args:
            whole: whether to list everything in any case.
        """
        if whole:
            return cls.of(store.list(folder), folder)
        first = store.list(folder, one_page=True)
        listed = cls.of(first, folder)
        if not first.more:
            return listed
        if not listed.checkpoints or not listed.entries:
            return cls.of(store.list(folder), folder)
        last, newest = max(listed.entries), listed.checkpoints[-1]
        skipped = last + 1 if last < newest else None
        rest = {
            k: ms
            for page in store.scan(f"{folder}log/", f"{folder}log/{max(last, newest):020}")
            for k, ms in zip(page.keys, page.modified_ms, strict=True)
        }
        entries = listed.entries | cls.of(Listing(rest, 0), folder).entries
        return cls(entries, listed.checkpoints, listed.date_ms, skipped)

    def needed_from(self, as_of: int | None) -> int:
        """Return the offset of the checkpoint from which a replay as of `as_of` starts; older ones may be deleted.

        None means the newest state. The result is -1 if a replay starts from the first entry.
        """
        older = (c for c in self.checkpoints if as_of is None or c <= as_of)
        return max(older, default=-1)

    def spent(self, kept: int, as_of: Collection[int]) -> list[int]:
        """Return the checkpoints that may be deleted: all except the `kept` newest and those from which replays as of
        `as_of` start.

        If `as_of` contains -1, none may be deleted, since a pin that has not taken effect may have read the log's end
        before the listing.
        """
        if -1 in as_of:
            return []
        needed = {self.needed_from(offset) for offset in as_of}
        return [c for c in self.checkpoints[:-kept] if c not in needed]

    def ripe(self, min_age_ms: int, as_of: int | None = None) -> list[int]:
        """Return the entries that may be deleted: those that a checkpoint covers, up to the first that is too young.

        Args:
            as_of: see `needed_from`.
        """
        boundary = self.needed_from(as_of)
        if self.skipped is not None:
            boundary = min(boundary, self.skipped)
        for offset, modified in self.entries.items():
            if offset < boundary and self.date_ms - modified < min_age_ms:
                boundary = offset
        return sorted(o for o in self.entries if o < boundary)


class Boundary:
    """The boundary of the log in `folder`: entries below the boundary may be gone.

    Truncation deletes entries that a checkpoint covers. A writer that was suspended during a truncation could re-create a
    deleted offset and believe that it owns it (hazard 7). Three rules prevent this. Truncation first raises
    `boundary.json` by compare-and-swap, and deletes only after it has read the raised boundary. Entries younger than
    `min_age_ms` are never deleted. A writer that has not read the log for a third of that age, by the store's clock,
    reads the boundary before it trusts what it appended or read.
    """

    def __init__(self, store: ObjectStore, folder: str, runtime: Runtime, min_age_ms: int) -> None:
        self.key = f"{folder}boundary.json"
        self.min_age_ms = min_age_ms
        self._store = store
        self._runtime = runtime

    def read(self) -> tuple[int, str | None, int]:
        """Return the boundary (0 if it does not exist), its ETag, and the store's time when it was read.

        Raises the errors of `ask_of_one`.
        """
        try:
            stored = ask_of_one(self._store, self._store.get, self.key)
        except ObjectNotFoundError as e:
            return 0, None, e.date_ms if e.date_ms is not None else 0
        body = unseal(self.key, stored.body)
        boundary = decoded(_DECODER, body, f"{self.key} does not hold a boundary").boundary
        return boundary, stored.etag, stored.date_ms

    def lift(self, boundary: int) -> int:
        """Raise the boundary to at least `boundary`, and return the store's time. Raises `StoreError` if that fails."""
        body = seal(self.key, msgspec.json.encode(_Boundary(boundary)))
        deadline = self._runtime.clock.monotonic() + RAISE_DEADLINE_S
        attempt = 0
        while True:
            current, etag, seen_ms = self.read()
            if current >= boundary:
                return seen_ms
            try:
                if etag is None:
                    return self._store.put_if_absent(self.key, body).date_ms
                return self._store.put_if_match(self.key, body, etag).date_ms
            except (PreconditionFailedError, AmbiguousWriteError) as e:
                attempt += 1
                if attempt >= _TRIES and self._runtime.clock.monotonic() >= deadline:
                    raise StoreError(
                        f"{self.key} could not be raised to {boundary} within {RAISE_DEADLINE_S:.0f} s ({e}); nothing "
                        "of the log was truncated: look at the store's errors, and run l0gc housekeep again"
                    ) from e
                _pause(self._runtime, attempt)  # the offset is then read again, since the write may have landed

    def is_due(self, as_of_ms: int, date_ms: int) -> bool:
        """Return whether an offset that was free at `as_of_ms` may have been filled and truncated by `date_ms`; a clock
        that jumped back proves nothing.
        """
        return not within(as_of_ms, date_ms, self.min_age_ms // _CHECK_SHARE)

    def if_due(self, as_of_ms: int, date_ms: int) -> tuple[int, int]:
        """Return the boundary and when it was read; the boundary is 0 if it need not be read."""
        if not self.is_due(as_of_ms, date_ms):
            return 0, date_ms
        boundary, _, seen_ms = self.read()
        return boundary, seen_ms


def within(earlier_ms: int, later_ms: int, limit_ms: int) -> bool:
    """Return whether less than `limit_ms` has passed, if the store's clocks differ by at most `CLOCKS_DIFFER_MS`."""
    return -CLOCKS_DIFFER_MS <= later_ms - earlier_ms < limit_ms


class OffsetTakenError(LogConflictError):
    """Another writer's entry, `landed`, owns the offset. A replica whose state ends before that entry may apply it."""

    def __init__(self, message: str, landed: StoredEntry) -> None:
        super().__init__(message)
        self.landed = landed


class Replay(msgspec.Struct, frozen=True):
    """The newest checkpoint, the entries after it, and the listing that showed both.

    The offset after the last entry was free when the listing began.
    """

    checkpoint: StoredEntry | None
    entries: list[StoredEntry]
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
        """Open the log. All logs of a process share one `store_time`."""
        self.folder = folder
        self.store_time = store_time or StoreTime(store)
        self.min_age_ms = truncate_min_age_ms
        self.boundary = Boundary(store, folder, runtime, truncate_min_age_ms)
        self.store = store
        self._runtime = runtime
        self._parallel: Parallel = parallel or Parallel()
        self.writer = runtime.new_id()[:WRITER]
        self._checked = -1  # the newest checkpoint of which all was read

    def entry_key(self, offset: int) -> str:
        return f"{self.folder}log/{offset:020}"

    def checkpoint_key(self, offset: int) -> str:
        return f"{self.folder}checkpoint/{offset:020}"

    # -- reading ------------------------------------------------------------------------------------------------------

    def replay(self, as_of: int | None = None, *, whole: bool = True) -> Replay:
        """Return the newest checkpoint and every entry after it, from which a state is built.

        Args:
            as_of: replay the state after this entry, which a pin keeps readable, in place of the newest state.
            whole: read the whole checkpoint. If False, the second part of a large one is not read.

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
                kept = None if start < 0 else self.get_checkpoint(start, whole=whole)
                entries = self._parallel.map(self.get, offsets)
            except ObjectNotFoundError as e:  # truncated during the replay, so there is a newer checkpoint
                gap = str(e)
                continue
            # If that took long, a writer that slept may have created truncated entries again.
            slept = (self._runtime.clock.monotonic() - began) * 1000 >= self.min_age_ms / 3
            read_ms = max((e.date_ms for e in entries), default=folder.date_ms)
            if self.boundary.if_due(0 if slept else folder.date_ms, read_ms)[0] > start + 1:
                gap = f"it was truncated past {self.entry_key(start + 1)} while it was read"
                continue
            self.store_time.saw(folder.date_ms, *(e.date_ms for e in (kept, *entries) if e is not None))
            return Replay(kept, entries, folder)
        raise CorruptObjectError(f"the log cannot be replayed: {gap}; restore it from a backup or a version")

    def tail(
        self, after: int, as_of_ms: int, *, expected: int = 1, hasty: bool = False
    ) -> tuple[list[StoredEntry], int]:
        """Return the entries after offset `after`, and when the offset after them was free. Read in windows that grow.

        Args:
            after: the last offset that the caller has.
            as_of_ms: the store's time at which the caller last knew that offset to be the end of the log.
            expected: the probable number of entries, which sizes the first window.
            hasty: stop after the expected entries. The offset after them then counts as free at the time when the
                caller last knew so.

        Raises:
            LogOvertakenError: the log may have been truncated past `after`; replay it.
        """
        entries: list[StoredEntry] = []
        window = max(1, min(_WINDOW, expected))
        while True:
            first = after + 1 + len(entries)
            for answer in self._parallel.map(self._get_if_there, range(first, first + window)):
                if isinstance(answer, StoredEntry):
                    entries.append(answer)
                    continue
                # The entries found after this offset were written after it was seen to be free.
                if self.boundary.if_due(as_of_ms, answer)[0] > after + 1:
                    raise LogOvertakenError(f"the log {self.folder} was truncated past offset {after}")
                self.store_time.saw(answer)
                return entries, answer
            if hasty and not self.boundary.is_due(as_of_ms, entries[-1].date_ms):
                return entries, as_of_ms
            window = min(_WINDOW, 2 * window)

    def _get_if_there(self, offset: int) -> StoredEntry | int:
        """Return the entry at `offset`, or the store's time at which it did not exist."""
        try:
            return self.get(offset)
        except ObjectNotFoundError as e:
            return e.date_ms if e.date_ms is not None else self.store.now_ms()

    def get(self, offset: int) -> StoredEntry:
        """Return the entry at `offset`. Raises `ObjectNotFoundError` if it does not exist or was truncated, and the
        errors of `ask_of_one`.
        """
        key = self.entry_key(offset)
        return read_again(lambda: _landed(key, offset, ask_of_one(self.store, self.store.get, key)))

    def is_re_created(self, offset: int) -> bool:
        """Return whether the entry at `offset`, which a checkpoint covers, is not part of the log because it was
        truncated and a stale writer created its offset again (hazard 7).

        The boundary alone does not prove that: the log may have been set back to an older copy without its boundary,
        and have grown past the offset again (hazard 38). But then both neighbours of the entry exist. A truncation also
        deletes the entry before, so at least one of the two is gone. Raises the errors of reading the boundary and the
        two entries.
        """
        if read_again(self.boundary.read)[0] <= offset:
            return False
        return any(if_there(self.get, beside) is None for beside in (offset - 1, offset + 1) if beside >= 0)

    def get_checkpoint(self, offset: int, *, whole: bool = True) -> StoredEntry:
        """Return the state after `offset`. If it is large and `whole` is False, it lacks its second part. Raises the
        errors of `get`.
        """
        key = self.checkpoint_key(offset)

        def read() -> StoredEntry:
            if whole:
                stored = ask_of_one(self.store, self.store.get, key)
            else:
                stored = ask_of_one(self.store, self.store.get_start, key, READ_AT_ONCE)
                if (needed := head_length(stored.body)) > len(stored.body) >= READ_AT_ONCE:
                    stored = ask_of_one(self.store, self.store.get_start, key, min(needed, CHECKPOINT_LIMIT))
            checkpoint, size = decode_checkpoint(key, stored.body), len(stored.body)
            if size == checkpoint.size:
                self._checked = max(self._checked, offset)
            elif whole:
                raise CorruptObjectError(
                    f"{key} was cut to {size} of {checkpoint.size} bytes; restore it from a backup"
                )
            return StoredEntry(
                offset, checkpoint.time_ms, checkpoint.state, stored.date_ms, checkpoint.size, checkpoint.id
            )

        return read_again(read)

    def list_folder(self, *, whole: bool = True) -> Folder:
        """List the log's folder, or the part that a replay needs."""
        return Folder.for_replay(self.store, self.folder, whole=whole)

    # -- appending ----------------------------------------------------------------------------------------------------

    def append(self, offset: int, payload: bytes, *, time_ms: int, as_of_ms: int) -> StoredEntry:
        """Create `offset` with `payload`. When this returns, the entry is permanently in the log.

        Args:
            offset: one after the last entry on which the decision was based.
            time_ms: the entry's time.
            as_of_ms: the store's time at which the caller last knew `offset` to be free.

        Raises:
            OffsetTakenError: another writer's entry owns the offset; the error holds it.
            LogConflictError: another entry owns the offset, but the log has to be read before that entry can be
                trusted.
            LogOvertakenError: the log was truncated past the offset; the entry is not part of it.
            AppendOutcomeUnknownError: it is unknown whether the entry landed.
            ProtocolError: the entry is too large.
            StoreError: the store refused, and the entry did not land. `AccessDeniedError` is a case of this.
        """
        key = self.entry_key(offset)
        entry_id = f"{self.writer}-{self._runtime.new_id()}"
        body = encode_entry(key, Entry(entry_id, time_ms, payload))
        began = self._runtime.clock.monotonic()
        doubt, owner, date = self._create(offset, entry_id, body, began + APPEND_DEADLINE_S)
        # If the process slept this long, its entry may have landed and been truncated since.
        slept = self._runtime.clock.monotonic() - began >= self.min_age_ms / 1000
        if owner is not None and owner.id != entry_id:
            taken = f"{key} belongs to another writer"
            if slept:
                raise self._unknown(offset, LogConflictError(taken))
            if self.boundary.is_due(as_of_ms, date):
                raise LogConflictError(taken)
            raise OffsetTakenError(taken, owner)
        try:
            # A sleep counts whatever the dates are, since the date of `as_of_ms` may have been ahead by as much.
            boundary, seen_ms = self.boundary.if_due(0 if slept else as_of_ms, date)
        except (StoreError, CorruptObjectError) as e:
            raise self._unknown(offset, e) from e
        if boundary > offset:
            # The dates may differ by less than the elapsed time if the first one was ahead.
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
        # For an entry that was read back, only the time of its writing shows when the offset after it was free.
        date = date if owner is None else min(date, owner.created_ms)
        return StoredEntry(offset, time_ms, payload, date, len(body), entry_id)

    def _create(
        self, offset: int, entry_id: str, body: bytes, deadline: float
    ) -> tuple[StoreError | None, StoredEntry | None, int]:
        """Create the entry unless the offset has an owner.

        Returns the last ambiguous error, the owner's entry as read back (None if the store confirmed this writer's),
        and the store's time.
        """
        doubt: StoreError | None = None
        attempt = 0
        while True:
            try:
                return doubt, None, self.store.put_if_absent(self.entry_key(offset), body).date_ms
            except PreconditionFailedError as e:
                try:
                    owner = self._owner(offset)
                except StoreError as unread:
                    doubt = doubt or unread
                    owner = self._settle(offset, deadline, doubt)
                if owner is None:  # the entry existed and is gone; it may have been this writer's
                    raise self._unknown(offset, doubt or e) from e
            except (AmbiguousWriteError, StoreTimeoutError, ThrottledError) as e:
                doubt = e
                owner = self._settle(offset, deadline, doubt)
            except StoreError as e:
                if doubt is not None:  # an earlier try may still land
                    raise self._unknown(offset, doubt) from e
                if isinstance(e, StoreUnreachableError):  # no connection was made, so nothing was sent
                    attempt += 1
                    if attempt >= _CONNECTS:
                        raise
                    _pause(self._runtime, attempt)
                    continue
                doubt, owner = e, self._landed_though(offset, entry_id, e, deadline)
            if owner is not None:
                return doubt, owner, owner.date_ms
            attempt += 1
            _pause(self._runtime, attempt)

    def _settle(self, offset: int, deadline: float, cause: StoreError) -> StoredEntry | None:
        """Return the entry that owns the offset after an ambiguous append; None if the offset is still free. Read at
        least once, even past the deadline.
        """
        attempt = 0
        while True:
            with suppress(StoreError):
                owner = self._owner(offset)
                if owner is not None or self._runtime.clock.monotonic() <= deadline:
                    return owner
            if self._runtime.clock.monotonic() > deadline:
                raise self._unknown(offset, cause) from cause
            attempt += 1
            _pause(self._runtime, attempt)

    def _landed_though(self, offset: int, entry_id: str, refusal: StoreError, deadline: float) -> StoredEntry:
        """Return this writer's entry if it landed in spite of a refusal; otherwise raise the refusal."""
        try:
            owner = self._owner(offset)
        except StoreError as e:
            if isinstance(refusal, AccessDeniedError) and isinstance(e, AccessDeniedError):
                raise refusal from e  # credentials without read access have written nothing
            raise self._unknown(offset, refusal) from e
        if owner is None and self._runtime.clock.monotonic() > deadline:
            raise self._unknown(offset, refusal)  # the process slept, so the entry may have landed and been truncated
        if owner is None or owner.id != entry_id:
            raise refusal
        return owner

    def _owner(self, offset: int) -> StoredEntry | None:
        """Return the entry at the offset, which may be this writer's; None if the offset is free.

        Raises:
            StoreError: repeated reads did not return a valid entry (hazard 34).
        """
        key = self.entry_key(offset)

        def read() -> StoredEntry | None:
            stored = if_there(self.store.get, key)
            return None if stored is None else _landed(key, offset, stored)

        try:
            return read_again(read)
        except CorruptObjectError as e:
            raise StoreError(str(e)) from e

    def _unknown(self, offset: int, cause: Exception) -> AppendOutcomeUnknownError:
        return outcome_unknown(self.entry_key(offset), str(cause))

    # -- checkpoints and truncation -----------------------------------------------------------------------------------

    def write_checkpoint(self, offset: int, state: bytes, time_ms: int, entry_id: str = "") -> tuple[int, bool]:
        """Store the state after the entry `entry_id` at `offset`. Return the checkpoint's weight, and whether it was
        certainly stored.

        Another process may have stored it before; the state is the same, since `apply` is deterministic.
        """
        key = self.checkpoint_key(offset)
        body = encode_checkpoint(key, entry_id, time_ms, state)
        try:
            self.store.put_if_absent(key, body)
        except PreconditionFailedError:
            pass
        except AmbiguousWriteError:
            return len(body), False
        return len(body), True

    def newest_checkpoint(self) -> tuple[int, int] | None:
        """Return the offset and the weight of the newest checkpoint by any writer."""
        listing = self.store.list(f"{self.folder}checkpoint/")
        kept = Folder.of(listing, self.folder).checkpoints
        if not kept:
            return None
        return kept[-1], self.store.head(self.checkpoint_key(kept[-1])).size

    def truncate(self, folder: Folder | None = None, as_of: Collection[int] = ()) -> int:
        """Delete the entries and checkpoints that `folder`, by default a new listing, allows to delete. Return the
        number of entries.

        Nothing is deleted unless the newest checkpoint was read, since it becomes the only copy of the state before it
        (hazard 34).

        Args:
            as_of: the offsets as of which a replay stays possible.
        """
        folder = folder if folder is not None else self.list_folder()
        old = folder.ripe(self.min_age_ms, min(as_of, default=None))
        spent = folder.spent(KEPT_CHECKPOINTS, as_of)
        newest = folder.needed_from(None)
        if (old or spent) and newest > self._checked:
            try:
                self.get_checkpoint(newest)
            except ObjectNotFoundError:
                return 0  # another process has written a newer one and deleted this one
        if old and self.boundary.lift(old[-1] + 1) < folder.date_ms - CLOCKS_DIFFER_MS:
            return 0  # the listing's date, by which the entries were old enough, was ahead
        keys = [self.entry_key(o) for o in old] + [self.checkpoint_key(o) for o in spent]
        for at in range(0, len(keys), PAGE_SIZE):
            failures = self.store.delete(keys[at : at + PAGE_SIZE])
            if failures:
                raise StoreError(f"{failures[0].key} could not be deleted: {failures[0].why}")
        for o in old:
            del folder.entries[o]
        folder.checkpoints[:] = [c for c in folder.checkpoints if c not in spent]
        return len(old)


def _landed(key: str, offset: int, stored: StoredObject) -> StoredEntry:
    e = decode_entry(key, stored.body)
    return StoredEntry(offset, e.time_ms, e.payload, stored.date_ms, len(stored.body), e.id, stored.modified_ms)


def outcome_unknown(what: str, why: str) -> AppendOutcomeUnknownError:
    """Return the error for an append whose outcome could not be determined."""
    return AppendOutcomeUnknownError(
        f"it is unknown whether {what} was written ({why}); "
        "run the command again with the same --producer, which repeats nothing"
    )


def _pause(runtime: Runtime, attempt: int) -> None:
    runtime.clock.sleep(runtime.jitter(min(_BACKOFF_MOST_S, _BACKOFF_S * 2**attempt)))
