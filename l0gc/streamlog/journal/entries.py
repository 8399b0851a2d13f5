"""The entries of a journal's log."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from functools import cached_property
from itertools import groupby
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np

from l0gc.decoding import decoded
from l0gc.epoch import is_epoch
from l0gc.errors import CorruptObjectError, UsageError
from l0gc.streamlog.journal.producers import Int62, ProducerBatch
from l0gc.streamlog.journal.rows import (
    L1_ROW,
    MAX_OFFSET,
    MISFITS,
    NO_NUMBERS,
    START,
    Rows,
    ascending,
    check_rows,
    continues,
    distinct,
    in_order,
    is_hole,
    pack,
    ranges_of,
    the_same,
    unpack,
)
from l0gc.streamlog.journal.shared import LEFT, PackedShared, SharedObject, unpack_shared

ENTRY_BYTES: Final = 1 << 20
"""The approximate size limit of an entry's content; the rest goes into the next entry."""


class ObjectExtents(msgspec.Struct, frozen=True, array_like=True):
    """This journal's part of an L0 object: the places of its partitions' records in the object.

    Its blocks lie one after another from byte `start` on. Each holds the records of one or more partitions, in order of
    partition; a partition's records lie in one block. Offsets are not stored: `apply` assigns them.

    Attributes:
        epoch: the epoch in its key.
        revision, topic_id: the topic's incarnation. The id is random, since a restored log can assign a revision twice.
        blocks: rows of `rows.BLOCK`.
        partitions: the partitions, ascending, as `rows.NUMBER`.
        records: how many records each of them has, as `rows.NUMBER`.
    """

    key: str
    epoch: Int62
    revision: Int62
    topic_id: str
    start: Int62
    blocks: bytes
    partitions: bytes
    records: bytes
    producer: ProducerBatch | None = None


class Objects(msgspec.Struct, frozen=True, array_like=True, tag="o"):
    """Adds data: L0 objects, in the order of their admission."""

    objects: list[ObjectExtents]


class Advance(msgspec.Struct, frozen=True, array_like=True, tag="a"):
    """Slides the window to `epoch` without data."""

    epoch: Int62


class Barrier(msgspec.Struct, frozen=True, array_like=True, tag="b"):
    """Closes the window to `epoch` alone; a straggler below it must upload again."""

    epoch: Int62


RECONCILE: Final = "reconcile"
MERGE: Final = "merge"
DRAIN: Final = "drain"
EXPIRE: Final = "expire"
GIVE_UP: Final = "give-up"
Kind = Literal["reconcile", "merge", "drain", "expire", "give-up"]


class Change(NamedTuple):
    """The changes of an edit in a topic's partitions, as rows by partition and offset; `partitions` are the changed ones.

    `added` and `removed` are L1 objects; `starts` are new log start offsets; `misfits` counts the added records that do
    not fit the topic's value schema. `shared` are shared L1 objects; their named rows are added.
    """

    partitions: Rows
    added: Rows
    removed: Rows
    starts: Rows
    misfits: Rows
    shared: tuple[SharedObject, ...] = ()

    @property
    def columns(self) -> tuple[Rows, ...]:
        """Return the rows, in the order of `_COLUMNS`."""
        return self.added, self.removed, self.starts, self.misfits

    @property
    def lifted(self) -> Rows:
        """Return the contiguous ranges that are added, as rows of `RANGE` by partition and offset."""
        return in_order(np.concatenate([ranges_of(self.added), *(o.ranges() for o in self.shared)]))


