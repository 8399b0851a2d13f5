"""What to append to the controller's log, or why nothing may be (pure).

Each decision is made against the state at the very offset where its entry lands. It says what is wrong in the words of
its caller; what it returns is an entry that `entry_refusal` has nothing against.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from msgspec import UNSET, UnsetType

from l0gc.errors import (
    ClusterMismatchError,
    EpochRegressionError,
    InvalidProducerEpochError,
    NotFoundError,
    ProtocolError,
    SafetyError,
    UsageError,
)
from l0gc.formatting import count, moment
from l0gc.streamlog.controller import entries
from l0gc.streamlog.controller.state import ControllerState, LastTick, Topic, TopicTable

TICK_SLACK: Final = 20
"""A tick is due a twentieth of the interval early."""
LEAST_SCHEDULE_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    """What somebody wants a topic's, or the cluster's, retention to be, in milliseconds and bytes.

    -1 is unlimited, None the cluster's default; what is not given stays.
    """

    ms: int | UnsetType | None = UNSET
    bytes: int | UnsetType | None = UNSET

    def check(self) -> None:
        """Raises `UsageError`: a number cannot be."""
        for name, value in (("retention-ms", self.ms), ("retention-bytes", self.bytes)):
            if isinstance(value, int) and not entries.UNLIMITED <= value <= entries.MAX_RETENTION:
                raise UsageError(
                    f"--{name} {value} cannot be; give a number from 0 to {entries.MAX_RETENTION}, or -1 for unlimited"
                )

    def over(self, topic: Topic | None) -> tuple[int | None, int | None]:
        """A topic's settings as they are wanted, where it has some already."""
        old = (None, None) if topic is None else (topic.retention_ms, topic.retention_bytes)
        ms = old[0] if isinstance(self.ms, UnsetType) else self.ms
        return ms, old[1] if isinstance(self.bytes, UnsetType) else self.bytes


NOT_GIVEN: Final = RetentionSettings()


def decide_bootstrap(
    state: ControllerState, entry: entries.Bootstrap, expected: str | None
) -> entries.Bootstrap | None:
    """Bootstrap a cluster, once; None if it was done before.

    Raises:
        ClusterMismatchError: the bucket is another cluster's than `expected` (hazard 11).
        UsageError: the cluster cannot be so, or was created with another key layout or other journals.
    """
    if state.epoch < 0:
        entries.check_founded(entry.cluster_id, entry.shards, entry.key_template, entry.journals)
        return entry
    check_cluster(state, expected)
    if (state.shards, state.key_template) != (entry.shards, entry.key_template):
        raise UsageError(
            f"this cluster was initialised with {state.shards} shards and keys {state.key_template!r}; "
            "that cannot change, so leave --shards and --key-template out"
        )
    if state.journals != entry.journals:
        raise UsageError(
            f"this cluster was initialised with {count(state.journals, 'journal')}; "
            "that cannot change, so leave --journals out"
        )
    if state.external_log != entry.external_log:
        raise UsageError("this cluster was initialised without --external-log; that cannot change")
    return None


def check_no_external_log(state: ControllerState) -> None:
    """Raises `SafetyError` if epochs are another system's: an entry of ours would count a second epoch."""
    if state.external_log:
        raise SafetyError(
            "this cluster's epochs and topics are those of another system (l0gc init --external-log); l0gc neither advances "
            "them nor takes data here"
        )


def check_cluster(state: ControllerState, expected: str | None) -> None:
    """Raises `ClusterMismatchError` if the cluster is not the expected one (hazard 11)."""
    if expected is not None and state.cluster_id != expected:
        raise ClusterMismatchError(
            f"this bucket belongs to cluster {state.cluster_id}, not {expected}; check --url and --cluster-id"
        )


