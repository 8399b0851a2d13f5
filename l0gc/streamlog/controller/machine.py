"""What each entry does to the controller's state, and what its log may hold at all (pure).

`refusal` is the only judge: `apply` asks it about what it reads, and a writer asks it before it appends, so that nothing
lands that stops the log.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Final

import msgspec

from l0gc.decoding import UNDECODABLE, msgpack_decoder
from l0gc.epoch import HIGHEST_JUMP, is_epoch
from l0gc.errors import CorruptObjectError, UsageError
from l0gc.keys import KeyLayout, check_topic_name
from l0gc.storage.entry import Landed
from l0gc.streamlog.controller.entries import (
    MAX_JOURNALS,
    MAX_PARTITIONS,
    MAX_PRODUCER_ID,
    MAX_RETENTION,
    MAX_TEMPLATE,
    UNLIMITED,
    AlterDefaults,
    AlterTopic,
    Bootstrap,
    ControllerEntry,
    CreateTopic,
    DeleteTopic,
    ForgetTopics,
    InitProducer,
    Tick,
    decode_entry,
    is_text,
)
from l0gc.streamlog.controller.state import (
    EPOCH_TIME_STEP_MS,
    EPOCH_TIMES_KEPT_MS,
    NAME_EXPIRY_MS,
    ControllerState,
    DeletedTopic,
    EpochTime,
    Jump,
    LastTick,
    Producer,
    Topic,
)

_STATE: Final = msgpack_decoder(ControllerState)
_ENCODER: Final = msgspec.msgpack.Encoder()


class ControllerMachine:
    """What each entry does to the state."""

    def initial(self) -> ControllerState:
        return ControllerState()

    def encode(self, state: ControllerState) -> bytes:
        return _ENCODER.encode(state)

    def decode(self, body: bytes, source: str) -> ControllerState:
        try:
            state = _STATE.decode(body)
        except UNDECODABLE as e:
            raise CorruptObjectError(f"{source} is not a controller checkpoint: {e}") from e
        if (why := _contradiction(state)) is not None:
            raise CorruptObjectError(f"{source} is not a controller checkpoint: {why}")
        return state

    def apply(self, state: ControllerState, entry: Landed) -> None:
        e = decode_entry(entry.offset, entry.payload)
        if (why := refusal(state, entry.offset, e)) is not None:
            raise CorruptObjectError(f"controller log entry {entry.offset} {why}")
        now_ms, epoch = max(state.time_ms, entry.time_ms), state.epoch_at(entry.offset)
        match e:
            case Bootstrap():
                state.cluster_id, state.shards, state.key_template = e.cluster_id, e.shards, e.key_template
                state.external_log, state.journals = e.external_log, e.journals
            case CreateTopic():
                placed = state.place(e.journals)
                kept = e.retention_ms, e.retention_bytes
                state.topics[e.name] = Topic(e.name, epoch, e.partitions, placed, e.topic_id, *kept)
            case AlterTopic():
                state.topics[e.name] = msgspec.structs.replace(
                    state.topics[e.name], retention_ms=e.retention_ms, retention_bytes=e.retention_bytes
                )
            case AlterDefaults():
                state.retention_ms, state.retention_bytes = e.retention_ms, e.retention_bytes
            case DeleteTopic():
                state.deleted.append(DeletedTopic(state.topics.pop(e.name), epoch))
            case ForgetTopics():
                state.deleted = [d for d in state.deleted if d.topic.revision not in e.revisions]
            case InitProducer():
                known = state.producers.pop(e.name, None)  # so that it is the last one again
                last_run = known.run if known is not None and e.last_epoch >= 0 else ""
                state.producers[e.name] = Producer(e.producer_id, e.epoch, e.last_epoch, now_ms, e.run, last_run)
            case Tick():
                if e.to >= 0:
                    epoch, state.jump = e.to, Jump(entry.offset, e.to)
        state.last_tick = LastTick(e.expected, e.caller) if isinstance(e, Tick) else None
        state.epoch = epoch
        state.time_ms = now_ms
        _note_time(state)
        # The producers whose newest runs began too long ago are the first ones.
        for name in list(takewhile(lambda n: state.producers[n].time_ms <= now_ms - NAME_EXPIRY_MS, state.producers)):
            del state.producers[name]


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


def refusal(state: ControllerState, offset: int, e: ControllerEntry) -> str | None:
    """What is wrong with an entry at this place of the log, None if nothing is.

    The only judge: `apply` asks it about what it reads, and a writer asks it before it appends, so that nothing lands
    that stops the log.
    """
    if state.epoch_at(offset) != state.epoch + 1 or not is_epoch(state.epoch + 1):
        return f"does not follow epoch {state.epoch}"
    if isinstance(e, Bootstrap) != (offset == 0):
        return "is wrong: a bootstrap belongs at offset 0 and only there"
    match e:
        case Bootstrap():
            why = _bad_cluster(e.cluster_id, e.shards, e.key_template, e.journals)
            return None if why is None else f"founds no cluster: {why}"
        case CreateTopic():
            if e.name in state.topics:
                return f"creates topic {e.name!r} a second time"
            if not 1 <= e.journals <= min(e.partitions, state.journals):
                return f"creates topic {e.name!r} in {e.journals} of {state.journals} journals"
            why = _bad_topic(e.name, e.partitions, e.topic_id) or _bad_retention(e.retention_ms, e.retention_bytes)
            return None if why is None else f"creates no topic: {why}"
        case AlterTopic():
            topic = state.topics.get(e.name)
            if topic is None or topic.revision != e.revision:
                return f"alters no topic: {e.name!r}"
            why = _bad_retention(e.retention_ms, e.retention_bytes)
            return None if why is None else f"alters topic {e.name!r} wrongly: {why}"
        case AlterDefaults():
            why = _bad_retention(e.retention_ms, e.retention_bytes)
            return None if why is None else f"alters the cluster's defaults wrongly: {why}"
        case ForgetTopics():
            deleted = {d.topic.revision for d in state.deleted}
            fits = e.revisions and len(set(e.revisions)) == len(e.revisions) and deleted.issuperset(e.revisions)
            return None if fits else "forgets topics that were not deleted"
        case DeleteTopic():
            topic = state.topics.get(e.name)
            return None if topic is not None and topic.revision == e.revision else f"deletes no topic: {e.name!r}"
        case InitProducer():
            return None if _is_bump(state, e) else f"bumps producer {e.name!r} wrongly"
        case Tick():
            if e.caller != "" and not is_text(e.caller):
                return "ticks for a caller that cannot be"
            return None if e.to == -1 or state.epoch < e.to <= HIGHEST_JUMP else f"jumps to epoch {e.to}"


def _is_bump(state: ControllerState, e: InitProducer) -> bool:
    """Whether the entry is one that `decide_init_producer` makes.

    A new id is taken for a name that is known, too: the writer of the entry may have had a shorter `NAME_EXPIRY_MS`.
    """
    known = state.producers.get(e.name)
    if not is_text(e.name) or not is_text(e.run) or not 0 <= e.producer_id < MAX_PRODUCER_ID:
        return False
    if known is not None and e.producer_id == known.producer_id:
        if e.last_epoch == -1:  # it may go above what a journal has seen, which the log has forgotten
            return known.epoch < e.epoch <= state.epoch + 1 and e.run != known.run
        return e.epoch == known.epoch + 1 and e.last_epoch == known.epoch and e.run != known.run
    taken = any(p.producer_id == e.producer_id for p in state.producers.values())
    return not taken and (e.epoch, e.last_epoch) == (0, -1)


def _bad_cluster(cluster_id: str, shards: int, key_template: str, journals: int) -> str | None:
    if not is_text(cluster_id):
        return f"its id {cluster_id[:50]!r} cannot be one"
    if not 1 <= journals <= MAX_JOURNALS:
        return f"a cluster has 1 to {MAX_JOURNALS} journals, not {journals}"
    if len(key_template) > MAX_TEMPLATE:
        return f"its key template has more than {MAX_TEMPLATE} characters"
    try:
        KeyLayout(key_template, shards)
    except UsageError as e:
        return str(e)
    return None


def _bad_topic(name: str, partitions: int, topic_id: str) -> str | None:
    try:
        check_topic_name(name)
    except UsageError as e:
        return str(e)
    if not 1 <= partitions <= MAX_PARTITIONS:
        return f"a topic has 1 to {MAX_PARTITIONS} partitions, not {partitions}"
    return None if is_text(topic_id) else f"the id of topic {name!r} cannot be one"


def _bad_retention(*settings: int | None) -> str | None:
    for value in settings:
        if value is not None and not UNLIMITED <= value <= MAX_RETENTION:
            return f"a retention of {value} cannot be"
    return None


def _contradiction(state: ControllerState) -> str | None:
    """What no log can have led to, None if there is nothing."""
    if state.epoch < 0:
        return None if state == ControllerState() else "it is of no epoch, and not empty"
    why = _bad_cluster(state.cluster_id, state.shards, state.key_template, state.journals)
    if why is not None or not is_epoch(state.epoch):
        return why or f"epoch {state.epoch} cannot be"
    for topic in (*state.topics.values(), *(d.topic for d in state.deleted)):
        why = _bad_topic(topic.name, topic.partitions, topic.topic_id)
        why = why or _bad_retention(topic.retention_ms, topic.retention_bytes)
        placed = set(topic.journals)
        if why is None and not 1 <= len(topic.journals) == len(placed) <= topic.partitions:
            why = f"topic {topic.name!r} lies in {len(topic.journals)} journals"
        if why is None and not (
            min(placed) >= 0 and max(placed) < state.journals and 0 < topic.revision <= state.epoch
        ):
            why = f"topic {topic.name!r} lies in no journal, or in no epoch"
        if why is not None:
            return why
    if (why := _bad_retention(state.retention_ms, state.retention_bytes)) is not None:
        return why
    if not 0 <= state.jump.offset <= state.jump.epoch <= state.epoch:
        return "its epoch jumped to an impossible value"
    epochs = [e.epoch for e in state.epoch_times]
    if epochs != sorted(set(epochs)) or not all(0 <= e <= state.epoch for e in epochs):
        return "the epochs whose times it has are impossible"
    for name, topic in state.topics.items():
        if name != topic.name:
            return f"topic {topic.name!r} is kept as {name!r}"
    for d in state.deleted:
        if not d.topic.revision < d.deleted_epoch <= state.epoch:
            return f"topic {d.topic.name!r} was deleted in an epoch that cannot be"
    for name, p in state.producers.items():
        if not (
            is_text(name) and is_text(p.run) and 0 <= p.producer_id < MAX_PRODUCER_ID and -1 <= p.last_epoch < p.epoch
        ):
            return f"producer {name!r} cannot be"
    return None
