"""The layer of shared L1 objects in a journal's state, with the partitions whose records each of them holds (pure).

A partition with few records shares L1 objects with others of its topic and journal until it is drained into a separate
object. The rows of such an object are packed, 24 bytes for each partition, and do not change as long as the object is
listed. Next to them, one byte for each row shows whether it has never landed, is named, or has left. So an entry that
adds, drains or expires rows touches only the objects that it concerns, and never a list for each partition.

Why its deletion is safe: an object is listed as long as any of its rows is named. When its last row leaves, it joins the
dropped objects, and no edit names it again. Until then, a repeated commit may name it for a partition that was refused the
first time, since that row has never landed; a row that has left does not return.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import numpy as np

from l0gc.epoch import is_epoch
from l0gc.errors import UsageError
from l0gc.streamlog.journal.producers import Int62
from l0gc.streamlog.journal.rows import (
    BLOCK,
    EXTENT,
    L1_ROW,
    MAX_OFFSET,
    NAME,
    RANGE,
    Rows,
    ascending,
    indices_in,
    pack,
    pack_columns,
    unpack,
    unpack_columns,
)

SHARED_ROW: Final = np.dtype([("partition", "<i4"), ("records", "<i4"), ("base", "<i8"), ("max_timestamp", "<i8")])
"""The records of a partition in a shared L1 object: the first one's offset, and the newest of their timestamps."""
NAMED_ROW: Final = np.dtype([("partition", "<i4"), ("base", "<i8"), ("last", "<i8"), ("object", "<i4"), ("row", "<i4")])
"""A row that is named, and where it is: the number of its object, and of the row in it."""
UNLANDED, NAMED, LEFT = 0, 1, 2
"""The states of a row: it has never landed, the partition's list has it, or it was drained or has expired."""
_FLAG: Final = np.dtype("<u1")


class PackedShared(msgspec.Struct, frozen=True, array_like=True):
    """A shared L1 object in an entry or a checkpoint; see `SharedObject`. Rows are stored by column, which packs better."""

    name: bytes
    epoch: Int62
    blocks: bytes
    rows: bytes
    flags: bytes
    time_ms: Int62 = 0


class SharedObject(msgspec.Struct, frozen=True):
    """A shared L1 object: blocks like those of an L0 object, with the records of one partition after another.

    Attributes:
        name: its UUID, as 16 bytes.
        epoch: the epoch of the run that wrote it, which is in its key.
        blocks: rows of `BLOCK`, whose `extents` count the partitions.
        rows: rows of `SHARED_ROW`, by partition, as they were written.
        flags: the state of each row.
        time_ms: the log's time at which the journal first listed it.
    """

    name: bytes
    epoch: int
    blocks: Rows
    rows: Rows
    flags: Rows
    time_ms: int = 0

    def as_row(self) -> Rows:
        """Return the object itself as a row of `L1_ROW` without a partition."""
        return np.array([(-1, 0, 0, self.bytes, 0, self.epoch, self.name, 0)], L1_ROW)

    @property
    def bytes(self) -> int:
        return int(self.blocks["length"].sum(dtype=np.int64))

    @property
    def is_named(self) -> Rows:
        named: Rows = self.flags == NAMED
        return named

    @property
    def partitions(self) -> Rows:
        """Return the partitions whose rows are named, ascending."""
        partitions: Rows = self.rows["partition"][self.is_named]
        return partitions

    def ranges(self) -> Rows:
        """Return the ranges of records of its named rows, as rows of `RANGE`."""
        rows = self.rows[self.is_named]
        ranges = np.empty(len(rows), RANGE)
        ranges["partition"], ranges["base"] = rows["partition"], rows["base"]
        ranges["last"] = rows["base"] + rows["records"] - 1
        return ranges

    def listed(self) -> Rows:
        """Return its named rows, as rows of `L1_ROW`."""
        rows, named = self.ranges(), self.is_named
        l1_rows = np.zeros(len(rows), L1_ROW)
        for column in ("partition", "base", "last"):
            l1_rows[column] = rows[column]
        l1_rows["bytes"] = np.maximum(self.row_bytes()[named], 1)
        l1_rows["max_timestamp"] = self.rows["max_timestamp"][named]
        l1_rows["epoch"], l1_rows["name"] = self.epoch, np.frombuffer(self.name, NAME)
        return l1_rows

    def row_bytes(self) -> Rows:
        """Estimate the stored bytes of each row by its share of the records of its block."""
        of = self._block_of_rows()
        records = np.bincount(of, self.rows["records"], len(self.blocks))
        shares: Rows = self.blocks["length"][of] * (self.rows["records"] / records[of])
        return shares

    def dead_bytes(self) -> int:
        """Estimate how many of its bytes no partition's list names any more."""
        return int(self.row_bytes()[~self.is_named].sum())

    def extents(self) -> Rows:
        """Return its named rows, as rows of `EXTENT`."""
        extents = np.empty(len(self.rows), EXTENT)
        for column in ("partition", "records", "base"):
            extents[column] = self.rows[column]
        extents["block"] = of = self._block_of_rows()
        before = np.cumsum(self.rows["records"], dtype=np.int64) - self.rows["records"]
        firsts = np.cumsum(self.blocks["extents"], dtype=np.int64) - self.blocks["extents"]
        extents["row"] = before - before[firsts][of]
        named: Rows = extents[self.is_named]
        return named

    def _block_of_rows(self) -> Rows:
        return np.repeat(np.arange(len(self.blocks)), self.blocks["extents"])

    def only(self, is_kept: Rows) -> SharedObject:
        """Return the object with only some of its rows named; the others count as never landed."""
        return msgspec.structs.replace(self, flags=np.where(is_kept, self.flags, UNLANDED).astype(_FLAG))

    def is_same(self, other: SharedObject) -> bool:
        """Return whether both are the same object, whichever of its rows are named."""
        return (
            (self.name, self.epoch) == (other.name, other.epoch)
            and self.blocks.tobytes() == other.blocks.tobytes()
            and self.rows.tobytes() == other.rows.tobytes()
        )

    def packed(self) -> PackedShared:
        return PackedShared(
            self.name, self.epoch, pack(self.blocks), pack_columns(self.rows), pack(self.flags), self.time_ms
        )


