"""The state machine of the controller's log: what may land, what it does, and what a checkpoint may hold (pure)."""

from __future__ import annotations

from itertools import takewhile
from typing import Final

import msgspec

from l0gc.decoding import UNDECODABLE
from l0gc.epoch import is_epoch
from l0gc.errors import CorruptObjectError, L0gcError, UsageError
from l0gc.storage.entry import Landed
from l0gc.streamlog.controller.entries import (
    Bootstrap,
    ControllerEntry,
    LogPlace,
    check_cluster_settings,
    check_pin,
    check_pin_effect,
    check_producer,
    check_retention,
    check_table,
    check_topic,
    decode_controller_entry,
)
from l0gc.streamlog.controller.state import (
    EPOCH_TIME_STEP_MS,
    EPOCH_TIMES_KEPT_MS,
    NAME_EXPIRY_MS,
    ControllerState,
    EpochTime,
)

_STATE: Final = msgspec.msgpack.Decoder(ControllerState)


class ControllerMachine:
    """What each entry does to the state."""

    def initial(self) -> ControllerState:
        return ControllerState()

    def encode(self, state: ControllerState) -> bytes:
        return msgspec.msgpack.encode(state)

    def decode(self, body: bytes, source: str) -> ControllerState:
        try:
            state = _STATE.decode(body)
            _check_state(state)
        except (*UNDECODABLE, UsageError) as e:
            raise CorruptObjectError(f"{source} is not a controller checkpoint: {e}") from e
        return state

    def check(self, state: ControllerState, offset: int, payload: bytes) -> None:
        _checked(state, offset, payload)

    def apply(self, state: ControllerState, entry: Landed) -> None:
        try:
            e = _checked(state, entry.offset, entry.payload)
        except CorruptObjectError:
            raise
        except L0gcError as why:
            raise CorruptObjectError(f"controller log entry {entry.offset} is wrong: {why}") from why
        at = LogPlace(entry.offset, state.epoch_at(entry.offset), max(state.time_ms, entry.time_ms))
        state.epoch, state.time_ms, state.last_tick = at.epoch, at.now_ms, None
        e.take(state, at)
        _note_time(state)
        # The producers whose newest runs began too long ago are the first ones.
        expired_ms = at.now_ms - NAME_EXPIRY_MS
        for name in list(takewhile(lambda n: state.producers[n].time_ms <= expired_ms, state.producers)):
            del state.producers[name]
        for name in [p.name for p in state.pins.values() if p.end_ms <= at.now_ms]:
            del state.pins[name]


def _checked(state: ControllerState, offset: int, payload: bytes) -> ControllerEntry:
    """Decode an entry at its place of the log, and check it. Raises `CorruptObjectError` if it cannot be decoded."""
    e = decode_controller_entry(offset, payload)
    if state.epoch_at(offset) != state.epoch + 1 or not is_epoch(state.epoch + 1):
        raise UsageError(f"it does not follow epoch {state.epoch}")
    if isinstance(e, Bootstrap) != (offset == 0):
        raise UsageError("a bootstrap belongs at offset 0 and only there")
    e.check(state)
    return e


def _note_time(state: ControllerState) -> None:
    """Record when the epoch began, if the last record is not of just now; forget what is too old.

    Of the old ones the newest stays, so that there is always an epoch known to be as old as is needed.
    """
    times = state.epoch_times
    if times and state.time_ms - times[-1].time_ms < EPOCH_TIME_STEP_MS:
        return
    times.append(EpochTime(state.epoch, state.time_ms))
    old = sum(e.time_ms <= state.time_ms - EPOCH_TIMES_KEPT_MS for e in times)
    del times[: max(0, old - 1)]


def _check_state(state: ControllerState) -> None:
    """Raise `UsageError` if no log can have led to the state of a checkpoint."""
    if state.epoch < 0:
        if state != ControllerState():
            raise UsageError("it is of no epoch, and not empty")
        return
    check_cluster_settings(state.cluster_id, state.shards, state.key_template, state.journals)
    if not is_epoch(state.epoch):
        raise UsageError(f"epoch {state.epoch} cannot be")
    for topic in (*state.topics.values(), *(d.topic for d in state.deleted)):
        check_topic(topic.name, topic.partitions, topic.topic_id)
        check_retention(topic.retention_ms, topic.retention_bytes)
        placed = set(topic.journals)
        if not 1 <= len(topic.journals) == len(placed) <= topic.partitions:
            raise UsageError(f"topic {topic.name!r} lies in {len(topic.journals)} journals")
        if not (min(placed) >= 0 and max(placed) < state.journals and 0 < topic.revision <= state.epoch):
            raise UsageError(f"topic {topic.name!r} lies in no journal, or in no epoch")
    check_retention(state.retention_ms, state.retention_bytes)
    if not 0 <= state.jump.offset <= state.jump.epoch <= state.epoch:
        raise UsageError("its epoch jumped to an impossible value")
    epochs = [e.epoch for e in state.epoch_times]
    if epochs != sorted(set(epochs)) or not all(0 <= e <= state.epoch for e in epochs):
        raise UsageError("the epochs whose times it has are impossible")
    for name, topic in state.topics.items():
        if name != topic.name:
            raise UsageError(f"topic {topic.name!r} is kept as {name!r}")
    for d in state.deleted:
        if not d.topic.revision < d.deleted_epoch <= state.epoch:
            raise UsageError(f"topic {d.topic.name!r} was deleted in an epoch that cannot be")
    for name, pin in state.pins.items():
        check_pin(pin.name, pin.end_ms - pin.created_ms, pin.why)
        if name != pin.name or not 0 < pin.revision <= state.epoch or not 0 < pin.offset <= pin.revision:
            raise UsageError(f"pin {name!r} cannot be")
        if pin.ends is not None:
            check_pin_effect(state, pin)
    for name, table in state.tables.items():
        check_table(table.topic, table.catalog, table.table)
        if name != table.topic or not 0 < table.revision <= state.epoch:
            raise UsageError(f"the table of topic {name!r} cannot be")
    for name, p in state.producers.items():
        check_producer(name, p.producer_id, p.run)
        if not -1 <= p.last_epoch < p.epoch:
            raise UsageError(f"producer {name!r} cannot be at epoch {p.epoch} after {p.last_epoch}")
