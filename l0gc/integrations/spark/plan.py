"""What a query reads, fixed when it is planned.

A plan is offsets: for each partition from which record on, up to which. What was fixed does not change, whatever is
uploaded, reconciled or merged after it, so a query that is read twice gives the same records. Where they lie is for each
task to ask (`offset_reader.py`).

Journals are gone through one after another, and of each are kept a few numbers for a partition, from which the tasks are
cut. A task gets neighbouring partitions of one journal, which share the blocks of L0 objects, up to its part of the whole if
each core is to have a task, or up to about `SLICE_BYTES` as they are stored; a partition that has more is cut where its L1
objects end.
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
from l0gc.streamlog.cluster import Handles
from l0gc.streamlog.controller.state import ALL_TOPICS, JournalRun, Pin, Topic
from l0gc.streamlog.journal.handle import JournalHandle
from l0gc.streamlog.journal.rows import RANGE, Rows, pack, unpack
from l0gc.streamlog.topic_view import NEVER, Found, TopicView, look

_FILE_BYTES: Final = 16 << 10
"""What it counts to open an L1 object, however small it is."""
SLICE_BYTES: Final = 64 << 20
"""About how many bytes, as stored, a task reads at most."""
LEAST_SLICE_BYTES: Final = 1 << 20
"""A core gets no task of its own for less: to start one costs about as much as reading that."""
_ROOM: Final = 1.1
"""Parts of nearly equal weight may add up to so much more than their share: a task more would cost more than that."""


@dataclass(frozen=True)
class Slice(InputPartition):
    """What a task reads: of some partitions of a topic in one journal a range each, packed as rows of `RANGE`.

    With a `pin` it reads the journal as of it.
    """

    topic: Topic
    journal: int
    rows: bytes
    pin: Pin | None = None

    def ranges(self) -> Rows:
        return unpack(self.rows, RANGE)


@dataclass(frozen=True, slots=True)
class Ranges:
    """Of each partition of a topic the records from `starts` on, up to but without `ends`."""

    topic: Topic
    starts: Rows
    ends: Rows

    @property
    def records(self) -> int:
        return int(np.maximum(self.ends - self.starts, 0).sum())


@dataclass(slots=True)
class Part:
    """The ranges of one run, and what they weigh.

    Attributes:
        bytes: by partition, as they are stored.
        reads_l0: whether some of the records are not in L1.
        cuts: of large partitions where their L1 objects end, as (offset after it, bytes up to there).
    """

    topic: Topic
    run: JournalRun
    starts: Rows
    ends: Rows
    bytes: Rows
    reads_l0: bool
    cuts: dict[int, list[tuple[int, float]]] = field(default_factory=dict)

    @property
    def weight(self) -> float:
        return float(self.bytes[self.starts < self.ends].sum())


def positions_of(view: TopicView, bound: Bound, read: Rows) -> Rows:
    """Where reading begins or ends in the partitions of a run.

    Args:
        read: for each of them whether it is read.

    Raises:
        OffsetOutOfRangeError: an offset is past the newest record, or no record is as new as a timestamp.
        ObjectNotFoundError: look again.
    """
    found = (view.log_start if bound.everywhere == EARLIEST else view.next).copy()
    times = np.full(view.run.count, NEVER if bound.timestamp_ms is None else bound.timestamp_ms)
    for partition, time in (bound.timestamps or {}).get(view.topic.name, {}).items():
        if 0 <= partition - view.run.first < view.run.count:
            times[partition - view.run.first] = time
    times[~read] = NEVER
    if (times < NEVER).any():
        found = np.where(times < NEVER, view.at_time(times), found)
        for at in np.flatnonzero((times < NEVER) & (found >= view.next)).tolist() if bound.must_match else ():
            raise OffsetOutOfRangeError(
                f"option {bound.option} asks for records since {times[at]}, and partition "
                f"{view.topic.name}/{view.run.first + at} has none: with option startingOffsetsByTimestampStrategy=latest "
                "it begins with its next record"
            )
    for partition, offset in (bound.offsets or {}).get(view.topic.name, {}).items():
        at = partition - view.run.first
        if not 0 <= at < view.run.count:
            continue
        if offset > view.next[at]:
            raise OffsetOutOfRangeError(
                f"option {bound.option} asks for record {offset} of partition {view.topic.name}/{partition}, whose next one "
                f"will be {view.next[at]}"
            )
        found[at] = {EARLIEST: view.log_start[at], LATEST: view.next[at]}.get(offset, offset)
    return found


class Planner:
    """Plans what the tasks of a query read, from its options and what its journals hold.

    Args:
        journal: gives the handle on a journal.
        pin: plan as of it.
    """

    def __init__(
        self, cluster: Handles, options: ReadOptions, journal: Callable[[int], JournalHandle], pin: Pin | None = None
    ) -> None:
        self._cluster, self._options, self._pin = cluster, options, pin
        self._journal = journal if pin is None else lambda number: cluster.journal_as_of(number, pin.end(number))

    def topics(self, *, goes_on: bool = False) -> list[Topic]:
        """The topics as they are now, or were as of the pin.

        Args:
            goes_on: what a query that goes on still finds: without those that are gone, if their loss is accepted.

        Raises:
            NotFoundError: one does not exist.
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
        for what, of_topics in given:
            for name, of_topic in of_topics.items():
                if name not in topics and goes_on:
                    continue
                if name not in topics:
                    raise UsageError(
                        f"option {what} names topic {name!r}, which option subscribePattern does not match"
                    )
                for partition in of_topic:
                    if not 0 <= partition < topics[name].partitions:
                        raise UsageError(
                            f"option {what} names partition {partition} of topic {name!r}, which has "
                            f"{topics[name].partitions}"
                        )
        return list(topics.values())

    def is_read(self, topic: Topic) -> Rows:
        assigned = self._options.assigned.get(topic.name)
        partitions = np.arange(topic.partitions)
        return np.isin(partitions, partitions if assigned is None else sorted(assigned))

    def view(
        self, ask: Callable[[TopicView], Found], topic: Topic, run: JournalRun, seen: TopicView | None = None
    ) -> Found:
        return look(self._cluster, self._journal(run.journal), topic, run, ask, seen)

    def batch(self) -> list[Part]:
        """What a batch reads, a journal after another.

        Raises:
            NotFoundError, UsageError: see `topics`.
            OffsetOutOfRangeError: records below a log start offset were asked for, or records that are not there yet.
            CorruptObjectError: an object that a journal needs is not what it should be.
        """
        o = self._options

        def plan(view: TopicView) -> Part:
            topic, run = view.topic, view.run
            read = self.is_read(topic)[run.first : run.first + run.count]
            starts, ends = (positions_of(view, bound, read) for bound in (o.starting, o.ending))
            left = ends if o.fail_on_data_loss else np.maximum(ends, view.log_start)
            for at in np.flatnonzero(read & (starts > left)).tolist():
                raise UsageError(
                    f"option {o.starting.option} begins partition {topic.name}/{run.first + at} at record {starts[at]}, and "
                    f"{o.ending.option} ends it before, at {ends[at]}"
                )
            ends = np.where(read, ends, starts)
            self.check_log_start(topic.name, run.first, starts, ends, view.log_start)
            return _weighed(view, starts, ends)

        return [self.view(plan, topic, run) for topic in self.topics() for run in topic.runs()]

    def parts(self, ranges: Iterable[Ranges], seen: Mapping[tuple[int, JournalRun], TopicView]) -> list[Part]:
        """The parts that these ranges are, weighed, by the views that were `seen` before of a topic's revision and a run.
        Raises as `batch`."""
        parts = []
        for r in ranges:
            for run in r.topic.runs():
                starts, ends = (column[run.first : run.first + run.count] for column in (r.starts, r.ends))
                if (starts < ends).any():
                    ask = functools.partial(_weighed, starts=starts, ends=ends)
                    parts.append(self.view(ask, r.topic, run, seen.get((r.topic.revision, run))))
        return parts

    def check_log_start(self, topic: str, first: int, starts: Rows, ends: Rows, log_start: Rows) -> None:
        """Raises `OffsetOutOfRangeError` if records are wanted that were deleted, and that is not accepted.

        Args:
            first: the partition of the first row.
        """
        if not self._options.fail_on_data_loss:
            return
        for at in np.flatnonzero((starts < log_start) & (starts < ends)).tolist():
            raise OffsetOutOfRangeError(
                f"record {starts[at]} of partition {topic}/{first + at} was deleted; the first one that is there has "
                f"offset {log_start[at]}. With option failOnDataLoss=false what was deleted is left out"
            )


