"""The shared log: small JSON entries in one folder, appended by whoever creates the next offset's key.

Why it is safe without a server:
- An append is a conditional create, so an offset has one owner. A writer whose offset is taken learns it (412), replays,
  and decides again; that fences every stale writer.
- An append whose reply was lost is settled by reading the offset back and comparing the entry's id (hazard 8). It is
  repeated at the same offset only, never at another one while its outcome is open.
- Truncation deletes entries that a checkpoint covers. A writer that slept through one could re-create a deleted offset
  (hazard 7), so truncation first raises `boundary.json` by compare-and-swap and deletes only entries of a minimum age, and
  whoever has not looked at the log for a third of that age, by the store's clock, asks the boundary before it trusts what
  it appended or read.
- Every object carries a checksum over its content and its key; what fails it stops the log.

Layout: `log/{offset:020}.json`, `checkpoint/{offset:020}.json` (the state after that offset), `boundary.json` (entries
below it may be gone).
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import Final

import msgspec

from l0gc.errors import (
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
from l0gc.storage.checksum import seal, unseal
from l0gc.storage.entry import decode, encode
from l0gc.storage.objectstore import ObjectStore, Stored
from l0gc.storage.parallel import Inline, Parallel

_log: Final = logging.getLogger(__name__)

TRUNCATE_MIN_AGE_MS: Final = 15 * 60_000
"""Entries younger than this are never truncated: it bounds how long a writer may go without asking the boundary."""
APPEND_DEADLINE_S: Final = 30.0
"""How long an ambiguous append is settled before its outcome is reported as unknown; far below the age above."""
_CHECK_SHARE: Final = 3
_REPLAYS: Final = 8
_CONNECTS: Final = 3
_BACKOFF_S: Final = 0.1
_NAME: Final = re.compile(r"(?:log|checkpoint)/([0-9]{20})\.json\Z")


class _Boundary(msgspec.Struct, frozen=True):
    boundary: int


# Built at import, by one thread: msgspec learns a type at its first use, and two threads doing that at once crash it.
_BOUNDARY: Final = msgspec.json.Decoder(_Boundary)


@dataclass(frozen=True, slots=True)
class Landed:
    """An entry at its offset; `date_ms` is the store's clock when it was read or written."""

    offset: int
    time_ms: int
    payload: bytes
    date_ms: int


@dataclass(frozen=True, slots=True)
class Replay:
    """The newest checkpoint (its offset and bytes), the entries behind it, and when the offset behind them was free.

    `covered` entries are still stored although the checkpoint covers them.
    """

    checkpoint: tuple[int, bytes] | None
    entries: list[Landed]
    as_of_ms: int
    covered: int


