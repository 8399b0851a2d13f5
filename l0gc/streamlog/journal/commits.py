"""What entries about L1 say, unpacked, and whether they can be meant at all, for whatever state (pure).

Whether they fit the state where they land is for `TopicState` to say.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np

from l0gc.epoch import MAX_EPOCH
from l0gc.errors import StaleReconcilerError, UsageError
from l0gc.streamlog.journal.entries import (
    Expired,
    ExpiredTopic,
    Merged,
    MergedTopic,
    Reconciled,
    ReconciledTopic,
)
from l0gc.streamlog.journal.l1 import NO_L1_ROWS, Change
from l0gc.streamlog.journal.rows import (
    INDEX_ROW,
    L1_ROW,
    MAX_OFFSET,
    NUMBER,
    OFFSET,
    RANGE,
    Rows,
    ascending,
    continues,
    distinct,
    hole_rows,
    is_hole,
    pack,
    the_same,
    unpack,
)

_LIMITS: Final = {
    "rows": (1, MAX_OFFSET),
    "size": (0, MAX_OFFSET),
    "bytes": (0, MAX_OFFSET),
    "head_bytes": (0, MAX_OFFSET),
    "epoch": (0, MAX_EPOCH),
    "max_timestamp": (-MAX_OFFSET, MAX_OFFSET),
    "head_timestamp": (-MAX_OFFSET, MAX_OFFSET),
}
"""What the numbers of L1 and index objects lie between."""


class Expiry(NamedTuple):
    """Where partitions, ascending, are to begin, and what that does to index objects that it cuts."""

    partitions: Rows
    starts: Rows
    change: Change


def check_commit(e: ReconciledTopic) -> tuple[Rows, Change]:
    """The ranges of a reconciler's commit, and what it does to L1. Raises `StaleReconcilerError`: it does not hold what it
    says."""
    try:
        ranges = unpack(e.ranges, RANGE)
        change = _change(e, files=e.files)
    except UsageError as error:
        raise StaleReconcilerError(f"the commit cannot be read: {error}") from error
    if not len(change.files) or not continues(change.files):
        raise StaleReconcilerError("the commit's L1 objects leave a gap, or overlap")
    if not len(ranges) or not ascending(ranges["partition"]) or ranges["partition"][0] < 0 or not continues(ranges):
        raise StaleReconcilerError("the commit has no ranges, or they are not in order of partition")
    if not _same_ranges(ranges_of(change.files), ranges):
        raise StaleReconcilerError("the commit's L1 objects do not hold exactly the records that it names")
    _check_partitions(ranges["partition"], change)
    return ranges, change


def check_merge(e: MergedTopic) -> Change:
    """What a merge does to L1. Raises `StaleReconcilerError`: it does not hold what it says."""
    try:
        change = _change(e, e.files, e.replaced)
    except UsageError as error:
        raise StaleReconcilerError(f"the merge cannot be read: {error}") from error
    if is_hole(change.replaced).any():
        raise StaleReconcilerError("a hole cannot be merged: its records are not there (hazard 35)")
    if not len(change.replaced) or not _same_ranges(ranges_of(change.files), ranges_of(change.replaced)):
        raise StaleReconcilerError("the merged L1 objects do not hold exactly the records of those that they replace")
    _check_partitions(change.replaced["partition"], change)
    return change


def check_expiry(e: ExpiredTopic) -> Expiry:
    """What an expiry says. Raises `UsageError`: it cannot be meant."""
    partitions, starts = unpack(e.partitions, NUMBER), unpack(e.log_start_offsets, OFFSET)
    change = _change(e, replaced=e.dropped)
    if not len(partitions) or len(partitions) != len(starts) or not ascending(partitions) or partitions[0] < 0:
        raise UsageError("the partitions are missing, not in order, or not as many as their log start offsets")
    if (starts < 0).any() or (starts > MAX_OFFSET).any():
        raise UsageError("a log start offset is impossible")
    if any(~np.isin(rows["partition"], partitions).all() for rows in change):
        raise UsageError("it names an L1 or index object of a partition that it does not expire")
    if (change.replaced["last"] >= starts[np.searchsorted(partitions, change.replaced["partition"])]).any():
        raise UsageError("it drops an L1 object that is not wholly below the log start offset")
    return Expiry(partitions, starts, change)


def check_rows(rows: Rows) -> None:
    """Raises `UsageError`: rows of `L1_ROW` or `INDEX_ROW` that cannot be, overlap, or are not in order."""
    partition, base, last = rows["partition"], rows["base"], rows["last"]
    if (partition < 0).any() or (base < 0).any() or (last < base).any() or (last > MAX_OFFSET).any():
        raise UsageError("an L1 or index object has a partition or an offset that cannot be")
    follows = (partition[1:] > partition[:-1]) | ((partition[1:] == partition[:-1]) & (base[1:] > last[:-1]))
    if not follows.all():
        raise UsageError("L1 or index objects overlap, or are not in order")
    for column, (least, most) in _LIMITS.items():
        if column in (rows.dtype.names or ()) and ((rows[column] < least) | (rows[column] > most)).any():
            raise UsageError(f"an L1 or index object has a number that cannot be ({column})")
    holes = rows[is_hole(rows)] if rows.dtype == L1_ROW else NO_L1_ROWS
    if not the_same(holes, hole_rows(holes, holes["max_timestamp"])).all():
        raise UsageError("a hole has a size, an epoch or a name that it cannot have")


def lowest_epoch(epoch: int, *changes: Change) -> int:
    """The lowest epoch that a commit at `epoch`, or anything that it names anew, is stamped with."""
    stamps = [rows["epoch"] for c in changes for rows in (c.files, c.indexes) if len(rows)]
    return min([epoch, *(int(s.min()) for s in stamps)])


def ranges_of(files: Rows) -> Rows:
    """The ranges of records that L1 objects hold, without a gap each, as rows of `RANGE`."""
    if not len(files):
        return np.empty(0, RANGE)
    breaks = files["partition"][1:] != files["partition"][:-1]
    breaks |= files["base"][1:] != files["last"][:-1] + 1
    first = np.flatnonzero(np.r_[True, breaks])
    ranges = np.empty(len(first), RANGE)
    ranges["partition"], ranges["base"] = files["partition"][first], files["base"][first]
    ranges["last"] = files["last"][np.r_[first[1:], len(files)] - 1]
    return ranges


def _same_ranges(a: Rows, b: Rows) -> bool:
    return len(a) == len(b) and bool(the_same(a, b).all())


def _change(t: ReconciledTopic | MergedTopic | ExpiredTopic, files: bytes = b"", replaced: bytes = b"") -> Change:
    """What a topic of an entry adds to the lists and takes away. Raises `UsageError`: a row of it cannot be."""
    objects = (unpack(column, L1_ROW) for column in (files, replaced))
    change = Change(*objects, *(unpack(column, INDEX_ROW) for column in (t.indexes, t.replaced_indexes)))
    for rows in change:
        check_rows(rows)
    if is_hole(change.files).any():
        raise UsageError("it names a hole as an L1 object (hazard 35)")
    return change


def _check_partitions(partitions: Rows, change: Change) -> None:
    if any(~np.isin(rows["partition"], partitions).all() for rows in (change.indexes, change.replaced_indexes)):
        raise StaleReconcilerError("the commit names an index object of a partition of which it names no records")


T = TypeVar("T", Reconciled, Merged, Expired)

_COLUMNS: Final[Mapping[type, Mapping[str, np.dtype[Any]]]] = {
    ReconciledTopic: {"ranges": RANGE, "files": L1_ROW, "indexes": INDEX_ROW, "replaced_indexes": INDEX_ROW},
    MergedTopic: {"replaced": L1_ROW, "files": L1_ROW, "indexes": INDEX_ROW, "replaced_indexes": INDEX_ROW},
    ExpiredTopic: {"indexes": INDEX_ROW, "replaced_indexes": INDEX_ROW, "dropped": L1_ROW},
}
"""The columns of an entry's topic whose rows say which partition they are of."""


