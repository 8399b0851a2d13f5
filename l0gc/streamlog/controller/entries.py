"""The entries of the controller's log: their fields, when each may land, and how it changes the state (pure).

An entry is MessagePack, an array that begins with its kind. Fields are only added, at the end and with a default, so a
newer l0gc can read the entries of an older one.

`check` alone validates an entry, and raises the user's message. A writer calls it before the append, on the entry as it
will be read; `ControllerMachine.apply` calls it on each entry that it reads, so a refused entry is damage. `take`
applies a checked entry to the state. The same rules for names, numbers and texts check the contents of a checkpoint.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from l0gc.decoding import UNDECODABLE, decoded
from l0gc.epoch import HIGHEST_JUMP, NO_WATERMARK, is_epoch
from l0gc.errors import CorruptObjectError, L0gcError, NotFoundError, UsageError
from l0gc.formatting import count, moment, span
from l0gc.keys import DEFAULT_TEMPLATE, KeyLayout, check_topic_name
from l0gc.limits import LONGEST_KEY_BYTES
from l0gc.storage.entry import Place, StoredEntry, join_state, split_state
from l0gc.streamlog.controller.state import (
    ALL_TOPICS,
    EPOCH_TIME_STEP_MS,
    EPOCH_TIMES_KEPT_MS,
    NAME_EXPIRY_MS,
    UNLIMITED,
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
from l0gc.streamlog.controller.value_schema import (
    VALUE_ERROR_ID,
    Numbers,
    ValueSchema,
    check_value_schema,
    each_column,
    evolved,
)

DEFAULT_JOURNALS: Final = 16
MAX_JOURNALS: Final = 9_999
"""The largest number with the four digits of a journal's folder."""
MAX_PARTITIONS: Final = 1_000_000
"""The limit for one topic. Only a journal's state grows with a topic's partitions, not the controller's."""
MAX_PRODUCER_ID: Final = 1 << 53
"""Ids are random and below this limit, since readers of JSON keep 53 bits of a number."""
MAX_TEXT: Final = 200
"""The most characters of a name or an id, including the name of the caller that advances the epoch."""
MAX_TEMPLATE: Final = 500
MAX_RETENTION: Final = 2**62
"""The largest retention, in milliseconds or bytes."""
MAX_PIN_MS: Final = 366 * 24 * 3_600_000
"""The longest life of a pin, which keeps objects that would otherwise be garbage."""
MAX_PINS: Final = 1_000
"""The most pins: each keeps one offset per journal in the controller's state."""


class EntryStamp(NamedTuple):
    """The facts that follow from an entry's place in the log: its offset, the epoch that it begins, and the log's time."""

    offset: int
    epoch: int
    now_ms: int


class Bootstrap(msgspec.Struct, frozen=True, array_like=True, tag="b"):
    """The cluster's first entry, at offset 0.

    `external_log`: epochs and partitions are those of another system, which keeps its own log. The controller log then holds
    only this entry, and no journal is used.
    """

    cluster_id: str
    shards: int
    key_template: str = DEFAULT_TEMPLATE
    external_log: bool = False
    journals: int = DEFAULT_JOURNALS

    def check(self, state: ControllerState) -> None:
        check_cluster_settings(self.cluster_id, self.shards, self.key_template, self.journals)

    def take(self, state: ControllerState, at: EntryStamp) -> None:
        state.cluster_id, state.shards, state.key_template = self.cluster_id, self.shards, self.key_template
        state.external_log, state.journals = self.external_log, self.journals


class CreateTopic(msgspec.Struct, frozen=True, array_like=True, tag="c"):
    """Creates a topic in that many `journals`; applying the entry chooses them.

    `topic_id` is random. It distinguishes the topic from one of the same name and revision that a controller log restored
    from a backup may create.
    """

    name: str
    partitions: int
    journals: int
    topic_id: str
    retention_ms: int | None = None
    retention_bytes: int | None = None
    value_schema: ValueSchema | None = None

    def check(self, state: ControllerState) -> None:
        check_topic(self.name, self.partitions, self.topic_id)
        check_retention(self.retention_ms, self.retention_bytes)
        check_next_schema(None, self.value_schema)
        if self.name in state.topics:
            raise UsageError(f"topic {self.name!r} exists")
        if not 1 <= self.journals <= min(self.partitions, state.journals):
            raise UsageError(
                f"{count(self.partitions, 'partition')} cannot lie in {count(self.journals, 'journal')}: this cluster has "
                f"{state.journals}, and each of them takes one partition or more"
            )

    def take(self, state: ControllerState, at: EntryStamp) -> None:
        settings = self.retention_ms, self.retention_bytes, self.value_schema
        journals = state.least_used_journals(self.journals)
        schema_epoch = 0 if self.value_schema is None else at.epoch
        state.topics[self.name] = Topic(
            self.name, at.epoch, self.partitions, journals, self.topic_id, *settings, schema_epoch
        )


