"""verify: executors read the journals and the listings, Spark joins them, executors do the second reading.

The order of the reads keeps suspects few; what makes a suspect a finding is the second reading
(`inspect/verify/confirm.py`), which holds whatever the order was:

1. M, then the controller's snapshot, then the journals. Each of them can only be behind what is read after it: M never
   passes a live object, so one that did is wrong.
2. The listings, after the journals. What a journal needed when it was read and the listing lacks was reconciled and swept
   since, or it is missing. What the listing has and no journal names was written since, or is nobody's.
3. Every suspect again: the object itself, then the journal, then the controller.

The driver holds no list of keys. It gets numbers, and as many findings as were asked for.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from l0gc.epoch import NO_WATERMARK
from l0gc.errors import ClusterMismatchError, CorruptObjectError
from l0gc.inspect.verify import findings as kinds
from l0gc.inspect.verify.basis import Basis, basis_of, check_log_is_ours
from l0gc.inspect.verify.findings import Suspect, VerifyResult, finding_of
from l0gc.inspect.verify.reading import controller_faults, unknown_journals
from l0gc.inspect.verify.rules import DOUBTFUL
from l0gc.keys import CONTROLLER_LOG, PUBLISHED_WATERMARK
from l0gc.runtime import Runtime
from l0gc.spark import verify_sources as sources
from l0gc.spark.listing import keys_of
from l0gc.spark.remote import JOB_ERRORS, cause_of
from l0gc.spark.verify_joins import (
    ELIGIBLE,
    NAMED,
    NO_L0,
    NO_L1,
    OF_DELETED,
    REFERENCED,
    WAITING,
    YOUNG,
    as_rows,
    l0_rows,
    l1_rows,
)
from l0gc.spark.verify_sources import ROWS, SUSPECTS, Place, in_chunks, suspect_rows
from l0gc.storage.config import StoreConfig
from l0gc.storage.objectstore import ObjectStore
from l0gc.storage.parallel import Threads
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.controller.state import ControllerState
from l0gc.watermark.publication import read_published

if TYPE_CHECKING:
    import pyarrow as pa

Check = Callable[[ObjectStore, Suspect], tuple[Suspect | None, int]]
"""Reads what a journal refers to; gives what is wrong with it, and how many bytes were read."""

MIN_AGE_MS: Final = 3_600_000
MAX_FINDINGS: Final = 1000

_SLICES_PER_CORE: Final = 2
_PLACE: Final = ["journal", "revision", "partition"]
_READ_AT_ONCE: Final = 8
_READ: Final = "read"
"""The kind of rows that count bytes which were read and are as they should be."""


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
    """Read the whole bucket once, and change nothing.

    Args:
        deep: read every block that a journal needs and every L1 object, and check their contents; and compare all
            checkpoints with their entries.
        min_age_ms: L1 objects younger than this, by the store's clock, may still be named by a journal.
        max_findings: how many findings to list; all are counted.
        progress: called with what is being done.

    Raises:
        NotInitialisedError, ClusterMismatchError: no cluster exists here, or another one.
        ExternalLogError: its log is another system's.
        CorruptObjectError: the controller log cannot be read.
        StoreError: the store failed; nothing is known.
    """
    started = time.monotonic()
    now_ms = cluster.store.now_ms()
    first, watermark, state = _published(cluster)
    check_log_is_ours(state)
    faults = controller_faults(cluster.store, cluster.runtime, parallel=cluster.parallel, deep=deep)
    first += [Suspect(kind, key=CONTROLLER_LOG, detail=text) for kind, text in faults]
    for folder in unknown_journals(cluster.store, state.journals):
        text = f"the controller knows journals 0 to {state.journals - 1} alone"
        first.append(Suspect(kinds.JOURNAL_UNKNOWN, key=folder, detail=text))
    basis = basis_of(state, watermark, now_ms - min_age_ms, now_ms)
    result = VerifyResult(state.epoch, watermark, deep)
    result.checked.journals, result.checked.partitions = state.journals, state.partition_count
    job = _Job(spark, config, basis, deep=deep)
    try:
        with job.kept():
            job.read(first, result, progress)
            if job.suspects:
                progress(f"reading again what {job.suspects:,} suspects are about")
                job.confirm(result, max_findings)
    except JOB_ERRORS as e:
        raise cause_of(e) from e
    result.seconds = time.monotonic() - started
    return result


def _published(cluster: Cluster) -> tuple[list[Suspect], int, ControllerState]:
    """What is wrong with the published M, M, and the controller as it was read after it."""
    cluster_id = cluster.controller.snapshot().cluster_id
    try:
        published, _ = read_published(cluster.store, cluster_id)
    except (ClusterMismatchError, CorruptObjectError) as e:
        unreadable = Suspect(kinds.WATERMARK_UNREADABLE, key=PUBLISHED_WATERMARK, detail=str(e))
        return [unreadable], NO_WATERMARK, cluster.controller.snapshot()
    state = cluster.controller.snapshot()
    if published is None:
        return [], NO_WATERMARK, state
    said = max(published.watermark, published.cluster_epoch)
    if said <= state.epoch and published.watermark <= published.cluster_epoch:
        return [], published.watermark, state
    text = (
        f"M = {published.watermark} is published with cluster epoch {published.cluster_epoch}, and the cluster epoch is "
        f"{state.epoch}"
    )
    return [Suspect(kinds.WATERMARK_AHEAD, key=PUBLISHED_WATERMARK, detail=text)], published.watermark, state


class _Job:
    """The data frames of one run."""

    def __init__(self, spark: SparkSession, config: StoreConfig, basis: Basis, *, deep: bool) -> None:
        self._spark, self._basis = spark, basis
        self._place = Place(config, basis, spark.sparkContext.defaultParallelism * _SLICES_PER_CORE, deep)
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

    # -- the first reading -------------------------------------------------------------------------------------------------

    def read(self, first: list[Suspect], result: VerifyResult, progress: Callable[[str], None]) -> None:
        """Read everything, and keep the suspects."""
        place = self._place
        progress("reading the journals")
        journals = self._keep(sources.journals(self._spark, place))
        in_doubt = F.when(F.col("kind").isin(*DOUBTFUL), F.col("journal")).alias("in_doubt")
        found = journals.groupBy("kind", in_doubt).agg(F.sum("n").alias("n")).collect()
        seen = {r["kind"]: r["n"] for r in found}
        doubtful = sorted({r["in_doubt"] for r in found if r["in_doubt"] is not None})
        result.checked.extents, result.checked.index_objects = seen.get(sources.EXTENTS, 0), seen.get(sources.INDEX, 0)

        progress("reading the listing and every object" if place.deep else "reading the listing")
        rows = [
            journals.filter(F.col("kind").isin(*kinds.KINDS)),
            l0_rows(keys_of(self._spark, place.config, place.basis.layout, place.slices), journals, self._basis),
            l1_rows(sources.l1_listing(self._spark, place), journals, self._basis, doubtful),
        ]
        if first:
            known = self._spark.createDataFrame([msgspec.structs.astuple(s) for s in first], SUSPECTS)
            rows.append(as_rows(known))
        if place.deep:
            rows += [self._contents(journals, sources.L0, _check_l0), self._contents(journals, sources.L1, _check_l1)]
        self._rows = self._keep(reduce(DataFrame.unionByName, rows))
        sums = self._rows.groupBy("kind").agg(F.sum("n").alias("n"), F.sum("bytes").alias("bytes")).collect()
        self._count({r["kind"]: (r["n"], r["bytes"]) for r in sums}, result)

    def _contents(self, journals: DataFrame, kind: str, check: Check) -> DataFrame:
        """The objects that the journals refer to, spread over all tasks; several at a time in each."""
        refs = journals.filter(F.col("kind") == kind).drop("n", "bytes").repartition(self._place.slices, "key")
        return refs.mapInArrow(_reader(self._place, check), ROWS)

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

    # -- the second reading ------------------------------------------------------------------------------------------------

    def confirm(self, result: VerifyResult, max_findings: int) -> None:
        """Read the subject of every suspect again, on executors, each journal's in one task."""
        assert self._rows is not None
        suspects = self._rows.filter(F.col("kind").isin(*kinds.KINDS)).drop("n", "bytes")
        apart = suspects.repartition(self._place.slices, "journal").sortWithinPartitions(*_PLACE)
        confirmed = self._keep(apart.mapInArrow(_confirmer(self._place), SUSPECTS))
        order = ["topic", "revision", "partition", "kind", "offset", "key", "journal"]
        listed = [Suspect(*row) for row in confirmed.orderBy(*order).limit(max_findings + 1).collect()]
        if len(listed) > max_findings:
            counted = confirmed.groupBy("kind").count().collect()
            result.counts = {r["kind"]: r["count"] for r in sorted(counted, key=lambda r: str(r["kind"]))}
        else:
            result.counts = dict(sorted(Counter(s.kind for s in listed).items()))
        result.total = sum(result.counts.values())
        result.findings = [finding_of(s) for s in listed[:max_findings]]


