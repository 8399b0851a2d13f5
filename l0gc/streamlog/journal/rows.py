"""Packed rows: a journal's extents, blocks and L1 objects as columns of numbers instead of Python objects.

A journal holds a million extents in some tens of megabytes this way, and an entry or a checkpoint stores an extent in a
few bytes. This module checks only whether bytes can be rows at all.
"""

from __future__ import annotations

import uuid
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from l0gc.epoch import MAX_EPOCH
from l0gc.errors import UsageError

Rows = NDArray[Any]
"""An array of one of the row types below, or of plain numbers."""

BLOCK: Final = np.dtype([("length", "<u4"), ("crc32c", "<u4"), ("extents", "<u4"), ("bytes", "<u4")])
"""A block of an L0 object: its bytes, their CRC32C, the number of its extents, and the unpacked bytes of its records."""
EXTENT: Final = np.dtype([("partition", "<i4"), ("block", "<i4"), ("row", "<i4"), ("records", "<i4"), ("base", "<i8")])
"""An unreconciled extent: the records of a partition from row `row` of block `block` on, the first at offset `base`."""
RANGE: Final = np.dtype([("partition", "<i4"), ("base", "<i8"), ("last", "<i8")])
"""A range of a partition's records, inclusive."""
L1_ROW: Final = np.dtype(
    [
        ("partition", "<i4"),
        ("base", "<i8"),
        ("last", "<i8"),
        ("bytes", "<i8"),
        ("max_timestamp", "<i8"),
        ("epoch", "<i8"),
        ("name", "V16"),
        ("hole", "<u1"),
    ]
)
"""An L1 object with the records `base` to `last`. `max_timestamp` is the newest of their timestamps, which are the log's
times at which they landed; `epoch` is that of the run that wrote it, `name` its UUID. `hole` is 1 if these records were
given up: the object has no rows, and its footer contains the reason.
"""
DROPPED: Final = np.dtype(
    [
        ("revision", "<i8"),
        ("partition", "<i4"),
        ("base", "<i8"),
        ("last", "<i8"),
        ("bytes", "<i8"),
        ("epoch", "<i8"),
        ("name", "V16"),
        ("dropped_ms", "<i8"),
        ("dropped_epoch", "<i8"),
    ]
)
"""An L1 object that no partition lists any more; its `partition` is -1 if partitions shared it. It was dropped at
`dropped_ms` of the log's time, when the newest epoch was `dropped_epoch`.
"""
START: Final = np.dtype([("partition", "<i4"), ("offset", "<i8")])
"""Where a partition begins."""
MISFITS: Final = np.dtype([("partition", "<i4"), ("records", "<i8")])
"""How many of the records that a reconcile lifts do not fit the topic's value schema."""
NUMBER: Final = np.dtype("<i4")
OFFSET: Final = np.dtype("<i8")
NAME: Final = np.dtype("V16")
NO_NUMBERS: Final = np.empty(0, NUMBER)
NO_L1_ROWS: Final = np.empty(0, L1_ROW)
NO_DROPPED: Final = np.empty(0, DROPPED)
NO_MISFITS: Final = np.empty(0, MISFITS)

MAX_OFFSET: Final = 2**62
"""The largest offset, size or epoch that is stored, so that adding one never overflows."""
_LIMITS: Final = {
    "hole": (0, 1),
    "bytes": (0, MAX_OFFSET),
    "epoch": (0, MAX_EPOCH),
    "max_timestamp": (-MAX_OFFSET, MAX_OFFSET),
}
"""The bounds of the numbers of L1 objects."""


def pack(rows: Rows) -> bytes:
    return rows.tobytes()


def unpack(body: bytes, kind: np.dtype[Any]) -> Rows:
    """Return the rows that were stored. Raises `UsageError` if the bytes cannot be whole rows."""
    if len(body) % kind.itemsize:
        raise UsageError(f"{len(body)} bytes are not a whole number of rows of {kind.itemsize}")
    return np.frombuffer(body, kind)


def ascending(values: Rows) -> bool:
    return bool((values[1:] > values[:-1]).all())


def distinct(values: Rows) -> Rows:
    """Return the distinct values in order. `np.unique` would import `numpy.ma`, which costs a command 30 ms."""
    ordered = np.sort(values, axis=None)
    firsts: Rows = ordered[_begins(ordered)]
    return firsts


def distinct_at(values: Rows) -> tuple[Rows, Rows]:
    """Return the distinct values in order, and the first position of each."""
    order = np.argsort(values, kind="stable")
    first = _begins(values[order])
    return values[order][first], order[first]


