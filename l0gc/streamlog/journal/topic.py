"""A journal's state of one topic: its partitions' offsets, its unreconciled objects, its lists of L1 objects (pure).

Everything is packed. A partition costs a few numbers, and only once something has landed in it; an extent costs 24 bytes.
An entry that changes thousands of partitions is applied to whole columns at once.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from l0gc.errors import ProtocolError
from l0gc.formatting import Outcome
from l0gc.keys import PartitionId, level_one, level_one_shared
from l0gc.streamlog.journal.entries import ObjectExtents
from l0gc.streamlog.journal.row_list import L1Sums, RowList
from l0gc.streamlog.journal.rows import (
    BLOCK,
    EXTENT,
    MAX_OFFSET,
    NUMBER,
    Rows,
    distinct,
    in_order,
    indices_in,
    name_text,
    unpack,
)
from l0gc.streamlog.journal.shared import SharedObject

STAMPED: Final = -1
"""Used in place of a block's time if the block itself holds the timestamp and the epoch of each record."""
_NO_NUMBERS: Final = np.empty(0, NUMBER)
_NO_OFFSETS: Final = np.empty(0, np.int64)


class Block(NamedTuple):
    """A block's place in its L0 object, its CRC32C, and its unpacked size.

    `time_ms` is the log's time at which its records landed, which is their timestamp. In a shared L1 object it is
    `STAMPED`.
    """

    start: int
    length: int
    crc32c: int
    bytes: int
    time_ms: int


class Extent(msgspec.Struct, frozen=True):
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


class L1File(msgspec.Struct, frozen=True):
    """An L1 object with the records `base_offset` to `last_offset`, both included.

    `max_timestamp` is the log's time at which the newest of them landed; `name` is the object's UUID. A hole is an
    object without rows, for records that were given up.
    """

    partition: int
    base_offset: int
    last_offset: int
    bytes: int
    max_timestamp: int
    epoch: int
    name: str
    is_hole: bool = False


def l1_key(p: PartitionId, file: L1File) -> str:
    return level_one(p, file.epoch, file.base_offset, file.last_offset, file.name)


def shared_key(topic: str, revision: int, journal: int, o: SharedObject) -> str:
    return level_one_shared(topic, revision, journal, o.epoch, name_text(o.name))


class Hole(msgspec.Struct, Outcome, frozen=True):
    """The records of a partition that were given up, from `first_offset` to `last_offset`; `key` is the L1 object's."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    key: str

    @classmethod
    def of(cls, p: PartitionId, file: L1File) -> Hole:
        return cls(p.topic, p.partition, file.base_offset, file.last_offset, l1_key(p, file))

    @property
    def records(self) -> int:
        return self.last_offset + 1 - self.first_offset


class PartitionView(msgspec.Struct, frozen=True):
    """A partition's offsets. The last reconciled offset is -1 until a record is reconciled."""

    next_offset: int = 0
    last_reconciled_offset: int = -1
    log_start_offset: int = 0

    @property
    def unreconciled_records(self) -> int:
        return self.next_offset - 1 - self.last_reconciled_offset


class TopicTotals(msgspec.Struct, frozen=True):
    """Sums over those of a topic's partitions in one journal in which records have landed, counted from the log starts
    on.

    `lost_records` are the given-up records in `holes`, including those below a log start; `records` includes them.
    `misfits` counts all records that did not fit the value schema when they were lifted, including expired ones.
    `dead_bytes` is the part of `l1_bytes` that lies in shared L1 objects and that no partition lists any more.
    """

    partitions: int = 0
    records: int = 0
    unreconciled_records: int = 0
    l1_objects: int = 0
    l1_bytes: int = 0
    holes: int = 0
    lost_records: int = 0
    misfits: int = 0
    dead_bytes: int = 0


class UnreconciledObject(msgspec.Struct, frozen=True):
    """An L0 object, or a part of one, and its extents that are not in L1 yet.

    They landed at `log_offset`, at `time_ms` of the log's time.
    """

    key: str
    epoch: int
    log_offset: int
    time_ms: int
    start: int
    blocks: Rows
    extents: Rows

    @property
    def needed(self) -> Rows:
        """Return the numbers of the blocks with extents, ascending."""
        return distinct(self.extents["block"])

    @property
    def bytes(self) -> int:
        """Return the stored size of these blocks."""
        return int(self.blocks["length"][self.needed].sum(dtype=np.int64))

    def block(self, number: int) -> Block:
        lengths = self.blocks["length"]
        start = self.start + int(lengths[:number].sum(dtype=np.int64))
        row = self.blocks[number]
        return Block(start, int(row["length"]), int(row["crc32c"]), int(row["bytes"]), self.time_ms)

    def extent(self, row: Any) -> Extent:
        partition, block, first, records, base = (int(v) for v in row)
        where = self.block(block)
        return Extent(self.key, self.epoch, self.log_offset, partition, where, first, records, base)


