"""Decide which objects may land in a journal, against the state at the very offset where it lands (pure).

Why it is safe (hazard 2): an object is admitted only if its epoch is at or above both the window's oldest epoch and its
topic's revision (hazard 21). Objects of the same entry are decided one after another (hazard 22). The same decision runs
when an entry is applied, so an entry that would stop the log is refused before it is appended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec
import numpy as np

from l0gc.epoch import is_epoch
from l0gc.errors import (
    EpochRegressionError,
    PartitionClosedError,
    SafetyError,
    StaleClusterEpochError,
    UsageError,
)
from l0gc.limits import MAX_OBJECT_BYTES
from l0gc.streamlog.journal.entries import ObjectExtents
from l0gc.streamlog.journal.producers import LandedSequence, Overlay, ProducerState
from l0gc.streamlog.journal.rows import BLOCK, MAX_OFFSET, NUMBER, Rows, ascending, unpack
from l0gc.streamlog.journal.topic import TopicState

RECORDS_LIMIT: Final = 2**31 - 1
"""The most records of a topic in one entry."""


class EpochWindow(msgspec.Struct, frozen=True):
    """The epochs `oldest` to `newest`, inclusive, whether or not each of them was ever used.

    It spans two epochs, so that a writer with a slightly stale epoch is not refused, and never more than two, so that
    lower epochs are finished. It only moves up. Source: sliding-window epoch tracking of Redpanda Cloud Topics.
    """

    oldest: int
    newest: int

    def __contains__(self, epoch: int) -> bool:
        return self.oldest <= epoch <= self.newest

    def admits(self, epoch: int) -> bool:
        """Return whether data at `epoch` may land: the epoch is in the window, or above it, and then the window slides."""
        return epoch >= self.oldest

    def slide(self, epoch: int) -> EpochWindow:
        """Return the window after `epoch`: if it is newer, it becomes the newest, and the newest becomes the oldest."""
        return EpochWindow(self.newest, epoch) if epoch > self.newest else self

    @property
    def size(self) -> int:
        return self.newest - self.oldest + 1

    def __str__(self) -> str:
        return f"[{self.oldest}, {self.newest}]"


class Admission:
    """Admits the objects of one entry, in their order.

    Args:
        window, topics, producers: the state at the offset where the entry lands; it is not changed.
        closed: whether the topic with a revision was deleted.
    """

    def __init__(
        self,
        window: EpochWindow,
        topics: Mapping[int, TopicState],
        producers: Mapping[int, ProducerState],
        closed: Callable[[int], bool],
    ) -> None:
        self._window = window
        self._topics = topics
        self._closed = closed
        self._producers = Overlay(producers)
        self._records: dict[int, int] = {}

    def admit(self, o: ObjectExtents) -> LandedSequence | None:
        """Return None if the object may land after those already admitted, or the place where it landed earlier.

        Raises:
            UsageError: the object is invalid in any state.
            PartitionClosedError: the topic is gone.
            EpochRegressionError: another topic has that revision here, which only a restored controller log can cause.
            StaleClusterEpochError: the epoch lies below the window, or below the topic's revision.
            ProtocolError: see `producers.admit`.
        """
        check_object(o)
        if not is_epoch(o.epoch) or not is_epoch(o.revision):
            raise UsageError(
                f"object {o.key!r} at epoch {o.epoch} of revision {o.revision} has a number that is not an epoch"
            )
        if self._closed(o.revision):
            raise PartitionClosedError(f"the topic with revision {o.revision} was deleted")
        topic = self._topics.get(o.revision)
        if topic is not None and topic.topic_id != o.topic_id:
            raise EpochRegressionError(
                f"revision {o.revision} belongs to another topic in this journal: the controller log looks restored "
                "from a backup, and assigned it again. Run l0gc epoch advance and l0gc topic delete, then create "
                "it again"
            )
        # Offsets must stay in range, including the records that the entry has already admitted.
        total = self._records.get(o.revision, 0) + int(unpack(o.records, NUMBER).sum(dtype=np.int64))
        highest = int(topic.next_offsets.max()) if topic is not None and len(topic.next_offsets) else 0
        if total > RECORDS_LIMIT or highest + total > MAX_OFFSET:
            raise UsageError(f"object {o.key!r} has more records than there are offsets left")
        self._records[o.revision] = total
        if o.producer is not None:
            landed = self._producers.admit(o.producer)
            if landed is not None:
                return landed
        oldest = max(self._window.oldest, o.revision)
        if o.epoch < oldest:
            raise StaleClusterEpochError(
                f"epoch {o.epoch} is below the window [{oldest}, {max(oldest, self._window.newest)}] of its journal; stamp "
                "the data with a fresh epoch and upload it again",
                epoch=o.epoch,
                window=(oldest, max(oldest, self._window.newest)),
            )
        self._window = self._window.slide(o.epoch)
        if o.producer is not None:
            self._producers.record(o.producer)
        return None


def check_not_poisoned(journal: int, epoch: int, cluster_epoch: int) -> None:
    """Raise `SafetyError` if `epoch` is above the cluster's (hazard 14)."""
    if epoch > cluster_epoch or not is_epoch(epoch):
        raise SafetyError(
            f"epoch {epoch} offered to journal {journal} is above the cluster epoch {cluster_epoch}; "
            "it is refused, since it would shut out every writer"
        )


def check_object(o: ObjectExtents) -> Rows:
    """Return the partitions of a valid object's extents. Raises `UsageError` for an object that would stop the log."""
    partitions, records, blocks = unpack(o.partitions, NUMBER), unpack(o.records, NUMBER), unpack(o.blocks, BLOCK)
    if not o.key or not len(partitions) or len(partitions) != len(records):
        raise UsageError(f"object {o.key!r} names {len(partitions)} partitions but {len(records)} record counts")
    if partitions[0] < 0 or not ascending(partitions):
        raise UsageError(f"the partitions of object {o.key!r} are not in ascending order")
    if (records < 1).any():
        raise UsageError(f"object {o.key!r} has an extent without records")
    empty = not len(blocks) or any((blocks[column] < 1).any() for column in ("length", "extents", "bytes"))
    if empty or not 0 <= o.start <= MAX_OFFSET:
        raise UsageError(f"object {o.key!r} has an empty block or an impossible start")
    if (size := max(int(blocks[column].sum(dtype=np.int64)) for column in ("length", "bytes"))) > MAX_OBJECT_BYTES:
        raise UsageError(
            f"object {o.key!r} has blocks of {size:,} bytes, more than the {MAX_OBJECT_BYTES:,} that it may have"
        )
    if int(blocks["extents"].sum(dtype=np.int64)) != len(partitions):
        raise UsageError(f"the blocks of object {o.key!r} do not hold {len(partitions)} extents")
    return partitions
