"""What the driver of a write does: the objects that its tasks have staged land in their journals, each batch once.

**One entry.** What a batch has for one topic in one journal is offered as one request of one epoch, which a journal takes
with one entry, whole or not at all. So a driver that dies leaves each journal with all of the batch or none of it, and the
next one can find out which. Objects that tasks staged at different epochs, which are those of a micro-batch that a tick cuts
in two, are therefore written again at the newest one first.

**Once.** A query is a producer, and its input is its micro-batches, one after another: each object says where in them it
begins and ends, and a journal takes it only where it has come to there, at the very offset where it lands. So two drivers
of one query, a driver that was taken for dead, and a micro-batch that is replayed, perhaps in other objects, land a batch
once, whichever comes first. A driver goes on with the producer's run and does not begin another: it needs no fence against
the driver before it, and a run that begins is an entry of the controller, that is an epoch for everybody.

**The same rows** (hazard 30). A number alone does not identify a batch: a query that goes on with an older copy of its
checkpoint, or without the newest files of it, gives the number of a batch that has landed to other rows. To skip them would
lose them, to land them would repeat others. So with the number a journal keeps how many rows the whole batch had and their
digest (`stage.py`). The same number with the same rows has landed; with other rows it is an error, and so is a number below
the newest, since Spark replays only the last batch.

**Staged and not appended.** Nothing holds M back for a staged object. If the window has moved past its epoch, the journal
refuses it; then it is written again at a fresh epoch, from what was staged, and offered again. If it has been swept by then,
the batch fails with nothing of it in that journal, and can be replayed. Safety is where it always is: a journal admits no
epoch that M may have passed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass
from typing import Final

import msgspec

from l0gc.errors import (
    BatchMismatchError,
    CorruptObjectError,
    InputPositionMovedError,
    InvalidProducerEpochError,
    L0gcError,
    NotFoundError,
    ObjectNotFoundError,
    ProtocolError,
    StaleClusterEpochError,
    StoreError,
    UnknownProducerError,
    UsageError,
)
from l0gc.events import event
from l0gc.formatting import count
from l0gc.integrations.spark.stage import StagedObject
from l0gc.storage.entry import ENTRY_LIMIT
from l0gc.streamlog.cluster import Handles
from l0gc.streamlog.controller.state import Producer
from l0gc.streamlog.journal.entries import InputProgress, InputSpan, ObjectExtents, ProducerBatch
from l0gc.streamlog.journal.handle import JournalHandle, deleted_while
from l0gc.streamlog.journal.producers import landed_of, progress_of
from l0gc.streamlog.producers import run_ahead
from l0gc.watermark.publication import refuse_if_set_back

_log: Final = logging.getLogger(__name__)
_RENEW_MS: Final = 24 * 3_600_000
"""How old a producer's run may be; it may begin at a new journal for a week, and its name is kept for two."""
_MAX_TRIES: Final = 50
"""How many times a batch is offered to a journal: it was stale, or another driver of the query was first."""
_OBJECT_BYTES: Final = 256
"""What an object takes in an entry in addition to its extents."""
_RETRIED: Final = (InputPositionMovedError, InvalidProducerEpochError, UnknownProducerError)
"""What a journal says where another driver of the query was there first: the state is looked at again."""


PLACES: Final = 24
"""A position in a producer's input is a batch's number, and in so many bits below it an object's."""
_REMEDY: Final = (
    "restore the newest checkpoint, or start the query with a new one (with batchId also a new producerName) after the last "
    "row that landed, see docs/spark.md#a-checkpoint-that-went-back"
)


@dataclass(frozen=True, slots=True)
class BatchId:
    """Which batch this is: number `number` of what the producer `producer` writes as `name`.

    Attributes:
        topic: that of all rows.
        any_topic: whether each row names its own; a batch of that number may have had rows for any of them.
    """

    producer: str
    name: str
    number: int
    topic: str | None = None
    any_topic: bool = False

    def input_of(self, revision: int) -> str:
        """The input that the producer's batches are in the topic with this revision."""
        return f"{self.name}/{revision}"