def _begins(ordered: Rows) -> Rows:
    """Return which of the ordered values differ from the one before."""
    first = np.ones(len(ordered), np.bool_)
    first[1:] = ordered[1:] != ordered[:-1]
    return first


def indices_in(values: Rows, searched: Rows) -> tuple[Rows, Rows]:
    """Return the index of each searched number among ascending values, and whether it is there; if not, the index
    is arbitrary.
    """
    at = np.searchsorted(values, searched)
    at[at == len(values)] = 0
    return at, values[at] == searched if len(values) else np.zeros(len(searched), np.bool_)


def name_bytes(name: str) -> bytes:
    return uuid.UUID(name).bytes


def name_text(name: Any) -> str:
    return str(uuid.UUID(bytes=bytes(name)))


def name_low(names: Rows) -> Rows:
    """Return the low halves of UUIDs as numbers."""
    return np.ascontiguousarray(names).view("<u8").reshape(-1, 2)[:, 1]


_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)
"""Combines a partition with a name, since objects of two partitions may have the same name."""


def identities(rows: Rows) -> Rows:
    """Return a number for the partition and the name of each row."""
    ids: Rows = name_low(rows["name"]) + rows["partition"].astype(np.uint64) * _SPREAD
    return ids


def is_hole(rows: Rows) -> Rows:
    holes: Rows = rows["hole"] == 1
    return holes


def lost_records(rows: Rows) -> int:
    """Return how many records holes among rows of `L1_ROW` cover."""
    return int((rows["last"] + 1 - rows["base"])[is_hole(rows)].sum())


def name_sum(rows: Rows) -> int:
    """Return the sum of the names' low halves modulo 2^64, which identifies a set of objects."""
    return int(name_low(rows["name"]).sum(dtype=np.uint64))


def in_order(rows: Rows) -> Rows:
    """Return rows of L1 objects, sorted by partition and offset."""
    ordered: Rows = rows[np.lexsort((rows["base"], rows["partition"]))]
    return ordered


def ranks(rows: Rows, partitions: Rows, offsets: Rows) -> Rows:
    """Return, for each (partition, offset), the index of the last of `rows` at or before it; -1 if all come later.

    `rows` are ordered by partition and offset.
    """
    origin = np.r_[np.zeros(len(rows), np.int8), np.ones(len(partitions), np.int8)]
    order = np.lexsort((origin, np.r_[rows["base"], offsets], np.r_[rows["partition"], partitions]))
    before = np.cumsum(origin[order] == 0) - 1
    is_searched = origin[order] == 1
    at = np.empty(len(partitions), np.int64)
    at[order[is_searched] - len(rows)] = before[is_searched]
    return at


def position(rows: Rows, partitions: Rows, offsets: Rows) -> Rows:
    """Return the same as `ranks`, but -1 also if that row belongs to another partition."""
    at = ranks(rows, partitions, offsets)
    if len(rows):
        at[rows["partition"][at] != partitions] = -1
    return at


def the_same(a: Rows, b: Rows) -> Rows:
    """Return row by row whether rows of one kind are equal in every byte.

    Numpy's comparison of such rows calls Python, and turns a Ctrl-C during it into a `TypeError`.
    """
    kind = f"V{a.dtype.itemsize}"
    equal: Rows = np.ascontiguousarray(a).view(kind) == np.ascontiguousarray(b).view(kind)
    return equal


def of_partition(rows: Rows, partition: int) -> Rows:
    """Return the rows of one partition, from rows sorted by partition."""
    lower, upper = np.searchsorted(rows["partition"], [partition, partition + 1])
    partition_rows: Rows = rows[lower:upper]
    return partition_rows


def continues(rows: Rows) -> bool:
    """Return whether ranges, sorted by partition and offset, have no gap within a partition and do not overlap."""
    if (rows["base"] < 0).any() or (rows["last"] < rows["base"]).any() or (rows["last"] > MAX_OFFSET).any():
        return False
    same = rows["partition"][1:] == rows["partition"][:-1]
    follows = rows["base"][1:] == rows["last"][:-1] + 1
    return bool((follows | ~same).all() and (rows["partition"][1:] >= rows["partition"][:-1]).all())


def check_rows(rows: Rows) -> None:
    """Raise `UsageError` for rows of `L1_ROW` that are invalid, overlap, or are not in order."""
    partition, base, last = rows["partition"], rows["base"], rows["last"]
    if (partition < 0).any() or (base < 0).any() or (last < base).any() or (last > MAX_OFFSET).any():
        raise UsageError("an L1 object has an impossible partition or offset")
    follows = (partition[1:] > partition[:-1]) | ((partition[1:] == partition[:-1]) & (base[1:] > last[:-1]))
    if not follows.all():
        raise UsageError("L1 objects overlap, or are not in order")
    for column, (least, most) in _LIMITS.items():
        if ((rows[column] < least) | (rows[column] > most)).any():
            raise UsageError(f"an L1 object has an impossible number ({column})")


