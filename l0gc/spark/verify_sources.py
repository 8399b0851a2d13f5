"""What the executors of verify read: partition logs, the L1 listing, reports, and the L0 listing by `listing.py`.

Rows say what was seen; whether it is wrong is decided in `verify/`. What is read again, because a task failed, may be of a
later moment: nothing here relies on one.

These are functions over the numbers of a range, and no Spark data sources: for each of those Spark starts three Python
processes on the driver before anything is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from l0gc.errors import CorruptObjectError, ObjectNotFoundError
from l0gc.inspect.verify import findings as kinds
from l0gc.inspect.verify.findings import Suspect, suspect
from l0gc.inspect.verify.rules import (
    Basis,
    ReportTop,
    Topics,
    check_partition,
    l1_ranges,
    parse_l1,
    report_fault,
)
from l0gc.keys import PartitionId, partition_log
from l0gc.runtime import Runtime
from l0gc.spark.remote import batches, spread, store_at
from l0gc.storage.config import StoreConfig
from l0gc.storage.parallel import Threads
from l0gc.storage.s3 import S3Store

if TYPE_CHECKING:
    import pyarrow as pa

_TEXT, _LONG, _INT = StringType(), LongType(), IntegerType()
_PARTITION: Final = [
    StructField("topic", _TEXT, False),
    StructField("revision", _LONG, False),
    StructField("partition", _INT, False),
]
_STANDING: Final = [
    StructField(name, _LONG, True)
    for name in ("gc_epoch", "max_applied_epoch", "next_offset", "last_reconciled_offset", "log_offset")
]
"""How far a log, or a report of it, has come; null in rows that tell of something else."""
SUSPECTS: Final = StructType(
    [
        StructField("kind", _TEXT, False),
        *_PARTITION,
        StructField("key", _TEXT, False),
        StructField("offset", _LONG, False),
        StructField("detail", _TEXT, False),
        StructField("ref", _TEXT, False),
    ]
)
"""`verify.findings.Suspect`."""
LOGS: Final = StructType(
    [
        StructField("row", _TEXT, False),
        *_PARTITION,
        StructField("key", _TEXT, False),
        StructField("offset", _LONG, False),
        StructField("end", _LONG, False),
        StructField("detail", _TEXT, False),
        StructField("ref", _TEXT, False),
        *_STANDING,
    ]
)
"""`row` is STATE, L0 or L1 (what a log refers to; `end` is where it ends in the object), or the kind of a suspect."""
L1_LISTING: Final = StructType(
    [
        StructField("key", _TEXT, False),
        StructField("bytes", _LONG, False),
        StructField("modified_ms", _LONG, False),
        StructField("owner", _TEXT, False),
        *_PARTITION,
    ]
)
REPORTS: Final = StructType(
    [
        StructField("kind", _TEXT, False),
        *_PARTITION,
        *_STANDING,
        StructField("key", _TEXT, False),
        StructField("detail", _TEXT, False),
    ]
)
"""`kind` is TOP, or the kind of a suspect."""

STATE: Final = "state"
L0: Final = "l0"
L1: Final = "l1"
TOP: Final = "top"

_THREADS: Final = 8
_AT_ONCE: Final = 64


@dataclass(frozen=True, slots=True)
class Place:
    """What every executor is told: where the bucket is, and what to compare with."""

    config: StoreConfig
    basis: Basis
    slices: int

    @property
    def store(self) -> S3Store:
        """The store, as an executor sees it."""
        return store_at(self.config)


# -- partition logs -------------------------------------------------------------------------------------------------------


def logs(spark: SparkSession, place: Place) -> DataFrame:
    """What every partition's log says."""
    partitions = len(place.basis.partitions())
    n = max(1, min(place.slices, partitions))

    def read(index: int) -> Iterator[pa.RecordBatch]:
        return batches(_log_rows(place, index, n), LOGS)

    return spread(spark, range(n), read, LOGS)


def _log_rows(place: Place, index: int, slices: int) -> Iterator[tuple[Any, ...]]:
    basis, store = place.basis, place.store
    ids = basis.partitions()[index::slices]
    with Threads(_THREADS) as threads:
        for at in range(0, len(ids), _AT_ONCE):
            for rows in threads.map(lambda p: list(_rows_of(store, basis, p)), ids[at : at + _AT_ONCE]):
                yield from rows