@dataclass(frozen=True, slots=True)
class BatchRows:
    """How many rows a whole batch has, and their digest."""

    count: int
    digest: str

    @classmethod
    def of(cls, staged: Iterable[StagedObject]) -> BatchRows:
        objects = list(staged)
        return cls(sum(o.records for o in objects), f"{sum(o.digest for o in objects) % (1 << 64):016x}")

    def __str__(self) -> str:
        return f"{count(self.count, 'row')} (digest {self.digest})"


def has_landed(batch: BatchId, rows: BatchRows, journal: int, progress: InputProgress | None) -> bool:
    """Whether a journal has what these rows have for it; `progress` is how far the batch's input got there.

    Raises:
        BatchMismatchError: other rows have landed under the batch's number, or a later batch has.
        ProtocolError: a part of the batch has landed.
    """
    if progress is None:
        return False
    newest, objects = (progress.landed >> PLACES) - 1, progress.landed & ((1 << PLACES) - 1)
    if objects and newest + 1 == batch.number:
        raise ProtocolError(
            f"a part of batch {batch.number} of producer {batch.producer!r} has landed in journal {journal}, "
            "which takes batches whole: something else writes under this producer's name"
        )
    if newest < batch.number:
        return False
    there = BatchRows(progress.rows, progress.digest)
    if newest > batch.number:
        raise BatchMismatchError(
            f"batch {batch.number} of producer {batch.producer!r}, with {rows}, is older than batch {newest}, which landed "
            f"in journal {journal} with {there}: the query's checkpoint went back, or another driver runs it; {_REMEDY}"
        )
    if there != rows:
        raise BatchMismatchError(
            f"batch {batch.number} of producer {batch.producer!r} landed in journal {journal} with {there}, and comes again "
            f"with {rows}: the query's checkpoint went back, or the query gives other rows when it is repeated; {_REMEDY}"
        )
    return True


def refuse_other_rows(cluster: Handles, batch: BatchId, rows: BatchRows, topics: Iterable[str]) -> None:
    """Refuse a batch of which any journal that may have it has another one.

    All journals of the batch's topics are asked before any of them takes a part, since other rows may all go to journals
    that had none of the batch. For a stream whose rows name their topics, every journal in use is asked, those of other
    topics once in a process. Where a part lands, its journal is asked again, since two drivers may commit at once.

    Args:
        topics: those that the batch has rows for.

    Raises:
        BatchMismatchError, ProtocolError: see `has_landed`; nothing of the batch was offered to any journal.
        CorruptObjectError: a journal of one of its topics cannot be read.
    """
    named = {*topics, batch.topic}
    known = cluster.controller.snapshot().topics.values()
    asked = [t for t in known if batch.any_topic or t.name in named]
    fresh = {j for t in asked if t.name in named for j in t.journals}

    def ask(journal: int) -> None:
        handle = cluster.journal(journal)
        try:
            if journal in fresh:
                handle.catch_up()
            for topic in asked:
                if journal in topic.journals:
                    has_landed(
                        batch, rows, journal, progress_of(handle.state.producers, batch.input_of(topic.revision))
                    )
        except CorruptObjectError as e:
            if journal in fresh:
                raise
            _log.warning("whether journal %d has other rows of batch %d is not known: %s", journal, batch.number, e)

    cluster.parallel.map(ask, sorted({j for t in asked for j in t.journals}))


@dataclass(slots=True)
class SinkCommit:
    """What became of a batch. `skipped` records had landed before; `restamped` objects were written again."""

    records: int = 0
    objects: int = 0
    skipped: int = 0
    restamped: int = 0


