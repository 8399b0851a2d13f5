"""Lists a partition's L1 objects: the newest in the journal's state, older ones in index objects.

So a checkpoint hardly grows with a partition's history. An index object is immutable, has a random name, and is durable
before an entry names it. To change its list, a new one is written, and an entry replaces it. Nothing here deletes one: a
state that another process has read may still lead to it (hazard 26).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from l0gc.errors import CorruptObjectError, ObjectNotFoundError, UsageError
from l0gc.formatting import Outcome
from l0gc.keys import PartitionId, level_one, level_one_index
from l0gc.runtime import Runtime
from l0gc.storage.entry import pack_sealed, unpack_sealed
from l0gc.storage.objectstore import ObjectStore, ask_of_one
from l0gc.streamlog.journal import rows as packed
from l0gc.streamlog.journal.rows import (
    INDEX_ROW,
    L1_ROW,
    NO_INDEX_ROWS,
    NO_L1_ROWS,
    Rows,
    check_rows,
    continues,
    distinct,
    in_order,
    is_hole,
    lost_records,
    name_bytes,
    name_text,
    sums,
    the_same,
)
from l0gc.streamlog.journal.state import JournalState
from l0gc.streamlog.journal.topic import L1File, TopicState, l1_file

STATE_ROWS: Final = 64
"""The most rows of a partition that a journal's state holds: 4 KiB."""
KEPT_ROWS: Final = 32
"""How many of them stay when older ones move to an index object; so a partition writes at most one in 32 commits."""
INDEX_ROWS: Final = 4096
"""The most rows of an index object: 240 KiB unpacked. The newest one is replaced until it has this many."""
UNREADABLE: Final = (CorruptObjectError, ObjectNotFoundError)
"""The errors that concern one object alone: it is damaged or gone, or the store refuses it."""
_LIMIT: Final = 1 << 20


class IndexChange(NamedTuple):
    """Durable index objects, and those that they replace; rows of `INDEX_ROW` by partition and offset."""

    indexes: Rows = NO_INDEX_ROWS
    removed_indexes: Rows = NO_INDEX_ROWS


class _Index(msgspec.Struct, array_like=True, frozen=True):
    """The content of an index object: rows of `L1_ROW`."""

    partition: str
    rows: bytes


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(_Index)


def joined(changes: Iterable[IndexChange]) -> IndexChange:
    """Return the changes of several partitions, in their order, as one."""
    columns = zip(IndexChange(), *changes, strict=True)
    return IndexChange(*(np.concatenate(column) for column in columns))


# -- reading --------------------------------------------------------------------------------------------------------------


def l1_key(p: PartitionId, file: L1File) -> str:
    return level_one(p, file.epoch, file.base_offset, file.last_offset, file.name)


def index_key(p: PartitionId, row: Any) -> str:
    """Return the key of an index object of the partition, given its row of `INDEX_ROW`, or of `DROPPED`."""
    return level_one_index(p, int(row["epoch"]), name_text(row["name"]))


def files_of(store: ObjectStore, p: PartitionId, state: JournalState, start: int = 0) -> Iterator[L1File]:
    """Yield the L1 objects of a partition in order of offset, as of the state now, even if that changes before the end.

    Args:
        start: objects wholly before this offset may be skipped.

    Raises:
        CorruptObjectError: an index object is damaged.
        ObjectNotFoundError: an index object is missing.
    """
    topic = state.topic(p.revision)
    index = topic.index_of(p.partition)
    older = (_read(store, p, row) for row in index[index["last"] >= start])
    return map(l1_file, chain.from_iterable(chain(older, [topic.l1_of(p.partition)])))


def read_index(store: ObjectStore, p: PartitionId, index: Rows, start: int = 0) -> Rows:
    """Return the rows of `L1_ROW` that a partition's index objects, given in order of offset, list. Raises as `files_of`."""
    found = [_read(store, p, row) for row in index[index["last"] >= start]]
    return np.concatenate(found) if found else NO_L1_ROWS


def _read(store: ObjectStore, p: PartitionId, ref: Any) -> Rows:
    key = index_key(p, ref)
    index = unpack_sealed(key, ask_of_one(store, store.get, key).body, _DECODER, _LIMIT)
    try:
        rows = packed.unpack(index.rows, L1_ROW)
        check_rows(rows)
    except UsageError as e:
        raise CorruptObjectError(f"{key} is not an index object: {e}") from e
    wrong = (
        index.partition != p.path
        or not len(rows)
        or bool((rows["partition"] != p.partition).any())
        or not continues(rows)
        or (rows["base"][0], rows["last"][-1]) != (ref["base"], ref["last"])
        or sums(rows) != tuple(int(ref[column]) for column in ("rows", "bytes", "names"))
    )
    if wrong:
        raise CorruptObjectError(
            f"{key} does not list the L1 objects of {p} with the records {ref['base']} to {ref['last']}"
        )
    return rows


