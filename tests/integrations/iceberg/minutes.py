"""Syncs a table each minute, with a merge each hour: `python -m tests.integrations.iceberg.minutes 10000`.

The journal's log has the entries of real reconciles and merges, but their objects do not exist: a sync opens none.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from l0gc.integrations.iceberg.sync import sync_tables
from l0gc.streamlog.housekeep import housekeep
from l0gc.streamlog.journal.entries import MERGE, RECONCILE, Edit
from l0gc.streamlog.journal.rows import L1_ROW
from tests.support.journal import edit, l1_row, l1_rows, of_topic
from tests.support.memory_store import store_of, topic_in_memory
from tests.support.tables import DAY_MS, assert_named, sql_catalog, table, with_table

MINUTE_MS = 60_000
MERGED = 60
"""The number of objects that a merge replaces by one."""


class Left(NamedTuple):
    """What is left after the syncs; `seconds` are the median and the longest of the last hundred."""

    snapshots: int
    metadata_bytes: int
    seconds: tuple[float, float]


def run(minutes: int) -> Left:
    """Sync a table each minute."""
    cluster = topic_in_memory(1, 1)
    with_table(cluster)
    topic, handle, clock = cluster.controller.snapshot().topic("events"), cluster.journal(0), store_of(cluster).clock
    which, took = (topic.revision, topic.topic_id), list[float]()

    def land(wanted: Edit) -> None:
        assert not handle.land(wanted).refused

    for n in range(minutes):
        clock.ms += MINUTE_MS
        epoch = cluster.controller.epoch()
        assert handle.append([of_topic(topic, epoch, {0: 1}, key=f"{n}")]).error is None
        row = l1_row(0, n, n, epoch=epoch, name=n + 1, max_timestamp=clock.ms, size=50_000)
        land(edit(RECONCILE, epoch, *which, added=l1_rows(row)))
        if n % MERGED == MERGED - 1:
            held = handle.state.topic(topic.revision).l1_of(0)
            some = held[held["base"] > n - MERGED]
            size, newest = int(some["bytes"].sum()), int(some["max_timestamp"].max())
            merged = l1_row(0, int(some["base"][0]), n, epoch=epoch, name=10**9 + n, max_timestamp=newest, size=size)
            land(edit(MERGE, epoch, *which, removed=some, added=np.array([merged], L1_ROW)))
        if n % 10 == 0:
            cluster.controller.advance()
            housekeep(cluster)
        began = time.perf_counter()
        result = sync_tables(cluster, "events", DAY_MS)
        assert not result.errors, result.errors
        took.append(time.perf_counter() - began)
    assert_named(cluster)
    there = table(cluster)
    last = sorted(took[-100:])
    written = Path(there.metadata_location.removeprefix("file://"))
    return Left(len(there.metadata.snapshots), written.stat().st_size, (last[len(last) // 2], last[-1]))


def main(minutes: int) -> Left:
    """Sync for this many minutes with a catalog in SQLite."""
    with tempfile.TemporaryDirectory(prefix="l0gc-minutes-") as folder, pytest.MonkeyPatch.context() as patch:
        sql_catalog(patch, Path(folder))
        return run(minutes)


if __name__ == "__main__":
    sys.stdout.write(f"{main(int(sys.argv[1]))}\n")