def unpack_shared(p: PackedShared) -> SharedObject:
    """Unpack a shared object. Raises `UsageError` if the bytes cannot be one."""
    blocks, rows, flags = unpack(p.blocks, BLOCK), unpack_columns(p.rows, SHARED_ROW), unpack(p.flags, _FLAG)
    if (
        len(p.name) != NAME.itemsize
        or not is_epoch(p.epoch)
        or not len(blocks)
        or (blocks["extents"] < 1).any()
        or (blocks["length"] < 1).any()
        or blocks["extents"].sum(dtype=np.int64) != len(rows)
        or len(flags) != len(rows)
        or rows["partition"][0] < 0
        or not ascending(rows["partition"])
        or (rows["records"] < 1).any()
        or (rows["base"] < 0).any()
        or (rows["base"] + rows["records"] > MAX_OFFSET).any()
        or (np.abs(rows["max_timestamp"]) > MAX_OFFSET).any()
    ):
        raise UsageError("a shared L1 object has an impossible number, or partitions that are not in order")
    if (flags > LEFT).any() or not (flags == NAMED).any():
        raise UsageError("a shared L1 object is named by no partition")
    return SharedObject(p.name, p.epoch, blocks, rows, flags, p.time_ms)


# -- the layer of a topic ---------------------------------------------------------------------------------------------------


def named_rows_of(objects: Sequence[SharedObject], partitions: Rows) -> Rows:
    """Return the named rows of some partitions, given in ascending order, as rows of `NAMED_ROW`: object by object."""
    parts = [np.empty(0, NAMED_ROW)]
    for number, o in enumerate(objects):
        if not len(partitions) or o.rows["partition"][0] > partitions[-1] or o.rows["partition"][-1] < partitions[0]:
            continue
        named_at = np.flatnonzero(indices_in(partitions, o.rows["partition"])[1] & o.is_named)
        named = np.empty(len(named_at), NAMED_ROW)
        named["partition"], named["base"] = o.rows["partition"][named_at], o.rows["base"][named_at]
        named["last"] = named["base"] + o.rows["records"][named_at] - 1
        named["object"], named["row"] = number, named_at
        parts.append(named)
    return np.concatenate(parts)


def without(objects: Sequence[SharedObject], gone: Rows) -> tuple[tuple[SharedObject, ...], list[SharedObject]]:
    """Return the objects without some rows, given as rows of `NAMED_ROW` by object, and those that no row names any
    more.
    """
    kept, dropped = list[SharedObject](), list[SharedObject]()
    begins = np.searchsorted(gone["object"], np.arange(len(objects) + 1)).tolist()
    for number, o in enumerate(objects):
        gone_at = gone["row"][begins[number] : begins[number + 1]]
        if not len(gone_at):
            kept.append(o)
            continue
        flags = o.flags.copy()
        flags[gone_at] = LEFT
        (kept if (flags == NAMED).any() else dropped).append(msgspec.structs.replace(o, flags=flags))
    return tuple(kept), dropped


def with_added(
    objects: Sequence[SharedObject], added: Iterable[SharedObject], time_ms: int
) -> tuple[SharedObject, ...]:
    """Return the objects and those of a commit; an object that is already listed also gets the commit's rows."""
    listed = {o.name: o for o in objects}
    for o in added:
        before = listed.get(o.name)
        if before is None:
            listed[o.name] = msgspec.structs.replace(o, time_ms=time_ms)
        else:
            listed[o.name] = msgspec.structs.replace(
                before, flags=np.where(o.is_named, NAMED, before.flags).astype(_FLAG)
            )
    return tuple(listed.values())
