"""Packs records that a test names into L0 objects, as an upload packs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from types import SimpleNamespace
from typing import cast

import numpy as np

from l0gc.streamlog.controller.state import PartitionRange, Topic
from l0gc.streamlog.ingest.extents import PackedObject, Records, pack_records
from l0gc.streamlog.ingest.headers_and_times import NO_TIME, Headers, headers_column
from l0gc.streamlog.journal.rows import NUMBER


@dataclass(frozen=True, slots=True)
class Chunk:
    """The records of one partition."""

    partition: int
    values: Sequence[bytes]
    keys: Sequence[bytes | None]
    create_times: Sequence[int] | None = None
    headers: Sequence[Headers] | None = None


def _times(c: Chunk) -> Sequence[int]:
    return c.create_times if c.create_times is not None else [NO_TIME] * len(c.values)


def _headers(c: Chunk) -> Sequence[Headers]:
    return c.headers if c.headers is not None else [()] * len(c.values)


def pack(groups: Sequence[Sequence[Chunk]], revision: int = 3, topic_id: str = "id") -> PackedObject:
    """Pack these chunks into an L0 object: a group for each journal, its chunks in order of partition."""
    chunks = list(chain.from_iterable(groups))
    values = list(chain.from_iterable(c.values for c in chunks))
    records = Records(
        np.repeat(np.array([c.partition for c in chunks], NUMBER), [len(c.values) for c in chunks]),
        np.array([len(v) for v in values]),
        b"".join(values),
        list(chain.from_iterable(c.keys for c in chunks)),
        None
        if all(c.create_times is None for c in chunks)
        else np.array(list(chain.from_iterable(map(_times, chunks)))),
        None if all(c.headers is None for c in chunks) else headers_column(chain.from_iterable(map(_headers, chunks))),
    )
    ranges = []
    for number, group in enumerate(groups):
        first, last = group[0].partition, group[-1].partition
        ranges.append(PartitionRange(number, first, last - first + 1))
    topic = SimpleNamespace(revision=revision, topic_id=topic_id, partition_ranges=lambda: ranges)
    return pack_records(cast(Topic, topic), records)
