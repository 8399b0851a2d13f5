"""The tables of topics: when each was synced, what its pins keep, and which should have been synced long ago (pure)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from l0gc.formatting import count, moment, size, span
from l0gc.streamlog.controller.state import ControllerState, Pin, TopicTable
from l0gc.streamlog.tables import due_ms

OVERDUE_MS: Final = 86_400_000
"""A table whose newest pin should have been replaced so long ago is not synced any more."""


class TableHeld(msgspec.Struct, frozen=True):
    """A topic's table, and the L1 that its pins keep for readers of its snapshots.

    Attributes:
        pins: how many have taken effect and not ended. Without one, nothing keeps what the table names.
        pinned_ms: when the newest was created, so about when the table was synced last; -1 without one.
        expires_ms: when it ends, unless a sync follows; -1 without one.
        l1_bytes: of L1 that was dropped since the oldest was created.
        overdue: the table should have been synced long ago, or its topic was deleted.
        sentence: all of it as text.
        remedy: what ends that it is overdue; empty if it is not.
    """

    topic: str
    table: str
    catalog: str
    pins: int = 0
    pinned_ms: int = -1
    expires_ms: int = -1
    l1_bytes: int = 0
    overdue: bool = False
    sentence: str = ""
    remedy: str = ""


def tables_held(state: ControllerState, dropped_bytes: Callable[[Pin], int], now_ms: int) -> list[TableHeld]:
    """The tables, by topic; `dropped_bytes` is what a pin keeps of dropped L1."""
    return [_held(state, state.tables[topic], dropped_bytes, now_ms) for topic in sorted(state.tables)]


def _held(state: ControllerState, t: TopicTable, dropped_bytes: Callable[[Pin], int], now_ms: int) -> TableHeld:
    topic = state.topics.get(t.topic)
    deleted = topic is None or topic.revision != t.revision
    name = f"{t.table} of {'deleted ' if deleted else ''}topic {t.topic}"
    remedy = f"l0gc table {'drop' if deleted else 'sync'} {t.topic}"
    pins = sorted((p for p in state.pins_of(t).values() if p.in_effect), key=lambda p: p.revision)
    if not pins:
        none = f"{name} was not synced yet, or its pins have ended since: vacuum may delete what it names"
        return TableHeld(t.topic, t.table, t.catalog, overdue=True, sentence=none, remedy=remedy)
    newest, kept = pins[-1], dropped_bytes(pins[0])
    overdue = deleted or now_ms - due_ms(newest) > OVERDUE_MS
    sentence = (
        f"{name} was synced about {span(now_ms - newest.created_ms)} ago and can be read until {moment(newest.end_ms)}: "
        f"{count(len(pins), 'pin')} of it {'keeps' if len(pins) == 1 else 'keep'} {size(kept)} of dropped L1"
    )
    times = (newest.created_ms, newest.end_ms)
    return TableHeld(t.topic, t.table, t.catalog, len(pins), *times, kept, overdue, sentence, remedy if overdue else "")
