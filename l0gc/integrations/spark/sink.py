"""Spark's writers: tasks stage objects (`stage.py`), and the driver lands each batch once in the journals.

Like the readers (`readers.py`), the writers are sent to the tasks, and connect where they run.

**One entry.** A batch's part for one topic in one journal is offered as one request at one epoch, which the journal
accepts with one entry, whole or not at all. Therefore, if a driver dies, each journal has all of its part or nothing,
and the next driver finds out which. If a tick occurs during a micro-batch, its objects have two epochs, and those of
the older epoch are first written again at the newer one.

**Once.** A query is a producer, and its input is the sequence of its micro-batches. Each object records where it begins
and ends in that sequence, and a journal accepts it only if the journal has reached that position at the very offset at
which the object lands. Therefore a batch lands once, even if a query has two drivers, or if the batch is replayed in
other objects. A driver continues the producer's run: it does not need to fence the previous driver, and a new run would
be an entry of the controller, and thus a new epoch for the whole cluster.

**The same rows** (hazard 30). A number alone does not identify a batch: a query that continues with an older or
incomplete checkpoint gives the number of a landed batch to other rows. Skipping these rows would lose them, and landing
them would repeat others. Therefore a journal stores, with the number, the row count and the digest of the whole batch
(`stage.py`). The same number with the same rows has landed; with other rows, it is an error. A number below the newest
is also an error, since Spark replays only the last batch. Partitions are not compared, since a replay may choose
others. It must not do so while some journals lack their part, or one row would land twice and another never. Therefore
a journal also stores how many destinations (topics in journals) the batch's rows had, and a digest of the rows'
destinations.

**Staged and not appended.** A staged object does not hold M back. If the window has moved past its epoch, the journal
refuses it; the staged content is then written again at a fresh epoch and offered again. If the object was swept before
that, the batch fails without a part in that journal, and can be replayed. Safety relies on admission: a journal admits
no epoch that M may have passed.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from l0gc.errors import (
    BatchMismatchError,
    CorruptObjectError,
    InputPositionMovedError,
    InvalidProducerEpochError,
    ProtocolError,
    StoreError,
    UnknownProducerError,
    UsageError,
)
from l0gc.events import event
from l0gc.formatting import count
from l0gc.integrations.spark.options import WriteOptions
from l0gc.integrations.spark.stage import Stager
from l0gc.limits import ENTRY_LIMIT
from l0gc.spark.handles import cluster_at
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import Producer
from l0gc.streamlog.ingest.extents import PackedPart
from l0gc.streamlog.ingest.landing import Appender, Landing, WrittenObject
from l0gc.streamlog.ingest.result import UploadResult
from l0gc.streamlog.journal.admission import RECORDS_LIMIT
from l0gc.streamlog.journal.handle import AppendResult, JournalHandle
from l0gc.streamlog.journal.producers import InputProgress, InputSpan, ProducerBatch, landed_of, progress_of
from l0gc.streamlog.producers import is_due, run_ahead
from l0gc.watermark.publication import refuse_if_set_back

if TYPE_CHECKING:
    import pyarrow as pa

_log: Final = logging.getLogger(__name__)
_OBJECT_BYTES: Final = 256
"""The bytes of an object in an entry, without its extents."""
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
"""The local properties of a micro-batch's tasks. The query's id is stored in its checkpoint, so it does not depend on
the driver.
"""
_PACKERS: Final = 2
OBJECT_BITS: Final = 24
"""The number of bits below a batch's number in a producer's position, for the numbers of the batch's objects."""
_REMEDY: Final = (
    "restore the newest checkpoint, or start the query with a new one (with batchId also a new producerName) after the last "
    "row that landed, see l0gc help spark"
)


@dataclass(frozen=True, slots=True)
class BatchId:
    """The identity of a batch: the number `number` in the sequence `name` of the producer `producer`.

    Attributes:
        topic: the topic of all rows.
        any_topic: whether each row names its topic, so that a batch with this number may have had rows for any topic.
    """

    producer: str
    name: str
    number: int
    topic: str | None = None
    any_topic: bool = False

    def input_of(self, revision: int) -> str:
        """Return the name of the input that the producer's batches form in the topic with this revision."""
        return f"{self.name}/{revision}"


