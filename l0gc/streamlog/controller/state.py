"""The controller's entries and what they do to its state (pure).

What makes it safe: the cluster epoch is the offset of the last entry, so creating a topic and advancing the epoch are the
same act. Whoever has read epoch E has read every topic with revision <= E, and a later topic admits nothing below its own
revision, which is above E (hazard 5). A topic that is created again has another revision, hence other keys (hazard 6).
A new producer's id is the offset of its entry, so no id is ever given twice, and each bump of an epoch is an entry, so a
producer epoch stays below the cluster epoch and cannot run out before that does.
"""

from __future__ import annotations

from typing import Final

import msgspec

from l0gc.errors import (
    ClusterMismatchError,
    CorruptObjectError,
    EpochExpectationError,
    ExternalLogError,
    InvalidProducerEpochError,
    NotFoundError,
    TopicExistsError,
    TopicNotFoundError,
    UsageError,
    suggestion,
)
from l0gc.keys import DEFAULT_TEMPLATE, PartitionId, check_topic_name
from l0gc.storage.log import Landed

PRODUCER_EXPIRY_MS: Final = 7 * 24 * 3_600_000
"""A partition forgets a producer, and an input, of which nothing landed for this long (KIP-360)."""
NAME_EXPIRY_MS: Final = 2 * PRODUCER_EXPIRY_MS
"""The controller forgets a name for which no run began for this long; the name then gets a new producer id. It hears of a
run when that begins, so a name has to outlive what partitions know of the run by as long as a run may take."""
CLOSE_EPOCHS: Final = 1000
"""For how many epochs a deleted topic's partitions are still closed by housekeeping, in case the deleter crashed."""
MAX_PARTITIONS: Final = 100_000


class Bootstrap(msgspec.Struct, frozen=True, tag="bootstrap"):
    """The cluster's first entry, at offset 0.

    `external_log`: epochs and partitions are those of another system, which keeps a log of its own. The controller log holds
    this entry alone then.
    """

    cluster_id: str
    shards: int
    key_template: str = DEFAULT_TEMPLATE
    external_log: bool = False


class CreateTopic(msgspec.Struct, frozen=True, tag="create_topic"):
    name: str
    partitions: int


class DeleteTopic(msgspec.Struct, frozen=True, tag="delete_topic"):
    name: str
    revision: int


class Tick(msgspec.Struct, frozen=True, tag="tick"):
    """Advances the epoch. `expected` and `caller` make a retry recognisable; -1 and '' where nobody expects anything."""

    expected: int = -1
    caller: str = ""


class InitProducer(msgspec.Struct, frozen=True, tag="init_producer"):
    """Gives `name` a new producer epoch; `producer_id` is -1 for "a new one" (the entry's offset)."""

    name: str
    producer_id: int
    epoch: int
    last_epoch: int


ControllerEntry = Bootstrap | CreateTopic | DeleteTopic | Tick | InitProducer


class Topic(msgspec.Struct):
    """One incarnation of a topic; `revision` is the epoch of its creation."""

    name: str
    revision: int
    partitions: int

    def ids(self) -> list[PartitionId]:
        return [PartitionId(self.name, self.revision, p) for p in range(self.partitions)]


class DeletedTopic(msgspec.Struct):
    topic: Topic
    deleted_epoch: int


class Producer(msgspec.Struct):
    """`last_epoch` is the epoch that the last bump came from, -1 if that was a new instance (KIP-360).

    `time_ms` is when the bump landed, by the store's clock.
    """

    producer_id: int
    epoch: int
    last_epoch: int
    time_ms: int


class LastTick(msgspec.Struct):
    expected: int
    caller: str


