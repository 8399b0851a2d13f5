"""What entries about L1 say, unpacked, and whether they can be meant at all, for whatever state (pure).

Whether they fit the state where they land is for `TopicState` to say.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from l0gc.streamlog.journal.l1 import Change
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
    pack,
    the_same,
    unpack,
)


class Expiry(NamedTuple):
    """Where partitions, ascending, are to begin, and what that does to index objects that it cuts."""

    partitions: Rows
    starts: Rows
    change: Change


def check_commit(e: ReconciledTopic) -> tuple[Rows, Change]:
    """The ranges of a reconciler's commit, and what it does to L1.

    Raises:
        StaleReconcilerError: it does not hold what it says.
    """
    try:
        ranges = unpack(e.ranges, RANGE)
        change = Change(unpack(e.files, L1_ROW), Change().replaced, *_indexes(e.indexes, e.replaced_indexes))
        check_l1_rows(change.files)
    except UsageError as error:
        raise StaleReconcilerError(f"the commit cannot be read: {error}") from error
    if not len(ranges) or not ascending(ranges["partition"]) or ranges["partition"][0] < 0 or not continues(ranges):
        raise StaleReconcilerError("the commit has no ranges, or they are not in order of partition")
    if not len(change.files) or not continues(change.files):
        raise StaleReconcilerError("the commit's L1 objects leave a gap, or overlap")
    if not _same_ranges(ranges_of(change.files), ranges):
        raise StaleReconcilerError("the commit's L1 objects do not hold exactly the records that it names")
    _check_partitions(ranges["partition"], change)
    return ranges, change


def check_merge(e: MergedTopic) -> Change:
    """What a merge does to L1. Raises `StaleReconcilerError`: it does not hold what it says."""
    try:
        columns = unpack(e.files, L1_ROW), unpack(e.replaced, L1_ROW)
        change = Change(*columns, *_indexes(e.indexes, e.replaced_indexes))
        for rows in columns:
            check_l1_rows(rows)
    except UsageError as error:
        raise StaleReconcilerError(f"the merge cannot be read: {error}") from error
    if not len(change.replaced) or not _same_ranges(_runs(change.files), _runs(change.replaced)):
        raise StaleReconcilerError("the merged L1 objects do not hold exactly the records of those that they replace")
    _check_partitions(change.replaced["partition"], change)
    return change


def check_expiry(e: ExpiredTopic) -> Expiry:
    """What an expiry says. Raises `UsageError`: it cannot be meant."""
    partitions, starts = unpack(e.partitions, NUMBER), unpack(e.log_start_offsets, OFFSET)
    dropped = unpack(e.dropped, L1_ROW)
    change = Change(Change().files, dropped, *_indexes(e.indexes, e.replaced_indexes))
    check_l1_rows(dropped)
    if not len(partitions) or len(partitions) != len(starts) or not ascending(partitions) or partitions[0] < 0:
        raise UsageError("the partitions are missing, not in order, or not as many as their log start offsets")
    if (starts < 0).any() or (starts > MAX_OFFSET).any():
        raise UsageError("a log start offset is impossible")
    if any(~np.isin(rows["partition"], partitions).all() for rows in change):
        raise UsageError("it names an L1 or index object of a partition that it does not expire")
    if (dropped["last"] >= starts[np.searchsorted(partitions, dropped["partition"])]).any():
        raise UsageError("it drops an L1 object that is not wholly below the log start offset")
    return Expiry(partitions, starts, change)


def check_l1_rows(rows: Rows) -> None:
    """Raises `UsageError`: rows of `L1_ROW` that cannot be, overlap, or are not in order."""
    _check_spans(rows)
    wrong = (
        (rows["bytes"] < 0) | (rows["bytes"] > MAX_OFFSET) | _wrong_epochs(rows) | _wrong_times(rows["max_timestamp"])
    )
    if wrong.any():
        raise UsageError("an L1 object has a number that cannot be")


def check_index_rows(rows: Rows) -> None:
    """Raises `UsageError`: rows of `INDEX_ROW` that cannot be, overlap, or are not in order."""
    _check_spans(rows)
    wrong = (rows["rows"] < 1) | (rows["size"] < 0) | _wrong_epochs(rows) | _wrong_times(rows["head_timestamp"])
    for column in ("bytes", "head_bytes"):
        wrong |= (rows[column] < 0) | (rows[column] > MAX_OFFSET)
    if wrong.any():
        raise UsageError("an index object has a number that cannot be")


def lowest_epoch(epoch: int, *changes: Change) -> int:
    """The lowest epoch that a commit at `epoch`, or anything that it names anew, is stamped with."""
    stamps = [rows["epoch"] for c in changes for rows in (c.files, c.indexes) if len(rows)]
    return min([epoch, *(int(s.min()) for s in stamps)])


def ranges_of(files: Rows) -> Rows:
    """The range of records that each partition's L1 objects hold, as rows of `RANGE`; they leave no gap."""
    return _joined(files, files["partition"][1:] != files["partition"][:-1])