def ranges_of(files: Rows) -> Rows:
    """Return the contiguous ranges of records that L1 objects hold, as rows of `RANGE`."""
    if not len(files):
        return np.empty(0, RANGE)
    breaks = files["partition"][1:] != files["partition"][:-1]
    breaks |= files["base"][1:] != files["last"][:-1] + 1
    first = np.flatnonzero(np.r_[True, breaks])
    ranges = np.empty(len(first), RANGE)
    ranges["partition"], ranges["base"] = files["partition"][first], files["base"][first]
    ranges["last"] = files["last"][np.r_[first[1:], len(files)] - 1]
    return ranges


def dropped_rows(revision: int, rows: Rows, time_ms: int, epoch: int) -> Rows:
    """Return rows of `L1_ROW` as rows of `DROPPED`."""
    dropped = np.empty(len(rows), DROPPED)
    for column in ("partition", "base", "last", "bytes", "epoch", "name"):
        dropped[column] = rows[column]
    dropped["revision"], dropped["dropped_ms"], dropped["dropped_epoch"] = revision, time_ms, epoch
    return dropped


# -- the compact form ---------------------------------------------------------------------------------------------------


def pack_columns(rows: Rows) -> bytes:
    """Return rows as columns of small numbers, which compress to a third.

    Each number is stored as its difference from a guess, with each of its bytes in a separate plane. The guess is the
    number of the row before; for a base offset it is the one after the last offset before, and for a last offset the
    row's own base.
    """
    names = rows.dtype.names or ()
    before = np.r_[np.int64(-1), rows["last"][:-1]][: len(rows)] if "last" in names else None
    parts = [len(rows).to_bytes(8, "little")]
    for name in names:
        column = rows[name]
        if column.dtype.kind == "V":
            parts.append(column.tobytes())
            continue
        column = column.astype(np.int64)
        if before is not None and name in ("base", "last"):
            guess = before + 1 if name == "base" else rows["base"]
        else:
            guess = np.r_[0, column[:-1]][: len(rows)]
        apart = column - guess
        planes = ((apart << 1) ^ (apart >> 63)).view(np.uint8).reshape(-1, 8).T
        used = 8 - next((n for n, plane in enumerate(planes[::-1]) if plane.any()), 8)
        parts += [bytes([used]), planes[:used].tobytes()]
    return b"".join(parts)


def unpack_columns(body: bytes, kind: np.dtype[Any]) -> Rows:
    """Return the rows that `pack_columns` packed. Raises `UsageError` if the bytes cannot be such rows."""
    count = int.from_bytes(body[:8], "little")
    if count > len(body):
        raise UsageError(f"{len(body)} bytes are not {count} rows")
    at, rows, apart = 8, np.empty(count, kind), {}
    for name in kind.names or ():
        width, of_planes = kind[name].itemsize, kind[name].kind != "V"
        if of_planes:
            width = body[at] if at < len(body) else 9
            at += 1
        if width > 8 * of_planes + 16 * (not of_planes) or at + width * count > len(body):
            raise UsageError(f"{len(body)} bytes are not {count} rows")
        column = np.frombuffer(body, np.uint8, width * count, at)
        at += width * count
        if not of_planes:
            rows[name] = column.view(kind[name])
            continue
        whole = np.zeros((count, 8), np.uint8)
        whole[:, :width] = column.reshape(width, count).T
        folded: Rows = whole.view(np.uint64).reshape(-1)
        apart[name] = (folded >> np.uint64(1)).astype(np.int64) ^ -(folded & np.uint64(1)).astype(np.int64)
    if at != len(body):
        raise UsageError(f"{len(body)} bytes are more than {count} rows")
    records = apart.get("last")
    if records is not None:
        apart["base"] = apart["base"] + np.r_[0, records[:-1] + 1][:count]
    for name, numbers in apart.items():
        if name != "last":
            rows[name] = _fitting(np.cumsum(numbers), kind[name])
    if records is not None:
        rows["last"] = rows["base"] + records
    return rows


def _fitting(numbers: Rows, kind: np.dtype[Any]) -> Rows:
    """Return numbers as a narrower type. Raises `UsageError` if one does not fit."""
    narrow = numbers.astype(kind)
    if (narrow != numbers).any():
        raise UsageError("a number is too large for its column")
    return narrow
