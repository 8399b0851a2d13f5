"""Several L1 objects to one: what a merge does with the records.

After a merge, the only copy of a record is one that l0gc has copied. So nothing is taken on trust: while the sources are
read, a hash of each column is made over all rows; the new object is read back from the store and has to give the same,
before it may be committed. An object with a column that is not known here is left alone, since a copy would lose it. A row
group is written when it is full, and an object of more than one waits on local disk. Typed columns are not copied: they are
parsed anew, by the newest schema, from the bytes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final

import numpy as np
import pyarrow as pa

import l0gc
from l0gc import columns
from l0gc.errors import CorruptObjectError, L0gcError, ObjectNotFoundError, UnsupportedFormatError
from l0gc.keys import PartitionId
from l0gc.runtime import Runtime, temporary_folder
from l0gc.storage.objectstore import ObjectStore
from l0gc.storage.parallel import Parallel, grouped
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.ingest.headers_and_times import OPTIONAL, headers_of
from l0gc.streamlog.journal.rows import L1_ROW, NO_L1_ROWS, Rows
from l0gc.streamlog.journal.topic import L1File, l1_file
from l0gc.streamlog.level_one.index import l1_key
from l0gc.streamlog.level_one.merge_plan import MergeGroup
from l0gc.streamlog.level_one.parquet import (
    L1_COLUMNS,
    L1_FILE,
    L1_SCHEMA,
    Opened,
    WantedFile,
    is_typed,
    open_l1,
    read_l1,
    schema_number,
)
from l0gc.streamlog.level_one.write import L1Writer, put_small

WHOLE_BYTES: Final = 4 << 20
"""An object up to this size is fetched by one request."""
FETCH_BYTES: Final = 16 << 20
FETCHED: Final = 256
"""So much of objects, and so many of them, are opened at once."""
_ROWS: Final = 4096


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The outcome of a merge: `row` of `L1_ROW` is its object, durable and checked; or `error` is why it failed."""

    merge: MergeGroup
    row: Rows = field(default_factory=NO_L1_ROWS.copy)
    error: L0gcError | None = None


class Hashes:
    """A hash for each column over all rows that were added, however they were cut into batches. An optional column that is
    absent has the hash of one that is null."""

    def __init__(self) -> None:
        self._of: dict[str, Any] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        for name in L1_SCHEMA.names:
            column = batch.column(name)
            if pa.types.is_binary(column.type):
                self._add_bytes(name, column)
            else:
                self._update(name, columns.raw(column))
        for name in OPTIONAL.names:
            if name in batch.schema.names:
                self._add_optional(name, batch.filter(batch.column(name).is_valid()))

    def _add_optional(self, name: str, batch: pa.RecordBatch) -> None:
        """Those that are there, with the offsets of their records."""
        if not batch.num_rows:
            return
        column = batch.column(name)
        self._update(f"{name} offsets", columns.raw(batch.column("offset")))
        if name == "create_time":
            self._update(name, columns.raw(column))
            return
        counts, keys, values = headers_of(column)
        self._update(f"{name} counts", counts)
        self._add_bytes(f"{name} keys", keys)
        self._add_bytes(f"{name} values", values)

    def _add_bytes(self, name: str, column: pa.Array) -> None:
        lengths, content = columns.uncut(column)
        self._update(name, content)
        self._update(f"{name} lengths", lengths)

    def _update(self, name: str, content: Any) -> None:
        self._of.setdefault(name, hashlib.blake2b(digest_size=16)).update(content)

    def digest(self) -> dict[str, bytes]:
        return {name: h.digest() for name, h in self._of.items()}


def rewrite(
    store: ObjectStore,
    merges: Sequence[MergeGroup],
    topics: Mapping[int, Topic],
    epoch: int,
    runtime: Runtime,
    parallel: Parallel,
) -> list[Rewritten]:
    """Make one object, stamped with `epoch`, of the sources of each merge. Raises `StoreError`."""
    with temporary_folder("merge") as directory:
        done: list[tuple[Rewritten, dict[str, bytes]]] = []

        def small_objects() -> Iterator[tuple[str, bytes]]:
            for number, of_merge in groupby(_sources(store, merges, topics, parallel), key=lambda s: s[0]):
                merge = merges[number]
                p = topics[merge.revision].id(merge.partition)
                base = int(merge.sources["base"][0])
                schema = topics[merge.revision].value_schema
                writer = L1Writer(p, epoch, base, runtime, directory, store, math.inf, schema)
                done.append(_copied(store, merge, (opened for _, opened in of_merge), writer))
                yield from writer.small

        put_small(store, small_objects(), parallel)
    return parallel.map(lambda d: _checked(store, topics, *d), done)