@dataclass(frozen=True, slots=True)
class BatchRows:
    """The number of a batch's rows, and their digest.

    Attributes:
        destinations: the number of topics' journals that get rows, and a digest of the rows' destinations.
    """

    count: int
    digest: str
    destinations: str

    @classmethod
    def of(cls, objects: Sequence[WrittenObject]) -> BatchRows:
        """Return the row count and the digests of objects that have not landed."""
        parts: Counter[tuple[int, int]] = Counter()
        for o in objects:
            for journal, part in o.left.items():
                parts[journal, part.extents.revision] += o.digests[journal]
        records = sum(part.records for o in objects for part in o.left.values())
        placed = hashlib.sha256(repr([(at, n % (1 << 64)) for at, n in sorted(parts.items())]).encode()).hexdigest()
        return cls(records, f"{parts.total() % (1 << 64):016x}", f"{len(parts)}/{placed[:16]}")

    def __str__(self) -> str:
        return f"{count(self.count, 'row')} (digest {self.digest})"


def landed_rows(batch: BatchId, rows: BatchRows, journal: int, progress: InputProgress | None) -> BatchRows | None:
    """Return the landed batch with these rows, possibly with other destinations, if the journal has its part of it;
    otherwise None.

    Args:
        progress: the position of the batch's input in the journal.

    Raises:
        BatchMismatchError: other rows have landed under the batch's number, or a later batch has.
        ProtocolError: a part of the batch has landed.
    """
    if progress is None:
        return None
    newest, objects = (progress.landed >> OBJECT_BITS) - 1, progress.landed & ((1 << OBJECT_BITS) - 1)
    if objects and newest + 1 == batch.number:
        raise ProtocolError(
            f"a part of batch {batch.number} of producer {batch.producer!r} has landed in journal {journal}, "
            "which takes batches whole: something else writes under this producer's name"
        )
    if newest < batch.number:
        return None
    digest, _, destinations = progress.digest.partition("/")
    landed = BatchRows(progress.rows, digest, destinations)
    if newest > batch.number:
        raise BatchMismatchError(
            f"batch {batch.number} of producer {batch.producer!r}, with {rows}, is older than batch {newest}, which landed "
            f"in journal {journal} with {landed}: the query's checkpoint went back, or another driver runs it; {_REMEDY}"
        )
    if (landed.count, landed.digest) != (rows.count, rows.digest):
        raise BatchMismatchError(
            f"batch {batch.number} of producer {batch.producer!r} landed in journal {journal} with {landed}, and comes "
            f"again with {rows}: the query's checkpoint went back, or the query gives other rows when it is repeated; "
            f"{_REMEDY}"
        )
    return landed


def _moved(batch: BatchId) -> BatchMismatchError:
    return BatchMismatchError(
        f"a part of batch {batch.number} of producer {batch.producer!r} has landed, and its rows come again for other "
        f"journals of the topic: have the column partition follow from the row; {_REMEDY}"
    )


def refuse_other_rows(
    cluster: ClusterHandles, batch: BatchId, rows: BatchRows, topics: Iterable[str]
) -> set[tuple[int, int]]:
    """Refuse a batch if a journal has a different batch with its number.

    All journals of the batch's topics are checked before any of them gets a part, since the different rows may all be
    for journals that had no part of the batch. For a stream whose rows name their topics, every journal in use is
    checked; those of other topics are read once per process. A journal is checked again when its part lands, since two
    drivers may commit at once.

    Args:
        topics: the topics for which the batch has rows.

    Returns:
        The journals, each with a topic's revision, that already have their part of the batch.

    Raises:
        BatchMismatchError, ProtocolError: see `landed_rows`. These errors also mean that a part has landed and the rows
            now have other destinations. No part of the batch was offered to a journal.
        CorruptObjectError: a journal of one of its topics cannot be read.
    """
    named = {*topics, batch.topic}
    all_topics = cluster.controller.snapshot().topics.values()
    asked = [t for t in all_topics if batch.any_topic or t.name in named]
    fresh = {j for t in asked if t.name in named for j in t.journals}
    landed: dict[tuple[int, int], BatchRows] = {}

    def ask(journal: int) -> None:
        handle = cluster.journal(journal)
        try:
            if journal in fresh:
                handle.catch_up(whole=False)
            for topic in asked:
                if journal in topic.journals:
                    progress = progress_of(handle.head.producers, batch.input_of(topic.revision))
                    if (rows_landed := landed_rows(batch, rows, journal, progress)) is not None:
                        landed[journal, topic.revision] = rows_landed
        except CorruptObjectError as e:
            if journal in fresh:
                raise
            _log.warning("whether journal %d has other rows of batch %d is not known: %s", journal, batch.number, e)

    cluster.parallel.map(ask, sorted({j for t in asked for j in t.journals}))
    destinations = {part.destinations for part in landed.values()}
    if destinations <= {rows.destinations}:
        return set(landed)
    if len(destinations) > 1 or len(landed) < int(destinations.pop().partition("/")[0]):
        raise _moved(batch)
    return {
        (j, t.revision) for t in asked for j in t.journals
    }  # the whole batch has landed, whatever the destinations of its rows were


