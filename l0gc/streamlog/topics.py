"""Plan an alteration of a topic; describe topics, infer their schemas, and close deleted ones in their journals.

A deleted topic is closed in its journals, so that a writer with an old view is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from l0gc.errors import CorruptObjectError, NotFoundError, PartialFailureError, ProtocolError, StoreError
from l0gc.formatting import Outcome
from l0gc.operations import PARTITIONS_SHOWN, Read
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.decisions import RetentionSettings
from l0gc.streamlog.controller.state import ControllerState, PartitionRange, Topic
from l0gc.streamlog.controller.value_schema import ValueColumn, changes, evolved, fields_json, loses
from l0gc.streamlog.housekeep import LogFailure
from l0gc.streamlog.values.infer import LeftOut, inferred
from l0gc.watermark.publication import refuse_if_set_back

if TYPE_CHECKING:
    from l0gc.streamlog.journal.rows import Rows
    from l0gc.streamlog.journal.topic import TopicState, TopicTotals
    from l0gc.streamlog.level_one.expire import Loss

_INFERRED_FROM: Final = 16
"""The number of partitions from which records are read to infer a schema."""


class UnknownTopic(msgspec.Struct, frozen=True):
    """A topic that a journal had and the controller did not."""

    journal: int
    revision: int
    topic_id: str


class CreatedTopic(Topic, frozen=True, array_like=False):
    """A topic that was just created, or already existed.

    Attributes:
        created: Whether this call created it.
    """

    created: bool = False


class AlteredTopic(Topic, frozen=True, array_like=False):
    """A topic with its current settings.

    Attributes:
        altered: Whether this call changed it.
        changes: The changes to the columns of its value schema, in words: `adds id (long)`.
    """

    altered: bool = False
    changes: list[str] = msgspec.field(default_factory=list)


class Alteration(msgspec.Struct, frozen=True):
    """The effect of new settings of a topic, or of the cluster, for a caller to confirm.

    Attributes:
        losses: How many records the next expiry would delete, largest losses first.
        uncounted: Why the losses are unknown for some journals or partitions.
        changes: The changes to the columns of the value schema, in words: `drops id (long)`.
        loses_columns: Whether a column is dropped or replaced.
        state: The controller's state to which all of this applies.
    """

    losses: list[Loss]
    uncounted: list[str]
    changes: list[str]
    loses_columns: bool
    state: ControllerState


class AlteredDefaults(msgspec.Struct, Outcome, frozen=True):
    """The retention of topics without their own settings, -1 for unlimited, and whether it was changed."""

    retention_ms: int
    retention_bytes: int
    altered: bool


class RemovedTopic(Topic, frozen=True, array_like=False):
    """The deleted topic; `broken` names the journals in which it could not be closed, for the error's message."""

    broken: list[LogFailure] = msgspec.field(default_factory=list)
    hidden: ClassVar[frozenset[str]] = Topic.hidden | {"broken"}

    @property
    def problem(self) -> PartialFailureError | None:
        """Return the problem, in one sentence."""
        if not self.broken:
            return None
        first = self.broken[0]
        return PartialFailureError(
            f"the topic is deleted, but could not be closed in journal {first.journal}: {first.error}"
        )


class TopicList(list[Topic], Outcome):
    """The topics, by name.

    Attributes:
        topics: Every topic by name, each with `name`, `revision`, `partitions`, `journals`, `retention_ms` and
            `retention_bytes`.
    """

    derived = ("topics",)

    @property
    def topics(self) -> list[Topic]:
        return [*self]