def commit(cluster: Handles, staged: Iterable[StagedObject], batch: BatchId | None = None) -> SinkCommit:
    """Land a batch's objects, in their order in each partition.

    Args:
        batch: without it nothing is recognised: what is committed twice lands twice.

    Raises:
        BatchMismatchError: other rows have landed under the batch's number, or a later batch has.
        EpochRegressionError: what is published is above the cluster epoch; nothing was committed.
        SetBackError: a journal that the batch has something for was set back; nothing was committed.
        PartitionClosedError: a topic was deleted.
        NotFoundError: an object was swept before it was committed.
        UsageError: the batch is too large for an entry.
        L0gcError: see `JournalHandle.append`. With a batch id, committing it again is safe.
    """
    objects = list(staged)
    rows = BatchRows.of(objects)
    refuse_if_set_back(cluster, {journal for s in objects for journal in s.parts})
    by_place: dict[tuple[int, int], _Part] = {}
    for s in objects:
        for journal, extents in s.parts.items():
            place = journal, extents.revision
            if place not in by_place:
                by_place[place] = _Part(cluster, *place, s.topic, batch, rows)
            by_place[place].objects.append(extents)
    parts = [by_place[place] for place in sorted(by_place)]
    if batch is not None:
        refuse_other_rows(cluster, batch, rows, {o.topic for o in objects})
        for part in parts:
            part.check_size()
    results = cluster.parallel.map(_Part.land, parts)
    total = SinkCommit(*(sum(column) for column in zip(*map(astuple, results), strict=True)))
    with suppress(StoreError, ProtocolError):  # the batch has landed; the next process to come will tick
        cluster.controller.tick_if_due()
    counters = asdict(total)
    _log.info("committed a batch: %s", counters, extra=event("batch_committed", **counters))
    return total


def _records(objects: Iterable[ObjectExtents]) -> int:
    return sum(sum(memoryview(o.records).cast("i")) for o in objects)


