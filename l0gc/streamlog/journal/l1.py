"""The lists of L1 objects that a journal keeps for its partitions, and how an entry changes them (pure).

A partition's list begins with its index objects, each of which stands for the L1 objects that it lists, and ends with the
newest L1 objects. It holds every record from the oldest that is kept to the last reconciled one.

What makes it safe (hazard 24): an entry names exactly the objects that it takes away, and they go only if they are in the
list at the very offset where it lands. Of what an index object lists the state holds sums: how many objects, their bytes,
and the sum of their random names, which no other set of objects has. After the entry the list must lead from the same first
record to the same last one without a gap, and add up to what it was and what was added, less what was dropped. So nothing
is dropped twice, lost, or dropped and named. A partition whose list is not as the entry expects is refused, the others are
not.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from l0gc.streamlog.journal.rows import (
    DROPPED,
    INDEX_OBJECT,
    INDEX_ROW,
    INDEX_TREE,
    L1_OBJECT,
    L1_ROW,
    Rows,
    distinct,
    distinct_at,
    files_in,
    in_order,
    name_low,
    position,
    the_same,
)

_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)
"""Mixes a partition into a name: objects of two partitions may have the same one."""
NO_L1_ROWS: Final = np.empty(0, L1_ROW)
NO_INDEX_ROWS: Final = np.empty(0, INDEX_ROW)
NO_DROPPED: Final = np.empty(0, DROPPED)

MOVED_ON: Final = "an L1 object that it replaces is no longer in the partition's list, or never was"
INDEX_MOVED_ON: Final = "an index object that it replaces is no longer in the partition's list, or never was"
NOT_ALL: Final = "its index objects and L1 objects are not those that the partition has"
GAP: Final = "it would leave a gap in the partition's list of L1 objects"
BELOW: Final = "an L1 object of it would hold only records below the log start offset"
NAMED_TWICE: Final = "it names an L1 or index object that the partition had or has dropped"


class Lists(NamedTuple):
    """The lists of some partitions: rows of `INDEX_ROW` and of `L1_ROW`, by partition and offset."""

    indexes: Rows = NO_INDEX_ROWS
    rows: Rows = NO_L1_ROWS

    def of(self, partitions: Rows) -> Lists:
        """Those of some partitions alone."""
        return Lists(*(rows[np.isin(rows["partition"], partitions)] for rows in self))

    def without(self, partitions: Rows) -> Lists:
        """Those of all others."""
        return Lists(*(rows[~np.isin(rows["partition"], partitions)] for rows in self))

    def joined(self, other: Lists) -> Lists:
        return Lists(*(in_order(np.concatenate(both)) for both in zip(self, other, strict=True)))


class Change(NamedTuple):
    """An entry's change to the lists of a topic: what it adds, and exactly what it takes away; by partition and offset."""

    files: Rows = NO_L1_ROWS
    replaced: Rows = NO_L1_ROWS
    indexes: Rows = NO_INDEX_ROWS
    replaced_indexes: Rows = NO_INDEX_ROWS

    @property
    def merged(self) -> Rows:
        """The partitions whose L1 objects are replaced, ascending: those of a merge."""
        return distinct(self.replaced["partition"])


class IndexChange(NamedTuple):
    """Index objects, durable, and those whose place they take; rows of `INDEX_ROW` by partition and offset."""

    indexes: Rows = NO_INDEX_ROWS
    replaced: Rows = NO_INDEX_ROWS


class Changed(NamedTuple):
    """Lists after a change, and what left them: L1 objects, index objects alone, index objects with all that they list."""

    after: Lists
    objects: Rows
    indexes: Rows
    trees: Rows

    def dropped(self, revision: int, time_ms: int, epoch: int) -> Rows:
        """What left the lists, as rows of `DROPPED`; a hole has no object that could be dropped."""
        kinds = ((L1_OBJECT, files_in(self.objects)), (INDEX_OBJECT, self.indexes), (INDEX_TREE, self.trees))
        return np.concatenate([dropped_rows(revision, kind, rows, time_ms, epoch) for kind, rows in kinds])