def commit(cluster: ClusterHandles, staged: Iterable[WrittenObject], batch: BatchId | None = None) -> UploadResult:
    """Land a batch's objects, in order in each partition.

    Args:
        batch: the batch's identity. Without it, a repeated commit lands the objects again.

    Raises:
        BatchMismatchError: other rows have landed under the batch's number, or a later batch has.
        EpochRegressionError: the published epoch is above the cluster epoch; nothing was committed.
        SetBackError: a journal for which the batch has rows was set back; nothing was committed.
        UsageError: the batch is too large for an entry.
        L0gcError: see `Landing.land`. With a batch's identity, it is safe to commit the batch again.
    """
    objects = [replace(o, left=dict(o.left)) for o in staged]
    rows = BatchRows.of(objects)
    refuse_if_set_back(cluster, {journal for o in objects for journal in o.left})
    landing = Landing(cluster, Appender() if batch is None else _BatchAppender(cluster, batch, rows))
    if batch is not None:
        landed = refuse_other_rows(cluster, batch, rows, {o.topic for o in objects})
        for o in objects:
            for journal in landed.intersection((j, p.extents.revision) for j, p in o.left.items()):
                landing.result.skipped += o.left.pop(journal[0]).records
        _check_size(objects)
    landing.land(o for o in objects if o.left)
    with suppress(StoreError, ProtocolError):  # the batch has landed, and the next process will tick
        cluster.controller.tick_if_due()
    result = landing.result
    counters = {"records": result.records, "skipped": result.skipped, "restamped": result.retries}
    _log.info("committed a batch: %s", counters, extra=event("batch_committed", **counters))
    return result


def _check_size(objects: Iterable[WrittenObject]) -> None:
    """Raise `UsageError` if the part for one topic in a journal is too large for one entry."""
    offered: dict[tuple[str, int], list[PackedPart]] = {}
    for o in objects:
        for journal, part in o.left.items():
            offered.setdefault((o.topic, journal), []).append(part)
    for (topic, _), parts in offered.items():
        size = sum(
            _OBJECT_BYTES + len(e.blocks) + len(e.partitions) + len(e.records) for e in (p.extents for p in parts)
        )
        records = sum(p.records for p in parts)
        if size > ENTRY_LIMIT // 2 or records > RECORDS_LIMIT or len(parts) >> OBJECT_BITS:
            raise UsageError(
                f"a batch of {records:,} records in {len(parts):,} objects for topic {topic!r} is too large to be committed "
                "with one entry: write smaller ones (maxOffsetsPerTrigger), or larger objects"
            )


class _BatchAppender(Appender):
    """Offers a batch's part for one topic in one journal as the next objects of its producer."""

    one_epoch = True
    retried = (InputPositionMovedError, InvalidProducerEpochError, UnknownProducerError)
    """The errors of a journal if another driver of the query was first. The journal's state is then read again."""

    def __init__(self, cluster: ClusterHandles, batch: BatchId, rows: BatchRows) -> None:
        self._cluster, self._batch, self._rows = cluster, batch, rows

    def append(self, journal: JournalHandle, objects: Sequence[WrittenObject]) -> AppendResult | None:
        number, batch = journal.journal, self._batch
        input_id = batch.input_of(objects[0].left[number].extents.revision)

        def is_there() -> bool:
            journal.catch_up(whole=False)
            landed = landed_rows(batch, self._rows, number, progress_of(journal.head.producers, input_id))
            if landed is not None and landed.destinations != self._rows.destinations:
                raise _moved(batch)
            return landed is not None

        if is_there():
            return None
        producer = self._producer(journal)
        state = journal.head.producers.get(producer.producer_id)
        same = state is not None and (state.epoch, state.run) == (producer.epoch, producer.run)
        first = state.next_sequence if state is not None and same else 0
        begin = batch.number << OBJECT_BITS
        ends = [begin + n for n in range(1, len(objects))] + [(batch.number + 1) << OBJECT_BITS]
        starts = [landed_of(journal.head.producers, producer.producer_id, input_id), *ends]
        identity = producer.producer_id, producer.epoch, producer.run
        digest = f"{self._rows.digest}/{self._rows.destinations}"
        offers = []
        for sequence, (o, start, end) in enumerate(zip(objects, starts, ends, strict=False), first):
            span = InputSpan(input_id, start, end, self._rows.count, digest)
            offers.append(o.placeholder(number, ProducerBatch(*identity, sequence, [span])))
        appended = journal.append(offers)
        if any(o.bases is None for o in appended.landed) and not is_there():
            # For a recorded sequence, the journal returns where it landed. It may belong to another query of the same
            # producer, so only the input counts.
            return AppendResult(error=InvalidProducerEpochError("another batch of its producer came first"))
        return appended

    def _producer(self, journal: JournalHandle) -> Producer:
        """Return the producer's run, which a driver continues. A new run begins if it is missing or old, or if the
        journal, as of its last replay, refuses it.
        """
        name, controller = self._batch.producer, self._cluster.controller
        state = controller.snapshot().producers.get(name)
        if state is None or is_due(self._cluster, state):
            state = controller.init_producer(name)
        return run_ahead(self._cluster, name, state, [journal])