class AlterTopic(msgspec.Struct, frozen=True, array_like=True, tag="a"):
    """Gives a topic these settings; without a value schema, the topic keeps its own."""

    name: str
    revision: int
    retention_ms: int | None
    retention_bytes: int | None
    value_schema: ValueSchema | None = None

    def check(self, state: ControllerState) -> None:
        check_retention(self.retention_ms, self.retention_bytes)
        check_next_schema(state.topic(self.name, self.revision).value_schema, self.value_schema)

    def take(self, state: ControllerState, at: EntryStamp) -> None:
        topic = state.topics[self.name]
        schema = self.value_schema or topic.value_schema
        state.topics[self.name] = msgspec.structs.replace(
            topic,
            retention_ms=self.retention_ms,
            retention_bytes=self.retention_bytes,
            value_schema=schema,
            schema_epoch=topic.schema_epoch if schema == topic.value_schema else at.epoch,
        )


class AlterDefaults(msgspec.Struct, frozen=True, array_like=True, tag="r"):
    """Gives the cluster these retention settings, for topics without their own; -1 means unlimited."""

    retention_ms: int
    retention_bytes: int

    def check(self, state: ControllerState) -> None:
        check_retention(self.retention_ms, self.retention_bytes)

    def take(self, state: ControllerState, at: EntryStamp) -> None:
        state.retention_ms, state.retention_bytes = self.retention_ms, self.retention_bytes


class DeleteTopic(msgspec.Struct, frozen=True, array_like=True, tag="d"):
    """Deletes a topic; its journals close it later."""

    name: str
    revision: int

    def check(self, state: ControllerState) -> None:
        state.topic(self.name, self.revision)

    def take(self, state: ControllerState, at: EntryStamp) -> None:
        state.deleted.append(DeletedTopic(state.topics.pop(self.name), at.epoch))


class ForgetTopics(msgspec.Struct, frozen=True, array_like=True, tag="f"):
    """Forgets deleted topics, by revision, once nothing is left of them."""

    revisions: list[int]

    def check(self, state: ControllerState) -> None:
        deleted = {d.topic.revision for d in state.deleted}
        if not self.revisions or len(set(self.revisions)) != len(self.revisions) or not deleted >= set(self.revisions):
            raise UsageError(f"the topics with revisions {self.revisions[:5]} were not deleted, or are named twice")

    def take(self, state: ControllerState, at: EntryStamp) -> None:
        state.deleted = [d for d in state.deleted if d.topic.revision not in self.revisions]


class Tick(msgspec.Struct, frozen=True, array_like=True, tag="t"):
    """Advances the epoch by one, or to `to` unless that is -1.

    `expected` and `caller` make a retry recognisable; they are -1 and '' if the caller expects no epoch.
    """

    expected: int = -1
    caller: str = ""
    to: int = -1

    def check(self, state: ControllerState) -> None:
        if self.caller:
            check_line("the name of the caller that advances the epoch", self.caller)
        if self.to != -1 and not state.epoch < self.to <= HIGHEST_JUMP:
            raise UsageError(
                f"the cluster epoch, {state.epoch}, cannot be advanced to {self.to}; give an epoch above it and up to "
                f"{HIGHEST_JUMP}"
            )

    def take(self, state: ControllerState, at: EntryStamp) -> None:
        if self.to >= 0:
            state.epoch, state.jump = self.to, Jump(at.offset, self.to)
        state.last_tick = LastTick(self.expected, self.caller)


