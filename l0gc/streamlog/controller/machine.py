"""What each entry does to the controller's state, and what its log may hold at all (pure).

`entry_refusal` is the only judge: `apply` asks it about what it reads, and a writer asks it before it appends, so that
nothing lands that stops the log.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Final

import msgspec

from l0gc.decoding import UNDECODABLE
from l0gc.epoch import HIGHEST_JUMP, NO_WATERMARK, is_epoch
from l0gc.errors import CorruptObjectError, UsageError
from l0gc.storage.entry import Landed
from l0gc.streamlog.controller import entries
from l0gc.streamlog.controller.state import (
    EPOCH_TIME_STEP_MS,
    EPOCH_TIMES_KEPT_MS,
    NAME_EXPIRY_MS,
    ControllerState,
    DeletedTopic,
    EpochTime,
    Jump,
    LastTick,
    Pin,
    Producer,
    Topic,
    TopicTable,
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

    def apply(self, state: ControllerState, entry: Landed) -> None:
        e = entries.decode_controller_entry(entry.offset, entry.payload)
        if (why := entry_refusal(state, entry.offset, e)) is not None:
            raise CorruptObjectError(f"controller log entry {entry.offset} is wrong: {why}")
        now_ms, epoch = max(state.time_ms, entry.time_ms), state.epoch_at(entry.offset)
        match e:
            case entries.Bootstrap():
                state.cluster_id, state.shards, state.key_template = e.cluster_id, e.shards, e.key_template
                state.external_log, state.journals = e.external_log, e.journals
            case entries.CreateTopic():
                placed = state.place(e.journals)
                kept = e.retention_ms, e.retention_bytes
                state.topics[e.name] = Topic(e.name, epoch, e.partitions, placed, e.topic_id, *kept)
            case entries.AlterTopic():
                state.topics[e.name] = msgspec.structs.replace(
                    state.topics[e.name], retention_ms=e.retention_ms, retention_bytes=e.retention_bytes
                )
            case entries.AlterDefaults():
                state.retention_ms, state.retention_bytes = e.retention_ms, e.retention_bytes
            case entries.DeleteTopic():
                state.deleted.append(DeletedTopic(state.topics.pop(e.name), epoch))
            case entries.ForgetTopics():
                state.deleted = [d for d in state.deleted if d.topic.revision not in e.revisions]
            case entries.InitProducer():
                known = state.producers.pop(e.name, None)  # so that it is the last one again
                last_run = known.run if known is not None and e.last_epoch >= 0 else ""
                state.producers[e.name] = Producer(e.producer_id, e.epoch, e.last_epoch, now_ms, e.run, last_run)
            case entries.CreatePin():
                times = now_ms, now_ms + e.ttl_ms
                state.pins[e.name] = Pin(e.name, epoch, entry.offset, *times, e.level_one, e.why, topic=e.topic)
            case entries.PinTookEffect():
                state.pins[e.name] = msgspec.structs.replace(state.pins[e.name], watermark=e.watermark, ends=e.ends)
            case entries.DeletePin():
                del state.pins[e.name]
            case entries.CreateTable():
                state.tables[e.topic] = TopicTable(e.topic, e.revision, e.catalog, e.table)
            case entries.DropTable():
                del state.tables[e.topic]
            case entries.Tick():
                if e.to >= 0:
                    epoch, state.jump = e.to, Jump(entry.offset, e.to)
        state.last_tick = LastTick(e.expected, e.caller) if isinstance(e, entries.Tick) else None
        state.epoch = epoch
        state.time_ms = now_ms
        _note_time(state)
        # The producers whose newest runs began too long ago are the first ones.
        for name in list(takewhile(lambda n: state.producers[n].time_ms <= now_ms - NAME_EXPIRY_MS, state.producers)):
            del state.producers[name]
        for name in [p.name for p in state.pins.values() if p.end_ms <= now_ms]:
            del state.pins[name]


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


# -- what the log may hold --------------------------------------------------------------------------------------------


def entry_refusal(state: ControllerState, offset: int, e: entries.ControllerEntry) -> str | None:
    """What is wrong with an entry at this place of the log, None if nothing is."""
    try:
        _check(state, offset, e)
    except UsageError as why:
        return str(why)
    return None


def _check(state: ControllerState, offset: int, e: entries.ControllerEntry) -> None:
    if state.epoch_at(offset) != state.epoch + 1 or not is_epoch(state.epoch + 1):
        raise UsageError(f"it does not follow epoch {state.epoch}")
    if isinstance(e, entries.Bootstrap) != (offset == 0):
        raise UsageError("a bootstrap belongs at offset 0 and only there")
    match e:
        case entries.Bootstrap():
            entries.check_founded(e.cluster_id, e.shards, e.key_template, e.journals)
        case entries.CreateTopic():
            if e.name in state.topics:
                raise UsageError(f"it creates topic {e.name!r} a second time")
            if not 1 <= e.journals <= min(e.partitions, state.journals):
                raise UsageError(f"it creates topic {e.name!r} in {e.journals} of {state.journals} journals")
            entries.check_topic(e.name, e.partitions, e.topic_id)
            entries.check_retention(e.retention_ms, e.retention_bytes)
        case entries.AlterTopic() | entries.DeleteTopic():
            topic = state.topics.get(e.name)
            if topic is None or topic.revision != e.revision:
                raise UsageError(f"topic {e.name!r} with revision {e.revision} does not exist")
            if isinstance(e, entries.AlterTopic):
                entries.check_retention(e.retention_ms, e.retention_bytes)
        case entries.AlterDefaults():
            entries.check_retention(e.retention_ms, e.retention_bytes)
        case entries.ForgetTopics():
            deleted = {d.topic.revision for d in state.deleted}
            if not e.revisions or len(set(e.revisions)) != len(e.revisions) or not deleted.issuperset(e.revisions):
                raise UsageError("it forgets topics that were not deleted")
        case entries.InitProducer():
            if not _is_bump(state, e):
                raise UsageError(f"it bumps producer {e.name!r} wrongly")
        case entries.CreatePin():
            entries.check_pin(e.name, e.ttl_ms, e.why)
            if e.topic != entries.ALL_TOPICS and not (e.level_one and e.topic >= 0):
                raise UsageError(f"it creates pin {e.name!r} of a topic, and not of its L1 alone")
            if e.name in state.pins or len(state.pins) >= entries.MAX_PINS:
                raise UsageError(f"it creates pin {e.name!r}, which exists, or too many")
        case entries.PinTookEffect() | entries.DeletePin():
            pin = state.pins.get(e.name)
            if pin is None or pin.revision != e.revision:
                raise UsageError(f"pin {e.name!r} of epoch {e.revision} does not exist")
            if isinstance(e, entries.PinTookEffect):
                if pin.in_effect:
                    raise UsageError(f"pin {e.name!r} takes effect twice")
                _check_effect(state, pin, e.watermark, e.ends)
        case entries.CreateTable():
            entries.check_table(e.topic, e.catalog, e.table)
            topic = state.topics.get(e.topic)
            if e.topic in state.tables or topic is None or topic.revision != e.revision:
                raise UsageError(f"it creates a table of topic {e.topic!r}, which has one, or does not exist")
        case entries.DropTable():
            if e.topic not in state.tables or state.tables[e.topic].revision != e.revision:
                raise UsageError(f"it drops the table of topic {e.topic!r}, which has none")
        case entries.Tick():
            if e.caller != "" and not entries.is_text(e.caller):
                raise UsageError("it ticks for a caller that cannot be")
            if e.to != -1 and not state.epoch < e.to <= HIGHEST_JUMP:
                raise UsageError(f"it jumps to epoch {e.to}")


def _is_bump(state: ControllerState, e: entries.InitProducer) -> bool:
    """Whether the entry is one that `decide_init_producer` makes.

    A new id is taken for a name that is known, too: the writer of the entry may have had a shorter `NAME_EXPIRY_MS`.
    """
    known = state.producers.get(e.name)
    if not entries.is_text(e.name) or not entries.is_text(e.run) or not 0 <= e.producer_id < entries.MAX_PRODUCER_ID:
        return False
    if known is not None and e.producer_id == known.producer_id:
        if e.last_epoch == -1:  # it may go above what a journal has seen, which the log has forgotten
            return known.epoch < e.epoch <= state.epoch + 1 and e.run != known.run
        return e.epoch == known.epoch + 1 and e.last_epoch == known.epoch and e.run != known.run
    taken = any(p.producer_id == e.producer_id for p in state.producers.values())
    return not taken and (e.epoch, e.last_epoch) == (0, -1)


def _check_effect(state: ControllerState, pin: Pin, watermark: int, ends: list[tuple[int, int]]) -> None:
    """Raises `UsageError`: no pin can have taken effect so."""
    most = NO_WATERMARK if pin.level_one else state.epoch
    if not NO_WATERMARK <= watermark <= most:
        raise UsageError(f"pin {pin.name!r} holds M at {watermark}")
    journals = [journal for journal, _ in ends]
    if journals != sorted(set(journals)) or not all(0 <= j < state.journals and at >= 0 for j, at in ends):
        raise UsageError(f"pin {pin.name!r} names impossible ends of journals")


def _check_state(state: ControllerState) -> None:
    """Raises `UsageError`: no log can have led to it."""
    if state.epoch < 0:
        if state != ControllerState():
            raise UsageError("it is of no epoch, and not empty")
        return
    entries.check_founded(state.cluster_id, state.shards, state.key_template, state.journals)
    if not is_epoch(state.epoch):
        raise UsageError(f"epoch {state.epoch} cannot be")
    for topic in (*state.topics.values(), *(d.topic for d in state.deleted)):
        entries.check_topic(topic.name, topic.partitions, topic.topic_id)
        entries.check_retention(topic.retention_ms, topic.retention_bytes)
        placed = set(topic.journals)
        if not 1 <= len(topic.journals) == len(placed) <= topic.partitions:
            raise UsageError(f"topic {topic.name!r} lies in {len(topic.journals)} journals")
        if not (min(placed) >= 0 and max(placed) < state.journals and 0 < topic.revision <= state.epoch):
            raise UsageError(f"topic {topic.name!r} lies in no journal, or in no epoch")
    entries.check_retention(state.retention_ms, state.retention_bytes)
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
        entries.check_pin(pin.name, pin.end_ms - pin.created_ms, pin.why)
        if name != pin.name or not 0 < pin.revision <= state.epoch or not 0 < pin.offset <= pin.revision:
            raise UsageError(f"pin {name!r} cannot be")
        if pin.ends is not None:
            _check_effect(state, pin, pin.watermark, pin.ends)
    for name, table in state.tables.items():
        entries.check_table(table.topic, table.catalog, table.table)
        if name != table.topic or not 0 < table.revision <= state.epoch:
            raise UsageError(f"the table of topic {name!r} cannot be")
    for name, p in state.producers.items():
        known = entries.is_text(name) and entries.is_text(p.run) and 0 <= p.producer_id < entries.MAX_PRODUCER_ID
        if not known or not -1 <= p.last_epoch < p.epoch:
            raise UsageError(f"producer {name!r} cannot be")
