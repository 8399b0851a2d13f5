"""What a journal holds of a topic, as a copy that does not change, and where ranges of its offsets lie in L0."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from l0gc.errors import PartitionClosedError
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.journal.handle import JournalHandle
from l0gc.streamlog.journal.rows import Rows, places
from l0gc.streamlog.journal.topic import TopicState, UnreconciledObject


def look(journal: JournalHandle, topic: Topic) -> TopicState:
    """What a journal knew of a topic when it was last caught up with: a copy, which does not change while it is read.

    Raises:
        PartitionClosedError: the topic was deleted.
    """
    with journal.replica.lock:
        state = journal.state
        if state.closed(topic.revision):
            raise deleted(topic)
        known = state.topic(topic.revision)
        return replace(
            known,
            next_offsets=known.next_offsets.copy(),
            reconciled=known.reconciled.copy(),
            log_start=known.log_start.copy(),
            objects=list(known.objects),
        )


def deleted(topic: Topic) -> PartitionClosedError:
    """The error for a topic that is gone."""
    return PartitionClosedError(f"topic {topic.name!r} (revision {topic.revision}) was deleted while it was read")


def objects_within(known: TopicState, partitions: Rows, starts: Rows, ends: Rows) -> Iterator[UnreconciledObject]:
    """The L0 objects with records of some partitions, in order of the log, which is that of each partition's offsets; of
    their extents those that are wanted, cut to what is wanted of them.

    Args:
        starts: for each partition its first offset that is wanted, and in `ends` the one after its last.
    """
    for o in known.objects if len(partitions) else ():
        at, there = places(partitions, o.extents["partition"])
        first = np.maximum(o.extents["base"], starts[at])
        end = np.minimum(o.extents["base"] + o.extents["records"], ends[at])
        inside = there & (first < end)
        if inside.any():
            cut = o.extents[inside].copy()
            cut["row"] += (first[inside] - cut["base"]).astype(np.int32)
            cut["base"], cut["records"] = first[inside], end[inside] - first[inside]
            yield replace(o, extents=cut)


def l0_bytes(known: TopicState, partitions: Rows, starts: Rows, ends: Rows) -> Rows:
    """About how many bytes of L0 the records of each partition take; see `objects_within`."""
    found = np.zeros(len(partitions))
    for o in objects_within(known, partitions, starts, ends):
        extents = o.extents
        records = np.ones(len(o.blocks))
        np.maximum.at(records, o.extents["block"], o.extents["row"].astype(np.int64) + o.extents["records"])
        shares = extents["records"] / records[extents["block"]] * o.blocks["length"][extents["block"]]
        found[np.searchsorted(partitions, extents["partition"])] += shares
    return found