class InitProducer(msgspec.Struct, frozen=True, array_like=True, tag="p"):
    """Gives the producer `name` a new epoch, or creates it with a new `producer_id`.

    `last_epoch` is the epoch that the instance had before, -1 if the instance is new. `run` is random: a log that was
    restored from a backup gives out the same producer epoch again, but never the same run.
    """

    name: str
    producer_id: int
    epoch: int
    last_epoch: int
    run: str

    def check(self, state: ControllerState) -> None:
        check_producer(self.name, self.producer_id, self.run)
        if not self._is_bump(state):
            raise UsageError(f"producer {self.name!r} cannot go to epoch {self.epoch} of id {self.producer_id}")

    def _is_bump(self, state: ControllerState) -> bool:
        """Return whether the producer's epoch and id may follow those in the state.

        A known name may get a new id, too: the writer of the entry may have had a shorter `NAME_EXPIRY_MS`.
        """
        producer = state.producers.get(self.name)
        if producer is not None and self.producer_id == producer.producer_id:
            if self.last_epoch == -1:  # it may skip epochs that a journal has seen and the log has forgotten
                return producer.epoch < self.epoch <= state.epoch + 1 and self.run != producer.run
            return self.epoch == producer.epoch + 1 and self.last_epoch == producer.epoch and self.run != producer.run
        taken = any(p.producer_id == self.producer_id for p in state.producers.values())
        return not taken and (self.epoch, self.last_epoch) == (0, -1)

    def take(self, state: ControllerState, at: EntryStamp) -> None:
        producer = state.producers.pop(self.name, None)  # to be added again as the last one
        last_run = producer.run if producer is not None and self.last_epoch >= 0 else ""
        state.producers[self.name] = Producer(
            self.producer_id, self.epoch, self.last_epoch, at.now_ms, self.run, last_run
        )


class CreatePin(msgspec.Struct, frozen=True, array_like=True, tag="n"):
    """Creates a pin, which ends `ttl_ms` after the log's time at this entry.

    With `level_one`, it keeps only L1 objects, and M may move. If `topic` is a topic's revision, it keeps only what
    this topic needs.
    """

    name: str
    ttl_ms: int
    level_one: bool = False
    why: str = ""
    topic: int = ALL_TOPICS

    def check(self, state: ControllerState) -> None:
        check_pin(self.name, self.ttl_ms, self.why)
        if self.topic < ALL_TOPICS:
            raise UsageError(f"pin {self.name!r} names topic {self.topic}, which is not a revision")
        if (
            self.topic != ALL_TOPICS
            and not self.level_one
            and all(t.revision != self.topic for t in state.topics.values())
        ):
            raise NotFoundError(f"pin {self.name!r} names a topic that was deleted, or never existed")
        if (pin := state.pins.get(self.name)) is not None:
            raise UsageError(
                f"pin {self.name!r} exists, and ends at {moment(pin.end_ms)}; delete it with l0gc pin delete, or use "
                "another name"
            )
        if len(state.pins) >= MAX_PINS:
            raise UsageError(f"{MAX_PINS:,} pins exist, which is the limit: delete some with l0gc pin delete")

    def take(self, state: ControllerState, at: EntryStamp) -> None:
        times = at.now_ms, at.now_ms + self.ttl_ms
        state.pins[self.name] = Pin(self.name, at.epoch, at.offset, *times, self.level_one, self.why, topic=self.topic)


class PinTookEffect(msgspec.Struct, frozen=True, array_like=True, tag="h"):
    """Records that the pin of that `revision` has taken effect, with M and the ends of the journals in use at that
    time.

    `ends` has, for each of these journals, its number and the place of its log's last entry.
    """

    name: str
    revision: int
    watermark: int
    ends: list[tuple[int, Place]]

    def check(self, state: ControllerState) -> None:
        pin = state.pin(self.name, self.revision)
        if pin.in_effect:
            raise UsageError(f"pin {self.name!r} has already taken effect")
        check_pin_effect(state, msgspec.structs.replace(pin, watermark=self.watermark, ends=self.ends))

    def take(self, state: ControllerState, at: EntryStamp) -> None:
        state.pins[self.name] = msgspec.structs.replace(state.pins[self.name], watermark=self.watermark, ends=self.ends)


