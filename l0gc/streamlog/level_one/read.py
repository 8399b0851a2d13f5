"""Turn L0 objects, or shared L1 objects, into records in columns, for the readers of a reconcile or a drain.

Every block is checked against the journal's CRC32C. Records of a damaged or missing block become a `Fault` that names it,
and all others are read. Whole blocks are turned into columns at once, so an extent costs no Python object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from l0gc.columns import numbers
from l0gc.errors import CorruptObjectError, ObjectNotFoundError, UnansweredObjectError
from l0gc.storage.objectstore import ObjectStore
from l0gc.storage.parallel import Parallel
from l0gc.streamlog.ingest.extents import SCHEMA, decode_block, fetch_blocks, select
from l0gc.streamlog.ingest.headers_and_times import level, with_optional
from l0gc.streamlog.journal.rows import Rows, distinct
from l0gc.streamlog.journal.topic import Block, UnreconciledObject
from l0gc.streamlog.level_one.plan import NOT_TOGETHER, Fault, ObjectRead, writers_of

_INT64: Final = pa.int64()
ROWS: Final = pa.schema(
    [
        pa.field("journal", _INT64, nullable=False),
        pa.field("revision", _INT64, nullable=False),
        pa.field("partition", _INT64, nullable=False),
        pa.field("offset", _INT64, nullable=False),
        *SCHEMA,
        pa.field("epoch", _INT64, nullable=False),
    ]
)
"""The columns that a reader sends to a writer; a batch also has the optional ones of its records."""
BATCH_BYTES: Final = 4 << 20
"""About how many bytes of records are sorted and sent at once."""

StillNeeded = Callable[[ObjectRead], ObjectRead | None]
"""Returns the part of an unreadable object that a journal still needs; None if it needs nothing (hazard 19)."""
Row: TypeAlias = pa.RecordBatch | Fault


class _Block(NamedTuple):
    """The requested records of a block, and their extents."""

    read: ObjectRead
    extents: Rows
    records: pa.RecordBatch


def read_rows(
    store: ObjectStore,
    reads: Iterable[ObjectRead],
    writers: int,
    still_needed: StillNeeded,
    parallel: Parallel,
    together: Mapping[int, int] = NOT_TOGETHER,
) -> Iterator[tuple[int, Row]]:
    """Yield the records of L0 objects, as (number of their writer, batch of `ROWS` or fault). Each batch is in order of
    revision, partition and offset, but the batches are not. Raises `StoreError`.
    """
    bodies = parallel.fetch_ahead(
        lambda read: (read, _fetched(store, read.object)), reads, lambda read: read.object.bytes
    )
    decoded = parallel.compute_ahead(_decoded, bodies)
    for part in parallel.compute_ahead(partial(_by_writer, writers, together), _parts(decoded, still_needed)):
        yield from part


def _parts(
    decoded: Iterable[tuple[ObjectRead, list[_Block | Fault] | CorruptObjectError]], still_needed: StillNeeded
) -> Iterator[list[_Block] | Fault]:
    """Yield groups of blocks of about `BATCH_BYTES`, and each fault alone."""
    blocks: list[_Block] = []
    size = 0
    for read, of_object in decoded:
        for block in _still(read, of_object, still_needed):
            if isinstance(block, Fault):
                yield block
                continue
            blocks.append(block)
            size += block.records.nbytes
            if size >= BATCH_BYTES:
                yield blocks
                blocks, size = [], 0
    if blocks:
        yield blocks


def _by_writer(writers: int, together: Mapping[int, int], part: list[_Block] | Fault) -> list[tuple[int, Row]]:
    """Return a fault, or the sorted records of some blocks, for each writer that gets any of them."""
    if not isinstance(part, Fault):
        return [*_in_order(part, writers, together)]
    of = writers_of(part.revision, part.partitions, writers, together)
    return [
        (
            writer,
            msgspec.structs.replace(part, partitions=part.partitions[of == writer], bases=part.bases[of == writer]),
        )
        for writer in distinct(of).tolist()
    ]


def _fetched(store: ObjectStore, o: UnreconciledObject) -> list[tuple[Block, bytes]] | CorruptObjectError:
    """Return each needed block with its body, or the reason why the object cannot be read."""
    blocks = [o.block(number) for number in o.needed]
    try:
        return list(zip(blocks, fetch_blocks(store, o.key, blocks), strict=True))
    except ObjectNotFoundError as e:
        return CorruptObjectError(f"{e}; restore that object from a version")
    except CorruptObjectError as e:
        return e


def _decoded(
    fetched: tuple[ObjectRead, list[tuple[Block, bytes]] | CorruptObjectError],
) -> tuple[ObjectRead, list[_Block | Fault] | CorruptObjectError]:
    read, content = fetched
    return read, content if isinstance(content, CorruptObjectError) else list(_blocks(read, content))


def _still(
    read: ObjectRead, blocks: list[_Block | Fault] | CorruptObjectError, still_needed: StillNeeded
) -> list[_Block | Fault]:
    """Return an object's blocks, or, if it is unreadable, a fault for the extents that its journal still needs."""
    if not isinstance(blocks, CorruptObjectError):
        return blocks
    now = still_needed(read)
    return [] if now is None else [_fault(now, now.object.extents, blocks)]


