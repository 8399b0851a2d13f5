"""Shows a topic's partitions in one journal: their offsets, their L1 objects, and the first offset of a time.

A view does not change: it shows the journal at the time of its creation. An object that it names may have been replaced
since; if it is not found, the caller creates another view. `topic_copy` is the same without a request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final, Literal, TypeVar

import numpy as np

from l0gc import columns
from l0gc.errors import UNREADABLE, CorruptObjectError, L0gcError, ObjectNotFoundError, PartitionClosedError
from l0gc.streamlog.cluster import Handles
from l0gc.streamlog.controller.state import JournalRun, Topic
from l0gc.streamlog.journal.handle import JournalHandle
from l0gc.streamlog.journal.rows import Rows, places
from l0gc.streamlog.journal.topic import L1File, TopicState, UnreconciledObject, l1_key
from l0gc.streamlog.level_one.give_up import oldest_in_hole
from l0gc.streamlog.level_one.parquet import WantedFile, open_l1, read_l1

Found = TypeVar("Found")

NEVER: Final = 1 << 62
"""A time that no record has."""
_LOOKS: Final = 5
"""How often a journal is read again because something that it named was gone."""


def topic_copy(journal: JournalHandle, topic: Topic) -> TopicState:
    """Return what a journal had of a topic when it last caught up, as a copy that does not change.

    Raises:
        PartitionClosedError: the topic was deleted.
    """
    with journal.replica.lock:
        state = journal.state
        if state.closed(topic.revision):
            raise deleted(topic)
        return state.topic(topic.revision).copy()


def deleted(topic: Topic) -> PartitionClosedError:
    """Return the error for a deleted topic."""
    return PartitionClosedError(f"topic {topic.name!r} (revision {topic.revision}) was deleted while it was read")


def objects_within(known: TopicState, partitions: Rows, starts: Rows, ends: Rows) -> Iterator[UnreconciledObject]:
    """Yield the L0 objects with records of some partitions, in order of the log, which is that of each partition's offsets;
    of their extents those that are wanted, cut to what is wanted of them.

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
    """Return about how many bytes of L0 the records of each partition take; see `objects_within`."""
    found = np.zeros(len(partitions))
    for o in objects_within(known, partitions, starts, ends):
        extents = o.extents
        records = np.ones(len(o.blocks))
        np.maximum.at(records, o.extents["block"], o.extents["row"].astype(np.int64) + o.extents["records"])
        shares = extents["records"] / records[extents["block"]] * o.blocks["length"][extents["block"]]
        found[np.searchsorted(partitions, extents["partition"])] += shares
    return found