def decide_create_topic(
    state: ControllerState,
    name: str,
    partitions: int,
    journals: int | None,
    topic_id: str,
    retention: RetentionSettings = NOT_GIVEN,
) -> entries.CreateTopic | None:
    """Create a topic; None if it exists and is as wanted.

    Args:
        journals: into how many its partitions go. None: one, and any number that a topic which exists has.
        retention: what is not given is the cluster's default, and whatever a topic which exists has.

    Raises:
        UsageError: the name or a number cannot be, or it exists with other partitions, journals or retention.
    """
    entries.check_topic(name, partitions, topic_id)
    retention.check()
    topic = state.topics.get(name)
    if topic is not None:
        if topic.partitions != partitions:
            raise UsageError(f"topic {name!r} exists with {topic.partitions} partitions, not {partitions}")
        if journals is not None and len(topic.journals) != journals:
            raise UsageError(f"topic {name!r} exists in {count(len(topic.journals), 'journal')}, not {journals}")
        if retention.over(topic) != (topic.retention_ms, topic.retention_bytes):
            raise UsageError(f"topic {name!r} exists with another retention; l0gc topic alter changes it")
        return None
    wanted = 1 if journals is None else journals
    if not 1 <= wanted <= min(partitions, state.journals):
        raise UsageError(
            f"{count(partitions, 'partition')} cannot lie in {wanted} journals: this cluster has {state.journals}, "
            "and each of them takes one partition or more"
        )
    return entries.CreateTopic(name, partitions, wanted, topic_id, *retention.over(None))


def decide_alter_topic(state: ControllerState, name: str, retention: RetentionSettings) -> entries.AlterTopic | None:
    """Change a topic's retention; None if it is as wanted.

    Raises:
        NotFoundError: there is no such topic.
        UsageError: a number cannot be.
    """
    retention.check()
    topic = state.topic(name)
    wanted = retention.over(topic)
    if wanted == (topic.retention_ms, topic.retention_bytes):
        return None
    return entries.AlterTopic(name, topic.revision, *wanted)


def decide_alter_defaults(state: ControllerState, retention: RetentionSettings) -> entries.AlterDefaults | None:
    """Change the cluster's retention; None if it is as wanted. The default of the defaults is unlimited."""
    retention.check()
    given = zip((retention.ms, retention.bytes), (state.retention_ms, state.retention_bytes), strict=True)
    ms, size = (old if isinstance(new, UnsetType) else entries.UNLIMITED if new is None else new for new, old in given)
    return None if (ms, size) == (state.retention_ms, state.retention_bytes) else entries.AlterDefaults(ms, size)


def tick_is_due(age_ms: int, interval_ms: int) -> bool:
    """Whether an epoch of this age is to be followed by the next one.

    True from 95 % of the interval on. A job that runs exactly once an interval, as under cron, may start a second early, and
    such a run would leave the tick, and the garbage that waits for it, to the next one. An interval below a minute is not a
    schedule and is kept as it is. The length of an epoch decides how soon garbage goes, never whether something is garbage.
    """
    slack_ms = interval_ms // TICK_SLACK if interval_ms >= LEAST_SCHEDULE_MS else 0
    return age_ms >= interval_ms - slack_ms


def decide_create_pin(
    state: ControllerState,
    name: str,
    ttl_ms: int,
    *,
    level_one: bool = False,
    why: str = "",
    topic: int = entries.ALL_TOPICS,
) -> entries.CreatePin:
    """Create a pin, which is always a new one and has its own end.

    Raises:
        UsageError: the name, the life or the reason cannot be; a pin of that name has not ended; there are too many.
    """
    entries.check_pin(name, ttl_ms, why)
    if (pin := state.pins.get(name)) is not None:
        raise UsageError(
            f"pin {name!r} exists, and ends at {moment(pin.end_ms)}; delete it with l0gc pin delete, or use another name"
        )
    if len(state.pins) >= entries.MAX_PINS:
        raise UsageError(
            f"{entries.MAX_PINS:,} pins exist, and more are not possible: delete some with l0gc pin delete"
        )
    return entries.CreatePin(name, ttl_ms, level_one, why, topic)


def decide_delete_pin(state: ControllerState, name: str, revision: int | None) -> entries.DeletePin:
    """Delete a pin.

    Args:
        revision: the only one of that name that is meant; None for any.

    Raises:
        NotFoundError: it does not exist, or has ended, also where another one has its name now.
    """
    pin = state.pin(name)
    if revision not in (None, pin.revision):
        raise NotFoundError(
            f"pin {name!r} of epoch {revision} has ended; that of epoch {pin.revision} was left as it is"
        )
    return entries.DeletePin(name, pin.revision)


