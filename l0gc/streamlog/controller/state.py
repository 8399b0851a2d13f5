"""The controller's state (pure).

Each entry begins an epoch, so creating a topic and advancing the epoch are one act. The epoch is the offset of the last
entry, until an operator makes it jump; from there it continues with each entry. A process that has read epoch E has read
every topic with a revision up to E, and a later topic admits nothing below its own revision, above E (hazard 5). A topic
that is created again has another revision, and so other keys (hazard 6). Each bump of a producer's epoch is an entry, so a
producer epoch stays below the cluster epoch and cannot run out first.

The state and the entry alone decide where a topic's partitions live, so all processes agree, and partitions never move.
A topic is a name and a few numbers, however many partitions it has.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from typing import Any, ClassVar, Final

import msgspec

from l0gc.epoch import NO_WATERMARK
from l0gc.errors import NotFoundError, UsageError, suggestion
from l0gc.formatting import Outcome
from l0gc.keys import DEFAULT_TEMPLATE, PartitionId
from l0gc.storage.entry import Place
from l0gc.streamlog.controller.value_schema import ValueSchema

UNLIMITED: Final = -1
"""A retention that keeps everything, as Kafka writes it."""
ALL_TOPICS: Final = -1
"""Stands for a topic's revision in a pin that keeps the L1 of every topic."""
_DAY_MS: Final = 24 * 3_600_000
RUN_LIMIT_MS: Final = 7 * _DAY_MS
"""How long after its start a run may begin at a journal that has not recorded it."""
NAME_EXPIRY_MS: Final = 2 * RUN_LIMIT_MS
"""How long after the start of its last run the controller forgets a name, which then gets a new producer id. A run of
the longest allowed duration can therefore be repeated for as long again.
"""
PRODUCER_EXPIRY_MS: Final = NAME_EXPIRY_MS + RUN_LIMIT_MS
"""How long after its last landing a journal forgets a producer or an input. A repeated run may have taken the name just
before it expired, and may run up to its time limit before it reads how far the input got.
"""
CLOSED_AFTER_MS: Final = _DAY_MS
"""A topic that a journal has not closed this long after its deletion is reported. It is less than
`EPOCH_TIMES_KEPT_MS`.
"""
EPOCH_TIME_STEP_MS: Final = 15 * 60_000
"""The shortest time between epochs whose times the state keeps."""
EPOCH_TIMES_KEPT_MS: Final = 3 * _DAY_MS
"""How long the state keeps these times: at most some hundred rows."""


class PartitionRange(msgspec.Struct, frozen=True):
    """Consecutive partitions of a topic in one journal."""

    journal: int
    first: int
    count: int

    @property
    def end(self) -> int:
        """Return the partition after the last one."""
        return self.first + self.count


