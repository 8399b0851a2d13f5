"""Report the progress of work: to the log, as messages with machine-readable fields, and to a progress callback."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sized
from typing import Any, Final, Protocol, runtime_checkable

NOTE: Final = 25
"""The level of messages that are always shown but are not errors: between INFO and WARNING."""

logging.getLogger("l0gc").addHandler(
    logging.NullHandler()
)  # a program that uses the library decides where the log goes


def event(name: str, **fields: Any) -> dict[str, Any]:
    """Return the `extra` of a logging call: the event's name and its numbers. They must not contain secrets."""
    return {"event": name, "fields": fields}


def scalars(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain values of a result, and the lengths of its lists."""
    plain = {k: len(v) if isinstance(v, Sized) and not isinstance(v, str | dict) else v for k, v in data.items()}
    return {k: v for k, v in plain.items() if v is None or isinstance(v, bool | int | float | str)}


@runtime_checkable
class Progress(Protocol):
    """Receives the current step and, if known, how much of it is done. The `fields` go to the log."""

    def __call__(self, text: str, *, done: float | None = None, total: float | None = None, **fields: Any) -> None: ...


def quiet(text: str, *, done: float | None = None, total: float | None = None, **fields: Any) -> None:
    """Ignore progress."""
