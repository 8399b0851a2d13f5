"""Whether records may be given up, so that they become a hole (pure).

What makes it safe (hazard 35): a hole takes the place of exactly the records that an operator named, after nobody could read
them, and only of records that are not in L1. Where the entry lands, they must still lie in the objects that were tried;
had another process moved or lifted them since, then they could be read. A hole is a row of the partition's L1 list without
an object, so the list has no gap. No commit names one, takes its place or covers it (`entries.py`, `edits.py`), and
it leaves the list only below the log start offset.

Records in L1 cannot be given up: a lost L1 object does not hold M, a reader can go on after it, and it can still
be restored at any later time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from l0gc.errors import EpochRegressionError, NotFoundError, PartitionClosedError, ProtocolError, UsageError
from l0gc.streamlog.journal.entries import GaveUp
from l0gc.streamlog.journal.rows import RANGE, Rows, ascending, continues, overlapped, unpack
from l0gc.streamlog.journal.topic import TopicState

GIVEN_UP: Final = "records of it were given up, and a hole is never reconciled"


def check_give_up(topics: Mapping[int, TopicState], e: GaveUp, name: str) -> Rows:
    """The ranges of an entry, if all of them may become holes; `name` is the topic's, for messages.

    Raises:
        PartitionClosedError: the topic is gone, or nothing has ever landed in it.
        UsageError: a range cannot be meant, is a hole or in L1 already, or cuts the records of an object.
        NotFoundError: records of it were deleted, or do not exist yet.
        EpochRegressionError: the topic is another one.
        ProtocolError: the records lie in another object than those that were tried.
    """
    topic = topics.get(e.revision)
    if topic is None:
        raise PartitionClosedError(f"topic {name!r} was deleted, or nothing has ever landed in it")
    ranges = unpack(e.ranges, RANGE)
    if topic.topic_id != e.topic_id:
        raise EpochRegressionError(
            f"revision {e.revision} belongs to another topic in this journal: the controller log looks restored from a "
            "backup; nothing was given up"
        )
    if not len(ranges) or not ascending(ranges["partition"]) or ranges["partition"][0] < 0 or not continues(ranges):
        raise UsageError("the records to give up are not ranges of offsets, one for each partition in order")
    for partition, base, last in ranges.tolist():
        _check_range(topic, f"partition {name}/{partition}", partition, base, last)
    for o in topic.objects:
        lasts = o.extents["base"] + o.extents["records"] - 1
        at, inside = overlapped(o.extents, lasts, ranges)
        if not inside.any():
            continue
        begins = np.maximum(o.extents["base"], topic.values(topic.log_start, o.extents["partition"], 0))
        cut = inside & ((begins < ranges["base"][at]) | (lasts > ranges["last"][at]))
        for n in np.flatnonzero(cut)[:1].tolist():
            raise UsageError(
                f"the records {begins[n]} to {lasts[n]} of partition {name}/{o.extents['partition'][n]} lie together in "
                f"{o.key}: give up all of them or none"
            )
        if o.key not in e.keys:
            raise ProtocolError(
                f"records that were to be given up lie in {o.key} now, which was not tried; run it again"
            )
    return ranges


def how_to_give_up(topic: TopicState, name: str, partition: int, offset: int) -> str:
    """The command that gives up the unreconciled records that lie with `offset`; empty if that is not one of them."""
    for e in topic.extents(partition):
        if e.base_offset <= offset <= e.last_offset:
            first = max(e.base_offset, topic.view(partition).log_start_offset)
            return f"l0gc give-up {name} --partition {partition} --offsets {first}-{e.last_offset}"
    return ""


def _check_range(topic: TopicState, where: str, partition: int, base: int, last: int) -> None:
    view, span = topic.view(partition), f"the records {base} to {last} of {where}"
    if last >= view.next_offset:
        raise NotFoundError(f"{span} do not all exist: its next one will have offset {view.next_offset}")
    if base < view.log_start_offset:
        raise NotFoundError(f"{span} were deleted in part or whole: it begins at offset {view.log_start_offset}")
    for hole in topic.holes_of(partition).tolist():
        if hole[1] <= last and hole[2] >= base:
            raise UsageError(f"{span}: {hole[1]} to {hole[2]} were given up already; give offsets outside of that")
    if base <= view.last_reconciled_offset:
        raise UsageError(
            f"{span} are in L1 up to {view.last_reconciled_offset}, and what is in L1 cannot be given up: restore its "
            "object, or delete what is older with l0gc delete-records"
        )
