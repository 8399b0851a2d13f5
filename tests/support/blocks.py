"""L0 objects of records that a test names, packed as an upload packs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from types import SimpleNamespace
from typing import cast

import numpy as np

from l0gc.streamlog.controller.state import JournalRun, Topic
from l0gc.streamlog.ingest.extents import Packed, Records, pack_records
from l0gc.streamlog.journal.rows import NUMBER


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records of one partition."""

    partition: int
    values: Sequence[bytes]
    keys: Sequence[bytes | None]


def pack(groups: Sequence[Sequence[Chunk]], revision: int = 3, topic_id: str = "id") -> Packed:
    """An L0 object of these chunks: a group for each journal, the chunks in order of partition."""
    chunks = list(chain.from_iterable(groups))
    values = list(chain.from_iterable(c.values for c in chunks))
    records = Records(
        np.repeat(np.array([c.partition for c in chunks], NUMBER), [len(c.values) for c in chunks]),
        np.array([len(v) for v in values]),
        values,
        list(chain.from_iterable(c.keys for c in chunks)),
    )
    runs = []
    for number, group in enumerate(groups):
        first, last = group[0].partition, group[-1].partition
        runs.append(JournalRun(number, first, last - first + 1))
    topic = SimpleNamespace(revision=revision, topic_id=topic_id, runs=lambda: runs)
    return pack_records(cast(Topic, topic), records)