class TopicState(msgspec.Struct):
    """One journal's part of one incarnation of a topic; its columns have a row for each partition in which something
    has landed.

    `listed` are its L1 objects, or only their sums if the state was read without them.
    """

    revision: int
    topic_id: str
    partitions: Rows = msgspec.field(default_factory=_NO_NUMBERS.copy)
    next_offsets: Rows = msgspec.field(default_factory=_NO_OFFSETS.copy)
    reconciled: Rows = msgspec.field(default_factory=_NO_OFFSETS.copy)
    log_start: Rows = msgspec.field(default_factory=_NO_OFFSETS.copy)
    objects: list[UnreconciledObject] = []
    listed: RowList | L1Sums = msgspec.field(default_factory=RowList)
    shared: tuple[SharedObject, ...] = ()
    misfits: int = 0

    # -- reading ------------------------------------------------------------------------------------------------------

    def copy(self) -> TopicState:
        """Return a copy that no later entry changes. Entries replace the other columns as a whole."""
        columns = {name: getattr(self, name).copy() for name in ("next_offsets", "reconciled", "log_start", "objects")}
        return msgspec.structs.replace(self, **columns)

    def view(self, partition: int) -> PartitionView:
        at = int(np.searchsorted(self.partitions, partition))
        if at == len(self.partitions) or self.partitions[at] != partition:
            return PartitionView()
        return PartitionView(int(self.next_offsets[at]), int(self.reconciled[at]), int(self.log_start[at]))

    @property
    def landed(self) -> int:
        """Return how many records have ever landed in its partitions, including expired ones."""
        return int(self.next_offsets.sum())

    def totals(self) -> TopicTotals:
        sums = self.listed.sums
        return TopicTotals(
            len(self.partitions),
            int((self.next_offsets - self.log_start).sum()),
            int((self.next_offsets - 1 - self.reconciled).sum()),
            sums.objects + len(self.shared),
            sums.bytes + sum(o.bytes for o in self.shared),
            sums.holes,
            sums.lost_records,
            self.misfits,
            sum(o.dead_bytes() for o in self.shared),
        )

    def extents(self, partition: int) -> list[Extent]:
        """Return the unreconciled extents of a partition, in order of offset."""
        extents = []
        for o in self.objects:
            at = int(np.searchsorted(o.extents["partition"], partition))
            if at < len(o.extents) and o.extents["partition"][at] == partition:
                extents.append(o.extent(o.extents[at]))
        return extents

    def how_to_give_up(self, partition: int, offset: int) -> str:
        """Return the command that gives up the object that holds an unreconciled record; empty if the record is not
        unreconciled.
        """
        keys = (e.key for e in self.extents(partition) if e.base_offset <= offset <= e.last_offset)
        return next((f"l0gc give-up --object {key}" for key in keys), "")

    @property
    def lacks_l1(self) -> bool:
        return isinstance(self.listed, L1Sums)

    @property
    def l1_list(self) -> RowList:
        """Return the list of L1 objects.

        Raises `ProtocolError` if the state lacks it: an empty one would turn live objects into garbage.
        """
        if isinstance(self.listed, L1Sums):
            raise ProtocolError(f"the L1 objects of revision {self.revision} were not read with their journal's state")
        return self.listed

    @property
    def l1(self) -> Rows:
        """Return the L1 objects of all partitions, as rows of `L1_ROW` by partition and offset."""
        return self.l1_list.rows

    def l1_before_shared(self) -> Rows:
        """Return the L1 objects of all partitions, without those above a partition's first row of a shared object."""
        rows, first = self.l1, np.full(1 + int(self.partitions.max(initial=0)), MAX_OFFSET, np.int64)
        for o in self.shared:
            np.minimum.at(first, o.partitions, o.rows["base"][o.is_named])
        before_shared: Rows = rows[rows["base"] < first[rows["partition"]]]
        return before_shared

    def l1_of(self, partition: int, start: int = 0) -> Rows:
        """Return the L1 objects of a partition with records from `start` on, as rows of `L1_ROW` in order of offset."""
        rows = self.l1_list.of(partition)
        of_partition: Rows = rows[int(np.searchsorted(rows["last"], start)) :]
        return of_partition

    def files(self, partition: int, start: int = 0) -> list[L1File]:
        """Return the same objects as `L1File`s."""
        return [l1_file(row) for row in self.l1_of(partition, start)]

    def shared_objects(self, topic: str, journal: int) -> list[UnreconciledObject]:
        """Return the shared L1 objects, oldest first, in the form of L0 objects, each with its named rows."""
        return [
            UnreconciledObject(
                shared_key(topic, self.revision, journal, o), o.epoch, -1, STAMPED, 0, o.blocks, o.extents()
            )
            for o in self.shared
        ]

    def all_rows(self) -> Rows:
        """Return all L1 objects that the partitions list, including their rows of shared ones, as rows of `L1_ROW` by
        partition and offset. The bytes of a shared object's row are an estimate.
        """
        if not self.shared:
            return self.l1
        return in_order(np.concatenate([self.l1, *(o.listed() for o in self.shared)]))

    def lowest_epochs(self, first: int, count: int, ceiling: int) -> Rows:
        """Return, for `count` partitions from `first` on, the lowest epoch of an unreconciled extent, at most `ceiling`."""
        lowest = np.full(count, ceiling, np.int64)
        for o in self.objects:
            if o.epoch < ceiling:
                at = o.extents["partition"].astype(np.int64) - first
                at = at[(at >= 0) & (at < count)]
                lowest[at] = np.minimum(lowest[at], o.epoch)
        return lowest

    def oldest_objects(self, partitions: Rows) -> dict[int, UnreconciledObject]:
        """Return, for a few partitions in order, the unreconciled object with the lowest epoch."""
        oldest: dict[int, UnreconciledObject] = {}
        for o in self.objects:
            for partition in partitions[indices_in(o.extents["partition"], partitions)[1]].tolist():
                lowest = oldest.get(partition)
                if lowest is None or (o.epoch, o.log_offset) < (lowest.epoch, lowest.log_offset):
                    oldest[partition] = o
        return oldest

    # -- what an entry does -------------------------------------------------------------------------------------------

    def land(self, o: ObjectExtents, log_offset: int, time_ms: int) -> None:
        """Land the extents of an object that `check_object` has accepted, at that offset and time of the log."""
        partitions, records, blocks = unpack(o.partitions, NUMBER), unpack(o.records, NUMBER), unpack(o.blocks, BLOCK)
        at = self._touch(partitions)
        extents = np.empty(len(partitions), EXTENT)
        extents["partition"], extents["records"] = partitions, records
        extents["block"] = np.repeat(np.arange(len(blocks), dtype=np.int32), blocks["extents"])
        before = np.cumsum(records, dtype=np.int64) - records
        firsts = np.cumsum(blocks["extents"], dtype=np.int64) - blocks["extents"]
        extents["row"] = before - np.repeat(before[firsts], blocks["extents"])
        extents["base"] = self.next_offsets[at]
        self.next_offsets[at] += records
        self.objects.append(UnreconciledObject(o.key, o.epoch, log_offset, time_ms, o.start, blocks, extents))

    def _touch(self, partitions: Rows) -> Rows:
        """Return the rows of these partitions, created if they do not exist."""
        new = np.setdiff1d(partitions, self.partitions, assume_unique=True)
        if len(new):
            at = np.searchsorted(self.partitions, new)
            self.partitions = np.insert(self.partitions, at, new)
            self.next_offsets = np.insert(self.next_offsets, at, 0)
            self.reconciled = np.insert(self.reconciled, at, -1)
            self.log_start = np.insert(self.log_start, at, 0)
        return np.searchsorted(self.partitions, partitions)

    def let_go(self, partitions: Rows, lasts: Rows) -> None:
        """Remove the extents that end at or before `lasts` in these partitions; an object is removed with its last
        extent.
        """
        kept = [
            msgspec.structs.replace(o, extents=o.extents[~_ended(o.extents, partitions, lasts)]) for o in self.objects
        ]
        self.objects = [o for o in kept if len(o.extents)]

    def values(self, column: Rows, partitions: Rows, otherwise: int) -> Rows:
        if not len(self.partitions):
            return np.full(len(partitions), otherwise, np.int64)
        at, is_there = indices_in(self.partitions, partitions)
        values: Rows = np.where(is_there, column[at], otherwise)
        return values

    def reconciled_after(self, partitions: Rows, starts: Rows) -> Rows:
        """Return how far partitions are reconciled once they begin at `starts`: removed extents count as reconciled."""
        after = self.values(self.reconciled, partitions, -1)
        for o in self.objects:
            ended = o.extents[_ended(o.extents, partitions, starts - 1)]
            slots = np.searchsorted(partitions, ended["partition"])
            after[slots] = np.maximum(after[slots], ended["base"] + ended["records"] - 1)
        return after

    def end_with_extent(self, ranges: Rows) -> Rows:
        """Return whether an extent ends where each range of `ranges` does."""
        ends = np.zeros(len(ranges), bool)
        for o in self.objects:
            at, is_there = indices_in(ranges["partition"], o.extents["partition"])
            lasts = o.extents["base"] + o.extents["records"] - 1
            ends[at[is_there & (lasts == ranges["last"][at])]] = True
        return ends


def l1_file(row: Any) -> L1File:
    partition, base, last, size, max_timestamp, epoch, name, hole = row
    times = int(max_timestamp)
    return L1File(int(partition), int(base), int(last), int(size), times, int(epoch), name_text(name), bool(hole))


def _ended(extents: Rows, partitions: Rows, lasts: Rows) -> Rows:
    """Return which of the extents belong to these partitions and end at or before their partition's offset in `lasts`."""
    at, is_there = indices_in(partitions, extents["partition"])
    ended: Rows = is_there & (extents["base"] + extents["records"] - 1 <= lasts[at])
    return ended
