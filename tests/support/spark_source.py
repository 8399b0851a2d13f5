"""Runs `format("l0gc")` without Spark: its readers and writers work on a cluster in memory, task after task in this
process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self
from unittest import mock

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from l0gc.integrations.spark import readers, sink
from l0gc.integrations.spark.options import write_options
from l0gc.integrations.spark.readers import BatchReader, RefusingStreamReader, StreamReader
from l0gc.integrations.spark.sink import TaskCommit
from l0gc.integrations.spark.source import SCHEMA, WRITTEN, L0gcDataSource
from l0gc.storage.parallel import InlineExecutor, Parallel
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.ingest.result import UploadResult
from l0gc.streamlog.journal.handle import JournalHandle

URL = "s3://bucket/prefix"
Rows = Mapping[str, Sequence[Any]]
"""Rows to write, by column."""
_HEADERS = to_arrow_schema(WRITTEN, timezone="UTC").field("headers").type
Row = tuple[int, int, bytes]
"""Partition, offset and value."""


class _Pool(InlineExecutor):
    """Replaces threads, so that a test can replay the order of store calls."""

    def __init__(self, *args: object) -> None:
        super().__init__()

    def __enter__(self) -> Self:
        return self


@contextmanager
def on(cluster: ClusterHandles) -> Iterator[None]:
    """Let readers and writers made inside the block work on this cluster, as the driver and as an executor."""
    with (
        mock.patch.object(readers, "cluster_at", return_value=cluster),
        mock.patch.object(sink, "cluster_at", return_value=cluster),
        mock.patch.object(readers, "Parallel", return_value=Parallel()),
        mock.patch.object(sink, "ThreadPoolExecutor", _Pool),
    ):
        yield


def data_source(**options: str) -> L0gcDataSource:
    return L0gcDataSource({"url": URL, **options})


def batch_reader(schema: StructType = SCHEMA, /, **options: str) -> BatchReader:
    return data_source(**options).reader(schema)


def stream_reader(**options: str) -> StreamReader:
    reader = data_source(**options).streamReader(SCHEMA)
    if isinstance(reader, RefusingStreamReader):
        reader.initialOffset()
    assert isinstance(reader, StreamReader)
    return reader


def table(reader: BatchReader | StreamReader, partitions: Sequence[InputPartition]) -> pa.Table:
    """Return what the tasks of these partitions read, one after another."""
    schema = to_arrow_schema(SCHEMA, timezone="UTC")
    batches = [b for p in partitions for b in reader.read(p)]
    return pa.Table.from_batches(batches, batches[0].schema if batches else schema)


def rows_of(found: pa.Table) -> list[Row]:
    """Return partition, offset and value of each record."""
    columns = [found.column(name).to_pylist() for name in ("partition", "offset", "value")]
    return list(zip(*columns, strict=True))


def read(cluster: ClusterHandles, /, **options: str) -> list[Row]:
    """Read a whole batch."""
    with on(cluster):
        reader = batch_reader(**options)
        return rows_of(table(reader, reader.partitions()))


def arrow(rows: Rows) -> pa.RecordBatch:
    """Return rows to write in the form in which Spark passes them."""
    times = dict.fromkeys(("create_time", "timestamp"), pa.timestamp("us", tz="UTC"))
    types = {"partition": pa.int32(), "topic": pa.string(), "headers": _HEADERS, **times}
    arrays = [pa.array(list(values), types.get(name, pa.binary())) for name, values in rows.items()]
    return pa.RecordBatch.from_arrays(arrays, names=list(rows))


def columns_of(rows: Rows) -> StructType:
    """Return the schema of these rows in Spark."""
    found = StructType()
    for name in rows:
        kinds = {"partition": "integer", "topic": "string", "create_time": "timestamp", "timestamp": "timestamp"}
        found = found.add(name, WRITTEN["headers"].dataType if name == "headers" else kinds.get(name, "binary"))
    return found


def write_batch(cluster: ClusterHandles, *tasks: Rows, **options: str) -> None:
    """Write a batch with one task for each argument."""
    with on(cluster):
        writer = data_source(**options).writer(columns_of(tasks[0]), False)
        writer.commit([writer.write(iter([arrow(t)])) for t in tasks])


def staged(cluster: ClusterHandles, rows: Rows, batch: int, query: str = "q", **options: str) -> TaskCommit:
    """Return what a task of a micro-batch reports to the driver."""
    with on(cluster), mock.patch.object(sink, "_this_task", return_value=(0, query, batch)):
        writer = data_source(**options).streamWriter(columns_of(rows), False)
        return writer.write(iter([arrow(rows)]))


def commit(cluster: ClusterHandles, messages: Sequence[TaskCommit | None], batch: int, **options: str) -> UploadResult:
    """Commit a micro-batch as a new driver does; unlike `on`, this also works on several threads."""
    chosen = write_options({"url": URL, "topic": "events", **options}, topic_column=True, streaming=True)
    return sink.committed(cluster, chosen, messages, batch)


@contextmanager
def overtaken_by(other: Callable[[], object]) -> Iterator[None]:
    """Do `other` before the first append to a journal."""
    append, waiting = JournalHandle.append, [other]

    def late(handle: JournalHandle, objects: object) -> object:
        if waiting:
            waiting.pop()()
        return append(handle, objects)  # type: ignore[arg-type]  # what it was called with

    with mock.patch.object(JournalHandle, "append", late):
        yield
    assert not waiting