def partitions_of(t: ReconciledTopic | MergedTopic | ExpiredTopic) -> Rows:
    """The partitions that a topic of an entry is about, ascending."""
    match t:
        case ReconciledTopic():
            return distinct(unpack(t.ranges, RANGE)["partition"])
        case MergedTopic():
            return distinct(unpack(t.replaced, L1_ROW)["partition"])
        case ExpiredTopic():
            return unpack(t.partitions, NUMBER)


def places_of(e: Reconciled | Merged | Expired) -> list[tuple[int, int]]:
    """The partitions that an entry is about, as (revision, partition)."""
    return [(t.revision, partition) for t in e.topics for partition in partitions_of(t).tolist()]


def without(e: T, refused: Container[tuple[int, int]]) -> T | None:
    """An entry without the partitions that were refused, as (revision, partition); None if nothing is left of it."""
    topics = []
    for t in e.topics:
        partitions = partitions_of(t)
        left = [(t.revision, partition) not in refused for partition in partitions.tolist()]
        if any(left):
            topics.append(t if all(left) else _only(t, partitions[left]))
    return msgspec.structs.replace(e, topics=topics) if topics else None


def divided(e: T, limit: int) -> Iterator[T]:
    """An entry as several of at most `limit` bytes of rows, or of a single partition."""
    if not e.topics:
        return
    partitions = [partitions_of(t) for t in e.topics]
    owners = np.repeat(np.arange(len(e.topics)), list(map(len, partitions)))
    every = np.concatenate(partitions)
    ends = np.cumsum(np.concatenate([_weights(t, some) for t, some in zip(e.topics, partitions, strict=True)]))
    first, before = 0, 0
    while first < len(ends):
        end = max(first + 1, int(np.searchsorted(ends, before + limit, "right")))
        some, of = every[first:end], owners[first:end]
        topics = [_only(e.topics[n], some[of == n]) for n in distinct(of).tolist()]
        yield msgspec.structs.replace(e, topics=topics)
        first, before = end, int(ends[end - 1])


def _weights(t: Any, partitions: Rows) -> Rows:
    """How many bytes each of the partitions takes."""
    weights = np.full(len(partitions), NUMBER.itemsize + OFFSET.itemsize if isinstance(t, ExpiredTopic) else 0)
    for name, kind in _COLUMNS[type(t)].items():
        rows = unpack(getattr(t, name), kind)
        np.add.at(weights, np.searchsorted(partitions, rows["partition"]), kind.itemsize)
    return weights


def _only(t: Any, partitions: Rows) -> Any:
    """What a topic of an entry says about some of its partitions."""
    columns: dict[str, bytes] = {}
    for name, kind in _COLUMNS[type(t)].items():
        rows = unpack(getattr(t, name), kind)
        columns[name] = pack(rows[np.isin(rows["partition"], partitions)])
    if isinstance(t, ExpiredTopic):
        starts = unpack(t.log_start_offsets, OFFSET)[np.isin(partitions_of(t), partitions)]
        columns |= {"partitions": pack(partitions), "log_start_offsets": pack(starts)}
    return msgspec.structs.replace(t, **columns)