# -- on executors ---------------------------------------------------------------------------------------------------------


def _suspects(incoming: Iterator[pa.RecordBatch]) -> Iterator[list[Suspect]]:
    for batch in incoming:
        yield [Suspect(**row) for row in batch.to_pylist()]


def _confirmer(place: Place):  # type: ignore[no-untyped-def]  # a closure for Spark
    def read_again(incoming: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from l0gc.inspect.verify.confirm import confirm

        with Threads(_READ_AT_ONCE) as threads:
            for suspects in _suspects(incoming):
                still = confirm(place.store, Runtime(), place.basis, suspects, parallel=threads, deep=place.deep)
                for chunk in in_chunks(still):
                    yield suspect_rows(chunk, SUSPECTS)

    return read_again


def _reader(place: Place, check: Check):  # type: ignore[no-untyped-def]  # a closure for Spark
    def read(incoming: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with Threads(_READ_AT_ONCE) as threads:
            for refs in _suspects(incoming):
                for chunk in in_chunks(refs, 8 * _READ_AT_ONCE):
                    seen = threads.map(lambda ref: check(place.store, ref), chunk)
                    if found := [s for s, _ in seen if s is not None]:
                        yield suspect_rows(found)
                    yield sources.rows(1, kind=_READ, bytes=sum(size for _, size in seen))

    return read


def _check_l0(store: ObjectStore, ref: Suspect) -> tuple[Suspect | None, int]:
    """The blocks of an L0 object that a journal needs."""
    from l0gc.inspect.verify.reading import block_faults, unpack_object

    o = unpack_object(ref.key, ref.ref)
    faults = block_faults(store, o)
    if faults is None:
        return None, 0
    size = sum(o.block(n).length for n in set(o.extents["block"].tolist()))
    if not faults:
        return None, size
    extent, text = faults[0]
    more: dict[str, Any] = {"partition": extent.partition, "offset": extent.base_offset, "detail": text}
    return msgspec.structs.replace(ref, kind=kinds.L0_CORRUPT, **more), size


def _check_l1(store: ObjectStore, ref: Suspect) -> tuple[Suspect | None, int]:
    """An L1 object."""
    from l0gc.inspect.verify.reading import l1_fault

    fault = l1_fault(store, ref.key, ref.expected)
    if not fault:
        return None, ref.expected if fault is not None else 0
    return msgspec.structs.replace(ref, kind=kinds.L1_CORRUPT, detail=fault), ref.expected