def _runs(files: Rows) -> Rows:
    """The ranges of records that L1 objects hold, without a gap each."""
    breaks = files["partition"][1:] != files["partition"][:-1]
    return _joined(files, breaks | (files["base"][1:] != files["last"][:-1] + 1))


def _joined(files: Rows, breaks: Rows) -> Rows:
    if not len(files):
        return np.empty(0, RANGE)
    first = np.flatnonzero(np.r_[True, breaks])
    ranges = np.empty(len(first), RANGE)
    ranges["partition"], ranges["base"] = files["partition"][first], files["base"][first]
    ranges["last"] = files["last"][np.r_[first[1:], len(files)] - 1]
    return ranges


def _same_ranges(a: Rows, b: Rows) -> bool:
    return len(a) == len(b) and bool(the_same(a, b).all())


def _indexes(*columns: bytes) -> tuple[Rows, Rows]:
    """The index objects that an entry adds, and those that it takes away."""
    added, replaced = (unpack(column, INDEX_ROW) for column in columns)
    check_index_rows(added)
    check_index_rows(replaced)
    return added, replaced


def _check_partitions(partitions: Rows, change: Change) -> None:
    if any(~np.isin(rows["partition"], partitions).all() for rows in (change.indexes, change.replaced_indexes)):
        raise StaleReconcilerError("the commit names an index object of a partition of which it names no records")


def _check_spans(rows: Rows) -> None:
    """Raises `UsageError`: rows that are not in order of partition and offset, or overlap."""
    partition, base, last = rows["partition"], rows["base"], rows["last"]
    if (partition < 0).any() or (base < 0).any() or (last < base).any() or (last > MAX_OFFSET).any():
        raise UsageError("an L1 or index object has a partition or an offset that cannot be")
    follows = (partition[1:] > partition[:-1]) | ((partition[1:] == partition[:-1]) & (base[1:] > last[:-1]))
    if not follows.all():
        raise UsageError("L1 or index objects overlap, or are not in order")


def _wrong_epochs(rows: Rows) -> Any:
    return (rows["epoch"] < 0) | (rows["epoch"] > MAX_EPOCH)


def _wrong_times(times: Rows) -> Any:
    return (times < -MAX_OFFSET) | (times > MAX_OFFSET)


T = TypeVar("T", Reconciled, Merged, Expired)


def without(e: T, refused: Mapping[tuple[int, int], object]) -> T | None:
    """An entry without the partitions that were refused, as (revision, partition); None if nothing is left of it."""
    by_revision: dict[int, list[int]] = {}
    for revision, partition in refused:
        by_revision.setdefault(revision, []).append(partition)
    topics = [
        left
        for t in e.topics
        if (left := _topic_without(t, np.array(by_revision.get(t.revision, []), np.int64))) is not None
    ]
    return msgspec.structs.replace(e, topics=topics) if topics else None


_COLUMNS: Final[Mapping[type, Mapping[str, np.dtype[Any]]]] = {
    ReconciledTopic: {"ranges": RANGE, "files": L1_ROW, "indexes": INDEX_ROW, "replaced_indexes": INDEX_ROW},
    MergedTopic: {"replaced": L1_ROW, "files": L1_ROW, "indexes": INDEX_ROW, "replaced_indexes": INDEX_ROW},
    ExpiredTopic: {"indexes": INDEX_ROW, "replaced_indexes": INDEX_ROW, "dropped": L1_ROW},
}
"""The columns of an entry's topic whose rows say which partition they are of."""


def _topic_without(t: Any, gone: Rows) -> Any:
    if not len(gone):
        return t
    left: dict[str, bytes] = {}
    for name, kind in _COLUMNS[type(t)].items():
        rows = unpack(getattr(t, name), kind)
        left[name] = pack(rows[~np.isin(rows["partition"], gone)])
    if isinstance(t, ExpiredTopic):
        partitions, starts = unpack(t.partitions, NUMBER), unpack(t.log_start_offsets, OFFSET)
        stays = ~np.isin(partitions, gone)
        left |= {"partitions": pack(partitions[stays]), "log_start_offsets": pack(starts[stays])}
    rest = left.get("ranges", left.get("replaced", left.get("partitions")))
    return msgspec.structs.replace(t, **left) if rest else None
