"""A stream's driver: how far the topics go, how much the next micro-batch takes, and what its tasks read.

A micro-batch is two positions for each partition, which Spark writes into the checkpoint before it runs anything. The same
positions give the same records again, in the same order by partition, so a micro-batch that is replayed is the one that was
cut off. A query that begins where records have been deleted since fails, or leaves them out where it said that it may.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Final

import numpy as np

from l0gc.errors import OffsetOutOfRangeError
from l0gc.events import event
from l0gc.spark.source.offsets import Json, Positions, Ranges, from_json, limited, to_json
from l0gc.spark.source.options import ReadOptions
from l0gc.spark.source.plan import (
    Journals,
    check_log_start,
    check_partitions,
    is_assigned,
    plan_ranges,
    positions_of,
    viewed,
)
from l0gc.spark.source.split import Slice, split
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.journal.rows import Rows
from l0gc.streamlog.topic_view import TopicView

_log: Final = logging.getLogger(__name__)


class Stream:
    """One query's view of its topics.

    Args:
        journals: gives handles that are kept, since each micro-batch looks at all of them.
    """

    def __init__(self, cluster: Cluster, options: ReadOptions, journals: Journals) -> None:
        self._cluster, self._options, self._journals = cluster, options, journals
        self._target: Positions | None = None

    def initial(self) -> Json:
        """Where a query begins that has no checkpoint. Raises as `plan_batch`."""
        state = self._cluster.controller.snapshot()
        topics = {name: state.topic(name) for name in self._options.topics}
        check_partitions({"startingOffsets": self._options.starting}, self._options.assigned, topics)
        found: Positions = {}

        def begin(view: TopicView) -> Rows:
            return positions_of(view, self._options.starting, "startingOffsets")

        for name, topic in topics.items():
            starts = [viewed(self._cluster, self._journals, topic, run, begin) for run in topic.runs()]
            found[name] = np.where(is_assigned(topic, self._options.assigned), np.concatenate(starts), 0)
        return to_json(topics, found)

    def _extents(self) -> dict[str, Ranges]:
        """What the topics have now; a partition that is not read counts as one that is empty."""
        state = self._cluster.controller.snapshot()
        extents = {}
        for topic in map(state.topic, self._options.topics):
            look = partial(viewed, self._cluster, self._journals, topic, ask=lambda view: (view.log_start, view.next))
            read = is_assigned(topic, self._options.assigned)
            columns = zip(*self._cluster.parallel.map(look, topic.runs()), strict=True)
            extents[topic.name] = Ranges(topic, *(np.where(read, np.concatenate(c), 0) for c in columns))
        return extents

    def newest(self) -> Json:
        """How far the topics go."""
        extents = self._extents()
        return _json(extents, {name: e.ends for name, e in extents.items()})

    def stop_at_newest(self) -> None:
        """From now on, nothing counts that is uploaded later."""
        extents = self._extents()
        self._target = {name: e.ends for name, e in extents.items()}

    def next_end(self, start: Mapping[str, Json], *, everything: bool) -> Json:
        """Where the micro-batch ends that begins at `start`.

        Args:
            everything: whatever the limits say.

        Raises:
            OffsetOutOfRangeError: what is to be read next is not there: it was deleted, or never was.
        """
        extents = self._extents()
        ranges = self._ranges(extents, from_json(start, extents))
        if self._target is not None:
            for name, r in ranges.items():
                ranges[name] = Ranges(r.topic, r.starts, np.maximum(np.minimum(r.ends, self._target[name]), r.starts))
        ends = {name: r.ends for name, r in ranges.items()}
        if not everything and self._options.max_offsets is not None:
            ends = limited(ranges, sum(r.records for r in ranges.values()), self._options.max_offsets)
        if not everything and self._options.max_bytes is not None:
            less = {name: Ranges(r.topic, r.starts, ends[name]) for name, r in ranges.items()}
            parts = plan_ranges(self._cluster, list(less.values()), self._journals)
            weight = sum(p.weight for p in parts)
            ends = limited(less, weight, self._options.max_bytes)
        # A partition whose start was deleted ends where it has records, or else where it began.
        return _json(extents, ends)

    def _ranges(self, extents: Mapping[str, Ranges], starts: Positions) -> dict[str, Ranges]:
        """What is there from these positions on."""
        ranges = {}
        for name, e in extents.items():
            beyond = np.flatnonzero(starts[name] > e.ends).tolist()
            if beyond and self._options.fail_on_data_loss:
                raise OffsetOutOfRangeError(
                    f"record {starts[name][beyond[0]]} of partition {name}/{beyond[0]} is next, and the partition ends at "
                    f"{e.ends[beyond[0]]}: its journal looks restored from a backup"
                )
            ends = np.maximum(e.ends, starts[name])
            check_log_start(name, 0, starts[name], ends, e.starts, self._options.fail_on_data_loss)
            begins = np.minimum(np.maximum(starts[name], e.starts), ends)
            ranges[name] = Ranges(e.topic, begins, ends)
        return ranges

    def slices(self, start: Mapping[str, Json], end: Mapping[str, Json]) -> list[Slice]:
        """The tasks of a micro-batch.

        Raises:
            OffsetOutOfRangeError: some of its records were deleted.
        """
        extents = self._extents()
        starts, ends = from_json(start, extents), from_json(end, extents)
        ranges: list[Ranges] = []
        for name, e in extents.items():
            if (ends[name] > e.ends).any() and self._options.fail_on_data_loss:
                at = int(np.argmax(ends[name] > e.ends))
                raise OffsetOutOfRangeError(
                    f"the checkpoint has a batch up to record {ends[name][at]} of partition {name}/{at}, which ends at "
                    f"{e.ends[at]}: its journal looks restored from a backup"
                )
            check_log_start(name, 0, starts[name], ends[name], e.starts, self._options.fail_on_data_loss)
            lost = np.minimum(e.starts, ends[name]) - starts[name]
            if (lost > 0).any():
                message = (
                    f"{int(lost[lost > 0].sum())} records of topic {name!r} were deleted before the stream read them"
                )
                _log.warning("%s; they are left out", message, extra=event("data_loss"))
            ranges.append(Ranges(e.topic, np.maximum(starts[name], e.starts), np.minimum(ends[name], e.ends)))
        return split(plan_ranges(self._cluster, ranges, self._journals), self._options.min_partitions)


def _json(extents: Mapping[str, Ranges], positions: Positions) -> Json:
    return to_json({name: e.topic for name, e in extents.items()}, positions)
