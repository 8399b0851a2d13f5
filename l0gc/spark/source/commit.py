"""What the driver of a write does: the objects that its tasks have staged land in their journals, each batch once.

**One entry.** What a batch has for one topic in one journal is offered as one request of one epoch, which a journal takes
with one entry, whole or not at all. So a driver that dies leaves each journal with all of the batch or none of it, and the
next one can find out which. Objects that tasks staged at different epochs are therefore written again at the newest one
first, which concerns the one micro-batch that a tick cuts in two.

**Once.** A query is a producer, and its input is its micro-batches, one after another: each object says where in them it
begins and ends, and a journal takes it only where it has come to there, at the very offset where it lands. So two drivers
of one query, a driver that was taken for dead, and a micro-batch that is replayed, perhaps in other objects, land a batch
once, whichever comes first. A batch that comes again with other rows is an error (`landed.py`). A driver goes on with the
producer's run and does not begin another: it needs no fence against the driver before it, and a run that begins is an
entry of the controller, that is an epoch for everybody. The run is renewed once a day, so that it does not expire under a
query, and where a journal refuses it because the controller's log was restored from an older copy.

**Staged and not appended.** Nothing holds M back for a staged object. If the window has moved past its epoch, the journal
refuses it; then it is written again at a fresh epoch, from what was staged, and offered again. If it has been swept by then,
the batch fails with nothing of it in that journal, and can be replayed. Safety is where it always is: a journal admits no
epoch that M may have passed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Final

import msgspec

from l0gc.errors import (
    InputPositionMovedError,
    InvalidProducerEpochError,
    L0gcError,
    ObjectNotFoundError,
    OutOfOrderSequenceError,
    ProtocolError,
    StagedObjectSweptError,
    StaleClusterEpochError,
    StoreError,
    UnknownProducerError,
    UsageError,
)
from l0gc.events import event
from l0gc.spark.source.landed import PLACES, BatchId, BatchRows, has_landed, refuse_other_rows
from l0gc.spark.source.stage import StagedObject
from l0gc.storage.entry import ENTRY_LIMIT
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.controller.state import Producer
from l0gc.streamlog.journal.entries import InputSpan, ObjectExtents, ProducerBatch
from l0gc.streamlog.journal.handle import JournalHandle, told
from l0gc.streamlog.producers import run_ahead
from l0gc.watermark.publication import refuse_if_set_back

_log: Final = logging.getLogger(__name__)
_RENEW_MS: Final = 24 * 3_600_000
"""How old a producer's run may be; it may begin at a new journal for a week, and its name is kept for two."""
_MAX_TRIES: Final = 50
"""How many times a batch is offered to a journal: it was stale, or another driver of the query was first."""
_OBJECT_BYTES: Final = 256
"""What an object takes in an entry in addition to its extents."""
_RETRIED: Final = (InputPositionMovedError, InvalidProducerEpochError, OutOfOrderSequenceError, UnknownProducerError)
"""What a journal says where another driver of the query was there first: the state is looked at again."""


@dataclass(slots=True)
class SinkCommit:
    """What became of a batch. `skipped` records had landed before; `restamped` objects were written again."""

    records: int = 0
    objects: int = 0
    skipped: int = 0
    restamped: int = 0


@dataclass(slots=True)
class _JournalPart:
    """What a batch has for one topic in one journal."""

    journal: int
    revision: int
    topic: str
    objects: list[ObjectExtents]
    records: list[int]


def commit(cluster: Cluster, staged: Iterable[StagedObject], batch: BatchId | None = None) -> SinkCommit:
    """Land a batch's objects, in their order in each partition.

    Args:
        batch: without it nothing is recognised: what is committed twice lands twice.

    Raises:
        BatchMismatchError: other rows have landed under the batch's number, or a later batch has; see `landed.py`.
        EpochRegressionError: what is published is above the cluster epoch; nothing was committed.
        SetBackError: a journal that the batch has something for was set back; nothing was committed.
        PartitionClosedError: a topic was deleted.
        StagedObjectSweptError: an object was swept before it was committed.
        UsageError: the batch is too large for an entry.
        L0gcError: see `JournalHandle.append`. With a batch id, committing it again is safe.
    """
    objects = list(staged)
    rows, parts = BatchRows.of(objects), _parts(objects)
    refuse_if_set_back(cluster, {p.journal for p in parts})
    if batch is not None:
        refuse_other_rows(cluster, batch, rows, {o.topic for o in objects})
        for part in parts:
            _check_size(part)
    results = cluster.parallel.map(lambda part: _Commit(cluster, part, batch, rows).run(), parts)
    total = SinkCommit()
    for r in results:
        total.records += r.records
        total.objects += r.objects
        total.skipped += r.skipped
        total.restamped += r.restamped
    with suppress(StoreError, ProtocolError):  # the batch has landed; the next process to come will tick
        cluster.controller.tick_if_due()
    counters = asdict(total)
    _log.info("committed a batch: %s", counters, extra=event("batch_committed", **counters))
    return total


