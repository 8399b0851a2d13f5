"""What Spark calls: `format("l0gc")` as a source and a sink, batch and streaming. The work is done in the other modules.

Spark makes these objects on the driver, in a Python process of its own, and sends them to the tasks. So they hold where the
bucket is and what is wanted, and connect where they are.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    Filter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from l0gc.errors import UsageError
from l0gc.spark.source.commit import BatchId, Committed, commit
from l0gc.spark.source.filters import Wanted
from l0gc.spark.source.l1 import Times
from l0gc.spark.source.options import ReadOptions, WriteOptions, read_options, write_options
from l0gc.spark.source.plan import plan_batch
from l0gc.spark.source.read import THREADS, SliceReader
from l0gc.spark.source.split import Slice, split
from l0gc.spark.source.stage import OBJECT_BYTES, StagedObject, Stager
from l0gc.spark.source.stream import Stream
from l0gc.spark.source.tasks import cluster_at, journal_at, unkept_journal

if TYPE_CHECKING:
    import pyarrow as pa

_log: Final = logging.getLogger(__name__)
FORMAT: Final = "l0gc"
SCHEMA: Final = StructType(
    [
        StructField("key", BinaryType(), True),
        StructField("value", BinaryType(), False),
        StructField("topic", StringType(), False),
        StructField("partition", IntegerType(), False),
        StructField("offset", LongType(), False),
        StructField("timestamp", TimestampType(), False),
        StructField("epoch", LongType(), False),
    ]
)
"""The columns of a source: those of Spark's Kafka connector, and the epoch of the L0 object that a record came in."""
_WRITABLE: Final[Mapping[str, tuple[type[DataType], ...]]] = {
    "value": (BinaryType, StringType),
    "key": (BinaryType, StringType),
    "partition": (IntegerType, LongType),
    "topic": (StringType,),
}
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
"""The local properties that a micro-batch's tasks have; the id is kept in the query's checkpoint, whichever driver runs."""
_PACKERS: Final = 2


class L0gcDataSource(DataSource):
    """`format("l0gc")`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> BatchReader:
        options = read_options(self.options, streaming=False)
        return (FilteringReader if options.push_filters else BatchReader)(options, _checked(schema))

    def streamReader(self, schema: StructType) -> StreamReader:
        return StreamReader(read_options(self.options, streaming=True), _checked(schema))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        return BatchWriter(self._write_options(schema, overwrite, streaming=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        return StreamWriter(self._write_options(schema, overwrite, streaming=True))

    def _write_options(self, schema: StructType, overwrite: bool, *, streaming: bool) -> WriteOptions:
        if overwrite:
            how = 'outputMode("append")' if streaming else 'mode("append")'
            raise UsageError(f"a topic is added to and never overwritten: write with {how}")
        options = write_options(self.options, streaming=streaming, default_object_bytes=OBJECT_BYTES)
        columns = {f.name.lower(): f for f in schema.fields}
        for name, f in columns.items():
            if name not in _WRITABLE:
                raise UsageError(
                    f"there is no column {f.name!r} in a topic: write value, and key, partition and topic if wanted"
                )
            if not isinstance(f.dataType, _WRITABLE[name]):
                wanted = " or ".join(t.typeName() for t in _WRITABLE[name])
                raise UsageError(f"column {f.name!r} is of type {f.dataType.simpleString()} and must be {wanted}")
        if "value" not in columns:
            raise UsageError("column value is missing: it holds the records")
        if options.topic is None and "topic" not in columns:
            raise UsageError("name the topic to write to with option topic, or in a column topic")
        return options


def _checked(schema: StructType) -> StructType:
    """A schema that a user gave, if it has some of the source's columns."""
    known = {f.name: f.dataType for f in SCHEMA.fields}
    for f in schema.fields:
        if known.get(f.name) != f.dataType:
            raise UsageError(
                f"a topic has no column {f.name} of type {f.dataType.simpleString()}: {SCHEMA.simpleString()}"
            )
    return schema


