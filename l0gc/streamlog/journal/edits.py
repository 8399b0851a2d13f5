"""Decide whether an edit fits a journal's state, and apply it (pure).

A partition's list of L1 objects begins with its index objects, each of which stands for the L1 objects that it lists, and
ends with the newest L1 objects. It holds every record from the oldest that is kept to the last reconciled one.

What makes an edit safe (hazard 24): it names exactly the objects that it removes, and they are removed only if they are
in the list at the very offset where it lands. For each index object the state holds sums: the number of its objects,
their bytes, and the sum of their random names, which identifies the set. After the edit the list must lead from the same
first record to the same last one without a gap. It must add up to the sums before, plus what was added, minus what was
removed. So nothing is removed twice, lost, or both removed and listed. A partition whose list differs from what the edit
expects is refused; the others are not. A handle calls `fits` before it appends, and a replay calls it again before
`take`.

What is reconciled or given up begins right after the last reconciled offset and ends with an extent (hazard 9). So a hole
covers no record that is in L1, and nothing fills it later (hazard 35). Nothing that is added is stamped below the L1
fence, because a vacuum may be deleting it (hazard 25).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from l0gc.streamlog.journal.entries import EXPIRE, MERGE, Change, Edit, Kind
from l0gc.streamlog.journal.rows import (
    INDEX_OBJECT,
    INDEX_ROW,
    INDEX_TREE,
    L1_OBJECT,
    NO_DROPPED,
    NO_INDEX_ROWS,
    NO_L1_ROWS,
    Rows,
    distinct,
    distinct_at,
    dropped_rows,
    in_order,
    name_low,
    places,
    position,
    ranges_of,
    the_same,
)
from l0gc.streamlog.journal.state import JournalState
from l0gc.streamlog.journal.topic import TopicState

_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)
"""Combines a partition with a name, since objects of two partitions may have the same name."""

GONE: Final = "its topic was deleted, or is not in this journal"
ANOTHER_TOPIC: Final = (
    "its revision belongs to another topic in this journal: the controller log looks restored from a backup, and gave it a "
    "second time"
)
NOT_AN_END: Final = "its last record is not the last of an object"
MOVED_ON: Final = "an L1 object that it replaces is no longer in the partition's list, or never was"
INDEX_MOVED_ON: Final = "an index object that it replaces is no longer in the partition's list, or never was"
NOT_ALL: Final = "its index objects and L1 objects are not those that the partition has"
GAP: Final = "it would leave a gap in the partition's list of L1 objects"
BELOW: Final = "an L1 object of it would hold only records below the log start offset"
NAMED_TWICE: Final = "it names an L1 or index object that the partition had or has dropped"


def fits(state: JournalState, edit: Edit) -> dict[tuple[int, int], str]:
    """Return the partitions that the edit does not fit, as (revision, partition), and why."""
    refused: dict[tuple[int, int], str] = {}
    for t in edit.topics:
        topic = state.topics.get(t.revision)
        if topic is None or topic.topic_id != t.topic_id:
            found = dict.fromkeys(t.change.partitions.tolist(), GONE if topic is None else ANOTHER_TOPIC)
        else:
            found = _faults(state, topic, edit.kind, t.change)
        refused.update({(t.revision, partition): why for partition, why in found.items()})
    return refused


def take(state: JournalState, edit: Edit, time_ms: int) -> None:
    """Apply an edit that fits to the state, at that time of the log. Objects that leave the lists join the dropped ones."""
    dropped = [state.dropped]
    for topic, change, after, gone in _taken(state, edit, time_ms):
        at, _ = places(topic.partitions, change.partitions)
        ends = _ends(topic, edit.kind, change)
        topic.reconciled[at] = ends
        if edit.kind == EXPIRE:
            topic.log_start[at] = change.starts["offset"]
        if edit.kind != MERGE:
            topic.let_go(change.partitions, ends)
        topic.misfits += int(change.misfits["records"].sum())
        topic.index, topic.l1 = Lists(topic.index, topic.l1).without(change.partitions).joined(after)
        dropped.append(gone)
    state.dropped = np.concatenate(dropped)


def dropped_by(state: JournalState, edit: Edit) -> Rows:
    """Return the objects that leave the lists through an edit that fits, as rows of `DROPPED`."""
    return np.concatenate([NO_DROPPED, *(gone for *_, gone in _taken(state, edit, state.time_ms))])


def _taken(state: JournalState, edit: Edit, time_ms: int) -> Iterator[tuple[TopicState, Change, Lists, Rows]]:
    """Yield for each topic of an edit that fits its change, the changed partitions' lists after it, and what it drops."""
    epoch = max(edit.epoch, state.max_applied_epoch)
    for t in edit.topics:
        topic, change = state.topics[t.revision], t.change
        result = _changed(Lists(topic.index, topic.l1).of(change.partitions), change)
        kinds = (L1_OBJECT, result.objects), (INDEX_OBJECT, change.removed_indexes), (INDEX_TREE, result.trees)
        gone = [dropped_rows(t.revision, kind, rows, time_ms, epoch) for kind, rows in kinds]
        yield topic, change, result.after, np.concatenate(gone)