def check_kept(pin: Pin, parts: Iterable[Part]) -> None:
    """Raise `UsageError` unless a pin keeps these parts, as of it."""
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
    """These ranges, a row for each partition of the view, and what they weigh."""
    reads_l0 = bool(((starts < ends) & (ends - 1 > view.reconciled)).any())
    part = Part(view.topic, view.run, starts, ends, view.l0_bytes(starts, ends), reads_l0)
    for n in np.flatnonzero((starts < ends) & (starts <= view.reconciled)).tolist():
        start, end, cuts, total = int(starts[n]), int(ends[n]), [], 0.0
        for f in view.files(view.run.first + n, start):
            if f.base_offset >= end:
                break
            records = min(end, f.last_offset + 1) - max(start, f.base_offset)
            total += _FILE_BYTES + f.bytes * records / (f.last_offset + 1 - f.base_offset)
            cuts.append((min(end, f.last_offset + 1), total))
        part.bytes[n] += total
        if len(cuts) > 1:
            part.cuts[n] = cuts
    return part


def split(
    parts: Sequence[Part], min_partitions: int | None = None, cores: int = 1, slice_bytes: int = SLICE_BYTES
) -> list[Slice]:
    """The tasks. Those of one partition stand in the order of their offsets.

    Args:
        min_partitions: about how many there are at least, however little they read.
        cores: without that, how many there are at least if they then read `LEAST_SLICE_BYTES` each.
    """
    total = sum(p.weight for p in parts)
    share = max(total / cores, LEAST_SLICE_BYTES) if min_partitions is None else max(total / min_partitions, 1.0)
    return [s for part in parts for s in _slices(part, min(slice_bytes, share))]