class RenewPin(msgspec.Struct, frozen=True, array_like=True, tag="k"):
    """Moves the end of a pin that is in effect to `ttl_ms` after the log's time at this entry, never to an earlier time.

    A pin that has ended stays ended, since objects that it held may be deleted (hazard 36). A pin holds until an entry
    ends it, so this entry may renew it even at or after its end. It ends at the latest `MAX_PIN_MS` after its creation.
    """

    name: str
    revision: int
    ttl_ms: int

    def check(self, state: ControllerState) -> None:
        check_pin(self.name, self.ttl_ms)
        if not state.pin(self.name, self.revision).in_effect:
            raise UsageError(f"pin {self.name!r} has not taken effect, so it cannot be renewed")

    def take(self, state: ControllerState, at: EntryStamp) -> None:
        pin = state.pins[self.name]
        end_ms = min(max(pin.end_ms, at.now_ms + self.ttl_ms), pin.created_ms + MAX_PIN_MS)
        state.pins[self.name] = msgspec.structs.replace(pin, end_ms=end_ms)


class DeletePin(msgspec.Struct, frozen=True, array_like=True, tag="u"):
    """Ends a pin before its time."""

    name: str
    revision: int

    def check(self, state: ControllerState) -> None:
        state.pin(self.name, self.revision)

    def take(self, state: ControllerState, at: EntryStamp) -> None:
        del state.pins[self.name]


class CreateTable(msgspec.Struct, frozen=True, array_like=True, tag="i"):
    """Gives the topic of that `revision` an Iceberg table, which PyIceberg's catalog `catalog` created at `location`."""

    topic: str
    revision: int
    catalog: str
    table: str
    location: str = ""

    def check(self, state: ControllerState) -> None:
        check_table(self.topic, self.catalog, self.table)
        state.topic(self.topic, self.revision)
        for table in state.tables.values():
            has = f"topic {table.topic!r} (revision {table.revision}) has table {table.table} in catalog {table.catalog!r}"
            if table.topic == self.topic:
                raise UsageError(f"{has}; end that with l0gc table drop {table.topic}")
            if (table.catalog, table.table) == (self.catalog, self.table):
                raise UsageError(f"{has}; give the table of {self.topic!r} another name with --table NAMESPACE.NAME")

    def take(self, state: ControllerState, at: EntryStamp) -> None:
        state.tables[self.topic] = TopicTable(self.topic, self.revision, self.catalog, self.table, self.location)


class DropTable(msgspec.Struct, frozen=True, array_like=True, tag="j"):
    """Ends the table of the topic of that revision."""

    topic: str
    revision: int

    def check(self, state: ControllerState) -> None:
        if (table := state.table(self.topic)).revision != self.revision:
            raise UsageError(
                f"the table of topic {self.topic!r} belongs to revision {table.revision}, not {self.revision}"
            )

    def take(self, state: ControllerState, at: EntryStamp) -> None:
        del state.tables[self.topic]


ControllerEntry = (
    Bootstrap
    | CreateTopic
    | AlterTopic
    | AlterDefaults
    | DeleteTopic
    | ForgetTopics
    | Tick
    | InitProducer
    | CreatePin
    | PinTookEffect
    | RenewPin
    | DeletePin
    | CreateTable
    | DropTable
)

_ENTRY: Final[msgspec.msgpack.Decoder[ControllerEntry]] = msgspec.msgpack.Decoder(ControllerEntry)
_STATE: Final = msgspec.msgpack.Decoder(ControllerState)


def decode_controller_entry(offset: int, payload: bytes) -> ControllerEntry:
    """Return the entry that the log holds at `offset`. Raises `CorruptObjectError` if it cannot be decoded."""
    return decoded(_ENTRY, payload, f"controller log entry {offset} cannot be read")


# -- the state machine ------------------------------------------------------------------------------------------------


