"""L0 objects of records that a test names, packed as an upload packs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from l0gc.streamlog.ingest.extents import Packed, Records, pack_records
from l0gc.streamlog.journal.rows import NUMBER


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records of one partition."""

    partition: int
    values: Sequence[bytes]
    keys: Sequence[bytes | None]


def pack(groups: Sequence[Sequence[Chunk]]) -> Packed:
    """An L0 object of these chunks: a group for each journal, the chunks in order of partition."""
    chunks = list(chain.from_iterable(groups))
    values = list(chain.from_iterable(c.values for c in chunks))
    records = Records(
        np.repeat(np.array([c.partition for c in chunks], NUMBER), [len(c.values) for c in chunks]),
        np.array([len(v) for v in values]),
        values,
        list(chain.from_iterable(c.keys for c in chunks)),
    )
    ends = np.cumsum([sum(len(c.values) for c in group) for group in groups]).tolist()
    return pack_records(records, ends)