def _sources(
    store: ObjectStore, merges: Sequence[MergeGroup], topics: Mapping[int, Topic], parallel: Parallel
) -> Iterator[tuple[int, Opened | L0gcError]]:
    """Yield the sources of all merges in their order, each with the number of its merge, or why it is missing.

    They are opened together, also those of different merges; small ones are fetched by that.
    """

    def opened(source: tuple[int, WantedFile]) -> tuple[int, Opened | L0gcError]:
        number, wanted = source
        try:
            return number, open_l1(store, wanted, whole_bytes=WHOLE_BYTES)
        except (ObjectNotFoundError, CorruptObjectError) as e:
            return number, e

    sources = (
        (number, _whole(topics[m.revision].id(m.partition), l1_file(row)))
        for number, m in enumerate(merges)
        for row in m.sources
    )
    for some in grouped(sources, (lambda source: source[1].file.bytes, FETCH_BYTES), (lambda source: 1, FETCHED)):
        yield from parallel.map(opened, some)


def _whole(p: PartitionId, file: L1File) -> WantedFile:
    return WantedFile(l1_key(p, file), file, file.base_offset, file.last_offset + 1)


def _copied(
    store: ObjectStore, merge: MergeGroup, sources: Iterable[Opened | L0gcError], writer: L1Writer
) -> tuple[Rewritten, dict[str, bytes]]:
    """Write the sources' records as one object; and the hashes of what was read."""
    hashes = Hashes()
    for source in sources:
        try:
            if isinstance(source, L0gcError):
                raise source
            _check_columns(source, writer.schema_number)
            for _, batch in read_l1(store, source, L1_COLUMNS.names):
                hashes.add(batch)
                for at in range(0, batch.num_rows, _ROWS):  # a row group is written once it is full
                    writer.write(batch.slice(at, _ROWS), batch.nbytes / batch.num_rows)
        except (ObjectNotFoundError, CorruptObjectError, UnsupportedFormatError) as e:
            return Rewritten(merge, error=e), {}
    writer.finish()
    return Rewritten(merge, np.array(writer.files, L1_ROW)), hashes.digest()


def _check_columns(source: Opened, number: int) -> None:
    """Raises `UnsupportedFormatError` if an object has a column that a copy would lose: of a newer l0gc, or of a value
    schema after the one with this number, which the copy is written by."""
    if (newer := schema_number(source.metadata)) > number:
        raise UnsupportedFormatError(
            f"{source.wanted.key} has the columns of value schema {newer}, and this run began with number {number}: merge "
            "again; if the topic has no later number now, its controller log is an older copy: repeat each l0gc topic alter "
            "--value-schema that it has lost, in their order"
        )
    found = source.metadata.schema.to_arrow_schema()
    unknown = sorted({f.name for f in found if not is_typed(f)} - set(L1_FILE.names))
    if unknown:
        raise UnsupportedFormatError(
            f"{source.wanted.key} has a column {unknown[0]!r}, which this l0gc ({l0gc.__version__}) does not know and a "
            "merge would lose: merge with the l0gc that wrote it, or a newer one"
        )


def _checked(store: ObjectStore, topics: Mapping[int, Topic], done: Rewritten, expected: dict[str, bytes]) -> Rewritten:
    """Return the same, if the store gives back what was read from the sources."""
    if done.error is not None:
        return done
    merge, file = done.merge, l1_file(done.row[0])
    wanted = _whole(topics[merge.revision].id(merge.partition), file)
    found = Hashes()
    try:
        for _, batch in read_l1(store, open_l1(store, wanted, whole_bytes=WHOLE_BYTES), L1_COLUMNS.names):
            found.add(batch)
    except (ObjectNotFoundError, CorruptObjectError) as e:
        return Rewritten(merge, error=e)
    same = (
        (file.base_offset, file.last_offset) == (merge.sources["base"][0], merge.sources["last"][-1])
        and file.max_timestamp == merge.sources["max_timestamp"].max()
        and found.digest() == expected
    )
    if not same:
        what = f"the records of the {len(merge.sources)} L1 objects that it was to replace; they stay"
        return Rewritten(merge, error=CorruptObjectError(f"{wanted.key} does not hold {what}"))
    return done
