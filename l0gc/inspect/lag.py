"""Report how far a streaming query of Spark is behind its topics, according to its checkpoint.

Spark writes the file `offsets/N`, with the end of a micro-batch, before the batch, and the file `commits/N` after it.
Therefore the newest file in `commits` identifies the offsets up to which everything was read. They are read before the
journals, so a query that runs at the same time may seem further behind than it is, but never less. Nothing is written,
and Spark is not needed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec
import numpy as np

from l0gc.errors import NotFoundError, OffsetOutOfRangeError, UnsupportedFormatError
from l0gc.formatting import Outcome
from l0gc.storage.entry import Place
from l0gc.storage.objectstore import LocalFolder, ObjectStore
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import PartitionRange, Topic
from l0gc.streamlog.journal.rows import Rows
from l0gc.streamlog.topic_view import NEVER, TopicView, look

REVISION: Final = "revision"
JOURNALS: Final = "journals"
"""The keys in a checkpoint, next to the partitions' offsets, for the topic's revision, and for the last entry of each
journal from which the offsets follow.
"""
_COMMITTED: Final = re.compile(r"commits/([0-9]+)\Z")
_VERSION: Final = "v1"
_NO_OFFSET: Final = "-"
_POSITIONS: Final = msgspec.json.Decoder(dict[str, dict[str, Any]])


class QueryPosition(msgspec.Struct, frozen=True):
    """A query's position in a partition, and the amount that it has not read.

    Attributes:
        source: the number, from 0, of the query's source that reads the partition.
        committed_offset: the offset of the record that the query reads next.
        latest_offset: the offset of the partition's next record.
        records_behind: the number of existing records between the two offsets.
        records_deleted: the number of records that were deleted before the query read them.
        oldest_unread_ms: how long ago the first existing unread record landed; None if there is no such record.
    """

    source: int
    topic: str
    partition: int
    committed_offset: int
    latest_offset: int
    records_behind: int
    records_deleted: int
    oldest_unread_ms: int | None


class QueryLag(msgspec.Struct, Outcome, frozen=True):
    """The lag of a query after the micro-batch `batch_id`, at `as_of_ms` by the store's clock."""

    batch_id: int
    as_of_ms: int
    partitions: list[QueryPosition]

    @property
    def records_behind(self) -> int:
        return sum(p.records_behind for p in self.partitions)


def query_lag(cluster: ClusterHandles, checkpoint: ObjectStore | LocalFolder, name: str) -> QueryLag:
    """Return the lag of the query with this checkpoint.

    Args:
        name: the checkpoint's name in messages.

    Raises:
        NotFoundError: the checkpoint does not exist, no micro-batch has ended, or the query reads no topic of this
            cluster.
        OffsetOutOfRangeError: a partition ends before the query's position, or a journal was set back.
        UnsupportedFormatError: the checkpoint has an unsupported version.
    """
    batch_id, sources = _committed(checkpoint, name)
    topics, now_ms = cluster.controller.snapshot().topics, cluster.store.now_ms()
    query_positions = list[QueryPosition]()
    for source, positions in sources.items():
        for topic_name, stored in positions.items():
            topic, revision = topics.get(topic_name), stored[REVISION]
            if topic is None or topic.revision != revision:
                now = "" if topic is None else f", whose revision is {topic.revision}"
                raise NotFoundError(
                    f"{name} is at revision {revision} of topic {topic_name!r}{now}: that topic was deleted, or the query "
                    "reads another cluster"
                )
            offsets = {int(p): offset for p, offset in stored.items() if p not in (REVISION, JOURNALS)}
            if offsets and max(offsets) >= topic.partitions:
                raise NotFoundError(
                    f"{name} has partition {topic_name}/{max(offsets)}, which does not exist: the query reads "
                    f"another cluster"
                )
            query_positions += _of_topic(cluster, topic, offsets, source, now_ms)
            if lost := lacking(stored, topic, lambda number, place: cluster.journal(number).replica.holds(place)):
                raise OffsetOutOfRangeError(f"{name} was written by another log: {lost}")
    return QueryLag(batch_id, now_ms, query_positions)


def lacking(stored: Mapping[str, Any], topic: Topic, holds: Callable[[int, Place], bool]) -> str:
    """Return a sentence about an entry that a topic's journals lack and from which a checkpoint's positions follow; an
    empty text if they lack none. The journals have caught up since the checkpoint.
    """
    for number, place in stored.get(JOURNALS, {}).items():
        if int(number) in topic.journals and not holds(int(number), Place(*place)):
            return (
                f"journal {number} does not have the entry at offset {place[0]} from which the position in topic "
                f"{topic.name!r} follows: the journal was set back, or this cluster is a copy of the one that was read"
            )
    return ""


def _committed(checkpoint: ObjectStore | LocalFolder, name: str) -> tuple[int, dict[int, dict[str, dict[str, Any]]]]:
    """Return the last finished micro-batch, and its end in each source of l0gc."""
    ended = [int(m[1]) for key in checkpoint.list("commits/").modified_ms if (m := _COMMITTED.match(key))]
    if not ended:
        raise NotFoundError(
            f"{name} is not the checkpoint of a query that has ended a micro-batch: it has no file in commits/"
        )
    version, _, *lines = checkpoint.get(f"offsets/{max(ended)}").body.decode(errors="replace").splitlines() or [""] * 2
    if version != _VERSION:
        raise UnsupportedFormatError(
            f"{name}/offsets/{max(ended)} has version {version!r}, but l0gc reads only {_VERSION}, which Spark "
            f"writes unless "
            "spark.sql.streaming.offsetLog.formatVersion is set"
        )
    sources = {}
    for source, line in enumerate(lines):
        try:
            positions = {} if line == _NO_OFFSET else _POSITIONS.decode(line)
        except msgspec.MsgspecError:  # the offsets of a different kind of source
            continue
        if positions and all(REVISION in of for of in positions.values()):
            sources[source] = positions
    if not sources:
        raise NotFoundError(f"the query of {name} reads no topic of l0gc, or has not found one")
    return max(ended), sources


def _of_topic(
    cluster: ClusterHandles, topic: Topic, offsets: dict[int, int], source: int, now_ms: int
) -> Iterator[QueryPosition]:
    """Yield the query's positions in the partitions of a topic, given its offsets."""

    def ask(view: TopicView) -> tuple[Rows, Rows, Rows, Rows]:
        committed = np.array([offsets.get(p, -1) for p in view.partitions.tolist()])
        next_read = np.where(committed < 0, view.next, np.maximum(committed, view.log_start))
        return committed, view.next, next_read, view.times_of(next_read)

    def of_journal(partition_range: PartitionRange) -> Iterator[tuple[int, ...]]:
        columns = look(cluster, cluster.journal(partition_range.journal), topic, partition_range, ask)
        return zip(range(partition_range.first, partition_range.end), *(c.tolist() for c in columns), strict=True)

    for rows in cluster.parallel.map(of_journal, topic.partition_ranges()):
        for partition, committed, latest, next_read, time_ms in rows:
            if committed > latest:
                raise OffsetOutOfRangeError(
                    f"the query is at record {committed} of partition {topic.name}/{partition}, which ends at {latest}: its "
                    "journal looks restored from a backup, or the query reads another cluster"
                )
            if committed >= 0:
                yield QueryPosition(
                    source,
                    topic.name,
                    partition,
                    committed,
                    latest,
                    latest - next_read,
                    next_read - committed,
                    None if time_ms == NEVER else max(0, now_ms - time_ms),
                )
