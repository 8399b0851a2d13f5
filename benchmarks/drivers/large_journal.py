"""Measures a journal with very many unreconciled extents: `large_journal.py fill EXTENTS`, and `large_journal.py
replay`.

The environment names the cluster. Prints sizes, or what a replay found and how long it took, as JSON.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import uuid
from typing import Any, Final

import numpy as np

from l0gc import api
from l0gc.keys import journal_log
from l0gc.streamlog.journal.entries import ObjectExtents
from l0gc.streamlog.journal.rows import BLOCK, NUMBER, pack

PARTITIONS: Final = 100_000
PER_OBJECT: Final = 1_000
PER_BLOCK: Final = 200


def main(what: str, extents: int = 0) -> dict[str, Any]:
    """Fill the journal, or replay it."""
    with api.open(os.environ["L0GC_URL"]) as opened:
        cluster, store = opened.handles(), opened.store
        if what == "replay":
            started = time.monotonic()
            state = cluster.journal(0).state
            took = time.monotonic() - started
            return {
                "job_seconds": took,
                "extents": sum(len(o.extents) for t in state.topics.values() for o in t.objects),
            }
        cluster.controller.bootstrap()
        topic, _ = cluster.controller.create_topic("many", PARTITIONS)
        handle, layout, epoch = cluster.journal(0), cluster.controller.layout(), cluster.controller.epoch()
        chance, numbers = random.Random(1), np.random.default_rng(1)
        written = {"entry_bytes": 0, "checkpoints_bytes": 0}
        for _ in range(extents // PER_OBJECT):
            partitions = np.sort(numbers.choice(PARTITIONS, PER_OBJECT, replace=False)).astype(NUMBER)
            records = numbers.integers(1, 20, PER_OBJECT).astype(NUMBER)
            blocks = [(chance.randrange(1000, 60_000), chance.getrandbits(32), PER_BLOCK, 1 << 18)] * (
                PER_OBJECT // PER_BLOCK
            )
            key = layout.format(chance.randrange(layout.shards), epoch, str(uuid.UUID(int=chance.getrandbits(128))))
            rows = pack(np.array(blocks, BLOCK)), pack(partitions), pack(records)
            o = ObjectExtents(key, epoch, topic.revision, topic.topic_id, 0, *rows)
            error = handle.append([o]).error
            if error is not None:
                raise error
        folder = journal_log(0)
        for page in store.scan(folder):
            for key, size in zip(page.keys, page.sizes, strict=True):
                kind = "entry_bytes" if key.startswith(f"{folder}log/") else "checkpoints_bytes"
                written[kind] += size
        handle.replica.write_checkpoint()
        newest = handle.replica.log.newest_checkpoint()
        assert newest is not None
        return written | {"checkpoint_bytes": newest[1]}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], *(int(a) for a in sys.argv[2:]))))
