"""View a topic's partitions in one journal: their offsets, their L1 objects, and the first offset at or after a time.

A view does not change: it shows the journal at the time of its creation. An object that it names may have been replaced
since then; if it is not found, the caller creates another view. `topic_copy` returns the underlying state without a
request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, Literal, TypeVar

import msgspec
import numpy as np

from l0gc import columns
from l0gc.errors import UNREADABLE, CorruptObjectError, L0gcError, ObjectNotFoundError, PartitionClosedError
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import PartitionRange, Topic
from l0gc.streamlog.ingest.extents import decode_block, fetch_blocks
from l0gc.streamlog.journal.handle import JournalHandle
from l0gc.streamlog.journal.rows import Rows, distinct, distinct_at, indices_in, is_hole
from l0gc.streamlog.journal.topic import TopicState, UnreconciledObject, l1_file, l1_key
from l0gc.streamlog.level_one.give_up import oldest_in_hole
from l0gc.streamlog.level_one.parquet import WantedFile, open_l1, read_l1

Found = TypeVar("Found")
_AtHole = Literal["begin", "end", "skip"]

NEVER: Final = 1 << 62
"""A time that no record has."""
_LOOKS: Final = 5
"""How many views of a journal are tried before an object that it names counts as missing."""


def topic_copy(journal: JournalHandle, topic: Topic) -> TopicState:
    """Return a copy, which does not change, of a topic's state in a journal as of the journal's last replay.

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


def objects_within(
    objects: Sequence[UnreconciledObject], partitions: Rows, starts: Rows, ends: Rows
) -> Iterator[UnreconciledObject]:
    """Yield the objects that have requested records, each with only the extents that have them, cut to these records.

    Args:
        objects: L0 objects, or shared ones, in the order of each partition's offsets.
        starts, ends: for each partition, the first requested offset, and the offset after the last one.
    """
    for o in objects if len(partitions) else ():
        at, is_there = indices_in(partitions, o.extents["partition"])
        first = np.maximum(o.extents["base"], starts[at])
        end = np.minimum(o.extents["base"] + o.extents["records"], ends[at])
        inside = is_there & (first < end)
        if inside.any():
            cut = o.extents[inside].copy()
            cut["row"] += (first[inside] - cut["base"]).astype(np.int32)
            cut["base"], cut["records"] = first[inside], end[inside] - first[inside]
            yield msgspec.structs.replace(o, extents=cut)


def l0_bytes(state: TopicState, partitions: Rows, starts: Rows, ends: Rows) -> Rows:
    """Estimate how many bytes of L0 the records of each partition take; see `objects_within`."""
    totals = np.zeros(len(partitions))
    for o in objects_within(state.objects, partitions, starts, ends):
        extents = o.extents
        records = np.ones(len(o.blocks))
        np.maximum.at(records, o.extents["block"], o.extents["row"].astype(np.int64) + o.extents["records"])
        shares = extents["records"] / records[extents["block"]] * o.blocks["length"][extents["block"]]
        totals[np.searchsorted(partitions, extents["partition"])] += shares
    return totals


