"""Measures a journal that lists very many L1 objects, which exist only as rows: `l1_rows.py fill ROWS`, `l1_rows.py
head`, and `l1_rows.py replay`.

The environment names the cluster. Prints as JSON the checkpoint's size, or what was read and how long it took.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, Final

import numpy as np

from l0gc import api
from l0gc.streamlog.journal.row_list import RowList
from l0gc.streamlog.journal.rows import L1_ROW, NUMBER
from l0gc.streamlog.journal.summary import summary_of
from l0gc.streamlog.journal.topic import TopicState

PARTITIONS: Final = 100
OBJECT_BYTES: Final = 128 << 20
OBJECT_RECORDS: Final = 1_000_000
TEN_MINUTES_MS: Final = 600_000


def main(what: str, rows: int = 0) -> dict[str, Any]:
    """Fill the journal, or read it."""
    with api.open(os.environ["L0GC_URL"]) as opened:
        cluster = opened.handles()
        if what == "fill":
            return {"checkpoint_bytes": _fill(opened, rows)}
        controller, journal = cluster.controller.snapshot(), cluster.journal(0)
        started = time.monotonic()
        state = journal.head if what == "head" else journal.state
        m = summary_of(0, controller.topics_of(0), state, journal.replica.end).gc_epoch
        took = time.monotonic() - started
        return {"job_seconds": took, "rows": sum(t.totals().l1_objects for t in state.topics.values()), "m": m}


def _fill(opened: api.Cluster, rows: int) -> int:
    """Found a cluster whose only topic has this many L1 objects; return the size of its journal's checkpoint."""
    opened.init(journals=1)
    opened.topics.create("flights", PARTITIONS)
    cluster = opened.handles()
    for _ in range(3):
        cluster.controller.advance()
    topic, handle = cluster.controller.snapshot().topic("flights"), cluster.journal(0)
    handle.advance(cluster.controller.epoch())  # a checkpoint needs a new entry
    chance, each = np.random.default_rng(1), rows // PARTITIONS
    listed = np.zeros(each * PARTITIONS, L1_ROW)
    listed["partition"] = np.repeat(np.arange(PARTITIONS), each)
    records = chance.integers(OBJECT_RECORDS * 9 // 10, OBJECT_RECORDS, (PARTITIONS, each))
    ends = np.cumsum(records, axis=1)
    listed["base"], listed["last"] = (ends - records).ravel(), ends.ravel() - 1
    listed["bytes"] = chance.integers(OBJECT_BYTES * 3 // 4, OBJECT_BYTES, len(listed))
    listed["max_timestamp"] = 1_700_000_000_000 + np.tile(np.arange(each) * TEN_MINUTES_MS, PARTITIONS)
    listed["max_timestamp"] += chance.integers(0, 2_000, len(listed))
    listed["epoch"] = topic.revision
    listed["name"] = np.frombuffer(chance.bytes(16 * len(listed)), "V16")
    state = TopicState(topic.revision, topic.topic_id, listed=RowList(listed))
    state.partitions, state.next_offsets = np.arange(PARTITIONS, dtype=NUMBER), ends[:, -1].copy()
    state.reconciled, state.log_start = state.next_offsets - 1, np.zeros(PARTITIONS, np.int64)
    handle.state.topics[topic.revision] = state
    handle.replica.write_checkpoint()
    newest = handle.replica.log.newest_checkpoint()
    assert newest is not None
    return newest[1]


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], *(int(a) for a in sys.argv[2:]))))
