"""The controller's state, and what each entry does to it (pure).

What makes it safe: the cluster epoch is the offset of the last entry, so creating a topic and advancing the epoch are the
same act. Whoever has read epoch E has read every topic with revision <= E, and a later topic admits nothing below its own
revision, which is above E (hazard 5). A topic that is created again has another revision, hence other keys (hazard 6).
Each bump of a producer's epoch is an entry, so a producer epoch stays below the cluster epoch and cannot run out before
that does.

Where a topic's partitions live is decided here, from nothing but the state and the entry, so that all agree; it never
changes. A topic is a name and a few numbers, however many partitions it has.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

import msgspec

from l0gc.epoch import is_epoch
from l0gc.errors import CorruptObjectError, NotFoundError, TopicNotFoundError, UsageError, suggestion
from l0gc.keys import DEFAULT_TEMPLATE, KeyLayout, PartitionId, check_topic_name
from l0gc.storage.log import Landed
from l0gc.streamlog.controller.entries import (
    MAX_JOURNALS,
    MAX_PARTITIONS,
    MAX_PRODUCER_ID,
    MAX_TEMPLATE,
    Bootstrap,
    ControllerEntry,
    CreateTopic,
    DeleteTopic,
    InitProducer,
    Tick,
    decode_entry,
    is_text,
)

_DAY_MS: Final = 24 * 3_600_000
RUN_LIMIT_MS: Final = 7 * _DAY_MS
"""For how long after its beginning a run may begin at a journal that does not know it."""
NAME_EXPIRY_MS: Final = 2 * RUN_LIMIT_MS
"""The controller forgets a name for which no run began for this long; the name then gets a new producer id. It hears of a
run when that begins, so a run that takes as long as it may can be repeated for as long again."""
PRODUCER_EXPIRY_MS: Final = NAME_EXPIRY_MS + RUN_LIMIT_MS
"""A journal forgets a producer, and an input, of which nothing landed for this long. Whoever repeats a run has asked for the
name before it expired, and may take as long as a run may until it asks the journal how far the input got."""
CLOSE_EPOCHS: Final = 1000
"""For how many epochs a deleted topic is still closed in its journals by housekeeping, in case the deleter crashed."""


@dataclass(frozen=True, slots=True)
class JournalRun:
    """Consecutive partitions of a topic, which one journal keeps."""

    journal: int
    first: int
    count: int


class Topic(msgspec.Struct, frozen=True, array_like=True):
    """One incarnation of a topic; `revision` is the epoch of its creation.

    Its partitions lie in `journals`, in as many runs of consecutive partitions, whose lengths differ by one at most.
    """

    name: str
    revision: int
    partitions: int
    journals: tuple[int, ...]
    topic_id: str

    def runs(self) -> list[JournalRun]:
        """Which journal keeps which partitions, in their order."""
        return [self._run(i) for i in range(len(self.journals))]

    def run_in(self, journal: int) -> JournalRun | None:
        """What `journal` keeps of the topic."""
        return self._run(self.journals.index(journal)) if journal in self.journals else None

    def _run(self, i: int) -> JournalRun:
        first, end = (at * self.partitions // len(self.journals) for at in (i, i + 1))
        return JournalRun(self.journals[i], first, end - first)

    def journal_of(self, partition: int) -> int:
        """The journal that keeps `partition`. Raises `UsageError`: the topic has no such partition."""
        self._check(partition)
        return self.journals[((partition + 1) * len(self.journals) - 1) // self.partitions]

    def id(self, partition: int) -> PartitionId:
        """The partition. Raises `UsageError`: the topic has no such partition."""
        self._check(partition)
        return PartitionId(self.name, self.revision, partition)

    def _check(self, partition: int) -> None:
        if not 0 <= partition < self.partitions:
            raise UsageError(f"topic {self.name!r} has the partitions 0 to {self.partitions - 1}, not {partition}")


class DeletedTopic(msgspec.Struct, frozen=True, array_like=True):
    topic: Topic
    deleted_epoch: int


class Producer(msgspec.Struct, frozen=True, array_like=True):
    """A producer's newest run.

    `last_epoch` and `last_run` are what an instance bumped its own epoch from, -1 and '' if the instance was new (KIP-360).
    `time_ms` is when the bump landed, by the store's clock.
    """

    producer_id: int
    epoch: int
    last_epoch: int
    time_ms: int
    run: str
    last_run: str = ""


class LastTick(msgspec.Struct, frozen=True, array_like=True):
    expected: int
    caller: str


class ControllerState(msgspec.Struct, array_like=True):
    """The cluster as of one epoch. `producers` are in the order in which their newest runs began."""

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

    def copy(self) -> ControllerState:
        """A state of its own; what it holds cannot change."""
        return msgspec.structs.replace(
            self, topics=dict(self.topics), deleted=list(self.deleted), producers=dict(self.producers)
        )

    def topic(self, name: str) -> Topic:
        """The topic. Raises `TopicNotFoundError`, with the nearest name."""
        if name in self.topics:
            return self.topics[name]
        hint = suggestion(name, self.topics, "l0gc topic list shows what there is")
        raise TopicNotFoundError(f"there is no topic {name!r}; {hint}")

    def producer(self, name: str) -> Producer:
        """The producer. Raises `NotFoundError`, with the nearest name."""
        if name in self.producers:
            return self.producers[name]
        hint = suggestion(name, self.producers, "l0gc producer list shows what there is")
        raise NotFoundError(f"there is no producer {name!r}, or it was forgotten; {hint}")

    def may_begin(self, producer_id: int, epoch: int, run: str, now_ms: int) -> bool:
        """Whether this run of a producer may begin at a journal that does not know it.

        It must be the newest run, and have begun not long ago. An older run may have been forgotten there together with
        what it landed, which it could then land again (hazard 17).
        """
        return any(
            (p.producer_id, p.epoch, p.run) == (producer_id, epoch, run) and now_ms - p.time_ms < RUN_LIMIT_MS
            for p in self.producers.values()
        )

    # -- topics and their journals ------------------------------------------------------------------------------------

    @property
    def partition_count(self) -> int:
        """The partitions of all topics."""
        return sum(t.partitions for t in self.topics.values())

    def journals_in_use(self) -> list[int]:
        """The journals that keep a partition of a topic, in their order."""
        return sorted({j for t in self.topics.values() for j in t.journals})

    def topics_of(self, journal: int) -> list[tuple[Topic, JournalRun]]:
        """The topics of which `journal` keeps partitions, by name, and which partitions these are."""
        runs = ((self.topics[name], self.topics[name].run_in(journal)) for name in sorted(self.topics))
        return [(topic, run) for topic, run in runs if run is not None]

    def knows(self, revision: int, topic_id: str) -> bool:
        """Whether this log ever created that topic. One that a journal holds and this log does not know: it went back."""
        topics = (*self.topics.values(), *(d.topic for d in self.deleted))
        return any((t.revision, t.topic_id) == (revision, topic_id) for t in topics)

    def to_be_closed(self) -> dict[int, list[Topic]]:
        """The topics that were deleted not long ago, for each journal that kept them."""
        found: dict[int, list[Topic]] = {}
        for d in self.deleted:
            if d.deleted_epoch > self.epoch - CLOSE_EPOCHS:
                for journal in d.topic.journals:
                    found.setdefault(journal, []).append(d.topic)
        return found

    def place(self, journals: int) -> tuple[int, ...]:
        """The `journals` journals that have the fewest partitions; of those with as many, the lowest numbers."""
        held: Counter[int] = Counter()
        for topic in self.topics.values():
            for run in topic.runs():
                held[run.journal] += run.count
        return tuple(heapq.nsmallest(journals, range(self.journals), key=lambda j: (held[j], j)))


# Built at import, by one thread: msgspec learns a type at its first use, and two threads doing that at once crash it.
_STATE: Final = msgspec.msgpack.Decoder(ControllerState)
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
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
            raise CorruptObjectError(f"{source} is not a controller checkpoint: {e}") from e
        if (why := _contradiction(state)) is not None:
            raise CorruptObjectError(f"{source} is not a controller checkpoint: {why}")
        return state

    def apply(self, state: ControllerState, entry: Landed) -> None:
        e = decode_entry(entry.offset, entry.payload)
        if (why := refusal(state, entry.offset, e)) is not None:
            raise CorruptObjectError(f"controller log entry {entry.offset} {why}")
        now_ms = max(state.time_ms, entry.time_ms)
        match e:
            case Bootstrap():
                state.cluster_id, state.shards, state.key_template = e.cluster_id, e.shards, e.key_template
                state.external_log, state.journals = e.external_log, e.journals
            case CreateTopic():
                placed = state.place(e.journals)
                state.topics[e.name] = Topic(e.name, entry.offset, e.partitions, placed, e.topic_id)
            case DeleteTopic():
                state.deleted.append(DeletedTopic(state.topics.pop(e.name), entry.offset))
            case InitProducer():
                known = state.producers.pop(e.name, None)  # so that it is the last one again
                last_run = known.run if known is not None and e.last_epoch >= 0 else ""
                state.producers[e.name] = Producer(e.producer_id, e.epoch, e.last_epoch, now_ms, e.run, last_run)
            case Tick():
                pass
        state.last_tick = LastTick(e.expected, e.caller) if isinstance(e, Tick) else None
        state.epoch = entry.offset
        state.time_ms = now_ms
        # The producers whose newest runs began too long ago are the first ones.
        for name in list(takewhile(lambda n: state.producers[n].time_ms <= now_ms - NAME_EXPIRY_MS, state.producers)):
            del state.producers[name]


# -- what the log may hold --------------------------------------------------------------------------------------------


def refusal(state: ControllerState, offset: int, e: ControllerEntry) -> str | None:
    """What is wrong with an entry at this place of the log, None if nothing is.

    The only judge: `apply` asks it about what it reads, and whoever appends asks it before, so that nothing lands that stops
    the log.
    """
    if offset != state.epoch + 1 or not is_epoch(offset):
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
            why = _bad_topic(e.name, e.partitions, e.topic_id)
            return None if why is None else f"creates no topic: {why}"
        case DeleteTopic():
            topic = state.topics.get(e.name)
            return None if topic is not None and topic.revision == e.revision else f"deletes no topic: {e.name!r}"
        case InitProducer():
            return None if _is_bump(state, e) else f"bumps producer {e.name!r} wrongly"
        case Tick():
            return None if e.caller == "" or is_text(e.caller) else "ticks for a caller that cannot be"


def _is_bump(state: ControllerState, e: InitProducer) -> bool:
    """Whether the entry is one that `decide_init_producer` makes.

    A new id is taken for a name that is known, too: whoever wrote the entry may have had a shorter `NAME_EXPIRY_MS`.
    """
    known = state.producers.get(e.name)
    if not is_text(e.name) or not is_text(e.run) or not 0 <= e.producer_id < MAX_PRODUCER_ID:
        return False
    if known is not None and e.producer_id == known.producer_id:
        return e.epoch == known.epoch + 1 and e.last_epoch in (-1, known.epoch) and e.run != known.run
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


def _contradiction(state: ControllerState) -> str | None:
    """What no log can have led to, None if there is nothing."""
    if state.epoch < 0:
        return None if state == ControllerState() else "it is of no epoch, and not empty"
    why = _bad_cluster(state.cluster_id, state.shards, state.key_template, state.journals)
    if why is not None or not is_epoch(state.epoch):
        return why or f"epoch {state.epoch} cannot be"
    for topic in (*state.topics.values(), *(d.topic for d in state.deleted)):
        why = _bad_topic(topic.name, topic.partitions, topic.topic_id)
        placed = set(topic.journals)
        if why is None and not 1 <= len(topic.journals) == len(placed) <= topic.partitions:
            why = f"topic {topic.name!r} lies in {len(topic.journals)} journals"
        if why is None and not (
            min(placed) >= 0 and max(placed) < state.journals and 0 < topic.revision <= state.epoch
        ):
            why = f"topic {topic.name!r} lies in no journal, or in no epoch"
        if why is not None:
            return why
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
