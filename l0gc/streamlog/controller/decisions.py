"""Decide what to append to the controller's log, or that it has already landed (pure).

Each decision is made against the state at the very offset where its entry lands. The entry's own `check` (`entries`)
decides whether it may land; `Replica.payload` calls it before the append.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from l0gc.errors import (
    ClusterMismatchError,
    EpochRegressionError,
    InvalidProducerEpochError,
    ProtocolError,
    SafetyError,
    UsageError,
)
from l0gc.formatting import count
from l0gc.streamlog.controller import entries
from l0gc.streamlog.controller.state import UNLIMITED, ControllerState, LastTick, TopicTable
from l0gc.streamlog.controller.value_schema import NOTHING_GIVEN, Numbers, ValueColumn, evolved

TICK_SLACK: Final = 20
"""A tick is due a twentieth of the interval early."""
LEAST_SCHEDULE_MS: Final = 60_000


class RetentionSettings(msgspec.Struct, frozen=True):
    """The requested retention of a topic or of the cluster, in milliseconds and bytes.

    -1 means unlimited, and None the cluster's default; a setting that is not given stays unchanged.
    """

    ms: int | UnsetType | None = UNSET
    bytes: int | UnsetType | None = UNSET

    def over(self, ms: int | None, size: int | None) -> tuple[int | None, int | None]:
        """Return the requested settings, with the present ones for those that are not given."""
        return ms if isinstance(self.ms, UnsetType) else self.ms, size if isinstance(
            self.bytes, UnsetType
        ) else self.bytes


NOT_GIVEN: Final = RetentionSettings()


def decide_bootstrap(
    state: ControllerState, entry: entries.Bootstrap, expected: str | None
) -> entries.Bootstrap | None:
    """Return the entry that creates a cluster; None if it exists.

    Raises:
        ClusterMismatchError: the bucket is another cluster's than `expected` (hazard 11).
        UsageError: the cluster was created with another key layout or other journals.
    """
    if state.epoch < 0:
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
    """Raise `SafetyError` if another system counts the epochs, since an entry here would count a second epoch."""
    if state.external_log:
        raise SafetyError(
            "this cluster's epochs and topics are those of another system (l0gc init --external-log); l0gc neither advances "
            "them nor takes data here"
        )


def check_cluster(state: ControllerState, expected: str | None) -> None:
    """Raise `ClusterMismatchError` if the cluster is not the expected one (hazard 11)."""
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
    columns: Sequence[ValueColumn] = (),
) -> entries.CreateTopic | None:
    """Return the entry that creates a topic; None if it exists as requested.

    Args:
        journals: how many journals to spread the partitions over. None means one for a new topic, and any number for an
            existing one.
        retention: a setting that is not given means the cluster's default for a new topic, and any for an existing one.
        columns: the columns of its value schema, without ids; none means no schema for a new topic, and any for an
            existing one.

    Raises:
        UsageError: it exists with another number of partitions or journals, or another retention or value schema.
    """
    topic = state.topics.get(name)
    if topic is None:
        return entries.CreateTopic(
            name,
            partitions,
            1 if journals is None else journals,
            topic_id,
            *retention.over(None, None),
            evolved(None, columns) if columns else None,
        )
    if topic.partitions != partitions:
        raise UsageError(f"topic {name!r} exists with {count(topic.partitions, 'partition')}, not {partitions}")
    if journals is not None and len(topic.journals) != journals:
        raise UsageError(f"topic {name!r} exists in {count(len(topic.journals), 'journal')}, not {journals}")
    settings = topic.retention_ms, topic.retention_bytes
    if retention.over(*settings) != settings:
        raise UsageError(f"topic {name!r} exists with another retention; l0gc topic alter changes it")
    if columns and evolved(topic.value_schema, columns) != topic.value_schema:
        raise UsageError(f"topic {name!r} exists with another value schema; l0gc topic alter changes it")
    return None


def decide_alter_topic(
    state: ControllerState,
    name: str,
    retention: RetentionSettings,
    columns: Sequence[ValueColumn] = (),
    given: Numbers = NOTHING_GIVEN,
    confirmed: ControllerState | None = None,
) -> entries.AlterTopic | None:
    """Return the entry that changes a topic's settings; None if it has them already.

    Args:
        given: see `evolved`.
        confirmed: the state for which a user confirmed the effect, on this topic and its settings alone.

    Raises:
        NotFoundError: the topic does not exist, or another one has taken its name since the confirmation.
        ProtocolError: the topic or the default retention was altered since the confirmation.
        UsageError: its value schema cannot become one with these columns.
    """
    topic = state.topic(name, None if confirmed is None else confirmed.topic(name).revision)
    schema = evolved(topic.value_schema, columns, given) if columns else topic.value_schema
    settings = (*retention.over(topic.retention_ms, topic.retention_bytes), schema)
    if settings == (topic.retention_ms, topic.retention_bytes, topic.value_schema):
        return None
    _check_unaltered(state, confirmed, [name])
    return entries.AlterTopic(name, topic.revision, *settings)


def decide_alter_defaults(
    state: ControllerState, retention: RetentionSettings, confirmed: ControllerState | None = None
) -> entries.AlterDefaults | None:
    """Return the entry that changes the cluster's retention, which is unlimited at first; None if it is already as
    requested.

    Raises:
        ProtocolError: a topic or the retention was altered since the state for which a user confirmed the effect.
    """
    settings = state.retention_ms, state.retention_bytes
    ms, size = (UNLIMITED if value is None else value for value in retention.over(*settings))
    if (ms, size) == settings:
        return None
    _check_unaltered(state, confirmed, state.topics)
    return entries.AlterDefaults(ms, size)


def _check_unaltered(state: ControllerState, confirmed: ControllerState | None, names: Iterable[str]) -> None:
    """Raise `ProtocolError` if these topics or the default retention differ from the state that was confirmed, if any."""
    if confirmed is None:
        return
    altered = [f"topic {name!r}" for name in names if state.topics[name] != confirmed.topics.get(name)]
    if (state.retention_ms, state.retention_bytes) != (confirmed.retention_ms, confirmed.retention_bytes):
        altered.append("the cluster's default retention")
    if altered:
        raise ProtocolError(
            f"{altered[0]} was altered after this was confirmed: nothing was done; run the command again"
        )


def tick_is_due(age_ms: int, interval_ms: int) -> bool:
    """Return whether the next epoch is due, given the age of the current one.

    True from 95 % of the interval on: a job that runs exactly once per interval, as under cron, may start a second early,
    and would otherwise leave the tick to its next run. Intervals below a minute are not schedules and are kept exactly. An
    epoch's length decides how soon garbage is deleted, never what is garbage.
    """
    slack_ms = interval_ms // TICK_SLACK if interval_ms >= LEAST_SCHEDULE_MS else 0
    return age_ms >= interval_ms - slack_ms


def decide_create_table(state: ControllerState, table: TopicTable) -> entries.CreateTable | None:
    """Return the entry that creates a topic's table; None if it exists.

    Raises:
        NotFoundError: the topic does not exist, or was deleted and created again in between.
    """
    state.topic(table.topic, table.revision)
    if state.tables.get(table.topic) == table:
        return None
    return entries.CreateTable(table.topic, table.revision, table.catalog, table.table, table.location)


def decide_advance(state: ControllerState, expected: int | None, caller: str) -> entries.Tick | None:
    """Return the entry that advances the epoch; None if this caller's advance has landed and its reply was lost
    (KIP-360's rule).

    Raises:
        ProtocolError: the epoch is neither `expected` nor the one that this caller's advance made.
    """
    if expected is None:
        return entries.Tick()
    if expected == state.epoch:
        return entries.Tick(expected, caller)
    if state.last_tick == LastTick(expected, caller):
        return None
    raise ProtocolError(
        f"the cluster epoch is {state.epoch}, not {expected}, and not because of an advance by {caller!r}; "
        "run l0gc epoch show before you advance it"
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
    """Return the entry that bumps a producer's epoch; None if this instance's bump has landed and its reply was lost
    (KIP-360).

    Args:
        name: 1 to 200 characters.
        instance: the producer id, epoch and run of this instance; None for a new one, which fences all before it. The
            run is compared, too: after a restore from a backup two instances may have the same epoch, and must stay
            distinct.
        new_id, new_run: random, for a new producer and for the new run.
        above: an epoch of the producer in a journal. A new instance gets a higher one, since a log restored from a backup
            has forgotten it.

    Raises:
        EpochRegressionError: a log of this length cannot have assigned the epoch `above`.
        InvalidProducerEpochError: another instance has bumped it since; this one is fenced.
    """
    producer = state.producers.get(name)
    if instance is None:
        if producer is None:
            return entries.InitProducer(name, new_id, 0, -1, new_run)
        if above > state.epoch:
            raise EpochRegressionError(
                f"a journal has epoch {above} of producer {name!r}, but the controller log is only at epoch "
                f"{state.epoch}: it looks restored from an old backup. Restore the newer one, or see "
                f"l0gc help operate-logs"
            )
        return entries.InitProducer(name, producer.producer_id, max(producer.epoch, above) + 1, -1, new_run)
    producer_id, epoch, run = instance
    if producer is None or producer.producer_id != producer_id:
        raise InvalidProducerEpochError(f"producer {name!r} has no id {producer_id}; start it again, without an epoch")
    if (epoch, run) == (producer.epoch, producer.run):
        return entries.InitProducer(name, producer_id, epoch + 1, epoch, new_run)
    if 0 <= epoch == producer.last_epoch and run == producer.last_run:  # -1 means no epoch, which no instance has
        return None
    raise InvalidProducerEpochError(
        f"producer {name!r} is at epoch {producer.epoch}: a newer instance has fenced epoch {epoch}"
    )
