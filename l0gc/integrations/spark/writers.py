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
from l0gc.integrations.spark.commit import BatchId, commit
from l0gc.integrations.spark.options import WriteOptions
from l0gc.integrations.spark.stage import StagedObject, Stager
from l0gc.spark.handles import cluster_at
from l0gc.streamlog.cluster import Handles
from l0gc.streamlog.ingest.result import UploadResult

if TYPE_CHECKING:
    import pyarrow as pa

_log: Final = logging.getLogger(__name__)
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
"""The local properties that a micro-batch's tasks have; the id is kept in the query's checkpoint, whichever driver runs."""
_PACKERS: Final = 2


def _this_task() -> tuple[int, str, int | None]:
    """Which task this is: its number, and of a micro-batch the query's id and the batch's number."""
    context = TaskContext.get()
    if context is None:
        return 0, "", None
    query_id, batch_id = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
    return context.partitionId(), query_id or "", None if batch_id is None else int(batch_id)


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """A task's message to the driver: the objects that it wrote, and for a micro-batch the query."""

    objects: list[StagedObject]
    query_id: str = ""


Messages = Sequence[WriterCommitMessage | None]


class _Writer:
    """What a batch's writer and a stream's do alike."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def _stage(self, rows: Iterable[pa.RecordBatch], number: int, turn: int | None, query_id: str = "") -> Staged:
        o = self._options
        with ThreadPoolExecutor(_PACKERS, "pack") as pool:
            stager = Stager(cluster_at(o.place), o.topic, pool, turn=turn, first=number, object_bytes=o.object_bytes)
            return Staged(stager.run(rows), query_id)

    def abort(self, messages: Messages, batchId: int | None = None) -> None:
        n = len(_objects(messages))
        _log.warning("a write was aborted: %d L0 objects that it staged are left for the sweep", n)


def _objects(messages: Messages) -> list[StagedObject]:
    return [o for m in messages if isinstance(m, Staged) for o in m.objects]


class BatchWriter(_Writer, DataSourceArrowWriter):
    """A batch's writer."""

    def write(self, iterator: Iterator[Any]) -> Staged:
        # In foreachBatch the task has a query's id and number, which are not those of this batch.
        return self._stage(iterator, _this_task()[0], self._options.batch_id)

    def commit(self, messages: Messages) -> None:
        o, objects = self._options, _objects(messages)
        batch = None
        if o.producer is not None and o.batch_id is not None:
            # Several writes may have one id, each for its own topics: only one without rows is asked about the option's.
            batch = BatchId(o.producer, o.producer, o.batch_id, None if objects else o.topic)
        commit(cluster_at(o.place), objects, batch)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """A stream's writer. A query is a producer, by its id in the checkpoint, which a restart keeps."""

    def write(self, iterator: Iterator[Any]) -> Staged:
        number, query_id, batch_id = _this_task()
        return self._stage(iterator, number, batch_id, query_id)

    def commit(self, messages: Messages, batchId: int) -> None:
        committed(cluster_at(self._options.place), self._options, messages, batchId)


def committed(cluster: Handles, options: WriteOptions, messages: Messages, batch_id: int) -> UploadResult:
    """Commit a micro-batch, of the producer in the options or else of its query."""
    ids = {m.query_id for m in messages if isinstance(m, Staged)}
    if not ids:
        return UploadResult()
    if len(ids) != 1 or "" in ids:
        raise UsageError("Spark did not name the tasks' query, so a repeated batch could not be recognised")
    query = ids.pop()
    producer = options.producer or f"spark-{query}"
    return commit(cluster, _objects(messages), BatchId(producer, query, batch_id, options.topic, options.topic is None))
