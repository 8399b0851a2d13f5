"""Builds entries of a journal by hand, and a journal's handle on a store in memory."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from l0gc.epoch import prev
from l0gc.keys import DEFAULT_TEMPLATE, KeyLayout
from l0gc.storage.entry import StoredEntry, join_state, split_state
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.journal.apply import apply
from l0gc.streamlog.journal.entries import (
    GIVE_UP,
    RECONCILE,
    Edit,
    EditedTopic,
    JournalEntry,
    Kind,
    ObjectExtents,
    Objects,
)
from l0gc.streamlog.journal.handle import JournalHandle
from l0gc.streamlog.journal.producers import InputSpan, ProducerBatch
from l0gc.streamlog.journal.rows import (
    BLOCK,
    L1_ROW,
    MISFITS,
    NUMBER,
    START,
    Rows,
    pack,
)
from l0gc.streamlog.journal.shared import NAMED, SHARED_ROW, SharedObject
from l0gc.streamlog.journal.state import JournalState
from tests.support.memory_store import MemoryStore, memory_cluster

REVISION = 3
TOPIC_ID = "id-of-events"
LAYOUT = KeyLayout(DEFAULT_TEMPLATE)


def name_of(number: int) -> str:
    """Return the UUID of this number."""
    return str(uuid.UUID(int=number))


def key_of(epoch: int, number: int = 0) -> str:
    """Return an L0 key of the epoch."""
    return LAYOUT.format(0, epoch, name_of(number))


def bound_of(state: JournalState, revision: int, partition: int) -> int:
    """Return the lowest epoch that a partition may still need."""
    return int(state.bounds(revision, partition, 1)[0])


def gc_epoch_of(state: JournalState, revision: int, partition: int) -> int:
    """Return M(p)."""
    return prev(bound_of(state, revision, partition))


def lowest_of(state: JournalState) -> int:
    """Return the lowest epoch that the journal may still need, whatever topics it has."""
    return min([state.previous_applied_epoch, *(o.epoch for t in state.topics.values() for o in t.objects)])


def extents_of(
    epoch: int,
    records: Mapping[int, int] | None = None,
    *,
    key: str = "",
    revision: int = REVISION,
    topic_id: str = TOPIC_ID,
    producer: ProducerBatch | None = None,
    per_block: int = 2,
) -> ObjectExtents:
    """Return an object at `epoch` with this many records for each partition; one record for partition 0 by default."""
    counts = dict(sorted((records if records is not None else {0: 1}).items()))
    sizes = [min(per_block, len(counts) - at) for at in range(0, len(counts), per_block)]
    blocks = np.array([(100 + n, n, n, 1000) for n in sizes], BLOCK)
    return ObjectExtents(
        key or key_of(epoch),
        epoch,
        revision,
        topic_id,
        0,
        pack(blocks),
        pack(np.array(list(counts), NUMBER)),
        pack(np.array(list(counts.values()), NUMBER)),
        producer,
    )


def batch(
    sequence: int, *, producer_id: int = 7, epoch: int = 0, run: str = "run-1", inputs: Sequence[InputSpan] = ()
) -> ProducerBatch:
    return ProducerBatch(producer_id, epoch, run, sequence, list(inputs))


def landed(offset: int, entry: JournalEntry, *, time_ms: int = 0) -> StoredEntry:
    payload = msgspec.msgpack.encode(entry)
    return StoredEntry(offset, time_ms, payload, time_ms, len(payload))


class Journal:
    """A state and its entries, without a store."""

    def __init__(self) -> None:
        self.state = JournalState()
        self.entries: list[StoredEntry] = []

    def apply(self, entry: JournalEntry, *, time_ms: int = 0) -> int:
        """Apply an entry at the next offset, and return that offset."""
        self.entries.append(landed(len(self.entries), entry, time_ms=time_ms))
        try:
            apply(self.state, self.entries[-1], "the test's log")
        except BaseException:
            del self.entries[-1]
            raise
        return len(self.entries) - 1

    def land(self, *objects: ObjectExtents, time_ms: int = 0) -> int:
        return self.apply(Objects(list(objects)), time_ms=time_ms)

    def reconcile(self, upto: Mapping[int, int], *, revision: int = REVISION, epoch: int = 0) -> int:
        """Lift the records of partitions up to the given offsets, each partition's into one L1 object."""
        return self.apply(reconciled(self.state, upto, revision=revision, epoch=epoch))


