"""What a topic's partitions in one journal hold as of now: their offsets, their L1 objects, and where a time begins.

A view does not change: it shows the journal as it was when the view was made. An object that it names may have been replaced
since then, and then is not found: the caller makes another view.
"""

from __future__ import annotations

import numpy as np

from l0gc import columns
from l0gc.errors import L0gcError
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.controller.state import JournalRun, Topic
from l0gc.streamlog.journal.handle import JournalHandle
from l0gc.streamlog.journal.rows import Rows
from l0gc.streamlog.journal.state import JournalState
from l0gc.streamlog.journal.topic import L1File
from l0gc.streamlog.level_one.index import UNREADABLE, files_of, l1_key
from l0gc.streamlog.level_one.parquet import Times, WantedFile, open_l1, read_l1
from l0gc.streamlog.look import l0_bytes, look


class TopicView:
    """One journal's view of a topic.

    Attributes:
        next, log_start, reconciled: a row for each partition of the run.

    Raises:
        PartitionClosedError: the topic was deleted.
    """

    def __init__(self, cluster: Cluster, handle: JournalHandle, topic: Topic, run: JournalRun) -> None:
        self._cluster, self.topic, self.run = cluster, topic, run
        handle.catch_up()
        self._known = known = look(handle, topic)
        self.partitions = np.arange(run.first, run.first + run.count)
        self.next = known.values(known.next_offsets, self.partitions, 0)
        self.log_start = known.values(known.log_start, self.partitions, 0)
        self.reconciled = known.values(known.reconciled, self.partitions, -1)

    def files(self, partition: int, start: int) -> list[L1File]:
        """The L1 objects of a partition with records from `start` on. Raises as `files_of`."""
        state = JournalState(topics={self.topic.revision: self._known})
        listed = files_of(self._cluster.store, self.topic.id(partition), state, start)
        return [f for f in listed if f.last_offset >= start]

    def l0_bytes(self, starts: Rows, ends: Rows) -> Rows:
        """About how many bytes of L0 these ranges take; they have a row for each partition of the run."""
        return l0_bytes(self._known, self.partitions, starts, ends)

    def at_time(self, timestamp_ms: int, unreadable: dict[int, L0gcError] | None = None) -> Rows:
        """For each partition the first record that is not older, or else the next offset.

        Args:
            unreadable: gets the partitions of which an object of L1 cannot be read, for which the answer is where they
                begin. Without it, that is raised.
        """
        found = self.next.copy()
        for o in reversed(self._known.objects):  # the log's time never goes back, so the oldest of them comes last
            if o.time_ms < timestamp_ms:
                break
            at = o.extents["partition"] - self.run.first
            inside = (at >= 0) & (at < self.run.count)
            found[at[inside]] = o.extents["base"][inside]

        def in_l1(n: int) -> int | None:
            partition, start = self.run.first + n, int(self.log_start[n])
            try:
                return self._in_l1_at(partition, start, timestamp_ms)
            except UNREADABLE as e:
                if unreadable is None:
                    raise
                unreadable[partition] = e
                return start

        lifted = np.flatnonzero(self.reconciled >= self.log_start).tolist()
        for n, offset in zip(lifted, self._cluster.parallel.map(in_l1, lifted), strict=True):
            found[n] = found[n] if offset is None else offset
        return np.maximum(found, self.log_start)

    def _in_l1_at(self, partition: int, start: int, timestamp_ms: int) -> int | None:
        names = ("offset", "timestamp")
        for f in self.files(partition, start):
            if f.is_hole or f.max_timestamp < timestamp_ms:
                continue
            wanted = WantedFile(l1_key(self.topic.id(partition), f), f, start, f.last_offset + 1)
            opened = open_l1(self._cluster.store, wanted)
            for base, batch in read_l1(self._cluster.store, opened, names, Times(first=timestamp_ms)):
                times = np.frombuffer(columns.raw(batch.column("timestamp")), np.int64)
                late = np.flatnonzero((times >= timestamp_ms) & (np.arange(base, base + len(times)) >= start))
                if len(late):
                    return base + int(late[0])
        return None