def _ends(topic: TopicState, kind: Kind, change: Change) -> Rows:
    """Return the last reconciled offset of each partition after a change."""
    if kind == MERGE:
        return topic.values(topic.reconciled, change.partitions, -1)
    if kind == EXPIRE:
        return topic.reconciled_after(change.partitions, change.starts["offset"])
    ends: Rows = ranges_of(change.added)["last"]
    return ends


def _faults(state: JournalState, topic: TopicState, kind: Kind, change: Change) -> dict[int, str]:
    """Return the partitions of a topic that a change does not fit, and why."""
    found: dict[int, str] = {}
    partitions = change.partitions

    def mark(wrong: Rows, why: str) -> None:
        for partition in distinct(wrong).tolist():
            found.setdefault(partition, why)

    for rows in (change.added, change.indexes):
        for row in rows[rows["epoch"] < state.l1_fence]:
            found.setdefault(
                int(row["partition"]),
                f"what the run wrote is stamped with epoch {row['epoch']}, and vacuum has fenced off all below "
                f"{state.l1_fence}; nothing of it counts: run it again",
            )
    begins, following = (topic.values(column, partitions, 0) for column in (topic.log_start, topic.next_offsets))
    reconciled = topic.values(topic.reconciled, partitions, -1)
    if kind not in (MERGE, EXPIRE):
        ranges = ranges_of(change.added)
        for at in np.flatnonzero((ranges["base"] != reconciled + 1) | ~np.isin(partitions, topic.partitions)).tolist():
            why = f"records up to {reconciled[at]} are reconciled already, so {ranges['base'][at]} is not next"
            found.setdefault(int(partitions[at]), why)
        mark(partitions[~topic.end_with_extent(ranges)], NOT_AN_END)
    elif kind == MERGE:
        files = change.added
        mark(files["partition"][files["last"] < begins[np.searchsorted(partitions, files["partition"])]], BELOW)
    else:
        starts = change.starts["offset"]
        for at in np.flatnonzero(starts > following).tolist():
            why = f"it has no record {starts[at] - 1}: the next one will be {following[at]}"
            found.setdefault(int(partitions[at]), why)
        for at in np.flatnonzero(starts <= begins).tolist():
            found.setdefault(int(partitions[at]), f"it begins at record {begins[at]} already")
    lists = Lists(topic.index, topic.l1).of(partitions)
    firsts = None if kind == EXPIRE else _firsts(lists, partitions, reconciled + 1)
    for wrong, why in _wrong_lists(lists, change, firsts, _ends(topic, kind, change), state.dropped_of(topic.revision)):
        mark(wrong, why)
    return found


class Lists(NamedTuple):
    """The lists of some partitions: rows of `INDEX_ROW` and of `L1_ROW`, by partition and offset."""

    indexes: Rows = NO_INDEX_ROWS
    rows: Rows = NO_L1_ROWS

    def of(self, partitions: Rows) -> Lists:
        return Lists(*(rows[np.isin(rows["partition"], partitions)] for rows in self))

    def without(self, partitions: Rows) -> Lists:
        return Lists(*(rows[~np.isin(rows["partition"], partitions)] for rows in self))

    def joined(self, other: Lists) -> Lists:
        return Lists(*(in_order(np.concatenate(both)) for both in zip(self, other, strict=True)))


class _ListChange(NamedTuple):
    """Lists after a change, and what left them: L1 objects, and index objects with all that they list."""

    after: Lists
    objects: Rows
    trees: Rows


