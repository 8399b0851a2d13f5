"""The pause: a flag in the bucket that every sweep obeys, wherever it runs.

In doubt nothing is deleted: a flag that cannot be read is a pause. A sweep looks before it begins, and again before each
segment: once a pause is set, no other segment is put on record, and only what is on record is deleted.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import msgspec

from l0gc.errors import ObjectNotFoundError, PausedError, PreconditionFailedError, StoreError
from l0gc.keys import PAUSED
from l0gc.storage.objectstore import ObjectStore


class Pause(msgspec.Struct, frozen=True):
    """Who paused sweeps, why, and since when (the store's clock, milliseconds since 1970)."""

    why: str
    by: str
    since_ms: int


_PAUSE: Final = msgspec.json.Decoder(Pause)


def read_pause(store: ObjectStore) -> Pause | None:
    """The pause that is set, or None; raises `StoreError` where nobody can tell, and the sweep does not go on."""
    try:
        body = store.get(PAUSED).body
    except ObjectNotFoundError:
        return None
    try:
        return _PAUSE.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return Pause("(the flag cannot be read)", "unknown", 0)


def set_pause(store: ObjectStore, why: str, by: str) -> tuple[Pause, bool]:
    """Pause sweeps; returns the pause, and whether it is a new one: who was first keeps it."""
    pause = Pause(why, by, store.now_ms())
    try:
        store.put_if_absent(PAUSED, msgspec.json.encode(pause))
    except PreconditionFailedError:
        return read_pause(store) or pause, False
    return pause, True


def clear_pause(store: ObjectStore) -> Pause | None:
    """Let sweeps go on; returns the pause that was set, None if there was none.

    Raises:
        StoreError: the store did not remove the flag, and the pause goes on.
    """
    pause = read_pause(store)
    if pause is not None:
        for f in store.delete([PAUSED]):
            raise StoreError(
                f"sweeps are still paused: {PAUSED} could not be removed ({f.code}); check the credentials' permissions"
            )
    return pause


def refusal(described: str) -> PausedError:
    """What a sweep ends with, or does not begin with, while the pause `described` is set."""
    return PausedError(f"sweeps are paused: {described}; l0gc resume lets them go on")


def describe(pause: Pause) -> str:
    """`disk audit (ann@ops1, since 2026-01-31 23:59Z)`."""
    since = datetime.fromtimestamp(pause.since_ms / 1000, UTC)
    return f"{pause.why} ({pause.by}, since {since:%Y-%m-%d %H:%M}Z)"
