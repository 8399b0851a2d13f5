"""Plan the offsets that a query reads from each partition.

A plan consists of fixed offsets. Later uploads, reconciles and merges do not change it, so a query that is read twice
returns the same records. Each task finds out where its records are stored (`offset_reader.py`).

Journals are read one after another, and a few numbers per partition are kept, from which the tasks are made. A task
gets neighbouring partitions of one journal, which share blocks of L0 objects, up to its share of the total if each core
should have a task, but at most about `SLICE_BYTES` of stored bytes. A larger partition is cut at the ends of its L1
objects.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from pyspark.sql.datasource import InputPartition

from l0gc.errors import OffsetOutOfRangeError, UsageError
from l0gc.integrations.spark.options import EARLIEST, LATEST, Bound, ReadOptions
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import ALL_TOPICS, PartitionRange, Pin, Topic
from l0gc.streamlog.journal.handle import JournalHandle
from l0gc.streamlog.journal.rows import RANGE, Rows, pack, unpack
from l0gc.streamlog.topic_view import NEVER, Found, TopicView, look

_FILE_BYTES: Final = 16 << 10
"""The cost of opening an L1 object of any size, expressed in bytes of reading."""
SLICE_BYTES: Final = 64 << 20
"""About the most stored bytes that a task reads."""
LEAST_SLICE_BYTES: Final = 1 << 20
"""The fewest bytes that justify another task, whose start costs about as much as reading them."""
_ROOM: Final = 1.1
"""The factor by which a task may exceed its share. For parts of nearly equal weight, another task would cost more."""


@dataclass(frozen=True)
class Slice(InputPartition):
    """The work of a task: a range in each of some partitions of a topic in one journal, packed as rows of `RANGE`.

    With a `pin`, the task reads the journal as of the pin.
    """

    topic: Topic
    journal: int
    rows: bytes
    pin: Pin | None = None

    def ranges(self) -> Rows:
        return unpack(self.rows, RANGE)


@dataclass(frozen=True, slots=True)
class Ranges:
    """Ranges of records in each partition of a topic, from `starts` to before `ends`."""

    topic: Topic
    starts: Rows
    ends: Rows

    @property
    def records(self) -> int:
        return int(np.maximum(self.ends - self.starts, 0).sum())


@dataclass(slots=True)
class Part:
    """Ranges of records of a topic's partitions in one journal, and their weight.

    Attributes:
        bytes: the stored bytes, by partition.
        reads_l0: whether some of the records are not in L1.
        cuts: for large partitions, the offset after each L1 object, and the bytes up to that offset.
    """

    topic: Topic
    range: PartitionRange
    starts: Rows
    ends: Rows
    bytes: Rows
    reads_l0: bool
    cuts: dict[int, list[tuple[int, float]]] = field(default_factory=dict)

    @property
    def weight(self) -> float:
        return float(self.bytes[self.starts < self.ends].sum())


def positions_of(view: TopicView, bound: Bound, read: Rows) -> Rows:
    """Return the offsets at which reading begins or ends in the partitions of a view.

    Args:
        read: whether each of these partitions is read.

    Raises:
        OffsetOutOfRangeError: an offset is past the newest record, or no record has the timestamp or a later one.
        ObjectNotFoundError: an object was replaced; the caller must read the journal again.
    """
    positions = (view.log_start if bound.everywhere == EARLIEST else view.next).copy()
    times = np.full(view.range.count, NEVER if bound.timestamp_ms is None else bound.timestamp_ms)
    for partition, time in (bound.timestamps or {}).get(view.topic.name, {}).items():
        if 0 <= partition - view.range.first < view.range.count:
            times[partition - view.range.first] = time
    times[~read] = NEVER
    if (times < NEVER).any():
        positions = np.where(times < NEVER, view.at_time(times, after_hole=bound.is_end), positions)
        for at in np.flatnonzero((times < NEVER) & (positions >= view.next)).tolist() if bound.must_match else ():
            raise OffsetOutOfRangeError(
                f"option {bound.option} asks for records since {times[at]}, and partition "
                f"{view.topic.name}/{view.range.first + at} has none: with option startingOffsetsByTimestampStrategy=latest "
                "it begins with its next record"
            )
    for partition, offset in (bound.offsets or {}).get(view.topic.name, {}).items():
        at = partition - view.range.first
        if not 0 <= at < view.range.count:
            continue
        if offset > view.next[at]:
            raise OffsetOutOfRangeError(
                f"option {bound.option} asks for record {offset} of partition {view.topic.name}/{partition}, whose next one "
                f"will be {view.next[at]}"
            )
        positions[at] = {EARLIEST: view.log_start[at], LATEST: view.next[at]}.get(offset, offset)
    return positions


class Planner:
    """Plans the ranges that the tasks of a query read, from its options and the content of its journals.

    Args:
        journal: returns the handle of a journal.
        pin: the pin as of which to plan.
    """

    def __init__(
        self,
        cluster: ClusterHandles,
        options: ReadOptions,
        journal: Callable[[int], JournalHandle],
        pin: Pin | None = None,
    ) -> None:
        self._cluster, self._options, self._pin = cluster, options, pin
        self._journal = journal if pin is None else lambda number: cluster.journal_as_of(number, pin.end(number))

    def topics(self, *, goes_on: bool = False) -> list[Topic]:
        """Return the current topics, or those as of the pin.

        Args:
            goes_on: whether the query has already begun. It then skips deleted topics if their loss is accepted.

        Raises:
            NotFoundError: a topic does not exist.
            UsageError: an option names a partition that its topic does not have, or a topic that is not read.
        """
        o, pin = self._options, self._pin
        state = self._cluster.controller.snapshot() if pin is None else self._cluster.controller_as_of(pin.offset)
        if o.pattern is None:
            may_miss = goes_on and not o.fail_on_data_loss
            topics = {name: state.topic(name) for name in o.topics if name in state.topics or not may_miss}
        else:
            topics = {name: topic for name, topic in state.topics.items() if re.fullmatch(o.pattern, name)}
        given = ((o.starting.option, o.starting.named), (o.ending.option, o.ending.named), ("assign", o.assigned))
        for option, of_topics in given:
            for name, of_topic in of_topics.items():
                if name not in topics and goes_on:
                    continue
                if name not in topics:
                    raise UsageError(
                        f"option {option} names topic {name!r}, which option subscribePattern does not match"
                    )
                for partition in of_topic:
                    if not 0 <= partition < topics[name].partitions:
                        raise UsageError(
                            f"option {option} names partition {partition} of topic {name!r}, which has "
                            f"{topics[name].partitions}"
                        )
        return list(topics.values())

    def is_read(self, topic: Topic) -> Rows:
        assigned = self._options.assigned.get(topic.name)
        partitions = np.arange(topic.partitions)
        return np.isin(partitions, partitions if assigned is None else sorted(assigned))

    def view(
        self,
        ask: Callable[[TopicView], Found],
        topic: Topic,
        partition_range: PartitionRange,
        seen: TopicView | None = None,
    ) -> Found:
        return look(self._cluster, self._journal(partition_range.journal), topic, partition_range, ask, seen)

    def batch(self) -> list[Part]:
        """Return the parts that a batch reads, one journal after another.

        Raises:
            NotFoundError, UsageError: see `topics`.
            OffsetOutOfRangeError: requested records lie below a log start offset, or do not exist yet.
            CorruptObjectError: an object that a journal needs is damaged.
        """
        o = self._options

        def plan(view: TopicView) -> Part:
            topic, first = view.topic, view.range.first
            read = self.is_read(topic)[first : view.range.end]
            starts, ends = (positions_of(view, bound, read) for bound in (o.starting, o.ending))
            left = ends if o.fail_on_data_loss else np.maximum(ends, view.log_start)
            for at in np.flatnonzero(read & (starts > left)).tolist():
                raise UsageError(
                    f"option {o.starting.option} begins partition {topic.name}/{first + at} at record {starts[at]}, and "
                    f"{o.ending.option} ends it before, at {ends[at]}"
                )
            ends = np.where(read, ends, starts)
            self.check_log_start(topic.name, first, starts, ends, view.log_start)
            return _weighed(view, starts, ends)

        return [self.view(plan, topic, r) for topic in self.topics() for r in topic.partition_ranges()]

    def parts(self, ranges: Iterable[Ranges], seen: Mapping[tuple[int, PartitionRange], TopicView]) -> list[Part]:
        """Return these ranges as parts with weights. `seen` has earlier views, by the topic's revision and its
        partitions.

        Raises the errors of `batch`.
        """
        parts = []
        for r in ranges:
            for partition_range in r.topic.partition_ranges():
                starts, ends = (column[partition_range.first : partition_range.end] for column in (r.starts, r.ends))
                if (starts < ends).any():
                    ask = functools.partial(_weighed, starts=starts, ends=ends)
                    parts.append(
                        self.view(ask, r.topic, partition_range, seen.get((r.topic.revision, partition_range)))
                    )
        return parts

    def check_log_start(self, topic: str, first: int, starts: Rows, ends: Rows, log_start: Rows) -> None:
        """Raise `OffsetOutOfRangeError` if requested records were deleted, and that loss is not accepted.

        Args:
            first: the partition of the first row.
        """
        if not self._options.fail_on_data_loss:
            return
        for at in np.flatnonzero((starts < log_start) & (starts < ends)).tolist():
            raise OffsetOutOfRangeError(
                f"record {starts[at]} of partition {topic}/{first + at} was deleted; the first record that is left "
                f"has offset {log_start[at]}. With the option failOnDataLoss=false, deleted records are omitted"
            )


def check_kept(pin: Pin, parts: Iterable[Part]) -> None:
    """Raise `UsageError` unless a pin keeps these parts as of its creation."""
    if not pin.in_effect:
        raise UsageError(f"pin {pin.name!r} has not taken effect, so it keeps nothing: create another one")
    for p in parts:
        if pin.topic not in {ALL_TOPICS, p.topic.revision}:
            raise UsageError(
                f"pin {pin.name!r} is of another topic than {p.topic.name!r}: use one of this topic, or of all"
            )
        if pin.level_one and p.reads_l0:
            raise UsageError(
                f"pin {pin.name!r} keeps L1 only, and some records of topic {p.topic.name!r} were not in L1 when it was "
                "created: use a pin without --level-one, or end the read before them"
            )


def _weighed(view: TopicView, starts: Rows, ends: Rows) -> Part:
    """Return these ranges, with one row for each partition of the view, and their weight."""
    reads_l0 = bool(((starts < ends) & (ends - 1 > view.reconciled)).any())
    part = Part(view.topic, view.range, starts, ends, view.l0_bytes(starts, ends), reads_l0)
    rows = view.listed()
    at = rows["partition"] - view.range.first
    in_range = (starts < ends)[at] & (rows["last"] >= starts[at]) & (rows["base"] < ends[at])
    rows, at = rows[in_range], at[in_range]
    last = np.minimum(ends[at] - 1, rows["last"])
    shares = (last + 1 - np.maximum(starts[at], rows["base"])) / (rows["last"] + 1 - rows["base"])
    # A task opens a shared object once for all of its partitions.
    sizes = np.where(view.is_shared(rows), 0, _FILE_BYTES) + rows["bytes"] * shares
    np.add.at(part.bytes, at, sizes)
    changes = np.flatnonzero(at[1:] != at[:-1]) + 1
    for of_partition in np.split(np.arange(len(at)), changes):
        if len(of_partition) > 1:
            totals = np.cumsum(sizes[of_partition]).tolist()
            part.cuts[int(at[of_partition[0]])] = list(zip((last[of_partition] + 1).tolist(), totals, strict=True))
    return part


def split(
    parts: Sequence[Part], min_partitions: int | None = None, cores: int = 1, slice_bytes: int = SLICE_BYTES
) -> list[Slice]:
    """Return the tasks. The tasks of a partition are in order of offset.

    Args:
        min_partitions: about the lowest number of tasks, however little they read.
        cores: the lowest number of tasks if `min_partitions` is None and each reads at least `LEAST_SLICE_BYTES`.
    """
    total = sum(p.weight for p in parts)
    share = max(total / cores, LEAST_SLICE_BYTES) if min_partitions is None else max(total / min_partitions, 1.0)
    return [s for part in parts for s in _slices(part, min(slice_bytes, share))]


def _slices(part: Part, target: float) -> Iterator[Slice]:
    slice_parts: list[tuple[int, int, int]] = []
    size = 0.0
    first, journal = part.range.first, part.range.journal

    def slice_of(rows: list[tuple[int, int, int]]) -> Slice:
        return Slice(part.topic, journal, pack(np.array(rows, RANGE)))

    for at in np.flatnonzero(part.starts < part.ends).tolist():
        start, end, weight = int(part.starts[at]), int(part.ends[at]), max(float(part.bytes[at]), 1.0)
        pieces = min(round(weight / target), end - start)
        if slice_parts and (size + weight > target * _ROOM or pieces > 1):
            yield slice_of(slice_parts)
            slice_parts, size = [], 0.0
        if pieces <= 1:
            slice_parts.append((first + at, start, end - 1))
            size += weight
            continue
        ends = _cut(start, end, weight, part.cuts.get(at, []), pieces)
        for base, last in zip([start, *ends], [*ends, end], strict=False):
            yield slice_of([(first + at, base, last - 1)])
    if slice_parts:
        yield slice_of(slice_parts)


def _cut(start: int, end: int, weight: float, cuts: Sequence[tuple[int, float]], pieces: int) -> list[int]:
    """Return the offsets at which to cut a range into about this many pieces, at the ends of L1 objects if possible."""
    offsets = np.array([start, *(offset for offset, _ in cuts), end], np.float64)
    bytes_at = np.array([0.0, *(size for _, size in cuts), weight])
    cut_offsets: list[int] = []
    for n in range(1, pieces):
        at = n * weight / pieces
        near = int(np.argmin(np.abs(bytes_at - at)))
        if abs(bytes_at[near] - at) <= weight / pieces / 2:
            offset = int(offsets[near])
        else:
            offset = int(np.interp(at, bytes_at, offsets))
        if offset > (cut_offsets[-1] if cut_offsets else start) and offset < end:
            cut_offsets.append(offset)
    return cut_offsets