class EditedTopic(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """An edit's part of one topic: the columns of a `Change`, packed.

    Attributes:
        revision, topic_id: the topic's incarnation, as in `ObjectExtents`.
        added, removed: rows of `L1_ROW`.
        starts: rows of `START`.
        misfits: rows of `MISFITS`, one for each partition that has some.
        shared: shared L1 objects, each with all of its rows; those that the edit adds are named.
    """

    revision: Int62
    topic_id: str
    added: bytes = b""
    removed: bytes = b""
    starts: bytes = b""
    misfits: bytes = b""
    shared: list[PackedShared] = []

    @staticmethod
    def of(revision: int, topic_id: str, shared: Iterable[SharedObject] = (), **columns: Rows) -> EditedTopic:
        """Pack rows, which must be ordered by partition and offset."""
        packed = {name: pack(rows) for name, rows in columns.items()}
        return EditedTopic(revision, topic_id, **packed, shared=[o.packed() for o in shared])

    @cached_property
    def change(self) -> Change:
        """Return the rows. Raises `UsageError` if they are malformed."""
        added, removed, starts, misfits = (unpack(getattr(self, name), kind) for name, kind in _COLUMNS.items())
        for rows in (added, removed):
            check_rows(rows)
        shared = tuple(map(unpack_shared, self.shared))
        partitions = [rows["partition"] for rows in (added, removed, starts, misfits)]
        partitions += [o.partitions for o in shared]
        return Change(distinct(np.concatenate(partitions)), added, removed, starts, misfits, shared)

    def only(self, partitions: Rows) -> EditedTopic:
        """Return the part of the edit that concerns some of its partitions."""
        columns = zip(_COLUMNS, self.change.columns, strict=True)
        selected = {name: rows[np.isin(rows["partition"], partitions)] for name, rows in columns}
        shared = (o.only(np.isin(o.rows["partition"], partitions)) for o in self.change.shared)
        return EditedTopic.of(self.revision, self.topic_id, (o for o in shared if o.is_named.any()), **selected)


_COLUMNS: Final = {
    "added": L1_ROW,
    "removed": L1_ROW,
    "starts": START,
    "misfits": MISFITS,
}


class Edit(msgspec.Struct, frozen=True, array_like=True, tag="e"):
    """Changes the L1 objects of partitions, or the offsets at which they begin; every object that it adds is durable.

    *reconcile*: the added objects hold records that were in L0. *merge*: the added objects hold exactly the records of
    the removed ones. *drain*: the added objects hold exactly the records of rows of shared objects, which leave without
    being named. *expire*: partitions begin at `starts`; objects and extents wholly below it leave without being named.
    *give up*: each partition gets a hole, an L1 object without rows for lost records that were in L0.

    It is parsed, and checked as far as possible without a state, when it is decoded or built: see `edits.fits`.

    Attributes:
        epoch: the run's epoch; objects that leave the lists are kept for some epochs from then on.

    Raises:
        UsageError: it is invalid in any state.
    """

    kind: Kind
    epoch: Int62
    topics: list[EditedTopic]

    def __post_init__(self) -> None:
        if not is_epoch(self.epoch):
            raise UsageError(f"{self.epoch} is not an epoch")
        if not self.topics or len({t.revision for t in self.topics}) != len(self.topics):
            raise UsageError("an edit names no topic, or one twice")
        for t in self.topics:
            _check_change(self.kind, t.change)

    @property
    def drops(self) -> bool:
        """Return whether the edit removes objects from a partition's list."""
        changes = [t.change for t in self.topics]
        return self.kind == DRAIN or any(len(c.removed) or len(c.starts) for c in changes)

    def without(self, refused: Container[tuple[int, int]]) -> Edit | None:
        """Return the edit without some partitions, given as (revision, partition); None if nothing is left."""
        topics = []
        for t in self.topics:
            left = [(t.revision, partition) not in refused for partition in t.change.partitions.tolist()]
            if any(left):
                topics.append(t if all(left) else t.only(t.change.partitions[left]))
        return msgspec.structs.replace(self, topics=topics) if topics else None

    def divided(self, limit: int) -> Iterator[Edit]:
        """Yield the edit in parts of at most `limit` bytes of rows; a single partition or shared object is never
        divided.
        """
        units = [unit for n, t in enumerate(self.topics) for unit in _units(n, t.change)]
        ends = np.cumsum([weight for *_, weight in units])
        first, before = 0, 0
        while first < len(ends):
            end = max(first + 1, int(np.searchsorted(ends, before + limit, "right")))
            if end - first == len(ends):
                yield self
                return
            topics = [
                self.topics[n].only(np.sort(np.concatenate([partitions for _, partitions, _ in group])))
                for n, group in groupby(units[first:end], key=lambda unit: unit[0])
            ]
            yield msgspec.structs.replace(self, topics=topics)
            first, before = end, int(ends[end - 1])


def _units(topic: int, c: Change) -> Iterator[tuple[int, Rows, int]]:
    """Yield the parts of a change that must stay in one entry, in order: the topic, the partitions, the bytes of their
    rows.
    """
    weights = np.zeros(len(c.partitions), np.int64)
    for rows in c.columns:
        np.add.at(weights, np.searchsorted(c.partitions, rows["partition"]), rows.dtype.itemsize)
    for o in c.shared:
        yield topic, o.partitions, o.blocks.nbytes + o.rows.nbytes
    alone = ~np.isin(c.partitions, np.concatenate([NO_NUMBERS, *(o.partitions for o in c.shared)]))
    for at in np.flatnonzero(alone).tolist():
        yield topic, c.partitions[at : at + 1], int(weights[at])


def _check_change(kind: Kind, c: Change) -> None:
    """Raise `UsageError` if a topic of an edit does not match the edit's kind."""
    records = {MERGE: c.removed, DRAIN: c.added, EXPIRE: c.starts}.get(kind)
    records = c.lifted if records is None else records
    if not len(records) or len(distinct(records["partition"])) != len(c.partitions):
        raise UsageError(f"{kind} names no records of a partition that it changes")
    if (
        (len(c.added) > 0 or len(c.shared) > 0) is (kind == EXPIRE)
        or (len(c.removed) and kind != MERGE)
        or (len(c.starts) and kind != EXPIRE)
        or (kind != RECONCILE and (len(c.misfits) or c.shared))
    ):
        raise UsageError(f"{kind} has rows that are not allowed in it")
    if len({o.name for o in c.shared}) != len(c.shared) or any((o.flags == LEFT).any() for o in c.shared):
        raise UsageError("it names a shared L1 object twice, or rows of one that have left")
    if (is_hole(c.added) != (kind == GIVE_UP)).any():
        raise UsageError("only a give-up edit adds holes, and it adds nothing else (hazard 35)")
    match kind:
        case "reconcile" | "give-up":
            ranges, misfits = c.lifted, c.misfits["records"]
            if not continues(c.added) or len(ranges) != len(c.partitions):
                raise UsageError("the L1 objects of a partition leave a gap, or are of two kinds")
            lifted = (ranges["last"] + 1 - ranges["base"])[np.searchsorted(c.partitions, c.misfits["partition"])]
            if not ascending(c.misfits["partition"]) or (misfits < 1).any() or (misfits > lifted).any():
                raise UsageError(
                    "more records do not fit the value schema than are lifted, or partitions are not in order"
                )
        case "merge":
            if is_hole(c.removed).any():
                raise UsageError("a hole cannot be merged: its records are lost (hazard 35)")
            added, removed = ranges_of(c.added), ranges_of(c.removed)
            if len(added) != len(removed) or not the_same(added, removed).all():
                raise UsageError("the merged L1 objects do not hold exactly the records of those that they replace")
        case "expire":
            starts = c.starts["offset"]
            if not ascending(c.starts["partition"]) or c.partitions[0] < 0:
                raise UsageError("the partitions with a new log start offset are not in order")
            if (starts < 0).any() or (starts > MAX_OFFSET).any():
                raise UsageError("a log start offset is impossible")


class FenceL1(msgspec.Struct, frozen=True, array_like=True, tag="f"):
    """Forbids later entries to list an L1 object that is stamped below `epoch`."""

    epoch: Int62


class Purged(msgspec.Struct, frozen=True, array_like=True, tag="p"):
    """Records that dropped objects, given by their UUIDs of 16 bytes, are deleted from the bucket."""

    names: bytes


class ClosedTopic(msgspec.Struct, frozen=True, array_like=True):
    """A topic that was deleted.

    The id is the topic's, as in `ObjectExtents`: a deletion by a restored log must not end another topic (hazard 10). An
    empty id stands for any topic with the revision.
    """

    revision: Int62
    topic_id: str = ""


class Closed(msgspec.Struct, frozen=True, array_like=True, tag="c"):
    """Records that these topics are deleted. `epoch` is the cluster epoch at the time of the append."""

    topics: list[ClosedTopic]
    epoch: Int62 = 0


class SetBack(msgspec.Struct, frozen=True, array_like=True, tag="s"):
    """Records that an operator accepted a log that was set back to an older copy; `times` counts the acceptances.

    `epoch` is a fresh tick. Nothing lands below it. An object that is stamped below it can no longer be listed, but is
    not an orphan, since the lost part may have listed it (hazard 38).
    """

    epoch: Int62
    times: Int62


JournalEntry = Objects | Advance | Barrier | Edit | FenceL1 | Purged | Closed | SetBack


_ENTRY: Final[msgspec.msgpack.Decoder[JournalEntry]] = msgspec.msgpack.Decoder(JournalEntry)


def decode_journal_entry(payload: bytes, where: str) -> JournalEntry:
    """Return the entry in a log entry's payload. Raises `CorruptObjectError`, naming `where`."""
    try:
        return decoded(_ENTRY, payload, f"{where} cannot be read")
    except UsageError as e:
        raise CorruptObjectError(f"{where} should never have landed: {e}") from e
