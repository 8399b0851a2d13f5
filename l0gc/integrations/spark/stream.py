"""Drive a stream: determine the end of the topics, the size of the next micro-batch, and the records that its tasks
read.

A micro-batch consists of two positions for each partition, which Spark writes to the checkpoint before it runs the
batch. The same positions give the same records, in the same order in each partition, so a replayed micro-batch equals
the interrupted one. If records at a query's position were deleted, the query fails, or skips them if its options accept
that.

A position is the offset of the next record. The checkpoint contains the JSON of Spark's Kafka connector,
`{"topic":{"0":23,"1":5}}`, the topic's incarnation, since the offsets of a deleted topic mean nothing in a later one of
the same name, and the last entry of each journal from which the positions follow. A journal without that entry was set
back, or belongs to a copy of the cluster, even if it has grown past the positions (hazard 38).
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from l0gc.errors import OffsetOutOfRangeError, PartitionClosedError, UsageError
from l0gc.events import event
from l0gc.inspect.lag import JOURNALS, REVISION, lacking
from l0gc.integrations.spark.options import ReadOptions
from l0gc.integrations.spark.plan import Planner, Ranges, Slice, positions_of, split
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import PartitionRange
from l0gc.streamlog.journal.rows import Rows
from l0gc.streamlog.topic_view import TopicView

_log: Final = logging.getLogger(__name__)

_PLACES: Final = 1 << 15
"""The number of places that a query caches: more than two for each of the 9,999 journals that a cluster may have."""

Json = dict[str, dict[str, Any]]
"""Positions in the form of a checkpoint."""
Positions = dict[str, Rows]
"""The position in each partition, by topic."""


class Stream:
    """A query's view of its topics, with the journals' handles, since each micro-batch reads all journals."""

    def __init__(
        self, cluster: ClusterHandles, options: ReadOptions, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cluster, self._options, self._clock = cluster, options, clock
        self._last_trigger: float | None = None
        journal = functools.cache(cluster.journal)
        self._planner = Planner(cluster, options, journal)
        # Each poll checks the same places again, and an old one may cost a request.
        self._holds = functools.lru_cache(_PLACES)(lambda number, place: journal(number).replica.holds(place))
        self._target: dict[int, Rows] | None = None
        self._views: dict[tuple[int, PartitionRange], TopicView] = {}
        self._last: tuple[Json, dict[str, Ranges]] | None = None

    def initial(self) -> Json:
        """Return the positions at which a query without a checkpoint begins. Raises the errors of `Planner.batch`."""

        def begin(view: TopicView) -> tuple[Rows, Rows]:
            read = self._planner.is_read(view.topic)[view.range.first : view.range.end]
            return positions_of(view, self._options.starting, read), view.next

        extents = self._extents(begin)
        return self._json(extents, {name: e.starts for name, e in extents.items()})

    def _extents(self, ask: Callable[[TopicView], tuple[Rows, Rows]] | None = None) -> dict[str, Ranges]:
        """Return the current ranges of the topics or, at the start of the query, the results of `ask`. A partition that
        is not read counts as empty.
        """
        extents: dict[str, Ranges] = {}
        self._views = {}

        def look(view: TopicView) -> tuple[Rows, Rows]:
            self._views[view.topic.revision, view.range] = view
            return (view.log_start, view.next) if ask is None else ask(view)

        for topic in self._planner.topics(goes_on=ask is None):
            view = functools.partial(self._planner.view, look, topic)
            try:
                columns = zip(*self._cluster.parallel.map(view, topic.partition_ranges()), strict=True)
            except PartitionClosedError as e:
                self._lost(str(e))
                continue
            read = self._planner.is_read(topic)
            extents[topic.name] = Ranges(topic, *(np.where(read, np.concatenate(c), 0) for c in columns))
        return extents

    def newest(self) -> Json:
        """Return the ends of the topics that `next_end` found. Spark calls this right after `next_end`."""
        extents = self._last[1] if self._last else self._extents()
        return self._json(extents, {name: e.ends for name, e in extents.items()})

    def stop_at_newest(self) -> None:
        """Ignore all records that are uploaded from now on."""
        self._target = {e.topic.revision: e.ends for e in self._extents().values()}

    def next_end(self, start: Mapping[str, Json], *, everything: bool) -> Json:
        """Return the end of the micro-batch that begins at `start`. A topic that is missing in `start` begins with its
        first record, so a new topic is read completely.

        Args:
            everything: whether to ignore the limits.

        Raises:
            OffsetOutOfRangeError: the next records were deleted or have never existed.
        """
        extents = self._extents()
        starts = self._positions(start, extents)
        ranges = self._checked(extents, starts, {name: e.ends for name, e in extents.items()}, reached=starts)
        for name, r in ranges.items():
            # A partition whose start was deleted begins at its first record, or else at its end.
            first = np.minimum(np.maximum(r.starts, extents[name].starts), r.ends)
            end = r.ends
            if self._target is not None:
                end = np.maximum(np.minimum(end, self._target.get(r.topic.revision, first)), first)
            ranges[name] = Ranges(r.topic, first, end)
        ends, waiting = {name: r.ends for name, r in ranges.items()}, sum(r.records for r in ranges.values())
        if not everything and self._is_too_early(waiting):
            ends, everything = starts, True
        if not everything and self._options.max_offsets is not None:
            ends = limited(ranges, waiting, self._options.max_offsets)
        if not everything and self._options.max_bytes is not None:
            less = {name: Ranges(r.topic, r.starts, ends[name]) for name, r in ranges.items()}
            weight = sum(p.weight for p in self._planner.parts(less.values(), self._views))
            ends = limited(less, weight, self._options.max_bytes)
        json = self._json(extents, ends)
        for name, of_topic in json.items():
            # New entries of other topics must not count, since Spark begins a micro-batch whenever its end differs from
            # its start.
            if name in start and np.array_equal(ends[name], starts[name]):
                of_topic[JOURNALS] = start[name].get(JOURNALS, of_topic[JOURNALS])
        self._last = json, extents
        return json

    def _is_too_early(self, waiting: int) -> bool:
        """Return whether a micro-batch would have fewer records than `min_offsets`, and the previous one was recent.
        The first one of a driver is never too early. With the trigger `availableNow`, no micro-batch is, since the
        query would end with unread records.
        """
        least, now = self._options.min_offsets, self._clock()
        last = self._last_trigger
        recent = last is not None and (now - last) * 1000 < self._options.trigger_delay_ms
        if least is not None and self._target is None and waiting < least and recent:
            return True
        self._last_trigger = now
        return False

    def _checked(
        self, extents: Mapping[str, Ranges], starts: Positions, ends: Positions, *, reached: Positions
    ) -> dict[str, Ranges]:
        """Return these ranges. Raises `OffsetOutOfRangeError` if a partition ends before `reached` or begins after
        `starts`, unless that is accepted.
        """
        ranges = {}
        for name, e in extents.items():
            for at in np.flatnonzero(reached[name] > e.ends).tolist():
                self._lost(
                    f"the checkpoint is at record {reached[name][at]} of partition {name}/{at}, which ends at "
                    f"{e.ends[at]}: its journal looks restored from a backup"
                )
            self._planner.check_log_start(name, 0, starts[name], ends[name], e.starts)
            ranges[name] = Ranges(e.topic, starts[name], ends[name])
        return ranges

    def slices(self, start: Json, end: Json) -> list[Slice]:
        """Return the tasks of a micro-batch. If `next_end` has just returned this end, use the ranges that it found.

        Raises:
            OffsetOutOfRangeError: some of the records were deleted.
        """
        last, self._last = self._last, None
        extents = last[1] if last and last[0] == end else self._extents()
        reached = self._positions(end, extents)
        ends = {name: np.minimum(e.ends, reached[name]) for name, e in extents.items()}
        ranges = self._checked(extents, self._positions(start, extents), ends, reached=reached)
        return split(
            self._planner.parts(ranges.values(), self._views), self._options.min_partitions, self._options.cores
        )

    def _positions(self, stored: Mapping[str, Any], extents: Mapping[str, Ranges]) -> Positions:
        """Return the positions in a checkpoint for the current topics. A partition that the checkpoint does not name
        begins at its first record.

        Raises:
            OffsetOutOfRangeError: a topic is no longer read, or was deleted and created again, or a journal was set
                back, and that is not accepted.
            UsageError: the checkpoint has a partition that its topic does not have.
        """
        if gone := sorted(set(stored) - set(extents)):
            self._lost(
                f"the checkpoint has topic {', '.join(gone)}, which was deleted or is not in the query's options now"
            )
        positions = {}
        for name, extent in extents.items():
            rows = np.zeros_like(extent.starts)
            positions[name] = rows
            of_topic = stored.get(name, {})
            revision = of_topic.get(REVISION, extent.topic.revision)
            if revision != extent.topic.revision:
                self._lost(
                    f"topic {name!r} was deleted and created again (revision {extent.topic.revision}) since the query read "
                    f"revision {revision}"
                )
                continue
            if lost := lacking(of_topic, extent.topic, self._holds):
                self._lost(lost)
            for key, value in of_topic.items():
                if key in (REVISION, JOURNALS):
                    continue
                if not key.isdecimal() or int(key) >= len(rows):
                    raise UsageError(f"the checkpoint has partition {key} of topic {name!r}, which has {len(rows)}")
                rows[int(key)] = value
        return positions

    def _json(self, extents: Mapping[str, Ranges], positions: Positions) -> Json:
        """Return the positions of the partitions that are read, in the form of a checkpoint."""
        topics = {}
        for name, rows in positions.items():
            topic = extents[name].topic
            read = np.flatnonzero(self._planner.is_read(topic)).tolist()
            ends = {str(p.journal): list(view.end) for (r, p), view in self._views.items() if r == topic.revision}
            topics[name] = {REVISION: topic.revision, JOURNALS: ends, **{str(p): int(rows[p]) for p in read}}
        return topics

    def _lost(self, what: str) -> None:
        """Raise `OffsetOutOfRangeError` unless a loss is accepted."""
        if self._options.fail_on_data_loss:
            raise OffsetOutOfRangeError(
                f"{what}; set option failOnDataLoss=false to continue with what exists, or start the query with a "
                f"new checkpointLocation"
            )
        _log.warning("%s; the query continues", what, extra=event("data_loss"))


def limited(ranges: Mapping[str, Ranges], total: float, limit: int) -> Positions:
    """Return the end of a batch that takes about `limit` of `total`: a proportional part of each partition, but at
    least one record, so that no partition starves.
    """
    ends: Positions = {}
    for name, r in ranges.items():
        lengths = np.maximum(r.ends - r.starts, 0)
        if total > limit:
            # The cumulative sums are rounded, so that the shares add up to the limit.
            shares = np.diff(np.rint(np.cumsum(lengths * (limit / total))), prepend=0).astype(np.int64)
            lengths = np.minimum(lengths, np.maximum(shares, 1))
        ends[name] = r.starts + lengths
    return ends
