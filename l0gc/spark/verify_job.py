"""verify: executors read the logs, the listings and the reports, Spark joins them, executors take the second look.

The order of the reads keeps suspects few; what makes a suspect a finding is the second look (`verify/confirm.py`), which
holds whatever the order was:

1. M, then the controller's snapshot, then the reports, then the partitions' logs. Each of them can only be behind what is
   read after it: M never passes a live placeholder, a report never says more than its log, so any that does is wrong.
2. The listings, behind the logs. What a log needed when it was read and the listing lacks was reconciled and swept since,
   or it is missing. What the listing has and no log names was written since, or is nobody's.
3. Every suspect again: the object itself, then the log, then the controller.

The driver holds no list of keys. It gets numbers, and as many findings as were asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from l0gc.epoch import NO_WATERMARK
from l0gc.errors import ClusterMismatchError, CorruptObjectError
from l0gc.inspect.verify import findings as kinds
from l0gc.inspect.verify.findings import Suspect, VerifyResult, finding_of, suspect
from l0gc.inspect.verify.rules import Basis, basis_of, check_log_is_ours
from l0gc.keys import PUBLISHED_WATERMARK, REPORTS, PartitionId
from l0gc.runtime import Runtime
from l0gc.spark import verify_sources as sources
from l0gc.spark.listing import keys_of
from l0gc.spark.remote import JOB_ERRORS, batches, cause_of
from l0gc.spark.verify_joins import (
    ELIGIBLE,
    NAMED,
    NO_L0,
    NO_L1,
    OF_DELETED,
    REFERENCED,
    ROWS,
    WAITING,
    YOUNG,
    l0_rows,
    l1_rows,
    log_suspects,
    report_suspects,
    reports_ahead,
)
from l0gc.spark.verify_sources import SUSPECTS, Place
from l0gc.storage.config import StoreConfig
from l0gc.storage.parallel import Threads
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.journal.entries import L1File, Unreconciled
from l0gc.watermark.publication import read_published, watermark_of

if TYPE_CHECKING:
    import pyarrow as pa

Check = Callable[[S3Store, list[dict[str, Any]]], tuple[list[Suspect], int]]
"""Reads one object for all that refers to it; gives suspects, and how many bytes it read."""

MIN_AGE_MS: Final = 3_600_000
MAX_FINDINGS: Final = 1000

_SLICES_PER_CORE: Final = 2
_PARTITION: Final = ["topic", "revision", "partition"]
_READ_AT_ONCE: Final = 8
_READ: Final = "read"
"""The kind of rows that count bytes which were read and are as they should be."""

# Built at import, by one thread: msgspec learns a type at its first use, and two threads doing that at once crash it.
_UNRECONCILED: Final = msgspec.json.Decoder(Unreconciled)
_L1_FILE: Final = msgspec.json.Decoder(L1File)


def run(
    spark: SparkSession,
    cluster: Cluster,
    config: StoreConfig,
    *,
    deep: bool = False,
    min_age_ms: int = MIN_AGE_MS,
    max_findings: int = MAX_FINDINGS,
    progress: Callable[[str], None] = lambda text: None,
) -> VerifyResult:
    """Look at the whole bucket once, and change nothing.

    Args:
        deep: read every extent that a log refers to and every L1 object, and check their contents.
        min_age_ms: L1 objects younger than this, by the store's clock, may be named by a log yet.
        max_findings: how many findings to list; all are counted.
        progress: told what is being done.

    Raises:
        NotInitialisedError, ClusterMismatchError: there is no cluster here, or another one.
        ExternalLogError: its log is another system's.
        CorruptObjectError: the controller log cannot be read.
        StoreError: the store failed; nothing is known.
    """
    started = time.monotonic()
    young_after_ms = cluster.store.now_ms() - min_age_ms
    first, watermark = _published(cluster)
    state = cluster.controller.snapshot()
    check_log_is_ours(state)
    if watermark > state.epoch:
        text = f"M = {watermark} is published, and the cluster epoch is {state.epoch}"
        first.append(suspect(kinds.WATERMARK_AHEAD, None, PUBLISHED_WATERMARK, -1, text))
    basis = basis_of(state, watermark, young_after_ms)
    result = VerifyResult(state.epoch, watermark, deep)
    job = _Job(spark, cluster, config, basis)
    try:
        with job.kept():
            job.look(first, result, progress, deep=deep)
            if job.suspects:
                progress(f"looking again at {job.suspects:,} suspects")
                job.confirm(result, max_findings)
    except JOB_ERRORS as e:
        raise cause_of(e) from e
    result.seconds = time.monotonic() - started
    return result


def _published(cluster: Cluster) -> tuple[list[Suspect], int]:
    """What is wrong with the published M, and M."""
    cluster_id = cluster.controller.snapshot().cluster_id
    try:
        return [], watermark_of(read_published(cluster.store, cluster_id)[0])
    except (ClusterMismatchError, CorruptObjectError) as e:
        return [suspect(kinds.WATERMARK_UNREADABLE, None, PUBLISHED_WATERMARK, -1, str(e))], NO_WATERMARK


class _Job:
    """The data frames of one run."""

    def __init__(self, spark: SparkSession, cluster: Cluster, config: StoreConfig, basis: Basis) -> None:
        self._spark, self._cluster, self._basis = spark, cluster, basis
        slices = spark.sparkContext.defaultParallelism * _SLICES_PER_CORE
        self._place = Place(config, basis, slices)
        self._kept: list[DataFrame] = []
        self._rows: DataFrame | None = None
        self.suspects = 0

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keeps what is read once and used twice, until the end."""
        try:
            yield
        finally:
            for frame in self._kept:
                frame.unpersist()

    def _keep(self, frame: DataFrame) -> DataFrame:
        self._kept.append(frame.persist())
        return frame

    # -- the first look ---------------------------------------------------------------------------------------------------

    def look(self, first: list[Suspect], result: VerifyResult, progress: Callable[[str], None], *, deep: bool) -> None:
        """Read everything, and keep the suspects."""
        keys = [k for k in self._cluster.store.list(REPORTS).modified_ms if k.endswith(".parquet")]
        result.checked.reports = len(keys)
        progress("reading reports")
        reports = self._keep(sources.report_tops(self._spark, self._place, keys))
        reports.count()  # reads them, before the logs are
        progress("reading the logs of partitions")
        logs = self._keep(sources.logs(self._spark, self._place))
        seen = {r["row"]: r["count"] for r in logs.groupBy("row").count().collect()}
        result.checked.partitions = len(self._basis.partitions())
        result.checked.placeholders = seen.get(sources.L0, 0)

        progress("reading the listing and every object" if deep else "reading the listing")
        ahead, place = reports_ahead(reports, logs), self._place
        rows = [
            self._spark.createDataFrame([(*msgspec.structs.astuple(s), 1, 0) for s in first], ROWS),
            log_suspects(logs),
            report_suspects(reports),
            ahead,
            l0_rows(keys_of(self._spark, place.config, place.basis.layout, place.slices), logs, self._basis),
            l1_rows(sources.l1_listing(self._spark, place), logs, ahead, self._basis),
        ]
        if deep:
            rows += [self._contents(logs, sources.L0, _check_extents), self._contents(logs, sources.L1, _check_l1)]
        self._rows = self._keep(reduce(DataFrame.unionByName, rows))
        found = self._rows.groupBy("kind").agg(F.sum("n").alias("n"), F.sum("bytes").alias("bytes")).collect()
        self._count({r["kind"]: (r["n"], r["bytes"]) for r in found}, result)

    def _contents(self, logs: DataFrame, row: str, check: Check) -> DataFrame:
        """The objects that the logs refer to, each read once; several at a time in each task."""
        refs = logs.filter(F.col("row") == row).select("key", "ref", *_PARTITION)
        apart = refs.repartition(self._place.slices, "key").sortWithinPartitions("key")
        return apart.mapInArrow(_reader(self._place, check), ROWS)

    def _count(self, seen: dict[str, tuple[int, int]], result: VerifyResult) -> None:
        self.suspects = sum(n for kind, (n, _) in seen.items() if kind in kinds.KINDS)

        def objects(*kinds_: str) -> int:
            return sum(seen.get(k, (0, 0))[0] for k in kinds_)

        checked = result.checked
        checked.l0_objects = objects(REFERENCED, WAITING, ELIGIBLE, kinds.L0_SHORT, kinds.EPOCH_AHEAD)
        checked.l1_objects = objects(NAMED, YOUNG, OF_DELETED, kinds.L1_SIZE, kinds.L1_ORPHAN)
        checked.bytes_read = seen.get(_READ, (0, 0))[1]
        result.waiting_objects, result.waiting_bytes = seen.get(WAITING, (0, 0))
        result.eligible_objects, result.eligible_bytes = seen.get(ELIGIBLE, (0, 0))
        result.unparsable_keys = objects(NO_L0, NO_L1)
        result.young_l1_objects, result.deleted_topic_objects = objects(YOUNG), objects(OF_DELETED)

    # -- the second look --------------------------------------------------------------------------------------------------

    def confirm(self, result: VerifyResult, max_findings: int) -> None:
        """Look again at every suspect, on executors, each partition's in one task."""
        assert self._rows is not None
        suspects = self._rows.filter(F.col("kind").isin(*kinds.KINDS)).drop("n", "bytes")
        apart = suspects.repartition(self._place.slices, *_PARTITION).sortWithinPartitions(*_PARTITION)
        confirmed = self._keep(apart.mapInArrow(_confirmer(self._place), SUSPECTS))
        result.counts = {r["kind"]: r["count"] for r in confirmed.groupBy("kind").count().orderBy("kind").collect()}
        result.total = sum(result.counts.values())
        listed = confirmed.orderBy(*_PARTITION, "kind", "offset", "key").limit(max_findings).collect()
        result.findings = [finding_of(Suspect(*row)) for row in listed]