def reconciled(
    state: JournalState,
    upto: Mapping[int, int],
    *,
    revision: int = REVISION,
    epoch: int = 0,
    misfits: Mapping[int, int] = {},
) -> Edit:
    """Return the edit that lifts partitions from their last reconciled offset up to the given offsets.

    `misfits` counts the records of a partition that do not fit the value schema.
    """
    topic = state.topic(revision)
    files = [
        l1_row(partition, topic.view(partition).last_reconciled_offset + 1, last, epoch=epoch)
        for partition, last in sorted(upto.items())
    ]
    counts = np.array([*misfits.items()], MISFITS)
    return edit(RECONCILE, epoch, revision, topic.topic_id, added=l1_rows(*files), misfits=counts)


def edit(kind: Kind, epoch: int, revision: int = REVISION, topic_id: str = TOPIC_ID, /, **columns: Rows) -> Edit:
    """Return an edit of one topic."""
    return Edit(kind, epoch, [EditedTopic.of(revision, topic_id, **columns)])


def starts_of(starts: Mapping[int, int]) -> Rows:
    """Return the rows of the offsets at which partitions are to begin."""
    return np.array(sorted(starts.items()), START)


def give_up(
    ranges: Mapping[int, tuple[int, int]], epoch: int = 0, revision: int = REVISION, topic_id: str = TOPIC_ID
) -> Edit:
    """Return the edit that gives up one range of records of each partition."""
    rows = (l1_row(p, *span, epoch=epoch, name=90_000 + span[1], hole=1) for p, span in sorted(ranges.items()))
    return edit(GIVE_UP, epoch, revision, topic_id, added=l1_rows(*rows))


def l1_row(
    partition: int,
    base: int,
    last: int,
    *,
    epoch: int = 0,
    name: int | None = None,
    max_timestamp: int = 0,
    size: int = 0,
    hole: int = 0,
) -> tuple[object, ...]:
    """Return a row of `L1_ROW`; by default it has 10 bytes for each record and is named for the last one."""
    named = uuid.UUID(int=last if name is None else name).bytes
    return partition, base, last, size or 10 * (last - base + 1), max_timestamp, epoch, named, hole


def l1_rows(*rows: tuple[object, ...]) -> Rows:
    return np.array(list(rows), L1_ROW)


def parts_of(checkpoint: bytes) -> tuple[list[Any], list[Any]]:
    """Return the two parts of an encoded state, decoded, so that a test can damage them."""
    head, rest = split_state(checkpoint)
    return msgspec.msgpack.decode(head), msgspec.msgpack.decode(rest)


def of_parts(head: list[Any], rest: list[Any]) -> bytes:
    """Return an encoded state of these parts."""
    return join_state(msgspec.msgpack.encode(head), msgspec.msgpack.encode(rest))


def journal_of(
    partitions: int = 1, *, store: MemoryStore | None = None, seed: int = 0, journals: int = 1
) -> tuple[ClusterHandles, Topic, JournalHandle]:
    """Create a cluster in memory with a topic `events`; return the cluster, the topic and the handle of its first
    journal.
    """
    cluster = memory_cluster(store or MemoryStore(), seed=seed)
    topic, _ = cluster.controller.create_topic("events", partitions, journals)
    return cluster, topic, cluster.journal(topic.journals[0])


def of_topic(topic: Topic, epoch: int, records: Mapping[int, int] | None = None, **more: object) -> ObjectExtents:
    """Return `extents_of` for a topic of a cluster."""
    return extents_of(epoch, records, revision=topic.revision, topic_id=topic.topic_id, **more)  # type: ignore[arg-type]


def shared_object(
    rows: Mapping[int, tuple[int, int]], *, epoch: int = 5, name: int = 1, per_block: int = 2, newest: int = 7
) -> SharedObject:
    """Return a shared object with records of partitions, each from its first to its last offset."""
    counts = [min(per_block, len(rows) - at) for at in range(0, len(rows), per_block)]
    blocks = np.array([(100, 0, n, 1000) for n in counts], BLOCK)
    found = [(p, last + 1 - base, base, newest) for p, (base, last) in sorted(rows.items())]
    flags = np.full(len(rows), NAMED, np.uint8)
    return SharedObject(uuid.UUID(int=name).bytes, epoch, blocks, np.array(found, SHARED_ROW), flags)