class TopicView:
    """One journal's view of a topic.

    Attributes:
        next, log_start, reconciled: a row for each partition of the range.
        end: the place of the last entry that the view includes, or of an earlier one.

    Raises:
        PartitionClosedError: the topic was deleted.
    """

    def __init__(
        self, cluster: ClusterHandles, handle: JournalHandle, topic: Topic, partition_range: PartitionRange
    ) -> None:
        self._cluster, self.topic, self.range = cluster, topic, partition_range
        handle.catch_up()
        self.end = handle.replica.end
        self._known = state = topic_copy(handle, topic)
        self.partitions = np.arange(partition_range.first, partition_range.end)
        self.next = state.values(state.next_offsets, self.partitions, 0)
        self.log_start = state.values(state.log_start, self.partitions, 0)
        self.reconciled = state.values(state.reconciled, self.partitions, -1)

    def listed(self) -> Rows:
        """Return the partitions' lists of L1, as rows of `L1_ROW` by partition and offset; see `TopicState.all_rows`."""
        rows = self._known.all_rows()
        from_first: Rows = rows[np.searchsorted(rows["partition"], self.range.first) :]
        return from_first[: np.searchsorted(from_first["partition"], self.range.end)]

    def is_shared(self, rows: Rows) -> Rows:
        """Return which of these rows belong to shared objects."""
        names = {o.name for o in self._known.shared}
        return np.fromiter((bytes(name) in names for name in rows["name"]) if names else [False] * len(rows), bool)

    def l0_bytes(self, starts: Rows, ends: Rows) -> Rows:
        """Estimate how many bytes of L0 these ranges take, one range for each partition of the view."""
        return l0_bytes(self._known, self.partitions, starts, ends)

    def at_time(
        self, timestamp_ms: int | Rows, unreadable: dict[int, L0gcError] | None = None, *, after_hole: bool = False
    ) -> Rows:
        """Return, for each partition, the offset of the first record at or after this time, or the next offset if there is
        none.

        If that record was given up, only its hole is known, and the result is the hole's first offset.

        Args:
            timestamp_ms: the time for all partitions, or for each; `NEVER` for a partition that is not requested.
            after_hole: return the offset after such a hole if older records were given up with it, for an end.
            unreadable: gets the errors of partitions with an L1 object that cannot be read; their result is the log start
                offset. If it is None, the error is raised.
        """
        offsets, times = self.next.copy(), np.broadcast_to(timestamp_ms, self.range.count)
        for o in reversed(self._known.objects):  # the log's time never goes back, so the oldest one comes last
            if o.time_ms < times.min():
                break
            at = o.extents["partition"] - self.range.first
            inside = (at >= 0) & (at < self.range.count)
            inside[inside] = times[at[inside]] <= o.time_ms
            offsets[at[inside]] = o.extents["base"][inside]

        lifted = (self.reconciled >= self.log_start) & (times < NEVER)
        at_hole: _AtHole = "end" if after_hole else "begin"
        for n, (offset, _) in self._first_in_l1(lifted, self.log_start, times, at_hole, unreadable).items():
            offsets[n] = offset
        return np.maximum(offsets, self.log_start)

    def times_of(self, offsets: Rows) -> Rows:
        """Return the log's time at which the first record at or after each partition's offset landed. The result is
        `NEVER` if there is no such record. Raises as `at_time`.
        """
        times = np.full(self.range.count, NEVER)
        for o in reversed(self._known.objects):
            at = o.extents["partition"] - self.range.first
            inside = (at >= 0) & (at < self.range.count)
            inside[inside] = (o.extents["base"] + o.extents["records"])[inside] > offsets[at[inside]]
            times[at[inside]] = o.time_ms

        lifted, since = (self.reconciled >= offsets) & (offsets < self.next), np.full(self.range.count, -NEVER)
        for n, (_, time_ms) in self._first_in_l1(lifted, offsets, since, "skip").items():
            times[n] = min(times[n], time_ms)  # records in L1 are older, unless they are a hole
        return times

    def _first_in_l1(
        self,
        is_searched: Rows,
        starts: Rows,
        times: Rows,
        holes: _AtHole,
        unreadable: dict[int, L0gcError] | None = None,
    ) -> dict[int, tuple[int, int]]:
        """Return, for each searched partition, by its index in the view, the first record in L1 from its start on that is
        not older than its time, and the record's own time. A shared object is read once for all of its partitions.

        Args:
            holes: the result for a hole with such a record: its beginning, or its end if it has older records, too.
        """
        rows = self.listed()
        at = rows["partition"] - self.range.first
        may = is_searched[at] & (rows["last"] >= starts[at]) & (rows["max_timestamp"] >= times[at])
        may &= ~is_hole(rows) | (holes != "skip")
        rows = rows[may][distinct_at(at[may])[1]]  # times never decrease within a partition
        numbers = {o.name: number for number, o in enumerate(self._known.shared)}
        of_rows = np.array([numbers.get(bytes(name), -1) for name in rows["name"]], np.int64)
        firsts: dict[int, tuple[int, int]] = {}

        def look(mine: Rows, read: Callable[[], Iterator[tuple[int, int, Rows]]]) -> None:
            """Look through the times of consecutive records, given with the partition and the first one's offset."""
            try:
                for partition, base, of_records in read():
                    n = partition - self.range.first
                    late = np.flatnonzero((of_records >= times[n]) & (base + np.arange(len(of_records)) >= starts[n]))
                    if n not in firsts and len(late):
                        firsts[n] = base + int(late[0]), int(of_records[late[0]])
            except UNREADABLE as e:
                if unreadable is None:
                    raise
                for partition in mine["partition"].tolist():
                    unreadable[partition] = e
                    firsts[partition - self.range.first] = int(starts[partition - self.range.first]), NEVER

        objects, looks = self._known.shared_objects(self.topic.name, self.range.journal), []
        for row in rows[of_rows < 0]:
            n = int(row["partition"]) - self.range.first
            looks.append((row.reshape(1), partial(self._times_of_file, row, int(starts[n]), int(times[n]), holes)))
        for number in distinct(of_rows[of_rows >= 0]).tolist():
            mine = rows[of_rows == number]
            looks.append((mine, partial(self._times_of_shared, objects[number], mine["partition"])))
        self._cluster.parallel.map(lambda one: look(*one), looks)
        return firsts

    def _times_of_file(self, row: Any, start: int, since_ms: int, holes: _AtHole) -> Iterator[tuple[int, int, Rows]]:
        f, store = l1_file(row), self._cluster.store
        key = l1_key(self.topic.id(f.partition), f)
        if f.is_hole:
            ends = holes == "end" and oldest_in_hole(store, key, f.bytes) < since_ms
            yield f.partition, f.last_offset + 1 if ends else max(f.base_offset, start), row["max_timestamp"].reshape(1)
            return
        opened = open_l1(store, WantedFile(key, f, start, f.last_offset + 1))
        for base, batch in read_l1(store, opened, ("offset", "timestamp"), since_ms):
            yield f.partition, base, np.frombuffer(columns.raw(batch.column("timestamp")), np.int64)

    def _times_of_shared(self, o: UnreconciledObject, partitions: Rows) -> Iterator[tuple[int, int, Rows]]:
        asked_of = msgspec.structs.replace(o, extents=o.extents[indices_in(partitions, o.extents["partition"])[1]])
        blocks = [asked_of.block(number) for number in asked_of.needed]
        for number, block, body in zip(
            asked_of.needed, blocks, fetch_blocks(self._cluster.store, o.key, blocks), strict=True
        ):
            times = np.frombuffer(columns.raw(decode_block(body, o.key, block).column("timestamp")), np.int64)
            for e in asked_of.extents[asked_of.extents["block"] == number]:
                yield int(e["partition"]), int(e["base"]), times[e["row"] : e["row"] + e["records"]]


def look(
    cluster: ClusterHandles,
    handle: JournalHandle,
    topic: Topic,
    partition_range: PartitionRange,
    ask: Callable[[TopicView], Found],
    seen: TopicView | None = None,
) -> Found:
    """Return the result of `ask` for a view of a topic's partitions in one journal. If an object that the journal named is
    gone, try again with another view.

    Args:
        seen: an earlier view, which is tried first.

    Raises:
        CorruptObjectError: an object that the journal needs is missing.
        PartitionClosedError: the topic was deleted.
    """
    gone: ObjectNotFoundError | None = None
    for _ in range(_LOOKS):
        try:
            return ask(seen or TopicView(cluster, handle, topic, partition_range))
        except ObjectNotFoundError as e:
            gone, seen = e, None
    raise CorruptObjectError(f"{gone}, though a journal needs it; restore that object from a version") from gone
