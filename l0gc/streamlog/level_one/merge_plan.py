"""Choose which L1 objects a merge joins, and when it drains shared ones (pure).

A run consists of consecutive objects of one partition, each below half of the target size. A run that is followed by a
larger object is complete, and is merged once. The run at a partition's end grows with each reconcile, and is merged by
size. It may have as many objects as the logarithm, to base `fan_in`, of its size divided by the size of its smallest
object, and at least three. If it has more, the oldest object that is at most twice as large as all later ones is merged
with those. So a record is rewritten about once each time its object's contents double.

Retention deletes whole objects, so records that expire soon must not share one with records that stay long. With retention
by time, only objects of the same quarter of the retention are merged; with retention by size, the target is at most a
quarter of it.

Objects that were written under an older value schema than their topic's are rewritten, too, joined up to the target size:
the oldest first, up to a limit for each run. An object of an epoch below the schema's was written under an older one. So
each record is rewritten once more for each change of a schema.

A topic's shared objects in a journal are drained together, each partition's rows into separate objects. This happens once
a partition has so many rows that its readers would open many objects, once the oldest object is a day old, which bounds
the space of rows that have left, or once the topic has a table. So each record is written once more, and then merged by
size like all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np

from l0gc.errors import UsageError
from l0gc.streamlog.controller.state import UNLIMITED, Retention
from l0gc.streamlog.journal.rows import MAX_OFFSET, Rows, distinct, identities, in_order, indices_in, is_hole
from l0gc.streamlog.journal.topic import TopicState

TARGET_BYTES: Final = 128 << 20
"""An L1 object of this size is read at the network's speed; its fixed costs are negligible."""
FAN_IN: Final = 4
OBJECTS: Final = 3
"""The largest number of undersized objects of a partition that are left alone, however small they are."""
MERGED_AT_ONCE: Final = 4096
"""The most objects that are joined into one: their rows fit one log entry."""
_PARTS: Final = 4
"""The fewest objects over which the records within a retention are spread."""
_TIMES: Final = 2
"""An object is merged with those after it unless they are together smaller by more than this factor."""
DRAINED_ROWS: Final = 32
"""How many rows a partition may have in shared objects before they are drained."""
DRAINED_AGE_MS: Final = 86_400_000
"""The age of a topic's oldest shared object at which they are drained."""
_DRAIN_BYTES: Final = 256 << 20
"""About how many stored bytes of shared objects are drained in one piece."""


