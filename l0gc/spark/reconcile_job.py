"""reconcile: executors fetch each L0 object once, Spark brings the records together by partition, executors write L1.

The driver plans and commits (`reconcile/`); between the two, a task may run twice or a run may die: L1 objects have random
names and count only when a log names them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from l0gc.errors import StoreError
from l0gc.runtime import Runtime
from l0gc.spark.remote import JOB_ERRORS, arrow_schema, cause_of, store_from_options, store_options
from l0gc.storage.config import StoreConfig
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.journal.entries import L1File
from l0gc.streamlog.level_one.commit import Committed, commit_run, plan_run
from l0gc.streamlog.level_one.plan import ObjectRead, PartitionPlan, Plan, split
from l0gc.watermark.reports import publish_reports, report_of

if TYPE_CHECKING:
    import pyarrow as pa

RECORDS = StructType(
    [
        StructField("plan", IntegerType(), False),
        StructField("offset", LongType(), False),
        StructField("timestamp_ms", LongType(), False),
        StructField("key", BinaryType(), True),
        StructField("value", BinaryType(), False),
        StructField("epoch", LongType(), False),
    ]
)
_FILES = StructType(
    [
        StructField("plan", IntegerType(), False),
        StructField("key", StringType(), False),
        StructField("base_offset", LongType(), False),
        StructField("last_offset", LongType(), False),
        StructField("bytes", LongType(), False),
    ]
)
_TASK_BYTES = 32 << 20
_TRIES = 3


class ObjectReads(InputPartition):
    def __init__(self, body: bytes) -> None:
        super().__init__(body)
        self.body = body


class ExtentsSource(DataSource):
    """The records of L0 objects. Options: the store, `reads` (JSON: a list of lists of `ObjectRead`, one for each task)."""

    @classmethod
    def name(cls) -> str:
        return "l0gc_extents"

    def schema(self) -> StructType:
        return RECORDS

    def reader(self, schema: StructType) -> ExtentsReader:
        return ExtentsReader(dict(self.options))


class ExtentsReader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        return [ObjectReads(bytes(r)) for r in msgspec.json.decode(self._options["reads"], type=list[msgspec.Raw])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from l0gc.streamlog.level_one.parquet import read_object

        assert isinstance(partition, ObjectReads)
        store = store_from_options(self._options)
        schema = arrow_schema(RECORDS)
        for read in msgspec.json.decode(partition.body, type=list[ObjectRead]):
            for index, batch in read_object(store, read):
                plan = pa.array([index] * batch.num_rows, pa.int32())
                offset, timestamp, key, value, epoch = batch.columns
                yield pa.record_batch([plan, offset, timestamp.cast(pa.int64()), key, value, epoch], schema)


@dataclass(slots=True)
class ReconcileResult:
    records: int = 0
    partitions: list[Committed] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def l1_files(self) -> list[L1File]:
        return [f for c in self.partitions for f in c.files]


def run(spark: SparkSession, cluster: Cluster, config: StoreConfig, topic: str | None = None) -> ReconcileResult:
    """Reconcile everything that is unreconciled now, in one topic or in all of them.

    Raises:
        TopicNotFoundError: there is no such topic.
        CorruptObjectError: an L0 object does not hold what the log says; nothing of this run is committed.
    """
    started = time.monotonic()
    result = ReconcileResult()
    for attempt in range(1, _TRIES + 1):
        plan, result.errors = plan_run(cluster, topic)
        if not plan.partitions:
            break
        try:
            files = _write_l1(spark, config, plan)
        except JOB_ERRORS as e:
            if attempt < _TRIES and _moved(cluster, plan):
                continue  # another reconciler was first, and a sweep took the L0 objects: plan again
            raise cause_of(e) from e
        result.partitions = commit_run(cluster, plan, files, result.errors.append)
        result.records = sum(c.plan.last_offset - c.plan.base_offset + 1 for c in result.partitions if not c.lost)
        break
    _report(cluster, result)
    result.seconds = time.monotonic() - started
    return result


def _write_l1(spark: SparkSession, config: StoreConfig, plan: Plan) -> dict[int, list[L1File]]:
    cores = spark.sparkContext.defaultParallelism
    tasks = max(cores, sum(o.bytes for o in plan.objects) // _TASK_BYTES)
    reads = msgspec.json.encode(split(plan.objects, tasks)).decode()
    options = store_options(config)
    plans = {p.index: p for p in plan.partitions}
    spark.dataSource.register(ExtentsSource)
    records = spark.read.format(ExtentsSource.name()).options(**options, reads=reads).load()
    writers = min(len(plans), max(cores, tasks))
    ordered = records.repartition(writers, "plan").sortWithinPartitions("plan", "offset")
    rows = ordered.mapInArrow(_writer(options, plans), _FILES).collect()
    files: dict[int, list[L1File]] = {}
    for row in rows:
        file = L1File(row["key"], row["base_offset"], row["last_offset"], row["bytes"])
        files.setdefault(row["plan"], []).append(file)
    return files


def _writer(options: dict[str, str], plans: dict[int, PartitionPlan]):  # type: ignore[no-untyped-def]  # a closure for Spark
    packed = msgspec.json.encode(list(plans.values()))

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from l0gc.streamlog.level_one.parquet import write_l1

        by_index = {p.index: p for p in msgspec.json.decode(packed, type=list[PartitionPlan])}
        rows = (b for b in batches if b.num_rows)
        for index, f in write_l1(store_from_options(options), by_index, rows, Runtime()):
            yield pa.RecordBatch.from_pylist([{"plan": index, **msgspec.structs.asdict(f)}], arrow_schema(_FILES))

    return write


def _moved(cluster: Cluster, plan: Plan) -> bool:
    """Whether any partition of the plan is no longer where the plan began."""
    return any(
        cluster.partition(p.id).catch_up().last_reconciled_offset >= p.base_offset
        or cluster.partition(p.id).state.closed
        for p in plan.partitions
    )


def _report(cluster: Cluster, result: ReconcileResult) -> None:
    cluster_id = cluster.controller.snapshot().cluster_id
    reports = []
    for c in result.partitions:
        handle = cluster.partition(c.plan.id)
        with handle.replica.lock:
            reports.append(report_of(cluster_id, c.plan.id, handle.state, handle.replica.offset))
    try:
        publish_reports(cluster.store, cluster.runtime, "reconcile", reports)
    except StoreError as e:  # the records are lifted all the same, and that is to be told
        result.errors.append(f"no report of it could be written, which the next l0gc housekeep makes good: {e}")