def _slices(part: Part, target: float) -> Iterator[Slice]:
    held: list[tuple[int, int, int]] = []
    size = 0.0
    first, journal = part.run.first, part.run.journal

    def slice_of(rows: list[tuple[int, int, int]]) -> Slice:
        return Slice(part.topic, journal, pack(np.array(rows, RANGE)))

    for at in np.flatnonzero(part.starts < part.ends).tolist():
        start, end, weight = int(part.starts[at]), int(part.ends[at]), max(float(part.bytes[at]), 1.0)
        pieces = min(round(weight / target), end - start)
        if held and (size + weight > target * _ROOM or pieces > 1):
            yield slice_of(held)
            held, size = [], 0.0
        if pieces <= 1:
            held.append((first + at, start, end - 1))
            size += weight
            continue
        ends = _cut(start, end, weight, part.cuts.get(at, []), pieces)
        for base, last in zip([start, *ends], [*ends, end], strict=False):
            yield slice_of([(first + at, base, last - 1)])
    if held:
        yield slice_of(held)


def _cut(start: int, end: int, weight: float, cuts: Sequence[tuple[int, float]], pieces: int) -> list[int]:
    """Where a range is cut into about so many pieces: where an L1 object ends if one does nearby, else between."""
    offsets = np.array([start, *(offset for offset, _ in cuts), end], np.float64)
    bytes_at = np.array([0.0, *(size for _, size in cuts), weight])
    found: list[int] = []
    for n in range(1, pieces):
        at = n * weight / pieces
        near = int(np.argmin(np.abs(bytes_at - at)))
        if abs(bytes_at[near] - at) <= weight / pieces / 2:
            offset = int(offsets[near])
        else:
            offset = int(np.interp(at, bytes_at, offsets))
        if offset > (found[-1] if found else start) and offset < end:
            found.append(offset)
    return found
