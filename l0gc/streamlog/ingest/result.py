"""The result of an upload, for the command and the library.

Placeholders are kept as packed columns until somebody asks for them: an upload into many partitions makes millions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import msgspec
import numpy as np

from l0gc.formatting import Outcome
from l0gc.streamlog.journal.entries import ObjectExtents
from l0gc.streamlog.journal.fence import FenceCounters
from l0gc.streamlog.journal.rows import NUMBER, Rows, unpack


class L0Object(msgspec.Struct, frozen=True):
    """An L0 object that was written; if it was stale for some of its records, another one holds them, too."""

    key: str
    epoch: int
    bytes: int


class Landing(msgspec.Struct, frozen=True):
    """Where records are now. The offsets are None where the records were in L1 before that could be read."""

    topic: str
    partition: int
    base_offset: int | None
    last_offset: int | None
    epoch: int
    key: str


@dataclass(frozen=True, slots=True)
class _Extents:
    """The extents of an object in one journal; `bases` has the first offset of each."""

    key: str
    epoch: int
    partitions: Rows
    records: Rows
    bases: Rows | None

    def rows(self) -> Iterator[tuple[int, int | None, int | None]]:
        """The partition, the first and the last offset of each."""
        nothing = [None] * len(self.partitions)
        first: Sequence[int | None] = nothing if self.bases is None else self.bases.tolist()
        last: Sequence[int | None] = nothing if self.bases is None else (self.bases + self.records - 1).tolist()
        return zip(self.partitions.tolist(), first, last, strict=True)


class Landings:
    """Where the records of an upload are now, in the order in which they landed; within an object by partition."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._extents: list[_Extents] = []

    def add(self, o: ObjectExtents, bases: Rows | None) -> None:
        """The extents of an object have landed in a journal, at these offsets."""
        own = None if bases is None else np.array(bases, np.int64)  # the journal's rows may go
        self._extents.append(_Extents(o.key, o.epoch, unpack(o.partitions, NUMBER), unpack(o.records, NUMBER), own))

    def __len__(self) -> int:
        return sum(len(e.partitions) for e in self._extents)

    def __iter__(self) -> Iterator[Landing]:
        for e in self._extents:
            for partition, base, last in e.rows():
                yield Landing(self._topic, partition, base, last, e.epoch, e.key)

    def json(self) -> msgspec.Raw:
        """All of them as a JSON array."""
        return msgspec.Raw(b"[" + ",".join(map(self._json_of, self._extents)).encode() + b"]")

    def _json_of(self, e: _Extents) -> str:
        topic, key = (msgspec.json.encode(text).decode() for text in (self._topic, e.key))
        end = f'"epoch":{e.epoch},"key":{key}}}'
        return ",".join(
            f'{{"topic":{topic},"partition":{partition},"base_offset":{_json(base)},"last_offset":{_json(last)},{end}'
            for partition, base, last in e.rows()
        )


def _json(offset: int | None) -> str:
    return "null" if offset is None else str(offset)


@dataclass
class UploadResult(Outcome):
    """What an upload did. `skipped` records were landed, before it or during it, by another run of the same producer.

    `fence` is what the journals' fences did, for metrics.
    """

    records: int = 0
    bytes: int = 0
    skipped: int = 0
    objects: list[L0Object] = field(default_factory=list)
    placeholders: Landings = field(kw_only=True)
    retries: int = 0
    fence: FenceCounters = field(default_factory=FenceCounters)

    def to_json(self) -> dict[str, Any]:
        """The fields but `fence`; the placeholders become text when they are printed: there may be millions."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "fence"}
