"""Which `gc` runs are under way: markers in the bucket, for people to know.

They are no lock and nothing waits for them: two runs at once are safe, since each of their steps is. So a marker that
cannot be written, read or removed is no reason to stop. A run writes its own marker before it lists the others, so of two
at once at least one sees the other, and writes it again every minute while it lives. One that is older than a few minutes
by the store's clock was left behind by a run that was killed: it no longer counts, and the next run that sees it removes it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec

from l0gc.decoding import UNDECODABLE, json_decoder
from l0gc.errors import BucketNotFoundError, ObjectNotFoundError, StoreError
from l0gc.keys import GC_UNDER_WAY
from l0gc.storage.objectstore import ObjectStore

BEAT_S: Final = 60.0
"""A run says so often that it is alive."""
STALE_MS: Final = 5 * 60_000
"""Far above that, for a store that does not answer for a while."""
_LATEST_MS: Final = 253_402_300_799_999
"""The end of the year 9999: what is later cannot be printed as a date."""


class UnderWay(msgspec.Struct, frozen=True):
    """A run, who started it, and when (the store's clock, milliseconds since 1970)."""

    run_id: str
    by: str
    since_ms: Annotated[int, msgspec.Meta(ge=0, le=_LATEST_MS)]


_MARKER: Final = json_decoder(UnderWay)


@contextmanager
def announced(store: ObjectStore, me: UnderWay, *, quietly: bool = False) -> Iterator[list[UnderWay]]:
    """Leave a marker while the block runs; yields the other runs that are under way, the oldest first.

    Args:
        quietly: leave no marker, as a dry run does.
    """
    mine, ended = f"{GC_UNDER_WAY}{me.run_id}.json", threading.Event()

    def write() -> None:
        with suppress(StoreError, BucketNotFoundError):
            store.put(mine, msgspec.json.encode(me))

    def beat() -> None:
        while not ended.wait(BEAT_S):
            write()

    if quietly:
        yield _others(store, mine, quietly=True)
        return
    write()
    heart = threading.Thread(target=beat, name="l0gc-under-way", daemon=True)
    heart.start()
    try:
        yield _others(store, mine, quietly=False)
    finally:
        ended.set()
        heart.join()  # what it may be writing must not come after the removal
        with suppress(StoreError):
            store.delete([mine])


def is_stale(modified_ms: int, now_ms: int) -> bool:
    """Whether the run whose marker was written then is no more, by the store's clock."""
    return now_ms - modified_ms > STALE_MS


def _others(store: ObjectStore, mine: str, *, quietly: bool) -> list[UnderWay]:
    found: list[UnderWay] = []
    with suppress(StoreError):
        listing = store.list(GC_UNDER_WAY)
        stale = [k for k, modified in listing.modified_ms.items() if is_stale(modified, listing.date_ms)]
        for key in listing.modified_ms.keys() - {mine} - set(stale):
            # It has ended since, or is foreign.
            with suppress(ObjectNotFoundError, *UNDECODABLE):
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