class Topic(msgspec.Struct, Outcome, frozen=True, array_like=True):
    """One incarnation of a topic.

    Each of its journals keeps one range of consecutive partitions; the ranges' lengths differ by at most one.

    Attributes:
        name: The topic.
        revision: The epoch of its creation.
        partitions: How many it has.
        journals: The journals that keep them, in the order of the partitions.
        retention_ms: How long its records are kept, in milliseconds; -1 for unlimited, null if the cluster's default
            applies.
        retention_bytes: How many bytes of L1 each partition keeps, with the same special values.
        value_schema: The typed columns of its values in L1; None if there are none.
        schema_epoch: The epoch at which it got this schema. L1 objects of an earlier epoch lack its columns.
    """

    name: str
    revision: int
    partitions: int
    journals: tuple[int, ...]
    topic_id: str
    retention_ms: int | None = None
    retention_bytes: int | None = None
    value_schema: ValueSchema | None = None
    schema_epoch: int = 0
    hidden: ClassVar[frozenset[str]] = frozenset({"topic_id", "value_schema", "schema_epoch"})

    def to_json(self) -> dict[str, Any]:
        """Return the fields except the hidden ones, which only `topic describe` prints."""
        fields = msgspec.structs.asdict(self) | {"journals": list(self.journals)}
        return {name: value for name, value in fields.items() if name not in self.hidden}

    def partition_ranges(self) -> list[PartitionRange]:
        """Return the ranges of partitions, each with its journal, in order."""
        return [self._range(i) for i in range(len(self.journals))]

    def range_in(self, journal: int) -> PartitionRange | None:
        """Return the range of partitions that `journal` keeps, if any."""
        return self._range(self.journals.index(journal)) if journal in self.journals else None

    def _range(self, i: int) -> PartitionRange:
        first, end = (at * self.partitions // len(self.journals) for at in (i, i + 1))
        return PartitionRange(self.journals[i], first, end - first)

    def journal_of(self, partition: int) -> int:
        """Return the journal that keeps `partition`. Raises `UsageError` if the topic has no such partition."""
        self._check(partition)
        return self.journals[((partition + 1) * len(self.journals) - 1) // self.partitions]

    def id(self, partition: int) -> PartitionId:
        """Return the partition's id. Raises `UsageError` if the topic has no such partition."""
        self._check(partition)
        return PartitionId(self.name, self.revision, partition)

    def _check(self, partition: int) -> None:
        if not 0 <= partition < self.partitions:
            raise UsageError(f"topic {self.name!r} has the partitions 0 to {self.partitions - 1}, not {partition}")


class Retention(msgspec.Struct, frozen=True):
    """How long a partition keeps records, in milliseconds, and how many bytes of them; -1 for unlimited."""

    ms: int = UNLIMITED
    bytes: int = UNLIMITED


class EpochTime(msgspec.Struct, frozen=True, array_like=True):
    """The time when an epoch began, by the store's clock."""

    epoch: int
    time_ms: int


class DeletedTopic(msgspec.Struct, frozen=True, array_like=True):
    topic: Topic
    deleted_epoch: int


class Producer(msgspec.Struct, frozen=True, array_like=True):
    """A producer's newest run.

    `last_epoch` and `last_run` are those of the instance before its bump, -1 and '' if the instance was new (KIP-360).
    `time_ms` is when the bump landed, by the store's clock.
    """

    producer_id: int
    epoch: int
    last_epoch: int
    time_ms: int
    run: str
    last_run: str = ""

    def follows(self, other: Producer) -> bool:
        """Return whether `other`, a run of the same name, began before this one; a restored log may have an older run."""
        if self.producer_id != other.producer_id:  # the name was forgotten in between
            return self.time_ms >= other.time_ms
        return self.epoch > other.epoch or (self.epoch == other.epoch and self.run != other.run)


class Jump(msgspec.Struct, frozen=True, array_like=True):
    """A log offset, and the epoch that began there. Each entry after it begins the next epoch."""

    offset: int = 0
    epoch: int = 0


class LastTick(msgspec.Struct, frozen=True, array_like=True):
    expected: int
    caller: str


class Pin(msgspec.Struct, Outcome, frozen=True, array_like=True):
    """A promise that everything that a state of the cluster names stays readable until the pin ends.

    It ends with the first entry of this log at or after `end_ms`, so all processes agree on the end.

    Attributes:
        revision: the epoch of its creation. Objects that a journal drops from then on stay: see `pinned_from`.
        offset: the offset of its entry in this log.
        level_one: whether it lets M move.
        topic: the revision of the only topic whose dropped L1 objects stay, and for whose partitions `watermark`
            is computed; or ALL_TOPICS.
        watermark: the epoch that M does not pass; NO_WATERMARK until the pin has taken effect, and M does not move
            until then.
        ends: the place of the last entry of each journal in use when the pin took effect; None until then.
    """

    name: str
    revision: int
    offset: int
    created_ms: int
    end_ms: int
    level_one: bool
    why: str
    watermark: int = NO_WATERMARK
    ends: list[tuple[int, Place]] | None = None
    topic: int = ALL_TOPICS

    @property
    def in_effect(self) -> bool:
        return self.ends is not None

    def end(self, journal: int) -> Place:
        """Return the place in a journal as of which the pin promises a replay; if it was not in use, the one before the
        first entry.
        """
        return dict(self.ends or ()).get(journal, Place())


TABLE_PINS: Final = "table-"
"""The prefix of the names of tables' pins, which other pins may not have: a sync deletes those that its table does not
need.
"""


class TopicTable(msgspec.Struct, Outcome, frozen=True, array_like=True):
    """A topic's Iceberg table: `table` in PyIceberg's catalog `catalog`. It stays after its topic's deletion, until it is
    dropped.

    Metadata files are deleted only below `location`, where it was created (hazard 32).
    """

    topic: str
    revision: int
    catalog: str
    table: str
    location: str = ""

    @property
    def pin_prefix(self) -> str:
        """Return the prefix of the names of the pins that keep the objects of the table's snapshots."""
        return f"{TABLE_PINS}{self.revision}-"


class ControllerState(msgspec.Struct, array_like=True):
    """The cluster as of one epoch.

    `producers` are in the order in which their newest runs began. `epoch_times` holds about one epoch per quarter of an
    hour, oldest first. `retention_ms` and `retention_bytes` are for topics without their own settings. `jump` is the last
    entry by which an operator advanced the epoch by more than one.
    """

    cluster_id: str = ""
    shards: int = 0
    key_template: str = DEFAULT_TEMPLATE
    epoch: int = -1
    topics: dict[str, Topic] = {}
    deleted: list[DeletedTopic] = []
    producers: dict[str, Producer] = {}
    last_tick: LastTick | None = None
    time_ms: int = 0
    external_log: bool = False
    journals: int = 0
    epoch_times: list[EpochTime] = []
    retention_ms: int = UNLIMITED
    retention_bytes: int = UNLIMITED
    jump: Jump = Jump()
    pins: dict[str, Pin] = {}
    tables: dict[str, TopicTable] = {}

    def epoch_at(self, offset: int) -> int:
        """Return the epoch that the entry at an offset after the last jump begins."""
        return self.jump.epoch + offset - self.jump.offset

    def copy(self) -> ControllerState:
        """Return a separate state; its values are immutable."""
        return msgspec.structs.replace(
            self,
            topics=dict(self.topics),
            deleted=list(self.deleted),
            producers=dict(self.producers),
            epoch_times=list(self.epoch_times),
            pins=dict(self.pins),
            tables=dict(self.tables),
        )

    def topic(self, name: str, revision: int | None = None) -> Topic:
        """Return the topic, which must have this revision unless it is None. Raises `NotFoundError`, with the nearest
        name.
        """
        if (topic := self.topics.get(name)) is None:
            hint = suggestion(name, self.topics, "run l0gc topic list")
            raise NotFoundError(f"topic {name!r} does not exist; {hint}")
        if revision not in (None, topic.revision):
            raise NotFoundError(
                f"topic {name!r} (revision {revision}) was deleted, and created again with revision {topic.revision}; "
                "the new topic was left as it is"
            )
        return topic

    def producer(self, name: str) -> Producer:
        """Return the producer. Raises `NotFoundError`, with the nearest name."""
        if name in self.producers:
            return self.producers[name]
        hint = suggestion(name, self.producers, "run l0gc producer list")
        raise NotFoundError(f"producer {name!r} does not exist, or has expired; {hint}")

    def retention(self, topic: Topic) -> Retention:
        """Return a topic's retention: its own settings, or the cluster's for those that it does not have."""
        return Retention(
            self.retention_ms if topic.retention_ms is None else topic.retention_ms,
            self.retention_bytes if topic.retention_bytes is None else topic.retention_bytes,
        )

    def epoch_before(self, time_ms: int) -> int:
        """Return the newest epoch known to have begun by `time_ms`, by the store's clock; 0 if there is none."""
        if time_ms >= self.time_ms:
            return max(0, self.epoch)
        return max((e.epoch for e in self.epoch_times if e.time_ms <= time_ms), default=0)

    def may_begin(self, producer_id: int, epoch: int, run: str, now_ms: int) -> bool:
        """Return whether this run of a producer may begin at a journal without a record of it.

        It must be the newest run and have begun recently. The journal may have forgotten an older run together with its
        landed objects, which would then land again (hazard 17).
        """
        return any(
            (p.producer_id, p.epoch, p.run) == (producer_id, epoch, run) and now_ms - p.time_ms < RUN_LIMIT_MS
            for p in self.producers.values()
        )

    def table(self, topic: str) -> TopicTable:
        """Return the topic's table. Raises `NotFoundError`, with the nearest name."""
        if topic in self.tables:
            return self.tables[topic]
        hint = suggestion(topic, self.tables, "run l0gc table list")
        raise NotFoundError(f"topic {topic!r} has no table; {hint}")

    def topic_of(self, table: TopicTable) -> Topic | None:
        """Return the table's topic; None if it was deleted, even if another topic has its name."""
        topic = self.topics.get(table.topic)
        return topic if topic is not None and topic.revision == table.revision else None

    # -- pins ---------------------------------------------------------------------------------------------------------

    def pin(self, name: str, revision: int | None = None) -> Pin:
        """Return the pin, which must have this revision unless it is None. Raises `NotFoundError`, with the nearest
        name.
        """
        if (pin := self.pins.get(name)) is None:
            hint = suggestion(name, self.pins, "run l0gc pin list")
            raise NotFoundError(f"pin {name!r} does not exist, or has ended; {hint}")
        if revision not in (None, pin.revision):
            raise NotFoundError(
                f"pin {name!r} of epoch {revision} has ended; that of epoch {pin.revision} was left as it is"
            )
        return pin

    def pins_of(self, table: TopicTable) -> dict[str, Pin]:
        """Return the pins of the table's snapshots, by name; a sync that died may have left some."""
        return {n: p for n, p in self.pins.items() if n.startswith(table.pin_prefix)}

    def pinned_from(self, topic: int) -> int | None:
        """Return the epoch from which on no object that a topic drops may be deleted; None if there is no pin.

        Before a pin takes effect, each journal's window reaches the pin's epoch. A dropped object is recorded with at least
        the window's epoch, so one with a lower epoch was dropped before the pin.
        """
        return min((p.revision for p in self.pins.values() if p.topic in {ALL_TOPICS, topic}), default=None)

    def pinned_at(self, journal: int | None) -> frozenset[int]:
        """Return the offsets of a journal's log, or of this one (None), as of which a pin may need a replay.

        -1 means that all of the log may be needed: the pin has not taken effect, or the journal was not in use then.
        """
        ends = (p.offset if journal is None else p.end(journal).offset for p in self.pins.values())
        return frozenset(ends)

    # -- topics and their journals ------------------------------------------------------------------------------------

    @property
    def partition_count(self) -> int:
        return sum(t.partitions for t in self.topics.values())

    def journals_in_use(self) -> list[int]:
        """Return the journals that keep a partition of a topic, in order."""
        return list(by_journal(self.topics.values()))

    def topics_of(self, journal: int) -> list[tuple[Topic, PartitionRange]]:
        """Return the topics with partitions in `journal`, by name, each with these partitions."""
        ranges = ((self.topics[name], self.topics[name].range_in(journal)) for name in sorted(self.topics))
        return [(topic, partition_range) for topic, partition_range in ranges if partition_range is not None]

    def has_created(self, revision: int, topic_id: str) -> bool:
        """Return whether this log ever created that topic. If not, but a journal holds it, this log was set back."""
        topics = (*self.topics.values(), *(d.topic for d in self.deleted))
        return any((t.revision, t.topic_id) == (revision, topic_id) for t in topics)

    def deleted_of(self) -> dict[int, list[Topic]]:
        """Return the deleted topics that are not forgotten, for each journal that kept them.

        They are forgotten once each of these journals has closed them (`l0gc/streamlog/garbage.py`); until then each
        housekeeping closes them in the journals that have not done so.
        """
        return by_journal(d.topic for d in self.deleted)

    def to_be_closed_by(self, now_ms: int) -> list[Topic]:
        """Return the topics that were deleted long enough ago that each journal should have closed them, by the store's
        clock.
        """
        epoch = self.epoch_before(now_ms - CLOSED_AFTER_MS)
        return [d.topic for d in self.deleted if d.deleted_epoch <= epoch]

    def least_used_journals(self, journals: int) -> tuple[int, ...]:
        """Return the `journals` journals that have the fewest partitions; among equals, the lowest numbers."""
        partitions_of: Counter[int] = Counter()
        for topic in self.topics.values():
            if len(topic.journals) == 1:  # most topics; a replay calls this for each topic that was created
                partitions_of[topic.journals[0]] += topic.partitions
                continue
            for partition_range in topic.partition_ranges():
                partitions_of[partition_range.journal] += partition_range.count
        return tuple(heapq.nsmallest(journals, range(self.journals), key=lambda j: (partitions_of[j], j)))


def by_journal(topics: Iterable[Topic]) -> dict[int, list[Topic]]:
    """Group topics by the journals that keep their partitions, in the order of the journals."""
    topics_by_journal: dict[int, list[Topic]] = {}
    for topic in topics:
        for journal in topic.journals:
            topics_by_journal.setdefault(journal, []).append(topic)
    return dict(sorted(topics_by_journal.items()))
