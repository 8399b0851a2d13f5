"""Join several L1 objects into one, the part of a merge that copies records.

After a merge, the copy that l0gc made is the only one. So nothing is trusted: while the sources are read, each column is
hashed over all rows, and before the commit the new object is read back and must have the same hashes. An object with an
unknown column is left alone, since a copy would lose the column. A row group is written once it is full, and an object
with several row groups is kept on local disk until it is uploaded. Typed columns are not copied, but parsed again from the
values by the newest schema.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Final, NamedTuple, TypeAlias

import numpy as np

import l0gc
from l0gc.errors import CorruptObjectError, L0gcError, ObjectNotFoundError, UnsupportedFormatError
from l0gc.keys import PartitionId
from l0gc.runtime import Runtime, temporary_folder
from l0gc.storage.objectstore import ObjectStore
from l0gc.storage.parallel import Parallel, grouped
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.journal.rows import L1_ROW, NO_L1_ROWS, Rows
from l0gc.streamlog.journal.topic import L1File, l1_file, l1_key
from l0gc.streamlog.level_one.hashes import Hashes
from l0gc.streamlog.level_one.merge_plan import MergeGroup
from l0gc.streamlog.level_one.parquet import (
    L1_COLUMNS,
    L1_FILE,
    OpenL1File,
    WantedFile,
    open_l1,
    read_l1,
    schema_number,
)
from l0gc.streamlog.level_one.write import L1Writer, Made, upload_object, upload_weight
from l0gc.streamlog.values.parse import is_typed

WHOLE_BYTES: Final = 4 << 20
"""An object up to this size is fetched with one request."""
FETCH_BYTES: Final = 16 << 20
FETCHED: Final = 256
"""The bytes, and the number, of objects that are opened at once."""
_ROWS: Final = 4096

_Source: TypeAlias = OpenL1File | L0gcError
"""An open object, or the reason why it cannot be opened."""


@dataclass(frozen=True, slots=True)
class RewriteResult:
    """The outcome of a merge: `row`, of `L1_ROW`, is its object, durable and checked, or `error` is the reason why it
    failed.
    """

    merge: MergeGroup
    row: Rows = field(default_factory=NO_L1_ROWS.copy)
    error: L0gcError | None = None


class _Copied(NamedTuple):
    """A merge whose object still has to be uploaded: the hashes of its sources, and the object; `result` is None if the
    merge was stopped.
    """

    result: RewriteResult | None
    hashes: Mapping[str, bytes] = {}
    made: Sequence[Made] = ()


def rewrite(
    store: ObjectStore,
    merges: Sequence[MergeGroup],
    topics: Mapping[int, Topic],
    epoch: int,
    runtime: Runtime,
    parallel: Parallel,
    stop: threading.Event,
) -> list[RewriteResult]:
    """Write one object for each merge, stamped with `epoch`, from the merge's sources, until it is stopped.

    Raises `StoreError`.
    """
    with temporary_folder("merge") as directory:

        def copy(item: tuple[MergeGroup, Iterable[_Source]]) -> _Copied:
            merge, sources = item
            topic = topics[merge.revision]
            base = int(merge.sources["base"][0])
            writer = L1Writer(topic.id(merge.partition), epoch, base, runtime, directory, math.inf, topic.value_schema)
            return _copied(store, merge, sources, writer, stop)

        def uploaded(copied: _Copied) -> tuple[_Copied, _Source | None]:
            for made in copied.made:
                upload_object(store, made)
            if copied.result is None or copied.result.error is not None:
                return copied, None
            p = topics[copied.result.merge.revision].id(copied.result.merge.partition)
            return copied._replace(made=()), _opened(store, _whole(p, l1_file(copied.result.row[0])))

        with_sources = _with_sources(store, merges, topics, parallel)
        going_on = takewhile(lambda _: not stop.is_set(), with_sources)
        copies = parallel.compute_ahead(copy, going_on, _is_worth)
        written = parallel.fetch_ahead(uploaded, copies, lambda copied: sum(map(upload_weight, copied.made)))
        checked = parallel.compute_ahead(lambda w: _checked(store, *w), written)
        return [result for result in checked if result is not None]


def _with_sources(
    store: ObjectStore, merges: Sequence[MergeGroup], topics: Mapping[int, Topic], parallel: Parallel
) -> Iterator[tuple[MergeGroup, Iterable[_Source]]]:
    """Yield the merges in their order, each with its sources, or with the error of a source that cannot be opened.

    The sources of small merges are opened together, which also fetches small sources as a whole. Those of a large merge
    are opened as they are copied.
    """

    opened = functools.partial(_opened, store)

    def in_turn(merge: MergeGroup) -> Iterator[_Source]:
        files = _wanted(topics, merge)
        for group in grouped(files, (lambda w: w.file.bytes, FETCH_BYTES), (lambda w: 1, FETCHED)):
            yield from parallel.map(opened, group)

    for group in grouped(merges, (lambda m: m.bytes, FETCH_BYTES), (lambda m: len(m.sources), FETCHED)):
        if group[0].bytes > FETCH_BYTES or len(group[0].sources) > FETCHED:
            yield group[0], in_turn(group[0])
            continue
        sources = iter(parallel.map(opened, [w for m in group for w in _wanted(topics, m)]))
        yield from ((m, list(islice(sources, len(m.sources)))) for m in group)


def _is_worth(item: tuple[MergeGroup, Iterable[_Source]]) -> bool:
    """Return whether any core may copy a merge: not if it still has many small sources to open, since only this thread can
    open several at once.
    """
    merge, sources = item
    return isinstance(sources, list) or merge.bytes >= len(merge.sources) * WHOLE_BYTES


def _opened(store: ObjectStore, file: WantedFile) -> _Source:
    try:
        return open_l1(store, file, whole_bytes=WHOLE_BYTES)
    except (ObjectNotFoundError, CorruptObjectError) as e:
        return e


def _wanted(topics: Mapping[int, Topic], merge: MergeGroup) -> list[WantedFile]:
    p = topics[merge.revision].id(merge.partition)
    return [_whole(p, l1_file(row)) for row in merge.sources]


def _whole(p: PartitionId, file: L1File) -> WantedFile:
    return WantedFile(l1_key(p, file), file, file.base_offset, file.last_offset + 1)


def _copied(
    store: ObjectStore, merge: MergeGroup, sources: Iterable[_Source], writer: L1Writer, stop: threading.Event
) -> _Copied:
    """Write the sources' records as one object; return it with the hashes of the sources' columns."""
    hashes = Hashes()
    for source in sources:
        try:
            if isinstance(source, L0gcError):
                raise source
            _check_columns(source, writer.schema_number)
            for _, batch in read_l1(store, source, L1_COLUMNS.names):
                if stop.is_set():  # no part of the object is in the store yet
                    return _Copied(None)
                hashes.add(batch)
                for at in range(0, batch.num_rows, _ROWS):  # a row group is written once it is full
                    writer.write(batch.slice(at, _ROWS), batch.nbytes / batch.num_rows)
        except (ObjectNotFoundError, CorruptObjectError, UnsupportedFormatError) as e:
            return _Copied(RewriteResult(merge, error=e))
    writer.finish()
    return _Copied(RewriteResult(merge, np.array(writer.files, L1_ROW)), hashes.digest(), writer.made)


def _check_columns(source: OpenL1File, number: int) -> None:
    """Raise `UnsupportedFormatError` if an object has a column that a copy, written with the value schema of this number,
    would lose: one of a newer l0gc, or of a newer value schema.
    """
    if (newer := schema_number(source.metadata)) > number:
        raise UnsupportedFormatError(
            f"{source.wanted.key} has the columns of value schema {newer}, and this run began with number {number}: merge "
            "again; if the topic has no later number now, its controller log is an older copy: repeat each l0gc topic alter "
            "--value-schema that it has lost, in their order"
        )
    schema = source.metadata.schema.to_arrow_schema()
    unknown = sorted({f.name for f in schema if not is_typed(f)} - set(L1_FILE.names))
    if unknown:
        raise UnsupportedFormatError(
            f"{source.wanted.key} has a column {unknown[0]!r}, which this l0gc ({l0gc.__version__}) does not support "
            f"and a merge would lose: merge with the l0gc that wrote it, or a newer one"
        )


def _checked(store: ObjectStore, copied: _Copied, written: _Source | None) -> RewriteResult | None:
    """Return the result unchanged if the new object has the hashes of its sources, or else with an error."""
    if written is None or copied.result is None:
        return copied.result
    merge, hashes = copied.result.merge, Hashes()
    try:
        if isinstance(written, L0gcError):
            raise written
        for _, batch in read_l1(store, written, L1_COLUMNS.names):
            hashes.add(batch)
    except (ObjectNotFoundError, CorruptObjectError, UnsupportedFormatError) as e:
        return RewriteResult(merge, error=e)
    file = written.wanted.file
    same = (
        (file.base_offset, file.last_offset) == (merge.sources["base"][0], merge.sources["last"][-1])
        and file.max_timestamp == merge.sources["max_timestamp"].max()
        and hashes.digest() == copied.hashes
    )
    if not same:
        missing = f"the records of the {len(merge.sources)} L1 objects that it should replace; they stay"
        return RewriteResult(merge, error=CorruptObjectError(f"{written.wanted.key} does not hold {missing}"))
    return copied.result