# -- on executors ---------------------------------------------------------------------------------------------------------


def _confirmer(place: Place):  # type: ignore[no-untyped-def]  # a closure for Spark
    def look_again(incoming: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from l0gc.inspect.verify.confirm import confirm

        for batch in incoming:
            suspects = [msgspec.convert(row, Suspect) for row in batch.to_pylist()]
            still = confirm(place.store, Runtime(), place.basis, suspects)
            yield from batches((msgspec.structs.astuple(s) for s in still), SUSPECTS)

    return look_again


def _reader(place: Place, check: Check):  # type: ignore[no-untyped-def]  # a closure for Spark
    def read(incoming: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (row for batch in incoming for row in batch.to_pylist())
        objects = (list(group) for _, group in groupby(rows, key=lambda row: row["key"]))

        def checked() -> Iterator[tuple[Any, ...]]:
            with Threads(_READ_AT_ONCE) as threads:
                while some := list(islice(objects, _READ_AT_ONCE)):
                    for suspects, size in threads.map(lambda refs: check(place.store, refs), some):
                        yield from ((*msgspec.structs.astuple(s), 1, 0) for s in suspects)
                        yield (*msgspec.structs.astuple(suspect(_READ, None, "")), 1, size)

        yield from batches(checked(), ROWS)

    return read


def _check_extents(store: S3Store, refs: list[dict[str, Any]]) -> tuple[list[Suspect], int]:
    """An L0 object with every extent that a log refers to."""
    from l0gc.inspect.verify.look import extent_faults

    owners = [(_id(r), _UNRECONCILED.decode(r["ref"]), r["ref"]) for r in refs]
    faults = extent_faults(store, refs[0]["key"], [u for _, u, _ in owners])
    if faults is None:
        return [], 0
    bad = [u for u, _ in faults]
    found = [
        suspect(kinds.L0_CORRUPT, p, u.placeholder.key, u.placeholder.base_offset, "", ref)
        for p, u, ref in owners
        if u in bad
    ]
    return found, sum(u.placeholder.length for _, u, _ in owners)


def _check_l1(store: S3Store, refs: list[dict[str, Any]]) -> tuple[list[Suspect], int]:
    """An L1 object."""
    from l0gc.inspect.verify.look import l1_fault

    found, size = [], 0
    for r in refs:
        f = _L1_FILE.decode(r["ref"])
        fault = l1_fault(store, f)
        size += f.bytes if fault is not None else 0
        if fault:
            found.append(suspect(kinds.L1_CORRUPT, _id(r), f.key, f.base_offset, "", r["ref"]))
    return found, size


def _id(row: dict[str, Any]) -> PartitionId:
    return PartitionId(row["topic"], row["revision"], row["partition"])