@dataclass(frozen=True, slots=True)
class _Folder:
    entries: dict[int, int]
    checkpoints: list[int]
    date_ms: int


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
    ) -> None:
        self.folder = folder
        self._store = store
        self._runtime = runtime
        self._parallel: Parallel = parallel or Inline()
        self._min_age_ms = truncate_min_age_ms

    def entry_key(self, offset: int) -> str:
        return f"{self.folder}log/{offset:020}.json"

    def checkpoint_key(self, offset: int) -> str:
        return f"{self.folder}checkpoint/{offset:020}.json"

    @property
    def boundary_key(self) -> str:
        return f"{self.folder}boundary.json"

    # -- reading ------------------------------------------------------------------------------------------------------

    def replay(self) -> Replay:
        """All that a state is built from: the newest checkpoint and every entry behind it.

        Raises:
            CorruptObjectError: an entry is missing between two others, or does not parse.
        """
        gap = ""
        for attempt in range(_REPLAYS):
            if attempt:
                self._runtime.clock.sleep(self._runtime.jitter(_BACKOFF_S * attempt))
            folder = self._list()
            checkpoint = folder.checkpoints[-1] if folder.checkpoints else None
            start = -1 if checkpoint is None else checkpoint
            offsets = sorted(o for o in folder.entries if o > start)
            if offsets != list(range(start + 1, start + 1 + len(offsets))):
                missing = next(o for i, o in enumerate(range(start + 1, offsets[-1])) if offsets[i] != o)
                gap = f"{self.entry_key(missing)} is missing, though a later entry exists"
                continue
            try:
                at = None if checkpoint is None else (checkpoint, self._get_checkpoint(checkpoint))
                entries = self._parallel.map(self.get, offsets)
            except ObjectNotFoundError as e:  # truncated while we read: there is a newer checkpoint
                gap = str(e)
                continue
            return Replay(at, entries, folder.date_ms, len(folder.entries) - len(offsets))
        raise CorruptObjectError(
            f"the log {self.folder} cannot be replayed: {gap}; restore it from a backup or a version"
        )

    def tail(self, after: int, as_of_ms: int) -> tuple[list[Landed], int]:
        """The entries behind offset `after`, by asking for one after another; and when the offset behind them was free.

        Args:
            after: the last offset that the caller holds.
            as_of_ms: when, by the store's clock, the caller last knew that to be the end of the log.

        Raises:
            LogOvertakenError: the log may have been truncated past `after`; replay it.
        """
        entries: list[Landed] = []
        while True:
            offset = after + 1 + len(entries)
            try:
                stored = self._store.get(self.entry_key(offset))
            except ObjectNotFoundError as e:
                date = e.date_ms if e.date_ms is not None else self._store.now_ms()
                if self._boundary_if_due(as_of_ms, date)[0] > after + 1:
                    raise LogOvertakenError(f"the log {self.folder} was truncated past offset {after}") from None
                return entries, date
            entries.append(self._parse(offset, stored))

    def _get_checkpoint(self, offset: int) -> bytes:
        key = self.checkpoint_key(offset)
        return unseal(key, self._store.get(key).body)

    def get(self, offset: int) -> Landed:
        """The entry at `offset`. Raises `ObjectNotFoundError`: it is not there, or no longer."""
        return self._parse(offset, self._store.get(self.entry_key(offset)))

    def _parse(self, offset: int, stored: Stored) -> Landed:
        e = decode(self.entry_key(offset), stored.body)
        return Landed(offset, e.time_ms, bytes(e.entry), stored.date_ms)

    def _list(self) -> _Folder:
        entries: dict[int, int] = {}
        checkpoints: list[int] = []
        listing = self._store.list(self.folder)
        for key, modified in listing.modified_ms.items():
            m = _NAME.fullmatch(key[len(self.folder) :])
            if m is None:
                continue
            if key.startswith("log/", len(self.folder)):
                entries[int(m[1])] = modified
            else:
                checkpoints.append(int(m[1]))
        return _Folder(entries, sorted(checkpoints), listing.date_ms)

    # -- appending ----------------------------------------------------------------------------------------------------

    def append(self, offset: int, payload: bytes, *, time_ms: int, as_of_ms: int) -> Landed:
        """Create `offset` with `payload`; when this returns, the entry is in the log for good.

        Args:
            offset: one behind the last entry that the decision was made on.
            payload: the entry, JSON.
            time_ms: the entry's time.
            as_of_ms: when, by the store's clock, the caller last knew `offset` to be free.

        Raises:
            LogConflictError: another entry owns the offset.
            LogOvertakenError: the log was truncated past the offset; the entry is not part of it.
            AppendOutcomeUnknownError: it could not be learned whether the entry landed.
            StoreError: the store refused, and the entry did not land.
        """
        entry_id = self._runtime.new_id()
        body = encode(self.entry_key(offset), entry_id, time_ms, payload)
        deadline = self._runtime.clock.monotonic() + APPEND_DEADLINE_S
        ambiguous: StoreError | None = None
        attempt = 0
        while True:
            try:
                date = self._store.put_if_absent(self.entry_key(offset), body).date_ms
                break
            except PreconditionFailedError as e:
                try:
                    found = self._owner(offset)
                except StoreError:
                    if ambiguous is None:  # nothing of this writer's was sent before, so the key is another's
                        raise LogConflictError(f"{self.entry_key(offset)} belongs to another writer") from e
                    found = self._settle(offset, deadline, ambiguous)
                if found is None:
                    if ambiguous is not None:
                        raise self._unknown(offset, ambiguous) from e
                    raise LogOvertakenError(
                        f"{self.entry_key(offset)} was truncated while it was being appended"
                    ) from e
                if found[0] != entry_id:
                    raise LogConflictError(f"{self.entry_key(offset)} belongs to another writer") from e
                date = found[1]
                break
            except (AmbiguousWriteError, ThrottledError) as e:
                ambiguous = e
            except StoreError as e:
                if ambiguous is not None:  # an earlier try may still land
                    raise self._unknown(offset, ambiguous) from e
                attempt += 1
                if not isinstance(e, StoreUnreachableError) or attempt >= _CONNECTS:
                    raise
                self._pause(attempt)  # no connection was made, so nothing was sent
                continue
            found = self._settle(offset, deadline, ambiguous)
            if found is not None:
                if found[0] != entry_id:
                    raise LogConflictError(f"{self.entry_key(offset)} belongs to another writer") from ambiguous
                date = found[1]
                break
            attempt += 1
            self._pause(attempt)
        try:
            boundary, seen_ms = self._boundary_if_due(as_of_ms, date)
        except StoreError as e:
            raise self._unknown(offset, e) from e
        if boundary > offset:
            overtaken = LogOvertakenError(f"the log {self.folder} was truncated past offset {offset}; it is replayed")
            # Either the offset was re-created behind a truncation, or the entry landed and was truncated since, inside
            # a checkpoint. Only the minimum age tells them apart.
            if ambiguous is not None or seen_ms - date >= self._min_age_ms:
                raise self._unknown(offset, overtaken) from overtaken
            raise overtaken
        if ambiguous is not None:
            told = event("append_settled", key=self.entry_key(offset), tries=attempt + 1)
            _log.info("an append whose reply was lost has landed: %s", ambiguous, extra=told)
        return Landed(offset, time_ms, payload, date)

    def _settle(self, offset: int, deadline: float, cause: StoreError) -> tuple[str, int] | None:
        """Who owns the offset after an ambiguous append; None if nobody does, yet."""
        attempt = 0
        while True:
            if self._runtime.clock.monotonic() > deadline:
                raise self._unknown(offset, cause) from cause
            try:
                return self._owner(offset)
            except StoreError:
                attempt += 1
                self._pause(attempt)

    def _owner(self, offset: int) -> tuple[str, int] | None:
        try:
            stored = self._store.get(self.entry_key(offset))
        except ObjectNotFoundError:
            return None
        return decode(self.entry_key(offset), stored.body).id, stored.date_ms

    def _pause(self, attempt: int) -> None:
        self._runtime.clock.sleep(self._runtime.jitter(min(5.0, _BACKOFF_S * 2**attempt)))

    def _unknown(self, offset: int, cause: Exception) -> AppendOutcomeUnknownError:
        return AppendOutcomeUnknownError(
            f"whether {self.entry_key(offset)} was written is not known ({cause}); "
            "run the command again with the same --producer, which repeats nothing"
        )

    # -- truncation ---------------------------------------------------------------------------------------------------

    def write_checkpoint(self, offset: int, state: bytes) -> bool:
        """Keep the state after `offset`; False if somebody had done so (the state is the same: apply is deterministic)."""
        try:
            key = self.checkpoint_key(offset)
            self._store.put_if_absent(key, seal(key, state))
        except PreconditionFailedError:
            return False
        except AmbiguousWriteError:
            return True  # there or not: truncation looks for itself before it relies on it
        return True

    def truncate(self) -> int:
        """Delete what the newest checkpoint covers and what is older than the minimum age; returns how many entries.

        The checkpoint's own entry stays, and so does the checkpoint before the newest, for readers on their way.
        """
        folder = self._list()
        if not folder.checkpoints:
            return 0
        newest = folder.checkpoints[-1]
        boundary = newest
        for offset, modified in folder.entries.items():
            if offset < boundary and folder.date_ms - modified < self._min_age_ms:
                boundary = offset
        old = sorted(o for o in folder.entries if o < boundary)
        if old:
            self._raise_boundary(boundary)
            self._delete([self.entry_key(o) for o in old])
        self._delete([self.checkpoint_key(o) for o in folder.checkpoints[:-2]])
        return len(old)

    def _delete(self, keys: list[str]) -> None:
        for at in range(0, len(keys), 1000):
            failures = self._store.delete(keys[at : at + 1000])
            if failures:
                raise StoreError(f"{failures[0].key} could not be deleted: {failures[0].code} {failures[0].message}")

    def _read_boundary(self) -> tuple[int, str | None, int]:
        """The boundary (0 if there is none), its ETag, and the store's clock when it was read."""
        try:
            stored = self._store.get(self.boundary_key)
        except ObjectNotFoundError as e:
            return 0, None, e.date_ms if e.date_ms is not None else 0
        body = unseal(self.boundary_key, stored.body)
        try:
            return _BOUNDARY.decode(body).boundary, stored.etag, stored.date_ms
        except msgspec.MsgspecError as e:
            raise CorruptObjectError(f"{self.boundary_key} does not hold a boundary: {e}") from e

    def _raise_boundary(self, boundary: int) -> None:
        body = seal(self.boundary_key, msgspec.json.encode(_Boundary(boundary)))
        while True:
            current, etag, _ = self._read_boundary()
            if current >= boundary:
                return
            try:
                if etag is None:
                    self._store.put_if_absent(self.boundary_key, body)
                else:
                    self._store.put_if_match(self.boundary_key, body, etag)
            except (PreconditionFailedError, AmbiguousWriteError):
                self._pause(1)  # read it again: only a boundary that is seen to be raised allows the deletion

    def _boundary_if_due(self, as_of_ms: int, date_ms: int) -> tuple[int, int]:
        """The boundary and when it was read, if what was free at `as_of_ms` may have been truncated by `date_ms`."""
        if (date_ms - as_of_ms) * _CHECK_SHARE < self._min_age_ms:
            return 0, date_ms
        boundary, _, seen_ms = self._read_boundary()
        return boundary, seen_ms