class _Part:
    """What a batch has for one topic in one journal; `rows` are those of the whole batch."""

    def __init__(
        self, cluster: Handles, journal: int, revision: int, topic: str, batch: BatchId | None, rows: BatchRows
    ) -> None:
        self._cluster, self._revision, self._topic, self._batch, self._rows = cluster, revision, topic, batch, rows
        self._journal: JournalHandle = cluster.journal(journal)
        self._result = SinkCommit()
        self._refused: L0gcError | None = None
        self.objects: list[ObjectExtents] = []

    def check_size(self) -> None:
        """Raises `UsageError` if this is too large for one entry."""
        size = sum(_OBJECT_BYTES + len(o.blocks) + len(o.partitions) + len(o.records) for o in self.objects)
        if size > ENTRY_LIMIT // 2 or _records(self.objects) >= 2**31 - 1 or len(self.objects) >> PLACES:
            raise UsageError(
                f"a batch of {_records(self.objects):,} records in {len(self.objects):,} objects for topic "
                f"{self._topic!r} is too large to be committed with one entry: write smaller ones (maxOffsetsPerTrigger), "
                "or larger objects"
            )

    def land(self) -> SinkCommit:
        """Have the journal take the objects, unless it has them."""
        for _ in range(_MAX_TRIES):
            if self._try():
                return self._result
        raise ProtocolError(
            f"a batch for topic {self._topic!r} was offered to journal {self._journal.journal} {_MAX_TRIES} times and was "
            f"refused each time, the last time since {self._refused or 'another batch of its producer came first'}"
        ) from self._refused

    def _try(self) -> bool:
        """Offer what has not landed; whether all has."""
        batch, offered = self._batch, self.objects
        if batch is not None:
            if self._has_landed(batch):
                self._result.skipped += _records(self.objects)
                return True
            newest = max(o.epoch for o in self.objects)
            self._stamp(newest, newest)
            offered = self._identified(self._producer(batch.producer), batch)
        outcome = self._journal.append(offered)
        self._refused = outcome.error
        if batch is not None and any(o.bases is None for o in outcome.landed) and not self._has_landed(batch):
            # A journal answers a sequence that it knows with where it landed. It may have been another query's of the same
            # producer: what counts is the input.
            return False
        landed = len(outcome.landed)
        self._result.records += _records(self.objects[:landed])
        self._result.objects += landed
        del self.objects[:landed]
        if isinstance(outcome.error, StaleClusterEpochError):
            epoch, needed = outcome.error.epoch, outcome.error.window[0]
            fields = event("upload_retried", epoch=epoch, epoch_needed=needed)
            _log.info("objects at epoch %d arrived late and are stamped anew", epoch, extra=fields)
            self._stamp(needed, self._cluster.controller.epoch(at_least=needed))
            return False
        if batch is not None and isinstance(outcome.error, _RETRIED):
            return False
        if outcome.error is not None:
            raise deleted_while(outcome.error, self._topic, self._revision, "rows were written")
        return True

    # -- who sends it ---------------------------------------------------------------------------------------------------

    def _has_landed(self, batch: BatchId) -> bool:
        """Whether the batch has landed here, as the journal has it now; see `has_landed`."""
        self._journal.catch_up()
        there = progress_of(self._journal.state.producers, batch.input_of(self._revision))
        return has_landed(batch, self._rows, self._journal.journal, there)

    def _producer(self, name: str) -> Producer:
        """The producer's run, which a driver continues. It begins anew if it is missing or old, or if the
        journal, as of its last replay, refuses it."""
        controller = self._cluster.controller
        known, as_of_ms = controller.snapshot().producers.get(name), controller.replica.as_of_ms
        if known is None or (as_of_ms is not None and as_of_ms - known.time_ms > _RENEW_MS):
            known = controller.init_producer(name)
        return run_ahead(self._cluster, name, known, [self._journal])

    def _identified(self, producer: Producer, batch: BatchId) -> list[ObjectExtents]:
        """The objects as the producer's, each with its place in the input; the last one's end is that of the batch."""
        known = self._journal.state.producers.get(producer.producer_id)
        same = known is not None and (known.epoch, known.run) == (producer.epoch, producer.run)
        first = known.next_sequence if known is not None and same else 0
        begin, input_id = batch.number << PLACES, batch.input_of(self._revision)
        ends = [begin + n for n in range(1, len(self.objects))] + [(batch.number + 1) << PLACES]
        starts = [landed_of(self._journal.state.producers, producer.producer_id, input_id), *ends]
        return [
            msgspec.structs.replace(
                o,
                producer=ProducerBatch(
                    producer.producer_id,
                    producer.epoch,
                    producer.run,
                    sequence,
                    [InputSpan(input_id, start, end, self._rows.count, self._rows.digest)],
                ),
            )
            for sequence, (o, start, end) in enumerate(zip(self.objects, starts, ends, strict=False), first)
        ]

    # -- stale objects -----------------------------------------------------------------------------------------------------

    def _stamp(self, below: int, epoch: int) -> None:
        """Write the objects of lower epochs again, at this epoch, which is at most the cluster's."""

        def again(o: ObjectExtents) -> ObjectExtents:
            try:
                body = self._cluster.store.get(o.key).body
            except ObjectNotFoundError as e:
                raise NotFoundError(
                    f"{e}: it was swept before its batch was committed, which took longer than two epochs. Nothing of it is "
                    f"committed in journal {self._journal.journal}; write smaller batches, or sweep with --min-age"
                ) from e
            return msgspec.structs.replace(o, key=self._cluster.write_l0(body, epoch), epoch=epoch)

        late = [n for n, o in enumerate(self.objects) if o.epoch < below]
        for n, o in zip(late, self._cluster.parallel.map(again, [self.objects[n] for n in late]), strict=True):
            self.objects[n] = o
        self._result.restamped += len(late)
