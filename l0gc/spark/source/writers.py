"""What Spark calls to write: writers of a batch and of a stream, whose tasks stage objects, which the driver commits.

As the readers (`readers.py`), they are sent to the tasks, and connect where they are.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from l0gc.errors import UsageError
from l0gc.spark.handles import cluster_at
from l0gc.spark.source.commit import SinkCommit, commit
from l0gc.spark.source.landed import BatchId
from l0gc.spark.source.options import WriteOptions
from l0gc.spark.source.stage import StagedObject, Stager
from l0gc.streamlog.cluster import Cluster

if TYPE_CHECKING:
    import pyarrow as pa

_log: Final = logging.getLogger(__name__)
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
"""The local properties that a micro-batch's tasks have; the id is kept in the query's checkpoint, whichever driver runs."""
_PACKERS: Final = 2


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
    """A task's message to the driver: the objects that it wrote, and for a micro-batch the query."""

    objects: list[StagedObject]
    query_id: str = ""


def stage(options: WriteOptions, rows: Iterable[pa.RecordBatch], task: _Task) -> Staged:
    """Do a task's work."""
    turn = options.batch_id if options.batch_id is not None else task.batch_id
    with ThreadPoolExecutor(_PACKERS, "pack") as pool:
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


def _warn_of_abort(messages: Sequence[WriterCommitMessage | None]) -> None:
    n = len(_objects(messages))
    _log.warning("a write was aborted: %d L0 objects that it staged are left for the sweep", n)


class BatchWriter(DataSourceArrowWriter):
    """A batch's writer."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> Staged:
        return stage(self._options, iterator, _Task(_Task.now().number))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        o = self._options
        batch = None
        if o.producer is not None and o.batch_id is not None:
            # Several writes may have one id, each for its own topics: only one without rows is asked about the option's.
            batch = BatchId(o.producer, o.producer, o.batch_id, None if _objects(messages) else o.topic)
        commit(cluster_at(o.place), _objects(messages), batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _warn_of_abort(messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """A stream's writer. A query is a producer, by its id in the checkpoint, which a restart keeps."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> Staged:
        return stage(self._options, iterator, _Task.now())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        committed(cluster_at(self._options.place), self._options, messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _warn_of_abort(messages)


def committed(
    cluster: Cluster, options: WriteOptions, messages: Sequence[WriterCommitMessage | None], batch_id: int
) -> SinkCommit:
    """Commit a micro-batch, of the producer in the options or else of its query."""
    objects = _objects(messages)
    ids = {m.query_id for m in messages if isinstance(m, Staged)}
    if not ids:
        return SinkCommit()
    if len(ids) != 1 or "" in ids:
        raise UsageError("Spark did not name the tasks' query, so a repeated batch could not be recognised")
    query = ids.pop()
    producer = options.producer or f"spark-{query}"
    return commit(cluster, objects, BatchId(producer, query, batch_id, options.topic, options.names_topics))
