"""Spark's readers for a batch and for a stream, which plan on the driver and read slices in tasks.

Spark creates them on the driver, in a separate Python process, and sends them to the tasks. Therefore they contain the
bucket's address and the options, and connect where they run.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, replace
from typing import Any, Final

import msgspec
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructField, StructType

from l0gc.errors import L0gcError, OffsetOutOfRangeError, PartitionClosedError, UsageError
from l0gc.events import event
from l0gc.integrations.spark.options import ReadOptions, read_options
from l0gc.integrations.spark.plan import Planner, Slice, check_kept, split
from l0gc.integrations.spark.stream import Stream
from l0gc.spark.handles import CORES, cluster_at, leave_out_of_collections
from l0gc.storage.parallel import Parallel
from l0gc.streamlog.controller.state import ALL_TOPICS
from l0gc.streamlog.offset_reader import OffsetReader, as_rows
from l0gc.streamlog.pins import leased_for_reader, while_pinned
from l0gc.streamlog.reader import schema_of
from l0gc.streamlog.values.parse import is_typed

_log: Final = logging.getLogger(__name__)
_THREADS: Final = 4
"""The number of objects that a task fetches at once."""
_BATCH_ROWS: Final = 1 << 14
"""The rows of a batch. Java allocates memory for each batch, and keeps some megabytes of it for the next."""


def typed_columns(options: ReadOptions) -> list[StructField]:
    """Return the columns of the topic's value schema, now or as of the pin; empty if it has no schema.

    Raises:
        UsageError: there are several topics.
    """
    cluster = cluster_at(options.address)
    pin = None if options.pin is None else cluster.controller.snapshot().pin(options.pin)
    topics = Planner(cluster, options, cluster.passing_journal, pin).topics()
    if len(topics) != 1:
        raise UsageError(
            f"the options name {len(topics)} topics, and a value schema is of one: read one topic alone for its columns"
        )
    return [StructField(f.name, from_arrow_type(f.type)) for f in schema_of(topics[0]) if is_typed(f)]


def read_slice(options: ReadOptions, schema: StructType, partition: InputPartition) -> Iterator[Any]:
    if not isinstance(partition, Slice):
        return  # Spark runs this task for a plan without slices
    cluster, columns = cluster_at(options.address), to_arrow_schema(schema, timezone="UTC")
    pin, number = partition.pin, partition.journal
    journal = cluster.journal(number) if pin is None else cluster.journal_as_of(number, pin.end(number))
    kept = nullcontext() if pin is None else while_pinned(cluster, pin, "pin again, and load")
    with kept, Parallel(_THREADS, "fetch", cores=1) as parallel:
        journal.catch_up()
        reader = OffsetReader(
            cluster,
            journal,
            partition.topic,
            partition.ranges(),
            functools.partial(_on_deleted, partition.topic.name, options.fail_on_data_loss),
            names=columns.names,
            parallel=parallel,
            without_holes="option failOnDataLoss=false" if options.fail_on_data_loss else "",
        )
        try:
            for piece in reader.read():
                batch = as_rows(partition.topic, piece, columns)
                for first in range(0, batch.num_rows, _BATCH_ROWS):
                    yield batch.slice(first, _BATCH_ROWS)
        except PartitionClosedError as e:
            if options.fail_on_data_loss:
                raise
            _log.warning("%s; its remaining records are left out", e, extra=event("data_loss"))
    if TaskContext.get() is not None:  # this is a worker, which will be used again
        leave_out_of_collections()
    counters = asdict(reader.counters)
    _log.info("read a slice of topic %r: %s", partition.topic.name, counters, extra=event("slice_read", **counters))


def _on_deleted(
    topic: str, fail_on_data_loss: bool, partition: int, offset: int, end: int, log_start: int, *, begun: bool
) -> None:
    span = f"records {offset} to {min(log_start, end) - 1} of partition {topic}/{partition}"
    message = f"{span} were deleted before they were read"
    if fail_on_data_loss:
        raise OffsetOutOfRangeError(f"{message}; with option failOnDataLoss=false they are left out")
    _log.warning("%s; they are left out", message, extra=event("data_loss"))


class BatchReader(DataSourceReader):
    """Reads a batch. Spark applies the query's filters itself, since Spark 4.3 may reuse the plan of a query with other
    filters.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema

    def partitions(self) -> Sequence[InputPartition]:
        o = self._options
        cluster = cluster_at(o.address)
        pin = None if o.pin is None else cluster.controller.snapshot().pin(o.pin)
        parts = Planner(cluster, o, cluster.passing_journal, pin).batch()
        if CORES in os.environ:  # this is a process of Spark, which will plan again
            leave_out_of_collections()
        slices = split(parts, o.min_partitions, o.cores)
        if pin is None:
            return slices
        check_kept(pin, parts)
        ends = {s.journal: [(s.journal, pin.end(s.journal))] for s in slices}
        return [replace(s, pin=msgspec.structs.replace(pin, ends=ends[s.journal])) for s in slices]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_slice(self._options, self._schema, partition)


@contextmanager
def with_pin(given: Mapping[str, object]) -> Iterator[dict[str, str]]:
    """Lease a pin for a batch with these options, of L1 only if that is enough, and yield the options with the pin."""
    named = {name: str(value) for name, value in given.items()}
    o = read_options(named, streaming=False)
    cluster, reader = cluster_at(o.address), f"{', '.join(o.topics) or o.pattern} on Spark"
    topic = cluster.controller.snapshot().topic(o.topics[0]).revision if len(o.topics) == 1 else ALL_TOPICS
    with ExitStack() as pins:
        pin = pins.enter_context(leased_for_reader(lambda: cluster, reader, topic, level_one=True))
        if any(part.reads_l0 for part in Planner(cluster, o, cluster.passing_journal, pin).batch()):
            pins.close()
            pin = pins.enter_context(leased_for_reader(lambda: cluster, reader, topic))
        yield {**named, "pin": pin.name}


class RefusingStreamReader(DataSourceStreamReader):
    """Raises the error of a stream's options when Spark first calls it. If `streamReader` raised it, Spark 4.3 would
    report a failure of its own cleanup instead.
    """

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
        return Stream(cluster_at(self._options.address), self._options)

    def initialOffset(self) -> dict[str, Any]:
        return self._stream.initial()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return self._stream.next_end(start, everything=isinstance(limit, ReadAllAvailable))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return one of the limits. `latestOffset` applies all of them."""
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