def _rows_of(store: S3Store, basis: Basis, p: PartitionId) -> Iterator[tuple[Any, ...]]:
    from l0gc.inspect.verify.look import look_at

    where, no_state = (p.topic, p.revision, p.partition), (None,) * 5
    try:
        look = look_at(store, Runtime(), p)
    except CorruptObjectError as e:
        yield (kinds.LOG_UNREADABLE, *where, partition_log(p), -1, -1, str(e), "", *no_state)
        return
    for s in check_partition(look, basis.layout, basis.watermark, basis.cluster_epoch):
        yield (s.kind, *where, s.key, s.offset, -1, s.detail, s.ref, *no_state)
    state = look.state
    if state.closed:
        return
    for u in state.placeholders:
        extent, ref = u.placeholder, msgspec.json.encode(u).decode()
        yield (L0, *where, extent.key, extent.base_offset, extent.start + extent.length, "", ref, *no_state)
    for f in state.l1:
        yield (L1, *where, f.key, f.base_offset, f.bytes, "", msgspec.json.encode(f).decode(), *no_state)
    numbers = (
        state.gc_epoch,
        state.max_applied_epoch,
        state.next_offset,
        state.last_reconciled_offset,
        look.log_offset,
    )
    yield (STATE, *where, "", -1, -1, "", "", *numbers)


# -- the L1 listing -------------------------------------------------------------------------------------------------------


def l1_listing(spark: SparkSession, place: Place) -> DataFrame:
    """Every key in the L1 folders of the topics that there are and were."""
    n = place.slices
    ranges = l1_ranges(place.basis, n)

    def read(part: Sequence[tuple[str, str, str]]) -> Iterator[pa.RecordBatch]:
        return batches(_l1_rows(place, part), L1_LISTING)

    return spread(spark, [ranges[i::n] for i in range(min(n, len(ranges)))], read, L1_LISTING)


def _l1_rows(place: Place, ranges: Sequence[tuple[str, str, str]]) -> Iterator[tuple[Any, ...]]:
    from l0gc.inspect.verify.look import scan_between

    store, topics = place.store, Topics(place.basis)
    for folder, start, stop in ranges:
        for page in scan_between(store, folder, start, stop):
            for key, size, modified in zip(page.keys, page.sizes, page.modified_ms, strict=True):
                parsed = parse_l1(key)
                p = parsed.id if parsed is not None else PartitionId("", -1, -1)
                yield (key, size, modified, topics.owner(parsed), p.topic, p.revision, p.partition)


# -- reports --------------------------------------------------------------------------------------------------------------


def report_tops(spark: SparkSession, place: Place, keys: Sequence[str]) -> DataFrame:
    """The most that reports say of each partition, in each task, and what is wrong with reports."""
    n = place.slices

    def read(part: Sequence[str]) -> Iterator[pa.RecordBatch]:
        return batches(_report_rows(place, part), REPORTS)

    return spread(spark, [keys[i::n] for i in range(min(n, len(keys)))], read, REPORTS)


def _report_rows(place: Place, keys: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    from l0gc.inspect.verify.look import top_of
    from l0gc.watermark.compute import PartitionReport
    from l0gc.watermark.reports import read_report_file

    basis, store = place.basis, place.store
    topics, tops = Topics(basis), dict[PartitionId, ReportTop]()
    for key in keys:
        try:
            table = read_report_file(store.get(key).body, key)
        except ObjectNotFoundError:
            continue  # expired since it was listed
        except CorruptObjectError as e:
            yield _report_suspect(suspect(kinds.REPORT_UNREADABLE, None, key, -1, str(e)))
            continue
        faults = set()
        for row in table.to_pylist():
            report = msgspec.convert(row, PartitionReport)
            if fault := report_fault(report, basis, topics):
                faults.add(fault)
            else:
                tops[report.id] = top_of(report, key, tops.get(report.id))
        for fault in sorted(faults):
            yield _report_suspect(suspect(kinds.REPORT_FOREIGN, None, key, -1, fault))
    for top in tops.values():
        *fields, key = msgspec.structs.astuple(top)
        yield (TOP, *fields, key, "")


def _report_suspect(s: Suspect) -> tuple[Any, ...]:
    return (s.kind, s.topic, s.revision, s.partition, None, None, None, None, None, s.key, s.detail)
