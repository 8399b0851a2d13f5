"""Which `gc` runs are under way: markers in the bucket, for people to know.

They are no lock and nothing waits for them: two runs at once are safe, since each of their steps is. So a marker that
cannot be written, read or removed is no reason to stop, and one that a killed run left behind is removed when it is a day
old by the store's clock. A run writes its own marker before it looks for others, so of two at once at least one sees the
other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec

from l0gc.errors import ObjectNotFoundError, StoreError
from l0gc.keys import GC_UNDER_WAY
from l0gc.storage.objectstore import ObjectStore

STALE_MS: Final = 24 * 3_600_000
_LATEST_MS: Final = 253_402_300_799_999
"""The end of the year 9999: what is later cannot be printed as a date."""


class UnderWay(msgspec.Struct, frozen=True):
    """A run, who started it, and when (the store's clock, milliseconds since 1970)."""

    run_id: str
    by: str
    since_ms: Annotated[int, msgspec.Meta(ge=0, le=_LATEST_MS)]


_MARKER: Final = msgspec.json.Decoder(UnderWay)


@contextmanager
def announced(store: ObjectStore, me: UnderWay, *, quietly: bool = False) -> Iterator[list[UnderWay]]:
    """Leave a marker while the block runs; yields the other runs that are under way, the oldest first.

    Args:
        quietly: leave no marker, as a dry run does.
    """
    mine = f"{GC_UNDER_WAY}{me.run_id}.json"
    try:
        if not quietly:
            with suppress(StoreError):
                store.put(mine, msgspec.json.encode(me))
        yield _others(store, mine, quietly=quietly)
    finally:
        if not quietly:
            with suppress(StoreError):
                store.delete([mine])


def _others(store: ObjectStore, mine: str, *, quietly: bool) -> list[UnderWay]:
    found: list[UnderWay] = []
    with suppress(StoreError):
        listing = store.list(GC_UNDER_WAY)
        stale = [k for k, modified in listing.modified_ms.items() if listing.date_ms - modified > STALE_MS]
        for key in listing.modified_ms.keys() - {mine} - set(stale):
            # It has ended since, or is foreign.
            with suppress(ObjectNotFoundError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                found.append(_MARKER.decode(store.get(key).body))
        if stale and not quietly:
            store.delete(stale)
    return sorted(found, key=lambda u: (u.since_ms, u.run_id))


def describe(run: UnderWay) -> str:
    """What is said about another run."""
    since = datetime.fromtimestamp(run.since_ms / 1000, UTC)
    return (
        f"another gc run ({run.run_id} by {run.by}, since {since:%Y-%m-%d %H:%M}Z) is under way; both are safe, and one "
        "would do"
    )
