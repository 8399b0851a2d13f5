"""Land L0 objects: journals accept a stored object, or it is written again and offered anew.

`upload`, a bridge's sender and Spark's sink all use it. Why it is safe: - An object is written, at the epoch in its key,
before any journal is offered its part; the journal checks it against its window at the fence, and again where it lands.
- A part that a journal refuses as stale is offered again with another object: the same content under a fresh epoch. The
  other journals' parts stay where they landed (hazard 27).
- A journal takes objects in order, and none after one that it refused.
- An object that is read back to be written again is checked against the checksums that the journal will record (hazard
34), because the first object is swept once the new one has landed.
- The sender (an `Appender`) determines whether a journal recognises a repeated object.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from l0gc.errors import (
    CorruptObjectError,
    L0gcError,
    NotFoundError,
    ObjectNotFoundError,
    PartitionClosedError,
    ProtocolError,
    StaleClusterEpochError,
)
from l0gc.events import event
from l0gc.streamlog.cluster import ClusterHandles, identity_of
from l0gc.streamlog.controller.state import Producer, Topic
from l0gc.streamlog.ingest.extents import PackedObject, PackedPart, blocks_of, check_block, fetch_blocks
from l0gc.streamlog.ingest.result import L0Object, UploadResult
from l0gc.streamlog.journal.entries import ObjectExtents
from l0gc.streamlog.journal.handle import AppendResult, JournalHandle
from l0gc.streamlog.journal.producers import InputSpan, ProducerBatch

_log: Final = logging.getLogger(__name__)

MAX_TRIES: Final = 50
"""How often objects are offered before the write gives up. Each time, the window has moved past them, or another process
of the same producer was first.
"""

_Destination = tuple[int, str]
"""A journal, and a topic with partitions in it."""


@dataclass(slots=True)
class WrittenObject:
    """A stored L0 object, and the parts that journals have not accepted.

    Attributes:
        topic: the name of the topic of its records.
        left: the parts that have not landed, by journal.
        body: its content; None if it is read back whenever it has to be written again.
        spans: the spans of inputs in each journal's part, if its producer has inputs.
        digests: the digest of the rows in each journal's part, if Spark's sink must recognise them.
    """

    object: L0Object
    topic: str
    left: dict[int, PackedPart]
    body: bytes | None = None
    spans: Mapping[int, list[InputSpan]] = field(default_factory=dict)
    digests: Mapping[int, int] = field(default_factory=dict)

    def placeholder(self, journal: int, producer: ProducerBatch | None = None) -> ObjectExtents:
        extents = self.left[journal].extents
        return msgspec.structs.replace(extents, key=self.object.key, epoch=self.object.epoch, producer=producer)


def write_object(cluster: ClusterHandles, topic: Topic, packed: PackedObject) -> WrittenObject:
    """Write packed records as an L0 object, at an epoch that is not below their topic."""
    l0 = put_l0(cluster, packed.body, cluster.controller.epoch(at_least=topic.revision))
    return WrittenObject(l0, topic.name, dict(packed.parts), packed.body)


def put_l0(cluster: ClusterHandles, body: bytes, epoch: int) -> L0Object:
    """Put an L0 object, which no journal lists yet, at an epoch that is at most the cluster epoch."""
    layout, name = identity_of(cluster.controller.replica.state).layout, cluster.runtime.new_id()
    key = layout.format(layout.shard_of(name), epoch, name)
    cluster.store.put_bulk(key, body)
    return L0Object(key, epoch, len(body))


class Appender:
    """Offers objects to journals without a producer, so an object that is offered twice lands twice."""

    one_epoch = False
    """Whether the objects of a topic are offered at one epoch, so that a journal takes them with one entry."""
    retried: tuple[type[L0gcError], ...] = ()
    """The errors after which the objects are offered again unchanged."""

    def append(self, journal: JournalHandle, objects: Sequence[WrittenObject]) -> AppendResult | None:
        """Offer a journal its parts of objects of one topic; return None if it already has all of them."""
        return journal.append([o.placeholder(journal.journal) for o in objects])


class RunAppender(Appender):
    """Offers objects for a producer's run, which has landed nothing yet, each under the next sequence of its journal."""

    def __init__(self, producer: Producer) -> None:
        self.begin(producer)

    def begin(self, producer: Producer) -> None:
        """Continue as the producer's next run."""
        self._identity = producer.producer_id, producer.epoch, producer.run
        self._sequences: Counter[int] = Counter()

    def append(self, journal: JournalHandle, objects: Sequence[WrittenObject]) -> AppendResult:
        number = journal.journal
        batches = [
            ProducerBatch(*self._identity, sequence, o.spans[number])
            for sequence, o in enumerate(objects, self._sequences[number])
        ]
        appended = journal.append([o.placeholder(number, b) for o, b in zip(objects, batches, strict=True)])
        self._sequences[number] += len(appended.landed)
        return appended