class ControllerState(msgspec.Struct):
    """The cluster as of one epoch."""

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

    def may_begin(self, producer_id: int, epoch: int, now_ms: int) -> bool:
        """Whether this run of a producer may begin at a partition that does not know it.

        It must be the newest run, and have begun within the time that a partition remembers one. An older run may have
        been forgotten there together with what it landed, which it could then land again.
        """
        return any(
            (p.producer_id, p.epoch) == (producer_id, epoch) and now_ms - p.time_ms < PRODUCER_EXPIRY_MS
            for p in self.producers.values()
        )

    def knows(self, name: str, revision: int) -> bool:
        """Whether this incarnation of a topic was ever created, as far as this log goes."""
        live = self.topics.get(name)
        return (live is not None and live.revision == revision) or any(
            (d.topic.name, d.topic.revision) == (name, revision) for d in self.deleted
        )

    def to_be_closed(self) -> list[PartitionId]:
        """The partitions of topics that were deleted not long ago."""
        return [p for d in self.deleted if d.deleted_epoch > self.epoch - CLOSE_EPOCHS for p in d.topic.ids()]

    def partitions(self) -> list[PartitionId]:
        """Every partition of every topic, in a stable order."""
        return [p for name in sorted(self.topics) for p in self.topics[name].ids()]


# Built at import, by one thread: msgspec learns a type at its first use, and two threads doing that at once crash it.
_STATE: Final = msgspec.json.Decoder(ControllerState)
_ENTRY: Final = msgspec.json.Decoder(ControllerEntry)