def _this_task() -> tuple[int, str, int | None]:
    """Return this task's number and, in a micro-batch, the query's id and the batch's number."""
    context = TaskContext.get()
    if context is None:
        return 0, "", None
    query_id, batch_id = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
    return context.partitionId(), query_id or "", None if batch_id is None else int(batch_id)


@dataclass(frozen=True)
class TaskCommit(WriterCommitMessage):
    """A task's message to the driver: the objects that it wrote and, in a micro-batch, the query."""

    objects: list[WrittenObject]
    query_id: str = ""


Messages = Sequence[WriterCommitMessage | None]


class _Writer:
    """The common part of a batch's writer and a stream's writer."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def _stage(self, rows: Iterable[pa.RecordBatch], number: int, turn: int | None, query_id: str = "") -> TaskCommit:
        o = self._options
        with ThreadPoolExecutor(_PACKERS, "pack") as pool:
            stager = Stager(cluster_at(o.address), o.topic, pool, turn=turn, first=number, object_bytes=o.object_bytes)
            return TaskCommit(stager.run(rows), query_id)

    def abort(self, messages: Messages, batchId: int | None = None) -> None:
        n = len(_objects(messages))
        _log.warning("a write was aborted: %d L0 objects that it staged are left for the sweep", n)


def _objects(messages: Messages) -> list[WrittenObject]:
    return [o for m in messages if isinstance(m, TaskCommit) for o in m.objects]


class BatchWriter(_Writer, DataSourceArrowWriter):
    def write(self, iterator: Iterator[Any]) -> TaskCommit:
        # In foreachBatch, the task has the id and number of a query, which are not those of this batch.
        return self._stage(iterator, _this_task()[0], self._options.batch_id)

    def commit(self, messages: Messages) -> None:
        o, objects = self._options, _objects(messages)
        batch = None
        if o.producer is not None and o.batch_id is not None:
            # Several writes may share an id, each for its own topics, so the option's topic counts only for a write
            # without rows.
            batch = BatchId(o.producer, o.producer, o.batch_id, None if objects else o.topic)
        commit(cluster_at(o.address), objects, batch)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes a stream. The query is a producer, named by the id in its checkpoint, which a restart keeps."""

    def write(self, iterator: Iterator[Any]) -> TaskCommit:
        number, query_id, batch_id = _this_task()
        return self._stage(iterator, number, batch_id, query_id)

    def commit(self, messages: Messages, batchId: int) -> None:
        committed(cluster_at(self._options.address), self._options, messages, batchId)


def committed(cluster: ClusterHandles, options: WriteOptions, messages: Messages, batch_id: int) -> UploadResult:
    """Commit a micro-batch of the producer that the options name, or else of its query's producer."""
    ids = {m.query_id for m in messages if isinstance(m, TaskCommit)}
    if not ids:
        return UploadResult()
    if len(ids) != 1 or "" in ids:
        raise UsageError("Spark did not name the tasks' query, so a repeated batch could not be recognised")
    query = ids.pop()
    producer = options.producer or f"spark-{query}"
    return commit(cluster, _objects(messages), BatchId(producer, query, batch_id, options.topic, options.topic is None))
