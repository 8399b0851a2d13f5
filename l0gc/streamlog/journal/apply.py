"""Apply entries to a journal's state (pure).

An entry that admission or `fits` would have refused is corrupt and changes nothing.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from l0gc.epoch import is_epoch
from l0gc.errors import CorruptObjectError, L0gcError, ProtocolError, UsageError
from l0gc.storage.entry import StoredEntry
from l0gc.streamlog.controller.state import PRODUCER_EXPIRY_MS
from l0gc.streamlog.journal import producers as producer_rules
from l0gc.streamlog.journal.admission import Admission, EpochWindow
from l0gc.streamlog.journal.edits import fits, take
from l0gc.streamlog.journal.entries import (
    Advance,
    Barrier,
    Closed,
    Edit,
    FenceL1,
    Objects,
    Purged,
    SetBack,
    decode_journal_entry,
)
from l0gc.streamlog.journal.rows import dropped_rows
from l0gc.streamlog.journal.state import JournalState, purged_rows
from l0gc.streamlog.journal.topic import TopicState

_EXPIRY_STEP_MS: Final = 3_600_000
"""How often, in the log's time, to search for expired producers, which live for weeks."""


def apply(state: JournalState, entry: StoredEntry, where: str) -> None:
    """Apply `entry` to `state`. Raises `CorruptObjectError`, and changes nothing, if the entry should not have landed."""
    e, time_ms = decode_journal_entry(entry.payload, where), max(state.time_ms, entry.time_ms)
    try:
        match e:
            case Objects():
                _apply_objects(state, e, entry.offset, time_ms)
            case Advance():
                check_epoch(e.epoch)
                _set_window(state, state.window.slide(e.epoch), entry.offset)
            case Barrier():
                check_epoch(e.epoch)
                if e.epoch < state.max_applied_epoch:
                    raise UsageError(f"a barrier at {e.epoch} would lower the window {state.window}")
                _set_window(state, EpochWindow(e.epoch, e.epoch), entry.offset)
            case Edit():
                if refused := fits(state, e):
                    raise ProtocolError("; ".join(f"partition {p}: {why}" for (_, p), why in sorted(refused.items())))
                take(state, e, time_ms)
            case FenceL1():
                check_epoch(e.epoch)
                if e.epoch <= state.l1_fence:
                    raise UsageError(f"the L1 fence is at {state.l1_fence}, and {e.epoch} would not raise it")
                state.l1_fence = e.epoch
            case Purged():
                purged = purged_rows(state, e)
                if not purged.any():
                    raise UsageError("it purges nothing that was dropped before")
                state.dropped = state.dropped[~purged]
            case Closed():
                _apply_closed(state, e, time_ms)
            case SetBack():
                check_epoch(e.epoch)
                if e.epoch < max(state.max_applied_epoch, state.l1_fence) or e.times <= state.set_backs:
                    raise UsageError(
                        f"epoch {e.epoch} is not fresh, or acceptance {e.times} does not follow number {state.set_backs}"
                    )
                _set_window(state, EpochWindow(e.epoch, e.epoch), entry.offset)
                state.l1_fence = state.kept_below = e.epoch
                state.set_backs = e.times
    except (L0gcError, ValueError) as error:
        raise CorruptObjectError(f"{where} should never have landed: {error}") from error
    state.time_ms = time_ms
    if state.time_ms - state.expired_ms >= _EXPIRY_STEP_MS:
        producer_rules.forget_unused(state.producers, state.time_ms - PRODUCER_EXPIRY_MS)
        state.expired_ms = state.time_ms


def check_epoch(epoch: int) -> None:
    if not is_epoch(epoch):
        raise UsageError(f"{epoch} is not an epoch")


def _apply_objects(state: JournalState, e: Objects, offset: int, time_ms: int) -> None:
    admission = Admission(state.window, state.topics, state.producers, state.closed)
    if not e.objects:
        raise UsageError("it has no objects")
    for o in e.objects:
        if admission.admit(o) is not None:
            raise UsageError(f"the object {o.key} has landed before")
    for o in e.objects:
        state.topics.setdefault(o.revision, TopicState(o.revision, o.topic_id)).land(o, offset, time_ms)
        if o.producer is not None:
            producer_rules.record(state.producers, o.producer, offset, time_ms)
        _set_window(state, state.window.slide(o.epoch), offset)


def _set_window(state: JournalState, window: EpochWindow, offset: int) -> None:
    if window != state.window:
        state.previous_applied_epoch, state.max_applied_epoch = window.oldest, window.newest
        state.window_offset = offset


def _apply_closed(state: JournalState, e: Closed, time_ms: int) -> None:
    """Close topics, once all of them have been checked."""
    revisions = [t.revision for t in e.topics]
    if not revisions or len(set(revisions)) != len(revisions):
        raise UsageError("it closes no topic, or one twice")
    for epoch in (*revisions, e.epoch):
        check_epoch(epoch)
    for t in e.topics:
        topic = state.topics.get(t.revision)
        if topic is not None and t.topic_id not in ("", topic.topic_id):
            raise UsageError(f"the topic with revision {t.revision} has another id")
    for revision in revisions:
        topic = state.topics.pop(revision, None)
        if topic is not None:
            epoch = max(e.epoch, state.max_applied_epoch)
            rows = np.concatenate([topic.l1, *(o.as_row() for o in topic.shared)])
            state.dropped = np.concatenate([state.dropped, dropped_rows(revision, rows, time_ms, epoch)])
    state.closed_revisions = np.union1d(state.closed_revisions, np.array(revisions, np.int64))
