"""What a reader reads at once: an L1 object, or what is wanted of an L0 object; and how it is fetched and decoded.

What cannot be read is not raised but returned in the place of the records: what lies before it is read first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from l0gc.errors import CorruptObjectError, L0gcError, ObjectNotFoundError
from l0gc.storage.objectstore import ObjectStore
from l0gc.streamlog.ingest.extents import decode_block, fetch
from l0gc.streamlog.journal.rows import Rows, distinct
from l0gc.streamlog.journal.topic import L1File, UnreconciledObject
from l0gc.streamlog.level_one.parquet import read_l1

_EXPANSION: Final = 8
"""Records take about so many times the bytes that they are stored in."""
_PART_BYTES: Final = 512
"""What an extent or an L1 object takes however small it is."""
_COPIED_BELOW: Final = 0.25
"""If less than this share of a block is wanted, that is copied, so that the rest can go."""
_SMALL: Final = 4
"""Where a block has more extents than this, on average, they are small."""
_ORDERED_BYTES: Final = 1 << 30
"""More records than this cannot be put in order at once: Arrow's offsets end at 2 GiB."""


def cost_of(stored: Any) -> Any:
    """The memory that records take which are stored in so many bytes; of a number, or of a column of them."""
    return _PART_BYTES + _EXPANSION * stored


class RecordSlice(NamedTuple):
    """Consecutive records of a partition: the offset of the first, and the columns timestamp, key and value."""

    partition: int
    base_offset: int
    batch: pa.RecordBatch


class Lost(NamedTuple):
    """In the place of records: why they could not be read. `key` is that of the object that should have them."""

    partition: int
    base_offset: int
    key: str
    error: L0gcError


Found: TypeAlias = RecordSlice | Lost


@dataclass(frozen=True, slots=True)
class _Block:
    """A decoded block, and those of its extents that are wanted."""

    extents: Rows
    batch: pa.RecordBatch


Loaded: TypeAlias = RecordSlice | Lost | _Block


@dataclass(frozen=True, slots=True)
class ObjectPart:
    """An L0 object and those of its extents that are wanted, by partition."""

    object: UnreconciledObject
    extents: Rows

    @property
    def cost(self) -> int:
        """The memory that it takes while it is decoded."""
        return int(cost_of(self.object.blocks["length"][distinct(self.extents["block"])].sum(dtype=np.int64)))


@dataclass(frozen=True, slots=True)
class FilePart:
    """An L1 object; what lies wholly before the offset `start` need not be read."""

    key: str
    file: L1File
    start: int

    @property
    def cost(self) -> int:
        """The memory that it takes while it is decoded at once."""
        return int(cost_of(self.file.bytes))


Part: TypeAlias = ObjectPart | FilePart


def groups(parts: Iterable[Part], limit: int) -> Iterator[list[Part]]:
    """The parts in their order, as many together as cost no more than `limit`, or one that does."""
    group: list[Part] = []
    size = 0
    for part in parts:
        if group and size + part.cost > limit:
            yield group
            group, size = [], 0
        group.append(part)
        size += part.cost
    if group:
        yield group


def load(store: ObjectStore, part: Part) -> list[Loaded]:
    """All that is wanted of an object, fetched at once, on any thread.

    Raises:
        StoreError: the store does not answer, or does not let us.
    """
    if isinstance(part, ObjectPart):
        return list(_blocks(store, part))
    try:
        body = fetch(store, part.key, [(0, part.file.bytes)])[0]
    except (ObjectNotFoundError, CorruptObjectError) as e:
        return [Lost(part.file.partition, part.file.base_offset, part.key, e)]
    return list(file_records(body, part))


def by_partition(loaded: Sequence[Loaded]) -> Iterator[Found]:
    """What was loaded, in order of partition; for one partition in the order given."""
    blocks = [x for x in loaded if isinstance(x, _Block)]
    found: dict[int, list[Found]] = {}
    for x in loaded:
        if not isinstance(x, _Block):
            found.setdefault(x.partition, []).append(x)
    for x in _joined(blocks) if _are_small(blocks) else chain.from_iterable(map(_slices, blocks)):
        found.setdefault(x.partition, []).append(x)
    for partition in sorted(found):
        yield from sorted(found[partition], key=lambda x: x.base_offset)


