"""What Spark calls to read: readers of a batch and of a stream, which plan on the driver and read slices in tasks.

Spark makes them on the driver, in a separate Python process, and sends them to the tasks. So they hold where the bucket is
and what is wanted, and connect where they are.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from l0gc.errors import L0gcError, OffsetOutOfRangeError, PartitionClosedError
from l0gc.events import event
from l0gc.integrations.spark.options import ReadOptions
from l0gc.integrations.spark.plan import Planner, Slice, split
from l0gc.integrations.spark.stream import Stream
from l0gc.spark.handles import CORES, cluster_at, leave_out_of_collections
from l0gc.storage.parallel import Parallel
from l0gc.streamlog.offset_reader import OffsetReader, as_rows
from l0gc.streamlog.pins import pin_for_reader, while_pinned

_log: Final = logging.getLogger(__name__)
_THREADS: Final = 4
"""How many objects a task fetches at once."""
_BATCH_ROWS: Final = 1 << 14
"""Java allocates memory for each batch, and keeps it for the next one up to some megabytes."""


def read_slice(options: ReadOptions, schema: StructType, wanted: InputPartition) -> Iterator[Any]:
    if not isinstance(wanted, Slice):
        return  # the task that Spark makes of a plan without slices
    cluster, columns = cluster_at(options.place), to_arrow_schema(schema, timezone="UTC")
    journal = cluster.journal_as_of(wanted.journal, wanted.as_of) if wanted.pin else cluster.journal(wanted.journal)
    pinned = while_pinned(cluster, wanted.pin, "call load() again") if wanted.pin else nullcontext()
    with pinned, Parallel(_THREADS, "fetch", cores=1) as parallel:
        journal.catch_up()
        reader = OffsetReader(
            cluster,
            journal,
            wanted.topic,
            wanted.ranges(),
            functools.partial(_on_deleted, wanted.topic.name, options.fail_on_data_loss),
            names=columns.names,
            parallel=parallel,
            without_holes="option failOnDataLoss=false" if options.fail_on_data_loss else "",
        )
        try:
            for piece in reader.read():
                batch = as_rows(wanted.topic, piece, columns)
                for first in range(0, batch.num_rows, _BATCH_ROWS):
                    yield batch.slice(first, _BATCH_ROWS)
        except PartitionClosedError as e:
            if options.fail_on_data_loss:
                raise
            _log.warning("%s; what was left of it is left out", e, extra=event("data_loss"))
    if TaskContext.get() is not None:  # a worker, which is used again
        leave_out_of_collections()
    counters = asdict(reader.counters)
    _log.info("read a slice of topic %r: %s", wanted.topic.name, counters, extra=event("slice_read", **counters))


def _on_deleted(
    topic: str, fail_on_data_loss: bool, partition: int, offset: int, end: int, log_start: int, *, begun: bool
) -> None:
    span = f"records {offset} to {min(log_start, end) - 1} of partition {topic}/{partition}"
    message = f"{span} were deleted before they were read"
    if fail_on_data_loss:
        raise OffsetOutOfRangeError(f"{message}; with option failOnDataLoss=false they are left out")
    _log.warning("%s; they are left out", message, extra=event("data_loss"))


class BatchReader(DataSourceReader):
    """A batch's reader. A query's filters are left to Spark, which in 4.3 gives one query the plan made with another's."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema

    def partitions(self) -> Sequence[InputPartition]:
        o = self._options
        cluster = cluster_at(o.place)
        if o.pin_ms is None:
            parts = Planner(cluster, o, cluster.passing_journal).batch()
            if CORES in os.environ:  # a process of Spark's, which plans again
                leave_out_of_collections()
            return split(parts, o.min_partitions, o.cores)
        pin = pin_for_reader(cluster, f"{', '.join(o.topics) or o.pattern} on Spark", o.pin_ms)
        ends = dict(pin.ends or ())
        planner = Planner(cluster, o, lambda journal: cluster.journal_as_of(journal, ends.get(journal, -1)))
        slices = split(planner.batch(), o.min_partitions, o.cores)
        return [replace(s, pin=pin.name, as_of=ends.get(s.journal, -1)) for s in slices]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_slice(self._options, self._schema, partition)


class RefusingStreamReader(DataSourceStreamReader):
    """Says what is wrong with a stream's options as soon as Spark asks for something. Where `streamReader` raises it itself,
    Spark 4.3 reports an error of its own cleaning up instead."""

    def __init__(self, error: L0gcError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:
        raise self._error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[Any]:
        raise self._error


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema

    @functools.cached_property
    def _stream(self) -> Stream:
        return Stream(cluster_at(self._options.place), self._options)

    def initialOffset(self) -> dict[str, Any]:
        return self._stream.initial()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return self._stream.next_end(start, everything=isinstance(limit, ReadAllAvailable))

    def getDefaultReadLimit(self) -> ReadLimit:
        """One of the limits; `latestOffset` keeps all of them."""
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        if self._options.min_offsets is not None:
            return ReadMinRows(self._options.min_offsets)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any]:
        return self._stream.newest()

    def prepareForTriggerAvailableNow(self) -> None:
        self._stream.stop_at_newest()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return self._stream.slices(start, end)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_slice(self._options, self._schema, partition)
