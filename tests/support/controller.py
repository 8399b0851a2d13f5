"""Builds a controller's log in memory, entry by entry."""

from __future__ import annotations

import msgspec

from l0gc.storage.entry import StoredEntry
from l0gc.streamlog.controller.entries import Bootstrap, ControllerEntry, ControllerMachine, CreateTopic, InitProducer
from l0gc.streamlog.controller.state import ControllerState

MACHINE = ControllerMachine()
FOUNDED = Bootstrap("c", 4, journals=4)
P0 = InitProducer("p", 7, 0, -1, "run-0")
"""The first run of a producer."""


def created(name: str, partitions: int = 1, journals: int = 1) -> CreateTopic:
    return CreateTopic(name, partitions, journals, f"id-{name}")


def landed(offset: int, entry: ControllerEntry, time_ms: int = 0) -> StoredEntry:
    return StoredEntry(offset, time_ms, msgspec.msgpack.encode(entry), time_ms)


def state_of(*entries: ControllerEntry | tuple[int, ControllerEntry]) -> ControllerState:
    """Return the state after the entries; a tuple adds a time to its entry."""
    state = MACHINE.initial()
    for offset, e in enumerate(entries):
        time_ms, entry = e if isinstance(e, tuple) else (0, e)
        MACHINE.apply(state, landed(offset, entry, time_ms))
    return state