@dataclass(frozen=True, slots=True)
class Hole(Outcome):
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


# -- writing --------------------------------------------------------------------------------------------------------------


def write_index(
    store: ObjectStore, p: PartitionId, rows: Rows, epoch: int, runtime: Runtime, *, dry_run: bool = False
) -> Rows:
    """Write index objects that list a partition's L1 objects, given in order of offset and without a gap; a dry run writes
    none.
    """
    written = [NO_INDEX_ROWS]
    for some in (rows[at : at + INDEX_ROWS] for at in range(0, len(rows), INDEX_ROWS)):
        name = runtime.new_id()
        key = level_one_index(p, epoch, name)
        body = pack_sealed(key, _ENCODER.encode(_Index(p.path, packed.pack(some))), _LIMIT)
        if not dry_run:
            store.put(key, body)
        head = int(some["bytes"][0]), int(some["max_timestamp"][0])
        span = p.partition, int(some["base"][0]), int(some["last"][-1])
        holes = int(is_hole(some).sum()), lost_records(some)
        row = (*span, *sums(some), *holes, *head, len(body), epoch, name_bytes(name))
        written.append(np.array([row], INDEX_ROW))
    return np.concatenate(written)


def spill(store: ObjectStore, p: PartitionId, rows: Rows, index: Rows, epoch: int, runtime: Runtime) -> IndexChange:
    """Move older rows of a partition into index objects if the state would have too many. `rows` are those in the state and
    the ones to be committed, in order of offset; `index` lists its index objects.
    """
    if len(rows) <= STATE_ROWS:
        return IndexChange()
    moved, newest = rows[:-KEPT_ROWS], index[len(index) - 1 :]
    if len(newest) and int(newest["rows"][0]) + len(moved) <= INDEX_ROWS:
        with suppress(*UNREADABLE):  # a damaged one stops who reads, not who writes on
            joined = np.concatenate([read_index(store, p, newest), moved])
            return IndexChange(write_index(store, p, joined, epoch, runtime), newest)
    return IndexChange(write_index(store, p, moved, epoch, runtime))


def replace_in_index(
    store: ObjectStore, p: PartitionId, topic: TopicState, replaced: Rows, files: Rows, epoch: int, runtime: Runtime
) -> IndexChange:
    """Rewrite the index objects that list what a merge of the partition replaces; return the change.

    Args:
        topic: the state from which the merge was planned.
        replaced, files: rows of `L1_ROW`, see `Edit`. A file that overlaps the state's rows is listed there.
        epoch: the run's epoch.

    Raises:
        CorruptObjectError: an index object is damaged, or does not list what is to be replaced.
        ObjectNotFoundError: an index object is missing.
    """
    index = topic.index_of(p.partition)
    gone = replaced[~np.isin(replaced["base"], topic.l1_of(p.partition)["base"])]
    touched = distinct(np.searchsorted(index["last"], gone["base"]))
    if not len(touched):
        return IndexChange()
    if touched[-1] >= len(index):
        raise CorruptObjectError(f"{p} has no L1 object with record {gone['base'][-1]} that could be merged")
    old = index[touched[0] : touched[-1] + 1]
    rows = read_index(store, p, old)
    listed = np.isin(rows["base"], gone["base"])
    if listed.sum() != len(gone) or not the_same(rows[listed], gone).all():
        raise CorruptObjectError(f"the index objects of {p} do not list the L1 objects that were to be merged")
    inside = (files["base"] >= old["base"][0]) & (files["last"] <= old["last"][-1])
    left = in_order(np.concatenate([rows[~listed], files[inside]]))
    return IndexChange(write_index(store, p, left, epoch, runtime), old)


def cut_index(
    store: ObjectStore, p: PartitionId, index: Rows, start: int, epoch: int, runtime: Runtime, *, dry_run: bool = False
) -> tuple[IndexChange, Rows]:
    """Remove the rows wholly below `start` from the index object that the start cuts, if there are any. Return the change,
    and the removed rows of `L1_ROW`; a dry run writes nothing. Raises as `files_of`.
    """
    cut = index[(index["base"] < start) & (index["last"] >= start)]
    rows = read_index(store, p, cut)
    below = rows["last"] < start
    if not below.any():
        return IndexChange(), rows[below]
    return IndexChange(write_index(store, p, rows[~below], epoch, runtime, dry_run=dry_run), cut), rows[below]
