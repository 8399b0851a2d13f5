"""Decide which partitions share L1 objects, and write these.

An L1 object for each partition costs a request, and half a kilobyte of footer, however few records the partition has. So
if many partitions of a topic have few records in a writer's round, their records go together into objects of up to 32 MiB,
sorted by partition and offset. Such an object consists of blocks, like an L0 object (`ingest/extents.py`), and its reader
fetches only the blocks of the requested partitions. A table needs objects of single partitions, so a topic with one never
shares. A merge drains the shared objects later (`drain.py`).
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

import numpy as np
import pyarrow as pa

from l0gc import columns
from l0gc.streamlog.ingest.extents import pack_shared
from l0gc.streamlog.journal.rows import MAX_OFFSET, Rows, name_bytes
from l0gc.streamlog.journal.shared import NAMED, SHARED_ROW, SharedObject

LEAST_PARTITIONS: Final = 64
"""How many small partitions of a topic, in one writer's round, are needed to share objects: fewer objects of single
partitions cost little.
"""
SMALL_BYTES: Final = 4 << 20
"""A partition with fewer bytes of records than this in a round is small."""
MOST_PARTITIONS: Final = 4096
MOST_BYTES: Final = 32 << 20
"""The most partitions of a shared object, and about the most bytes of its records: they fit a task's memory, and one
request.
"""


def which_share(journals: Rows, revisions: Rows, weights: Rows, alone: Container[int]) -> Rows:
    """Return which partitions share L1 objects, given the journal, the topic's revision and the bytes of each.

    Args:
        alone: the revisions of topics whose partitions never share.
    """
    small = weights < SMALL_BYTES
    changes = np.flatnonzero((revisions[1:] != revisions[:-1]) | (journals[1:] != journals[:-1])) + 1
    for first, end in zip([0, *changes.tolist()], [*changes.tolist(), len(small)], strict=True):
        if first < end and (small[first:end].sum() < LEAST_PARTITIONS or int(revisions[first]) in alone):
            small[first:end] = False
    return small


def shared_object(
    records: pa.RecordBatch, partitions: Rows, bases: Rows, counts: Rows, epoch: int, name: str
) -> tuple[SharedObject, bytes]:
    """Return a shared L1 object and its content.

    Args:
        records: the records of one partition after another, with the columns of `pack_shared`.
        partitions: the partitions, ascending.
        bases: the offset of each partition's first record.
        counts: how many records each partition has.
    """
    firsts = np.cumsum(counts) - counts
    blocks, body = pack_shared(records, firsts)
    rows = np.empty(len(partitions), SHARED_ROW)
    rows["partition"], rows["base"], rows["records"] = partitions, bases, counts
    times = np.frombuffer(columns.raw(records.column("timestamp")), np.int64)
    rows["max_timestamp"] = np.minimum(np.maximum.reduceat(times, firsts), MAX_OFFSET)
    flags = np.full(len(rows), NAMED, np.uint8)
    return SharedObject(name_bytes(name), epoch, blocks, rows, flags), body
