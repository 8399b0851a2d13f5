"""Uploading: records are batched over partitions into L0 objects, and committed partition by partition.

Order and safety:
- An object is written before its placeholders, at the epoch in its key; each placeholder is fenced and admitted at the
  offset where it lands. A batch refused as stale is stamped with a fresh epoch and uploaded again by itself.
- Batches are committed one after another, so the records of a partition land in input order; encoding and writing of the
  next batch overlap with it. At most `_IN_FLIGHT` batches exist beside the one being filled, and a packed one is held in
  its packed form alone: memory does not grow with the input, but for a row for each object and placeholder.
- With a producer, each batch says which records of which input it holds. What landed before is skipped; what another run
  of the same job lands meanwhile is found out at the landing, and dropped from the batch.
- After the first error nothing more is sent (KIP-360: if a record fails, so do all that follow it).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Final

import msgspec

from l0gc.errors import InputPositionMovedError, ProtocolError, StaleClusterEpochError
from l0gc.events import event
from l0gc.keys import KeyLayout, PartitionId
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.ingest import extents
from l0gc.streamlog.ingest.extents import Chunk
from l0gc.streamlog.ingest.inputs import Input
from l0gc.streamlog.ingest.partitioner import Partitioner
from l0gc.streamlog.journal.entries import InputSpan, LandedBatch, Placeholder, ProducerBatch
from l0gc.streamlog.journal.handle import PartitionHandle
from l0gc.watermark.publication import refuse_if_behind

_log: Final = logging.getLogger(__name__)

DEFAULT_BATCH_BYTES: Final = 4 << 20
_IN_FLIGHT: Final = 2
_MAX_STAMPS: Final = 50
"""How often one batch is stamped anew before the upload gives up; each time the window has moved past it."""
_RECORD_OVERHEAD: Final = 16
"""What a record counts beside its bytes, so that a batch of tiny records is bounded, too."""


class L0Object(msgspec.Struct, frozen=True):
    key: str
    epoch: int
    bytes: int


class Landing(msgspec.Struct, frozen=True):
    """Where a chunk's records are now."""

    topic: str
    partition: int
    base_offset: int
    last_offset: int
    epoch: int
    key: str


@dataclass
class UploadResult:
    """What an upload did. `skipped` records had landed in an earlier run of the same producer."""

    records: int = 0
    bytes: int = 0
    skipped: int = 0
    retries: int = 0
    objects: list[L0Object] = field(default_factory=list)
    placeholders: list[Landing] = field(default_factory=list)


@dataclass
class ProducerSession:
    """One run of a producer: its id, its epoch, and the sequence that each partition is at."""

    name: str
    producer_id: int
    epoch: int
    sequences: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Held:
    """A chunk that is packed: what has to be known of it while its placeholder is on its way."""

    partition: int
    records: int
    bytes: int
    spans: list[InputSpan]


@dataclass(slots=True)
class _Packed:
    """An L0 object in the store, with the extents that its placeholders need."""

    object: L0Object
    body: bytes
    chunks: list[_Held]
    extents: list[Placeholder]


@dataclass(slots=True)
class _Outcome:
    """What became of a chunk: landed, or `rest` has to be uploaded again at `epoch_needed` or above."""

    chunk: _Held
    landed: LandedBatch | None = None
    rest: Chunk | None = None
    epoch_needed: int = -1


