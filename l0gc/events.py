"""What work says while it goes on: to the log, where a record has a message and machine-readable fields, and to whoever
watches its progress."""

from __future__ import annotations

from typing import Any, Protocol


def event(name: str, **fields: Any) -> dict[str, Any]:
    """What a call of a logger takes as `extra`: the event's name and its numbers. No secret goes into either."""
    return {"event": name, "fields": fields}


class Progress(Protocol):
    """Is told what is being done, and how much of it is done, where that is known; `fields` are for who reads the log."""

    def __call__(self, text: str, *, done: float | None = None, total: float | None = None, **fields: Any) -> None: ...


def quiet(text: str, *, done: float | None = None, total: float | None = None, **fields: Any) -> None:
    """Nobody watches."""
