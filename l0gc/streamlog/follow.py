"""Follow a topic: yield its records as they land, each once and in order within its partition, until the follower is
stopped.

Each look reads the end of each journal of the topic, with one request if nothing has landed there, and then the records
that `reader.py` finds from the positions on. A position is an offset: a program that stores the positions with its results
can continue there, and gets no record twice. A record that was deleted before it was read raises an error, and so does a
journal that ends below a position: nothing is skipped (hazard 33).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from l0gc.errors import UsageError
from l0gc.operations import Read
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.ingest.headers_and_times import Record
from l0gc.streamlog.level_one.parquet import WHOLE_RECORD
from l0gc.streamlog.reader import as_records, journal_readers

LONGEST_WAIT: Final = 8
"""While nothing lands, each wait is twice as long as the one before, up to this many intervals."""


class Follower(Iterator[Record]):
    """Yields the records of a topic as they land.

    Attributes:
        positions: by partition, the offset after the last yielded record, or the first offset if there is none. A follower
            that starts there continues.

    Args:
        options: the partitions to follow, and where they begin; it must have no end.
        interval_s: the wait between two looks, while records land.
        caught_up: called after each look, once all records that it found were yielded.
        stop: ends the iteration.

    Raises:
        UsageError: `options` has an end, or a pin.
        As `read_pieces`: from each `next`.
    """

    def __init__(
        self,
        cluster: ClusterHandles,
        topic: Topic,
        options: Read,
        *,
        interval_s: float,
        caught_up: Callable[[], object],
        stop: threading.Event,
    ) -> None:
        if options.pin or options.before_offset is not None or options.before_time_ms is not None:
            raise UsageError("--follow has no end: it excludes --before-offset, --before-time and --pin")
        if interval_s <= 0:
            raise UsageError(f"--interval cannot be {interval_s:g}s: give the time between two looks, for example 1s")
        self.positions: dict[int, int] = {}
        self._cluster, self._topic, self._options = cluster, topic, options
        self._interval_s, self._caught_up, self._stop = interval_s, caught_up, stop
        self._records = self._follow()

    def __next__(self) -> Record:
        self._cluster.parallel.check_open()
        record = next(self._records)
        self.positions[record.partition] = record.offset + 1
        return record

    def _follow(self) -> Iterator[Record]:
        options, wait_s = self._options, self._interval_s
        while not self._stop.is_set():
            readers, records = journal_readers(self._cluster, self._topic, options), 0
            for reader in readers:
                self.positions |= zip(reader.partitions.tolist(), reader.starts.tolist(), strict=True)
            for reader in readers:
                for record in as_records(reader.read(WHOLE_RECORD)):
                    yield record
                    records += 1
                    if self._stop.is_set():
                        return
                self.positions |= zip(reader.partitions.tolist(), reader.ends.tolist(), strict=True)
            self._caught_up()
            options = msgspec.structs.replace(options, start=self.positions, from_time_ms=None)
            wait_s = self._interval_s if records else min(2 * wait_s, LONGEST_WAIT * self._interval_s)
            self._cluster.runtime.pause(wait_s, self._stop)
