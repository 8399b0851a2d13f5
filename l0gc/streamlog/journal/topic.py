"""What a journal keeps of one topic: its partitions' offsets, its unreconciled objects, its L1 rows (pure).

Everything is packed: a partition costs a few numbers and only once something landed in it, an extent 24 bytes. What an
entry does to thousands of partitions is done to whole columns at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np

from l0gc.errors import StaleReconcilerError, UsageError
from l0gc.streamlog.journal.entries import IndexObject, ObjectExtents, ReconciledTopic
from l0gc.streamlog.journal.rows import (
    BLOCK,
    EXTENT,
    L1_ROW,
    MAX_OFFSET,
    NUMBER,
    RANGE,
    Rows,
    ascending,
    continues,
    name_text,
    unpack,
)

_NO_NUMBERS: Final = np.empty(0, NUMBER)
_NO_OFFSETS: Final = np.empty(0, np.int64)


class Block(NamedTuple):
    """Where a block lies in its L0 object, and its CRC32C."""

    start: int
    length: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class Extent:
    """A partition's records in an L0 object: `records` rows of `block` from `row` on; the first has `base_offset`."""

    key: str
    epoch: int
    log_offset: int
    partition: int
    block: Block
    row: int
    records: int
    base_offset: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.records - 1


@dataclass(frozen=True, slots=True)
class L1File:
    """An L1 object with the records `base_offset` to `last_offset`, both included; `name` is its UUID."""

    partition: int
    base_offset: int
    last_offset: int
    bytes: int
    epoch: int
    name: str


@dataclass(frozen=True, slots=True)
class PartitionView:
    """A partition's offsets. Before anything landed the last reconciled offset is -1."""

    next_offset: int = 0
    last_reconciled_offset: int = -1
    log_start_offset: int = 0

    @property
    def unreconciled_records(self) -> int:
        return self.next_offset - 1 - self.last_reconciled_offset


@dataclass(frozen=True, slots=True)
class TopicTotals:
    """Sums over a topic's partitions in one journal; `partitions` counts those in which anything landed."""

    partitions: int = 0
    records: int = 0
    unreconciled_records: int = 0
    l1_objects: int = 0
    l1_bytes: int = 0


@dataclass(frozen=True, slots=True)
class UnreconciledObject:
    """An L0 object and those of its extents that are not in L1 yet."""

    key: str
    epoch: int
    log_offset: int
    start: int
    blocks: Rows
    extents: Rows

    def block(self, number: int) -> Block:
        """Where a block lies."""
        lengths = self.blocks["length"]
        start = self.start + int(lengths[:number].sum(dtype=np.int64))
        return Block(start, int(lengths[number]), int(self.blocks["crc32c"][number]))

    def extent(self, row: Any) -> Extent:
        """One of its extents, unpacked."""
        partition, block, first, records, base = (int(v) for v in row)
        where = self.block(block)
        return Extent(self.key, self.epoch, self.log_offset, partition, where, first, records, base)


