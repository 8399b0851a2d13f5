"""What the executors of verify read: journals, and the L1 listing; the L0 listing is read by `listing.py`.

Rows say what was seen; whether it is wrong is decided in `inspect/verify/`. What is read again, because a task failed, may
be of a later moment: nothing here relies on one. Rows are made as columns, some thousands at a time, since a journal may
refer to a million objects.

These are functions over the numbers of a range, and no Spark data sources: for each of those Spark starts three Python
processes on the driver before anything is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from l0gc.errors import CorruptObjectError
from l0gc.inspect.verify import findings as kinds
from l0gc.inspect.verify.basis import Basis, KnownTopics, l1_ranges
from l0gc.inspect.verify.findings import Suspect
from l0gc.inspect.verify.rules import Placed, check_journal, of_object, placed
from l0gc.keys import PartitionId, journal_log, parse_level_one
from l0gc.runtime import Runtime
from l0gc.spark.remote import arrow_schema, batches, spread, store_at
from l0gc.storage.config import StoreConfig
from l0gc.storage.parallel import Threads
from l0gc.storage.s3 import S3Store

if TYPE_CHECKING:
    import pyarrow as pa

    from l0gc.streamlog.journal.rows import Rows

T = TypeVar("T")

_TEXT, _LONG = StringType(), LongType()
SUSPECTS: Final = StructType(
    [
        StructField("kind", _TEXT, False),
        StructField("journal", _LONG, False),
        StructField("topic", _TEXT, False),
        StructField("revision", _LONG, False),
        StructField("partition", _LONG, False),
        StructField("key", _TEXT, False),
        StructField("offset", _LONG, False),
        StructField("expected", _LONG, False),
        StructField("detail", _TEXT, False),
        StructField("ref", BinaryType(), False),
    ]
)
"""`verify.findings.Suspect`."""
ROWS: Final = StructType([*SUSPECTS.fields, StructField("n", _LONG, False), StructField("bytes", _LONG, False)])
"""A suspect, what a journal refers to, or so many things of one kind that are as they should be."""
L1_LISTING: Final = StructType(
    [
        StructField("key", _TEXT, False),
        StructField("bytes", _LONG, False),
        StructField("modified_ms", _LONG, False),
        StructField("owner", _TEXT, False),
        StructField("journal", _LONG, False),
        StructField("topic", _TEXT, False),
        StructField("revision", _LONG, False),
        StructField("partition", _LONG, False),
    ]
)

L0: Final = "l0"
L1: Final = "l1"
"""What a journal refers to: `expected` is where the last block ends that it needs, or the size of the L1 object."""
EXTENTS: Final = "extents"
INDEX: Final = "index"

_THREADS: Final = 8
_ROWS_AT_ONCE: Final = 4096
_INDEXES_AT_ONCE: Final = 64


@dataclass(frozen=True, slots=True)
class Place:
    """What every executor needs to know: where the bucket is, and what to compare with."""

    config: StoreConfig
    basis: Basis
    slices: int
    deep: bool

    @property
    def store(self) -> S3Store:
        """The store, as an executor sees it."""
        return store_at(self.config)


def rows(size: int, schema: StructType = ROWS, **values: Any) -> pa.RecordBatch:
    """So many rows: a value is one for all rows, or a sequence of them; what is not given is absent."""
    import pyarrow as pa

    from l0gc import columns

    def column(f: StructField) -> pa.Array:
        absent: Any = {"n": 1, "bytes": 0}.get(f.name, -1)
        if isinstance(f.dataType, StringType):
            value = values.get(f.name, "")
            return columns.strings([value] * size if isinstance(value, str) else value)
        if isinstance(f.dataType, BinaryType):
            value = values.get(f.name, b"")
            return columns.binary([value] * size if isinstance(value, bytes) else value)
        value = values.get(f.name, absent)
        return columns.repeated(value, size) if isinstance(value, int) else columns.integers(value)

    return pa.RecordBatch.from_arrays([column(f) for f in schema.fields], schema=arrow_schema(schema))


def suspect_rows(suspects: Sequence[Suspect], schema: StructType = ROWS) -> pa.RecordBatch:
    """A row for each suspect."""
    columns_of = zip(*(msgspec.structs.astuple(s) for s in suspects), strict=True)
    return rows(len(suspects), schema, **dict(zip(SUSPECTS.names, columns_of, strict=True)))


def in_chunks(items: Iterable[T], size: int = _ROWS_AT_ONCE) -> Iterator[list[T]]:
    """The items, so many at a time."""
    it = iter(items)
    while chunk := list(islice(it, size)):
        yield chunk


# -- journals ------------------------------------------------------------------------------------------------------------


def journals(spark: SparkSession, place: Place) -> DataFrame:
    """What every journal says, in the columns `ROWS`; a task reads one after another, since each may be large."""
    n = max(1, min(place.slices, place.basis.journals))

    def read(index: int) -> Iterator[pa.RecordBatch]:
        for journal in range(index, place.basis.journals, n):
            yield from _rows_of(place, journal)

    return spread(spark, range(n), read, ROWS)


def _rows_of(place: Place, journal: int) -> Iterator[pa.RecordBatch]:
    from l0gc.inspect.verify.reading import read_journal

    with Threads(_THREADS) as threads:
        try:
            copy = read_journal(place.store, Runtime(), journal, parallel=threads, deep=place.deep)
        except CorruptObjectError as e:
            yield suspect_rows([Suspect(kinds.LOG_UNREADABLE, journal, key=journal_log(journal), detail=str(e))])
            return
        for suspects in in_chunks(check_journal(copy, place.basis)):
            yield suspect_rows(suspects)
        for p in placed(copy, KnownTopics(place.basis)):
            yield from _object_rows(journal, p, deep=place.deep)
            yield from _l1_rows(journal, p, p.state.l1)
            yield from _index_rows(place.store, journal, p, threads)


def _object_rows(journal: int, p: Placed, *, deep: bool) -> Iterator[pa.RecordBatch]:
    from l0gc.inspect.verify.reading import pack_object

    for objects in in_chunks(p.state.objects):
        suspects = [of_object(L0, journal, p.topic, o) for o in objects]
        if deep:
            suspects = [msgspec.structs.replace(s, ref=pack_object(o)) for s, o in zip(suspects, objects, strict=True)]
        yield suspect_rows(suspects)
    extents = sum(len(o.extents) for o in p.state.objects)
    if extents:
        yield rows(1, kind=EXTENTS, journal=journal, n=extents)


def _l1_rows(journal: int, p: Placed, files: Any) -> Iterator[pa.RecordBatch]:
    from l0gc.streamlog.journal.topic import l1_file
    from l0gc.streamlog.level_one.index import l1_key

    topic = p.topic
    for chunk in in_chunks(files):
        found = [l1_file(row) for row in chunk]
        yield rows(
            len(found),
            kind=L1,
            journal=journal,
            topic=topic.name,
            revision=topic.revision,
            partition=[f.partition for f in found],
            key=[l1_key(PartitionId(topic.name, topic.revision, f.partition), f) for f in found],
            offset=[f.base_offset for f in found],
            expected=[f.bytes for f in found],
        )


def _index_rows(store: S3Store, journal: int, p: Placed, threads: Threads) -> Iterator[pa.RecordBatch]:
    """The older L1 objects of partitions that have many; a partition's rows are let go before the next ones are read."""
    from l0gc.inspect.verify.reading import indexed_rows
    from l0gc.streamlog.level_one.index import index_key

    def read(index: Rows) -> Any:
        partition = int(index["partition"][0])
        return indexed_rows(store, p.topic.id(partition), index, p.state.view(partition).log_start_offset)

    for chunk in in_chunks(_by_partition(p.state.index), _INDEXES_AT_ONCE):
        for index, found in zip(chunk, threads.map(read, chunk), strict=True):
            if isinstance(found, str):
                partition = int(index["partition"][0])
                where = (journal, p.topic.name, p.topic.revision, partition)
                key = index_key(p.topic.id(partition), index[-1])
                yield suspect_rows([Suspect(kinds.INDEX_UNREADABLE, *where, key, detail=found)])
            else:
                yield from _l1_rows(journal, p, found)
        yield rows(1, kind=INDEX, journal=journal, n=sum(len(index) for index in chunk))