def file_records(store: ObjectStore | bytes, part: FilePart) -> Iterator[Found]:
    """The records of an L1 object, fetched as they are read; or given its content."""
    f = part.file
    try:
        for base, batch in read_l1(store, part.key, f, part.start):
            yield RecordSlice(f.partition, base, batch)
    except (ObjectNotFoundError, CorruptObjectError) as e:
        yield Lost(f.partition, f.base_offset, part.key, e)


def _blocks(store: ObjectStore, part: ObjectPart) -> Iterator[_Block | Lost]:
    key, rows = part.object.key, part.extents
    numbers = distinct(rows["block"]).tolist()
    blocks = [part.object.block(n) for n in numbers]
    try:
        bodies = fetch(store, key, [(b.start, b.length) for b in blocks])
    except (ObjectNotFoundError, CorruptObjectError) as e:
        yield from _lost(rows, key, e)
        return
    for number, block, body in zip(numbers, blocks, bodies, strict=True):
        mine = rows[rows["block"] == number]
        try:
            batch = decode_block(body, key, block, int((mine["row"].astype(np.int64) + mine["records"]).max()))
        except CorruptObjectError as e:
            yield from _lost(mine, key, e)
            continue
        yield _Block(mine, batch)


def _slices(block: _Block) -> Iterator[RecordSlice]:
    """An extent after another."""
    copied = int(block.extents["records"].sum()) < _COPIED_BELOW * block.batch.num_rows
    for partition, _, row, n, base in block.extents.tolist():
        records = block.batch.slice(row, n)
        yield RecordSlice(partition, base, _copy(records) if copied else records)


def _are_small(blocks: Sequence[_Block]) -> bool:
    """Whether putting the records of all blocks in order costs less than a Python object for each extent."""
    extents = sum(len(b.extents) for b in blocks)
    return extents > _SMALL * len(blocks) and sum(b.batch.nbytes for b in blocks) < _ORDERED_BYTES


def _joined(blocks: Sequence[_Block]) -> Iterator[RecordSlice]:
    """All records in order of partition and offset, as one slice where an extent follows the one before it."""
    if not blocks:
        return
    extents = np.concatenate([b.extents for b in blocks])
    sizes = [b.batch.num_rows for b in blocks]
    begins = extents["row"] + np.repeat(np.cumsum(sizes) - sizes, [len(b.extents) for b in blocks])
    order = np.lexsort((extents["base"], extents["partition"]))
    extents, begins = extents[order], begins[order]
    counts = extents["records"].astype(np.int64)
    ends = np.cumsum(counts)
    at = np.repeat(begins - (ends - counts), counts) + np.arange(ends[-1])
    schema = blocks[0].batch.schema
    columns = [pa.concat_arrays([b.batch.column(i) for b in blocks]) for i in range(len(schema))]
    where = pa.Array.from_buffers(pa.int64(), len(at), [None, pa.py_buffer(at)])
    batch = pa.RecordBatch.from_arrays(columns, schema=schema).take(where)
    same, next_base = extents["partition"][1:] == extents["partition"][:-1], extents["base"] + counts
    follows = same & (extents["base"][1:] == next_base[:-1])
    firsts = np.flatnonzero(np.concatenate(([True], ~follows)))
    lasts = np.concatenate((firsts[1:], [len(extents)])) - 1
    for partition, base, begin, end in zip(
        extents["partition"][firsts].tolist(),
        extents["base"][firsts].tolist(),
        (ends - counts)[firsts].tolist(),
        ends[lasts].tolist(),
        strict=True,
    ):
        yield RecordSlice(partition, base, batch.slice(begin, end - begin))


def _lost(rows: Rows, key: str, error: L0gcError) -> Iterator[Lost]:
    for row in rows:
        yield Lost(int(row["partition"]), int(row["base"]), key, error)


def _copy(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.concat_arrays([c]) for c in batch.columns], schema=batch.schema)
