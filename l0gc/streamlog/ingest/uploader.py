"""Upload records: they are batched over partitions into L0 objects, which land one after another (`landing.py`).

- Batches are committed in order, and nothing lands in a journal after a part that was refused, so the records of a
  partition land in the order of the input. Later batches are encoded and written in the meantime.
- Memory does not grow with the input, except for a few bytes for each object and placeholder.
- With a producer, each part records the spans of inputs that it holds, as its journal counts them. Records that landed
before are skipped. If another run of the same job lands some of them first, the inputs are read again.
- After the first error, nothing more is sent (KIP-360: if a record fails, all that follow it fail, too).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, Future
from contextlib import ExitStack
from functools import partial
from queue import SimpleQueue
from typing import Final

from l0gc.errors import (
    InputPositionMovedError,
    ProtocolError,
    UsageError,
)
from l0gc.events import event
from l0gc.operations import Upload
from l0gc.storage.parallel import WorkerThreads
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import Producer, Topic
from l0gc.streamlog.ingest.batch import Batch, BatchBuilder, JournalIndex, Position
from l0gc.streamlog.ingest.extents import pack_records
from l0gc.streamlog.ingest.inputs import RECORDS, Input, Source, open_inputs
from l0gc.streamlog.ingest.landing import Appender, Landing, RunAppender, WrittenObject, write_object
from l0gc.streamlog.ingest.placement import Partitioner, by_field, fixed_partition, in_turn, record_placer, with_times
from l0gc.streamlog.ingest.records import unpacked
from l0gc.streamlog.ingest.result import UploadResult
from l0gc.streamlog.journal.entries import ENTRY_BYTES
from l0gc.streamlog.journal.handle import JournalHandle
from l0gc.streamlog.journal.producers import landed_of
from l0gc.streamlog.producers import begin_run
from l0gc.watermark.publication import refuse_if_set_back

_log: Final = logging.getLogger(__name__)

DEFAULT_BATCH_BYTES: Final = 4 << 20
_RAW: Final = 2
"""How many batches may be waiting to be encoded or being encoded; they are in memory unpacked."""
_PACKED: Final = 32
"""How many batches may wait for their commit, so that a slow log commits many at once."""
_PACKED_BYTES: Final = 32 << 20
"""About how many bytes of records these batches may have; packed, they take a fraction of that."""
_MAX_PASSES: Final = 50
"""How many times the inputs are read before the upload gives up because another run landed some of them each time."""
_PACKERS: Final = 2
"""Threads that encode and write: one can compress while another waits for the store."""


def open_upload(
    cluster: ClusterHandles,
    topic: str,
    sources: Sequence[Source],
    stack: ExitStack,
    options: Upload = Upload(),  # noqa: B008 - it is frozen
) -> tuple[Uploader, list[Input]]:
    """Return an uploader and its inputs, for an upload from the beginning.

    Inputs are read once, for their ids, before a producer's run begins: an unreadable file must not fence the previous
    run.

    Args:
        stack: will end the threads and close the inputs.

    Raises:
        UsageError: the arguments exclude each other, or an input cannot be read.
        NotFoundError: the topic does not exist.
        EpochRegressionError: a published epoch is above the cluster epoch; nothing was written.
        SetBackError: a journal of the topic was set back; nothing was written.
    """
    partition, key_field, producer = options.partition, options.key_field, options.producer
    if partition is not None and key_field is not None:
        raise UsageError("--partition and --key-field exclude each other")
    target = target_of(cluster, topic)
    spread = in_turn(target.partitions)
    if producer is None:
        spread = in_turn(target.partitions, partial(cluster.runtime.random.randrange, target.partitions))
    if partition is not None:
        spread = fixed_partition(partition, target.partitions)
    elif key_field is not None:
        spread = by_field(key_field, target.partitions)
    if options.timestamp_field is not None:
        spread = with_times(spread, options.timestamp_field, options.timestamp_unit)
    # A journal keeps an input's progress for all of its topics: the same file in another topic is another input.
    how_spread = f"{target.topic_id} {spread.describe}" if producer is not None else None
    inputs = open_inputs(sources, how_spread, stack, options.format, options.timestamp_unit, target.value_schema)
    run = None
    if producer is not None:
        run = begin_run(cluster, producer, [cluster.journal(r.journal) for r in target.partition_ranges()])
    uploader = Uploader(
        cluster,
        target,
        spread,
        packers=stack.enter_context(WorkerThreads(_PACKERS, "pack")),
        committer=stack.enter_context(WorkerThreads(1, "commit")),
        batch_bytes=options.batch_bytes,
        producer=run,
    )
    return uploader, inputs


def target_of(cluster: ClusterHandles, topic: str) -> Topic:
    """Return the topic to write to, after a tick if one is due. Raises as `open_upload`.

    Nothing is appended before the logs are compared with `published.json`.
    """
    target = cluster.controller.snapshot().topic(topic)
    refuse_if_set_back(cluster, target.journals)
    cluster.controller.tick_if_due()
    return target


class Uploader:
    """Uploads inputs into one topic. The caller has checked that none of its journals was set back (`open_upload`).

    Args:
        packers: the threads that encode and write batches.
        committer: the single thread that commits batches in order.
        producer: a producer's run that has landed nothing yet.
    """

    def __init__(
        self,
        cluster: ClusterHandles,
        topic: Topic,
        partitioner: Partitioner,
        *,
        packers: Executor,
        committer: Executor,
        batch_bytes: int = DEFAULT_BATCH_BYTES,
        producer: Producer | None = None,
    ) -> None:
        self._cluster, self._topic, self._partitioner = cluster, topic, partitioner
        self._packers, self._committer = packers, committer
        self._batch_bytes, self._producer = batch_bytes, producer
        self.landing = Landing(cluster, Appender() if producer is None else RunAppender(producer))
        ranges = topic.partition_ranges()
        self._journal_index = JournalIndex([r.end for r in ranges])
        self.journals: list[JournalHandle] = [cluster.journal(r.journal) for r in ranges]
        self._raw = _slots(_RAW)
        self._packed = _slots(max(_RAW, min(_PACKED, _PACKED_BYTES // batch_bytes)))
        self._queue: deque[Future[WrittenObject]] = deque()
        self._pending: list[Future[None]] = []
        self._error: BaseException | None = None
        self._skipped = 0

    @property
    def result(self) -> UploadResult:
        return self.landing.result

    def run(self, inputs: Iterable[Input]) -> UploadResult:
        """Upload everything, and return once it is committed.

        Raises:
            UsageError: a record cannot be placed; the batches before it are committed.
            L0gcError: a batch failed; the batches before it are committed, and those after it are not.
        """
        sources = list(inputs)
        for _ in range(_MAX_PASSES):
            try:
                self._run_once(sources)
            except InputPositionMovedError as e:
                _log.info("the inputs are read again: %s", e, extra=event("inputs_moved"))
                self._error = None
            else:
                return self.result
        raise ProtocolError(
            f"other runs of the upload into topic {self._topic.name!r} landed some of its inputs each of the {_MAX_PASSES} "
            "times that they were read; wait for them to end"
        )

    def _run_once(self, sources: Sequence[Input]) -> None:
        """Read the inputs from their beginnings, and upload the records that have not landed."""
        before, self._skipped = self.result.records, 0
        building = BatchBuilder(self._journal_index, self._batch_bytes)
        try:
            if self._producer is not None:
                self._cluster.parallel.map(JournalHandle.catch_up, self.journals)
            for source in sources:
                self._read(source, building)
            if building.batch.values:
                self._send(building.take())
        finally:
            for future in self._pending:
                future.exception()
            self._pending.clear()
            self.result.skipped = max(0, self._skipped - before)  # this run landed those of an earlier pass
        if self._error is not None:
            raise self._error

    # -- reading, in the caller's thread --------------------------------------------------------------------------------

    def _read(self, source: Input, building: BatchBuilder) -> None:
        place = self._partitioner.start(source.name)
        place_records = record_placer(self._partitioner, self._topic.partitions, source.name)
        position = None
        if self._producer is not None and source.input_id:
            producer_id = self._producer.producer_id
            landed = [landed_of(j.head.producers, producer_id, source.input_id) for j in self.journals]
            position = Position(source.input_id, self._journal_index, landed)
        for values in source.blocks():
            if source.kind == RECORDS:
                records = unpacked(values)
                placed, values = place_records(records), [r[0] for r in records]  # noqa: PLW2901 - of what was packed
            else:
                placed = place(values)
            values = values[: len(placed.partitions)]  # noqa: PLW2901 - without those after a bad one
            error = placed.error
            new = None if position is None else position.not_landed(placed.partitions)
            if new is not None:
                at: list[int] = new.tolist()
                self._skipped += len(values) - len(at)
                values = [values[i] for i in at]  # noqa: PLW2901 - those that have not landed
                placed = placed.at(new)
            for batch in building.add(values, placed, position):
                self._send(batch)
            if error is not None:
                raise error

    def _send(self, batch: Batch) -> None:
        if self._error is not None:
            raise self._error
        self._packed.get()
        self._raw.get()
        self._queue.append(self._packers.submit(self._pack, batch))
        self._pending = [f for f in self._pending if not f.done()]
        self._pending.append(self._committer.submit(self._commit_packed))

    # -- packing, on the packers ------------------------------------------------------------------------------------------

    def _pack(self, batch: Batch) -> WrittenObject:
        try:
            packed = pack_records(self._topic, batch.sorted())
        finally:
            self._raw.put(None)
        written = write_object(self._cluster, self._topic, packed)
        written.spans = {j.journal: spans for j, spans in zip(self.journals, batch.spans, strict=True)}
        return written

    # -- committing, on the one committer -----------------------------------------------------------------------------------

    def _commit_packed(self) -> None:
        """Commit the oldest batch and those after it that are already packed, unless it was already committed with
        others.
        """
        taken, group, weight = 0, list[WrittenObject](), 0
        try:
            try:
                while self._queue and (not taken or (self._queue[0].done() and weight < ENTRY_BYTES)):
                    packing = self._queue.popleft()
                    taken += 1
                    if self._error is None:
                        group.append(packing.result())
                        weight += sum(2 * len(p.extents.partitions) for p in group[-1].left.values())
            finally:
                if group:  # even if the one after them could not be packed
                    self.landing.land(group)
        except BaseException as e:
            self._error = self._error or e
            raise
        finally:
            for _ in range(taken):
                self._packed.put(None)


def _slots(count: int) -> SimpleQueue[None]:
    """Return a queue of free slots: `get` takes one, `put` returns it.

    An interrupted semaphore may stay locked (hazard 29).
    """
    slots: SimpleQueue[None] = SimpleQueue()
    for _ in range(count):
        slots.put(None)
    return slots