class TopicView:
    """One journal's view of a topic.

    Attributes:
        next, log_start, reconciled: a row for each partition of the run.

    Raises:
        PartitionClosedError: the topic was deleted.
    """

    def __init__(self, cluster: Handles, handle: JournalHandle, topic: Topic, run: JournalRun) -> None:
        self._cluster, self.topic, self.run = cluster, topic, run
        handle.catch_up()
        self._known = known = topic_copy(handle, topic)
        self.partitions = np.arange(run.first, run.first + run.count)
        self.next = known.values(known.next_offsets, self.partitions, 0)
        self.log_start = known.values(known.log_start, self.partitions, 0)
        self.reconciled = known.values(known.reconciled, self.partitions, -1)

    def files(self, partition: int, start: int) -> list[L1File]:
        """Return the L1 objects of a partition with records from `start` on."""
        return self._known.files(partition, start)

    def l0_bytes(self, starts: Rows, ends: Rows) -> Rows:
        """Return about how many bytes of L0 these ranges take; there is one for each partition of the run."""
        return l0_bytes(self._known, self.partitions, starts, ends)

    def at_time(
        self, timestamp_ms: int | Rows, unreadable: dict[int, L0gcError] | None = None, *, after_hole: bool = False
    ) -> Rows:
        """Return for each partition the first record of this time or later, otherwise the next offset.

        If that record was given up, only its hole is known: the result is the hole's first offset.

        Args:
            timestamp_ms: of all partitions, or of each; `NEVER` for one that is not asked about.
            after_hole: return the offset after such a hole if older records were given up with it, for an end.
            unreadable: gets the partitions of which an object of L1 cannot be read, for which the answer is where they
                begin. Without it, that is raised.
        """
        found, times = self.next.copy(), np.broadcast_to(timestamp_ms, self.run.count)
        for o in reversed(self._known.objects):  # the log's time never goes back, so the oldest of them comes last
            if o.time_ms < times.min():
                break
            at = o.extents["partition"] - self.run.first
            inside = (at >= 0) & (at < self.run.count)
            inside[inside] = times[at[inside]] <= o.time_ms
            found[at[inside]] = o.extents["base"][inside]

        def in_l1(n: int) -> int | None:
            partition, start = self.run.first + n, int(self.log_start[n])
            try:
                return self._in_l1_at(partition, start, int(times[n]), holes="end" if after_hole else "begin")[0]
            except UNREADABLE as e:
                if unreadable is None:
                    raise
                unreadable[partition] = e
                return start

        lifted = np.flatnonzero((self.reconciled >= self.log_start) & (times < NEVER)).tolist()
        for n, offset in zip(lifted, self._cluster.parallel.map(in_l1, lifted), strict=True):
            found[n] = found[n] if offset is None else offset
        return np.maximum(found, self.log_start)

    def times_of(self, offsets: Rows) -> Rows:
        """Return when the first record from each partition's offset on landed, by the log's time.

        The result is `NEVER` without a record. Raises as `files`.
        """
        found = np.full(self.run.count, NEVER)
        for o in reversed(self._known.objects):
            at = o.extents["partition"] - self.run.first
            inside = (at >= 0) & (at < self.run.count)
            inside[inside] = (o.extents["base"] + o.extents["records"])[inside] > offsets[at[inside]]
            found[at[inside]] = o.time_ms

        def in_l1(n: int) -> int:
            return self._in_l1_at(self.run.first + n, int(offsets[n]), -NEVER, holes="skip")[1]

        lifted = np.flatnonzero((self.reconciled >= offsets) & (offsets < self.next)).tolist()
        for n, time_ms in zip(lifted, self._cluster.parallel.map(in_l1, lifted), strict=True):
            found[n] = min(found[n], time_ms)  # what is in L1 is older, unless it is a hole
        return found

    def _in_l1_at(
        self, partition: int, start: int, timestamp_ms: int, *, holes: Literal["begin", "end", "skip"]
    ) -> tuple[int | None, int]:
        """Return the first record in L1 from an offset on that is not older, and its time, else `NEVER`.

        Args:
            holes: what stands for a hole with such a record: its beginning, or its end if it has older records, too.
        """
        names = ("offset", "timestamp")
        for f in self.files(partition, start):
            if f.max_timestamp < timestamp_ms or (f.is_hole and holes == "skip"):
                continue
            key = l1_key(self.topic.id(partition), f)
            if f.is_hole and holes == "end" and oldest_in_hole(self._cluster.store, key, f.bytes) < timestamp_ms:
                return f.last_offset + 1, f.max_timestamp
            if f.is_hole:
                return max(f.base_offset, start), f.max_timestamp
            wanted = WantedFile(key, f, start, f.last_offset + 1)
            opened = open_l1(self._cluster.store, wanted)
            for base, batch in read_l1(self._cluster.store, opened, names, timestamp_ms):
                times = np.frombuffer(columns.raw(batch.column("timestamp")), np.int64)
                late = np.flatnonzero((times >= timestamp_ms) & (np.arange(base, base + len(times)) >= start))
                if len(late):
                    return base + int(late[0]), int(times[late[0]])
        return None, NEVER


def look(
    cluster: Handles,
    handle: JournalHandle,
    topic: Topic,
    run: JournalRun,
    ask: Callable[[TopicView], Found],
    seen: TopicView | None = None,
) -> Found:
    """Return what `ask` finds in a view of a run. If something that the journal named was replaced, ask another view.

    Args:
        seen: an earlier view, which is asked first.

    Raises:
        CorruptObjectError: an object that the journal needs is missing.
        PartitionClosedError: the topic was deleted.
    """
    gone: ObjectNotFoundError | None = None
    for _ in range(_LOOKS):
        try:
            return ask(seen or TopicView(cluster, handle, topic, run))
        except ObjectNotFoundError as e:
            gone, seen = e, None
    raise CorruptObjectError(f"{gone}, though a journal needs it; restore that object from a version") from gone