class Uploader:
    """Uploads inputs into one topic.

    Raises:
        EpochRegressionError: the published M is above the cluster epoch, so what is uploaded now could be swept.

    Args:
        packers: where batches are encoded and written.
        committer: a single thread, where batches are committed in order.
        progress: told the records and the bytes of each batch that landed.
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
        refuse_if_behind(cluster)
        self._layout: KeyLayout = cluster.controller.layout()
        self._slots = threading.BoundedSemaphore(_IN_FLIGHT)
        self._error: BaseException | None = None
        self._chunks: dict[int, Chunk] = {}
        self._size = 0
        self._pending: list[Future[None]] = []
        self.result = UploadResult()
        self.touched: dict[PartitionId, PartitionHandle] = {}

    def run(self, inputs: Iterable[Input]) -> UploadResult:
        """Upload everything, and return when it is committed.

        Raises:
            BadRecordError: a record cannot be placed; the batches before it are committed.
            L0gcError: whatever stopped a batch; the ones before it are committed, the ones after it are not.
        """
        try:
            for source in inputs:
                self._read(source)
            self._flush()
        finally:
            for future in self._pending:
                future.exception()
        if self._error is not None:
            raise self._error
        return self.result

    # -- reading, in the caller's thread --------------------------------------------------------------------------------

    def _read(self, source: Input) -> None:
        place = self._partitioner.start(source.name)
        skip = self._skipper(source.input_id) if source.input_id else None
        chunks, size, limit = self._chunks, self._size, self._batch_bytes
        for line in source.lines():  # the innermost loop of an upload: hence the local names
            partition, key = place(line)
            if skip is not None and skip(partition):
                continue
            try:
                chunk = chunks[partition]
            except KeyError:
                chunk = chunks[partition] = Chunk(partition)
            chunk.values.append(line)
            chunk.keys.append(key)
            size += len(line) + _RECORD_OVERHEAD
            if size >= limit:
                self._flush()
                chunks, size = self._chunks, 0
        self._size = size

    def _skipper(self, input_id: str) -> Callable[[int], bool]:
        """Says of each record of an input whether it has landed before; notes those that have not in their chunk."""
        counts: dict[int, int] = {}
        landed: dict[int, int] = {}

        def skip(partition: int) -> bool:
            position = counts.get(partition, 0)
            counts[partition] = position + 1
            if partition not in landed:
                landed[partition] = self._landed(partition, input_id)
            if position < landed[partition]:
                self.result.skipped += 1
                return True
            self._note_span(partition, input_id, position)
            return False

        return skip

    def _landed(self, partition: int, input_id: str) -> int:
        assert self._producer is not None
        handle = self._handle(partition)
        handle.catch_up()
        return handle.landed_of(self._producer.producer_id, input_id)

    def _note_span(self, partition: int, input_id: str, position: int) -> None:
        chunk = self._chunks.setdefault(partition, Chunk(partition))
        if chunk.spans and chunk.spans[-1].input_id == input_id:
            chunk.spans[-1] = InputSpan(input_id, chunk.spans[-1].start, position + 1)
        else:
            chunk.spans.append(InputSpan(input_id, position, position + 1))

    def _flush(self) -> None:
        if self._error is not None:
            raise self._error
        if not self._chunks:
            return
        chunks = [self._chunks[p] for p in sorted(self._chunks)]
        self._chunks, self._size = {}, 0
        now = self._cluster.runtime.clock.now_ms()
        for chunk in chunks:
            chunk.timestamp_ms = now
        self._slots.acquire()
        packed = self._packers.submit(self._pack, chunks)
        self._pending = [f for f in self._pending if not f.done()]
        self._pending.append(self._committer.submit(self._commit_batch, packed))

    # -- packing, on the packers ------------------------------------------------------------------------------------------

    def _pack(self, chunks: Sequence[Chunk], at_least: int = -1) -> _Packed:
        epoch = self._cluster.controller.epoch(at_least=at_least)
        name = self._cluster.runtime.new_id()
        key = self._layout.format(self._layout.shard_of(name), epoch, name)
        body, placeholders = extents.pack(chunks, key)
        self._cluster.store.put(key, body)
        held = [_Held(c.partition, len(c), sum(map(len, c.values)), c.spans) for c in chunks]
        return _Packed(L0Object(key, epoch, len(body)), body, held, placeholders)

    # -- committing, on the one committer -----------------------------------------------------------------------------------

    def _commit_batch(self, packing: Future[_Packed]) -> None:
        try:
            if self._error is None:
                self._commit(packing.result())
        except BaseException as e:
            self._error = e
            raise
        finally:
            self._slots.release()

    def _commit(self, packed: _Packed) -> None:
        for _ in range(_MAX_STAMPS):
            self.result.objects.append(packed.object)
            outcomes = self._land_all(packed)
            again = [o.rest for o in outcomes if o.rest is not None and len(o.rest)]
            if not again:
                return
            self.result.retries += 1
            needed = max(o.epoch_needed for o in outcomes)
            _log.info(
                "a batch at epoch %d came too late and is stamped anew",
                packed.object.epoch,
                extra=event("upload_retried", epoch=packed.object.epoch, epoch_needed=needed, extents=len(again)),
            )
            packed = self._pack(again, at_least=needed)
        raise ProtocolError(
            f"a batch for topic {self._topic.name!r} was stamped {_MAX_STAMPS} times and always too late"
        )

    def _land_all(self, packed: _Packed) -> list[_Outcome]:
        """Commit the extents of a batch. What landed is noted, also where another one of them failed."""
        outcomes: dict[int, _Outcome] = {}

        def land(at: int) -> None:
            outcomes[at] = self._land(packed, packed.chunks[at], packed.extents[at])

        try:
            self._cluster.parallel.map(land, range(len(packed.chunks)))
        finally:
            for at in sorted(outcomes):
                self._note(packed.object, outcomes[at])
        return [outcomes[at] for at in sorted(outcomes)]

    def _land(self, packed: _Packed, chunk: _Held, extent: Placeholder) -> _Outcome:
        """Commit one extent, on any thread."""
        handle = self._handle(chunk.partition)
        session = self._producer
        if session is not None:
            sequence = session.sequences.get(chunk.partition, 0)
            batch = ProducerBatch(session.producer_id, session.epoch, sequence, chunk.spans)
            extent = msgspec.structs.replace(extent, producer=batch)
        try:
            landed = handle.append_placeholder(extent, packed.object.epoch)
        except StaleClusterEpochError as e:
            rest = extents.unpack(packed.body, extent, chunk.partition, chunk.spans)
            return _Outcome(chunk, rest=rest, epoch_needed=e.window[0])
        except InputPositionMovedError:
            assert session is not None
            progress = [handle.landed_of(session.producer_id, s.input_id) for s in chunk.spans]
            rest = extents.unpack(packed.body, extent, chunk.partition, chunk.spans)
            return _Outcome(chunk, rest=rest.without_landed(progress))
        if session is not None:
            session.sequences[chunk.partition] = sequence + 1
        return _Outcome(chunk, landed=landed)

    def _note(self, l0: L0Object, outcome: _Outcome) -> None:
        chunk, landed = outcome.chunk, outcome.landed
        if landed is None:
            self.result.skipped += chunk.records - len(outcome.rest or ())
            return
        self.result.records += chunk.records
        self.result.bytes += chunk.bytes
        self.result.placeholders.append(
            Landing(self._topic.name, chunk.partition, landed.base_offset, landed.last_offset, l0.epoch, l0.key)
        )
        self._progress(chunk.records, chunk.bytes)

    def _handle(self, partition: int) -> PartitionHandle:
        handle = self._cluster.partition(PartitionId(self._topic.name, self._topic.revision, partition))
        self.touched[handle.partition] = handle
        return handle