@dataclass(slots=True)
class TopicState:
    """One incarnation of a topic, as far as it lies in one journal; its columns have a row for each touched partition."""

    revision: int
    topic_id: str
    closed: bool = False
    partitions: Rows = field(default_factory=_NO_NUMBERS.copy)
    next_offsets: Rows = field(default_factory=_NO_OFFSETS.copy)
    reconciled: Rows = field(default_factory=_NO_OFFSETS.copy)
    log_start: Rows = field(default_factory=_NO_OFFSETS.copy)
    objects: list[UnreconciledObject] = field(default_factory=list)
    l1: Rows = field(default_factory=np.empty(0, L1_ROW).copy)
    indexes: dict[int, IndexObject] = field(default_factory=dict)

    # -- reading ------------------------------------------------------------------------------------------------------

    def view(self, partition: int) -> PartitionView:
        at = int(np.searchsorted(self.partitions, partition))
        if at == len(self.partitions) or self.partitions[at] != partition:
            return PartitionView()
        return PartitionView(int(self.next_offsets[at]), int(self.reconciled[at]), int(self.log_start[at]))

    def totals(self) -> TopicTotals:
        return TopicTotals(
            len(self.partitions),
            int(self.next_offsets.sum()),
            int((self.next_offsets - 1 - self.reconciled).sum()),
            len(self.l1) + sum(i.rows for i in self.indexes.values()),
            int(self.l1["bytes"].sum()),
        )

    def extents(self, partition: int) -> list[Extent]:
        """The unreconciled extents of a partition, in order of offset."""
        found = []
        for o in self.objects:
            at = int(np.searchsorted(o.extents["partition"], partition))
            if at < len(o.extents) and o.extents["partition"][at] == partition:
                found.append(o.extent(o.extents[at]))
        return found

    def files(self, partition: int) -> list[L1File]:
        """The newest L1 objects of a partition, in order of offset; older ones are in its index object."""
        lower, upper = np.searchsorted(self.l1["partition"], [partition, partition + 1])
        return [l1_file(row) for row in self.l1[lower:upper]]

    def lowest_epochs(self, first: int, count: int, ceiling: int) -> Rows:
        """For each of `count` partitions from `first` on the lowest epoch of an unreconciled extent, at most `ceiling`."""
        lowest = np.full(count, ceiling, np.int64)
        for o in self.objects:
            if o.epoch < ceiling:
                at = o.extents["partition"].astype(np.int64) - first
                at = at[(at >= 0) & (at < count)]
                lowest[at] = np.minimum(lowest[at], o.epoch)
        return lowest

    def oldest_objects(self, partitions: Rows) -> dict[int, UnreconciledObject]:
        """For each of a few partitions, given in order, its unreconciled object with the lowest epoch."""
        oldest: dict[int, UnreconciledObject] = {}
        for o in self.objects:
            there = np.searchsorted(o.extents["partition"], partitions)
            there[there == len(o.extents)] = 0
            for partition in partitions[o.extents["partition"][there] == partitions].tolist():
                known = oldest.get(partition)
                if known is None or (o.epoch, o.log_offset) < (known.epoch, known.log_offset):
                    oldest[partition] = o
        return oldest

    # -- what an entry does -------------------------------------------------------------------------------------------

    def land(self, o: ObjectExtents, log_offset: int) -> None:
        """Take the extents of an object that `check_object` has found right."""
        partitions, records, blocks = unpack(o.partitions, NUMBER), unpack(o.records, NUMBER), unpack(o.blocks, BLOCK)
        at = self._touch(partitions)
        extents = np.empty(len(partitions), EXTENT)
        extents["partition"], extents["records"] = partitions, records
        extents["block"] = np.repeat(np.arange(len(blocks), dtype=np.int32), blocks["extents"])
        extents["row"] = _rows_in_block(records, blocks["extents"])
        extents["base"] = self.next_offsets[at]
        self.next_offsets[at] += records
        self.objects.append(UnreconciledObject(o.key, o.epoch, log_offset, o.start, blocks, extents))

    def _touch(self, partitions: Rows) -> Rows:
        """The rows of these partitions, made where they have none."""
        new = np.setdiff1d(partitions, self.partitions, assume_unique=True)
        if len(new):
            at = np.searchsorted(self.partitions, new)
            self.partitions = np.insert(self.partitions, at, new)
            self.next_offsets = np.insert(self.next_offsets, at, 0)
            self.reconciled = np.insert(self.reconciled, at, -1)
            self.log_start = np.insert(self.log_start, at, 0)
        return np.searchsorted(self.partitions, partitions)

    def reconcile(self, e: ReconciledTopic) -> None:
        """Take what `refusals` has found right."""
        ranges, files = unpack(e.ranges, RANGE), unpack(e.files, L1_ROW)
        self.reconciled[np.searchsorted(self.partitions, ranges["partition"])] = ranges["last"]
        kept = [replace(o, extents=_left(o.extents, ranges)) for o in self.objects]
        self.objects = [o for o in kept if len(o.extents)]
        rows = np.concatenate([self.l1, files])
        for index in e.indexes:
            self.indexes[index.partition] = index
            rows = rows[(rows["partition"] != index.partition) | (rows["last"] > index.last_offset)]
        self.l1 = rows[np.lexsort((rows["base"], rows["partition"]))]

    def close(self) -> None:
        """The topic is gone: nothing of it is needed any more but the names of its L1 objects."""
        self.closed = True
        self.objects = []

    def refusals(self, e: ReconciledTopic, log_offset: int) -> dict[int, str]:
        """Which partitions of a reconciler's commit are not where it began, and why (hazard 9).

        Raises:
            StaleReconcilerError: the commit does not hold what it says, for whatever state.
        """
        ranges, files = check_commit(e)
        refused: dict[int, str] = {}
        known = np.isin(ranges["partition"], self.partitions)
        at = np.searchsorted(self.partitions, ranges["partition"])
        at[~known] = 0
        reconciled = self.reconciled[at] if len(self.partitions) else np.full(len(ranges), -1, np.int64)
        for row, there, last in zip(ranges, known, reconciled, strict=True):
            if not there or row["base"] != last + 1:
                refused[int(row["partition"])] = (
                    f"records up to {int(last) if there else -1} are reconciled already, so {row['base']} is not next"
                )
        ends = {int(p) for o in self.objects if o.log_offset <= log_offset for p in _ending(o.extents, ranges)}
        for partition in ranges["partition"]:
            if int(partition) not in ends:
                refused.setdefault(int(partition), "its last record is not the last of an object")
        for index in e.indexes:
            lasts = [rows["last"][rows["partition"] == index.partition] for rows in (self.l1, files)]
            if index.last_offset not in np.concatenate(lasts):
                refused.setdefault(index.partition, f"record {index.last_offset} ends no L1 object in its index")
        return refused


