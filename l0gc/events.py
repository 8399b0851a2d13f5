"""The log of the library: each module has its own logger; a record has a message and machine-readable fields."""

from __future__ import annotations

from typing import Any


def event(name: str, **fields: Any) -> dict[str, Any]:
    """What a call of a logger takes as `extra`: the event's name and its numbers. No secret goes into either."""
    return {"event": name, "fields": fields}