class ControllerMachine:
    def initial(self) -> ControllerState:
        return ControllerState()

    def encode(self, state: ControllerState) -> bytes:
        return join_state(msgspec.msgpack.encode(state))

    def decode(self, body: bytes, source: str) -> ControllerState:
        try:
            state = _STATE.decode(split_state(body)[0])
            _check_state(state)
        except (*UNDECODABLE, UsageError) as e:
            raise CorruptObjectError(f"{source} is not a controller checkpoint: {e}") from e
        return state

    def lacks(self, state: ControllerState, entry: StoredEntry | None = None) -> bool:
        return False

    def check(self, state: ControllerState, offset: int, payload: bytes) -> None:
        _checked(state, offset, payload)

    def apply(self, state: ControllerState, entry: StoredEntry) -> None:
        try:
            e = _checked(state, entry.offset, entry.payload)
        except CorruptObjectError:
            raise
        except L0gcError as why:
            raise CorruptObjectError(f"controller log entry {entry.offset} is wrong: {why}") from why
        at = EntryStamp(entry.offset, state.epoch_at(entry.offset), max(state.time_ms, entry.time_ms))
        state.epoch, state.time_ms, state.last_tick = at.epoch, at.now_ms, None
        e.take(state, at)
        _note_time(state)
        # The producers whose newest runs began too long ago come first.
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
    """Record when the epoch began, unless the last record is recent; remove records that are too old.

    The newest of the old ones stays, so that an epoch of sufficient age is always recorded.
    """
    times = state.epoch_times
    if times and state.time_ms - times[-1].time_ms < EPOCH_TIME_STEP_MS:
        return
    times.append(EpochTime(state.epoch, state.time_ms))
    old = sum(e.time_ms <= state.time_ms - EPOCH_TIMES_KEPT_MS for e in times)
    del times[: max(0, old - 1)]


# -- what an entry and a checkpoint may hold ---------------------------------------------------------------------------


def check_line(what: str, value: str) -> None:
    """Raise `UsageError` unless `value` can be a name or an id: 1 to 200 printable characters."""
    if not (0 < len(value) <= MAX_TEXT and value.isprintable()):
        raise UsageError(f"{what}, {value[:50]!r}, must have 1 to {MAX_TEXT} printable characters")


def check_cluster_settings(cluster_id: str, shards: int, key_template: str, journals: int) -> None:
    check_line("a cluster's id", cluster_id)
    if not 1 <= journals <= MAX_JOURNALS:
        raise UsageError(f"a cluster has 1 to {MAX_JOURNALS} journals, not {journals}")
    if len(key_template) > MAX_TEMPLATE:
        raise UsageError(f"the key template has more than {MAX_TEMPLATE} characters")
    size = len(KeyLayout(key_template, shards).format(0, 0, str(UUID(int=0))).encode())
    if size > LONGEST_KEY_BYTES:
        raise UsageError(
            f"key template {key_template!r} makes keys of {size} bytes, more than the limit of {LONGEST_KEY_BYTES}"
        )


def check_topic(name: str, partitions: int, topic_id: str) -> None:
    check_topic_name(name)
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise UsageError(f"a topic has 1 to {MAX_PARTITIONS} partitions, not {partitions}")
    check_line(f"the id of topic {name!r}", topic_id)


def check_retention(ms: int | None, size: int | None) -> None:
    """Raise `UsageError` unless a topic or the cluster can have this retention; None if a topic has no setting."""
    for name, value in (("retention_ms", ms), ("retention_bytes", size)):
        if value is not None and not UNLIMITED <= value <= MAX_RETENTION:
            raise UsageError(f"{name} cannot be {value}: give a number from 0 to {MAX_RETENTION}, or -1 for unlimited")


def check_next_schema(current: ValueSchema | None, following: ValueSchema | None) -> None:
    """Raise `UsageError` unless `following`, with its number and ids, may replace the topic's value schema `current`."""
    if following is None or following == current:
        return
    ids = {c.id for c in each_column(following.columns)} - {
        c.id for c in each_column(() if current is None else current.columns)
    }
    before = Numbers(following.number - 1, min(ids, default=VALUE_ERROR_ID + 1) - 1)
    if evolved(current, following.columns, before) != following:
        raise UsageError(f"value schema {following.number} does not follow the one that the topic has")


def check_producer(name: str, producer_id: int, run: str) -> None:
    check_line("a producer name", name)
    check_line(f"the run of producer {name!r}", run)
    if not 0 <= producer_id < MAX_PRODUCER_ID:
        raise UsageError(f"the id of producer {name!r}, {producer_id}, must be from 0 to {MAX_PRODUCER_ID - 1}")


