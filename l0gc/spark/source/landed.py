"""Which batch of a sink has landed in a journal, and whether the one that comes now is the same (hazard 30).

A number alone does not identify a batch. A query that goes on with an older copy of its checkpoint, or without the newest
files of it, gives the number of a batch that has landed to other rows. To skip them would lose them, to land them would
repeat others. So with the number a journal keeps how many rows the whole batch had and their digest (`digest.py`), and
compares:

- the same number with the same rows has landed: what a driver replays that died in its commit;
- the same number with other rows is an error, and so is a number below the newest, since Spark replays only the last batch.

All journals of the batch's topics are asked before any of them takes a part, since other rows may all go to journals that
had none of the batch. For a stream whose rows name their topics, every journal in use is asked, those of other topics once
in a process. Where a part lands, its journal is asked again (`commit.py`), since two drivers may commit at once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from l0gc.errors import BatchMismatchError, CorruptObjectError, ProtocolError
from l0gc.formatting import count
from l0gc.spark.source.stage import StagedObject
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.journal.entries import InputProgress

_log: Final = logging.getLogger(__name__)
PLACES: Final = 24
"""A position in a producer's input is a batch's number, and in so many bits below it an object's."""
_WAY_OUT: Final = (
    "restore the newest checkpoint, or start the query with a new one (with batchId also a new producerName) after the last "
    "row that landed, see docs/spark.md#a-checkpoint-that-went-back"
)


@dataclass(frozen=True, slots=True)
class BatchId:
    """Which batch this is: number `number` of what the producer `producer` writes as `name`.

    Attributes:
        topic: that of rows that name none.
        any_topic: whether rows may name other topics; a batch of that number may have had rows for any of them.
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
            f"in journal {journal} with {there}: the query's checkpoint went back, or another driver runs it; {_WAY_OUT}"
        )
    if there != rows:
        raise BatchMismatchError(
            f"batch {batch.number} of producer {batch.producer!r} landed in journal {journal} with {there}, and comes again "
            f"with {rows}: the query's checkpoint went back, or the query gives other rows when it is repeated; {_WAY_OUT}"
        )
    return True


def refuse_other_rows(cluster: Cluster, batch: BatchId, rows: BatchRows, topics: Iterable[str]) -> None:
    """Refuse a batch of which any journal that may have it has another one.

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
                    has_landed(batch, rows, journal, handle.progress_of(batch.input_of(topic.revision)))
        except CorruptObjectError as e:
            if journal in fresh:
                raise
            _log.warning("whether journal %d has other rows of batch %d is not known: %s", journal, batch.number, e)

    cluster.parallel.map(ask, sorted({j for t in asked for j in t.journals}))