def _changed(lists: Lists, change: Change) -> _ListChange:
    """Return the result of a change for its partitions' lists; meaningless if it does not fit."""
    partitions = change.partitions
    below = change.starts["offset"] if len(change.starts) else np.zeros(len(partitions), np.int64)
    index = lists.indexes[~_found(lists.indexes, change.removed_indexes)]
    expired = index["last"] < below[np.searchsorted(partitions, index["partition"])]
    rows = lists.rows[~_found(lists.rows, change.removed)]
    gone = rows["last"] < below[np.searchsorted(partitions, rows["partition"])]
    indexes = in_order(np.concatenate([index[~expired], change.indexes]))
    listed_up_to = np.full(len(partitions), -1, np.int64)
    listed_up_to[np.searchsorted(partitions, indexes["partition"])] = indexes["last"]  # of several the last one's stays
    newest = in_order(np.concatenate([rows[~gone], change.added]))
    newest = newest[newest["last"] > listed_up_to[np.searchsorted(partitions, newest["partition"])]]
    return _ListChange(Lists(indexes, newest), np.concatenate([change.removed, rows[gone]]), index[expired])


def _firsts(lists: Lists, partitions: Rows, empty: Rows) -> Rows:
    """Return where the list of each partition begins, and must begin after a change too.

    `empty` has the first record for partitions whose list is empty now.
    """
    firsts = empty.copy()
    for rows in (lists.rows, lists.indexes):  # the index objects come first
        slots, first = distinct_at(np.searchsorted(partitions, rows["partition"]))
        firsts[slots] = rows["base"][first]
    return firsts


def _wrong_lists(
    lists: Lists, change: Change, firsts: Rows | None, ends: Rows, garbage: Rows
) -> Iterator[tuple[Rows, str]]:
    """Yield the partitions whose lists the change does not fit, and why.

    Args:
        lists: of the change's partitions alone.
        firsts: where the list of each partition has to begin; None for an expiry, which moves that.
        ends: the last reconciled offset of each partition after the change.
        garbage: what the topic has dropped and not purged, as rows of `DROPPED`.
    """
    partitions, result = change.partitions, _changed(lists, change)
    at = position(lists.indexes, change.removed_indexes["partition"], change.removed_indexes["base"])
    yield change.removed_indexes["partition"][~_equal(lists.indexes, at, change.removed_indexes)], INDEX_MOVED_ON
    at = position(lists.rows, change.removed["partition"], change.removed["base"])
    listed = change.removed[~_equal(lists.rows, at, change.removed)]
    at = position(change.removed_indexes, listed["partition"], listed["base"])
    inside = at >= 0
    inside[inside] = change.removed_indexes["last"][at[inside]] >= listed["last"][inside]
    yield listed["partition"][~inside], MOVED_ON

    sums = np.zeros((5, len(partitions)), np.uint64)
    for rows, sign in (
        (lists.indexes, 1), (lists.rows, 1), (change.added, 1), (result.objects, -1), (result.trees, -1),
        (result.after.indexes, -1), (result.after.rows, -1),
    ):  # fmt: skip
        _add_up(sums, np.searchsorted(partitions, rows["partition"]), rows, sign)
    yield partitions[sums.any(axis=0)], NOT_ALL
    yield gaps(result.after, partitions, firsts, ends), GAP
    yield _named_before(lists, change, garbage), NAMED_TWICE


def _equal(rows: Rows, at: Rows, wanted: Rows) -> Rows:
    """Return which of the wanted rows equal those at these positions, if there are any."""
    equal = at >= 0
    equal[equal] = the_same(rows[at[equal]], wanted[equal])
    return equal


def _found(rows: Rows, wanted: Rows) -> Rows:
    """Return which of the rows are among the wanted ones."""
    mask = np.zeros(len(rows), bool)
    if len(wanted):
        at = position(rows, wanted["partition"], wanted["base"])
        mask[at[_equal(rows, at, wanted)]] = True
    return mask


def _add_up(sums: Rows, slots: Rows, rows: Rows, sign: int) -> None:
    """Add the totals of the rows to their partitions' sums, or subtract them; modulo 2^64."""
    listing = rows.dtype == INDEX_ROW
    columns = (
        rows["rows"] if listing else np.ones(len(rows), np.int64),
        rows["bytes"],
        rows["names"] if listing else name_low(rows["name"]),
        rows["holes"] if listing else rows["hole"],
        rows["lost"] if listing else (rows["last"] + 1 - rows["base"]) * rows["hole"],
    )
    for total, column in zip(sums, columns, strict=True):
        values = column.astype(np.uint64)
        np.add.at(total, slots, values if sign > 0 else np.uint64(0) - values)


def gaps(after: Lists, partitions: Rows, firsts: Rows | None, ends: Rows) -> Rows:
    """Return the partitions whose list has a gap between its first record and its end; an empty list has none."""
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
    """Return the partitions for which the change names an object that is, or was, in their lists."""
    new = [change.added, change.indexes]
    old = [lists.rows, lists.indexes, change.removed, garbage]
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