def changed(lists: Lists, partitions: Rows, change: Change, starts: Rows | None = None) -> Changed:
    """What a change makes of the lists of `partitions`, ascending; of no use where `faults` finds something.

    Args:
        lists: of these partitions alone.
        starts: the log start offset of each of them; what is wholly below goes, too.
    """
    below = np.zeros(len(partitions), np.int64) if starts is None else starts
    index = lists.indexes[~_found(lists.indexes, change.replaced_indexes)]
    expired = index["last"] < below[np.searchsorted(partitions, index["partition"])]
    rows = lists.rows[~_found(lists.rows, change.replaced)]
    gone = rows["last"] < below[np.searchsorted(partitions, rows["partition"])]
    indexes = in_order(np.concatenate([index[~expired], change.indexes]))
    listed_up_to = np.full(len(partitions), -1, np.int64)
    listed_up_to[np.searchsorted(partitions, indexes["partition"])] = indexes["last"]  # of several the last one's stays
    newest = in_order(np.concatenate([rows[~gone], change.files]))
    newest = newest[newest["last"] > listed_up_to[np.searchsorted(partitions, newest["partition"])]]
    objects = np.concatenate([change.replaced, rows[gone]])
    return Changed(Lists(indexes, newest), objects, change.replaced_indexes, index[expired])


def faults(
    lists: Lists,
    partitions: Rows,
    change: Change,
    garbage: Rows,
    ends: Rows,
    firsts: Rows | None,
    starts: Rows | None = None,
) -> dict[int, str]:
    """The partitions whose lists the change does not fit, and why.

    Args:
        lists, partitions, starts: see `changed`.
        garbage: what the topic has dropped and not purged, as rows of `DROPPED`.
        ends: the last reconciled offset of each partition after the change.
        firsts: where the list of a partition begins that is empty now; others begin where they do (hazard 24). None for an
            expiry, which moves that.
    """
    found: dict[int, str] = {}
    if firsts is not None:
        firsts = firsts.copy()
        for rows in (lists.rows, lists.indexes):  # the index objects come first
            slots, first = distinct_at(np.searchsorted(partitions, rows["partition"]))
            firsts[slots] = rows["base"][first]

    def mark(wrong: Rows, why: str) -> None:
        for partition in distinct(wrong).tolist():
            found.setdefault(partition, why)

    result = changed(lists, partitions, change, starts)
    at = position(lists.indexes, change.replaced_indexes["partition"], change.replaced_indexes["base"])
    mark(change.replaced_indexes["partition"][~_equal(lists.indexes, at, change.replaced_indexes)], INDEX_MOVED_ON)
    at = position(lists.rows, change.replaced["partition"], change.replaced["base"])
    listed = change.replaced[~_equal(lists.rows, at, change.replaced)]
    at = position(change.replaced_indexes, listed["partition"], listed["base"])
    inside = at >= 0
    inside[inside] = change.replaced_indexes["last"][at[inside]] >= listed["last"][inside]
    mark(listed["partition"][~inside], MOVED_ON)

    sums = np.zeros((3, len(partitions)), np.uint64)
    for rows, sign in (
        (lists.indexes, 1), (lists.rows, 1), (change.files, 1), (result.objects, -1), (result.trees, -1),
        (result.after.indexes, -1), (result.after.rows, -1),
    ):  # fmt: skip
        _add_up(sums, np.searchsorted(partitions, rows["partition"]), rows, sign)
    mark(partitions[sums.any(axis=0)], NOT_ALL)

    mark(gaps(result.after, partitions, firsts, ends), GAP)
    mark(_named_before(lists, change, garbage), NAMED_TWICE)
    return found