class AdvancedEpoch(msgspec.Struct, Outcome, frozen=True):
    """The current cluster epoch, and the topics that were `closed`; None if closing was not requested.

    Attributes:
        epoch: The current cluster epoch, never from a cache.
    """

    epoch: int
    closed: list[UnknownTopic] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields, without `closed` if closing was not requested."""
        fields = super().to_json()
        return fields if self.closed is not None else {"epoch": fields["epoch"]}


def planned_alteration(
    cluster: ClusterHandles, name: str | None, retention: RetentionSettings, columns: Sequence[ValueColumn] = ()
) -> Alteration:
    """Return the effect of new settings on a topic, or, if `name` is None, on all topics without their own.

    Raises:
        The errors of `expire`.
        NotFoundError: the topic does not exist.
        UsageError: its value schema cannot become one with these columns.
    """
    from l0gc.streamlog.level_one.expire import losses

    lost, uncounted, state = losses(cluster, name, retention)
    if name is None or not columns:
        return Alteration(lost, uncounted, [], False, state)
    before = state.topic(name).value_schema
    after = evolved(before, columns)
    return Alteration(lost, uncounted, changes(before, after), loses(before, after), state)


class PartitionOffsets(msgspec.Struct, frozen=True):
    """The offsets of a partition. `last_reconciled_offset` is -1 until a record is reconciled or deleted."""

    partition: int
    journal: int
    log_start_offset: int
    last_reconciled_offset: int
    next_offset: int
    l1_objects: int
    l1_bytes: int


class TopicDescription(msgspec.Struct, Outcome, frozen=True, kw_only=True):
    """A topic, its retention with the cluster's defaults filled in, its sums, and its first partitions' offsets.

    Attributes:
        topic_id: A random id, which no other topic ever has.
        value_schema: The columns of its values in L1, as a schema in Iceberg's JSON form, with their field ids and the
            schema's number in `schema-id`; null if there are none.
        effective_retention_ms: The retention in effect, with the cluster's default filled in.
        effective_retention_bytes: The same for bytes.
        records: How many records it has.
        unreconciled_records: How many of them are not in L1.
        l1_objects: How many L1 objects it has.
        l1_bytes: The size of its L1 objects.
        dead_bytes: The part of `l1_bytes` in [shared objects](format.md#shared-l1-objects) that partitions no longer list.
        holes: How many ranges of records were given up.
        lost_records: How many records these ranges have; `records` includes them.
        outdated_records: How many records in L1 lack the columns of the newest value schema; a merge adds these. Records
            in shared objects get typed columns when they are drained.
        outdated_bytes: How many bytes of L1 these records take.
        misfits: How many records did not fit the value schema when they were lifted, including deleted ones. Their
            `value_error` is not null.
        offsets: The first partitions, or the requested one: `partition`, `journal`, `log_start_offset`,
            `last_reconciled_offset` (-1 for none), `next_offset`, `l1_objects` (it may share them) and `l1_bytes`.
        partition_ranges: Ranges of consecutive partitions: the `journal`, the `first` partition and their `count`.
    """

    name: str
    revision: int
    partitions: int
    journals: tuple[int, ...]
    topic_id: str
    retention_ms: int | None
    retention_bytes: int | None
    effective_retention_ms: int
    effective_retention_bytes: int
    records: int
    unreconciled_records: int
    l1_objects: int
    l1_bytes: int
    dead_bytes: int
    holes: int
    lost_records: int
    outdated_records: int
    outdated_bytes: int
    misfits: int
    offsets: list[PartitionOffsets]
    partition_ranges: list[PartitionRange]
    value_schema: dict[str, Any] | None


def describe_topic(
    cluster: ClusterHandles, name: str, partition: int | None = None, limit: int = PARTITIONS_SHOWN
) -> TopicDescription:
    """Return the totals of a topic, according to its journals now.

    Args:
        partition: return the offsets of this partition alone; by default those of the first `limit` partitions.

    Raises:
        NotFoundError: the topic does not exist.
        UsageError: the partition does not exist.
    """
    state = cluster.controller.snapshot()
    topic = state.topic(name)
    shown = range(min(limit, topic.partitions)) if partition is None else [topic.id(partition).partition]

    import numpy as np  # the other commands start without it

    from l0gc.streamlog.journal.topic import TopicTotals
    from l0gc.streamlog.level_one.merge_plan import outdated_rows

    def look(partition_range: PartitionRange) -> tuple[TopicTotals, list[PartitionOffsets], tuple[int, int]]:
        handle = cluster.journal(partition_range.journal)
        with handle.replica.lock:
            topic_state = handle.catch_up().topic(topic.revision)
            kept_here = [p for p in shown if partition_range.first <= p < partition_range.end]
            rows = topic_state.all_rows()
            old = outdated_rows(topic_state.l1, topic.schema_epoch)
            if topic.value_schema is not None:
                old = np.concatenate([old, *(o.listed() for o in topic_state.shared)])
            left = int((old["last"] + 1 - old["base"]).sum()), int(old["bytes"].sum())
            offsets = [_offsets(topic_state, rows, partition_range.journal, p) for p in kept_here]
            return topic_state.totals(), offsets, left

    looks = cluster.parallel.map(look, topic.partition_ranges())
    sums = (sum(column) for column in zip(*(msgspec.structs.astuple(totals) for totals, _, _ in looks), strict=True))
    settings = msgspec.structs.asdict(topic)
    del settings["schema_epoch"]
    kept, totals = state.retention(topic), msgspec.structs.asdict(TopicTotals(*sums))
    schema = None if topic.value_schema is None else topic.value_schema.to_json()
    return TopicDescription(
        # `settings` has the number of all partitions, `totals` of those with records
        **totals | settings | {"value_schema": schema},
        effective_retention_ms=kept.ms,
        effective_retention_bytes=kept.bytes,
        outdated_records=sum(records for _, _, (records, _) in looks),
        outdated_bytes=sum(size for _, _, (_, size) in looks),
        offsets=[o for _, offsets, _ in looks for o in offsets],
        partition_ranges=topic.partition_ranges(),
    )


def _offsets(state: TopicState, rows: Rows, journal: int, partition: int) -> PartitionOffsets:
    first, end = rows["partition"].searchsorted([partition, partition + 1]).tolist()
    view, l1 = state.view(partition), rows[first:end]
    return PartitionOffsets(
        partition,
        journal,
        view.log_start_offset,
        view.last_reconciled_offset,
        view.next_offset,
        len(l1),
        int(l1["bytes"].sum()),
    )


class InferredSchema(msgspec.Struct, Outcome, frozen=True):
    """A value schema that fits the records that were read, in Iceberg's JSON form, which `--value-schema` accepts.

    Attributes:
        type: `struct`.
        fields: The columns, each with `id`, `name`, `required` and `type`.
        left_out: Fields of the records that cannot become columns, each with its path as `field`, and the `reason`.
    """

    fields: list[dict[str, Any]]
    left_out: list[LeftOut]
    type: str = "struct"


def infer_schema(cluster: ClusterHandles, name: str, records: int) -> InferredSchema:
    """Infer a value schema from the first records of some partitions, about `records` in total.

    Raises:
        NotFoundError: the topic does not exist, or no record has a field that can become a column.
    """
    from l0gc.streamlog.reader import read_topic

    topic = cluster.controller.snapshot().topic(name)
    partitions = range(min(topic.partitions, _INFERRED_FROM))
    each = -(-records // len(partitions))
    read = (islice(read_topic(cluster, topic, Read(partition=p, skip_holes=True)), each) for p in partitions)
    columns, left_out = inferred(r.value for r in chain.from_iterable(read))
    if not columns:
        raise NotFoundError(
            f"topic {name!r} has no records that are JSON objects with fields for columns; upload some first, or "
            "write a JSON Schema"
        )
    return InferredSchema(fields_json(evolved(None, columns).columns), left_out)


def delete_topic(cluster: ClusterHandles, name: str, revision: int | None = None) -> tuple[Topic, list[LogFailure]]:
    """Delete the topic and close it in its journals; return the topic and the journals in which closing failed, which
    housekeeping tries again.

    Raises:
        NotFoundError: it does not exist, or not with this revision.
        EpochRegressionError: a published epoch is above the cluster epoch.
    """
    refuse_if_set_back(cluster)
    topic = cluster.controller.delete_topic(name, revision)

    def close(journal: int) -> LogFailure | None:
        try:
            cluster.journal(journal).close(topic.revision, topic.topic_id)
        except (CorruptObjectError, StoreError, ProtocolError) as e:
            return LogFailure(journal, str(e))
        return None

    return topic, [b for b in cluster.parallel.map(close, topic.journals) if b is not None]


def close_unknown_topics(cluster: ClusterHandles) -> list[tuple[int, int, str]]:
    """Close topics that journals have and the controller does not, and give up their records.

    Only a controller log that was restored from a backup leaves such topics behind: they were created after the backup.
    Until they are closed, no M is computed. Only an operator can decide that the newer log is permanently lost.

    Returns:
        The journal, revision and id of each topic that was closed.

    Raises:
        EpochRegressionError: the cluster epoch is not above every published epoch; advance it first.
    """
    refuse_if_set_back(cluster)
    state = cluster.controller.snapshot()
    closed = []
    for journal in range(state.journals):
        handle = cluster.journal(journal)
        unknown = {
            t.revision: t.topic_id
            for t in handle.catch_up(whole=False).topics.values()
            if t.revision <= state.epoch and not state.has_created(t.revision, t.topic_id)
        }
        if unknown:
            closed += [(journal, *topic) for topic in handle.close_topics(unknown).items()]
    return closed
