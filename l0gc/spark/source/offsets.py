"""Where reading begins and ends, by topic and partition: as columns, and as the JSON that a checkpoint holds.

A position is the offset of the record that is next. The JSON is that of Spark's Kafka connector, `{"topic":{"0":23,"1":5}}`,
and it also says which incarnation of the topic the offsets are of: those of a topic that was deleted mean nothing in one
that was created later under its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from l0gc.errors import OffsetOutOfRangeError, UsageError
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.journal.rows import Rows

_REVISION: Final = "revision"

Json = dict[str, dict[str, int]]
"""Positions as they are stored."""


@dataclass(frozen=True, slots=True)
class Ranges:
    """Of each partition of a topic the records from `starts` on, up to but without `ends`."""

    topic: Topic
    starts: Rows
    ends: Rows

    @property
    def records(self) -> int:
        return int(np.maximum(self.ends - self.starts, 0).sum())


Positions = dict[str, Rows]
"""By topic, the position in each partition."""


def to_json(topics: Mapping[str, Topic], positions: Positions) -> Json:
    """Positions as a checkpoint holds them."""
    return {
        name: {_REVISION: topics[name].revision, **{str(p): offset for p, offset in enumerate(rows.tolist())}}
        for name, rows in positions.items()
    }


def from_json(stored: Mapping[str, Any], extents: Mapping[str, Ranges]) -> Positions:
    """The positions in a checkpoint, for the topics as they are now; a partition it does not name begins where it begins.

    Raises:
        UsageError: it is of other topics, or of something else.
        OffsetOutOfRangeError: a topic was deleted since, and created again.
    """
    if set(stored) != set(extents):
        raise UsageError(
            f"the checkpoint is of topics {', '.join(sorted(stored))}, and the query reads {', '.join(sorted(extents))}: "
            "begin it with another checkpointLocation"
        )
    positions = {}
    for name, extent in extents.items():
        rows = extent.starts.copy()
        for key, value in stored[name].items():
            if key == _REVISION:
                if value != extent.topic.revision:
                    raise OffsetOutOfRangeError(
                        f"topic {name!r} was deleted and created again (revision {extent.topic.revision}) since the query "
                        f"read revision {value}; begin it with another checkpointLocation"
                    )
            elif not key.isdecimal() or int(key) >= len(rows):
                raise UsageError(f"the checkpoint has partition {key} of topic {name!r}, which has {len(rows)}")
            else:
                rows[int(key)] = value
        positions[name] = rows
    return positions


def limited(ranges: Mapping[str, Ranges], total: float, limit: int) -> Positions:
    """Where a batch ends that takes about `limit` of `total`, of each partition in proportion to what it has; at least one
    record of each, so that none starves."""
    ends: Positions = {}
    for name, r in ranges.items():
        wanted = np.maximum(r.ends - r.starts, 0)
        if total > limit:
            share = wanted * (limit / total)
            wanted = np.minimum(wanted, np.where(share < 1, np.ceil(share), np.floor(share)).astype(np.int64))
        ends[name] = r.starts + wanted
    return ends
