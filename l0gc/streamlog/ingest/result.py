"""The result of a write: for the command, the library, and the driver of Spark's sink.

Placeholders stay packed columns until they are requested: an upload into many partitions creates millions of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from itertools import chain
from typing import Any

import msgspec
import numpy as np

from l0gc.formatting import Outcome
from l0gc.streamlog.journal.entries import ObjectExtents
from l0gc.streamlog.journal.fence import FenceCounters
from l0gc.streamlog.journal.rows import NUMBER, Rows, unpack


class L0Object(msgspec.Struct, frozen=True):
    """An L0 object that was written. If it was stale for some of its records, these are in another object, too."""

    key: str
    epoch: int
    bytes: int


class Placeholder(msgspec.Struct, frozen=True):
    """Where records landed. The offsets are None if the records had moved to L1 before they could be determined."""

    topic: str
    partition: int
    base_offset: int | None
    last_offset: int | None
    epoch: int
    key: str


class Placeholders:
    """The places of an upload's records, in the order in which they landed; within an object by partition."""

    def __init__(self) -> None:
        self.objects: list[tuple[str, ObjectExtents, Rows | None]] = []

    def add(self, topic: str, o: ObjectExtents, bases: Rows | None) -> None:
        own = None if bases is None else np.array(bases, np.int64)  # the journal's rows may be removed
        self.objects.append((topic, o, own))

    def __len__(self) -> int:
        return sum(len(o.partitions) // NUMBER.itemsize for _, o, _ in self.objects)

    def __iter__(self) -> Iterator[Placeholder]:
        return chain.from_iterable(self._of(*landed) for landed in self.objects)

    def _of(self, topic: str, o: ObjectExtents, bases: Rows | None) -> Iterator[Placeholder]:
        partitions, records = unpack(o.partitions, NUMBER).tolist(), unpack(o.records, NUMBER).tolist()
        offsets: list[int | None] = [None] * len(partitions) if bases is None else bases.tolist()
        for partition, base, n in zip(partitions, offsets, records, strict=True):
            yield Placeholder(topic, partition, base, None if base is None else base + n - 1, o.epoch, o.key)

    def json(self) -> msgspec.Raw:
        """Return all of them as a JSON array, building those of one object at a time."""
        objects = (msgspec.json.encode(list(self._of(*landed)))[1:-1] for landed in self.objects)
        return msgspec.Raw(b"[" + b",".join(objects) + b"]")


@dataclass
class UploadResult(Outcome):
    """The result of an upload.

    Attributes:
        records: How many records landed.
        bytes: The size of these records.
        skipped: How many records an earlier or concurrent run of this producer had already landed.
        objects: The L0 objects written, each with `key`, `epoch` and `bytes`. Objects that were refused as stale are
            included; they are garbage.
        placeholders: Where the records are, each with `topic`, `partition`, `base_offset`, `last_offset`, `epoch` and
            `key`. Offsets are null if the records had moved to L1 before they could be determined.
        retries: How many batches were stamped with a fresh epoch and written again.
    """

    records: int = 0
    bytes: int = 0
    skipped: int = 0
    objects: list[L0Object] = field(default_factory=list)
    placeholders: Placeholders = field(default_factory=Placeholders)
    retries: int = 0
    fence: FenceCounters = field(default_factory=FenceCounters)

    def to_json(self) -> dict[str, Any]:
        """Return the fields except `fence`. Placeholders are formatted only when they are printed, since there may be
        millions.
        """
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "fence"}

    def measures(self) -> dict[str, Any]:
        return {"fence": msgspec.structs.asdict(self.fence)}
