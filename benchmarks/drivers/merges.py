"""Runs a history of small reconciles: `merges.py merged BATCHES`, or `merges.py once BATCHES` for the same in one
reconcile.

The environment names the cluster. The first way merges after each reconcile, and deletes the replaced objects, as
vacuum does after the grace period. Prints, as JSON, what was left and what it took.
"""

from __future__ import annotations

import json
import os
import sys
from itertools import islice
from typing import Any, Final

import l0gc
from l0gc.embedded.sample import flights
from l0gc.storage.objectstore import PAGE_SIZE
from l0gc.streamlog.journal.checkpoint import JournalMachine
from l0gc.streamlog.journal.handle import JournalHandle
from l0gc.streamlog.journal.rows import Rows, name_text

PARTITIONS: Final = 8
BATCH: Final = 200
"""The records of a batch, over all partitions."""
EARLY: Final = 20
"""The number of reconciles after which journal checkpoints are measured for the first time."""


def main(way: str, batches: int) -> dict[str, Any]:
    """Upload, reconcile and merge."""
    records = flights()
    lifted = merged = rewritten = most = 0
    checkpoints: list[int] = []
    with l0gc.open(os.environ["L0GC_URL"]) as cluster:
        cluster.init(journals=1)
        topic = cluster.topics.create("flights", PARTITIONS)
        journal = cluster.handles().journal(0)
        for _ in range(batches):
            cluster.upload("flights", list(islice(records, BATCH)), key_field="tailnum")
            if way != "merged":
                continue
            lifted += cluster.reconcile().bytes
            result = cluster.merge()
            merged, rewritten = merged + result.bytes, rewritten + result.records
            _vacuum(cluster, journal, topic.name)
            most = max(most, journal.state.topic(topic.revision).totals().l1_objects)
            checkpoints.append(len(JournalMachine(0).encode(journal.state)))
        if way == "once":
            lifted = cluster.reconcile().bytes
        objects = journal.catch_up().topic(topic.revision).totals().l1_objects
    return {
        "records": batches * BATCH,
        "objects": objects,
        "most": most,
        "reconciled_bytes": lifted,
        "merged_bytes": merged,
        "rewritten": rewritten,
        "early_checkpoint": max(checkpoints[:EARLY], default=0),
        "late_checkpoint": max(checkpoints[EARLY:], default=0),
    }


def _vacuum(cluster: l0gc.api.Cluster, journal: JournalHandle, topic: str) -> None:
    """Delete what the journal has dropped, and let it forget that."""
    dropped: Rows = journal.catch_up().dropped
    names = {name_text(name) for name in dropped["name"]}
    store = cluster.handles().store
    keys = [k for page in store.scan(f"level_one/data/{topic}-") for k in page.keys if k[-44:-8] in names]
    for at in range(0, len(keys), PAGE_SIZE):
        store.delete(keys[at : at + PAGE_SIZE])
    journal.purge(bytes(name) for name in dropped["name"])


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]))))