def decide_create_table(state: ControllerState, wanted: TopicTable) -> entries.CreateTable | None:
    """Have a topic kept as a table; None if it is already.

    Raises:
        NotFoundError: it does not exist, or was deleted and created again in between.
        UsageError: a name cannot be, the topic has another table, or another topic has this one.
    """
    entries.check_table(wanted.topic, wanted.catalog, wanted.table)
    if state.topic(wanted.topic).revision != wanted.revision:
        raise NotFoundError(f"topic {wanted.topic!r} (revision {wanted.revision}) was deleted in between")
    for table in state.tables.values():
        if table == wanted:
            return None
        if table.topic == wanted.topic or (table.catalog, table.table) == (wanted.catalog, wanted.table):
            raise UsageError(
                f"topic {table.topic!r} (revision {table.revision}) has table {table.table} in catalog {table.catalog!r}; "
                f"end that with l0gc table drop {table.topic}"
            )
    return entries.CreateTable(wanted.topic, wanted.revision, wanted.catalog, wanted.table)


def decide_advance(state: ControllerState, expected: int | None, caller: str) -> entries.Tick | None:
    """Advance the epoch; None if this caller's earlier advance, whose reply was lost, has done so (KIP-360's rule).

    Raises:
        ProtocolError: the epoch is neither `expected` nor what this caller made of it.
        UsageError: the caller's name cannot be one.
    """
    if expected is None:
        return entries.Tick()
    if caller and not entries.is_text(caller):
        raise UsageError(
            f"the caller that advances the epoch has a name of at most {entries.MAX_TEXT} printable characters"
        )
    if expected == state.epoch:
        return entries.Tick(expected, caller)
    if state.last_tick == LastTick(expected, caller):
        return None
    raise ProtocolError(
        f"the cluster epoch is {state.epoch}, not {expected}, and not because of an advance by {caller!r}; "
        "look at l0gc epoch show before you advance it"
    )


def decide_init_producer(
    state: ControllerState,
    name: str,
    instance: tuple[int, int, str] | None,
    *,
    new_id: int,
    new_run: str,
    above: int = -1,
) -> entries.InitProducer | None:
    """Bump a producer's epoch; None if the bump was done by this instance before and its reply was lost (KIP-360).

    Args:
        name: 1 to 200 characters.
        instance: the producer id, epoch and run that this instance has; None if it is a new one, which fences all before
            it. The run is compared, too: after a restore from a backup two instances may have the same epoch, and must
            not become one.
        new_id, new_run: random, for a new producer and for the new run.
        above: an epoch of the producer that a journal has seen. A new instance goes above it, since a log that was restored
            from a backup has forgotten who had it.

    Raises:
        EpochRegressionError: `above` is an epoch that no log as long as this one can have given.
        InvalidProducerEpochError: another instance has bumped it since; this one is fenced.
        UsageError: the name cannot be one.
    """
    if not entries.is_text(name):
        raise UsageError(f"producer name {name!r} must have 1 to {entries.MAX_TEXT} printable characters")
    producer = state.producers.get(name)
    if instance is None:
        if producer is None:
            return entries.InitProducer(name, new_id, 0, -1, new_run)
        if above > state.epoch:
            raise EpochRegressionError(
                f"a journal has seen epoch {above} of producer {name!r}, and the controller log is only at epoch "
                f"{state.epoch}: it looks restored from an old backup. Restore the newer one, or see docs/operations.md"
            )
        return entries.InitProducer(name, producer.producer_id, max(producer.epoch, above) + 1, -1, new_run)
    producer_id, epoch, run = instance
    if producer is None or producer.producer_id != producer_id:
        raise InvalidProducerEpochError(f"producer {name!r} has no id {producer_id}; start it anew, without an epoch")
    if (epoch, run) == (producer.epoch, producer.run):
        return entries.InitProducer(name, producer_id, epoch + 1, epoch, new_run)
    if 0 <= epoch == producer.last_epoch and run == producer.last_run:  # -1 stands for "none", which nobody can have
        return None
    raise InvalidProducerEpochError(
        f"producer {name!r} is at epoch {producer.epoch}: a newer instance has fenced epoch {epoch}"
    )
