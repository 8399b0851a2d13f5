"""Several L1 objects to one: what a merge does with the records.

A merge is the one step after which the only copy of a record is one that l0gc itself has copied from another. So nothing is
taken on trust: while the sources are read, which are checked as for any reader, a hash of each column is made over all rows;
the new object is read back from the store, checked likewise, and has to give the same. Only then may it be committed.

Memory: sources are read a batch of rows at a time, small ones fetched some together; a row group is written when it is full,
and an object of more than one waits on local disk for its upload.
"""

from __future__ import annotations

import hashlib
import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from l0gc import columns
from l0gc.errors import CorruptObjectError, L0gcError, ObjectNotFoundError
from l0gc.keys import PartitionId
from l0gc.runtime import Runtime
from l0gc.storage.objectstore import ObjectStore
from l0gc.storage.parallel import Parallel
from l0gc.streamlog.ingest.extents import fetch
from l0gc.streamlog.journal.rows import L1_ROW, Rows
from l0gc.streamlog.journal.topic import L1File, l1_file
from l0gc.streamlog.level_one.index import l1_key
from l0gc.streamlog.level_one.merge_plan import Merge
from l0gc.streamlog.level_one.parquet import L1_SCHEMA, read_l1
from l0gc.streamlog.level_one.write import L1Writer, Uploads

WHOLE_BYTES: Final = 4 << 20
"""An object up to this size is fetched by one request."""
FETCH_BYTES: Final = 16 << 20
FETCHED: Final = 256
"""So much of small objects, and so many of them, are fetched at once."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The outcome of a merge: `row` of `L1_ROW` is its object, durable and checked; or `error` is why it failed."""

    merge: Merge
    row: Rows | None = None
    error: L0gcError | None = None


class _Source(NamedTuple):
    """An object to read, and its content, or where that is, or why it is missing."""

    number: int
    file: L1File
    key: str
    content: ObjectStore | bytes | L0gcError


class Hashes:
    """A hash for each column over all rows that were added, however they were cut into batches."""

    def __init__(self) -> None:
        self._of: dict[str, Any] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        for name in L1_SCHEMA.names:
            column = batch.column(name)
            if pa.types.is_binary(column.type):
                lengths, content = _bytes_of(column)
                self._update(name, content)
                self._update(f"{name} lengths", lengths)
            else:
                self._update(name, columns.raw(column))

    def _update(self, name: str, content: Any) -> None:
        self._of.setdefault(name, hashlib.blake2b(digest_size=16)).update(content)

    def digest(self) -> dict[str, bytes]:
        return {name: h.digest() for name, h in self._of.items()}


def _bytes_of(column: pa.Array) -> tuple[Rows, memoryview]:
    """The length of each byte string of a column, -1 for null, and their bytes."""
    _, offsets, content = column.buffers()
    ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    lengths = np.diff(ends)
    if column.null_count:
        lengths[np.array(column.is_null().to_pylist())] = -1
    return lengths, memoryview(content or b"")[int(ends[0]) : int(ends[-1])]


def rewrite(
    store: ObjectStore,
    merges: Sequence[Merge],
    topics: Mapping[int, str],
    epoch: int,
    runtime: Runtime,
    parallel: Parallel,
) -> list[Rewritten]:
    """Make one object of the sources of each merge.

    Args:
        topics: the topics' names, by revision.
        epoch: what the objects are stamped with.

    Raises:
        StoreError: the store does not answer, or does not let us.
    """
    with tempfile.TemporaryDirectory(prefix="l0gc-merge-") as name:
        uploads = Uploads(store, parallel)
        done: list[tuple[Rewritten, dict[str, bytes]]] = []
        sources = _sources(store, merges, topics, parallel)
        for number, of_merge in groupby(sources, key=lambda s: s.number):
            merge = merges[number]
            p = PartitionId(topics[merge.revision], merge.revision, merge.partition)
            base = int(merge.sources["base"][0])
            writer = L1Writer(p, epoch, base, runtime, Path(name), uploads, math.inf)
            done.append(_copied(merge, of_merge, writer))
        uploads.flush()
    return parallel.map(lambda d: _checked(store, topics, *d), done)


def _sources(
    store: ObjectStore, merges: Sequence[Merge], topics: Mapping[int, str], parallel: Parallel
) -> Iterator[_Source]:
    """The sources of all merges in their order; small ones are fetched together, also those of different merges."""
    waiting: list[_Source] = []
    size = 0
    for number, merge in enumerate(merges):
        p = PartitionId(topics[merge.revision], merge.revision, merge.partition)
        for row in merge.sources:
            file = l1_file(row)
            if len(waiting) >= FETCHED or size + file.bytes > FETCH_BYTES:
                yield from parallel.map(_fetched, waiting)
                waiting, size = [], 0
            waiting.append(_Source(number, file, l1_key(p, file), store))
            size += file.bytes
    yield from parallel.map(_fetched, waiting)


def _fetched(source: _Source) -> _Source:
    """The same with its content, if it is small."""
    if source.file.bytes > WHOLE_BYTES:
        return source
    assert not isinstance(source.content, bytes | L0gcError)
    try:
        return source._replace(content=fetch(source.content, source.key, [(0, source.file.bytes)])[0])
    except (ObjectNotFoundError, CorruptObjectError) as e:
        return source._replace(content=e)


def _copied(merge: Merge, sources: Iterable[_Source], writer: L1Writer) -> tuple[Rewritten, dict[str, bytes]]:
    """Write the sources' records as one object; and the hashes of what was read."""
    hashes = Hashes()
    for source in sources:
        try:
            if isinstance(source.content, L0gcError):
                raise source.content
            for _, batch in read_l1(source.content, source.key, source.file, wanted=L1_SCHEMA.names):
                if batch.num_rows:
                    hashes.add(batch)
                    writer.write(batch, batch.nbytes / batch.num_rows)
        except (ObjectNotFoundError, CorruptObjectError) as e:
            return Rewritten(merge, error=e), {}
    return Rewritten(merge, np.array(writer.finish(), L1_ROW)), hashes.digest()


def _checked(store: ObjectStore, topics: Mapping[int, str], done: Rewritten, expected: dict[str, bytes]) -> Rewritten:
    """The same, if the store gives back what was read from the sources."""
    if done.row is None:
        return done
    merge, file = done.merge, l1_file(done.row[0])
    key = l1_key(PartitionId(topics[merge.revision], merge.revision, merge.partition), file)
    found = Hashes()
    try:
        whole = file.bytes <= WHOLE_BYTES
        content = fetch(store, key, [(0, file.bytes)])[0] if whole else store
        for _, batch in read_l1(content, key, file, wanted=L1_SCHEMA.names):
            found.add(batch)
    except (ObjectNotFoundError, CorruptObjectError) as e:
        return Rewritten(merge, error=e)
    same = (
        (file.base_offset, file.last_offset) == (merge.sources["base"][0], merge.sources["last"][-1])
        and file.max_timestamp == merge.sources["max_timestamp"].max()
        and found.digest() == expected
    )
    if not same:
        wrong = (
            f"{key} does not hold the records of the {len(merge.sources)} L1 objects that it was to replace; they stay"
        )
        return Rewritten(merge, error=CorruptObjectError(wrong))
    return done