def dropped_rows(revision: int, kind: int, rows: Rows, time_ms: int, epoch: int) -> Rows:
    """Rows of `L1_ROW` or `INDEX_ROW` as rows of `DROPPED`."""
    dropped = np.zeros(len(rows), DROPPED)
    for column in ("partition", "base", "last", "epoch", "name"):
        dropped[column] = rows[column]
    dropped["revision"], dropped["kind"] = revision, kind
    dropped["dropped_ms"], dropped["dropped_epoch"] = time_ms, epoch
    if kind == L1_OBJECT:
        dropped["bytes"] = rows["bytes"]
    else:
        dropped["bytes"], dropped["rows"], dropped["row_bytes"] = rows["size"], rows["rows"], rows["bytes"]
        dropped["names"] = rows["names"]
    return dropped


def index_rows(dropped: Rows) -> Rows:
    """Rows of `DROPPED` for index objects as rows of `INDEX_ROW`, as far as reading one needs them."""
    rows = np.zeros(len(dropped), INDEX_ROW)
    for column in ("partition", "base", "last", "rows", "names", "epoch", "name"):
        rows[column] = dropped[column]
    rows["bytes"], rows["size"] = dropped["row_bytes"], dropped["bytes"]
    return rows


def _equal(rows: Rows, at: Rows, wanted: Rows) -> Rows:
    """Which of the wanted rows are those at these positions, if they have one."""
    equal = at >= 0
    equal[equal] = the_same(rows[at[equal]], wanted[equal])
    return equal


def _found(rows: Rows, wanted: Rows) -> Rows:
    """Which of the rows are among the wanted ones."""
    mask = np.zeros(len(rows), bool)
    if len(wanted):
        at = position(rows, wanted["partition"], wanted["base"])
        mask[at[_equal(rows, at, wanted)]] = True
    return mask


def _add_up(sums: Rows, slots: Rows, rows: Rows, sign: int) -> None:
    """Add what rows stand for to their partitions' sums, or subtract it; modulo 2^64."""
    listing = rows.dtype == INDEX_ROW
    columns = (
        rows["rows"] if listing else np.ones(len(rows), np.int64),
        rows["bytes"],
        rows["names"] if listing else name_low(rows["name"]),
    )
    for total, column in zip(sums, columns, strict=True):
        values = column.astype(np.uint64)
        np.add.at(total, slots, values if sign > 0 else np.uint64(0) - values)


def gaps(after: Lists, partitions: Rows, firsts: Rows | None, ends: Rows) -> Rows:
    """The partitions whose list does not lead from its first record to its end without a gap; empty lists do."""
    spans = np.empty(len(after.indexes) + len(after.rows), [("partition", "<i8"), ("base", "<i8"), ("last", "<i8")])
    for column in ("partition", "base", "last"):
        spans[column] = np.r_[after.indexes[column], after.rows[column]]
    spans = in_order(spans)
    if not len(spans):
        return spans["partition"]
    begins = np.r_[True, spans["partition"][1:] != spans["partition"][:-1]]
    closes = np.r_[begins[1:], True]
    slots = np.searchsorted(partitions, spans["partition"])
    wrong = np.r_[False, spans["base"][1:] != spans["last"][:-1] + 1] & ~begins
    wrong |= closes & (spans["last"] != ends[slots])
    if firsts is not None:
        wrong |= begins & (spans["base"] != firsts[slots])
    found: Rows = spans["partition"][wrong]
    return found


def _named_before(lists: Lists, change: Change, garbage: Rows) -> Rows:
    """The partitions of which the change names an object that is, or was, in their lists."""
    new = [change.files, change.indexes]
    old = [lists.rows, lists.indexes, change.replaced, garbage]
    added, known = (np.concatenate([_mixed(rows) for rows in some]) for some in (new, old))
    partitions = np.concatenate([rows["partition"] for rows in new])
    order = np.argsort(added, kind="stable")
    twice = np.zeros(len(added), bool)
    twice[order[1:]] = added[order[1:]] == added[order[:-1]]
    found: Rows = partitions[twice | np.isin(added, known)]
    return found


def _mixed(rows: Rows) -> Rows:
    mixed: Rows = name_low(rows["name"]) + rows["partition"].astype(np.uint64) * _SPREAD
    return mixed
