"""The boundary of a log: entries below it may be gone.

Truncation deletes entries that a checkpoint covers. A writer that slept through one could re-create a deleted offset and
believe that it owns it (hazard 7). So truncation first raises `boundary.json` by compare-and-swap, and only a boundary
that was seen to be raised allows the deletion; entries of less than a minimum age are never deleted; and a writer that
has not read the log for a third of that age, by the store's clock, asks the boundary before it trusts what it
appended or read.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Annotated, Final

import msgspec

from l0gc.decoding import decoded
from l0gc.errors import (
    AmbiguousWriteError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreError,
)
from l0gc.runtime import Runtime
from l0gc.storage.entry import seal, unseal
from l0gc.storage.objectstore import Listing, ObjectStore

RAISE_DEADLINE_S: Final = 30.0
"""How long a store that answers reads may refuse the write before the truncation gives up; it deletes nothing then."""
_TRIES: Final = 4
"""As often at least: a process that slept for long has not tried for long."""
_CHECK_SHARE: Final = 3
CLOCKS_DIFFER_MS: Final = 5_000
"""The servers of one store need not agree on the second: a `Date` that goes back by so little means nothing."""
_BACKOFF_S: Final = 0.1
_BACKOFF_MOST_S: Final = 5.0
_NAME: Final = re.compile(r"(log|checkpoint)/([0-9]{20})\Z")


class _Boundary(msgspec.Struct, frozen=True):
    boundary: Annotated[int, msgspec.Meta(ge=0)]


_DECODER: Final = msgspec.json.Decoder(_Boundary)


@dataclass(frozen=True, slots=True)
class Folder:
    """What a listing shows of a log: its entries with the times of their writing, and its checkpoints in order.

    `date_ms` is the store's clock as the listing began. However old a listing is, what it allows to truncate may go.
    Entries from `skipped` on, up to the newest checkpoint, were left out if that is not None.
    """

    entries: dict[int, int] = field(default_factory=dict)
    checkpoints: list[int] = field(default_factory=list)
    date_ms: int = 0
    skipped: int | None = None

    @classmethod
    def of(cls, listing: Listing, folder: str) -> Folder:
        """What `listing` shows of the log below `folder`."""
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
        """All checkpoints of the log below `folder`, and the entries after the newest: what a replay needs.

        A log of one page is listed whole. Of a longer one, which a pin may hold, the first page shows all checkpoints, whose
        keys come first, and the listing goes on after the newest. Whoever finds a gap after that lists all: the store lists
        in another order, or the log was truncated between the pages. The newest entry always stays, so a gap shows either.

        Args:
            whole: list all of it in any case.
        """
        if whole:
            return cls.of(store.list(folder), folder)
        first = store.list(folder, one_page=True)
        found = cls.of(first, folder)
        if not first.more:
            return found
        if not found.checkpoints or not found.entries:
            return cls.of(store.list(folder), folder)
        last, newest = max(found.entries), found.checkpoints[-1]
        skipped = last + 1 if last < newest else None
        rest = {
            k: ms
            for page in store.scan(f"{folder}log/", f"{folder}log/{max(last, newest):020}")
            for k, ms in zip(page.keys, page.modified_ms, strict=True)
        }
        entries = found.entries | cls.of(Listing(rest, 0), folder).entries
        return cls(entries, found.checkpoints, found.date_ms, skipped)

    def needed_from(self, as_of: int | None) -> int:
        """The offset of the checkpoint that a replay as of `as_of` begins with, of the newest one if that is None; what is
        older may go. -1 if a replay begins with the first entry."""
        older = (c for c in self.checkpoints if as_of is None or c <= as_of)
        return max(older, default=-1)

    def spent(self, kept: int, as_of: Collection[int]) -> list[int]:
        """The checkpoints that may go: but for the `kept` newest, those with which a replay as of none of `as_of` begins.

        With -1 among them, none may: a pin that has not taken effect may have read where the log ended before the listing.
        """
        if -1 in as_of:
            return []
        needed = {self.needed_from(offset) for offset in as_of}
        return [c for c in self.checkpoints[:-kept] if c not in needed]

    def ripe(self, min_age_ms: int, as_of: int | None = None) -> list[int]:
        """The entries that may go: those that a checkpoint covers, up to the first that is too young.

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
    """The boundary of the log below `folder`; entries younger than `min_age_ms` are never truncated."""

    def __init__(self, store: ObjectStore, folder: str, runtime: Runtime, min_age_ms: int) -> None:
        self.key = f"{folder}boundary.json"
        self.min_age_ms = min_age_ms
        self._store = store
        self._runtime = runtime

    def read(self) -> tuple[int, str | None, int]:
        """The boundary (0 if it does not exist), its ETag, and the store's clock when it was read."""
        try:
            stored = self._store.get(self.key)
        except ObjectNotFoundError as e:
            return 0, None, e.date_ms if e.date_ms is not None else 0
        body = unseal(self.key, stored.body)
        boundary = decoded(_DECODER, body, f"{self.key} does not hold a boundary").boundary
        return boundary, stored.etag, stored.date_ms

    def lift(self, boundary: int) -> int:
        """Raise it to `boundary`; it is there, or above, when this returns the store's clock. Raises `StoreError`."""
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
                pause = self._runtime.jitter(min(_BACKOFF_MOST_S, _BACKOFF_S * 2**attempt))
                self._runtime.clock.sleep(pause)  # then it is read again: the write may have landed

    def is_due(self, as_of_ms: int, date_ms: int) -> bool:
        """Whether what was free at `as_of_ms` may have been truncated by `date_ms`; a clock that jumped proves nothing."""
        return not within(as_of_ms, date_ms, self.min_age_ms // _CHECK_SHARE)

    def if_due(self, as_of_ms: int, date_ms: int) -> tuple[int, int]:
        """The boundary, and when it was read; 0 where it need not be read."""
        if not self.is_due(as_of_ms, date_ms):
            return 0, date_ms
        boundary, _, seen_ms = self.read()
        return boundary, seen_ms


def within(earlier_ms: int, later_ms: int, limit_ms: int) -> bool:
    """Whether less than `limit_ms` has passed, if the store's clocks differ by at most `CLOCKS_DIFFER_MS`."""
    return -CLOCKS_DIFFER_MS <= later_ms - earlier_ms < limit_ms