def check_pin(name: str, ttl_ms: int, why: str = "") -> None:
    check_line("a pin name", name)
    if not 0 < ttl_ms <= MAX_PIN_MS:
        raise UsageError(f"a pin lasts at most {span(MAX_PIN_MS)}, not {span(ttl_ms)}; use for example 1d")
    if why:
        check_line(f"the reason for pin {name!r}", why)


def check_pin_effect(state: ControllerState, pin: Pin) -> None:
    """Raise `UsageError` if a pin cannot have taken effect with this M and these ends of journals."""
    if not NO_WATERMARK <= pin.watermark <= (NO_WATERMARK if pin.level_one else state.epoch):
        raise UsageError(f"pin {pin.name!r} holds M at {pin.watermark}, which is impossible")
    ends = pin.ends or []
    journals = [journal for journal, _ in ends]
    if journals != sorted(set(journals)) or not all(0 <= j < state.journals and end.offset >= 0 for j, end in ends):
        raise UsageError(f"pin {pin.name!r} names impossible ends of journals")


def check_table(topic: str, catalog: str, table: str) -> None:
    check_topic_name(topic)
    check_line("a catalog name", catalog)
    check_line("a table name", table)
    if not all(table.split(".")) or "." not in table:
        raise UsageError(f"table name {table!r} must look like namespace.name")


def _check_state(state: ControllerState) -> None:
    """Raise `UsageError` if no log can have led to the state of a checkpoint."""
    if state.epoch < 0:
        if state != ControllerState():
            raise UsageError("it has no epoch, but is not empty")
        return
    check_cluster_settings(state.cluster_id, state.shards, state.key_template, state.journals)
    if not is_epoch(state.epoch):
        raise UsageError(f"epoch {state.epoch} is impossible")
    for topic in (*state.topics.values(), *(d.topic for d in state.deleted)):
        check_topic(topic.name, topic.partitions, topic.topic_id)
        check_retention(topic.retention_ms, topic.retention_bytes)
        if topic.value_schema is not None:
            check_value_schema(topic.value_schema)
        if not (
            0 <= topic.schema_epoch <= state.epoch and (topic.schema_epoch > 0) == (topic.value_schema is not None)
        ):
            raise UsageError(f"topic {topic.name!r} has a value schema of an impossible epoch")
        placed = set(topic.journals)
        if not 1 <= len(topic.journals) == len(placed) <= topic.partitions:
            raise UsageError(f"topic {topic.name!r} lies in {len(topic.journals)} journals")
        if not (min(placed) >= 0 and max(placed) < state.journals and 0 < topic.revision <= state.epoch):
            raise UsageError(f"topic {topic.name!r} lies in no journal, or in no epoch")
    check_retention(state.retention_ms, state.retention_bytes)
    if not 0 <= state.jump.offset <= state.jump.epoch <= state.epoch:
        raise UsageError("its epoch has jumped to an impossible value")
    epochs = [e.epoch for e in state.epoch_times]
    if epochs != sorted(set(epochs)) or not all(0 <= e <= state.epoch for e in epochs):
        raise UsageError("the epochs whose times it keeps are impossible")
    for name, topic in state.topics.items():
        if name != topic.name:
            raise UsageError(f"topic {topic.name!r} is kept as {name!r}")
    for d in state.deleted:
        if not d.topic.revision < d.deleted_epoch <= state.epoch:
            raise UsageError(f"topic {d.topic.name!r} was deleted in an impossible epoch")
    for name, pin in state.pins.items():
        check_pin(pin.name, pin.end_ms - pin.created_ms, pin.why)
        if name != pin.name or not 0 < pin.revision <= state.epoch or not 0 < pin.offset <= pin.revision:
            raise UsageError(f"pin {name!r} is impossible")
        if pin.ends is not None:
            check_pin_effect(state, pin)
    for name, table in state.tables.items():
        check_table(table.topic, table.catalog, table.table)
        if name != table.topic or not 0 < table.revision <= state.epoch:
            raise UsageError(f"the table of topic {name!r} is impossible")
    for name, p in state.producers.items():
        check_producer(name, p.producer_id, p.run)
        if not -1 <= p.last_epoch < p.epoch:
            raise UsageError(f"producer {name!r} cannot be at epoch {p.epoch} after {p.last_epoch}")
