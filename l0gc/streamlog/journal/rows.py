"""Packed rows: what a journal keeps of extents, blocks and L1 objects, as columns of numbers and not as Python objects.

A journal holds a million extents in some tens of megabytes this way, and an entry or a checkpoint stores an extent in a few
bytes. Nothing is decided here but whether bytes that were read can be rows at all.
"""

from __future__ import annotations

import uuid
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from l0gc.errors import UsageError

Rows = NDArray[Any]
"""An array of one of the row types below, or of plain numbers."""

BLOCK: Final = np.dtype([("length", "<u4"), ("crc32c", "<u4"), ("extents", "<u4")])
"""A block of an L0 object: its bytes, their CRC32C, and how many extents lie in it."""
EXTENT: Final = np.dtype([("partition", "<i4"), ("block", "<i4"), ("row", "<i4"), ("records", "<i4"), ("base", "<i8")])
"""An unreconciled extent: the records of a partition from row `row` of block `block` on, the first at offset `base`."""
RANGE: Final = np.dtype([("partition", "<i4"), ("base", "<i8"), ("last", "<i8")])
"""A range of a partition's records, both ends included."""
L1_ROW: Final = np.dtype(
    [
        ("partition", "<i4"),
        ("base", "<i8"),
        ("last", "<i8"),
        ("bytes", "<i8"),
        ("epoch", "<i8"),
        ("name", "V16"),
    ]
)
"""An L1 object with the records `base` to `last`; `epoch` is that of the run that wrote it, `name` its UUID."""
NUMBER: Final = np.dtype("<i4")

MAX_OFFSET: Final = 2**62
"""No offset, size or epoch that is stored is larger, so that one more never overflows."""


def pack(rows: Rows) -> bytes:
    """The rows as they are stored."""
    return rows.tobytes()


def unpack(body: bytes, kind: np.dtype[Any]) -> Rows:
    """The rows that were stored. Raises `UsageError` if the bytes cannot be whole rows."""
    if len(body) % kind.itemsize:
        raise UsageError(f"{len(body)} bytes are no whole rows of {kind.itemsize}")
    return np.frombuffer(body, kind)


def ascending(values: Rows) -> bool:
    """Whether each value is above the one before it."""
    return bool((values[1:] > values[:-1]).all())


def name_bytes(name: str) -> bytes:
    """A UUID as it is stored in a row."""
    return uuid.UUID(name).bytes


def name_text(name: Any) -> str:
    """The UUID that a row holds."""
    return str(uuid.UUID(bytes=bytes(name)))


def continues(rows: Rows) -> bool:
    """Whether ranges, by partition and offset, leave no gap within a partition and do not overlap."""
    if (rows["base"] < 0).any() or (rows["last"] < rows["base"]).any() or (rows["last"] > MAX_OFFSET).any():
        return False
    same = rows["partition"][1:] == rows["partition"][:-1]
    follows = rows["base"][1:] == rows["last"][:-1] + 1
    return bool((follows | ~same).all() and (rows["partition"][1:] >= rows["partition"][:-1]).all())