class MergeRule(msgspec.Struct, frozen=True):
    """A rule for which objects are merged.

    Attributes:
        target_bytes: the largest size of a merged object; objects of at least half of it are left alone.
        fan_in: the factor by which a partition's undersized objects must grow in total before it may have one more. A
            smaller factor leaves more objects, and rewrites less.
        window_ms: merge only objects whose newest records lie in the same period of this many milliseconds; 0 for any
            time.

    Raises:
        UsageError: a number is impossible.
    """

    target_bytes: int = TARGET_BYTES
    fan_in: int = FAN_IN
    window_ms: int = 0

    def __post_init__(self) -> None:
        if self.target_bytes < 2:
            raise UsageError(f"a target of {self.target_bytes} bytes cannot hold two objects")
        if self.fan_in < 2:
            raise UsageError(f"a fan-in of {self.fan_in} never merges two objects; use 2 or more")

    @property
    def enough_bytes(self) -> int:
        """Return the size at and above which objects are left alone."""
        return self.target_bytes - self.target_bytes // 2

    def within(self, retention: Retention) -> MergeRule:
        target = self.target_bytes
        if retention.bytes != UNLIMITED:
            target = min(target, max(2, retention.bytes // _PARTS))
        window = 0 if retention.ms == UNLIMITED else max(1, retention.ms // _PARTS)
        return MergeRule(target, self.fan_in, window)


class MergeGroup(msgspec.Struct, frozen=True):
    """Consecutive objects of a partition to join: `sources` are rows of `L1_ROW`."""

    revision: int
    partition: int
    sources: Rows

    @property
    def records(self) -> int:
        return int(self.sources["last"][-1] - self.sources["base"][0]) + 1

    @property
    def bytes(self) -> int:
        return int(self.sources["bytes"].sum())


def spans(sizes: Sequence[int], rule: MergeRule, *, grows: bool) -> list[tuple[int, int]]:
    """Return the spans to join of a partition's consecutive objects, given their sizes, as (first, end), end excluded.
    `grows`: whether a reconcile adds objects at the end.
    """
    runs: list[tuple[int, int]] = []
    first = 0
    for end in [i for i, size in enumerate(sizes) if size >= rule.enough_bytes] + [len(sizes)]:
        at_the_end = grows and end == len(sizes)
        begin = first + _first_due(sizes[first:end], rule.fan_in) if at_the_end else first
        runs += _filled(sizes, begin, end, rule.target_bytes)
        first = end + 1
    return runs


def _first_due(sizes: Sequence[int], fan_in: int) -> int:
    """Return the first object of a growing run that is merged with all after it; the number of objects if there is nothing
    to do.
    """
    sizes = [max(1, size) for size in sizes]
    first = len(sizes)
    if first <= OBJECTS:
        return first
    total = sum(sizes)
    allowed, reach = 0, min(sizes) * fan_in
    while reach <= total:
        allowed, reach = allowed + 1, reach * fan_in
    while len(sizes) > max(OBJECTS, allowed):
        first, after = 0, total
        for first, size in enumerate(sizes[:-1]):  # noqa: B007 - without one that is due, the last two
            after -= size
            if size <= _TIMES * after:
                break
        sizes = [*sizes[:first], sum(sizes[first:])]
    return first


def _filled(sizes: Sequence[int], first: int, end: int, target: int, least: int = 2) -> Iterator[tuple[int, int]]:
    """Yield the pieces of a span that fit the target, except those of fewer than `least` objects."""
    begin, total = first, 0
    for at in range(first, end):
        if total + sizes[at] > target or at - begin == MERGED_AT_ONCE:
            if at - begin >= least:
                yield begin, at
            begin, total = at, 0
        total += sizes[at]
    if end - begin >= least:
        yield begin, end


# -- what is due in a topic -----------------------------------------------------------------------------------------------


def merges_of(topic: TopicState, rule: MergeRule, is_chosen: Callable[[Rows], Rows]) -> Iterator[MergeGroup]:
    """Yield the merges in a topic's partitions for which `is_chosen` is true, by partition and offset."""
    partitions = candidates(topic, rule)
    for partition in partitions[is_chosen(partitions)].tolist():
        yield from _merges(topic.revision, partition, topic.l1_of(partition), rule)


def _merges(revision: int, partition: int, rows: Rows, rule: MergeRule) -> Iterator[MergeGroup]:
    # A run ends at a period's end, at a hole, which no object spans (hazard 35), and at rows of shared objects.
    hole = is_hole(rows)
    apart = hole[1:] | hole[:-1] | _apart(rows, rule)
    for part in np.split(rows, np.flatnonzero(apart) + 1):
        if not len(part) or is_hole(part[:1]).any():
            continue
        newest = bool(part["last"][-1] == rows["last"][-1])
        for first, end in spans(part["bytes"].tolist(), rule, grows=newest):
            yield MergeGroup(revision, partition, part[first:end])


def _apart(rows: Rows, rule: MergeRule) -> Rows:
    """Return which rows, from the second on, may not be merged with the one before: they belong to another partition or
    period, or other records lie between them.
    """
    number = rows["max_timestamp"] // (rule.window_ms or MAX_OFFSET)
    gap = rows["base"][1:] != rows["last"][:-1] + 1
    apart: Rows = gap | (number[1:] != number[:-1]) | (rows["partition"][1:] != rows["partition"][:-1])
    return apart


def outdated_rows(rows: Rows, schema_epoch: int) -> Rows:
    """Return those objects that lack the columns of the value schema that their topic got in epoch `schema_epoch`."""
    return rows[(rows["epoch"] < schema_epoch) & ~is_hole(rows)]


def without_merged(rows: Rows, merges: Sequence[MergeGroup]) -> Rows:
    """Return the objects that no merge replaces, the oldest first."""
    if merges:
        merged = np.sort(np.concatenate([identities(m.sources) for m in merges]))
        rows = rows[~indices_in(merged, identities(rows))[1]]
    return rows[np.argsort(rows["epoch"], kind="stable")]


def within_limit(rows: Rows, limit: int) -> Rows:
    """Return the first objects with at most `limit` bytes in total, but at least one if the limit is positive."""
    most = int(np.searchsorted(np.cumsum(rows["bytes"]), limit, "right"))
    return rows[: max(1, most) if limit > 0 else 0]


def rewrites_of(revision: int, rows: Rows, rule: MergeRule) -> Iterator[MergeGroup]:
    """Yield the rewrites of a topic's objects, in which neighbours are joined up to the target size."""
    rows = in_order(rows)
    for part in np.split(rows, np.flatnonzero(_apart(rows, rule)) + 1):
        sizes = part["bytes"].tolist()
        for first, end in _filled(sizes, 0, len(part), rule.target_bytes, 1):
            yield MergeGroup(revision, int(part["partition"][0]), part[first:end])


def candidates(topic: TopicState, rule: MergeRule) -> Rows:
    """Return the partitions that may have something to merge: those with a run of more objects than may be left alone.
    This is a quick check of whole columns, before the slow one of each partition.
    """
    rows = topic.l1
    small = (rows["bytes"] < rule.enough_bytes) & ~is_hole(rows)
    ends = rows["partition"][1:] != rows["partition"][:-1]
    apart = ~small[1:] | ~small[:-1] | _apart(rows, rule)
    firsts = np.flatnonzero(np.r_[True, apart][: len(rows)])
    lengths = np.diff(np.r_[firsts, len(rows)])
    grows = np.r_[ends, True][firsts + lengths - 1] if len(rows) else small
    return distinct(rows["partition"][firsts[lengths > np.where(grows, OBJECTS, 1)]])


# -- shared objects -------------------------------------------------------------------------------------------------------


class Drain(msgspec.Struct, frozen=True):
    """The contents of a topic's shared objects for the partitions `first` to `end`, end excluded: the numbers of
    partitions, records and bytes.

    `objects` is the number of shared objects counted here: all of them in the first piece of a topic, none in the others.
    """

    revision: int
    first: int
    end: int
    objects: int
    partitions: int
    records: int
    bytes: int


def drains_of(topic: TopicState, now_ms: int, *, has_table: bool) -> Iterator[Drain]:
    """Yield the pieces in which a topic's shared objects are due to be drained, by partition."""
    if not topic.shared:
        return
    rows = np.concatenate([o.rows[o.is_named] for o in topic.shared])
    counts = np.bincount(rows["partition"])
    aged = now_ms - min(o.time_ms for o in topic.shared) >= DRAINED_AGE_MS
    if not (has_table or aged or counts.max() >= DRAINED_ROWS):
        return
    sizes = np.bincount(rows["partition"], np.concatenate([o.row_bytes()[o.is_named] for o in topic.shared]))
    records = np.bincount(rows["partition"], rows["records"])
    pieces = (np.cumsum(sizes) // _DRAIN_BYTES).astype(np.int64)
    cuts = [0, *(np.flatnonzero(np.diff(pieces)) + 1).tolist(), len(sizes)]
    for n, (first, end) in enumerate(pairwise(cuts)):
        part = slice(first, end)
        objects = 0 if n else len(topic.shared)
        partitions = int(np.count_nonzero(counts[part]))
        if partitions:
            sums = int(records[part].sum()), int(sizes[part].sum())
            yield Drain(topic.revision, first, end, objects, partitions, *sums)
