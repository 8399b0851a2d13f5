"""Builds a topic with very many L1 objects, which exist only as rows of the journal: `tables.py FILES ROUND`.

The environment names the cluster. Round 0 creates it; each later round adds ten objects and removes twenty: the oldest
of ten partitions, and ten that five merges replaced. A sync of a table opens none of these objects.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Final

import numpy as np

from l0gc import api
from l0gc.streamlog.journal.row_list import RowList
from l0gc.streamlog.journal.rows import L1_ROW, NUMBER, Rows
from l0gc.streamlog.journal.topic import TopicState

PARTITIONS: Final = 64
OBJECT_RECORDS: Final = 1_000
EPOCHS: Final = 1_000
"""The number of epochs in which the objects of round 0 were written."""


def main(files: int, round_: int) -> dict[str, Any]:
    """Let the journal list the objects of this round."""
    with api.open(os.environ["L0GC_URL"]) as opened:
        cluster = opened.handles()
        if not round_:
            opened.init(journals=1)
            opened.topics.create("flights", PARTITIONS)
            cluster.controller.advance()
        topic, handle = cluster.controller.snapshot().topic("flights"), cluster.journal(0)
        handle.advance(cluster.controller.advance())  # a checkpoint needs a new entry
        rows = [_rows(p, files // PARTITIONS + (p < files % PARTITIONS), round_) for p in range(PARTITIONS)]
        state = TopicState(topic.revision, topic.topic_id)
        state.listed = RowList(np.concatenate(rows))
        state.partitions = np.arange(PARTITIONS, dtype=NUMBER)
        state.log_start = np.array([r["base"][0] for r in rows], np.int64)
        state.reconciled = np.array([r["last"][-1] for r in rows], np.int64)
        state.next_offsets = state.reconciled + 1
        handle.state.topics[topic.revision] = state
        handle.replica.write_checkpoint()
    return {"files": sum(map(len, rows))}


def _rows(partition: int, files: int, rounds: int) -> Rows:
    """Return the rows of a partition after this many rounds; names are the same each time."""
    names = np.random.default_rng(partition)

    def row(base: int, last: int, epoch: int) -> tuple[int, int, int, int, int, int, bytes, int]:
        return partition, base, last, 50_000, 1_700_000_000_000 + last, epoch, names.bytes(16), 0

    step = OBJECT_RECORDS
    rows = [row(i * step, (i + 1) * step - 1, 1 + i * EPOCHS // files) for i in range(files)]
    for round_ in range(1, rounds + 1):
        if partition < 10:
            del rows[0]
        elif partition < 15:
            (_, base, *_), (_, _, last, *_) = rows[-2:]
            rows[-2:] = [row(base, last, EPOCHS + round_)]
        elif partition < 20:
            rows.append(row(rows[-1][2] + 1, rows[-1][2] + step, EPOCHS + round_))
    return np.array(rows, L1_ROW)


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), int(sys.argv[2]))))