class ControllerMachine:
    """What each entry does to the state."""

    def initial(self) -> ControllerState:
        return ControllerState()

    def encode(self, state: ControllerState) -> bytes:
        return msgspec.json.encode(state)

    def decode(self, body: bytes, source: str) -> ControllerState:
        try:
            return _STATE.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
            raise CorruptObjectError(f"{source} is not a controller checkpoint: {e}") from e

    def apply(self, state: ControllerState, entry: Landed) -> None:
        try:
            e = _ENTRY.decode(entry.payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise CorruptObjectError(f"controller log entry {entry.offset} cannot be read: {error}") from error
        if isinstance(e, Bootstrap) != (entry.offset == 0):
            raise CorruptObjectError(
                f"controller log entry {entry.offset}: a bootstrap belongs at offset 0 and only there"
            )
        match e:
            case Bootstrap():
                state.cluster_id, state.shards, state.key_template = e.cluster_id, e.shards, e.key_template
                state.external_log = e.external_log
            case CreateTopic():
                if e.name in state.topics or not 1 <= e.partitions <= MAX_PARTITIONS:
                    raise CorruptObjectError(f"controller log entry {entry.offset} creates topic {e.name!r} wrongly")
                state.topics[e.name] = Topic(e.name, entry.offset, e.partitions)
            case DeleteTopic():
                topic = state.topics.get(e.name)
                if topic is None or topic.revision != e.revision:
                    raise CorruptObjectError(f"controller log entry {entry.offset} deletes no topic: {e.name!r}")
                del state.topics[e.name]
                state.deleted.append(DeletedTopic(topic, entry.offset))
            case InitProducer():
                if not _is_bump(state.producers.get(e.name), e):
                    raise CorruptObjectError(f"controller log entry {entry.offset} bumps producer {e.name!r} wrongly")
                producer_id = entry.offset if e.producer_id == -1 else e.producer_id
                state.producers[e.name] = Producer(producer_id, e.epoch, e.last_epoch, entry.time_ms)
            case Tick():
                pass
        state.last_tick = LastTick(e.expected, e.caller) if isinstance(e, Tick) else None
        state.epoch = entry.offset
        state.time_ms = entry.time_ms
        state.producers = {n: p for n, p in state.producers.items() if p.time_ms > entry.time_ms - NAME_EXPIRY_MS}


def _is_bump(known: Producer | None, e: InitProducer) -> bool:
    """Whether the entry is one that `decide_init_producer` makes.

    A new id is taken for a name that is known, too: whoever wrote the entry may have had a shorter `NAME_EXPIRY_MS`.
    """
    if e.producer_id == -1:
        return (e.epoch, e.last_epoch) == (0, -1)
    return (
        known is not None
        and (e.producer_id, e.epoch) == (known.producer_id, known.epoch + 1)
        and e.last_epoch in (-1, known.epoch)
    )


# -- decisions --------------------------------------------------------------------------------------------------------


def decide_bootstrap(state: ControllerState, entry: Bootstrap, expected: str | None) -> Bootstrap | None:
    """Bootstrap a cluster, once; None if it was done before.

    Raises:
        ClusterMismatchError: the bucket is another cluster's than `expected` (hazard 11).
        UsageError: the cluster was created with another key layout.
    """
    if state.epoch < 0:
        return entry
    check_cluster(state, expected)
    if (state.shards, state.key_template) != (entry.shards, entry.key_template):
        raise UsageError(
            f"this cluster was initialised with {state.shards} shards and keys {state.key_template!r}; "
            "that cannot change, so leave --shards and --key-template out"
        )
    if state.external_log != entry.external_log:
        raise UsageError("this cluster was initialised without --external-log; that cannot change")
    return None


def check_no_external_log(state: ControllerState) -> None:
    """Raises `ExternalLogError` where epochs are another system's: an entry of ours would make another epoch of its own."""
    if state.external_log:
        raise ExternalLogError(
            "this cluster's epochs and topics are those of another system (l0gc init --external-log); l0gc neither advances "
            "them nor takes data here"
        )


def check_cluster(state: ControllerState, expected: str | None) -> None:
    """Raises `ClusterMismatchError` if the cluster is not the expected one (hazard 11)."""
    if expected is not None and state.cluster_id != expected:
        raise ClusterMismatchError(
            f"this bucket belongs to cluster {state.cluster_id}, not {expected}; check --url and --cluster-id"
        )


def decide_create_topic(state: ControllerState, name: str, partitions: int) -> CreateTopic | None:
    """Create a topic; None if it exists with as many partitions.

    Raises:
        UsageError: the name or the number of partitions cannot be.
        TopicExistsError: it exists with another number of partitions.
    """
    check_topic_name(name)
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise UsageError(f"a topic has 1 to {MAX_PARTITIONS} partitions, not {partitions}")
    topic = state.topics.get(name)
    if topic is None:
        return CreateTopic(name, partitions)
    if topic.partitions != partitions:
        raise TopicExistsError(f"topic {name!r} exists with {topic.partitions} partitions, not {partitions}")
    return None


def decide_advance(state: ControllerState, expected: int | None, caller: str) -> Tick | None:
    """Advance the epoch; None if this caller's earlier advance, whose reply was lost, has done so (KIP-360's rule).

    Raises:
        EpochExpectationError: the epoch is neither `expected` nor what this caller made of it.
    """
    if expected is None:
        return Tick()
    if expected == state.epoch:
        return Tick(expected, caller)
    if state.last_tick == LastTick(expected, caller):
        return None
    raise EpochExpectationError(
        f"the cluster epoch is {state.epoch}, not {expected}, and not because of an advance by {caller!r}; "
        "look at l0gc epoch show before you advance it"
    )


def decide_init_producer(
    state: ControllerState, name: str, producer_id: int | None, epoch: int | None
) -> InitProducer | None:
    """Bump a producer's epoch; None if the bump was done by this instance before and its reply was lost (KIP-360).

    Args:
        name: 1 to 200 characters.
        producer_id, epoch: what this instance has; None for both if it is a new one, which fences all before it.

    Raises:
        InvalidProducerEpochError: another instance has bumped it since; this one is fenced.
        UsageError: the name cannot be one, or only one of id and epoch is given.
    """
    if not name or len(name) > 200:
        raise UsageError(f"producer name {name!r} must have 1 to 200 characters")
    if (producer_id is None) != (epoch is None):
        raise UsageError(f"an instance of producer {name!r} has an id and an epoch, a new one has neither")
    producer = state.producers.get(name)
    if epoch is None:
        if producer is None:
            return InitProducer(name, -1, 0, -1)
        return InitProducer(name, producer.producer_id, producer.epoch + 1, -1)
    if producer is None or producer.producer_id != producer_id:
        raise InvalidProducerEpochError(f"producer {name!r} has no id {producer_id}; start it anew, without an epoch")
    if epoch == producer.epoch:
        return InitProducer(name, producer.producer_id, epoch + 1, epoch)
    if 0 <= epoch == producer.last_epoch:  # -1 stands for "none", which nobody can have
        return None
    raise InvalidProducerEpochError(
        f"producer {name!r} is at epoch {producer.epoch}: a newer instance has fenced epoch {epoch}"
    )
