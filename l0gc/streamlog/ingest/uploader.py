"""Uploading: records are batched over partitions into L0 objects, and committed journal by journal.

Order and safety:
- An object is written before its placeholders, at the epoch in its key. Each journal admits its part of the object, whole or
  not at all, at the offset where it lands. A part that was refused as stale is sent again with another object: the same
  content, written once more under a fresh epoch. The other journals' parts stay where they landed (hazard 27).
- Batches are committed in order, and nothing lands in a journal after a part that was refused, so the records of a
  partition land in the order of the input. Encoding and writing of later batches overlap with it. Batches that are packed
  during a commit are committed together.
- At most `_RAW` batches are in memory as records, and one is being filled; packed ones are bounded in number and in
  bytes, so memory does not grow with the input, but for a few bytes for each object and placeholder.
- With a producer, each part says which records of which input it holds, as its journal counts them. What landed before is
  skipped. If another run of the same job lands some of them first, the journal refuses them, and the inputs are read again.
- After the first error nothing more is sent (KIP-360: if a record fails, so do all that follow it).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Final

import msgspec

from l0gc.errors import (
    InputPositionMovedError,
    ProtocolError,
    StaleClusterEpochError,
)
from l0gc.events import event
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.ingest.batch import Batch, BatchBuilder, JournalRuns, Position
from l0gc.streamlog.ingest.extents import pack_for, placeholder
from l0gc.streamlog.ingest.inputs import Input
from l0gc.streamlog.ingest.partitioner import Partitioner, PlacedRecords
from l0gc.streamlog.ingest.result import L0Object, Landings, UploadResult
from l0gc.streamlog.journal.entries import ENTRY_BYTES, InputSpan, ObjectExtents, ProducerBatch
from l0gc.streamlog.journal.handle import Appended, JournalHandle, told
from l0gc.streamlog.producers import run_ahead

_log: Final = logging.getLogger(__name__)

DEFAULT_BATCH_BYTES: Final = 4 << 20
_RAW: Final = 2
"""How many batches may wait to be encoded, or be encoded: these are in memory as they were read."""
_PACKED: Final = 32
"""How many batches may wait for their commit, so that a slow log takes many at once."""
_PACKED_BYTES: Final = 32 << 20
"""About how many bytes of records these may be; packed they take a fraction of it."""
_MAX_STAMPS: Final = 50
"""How often one batch is stamped anew before the upload gives up; each time the window has moved past it."""
_MAX_PASSES: Final = 50
"""How many times the inputs are read before the upload gives up, because another run landed some of them each time."""


@dataclass
class ProducerSession:
    """One run of a producer, and the sequence that each journal is at."""

    name: str
    producer_id: int
    epoch: int
    run: str
    sequences: dict[int, int] = field(default_factory=dict)

    @classmethod
    def begin(cls, cluster: Cluster, name: str, journals: Sequence[JournalHandle] = ()) -> ProducerSession:
        """A new run, which fences those before it, and those that only these journals know (see `run_ahead`)."""
        p = cluster.controller.init_producer(name)
        cluster.parallel.map(JournalHandle.catch_up, journals)
        p = run_ahead(cluster, name, p, journals)
        return cls(name, p.producer_id, p.epoch, p.run)


@dataclass(slots=True)
class _RunPart:
    """What one journal gets of a batch."""

    run: int
    extents: ObjectExtents
    spans: list[InputSpan]
    records: int
    bytes: int
    landed: bool = False


@dataclass(slots=True)
class _WrittenBatch:
    """A batch whose object is in the store. The content is kept until all of it has landed."""

    object: L0Object
    body: bytes
    parts: list[_RunPart]
    stamps: int = 1


class Uploader:
    """Uploads inputs into one topic, of whose journals the caller has found that none was set back (`job.open_upload`).

    Args:
        packers: where batches are encoded and written.
        committer: a single thread, where batches are committed in order.
        progress: called with the records and the bytes of each part of a batch that landed.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: Topic,
        partitioner: Partitioner,
        *,
        packers: Executor,
        committer: Executor,
        batch_bytes: int = DEFAULT_BATCH_BYTES,
        producer: ProducerSession | None = None,
        progress: Callable[[int, int], None] = lambda records, size: None,
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._partitioner = partitioner
        self._packers, self._committer = packers, committer
        self._batch_bytes = batch_bytes
        self._producer = producer
        self._progress = progress
        runs = topic.runs()
        self._runs = JournalRuns([r.first + r.count for r in runs])
        self.journals: list[JournalHandle] = [cluster.journal(r.journal) for r in runs]
        self._raw = _places(_RAW)
        self._packed = _places(max(_RAW, min(_PACKED, _PACKED_BYTES // batch_bytes)))
        self._queue: deque[Future[_WrittenBatch]] = deque()
        self._pending: list[Future[None]] = []
        self._error: BaseException | None = None
        self._skipped = 0
        self.result = UploadResult(placeholders=Landings(topic.name))

    def run(self, inputs: Iterable[Input]) -> UploadResult:
        """Upload everything, and return when it is committed.

        Raises:
            BadRecordError: a record cannot be placed; the batches before it are committed.
            L0gcError: whatever stopped a batch; the ones before it are committed, the ones after it are not.
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
        """Read the inputs from their beginnings, and upload what has not landed."""
        before, self._skipped = self.result.records, 0
        building = BatchBuilder(self._runs, self._batch_bytes)
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
            self.result.skipped = max(0, self._skipped - before)  # those of a pass before were landed by this run
        if self._error is not None:
            raise self._error

    # -- reading, in the caller's thread --------------------------------------------------------------------------------

    def _read(self, source: Input, building: BatchBuilder) -> None:
        place = self._partitioner.start(source.name)
        position = None
        if self._producer is not None and source.input_id:
            producer_id = self._producer.producer_id
            landed = [journal.landed_of(producer_id, source.input_id) for journal in self.journals]
            position = Position(source.input_id, self._runs, landed)
        for values in source.blocks():
            placed = place(values)
            values = values[: len(placed.partitions)]  # noqa: PLW2901 - without those after a bad one
            error = placed.error
            new = None if position is None else position.not_landed(placed.partitions)
            if new is not None:
                at: list[int] = new.tolist()
                self._skipped += len(values) - len(at)
                values = [values[i] for i in at]  # noqa: PLW2901 - those that have not landed
                placed = PlacedRecords(placed.partitions[new], [placed.keys[i] for i in at])
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

    def _pack(self, batch: Batch) -> _WrittenBatch:
        try:
            runs, packed = pack_for(self._topic, batch.sorted())
        finally:
            self._raw.put(None)
        l0 = self._write(packed.body)
        parts = [
            _RunPart(
                run,
                placeholder(self._topic, l0.key, l0.epoch, p),
                batch.spans[run],
                p.total_records,
                p.total_bytes,
            )
            for run, p in zip(runs, packed.parts, strict=True)
        ]
        return _WrittenBatch(l0, packed.body, parts)

    def _write(self, body: bytes, at_least: int = -1) -> L0Object:
        epoch = self._cluster.controller.epoch(at_least=at_least)
        return L0Object(self._cluster.write_l0(body, epoch), epoch, len(body))

    # -- committing, on the one committer -----------------------------------------------------------------------------------

    def _commit_packed(self) -> None:
        """Commit the oldest batch, and those after it that are packed by now, if it did not go along with others."""
        taken, group, weight = 0, list[_WrittenBatch](), 0
        try:
            try:
                while self._queue and (not taken or (self._queue[0].done() and weight < ENTRY_BYTES)):
                    packing = self._queue.popleft()
                    taken += 1
                    if self._error is None:
                        group.append(packing.result())
                        weight += sum(2 * len(p.extents.partitions) for p in group[-1].parts)
            finally:
                if group:  # also where the one after them could not be packed
                    self._commit(group)
        except BaseException as e:
            self._error = self._error or e
            raise
        finally:
            for _ in range(taken):
                self._packed.put(None)

    def _commit(self, group: Sequence[_WrittenBatch]) -> None:
        todo: dict[int, list[_RunPart]] = {}
        for sent in group:
            self.result.objects.append(sent.object)
            for part in sent.parts:
                todo.setdefault(part.run, []).append(part)
        while todo:
            stale = self._land(todo)
            todo = {run: left for run, parts in todo.items() if (left := [p for p in parts if not p.landed])}
            self._stamp_anew(group, stale)

    def _land(self, todo: Mapping[int, Sequence[_RunPart]]) -> dict[int, int]:
        """Have each journal take its parts, in order, up to the first that it refuses. What landed is recorded, also where
        another journal failed.

        Returns:
            For each run whose journal refused one as stale, the lowest epoch that it takes.
        """
        outcomes: dict[int, Appended] = {}

        def land(run: int) -> None:
            outcomes[run] = self.journals[run].append(self._offers(run, todo[run]))

        try:
            self._cluster.parallel.map(land, todo)
        finally:
            for run in sorted(outcomes):
                self._note(run, todo[run], outcomes[run])
        errors = {run: o.error for run, o in sorted(outcomes.items()) if o.error is not None}
        stale = {run: e.window[0] for run, e in errors.items() if isinstance(e, StaleClusterEpochError)}
        for run, error in errors.items():
            if run not in stale:
                raise told(error, self._topic.name, self._topic.revision, "records were uploaded")
        return stale

    def _offers(self, run: int, parts: Sequence[_RunPart]) -> list[ObjectExtents]:
        session = self._producer
        if session is None:
            return [p.extents for p in parts]
        first = session.sequences.get(self.journals[run].journal, 0)
        return [
            msgspec.structs.replace(
                p.extents, producer=ProducerBatch(session.producer_id, session.epoch, session.run, sequence, p.spans)
            )
            for sequence, p in enumerate(parts, first)
        ]

    def _note(self, run: int, parts: Sequence[_RunPart], outcome: Appended) -> None:
        for part, landed in zip(parts, outcome.landed, strict=False):
            part.landed = True
            if self._producer is not None:
                journal = self.journals[run].journal
                self._producer.sequences[journal] = self._producer.sequences.get(journal, 0) + 1
            self.result.records += part.records
            self.result.bytes += part.bytes
            self.result.placeholders.add(part.extents, landed.bases)
            self._progress(part.records, part.bytes)

    def _stamp_anew(self, group: Sequence[_WrittenBatch], stale: Mapping[int, int]) -> None:
        """Write the objects again of which a journal has refused a part, at an epoch that it takes."""

        def needed(sent: _WrittenBatch) -> int:
            epochs = [stale[p.run] for p in sent.parts if not p.landed and p.run in stale]
            return max((epoch for epoch in epochs if epoch > sent.object.epoch), default=-1)

        again = [(sent, epoch) for sent in group if (epoch := needed(sent)) >= 0]
        if any(sent.stamps == _MAX_STAMPS for sent, _ in again):
            raise ProtocolError(
                f"a batch for topic {self._topic.name!r} was stamped {_MAX_STAMPS} times and always too late"
            )
        self.result.retries += len(again)
        written = self._cluster.parallel.map(lambda a: self._write(a[0].body, a[1]), again)
        for (sent, epoch), l0 in zip(again, written, strict=True):
            _log.info(
                "a batch at epoch %d arrived late and is stamped anew",
                sent.object.epoch,
                extra=event("upload_retried", epoch=sent.object.epoch, epoch_needed=epoch),
            )
            sent.object, sent.stamps = l0, sent.stamps + 1
            self.result.objects.append(l0)
            for p in sent.parts:
                if not p.landed:
                    p.extents = msgspec.structs.replace(p.extents, key=l0.key, epoch=l0.epoch)


def _places(count: int) -> SimpleQueue[None]:
    """A place is taken by `get`, and given back by `put`; a semaphore that is interrupted may stay locked (hazard 29)."""
    places: SimpleQueue[None] = SimpleQueue()
    for _ in range(count):
        places.put(None)
    return places
