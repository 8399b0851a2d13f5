"""How what a query reads is split over tasks (pure).

A task gets neighbouring partitions of one journal, which share the blocks of L0 objects, up to its part of the whole if
each core is to have a task, or up to about `SLICE_BYTES` as they are stored; a partition that has more is cut where its L1
objects end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from pyspark.sql.datasource import InputPartition

from l0gc.streamlog.controller.state import JournalRun, Topic
from l0gc.streamlog.journal.rows import RANGE, Rows, pack, unpack

SLICE_BYTES: Final = 64 << 20
"""About how many bytes, as stored, a task reads at most."""
LEAST_SLICE_BYTES: Final = 1 << 20
"""A core gets no task of its own for less: to start one costs about as much as reading that."""
_ROOM: Final = 1.1
"""Parts of nearly equal weight may add up to so much more than their share: a task more would cost more than that."""


@dataclass(frozen=True)
class Slice(InputPartition):
    """What a task reads: of some partitions of a topic in one journal a range each, packed as rows of `RANGE`.

    With the name of a `pin` it reads the journal as it was after the entry `as_of`.
    """

    topic: Topic
    journal: int
    rows: bytes
    pin: str = ""
    as_of: int = -1

    def ranges(self) -> Rows:
        return unpack(self.rows, RANGE)


@dataclass(frozen=True, slots=True)
class Ranges:
    """Of each partition of a topic the records from `starts` on, up to but without `ends`."""

    topic: Topic
    starts: Rows
    ends: Rows

    @property
    def records(self) -> int:
        return int(np.maximum(self.ends - self.starts, 0).sum())


@dataclass(slots=True)
class Part:
    """The ranges of one run, and what they weigh.

    Attributes:
        bytes: by partition, as they are stored.
        cuts: of large partitions where their L1 objects end, as (offset after it, bytes up to there).
    """

    topic: Topic
    run: JournalRun
    starts: Rows
    ends: Rows
    bytes: Rows
    cuts: dict[int, list[tuple[int, float]]] = field(default_factory=dict)

    @property
    def weight(self) -> float:
        return float(self.bytes[self.starts < self.ends].sum())


def split(
    parts: Sequence[Part], min_partitions: int | None = None, cores: int = 1, slice_bytes: int = SLICE_BYTES
) -> list[Slice]:
    """The tasks. Those of one partition stand in the order of their offsets.

    Args:
        min_partitions: about how many there are at least, however little they read.
        cores: without that, how many there are at least if they then read `LEAST_SLICE_BYTES` each.
    """
    total = sum(p.weight for p in parts)
    share = max(total / cores, LEAST_SLICE_BYTES) if min_partitions is None else max(total / min_partitions, 1.0)
    return [s for part in parts for s in _slices(part, min(slice_bytes, share))]


def _slices(part: Part, target: float) -> Iterator[Slice]:
    held: list[tuple[int, int, int]] = []
    size = 0.0
    first, journal = part.run.first, part.run.journal

    def slice_of(rows: list[tuple[int, int, int]]) -> Slice:
        return Slice(part.topic, journal, pack(np.array(rows, RANGE)))

    for at in np.flatnonzero(part.starts < part.ends).tolist():
        start, end, weight = int(part.starts[at]), int(part.ends[at]), max(float(part.bytes[at]), 1.0)
        pieces = min(round(weight / target), end - start)
        if held and (size + weight > target * _ROOM or pieces > 1):
            yield slice_of(held)
            held, size = [], 0.0
        if pieces <= 1:
            held.append((first + at, start, end - 1))
            size += weight
            continue
        ends = _cut(start, end, weight, part.cuts.get(at, []), pieces)
        for base, last in zip([start, *ends], [*ends, end], strict=False):
            yield slice_of([(first + at, base, last - 1)])
    if held:
        yield slice_of(held)


def _cut(start: int, end: int, weight: float, cuts: Sequence[tuple[int, float]], pieces: int) -> list[int]:
    """Where a range is cut into about so many pieces: where an L1 object ends if one does nearby, else between."""
    offsets = np.array([start, *(offset for offset, _ in cuts), end], np.float64)
    bytes_at = np.array([0.0, *(size for _, size in cuts), weight])
    found: list[int] = []
    for n in range(1, pieces):
        at = n * weight / pieces
        near = int(np.argmin(np.abs(bytes_at - at)))
        if abs(bytes_at[near] - at) <= weight / pieces / 2:
            offset = int(offsets[near])
        else:
            offset = int(np.interp(at, bytes_at, offsets))
        if offset > (found[-1] if found else start) and offset < end:
            found.append(offset)
    return found