def _arrow_schema(schema: StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def read_slice(options: ReadOptions, schema: StructType, wanted: InputPartition, times: Times | None) -> Iterator[Any]:
    """The records of a slice, as Arrow batches of these columns."""
    assert isinstance(wanted, Slice)
    store = cluster_at(options.place).store
    with ThreadPoolExecutor(THREADS, "fetch") as pool:
        reader = SliceReader(
            store,
            journal_at(options.place, wanted.journal),
            wanted,
            _arrow_schema(schema),
            pool,
            times=times,
            fail_on_data_loss=options.fail_on_data_loss,
        )
        yield from reader.batches()


class BatchReader(DataSourceReader):
    """A batch's reader, which leaves a query's filters to Spark."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options, self._schema, self._wanted = options, schema, Wanted()

    def partitions(self) -> Sequence[InputPartition]:
        o = self._options
        cluster = cluster_at(o.place)
        parts = plan_batch(
            cluster,
            o.topics,
            o.starting,
            o.ending,
            self._wanted,
            partial(unkept_journal, cluster),
            assigned=o.assigned,
            fail_on_data_loss=o.fail_on_data_loss,
        )
        # Spark would make a task that reads nothing of an empty list, and hand it a partition of its own.
        return split(parts, o.min_partitions) or [_Nothing()]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, _Nothing):
            return iter(())
        return read_slice(self._options, self._schema, partition, self._wanted.times)


class FilteringReader(BatchReader):
    """A batch's reader that takes a query's filters.

    Only where it is asked for: Spark 4.3 keeps what it has planned with the filters of one query for every other query that
    begins at the same data frame, which would then miss rows.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._wanted.push(filters)


class _Nothing(InputPartition):
    """What the task of an empty plan reads."""

    def __init__(self) -> None:
        super().__init__(None)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream's reader."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema
        self._opened: Stream | None = None

    @property
    def _stream(self) -> Stream:
        if self._opened is None:
            cluster = cluster_at(self._options.place)
            self._opened = Stream(cluster, self._options, cluster.journal)
        return self._opened

    def initialOffset(self) -> dict[str, Any]:
        return self._stream.initial()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return self._stream.next_end(start, everything=isinstance(limit, ReadAllAvailable))

    def getDefaultReadLimit(self) -> ReadLimit:
        """One of the limits; `latestOffset` keeps both."""
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any]:
        return self._stream.newest()

    def prepareForTriggerAvailableNow(self) -> None:
        self._stream.stop_at_newest()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return self._stream.slices(start, end)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_slice(self._options, self._schema, partition, None)


@dataclass(frozen=True, slots=True)
class _Task:
    """Which task this is: its number, and of a micro-batch the query's id and the batch's number."""

    number: int = 0
    query_id: str = ""
    batch_id: int | None = None

    @classmethod
    def now(cls) -> _Task:
        context = TaskContext.get()
        if context is None:
            return cls()
        query_id, batch_id = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        return cls(context.partitionId(), query_id or "", None if batch_id is None else int(batch_id))


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What a task tells the driver: the objects that it wrote, and of a micro-batch the query."""

    objects: list[StagedObject]
    query_id: str = ""


def stage(options: WriteOptions, rows: Iterable[pa.RecordBatch], task: _Task, pool: Executor) -> Staged:
    """Do a task's work."""
    turn = options.batch_id if options.batch_id is not None else task.batch_id
    stager = Stager(
        cluster_at(options.place),
        options.topic,
        pool,
        turn=turn,
        first=task.number,
        object_bytes=options.object_bytes,
    )
    return Staged(stager.run(rows), task.query_id)


def _objects(messages: Sequence[WriterCommitMessage | None]) -> list[StagedObject]:
    return [o for m in messages if isinstance(m, Staged) for o in m.objects]


def _told_abort(messages: Sequence[WriterCommitMessage | None]) -> None:
    n = len(_objects(messages))
    _log.warning("a write was aborted: %d L0 objects that it staged are left for the sweep", n)


class BatchWriter(DataSourceArrowWriter):
    """A batch's writer."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> Staged:
        with ThreadPoolExecutor(_PACKERS, "pack") as pool:
            task = _Task(TaskContext.get().partitionId()) if TaskContext.get() is not None else _Task()  # type: ignore[union-attr]  # looked at just before
            return stage(self._options, iterator, task, pool)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        o = self._options
        batch = None
        if o.producer is not None and o.batch_id is not None:
            batch = BatchId(o.producer, o.producer, o.batch_id)
        commit(cluster_at(o.place), _objects(messages), batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _told_abort(messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """A stream's writer. A query is a producer, by its id in the checkpoint, which a restart keeps."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> Staged:
        with ThreadPoolExecutor(_PACKERS, "pack") as pool:
            return stage(self._options, iterator, _Task.now(), pool)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        committed(self._options, messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _told_abort(messages)


def committed(options: WriteOptions, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> Committed:
    """Commit a micro-batch."""
    objects = _objects(messages)
    ids = {m.query_id for m in messages if isinstance(m, Staged)}
    if not objects:
        return Committed()
    if len(ids) != 1 or "" in ids:
        raise UsageError(
            "Spark did not tell the tasks which query they are of, so that a batch could not be known again"
        )
    query = ids.pop()
    return commit(cluster_at(options.place), objects, BatchId(options.producer or f"spark-{query}", query, batch_id))