def _blocks(read: ObjectRead, fetched: list[tuple[Block, bytes]]) -> Iterator[_Block | Fault]:
    o = read.object
    for number, (block, content) in zip(o.needed, fetched, strict=True):
        extents = o.extents[o.extents["block"] == number]
        try:
            records = decode_block(content, o.key, block)
        except CorruptObjectError as e:
            yield _fault(read, extents, e)
            continue
        beyond = extents["row"].astype(np.int64) + extents["records"] > records.num_rows
        if beyond.any():
            where = f"{o.key} at bytes {block.start} to {block.start + block.length}"
            message = f"{where} holds {records.num_rows} records, fewer than the journal records"
            yield _fault(read, extents[beyond], CorruptObjectError(f"{message}; restore that object from a version"))
            extents = extents[~beyond]
        if len(extents):
            yield _Block(read, extents, select(records, extents))


def _fault(read: ObjectRead, extents: Rows, error: CorruptObjectError) -> Fault:
    may_return = isinstance(error, UnansweredObjectError)
    return Fault(read.journal, read.revision, str(error), extents["partition"], extents["base"], may_return)


def _in_order(
    blocks: Sequence[_Block], writers: int, together: Mapping[int, int]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the records of several blocks, by writer, revision, partition and offset, a batch for each writer."""
    extents = np.concatenate([b.extents for b in blocks])
    per_block = [len(b.extents) for b in blocks]
    of_blocks = zip(*((b.read.journal, b.read.revision, b.read.object.epoch) for b in blocks), strict=True)
    columns = {
        name: np.repeat(of, per_block) for name, of in zip(("journal", "revision", "epoch"), of_blocks, strict=True)
    }
    writer = np.concatenate([writers_of(b.read.revision, b.extents["partition"], writers, together) for b in blocks])
    order = np.lexsort((extents["base"], extents["partition"], columns["revision"], writer))
    counts = extents["records"].astype(np.int64)
    begins = np.cumsum(counts) - counts
    leveled = level([b.records for b in blocks])
    schema = leveled[0].schema
    table = [pa.concat_arrays([b.column(i) for b in leveled]) for i in range(len(schema))]
    records = pa.RecordBatch.from_arrays(table, schema=schema)
    extents, counts, begins, writer = extents[order], counts[order], begins[order], writer[order]
    ends = np.cumsum(counts)
    at = ends - counts
    if (begins != at).any():
        records = records.take(numbers(np.repeat(begins - at, counts) + np.arange(ends[-1])))
    if "epoch" in schema.names:  # a shared object has the epoch of each record
        del columns["epoch"]
    columns = {name: np.repeat(column[order], counts) for name, column in columns.items()}
    columns["partition"] = np.repeat(extents["partition"].astype(np.int64), counts)
    columns["offset"] = np.repeat(extents["base"] - at, counts) + np.arange(ends[-1])
    schema = with_optional(ROWS, schema)
    arrays = [numbers(columns[name]) if name in columns else records.column(name) for name in schema.names]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    firsts = np.flatnonzero(np.r_[True, writer[1:] != writer[:-1]])
    for first, end in zip(firsts.tolist(), [*firsts[1:].tolist(), len(writer)], strict=True):
        rows = int(ends[end - 1] - at[first])
        yield int(writer[first]), batch.slice(int(at[first]), rows)