def _parts(staged: Iterable[StagedObject]) -> list[_JournalPart]:
    parts: dict[tuple[int, int], _JournalPart] = {}
    for s in staged:
        for journal, extents in s.parts.items():
            at = journal, extents.revision
            part = parts.setdefault(at, _JournalPart(journal, extents.revision, s.topic, [], []))
            part.objects.append(extents)
            part.records.append(sum(memoryview(extents.records).cast("i")))
    return [parts[at] for at in sorted(parts)]


def _check_size(part: _JournalPart) -> None:
    size = sum(_OBJECT_BYTES + len(o.blocks) + len(o.partitions) + len(o.records) for o in part.objects)
    if size > ENTRY_LIMIT // 2 or sum(part.records) >= 2**31 - 1 or len(part.objects) >> PLACES:
        raise UsageError(
            f"a batch of {sum(part.records):,} records in {len(part.objects):,} objects for topic {part.topic!r} is "
            "too large to be committed with one entry: write smaller ones (maxOffsetsPerTrigger), or larger objects"
        )


class _Commit:
    """Lands one part of a batch; `rows` are those of the whole batch."""

    def __init__(self, cluster: Cluster, part: _JournalPart, batch: BatchId | None, rows: BatchRows) -> None:
        self._cluster, self._part, self._batch, self._rows = cluster, part, batch, rows
        self._journal: JournalHandle = cluster.journal(part.journal)
        self._result = SinkCommit()
        self._refused: L0gcError | None = None

    def run(self) -> SinkCommit:
        for _ in range(_MAX_TRIES):
            if self._try():
                return self._result
        raise ProtocolError(
            f"a batch for topic {self._part.topic!r} was offered to journal {self._part.journal} {_MAX_TRIES} times and was "
            f"refused each time, the last time since {self._refused or 'another batch of its producer came first'}"
        ) from self._refused

    def _try(self) -> bool:
        """Offer what has not landed; whether all has."""
        part, batch = self._part, self._batch
        offered: Sequence[ObjectExtents] = part.objects
        if batch is not None:
            if self._has_landed(batch):
                self._result.skipped += sum(part.records)
                return True
            newest = max(o.epoch for o in part.objects)
            self._stamp([n for n, o in enumerate(part.objects) if o.epoch < newest], newest)
            offered = self._identified(self._producer(batch.producer), batch)
        outcome = self._journal.append(offered)
        landed = len(outcome.landed)
        if batch is None:
            self._note(part.records[:landed])
            del part.objects[:landed], part.records[:landed]
        elif outcome.error is None:
            # A journal answers a sequence that it knows with where it landed. It may have been another query's of the same
            # producer: what counts is the input.
            answered = any(o.bases is None for o in outcome.landed)
            if answered and not self._has_landed(batch):
                return False
            self._note(part.records)
        self._refused = outcome.error
        if isinstance(outcome.error, StaleClusterEpochError):
            self._stamp_late(outcome.error)
            return False
        if batch is not None and isinstance(outcome.error, _RETRIED):
            return False
        if outcome.error is not None:
            raise told(outcome.error, part.topic, part.revision, "rows were written")
        return True

    def _note(self, records: Sequence[int]) -> None:
        self._result.records += sum(records)
        self._result.objects += len(records)

    # -- who sends it ---------------------------------------------------------------------------------------------------

    def _has_landed(self, batch: BatchId) -> bool:
        """Whether the batch has landed here, as the journal has it now; see `has_landed`."""
        self._journal.catch_up()
        there = self._journal.progress_of(batch.input_of(self._part.revision))
        return has_landed(batch, self._rows, self._part.journal, there)

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
        begin, input_id = batch.number << PLACES, batch.input_of(self._part.revision)
        ends = [begin + n for n in range(1, len(self._part.objects))] + [(batch.number + 1) << PLACES]
        starts = [self._journal.landed_of(producer.producer_id, input_id), *ends]
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
            for sequence, (o, start, end) in enumerate(zip(self._part.objects, starts, ends, strict=False), first)
        ]

    # -- stale objects -----------------------------------------------------------------------------------------------------

    def _stamp_late(self, error: StaleClusterEpochError) -> None:
        epoch = self._cluster.controller.epoch(at_least=error.window[0])
        late = [n for n, o in enumerate(self._part.objects) if o.epoch < error.window[0]]
        _log.info(
            "%d objects at epoch %d arrived late and are stamped anew",
            len(late),
            error.epoch,
            extra=event("upload_retried", epoch=error.epoch, epoch_needed=error.window[0]),
        )
        self._stamp(late, epoch)

    def _stamp(self, numbers: Sequence[int], epoch: int) -> None:
        """Write objects again, at this epoch, which is at most the cluster's."""

        def again(number: int) -> ObjectExtents:
            o = self._part.objects[number]
            try:
                body = self._cluster.store.get(o.key).body
            except ObjectNotFoundError as e:
                raise StagedObjectSweptError(
                    f"{e}: it was swept before its batch was committed, which took longer than two epochs. Nothing of it is "
                    f"committed in journal {self._part.journal}; write smaller batches, or sweep with --min-age"
                ) from e
            return msgspec.structs.replace(o, key=self._cluster.write_l0(body, epoch), epoch=epoch)

        for number, o in zip(numbers, self._cluster.parallel.map(again, numbers), strict=True):
            self._part.objects[number] = o
        self._result.restamped += len(numbers)
