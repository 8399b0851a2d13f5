"""Where a partition's L1 objects are listed: the newest in the journal's state, older ones in index objects.

So a journal's checkpoint does not grow with a partition's history. An index object is immutable, has a random name, and is
durable before the entry that names it (hazard 9 holds for it as for an L1 object). It holds some thousands of rows, and
says which index object has the rows before them. Nothing here ever deletes one: a state that another process has read
may still lead to it (hazard 26), which is for vacuum to judge.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import Final

import msgspec
import numpy as np

from l0gc.errors import CorruptObjectError, ObjectNotFoundError, UsageError
from l0gc.keys import PartitionId, level_one, level_one_index
from l0gc.runtime import Runtime
from l0gc.storage.entry import pack, unpack
from l0gc.storage.objectstore import ObjectStore
from l0gc.streamlog.journal import rows as packed
from l0gc.streamlog.journal.entries import IndexObject
from l0gc.streamlog.journal.rows import L1_ROW, MAX_OFFSET, Rows, continues
from l0gc.streamlog.journal.state import JournalState
from l0gc.streamlog.journal.topic import L1File, l1_file

STATE_ROWS: Final = 64
"""The most rows of a partition that a journal's state holds: 3 KiB."""
KEPT_ROWS: Final = 32
"""How many of them stay when older ones go into an index object; so a partition writes one in 32 commits at the most."""
INDEX_ROWS: Final = 4096
"""The most rows of an index object: 208 KiB before it is packed. It is written anew until it has so many."""
_LIMIT: Final = 1 << 20


class _Index(msgspec.Struct, array_like=True, frozen=True):
    """What an index object holds: rows of `L1_ROW`, and which object has those before them."""

    partition: str
    previous: IndexObject | None
    rows: bytes


# Built at import, by one thread: msgspec learns a type at its first use, and two threads doing that at once crash it.
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(_Index)


def l1_key(p: PartitionId, file: L1File) -> str:
    """The key of an L1 object of the partition."""
    return level_one(p, file.epoch, file.base_offset, file.last_offset, file.name)


def index_key(p: PartitionId, index: IndexObject) -> str:
    """The key of an index object of the partition."""
    return level_one_index(p, index.epoch, index.name)


def files_of(store: ObjectStore, p: PartitionId, state: JournalState, start: int = 0) -> Iterator[L1File]:
    """The L1 objects of a partition in order of offset, as of the state now, however that changes meanwhile.

    Args:
        start: objects that lie wholly before this offset may be left out.

    Raises (as it is iterated):
        CorruptObjectError: an index object does not hold what it should.
        ObjectNotFoundError: one is gone.
    """
    topic = state.topics.get(p.revision)
    index = None if topic is None else topic.indexes.get(p.partition)
    newest = state.files(p.revision, p.partition)
    if index is None or index.last_offset < start:
        return iter(newest)
    return chain(_older(store, p, index, start), newest)


def _older(store: ObjectStore, p: PartitionId, index: IndexObject, start: int) -> Iterator[L1File]:
    for row in read_index(store, p, index, start):
        yield l1_file(row)


def read_index(store: ObjectStore, p: PartitionId, ref: IndexObject, start: int = 0) -> Rows:
    """The rows of `L1_ROW` that an index object leads to, in order of offset; see `files_of`."""
    found: list[Rows] = []
    at: IndexObject | None = ref
    while at is not None and at.last_offset >= start:  # each link goes to lower offsets, so it ends
        index, rows = _read(store, p, at)
        found.append(rows)
        at = index.previous
    return np.concatenate(found[::-1]) if found else np.empty(0, L1_ROW)


def _read(store: ObjectStore, p: PartitionId, ref: IndexObject) -> tuple[_Index, Rows]:
    key = index_key(p, ref)
    index = unpack(key, store.get(key).body, _DECODER, _LIMIT)
    try:
        rows = packed.unpack(index.rows, L1_ROW)
    except UsageError as e:
        raise CorruptObjectError(f"{key} is no index object: {e}") from e
    before = index.previous
    wrong = (
        index.partition != p.path
        or not len(rows)
        or bool((rows["partition"] != p.partition).any())
        or not continues(rows)
        or bool((rows["bytes"] < 0).any() or (rows["epoch"] < 0).any() or (rows["epoch"] > MAX_OFFSET).any())
        or rows["last"][-1] != ref.last_offset
        or ref.rows != len(rows) + (before.rows if before is not None else 0)
        or (before is not None and (before.partition != p.partition or before.last_offset + 1 != rows["base"][0]))
    )
    if wrong:
        raise CorruptObjectError(f"{key} does not list the L1 objects of {p} up to record {ref.last_offset}")
    return index, rows


def spill(
    store: ObjectStore, p: PartitionId, rows: Rows, index: IndexObject | None, epoch: int, runtime: Runtime
) -> IndexObject | None:
    """Move a partition's older rows into an index object if the state would have too many, and return it, durable.

    Args:
        rows: the partition's rows in the state and those that are to be committed, in order of offset.
        index: where the rows before those are.
        epoch: that of the run.
    """
    if len(rows) <= STATE_ROWS:
        return None
    moved, previous = rows[:-KEPT_ROWS], index
    if index is not None:
        with suppress(CorruptObjectError, ObjectNotFoundError):  # a damaged one stops who reads, not who writes on
            newest, before = _read(store, p, index)
            if len(before) + len(moved) <= INDEX_ROWS:
                moved, previous = np.concatenate([before, moved]), newest.previous
    for at in range(0, len(moved), INDEX_ROWS):
        previous = _write(store, p, moved[at : at + INDEX_ROWS], previous, epoch, runtime.new_id())
    return previous


def _write(
    store: ObjectStore, p: PartitionId, rows: Rows, previous: IndexObject | None, epoch: int, name: str
) -> IndexObject:
    total = len(rows) + (previous.rows if previous is not None else 0)
    index = IndexObject(p.partition, name, epoch, total, int(rows["last"][-1]))
    key = index_key(p, index)
    store.put(key, pack(key, _ENCODER.encode(_Index(p.path, previous, packed.pack(rows))), _LIMIT))
    return index