class Landing:
    """Lands objects, one call after another.

    Attributes:
        result: the records and objects that have landed.
        progress: called with the numbers of records and bytes of each part that landed.
    """

    def __init__(self, cluster: ClusterHandles, appender: Appender) -> None:
        self._cluster, self._appender = cluster, appender
        self.result = UploadResult()
        self.progress: Callable[[int, int], None] = lambda records, size: None

    def land(self, objects: Iterable[WrittenObject]) -> None:
        """Land the remaining parts of these objects, those of one topic in order.

        Raises:
            PartitionClosedError: a topic was deleted.
            NotFoundError: an object without a body must be written again, but is gone.
            ProtocolError: the objects were refused too often.
            L0gcError: a journal refused them for another reason, see `JournalHandle.append`. `result` contains those that
                landed.
        """
        left, refused = list(objects), dict[_Destination, L0gcError]()
        self.result.objects += [o.object for o in left]
        for _ in range(MAX_TRIES):
            self._stamp_anew(left, refused)
            refused = self._offer(left)
            left = [o for o in left if o.left]
            if not left:
                return
        (journal, topic), error = next(iter(refused.items()))
        raise ProtocolError(
            f"records for topic {topic!r} were refused by journal {journal} {MAX_TRIES} times, each time stamped "
            f"anew: {error}"
        ) from error

    def _offer(self, objects: Sequence[WrittenObject]) -> dict[_Destination, L0gcError]:
        """Offer each journal the parts that it has not accepted; return the reasons of refusals that call for another
        offer.

        Placeholders that landed are recorded even if another journal fails.
        """
        offered: dict[int, dict[str, list[WrittenObject]]] = {}
        for o in objects:
            for journal in o.left:
                offered.setdefault(journal, {}).setdefault(o.topic, []).append(o)
        outcomes: dict[_Destination, AppendResult | None] = {}

        def offer(journal: int) -> None:
            for topic, parts in offered[journal].items():  # one after another, since they may belong to one producer
                outcomes[journal, topic] = self._appender.append(self._cluster.journal(journal), parts)

        try:
            self._cluster.parallel.map(offer, sorted(offered))
        finally:
            for (journal, topic), outcome in sorted(outcomes.items()):
                self._note(journal, offered[journal][topic], outcome)
        refused: dict[_Destination, L0gcError] = {}
        for (journal, topic), outcome in sorted(outcomes.items()):
            error = None if outcome is None else outcome.error
            if isinstance(error, PartitionClosedError):
                revision = offered[journal][topic][0].left[journal].extents.revision
                raise PartitionClosedError(
                    f"topic {topic!r} (revision {revision}) was deleted while records were written into it"
                )
            if error is not None and not isinstance(error, (StaleClusterEpochError, *self._appender.retried)):
                raise error
            if error is not None:
                refused[journal, topic] = error
        return refused

    def _note(self, journal: int, objects: Sequence[WrittenObject], outcome: AppendResult | None) -> None:
        result = self.result
        if outcome is None:
            result.skipped += sum(o.left.pop(journal).records for o in objects)
            return
        for o, landed in zip(objects, outcome.landed, strict=False):
            placeholder, part = o.placeholder(journal), o.left.pop(journal)
            result.records += part.records
            result.bytes += part.bytes
            result.placeholders.add(o.topic, placeholder, landed.bases)
            self.progress(part.records, part.bytes)

    def _stamp_anew(self, objects: Sequence[WrittenObject], refused: Mapping[_Destination, L0gcError]) -> None:
        """Write stale objects again; if all objects of a topic need the same epoch, also those at lower epochs."""
        epochs = [o.object.epoch for o in objects]
        stale = {j: e.window[0] for (j, _), e in refused.items() if isinstance(e, StaleClusterEpochError)}
        if stale:
            needed = max(stale.values())
            fresh = self._cluster.controller.epoch(at_least=needed)
            for n, o in enumerate(objects):
                if any(o.object.epoch < stale.get(j, -1) for j in o.left):
                    epochs[n] = fresh
            fields = event("upload_retried", epoch=fresh, epoch_needed=needed)
            _log.info("objects arrived late and are stamped anew at epoch %d", fresh, extra=fields)
        if self._appender.one_epoch:
            newest: dict[str, int] = {}
            for o, epoch in zip(objects, epochs, strict=True):
                newest[o.topic] = max(newest.get(o.topic, -1), epoch)
            epochs = [newest[o.topic] for o in objects]

        def write(again: tuple[WrittenObject, int]) -> L0Object:
            o, epoch = again
            body, left = self._read_back(o) if o.body is None else (o.body, o.left)
            o.object, o.left = put_l0(self._cluster, body, epoch), left
            return o.object

        late = [(o, epoch) for o, epoch in zip(objects, epochs, strict=True) if o.object.epoch < epoch]
        self.result.objects += self._cluster.parallel.map(write, late)
        self.result.retries += len(late)

    def _read_back(self, o: WrittenObject) -> tuple[bytes, dict[int, PackedPart]]:
        """Return the content of the parts that have not landed, one after another, and these parts with their new extents.

        Each block is checked, because the new object becomes the only copy once the staged one is swept.

        Raises:
            NotFoundError: the object is gone.
            CorruptObjectError: a block differs at each reading from the one that was staged; nothing was written.
        """
        key, where = o.object.key, f"Nothing of its batch is committed in journal {min(o.left)}; write the batch again"
        body, left = bytearray(), dict[int, PackedPart]()
        for journal, part in o.left.items():
            blocks, extents = blocks_of(part.extents), msgspec.structs.replace(part.extents, start=len(body))
            try:
                bodies = fetch_blocks(self._cluster.store, key, blocks)
                for block, stored in zip(blocks, bodies, strict=True):
                    check_block(stored, key, block)
            except ObjectNotFoundError as e:
                raise NotFoundError(
                    f"{e}: it was swept before its batch was committed, which took longer than two epochs. {where} in "
                    "smaller parts, or sweep with --min-age"
                ) from e
            except CorruptObjectError as e:
                raise CorruptObjectError(f"{e}. {where}") from e
            body += b"".join(bodies)
            left[journal] = replace(part, extents=extents)
        return bytes(body), left