def check_commit(e: ReconciledTopic) -> tuple[Rows, Rows]:
    """The ranges and files of a reconciler's commit. Raises `StaleReconcilerError` if the files do not fill the ranges."""
    try:
        ranges, files = unpack(e.ranges, RANGE), unpack(e.files, L1_ROW)
    except UsageError as error:
        raise StaleReconcilerError(f"the commit cannot be read: {error}") from error
    if not len(ranges) or not ascending(ranges["partition"]) or ranges["partition"][0] < 0 or not continues(ranges):
        raise StaleReconcilerError("the commit's ranges are none, or not in order of partition")
    numbers = (
        (files["bytes"] < 0) | (files["epoch"] < 0) | (files["bytes"] > MAX_OFFSET) | (files["epoch"] > MAX_OFFSET)
    )
    if not len(files) or not continues(files) or numbers.any():
        raise StaleReconcilerError("the commit's L1 objects leave a gap, or overlap")
    first = np.flatnonzero(np.r_[True, files["partition"][1:] != files["partition"][:-1]])
    last = np.r_[first[1:], len(files)] - 1
    filled = np.empty(len(first), RANGE)
    filled["partition"], filled["base"], filled["last"] = (
        files["partition"][first],
        files["base"][first],
        files["last"][last],
    )
    if len(filled) != len(ranges) or (filled != ranges).any():
        raise StaleReconcilerError("the commit's L1 objects do not hold exactly the records that it names")
    named = {int(p) for p in ranges["partition"]}
    if any(i.partition not in named or i.rows < 1 for i in e.indexes):
        raise StaleReconcilerError("the commit names an index object of a partition that it does not reconcile")
    return ranges, files


def check_object(o: ObjectExtents) -> Rows:
    """The partitions of an object's extents, if it can be one. Raises `UsageError`: it would stop the log for everybody."""
    partitions, records, blocks = unpack(o.partitions, NUMBER), unpack(o.records, NUMBER), unpack(o.blocks, BLOCK)
    if not o.key or not len(partitions) or len(partitions) != len(records):
        raise UsageError(f"object {o.key!r} names {len(partitions)} partitions and {len(records)} numbers of records")
    if partitions[0] < 0 or not ascending(partitions):
        raise UsageError(f"the partitions of object {o.key!r} are not in ascending order")
    if (records < 1).any():
        raise UsageError(f"object {o.key!r} has an extent without records")
    if (
        not 0 <= o.start <= MAX_OFFSET
        or not len(blocks)
        or (blocks["length"] < 1).any()
        or (blocks["extents"] < 1).any()
    ):
        raise UsageError(f"object {o.key!r} has a block that is empty or begins nowhere")
    if int(blocks["extents"].sum(dtype=np.int64)) != len(partitions):
        raise UsageError(f"the blocks of object {o.key!r} hold another number of extents than {len(partitions)}")
    return partitions


def l1_file(row: Any) -> L1File:
    """An L1 row, unpacked."""
    partition, base, last, size, epoch, name = row
    return L1File(int(partition), int(base), int(last), int(size), int(epoch), name_text(name))


def _rows_in_block(records: Rows, extents: Rows) -> Rows:
    """At which row of its block each extent begins."""
    before = np.cumsum(records, dtype=np.int64) - records
    firsts = np.cumsum(extents, dtype=np.int64) - extents
    rows: Rows = before - np.repeat(before[firsts], extents)
    return rows


def _matched(extents: Rows, ranges: Rows) -> tuple[Rows, Rows]:
    """For each extent whether its partition is among the ranges, and the last record of that range."""
    at = np.searchsorted(ranges["partition"], extents["partition"])
    at[at == len(ranges)] = 0
    return ranges["partition"][at] == extents["partition"], ranges["last"][at]


def _left(extents: Rows, ranges: Rows) -> Rows:
    """The extents that lie behind the ranges, or in other partitions."""
    named, last = _matched(extents, ranges)
    left: Rows = extents[~(named & (extents["base"] <= last))]
    return left


def _ending(extents: Rows, ranges: Rows) -> Rows:
    """The partitions in which one of these extents ends where the range does."""
    named, last = _matched(extents, ranges)
    partitions: Rows = extents["partition"][named & (extents["base"] + extents["records"] - 1 == last)]
    return partitions
