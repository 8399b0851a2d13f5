"""What a query reads, fixed when it is planned.

A plan is offsets: for each partition from which record on, up to which. What was fixed does not change, whatever is
uploaded, reconciled or merged after it, so a query that is read twice gives the same records. Where they lie is for each
task to ask (`offset_reader.py`).

Journals are gone through one after another, and of each are kept a few numbers for a partition, from which the tasks are
cut (`split.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

import numpy as np

from l0gc.errors import CorruptObjectError, ObjectNotFoundError, OffsetOutOfRangeError, UsageError
from l0gc.spark.source.filters import PushedFilters
from l0gc.spark.source.offsets import Ranges
from l0gc.spark.source.options import EARLIEST, LATEST, Bound, ReadOptions
from l0gc.spark.source.split import Part
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.controller.state import JournalRun, Topic
from l0gc.streamlog.journal.handle import JournalHandle
from l0gc.streamlog.journal.rows import Rows
from l0gc.streamlog.topic_view import TopicView

Found = TypeVar("Found")

_FILE_BYTES: Final = 16 << 10
"""What it counts to open an L1 object, however small it is."""
_LOOKS: Final = 5
"""How often a journal is looked at again, because something that it named was gone."""

Journals = Callable[[int], JournalHandle]
"""Gives the handle on a journal."""


def positions_of(view: TopicView, bound: Bound, what: str) -> Rows:
    """Where reading begins or ends in the partitions of a run.

    Args:
        what: the option that says so, for messages.

    Raises:
        OffsetOutOfRangeError: an offset is past the newest record.
        ObjectNotFoundError: look again.
    """
    if bound.timestamp_ms is not None:
        return view.at_time(bound.timestamp_ms)
    found = (view.log_start if bound.everywhere == EARLIEST else view.next).copy()
    for partition, offset in (bound.offsets or {}).get(view.topic.name, {}).items():
        at = partition - view.run.first
        if not 0 <= at < view.run.count:
            continue
        if offset > view.next[at]:
            raise OffsetOutOfRangeError(
                f"option {what} asks for record {offset} of partition {view.topic.name}/{partition}, whose next one will be "
                f"{view.next[at]}"
            )
        found[at] = {EARLIEST: view.log_start[at], LATEST: view.next[at]}.get(offset, offset)
    return found


def check_partitions(
    bounds: Mapping[str, Bound], assigned: Mapping[str, frozenset[int]], topics: Mapping[str, Topic]
) -> None:
    """Raises `UsageError` if an option names a partition that its topic does not have."""
    named: dict[str, Mapping[str, Iterable[int]]] = {what: bound.offsets or {} for what, bound in bounds.items()}
    for what, of_topics in {**named, "assign": assigned}.items():
        for name, of_topic in of_topics.items():
            for partition in of_topic:
                if not 0 <= partition < topics[name].partitions:
                    raise UsageError(
                        f"option {what} names partition {partition} of topic {name!r}, which has {topics[name].partitions}"
                    )


def viewed(
    cluster: Cluster, journals: Journals, topic: Topic, run: JournalRun, ask: Callable[[TopicView], Found]
) -> Found:
    """What `ask` finds in a view of a run; asked again, of another view, if something that the journal named is replaced."""
    handle = journals(run.journal)
    gone: ObjectNotFoundError | None = None
    for _ in range(_LOOKS):
        try:
            return ask(TopicView(cluster, handle, topic, run))
        except ObjectNotFoundError as e:
            gone = e
    raise CorruptObjectError(f"{gone}, though a journal needs it; restore that object from a version") from gone


def plan_batch(cluster: Cluster, o: ReadOptions, wanted: PushedFilters, journals: Journals) -> list[Part]:
    """What a batch reads, a journal after another.

    Args:
        wanted: what the query's filters leave.

    Raises:
        TopicNotFoundError: there is no such topic.
        OffsetOutOfRangeError: records below a log start offset were asked for, or records that are not there yet.
        CorruptObjectError: an object that a journal needs is not what it should be.
    """
    state = cluster.controller.snapshot()
    topics = {name: state.topic(name) for name in o.topics}
    check_partitions({"startingOffsets": o.starting, "endingOffsets": o.ending}, o.assigned, topics)

    def plan(view: TopicView) -> Part:
        topic, run = view.topic, view.run
        starts = positions_of(view, o.starting, "startingOffsets")
        ends = positions_of(view, o.ending, "endingOffsets")
        ends = np.where(is_assigned(topic, o.assigned)[run.first : run.first + run.count], ends, starts)
        starts, ends = _left(wanted, run, starts, ends)
        check_log_start(topic.name, run.first, starts, ends, view.log_start, o.fail_on_data_loss)
        return _weighed(view, np.maximum(starts, view.log_start), ends)

    chosen = [topic for topic in topics.values() if wanted.has(topic.name)]
    return [viewed(cluster, journals, topic, run, plan) for topic in chosen for run in topic.runs()]


def plan_ranges(cluster: Cluster, ranges: Sequence[Ranges], journals: Journals) -> list[Part]:
    """The parts that these ranges are, weighed. Raises as `plan_batch`."""
    parts = []
    for r in ranges:
        for run in r.topic.runs():
            starts, ends = (column[run.first : run.first + run.count] for column in (r.starts, r.ends))
            if (starts < ends).any():
                ask = functools.partial(_weighed, starts=starts, ends=ends)
                parts.append(viewed(cluster, journals, r.topic, run, ask))
    return parts


def _weighed(view: TopicView, starts: Rows, ends: Rows) -> Part:
    """These ranges, a row for each partition of the view, and what they weigh."""
    part = Part(view.topic, view.run, starts, ends, view.l0_bytes(starts, ends))
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


def check_log_start(topic: str, first: int, starts: Rows, ends: Rows, log_start: Rows, fail_on_data_loss: bool) -> None:
    """Raises `OffsetOutOfRangeError` if records are wanted that were deleted, and `fail_on_data_loss` is set.

    Args:
        first: the partition of the first row.
    """
    if not fail_on_data_loss:
        return
    for at in np.flatnonzero((starts < log_start) & (starts < ends)).tolist():
        raise OffsetOutOfRangeError(
            f"record {starts[at]} of partition {topic}/{first + at} was deleted; the first one that is there has offset "
            f"{log_start[at]}. With option failOnDataLoss=false what was deleted is left out"
        )


def is_assigned(topic: Topic, assigned: Mapping[str, frozenset[int]]) -> Rows:
    """For each partition of a topic whether it is read."""
    if topic.name not in assigned:
        return np.ones(topic.partitions, np.bool_)
    return np.isin(np.arange(topic.partitions), sorted(assigned[topic.name]))


def _left(wanted: PushedFilters, run: JournalRun, starts: Rows, ends: Rows) -> tuple[Rows, Rows]:
    """What filters leave of a run's ranges."""
    partitions = np.arange(run.first, run.first + run.count)
    out = (partitions < wanted.partition_span[0]) | (partitions > wanted.partition_span[1])
    if wanted.partitions is not None:
        out |= ~np.isin(partitions, sorted(wanted.partitions))
    starts = np.maximum(starts, min(wanted.offsets[0], 2**62))
    ends = np.minimum(ends, wanted.offsets[1] + 1)
    return starts, np.where(out, starts, ends)