def _by_partition(rows: Rows) -> Iterator[Rows]:
    """The index objects of each partition."""
    import numpy as np

    yield from np.split(rows, np.flatnonzero(rows["partition"][1:] != rows["partition"][:-1]) + 1) if len(rows) else ()


# -- the L1 listing ------------------------------------------------------------------------------------------------------


def l1_listing(spark: SparkSession, place: Place) -> DataFrame:
    """Every key in the L1 folders of the topics that there are and were."""
    n = place.slices
    ranges = l1_ranges(place.basis, n)

    def read(part: Sequence[tuple[str, str, str]]) -> Iterator[pa.RecordBatch]:
        return batches(_listed(place, part), L1_LISTING)

    return spread(spark, [ranges[i::n] for i in range(min(n, len(ranges)))], read, L1_LISTING)


def _listed(place: Place, ranges: Sequence[tuple[str, str, str]]) -> Iterator[tuple[Any, ...]]:
    from l0gc.inspect.verify.reading import scan_between

    store, topics = place.store, KnownTopics(place.basis)
    for folder, start, stop in ranges:
        for page in scan_between(store, folder, start, stop):
            for key, size, modified in zip(page.keys, page.sizes, page.modified_ms, strict=True):
                parsed = parse_level_one(key)
                p = parsed.id if parsed is not None else PartitionId("", -1, -1)
                yield (key, size, modified, *topics.owner(parsed), p.topic, p.revision, p.partition)
