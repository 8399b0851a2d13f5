"""Decide whether an edit fits a journal's state, and apply it (pure).

A partition's list of L1 objects holds every record from the oldest kept one to the last reconciled one. A reconcile and
a give-up append to it; a merge replaces objects with others that hold the same records, a drain replaces rows of shared
objects, and an expiry removes the oldest.

Why an edit is safe (hazard 24): it names exactly the objects that it removes, and they are removed only if the list
contains them, equal in every byte, at the very offset where the edit lands. A drain does not name the rows that it
replaces; it lands only if its objects hold exactly the records of named rows of shared objects. So no object is removed
twice, lost, or both removed and listed, and the list has no gap. A partition whose list differs from what the edit expects
is refused; the others are not. No list is read as a whole, so the cost of an edit depends only on what it changes. A
handle calls `fits` before it appends, and a replay calls it again before `take`. A replay that needs only offsets skips
the lists of the partitions' own objects and the checks against them. Its decisions about offsets are the same, and no edit
is appended on the basis of its state.

A reconciled or given-up range begins right after the last reconciled offset and ends with an extent (hazard 9). So a
hole covers no record that is in L1, and nothing fills it later (hazard 35). No added object is stamped below the L1
fence, because a vacuum may be deleting such objects (hazard 25).

A repeated commit may add rows of an already listed shared object, for partitions that were refused before. It adds no
rows of a dropped object, since a vacuum may be deleting it (hazard 26).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from l0gc.streamlog.journal.entries import DRAIN, EXPIRE, MERGE, Change, Edit, Kind
from l0gc.streamlog.journal.rows import (
    NO_DROPPED,
    Rows,
    distinct,
    dropped_rows,
    identities,
    indices_in,
    position,
)
from l0gc.streamlog.journal.shared import SharedObject, named_rows_of, with_added, without
from l0gc.streamlog.journal.state import JournalState
from l0gc.streamlog.journal.topic import TopicState

GONE: Final = "its topic was deleted, or is not in this journal"
ANOTHER_TOPIC: Final = (
    "its revision belongs to another topic in this journal: the controller log looks restored from a backup, "
    "and assigned it again"
)
NOT_AN_END: Final = "its last record is not the last of an object"
MOVED_ON: Final = "an L1 object that it replaces is no longer in the partition's list, or never was"
BELOW: Final = "one of its L1 objects would hold only records below the log start offset"
NOT_SHARED: Final = "its records are not, or no longer, exactly those that shared L1 objects hold for the partition"
NAMED_TWICE: Final = "it names an L1 object that the partition already had or has dropped"


def fits(state: JournalState, edit: Edit) -> dict[tuple[int, int], str]:
    """Return the partitions that the edit does not fit, as (revision, partition), and why."""
    refused: dict[tuple[int, int], str] = {}
    for t in edit.topics:
        topic = state.topics.get(t.revision)
        if topic is None or topic.topic_id != t.topic_id:
            faults = dict.fromkeys(t.change.partitions.tolist(), GONE if topic is None else ANOTHER_TOPIC)
        else:
            faults = _faults(state, topic, edit.kind, t.change)
        refused.update({(t.revision, partition): why for partition, why in faults.items()})
    return refused


def take(state: JournalState, edit: Edit, time_ms: int) -> None:
    """Apply a fitting edit to the state, at `time_ms` of the log's time. Objects that leave the lists join the dropped
    ones.
    """
    dropped = [state.dropped]
    for t in edit.topics:
        topic, change = state.topics[t.revision], t.change
        gone, shared, ended = _leaving(topic, edit.kind, change)
        at, _ = indices_in(topic.partitions, change.partitions)
        if edit.kind == EXPIRE:
            starts = change.starts["offset"]
            topic.reconciled[at] = topic.reconciled_after(change.partitions, starts)
            topic.log_start[at] = starts
        elif edit.kind not in (MERGE, DRAIN):
            topic.reconciled[at] = change.lifted["last"]
        if edit.kind not in (MERGE, DRAIN):
            topic.let_go(change.partitions, topic.reconciled[at])
        topic.misfits += int(change.misfits["records"].sum())
        topic.listed = topic.listed.changed(gone, change.added)
        topic.shared = with_added(shared, change.shared, time_ms)
        dropped.append(_dropped(state, edit, t.revision, gone, ended, time_ms))
    state.dropped = np.concatenate(dropped)


def dropped_by(state: JournalState, edit: Edit) -> Rows:
    """Return the objects that a fitting edit removes from the lists, as rows of `DROPPED`."""
    dropped = [NO_DROPPED]
    for t in edit.topics:
        gone, _, ended = _leaving(state.topics[t.revision], edit.kind, t.change)
        dropped.append(_dropped(state, edit, t.revision, gone, ended, state.time_ms))
    return np.concatenate(dropped)


def _dropped(
    state: JournalState, edit: Edit, revision: int, gone: Rows, ended: Sequence[SharedObject], time_ms: int
) -> Rows:
    epoch = max(edit.epoch, state.max_applied_epoch)
    both = np.concatenate([gone, *(o.as_row() for o in ended)])
    return dropped_rows(revision, both, time_ms, epoch)


def _leaving(
    topic: TopicState, kind: Kind, change: Change
) -> tuple[Rows, tuple[SharedObject, ...], Sequence[SharedObject]]:
    """Return the rows of `L1_ROW` that leave a topic's lists, the shared objects that stay, and those that do not.

    A merge names the rows that leave, a drain replaces rows of shared objects, and an expiry removes rows below the new
    starts.
    """
    gone = change.removed
    if kind == DRAIN:
        rows = named_rows_of(topic.shared, change.partitions)
        rows = rows[_holders(change.added, rows) >= 0]
    elif kind == EXPIRE:
        starts = change.starts["offset"]
        gone = topic.l1_list.below(change.partitions, starts)
        rows = named_rows_of(topic.shared, change.partitions)
        rows = rows[rows["last"] < starts[np.searchsorted(change.partitions, rows["partition"])]]
    else:
        return gone, topic.shared, ()
    return gone, *without(topic.shared, rows)


def _holders(added: Rows, rows: Rows) -> Rows:
    """Return, for each row of a shared object, the index of the added L1 object that holds all its records; -1 if none
    does.
    """
    at, is_added = indices_in(added["partition"], rows["partition"])  # the partition's first added object
    several = distinct(added["partition"][1:][added["partition"][1:] == added["partition"][:-1]])
    if len(several):
        is_of_several = np.isin(rows["partition"], several)
        at[is_of_several] = position(added, rows["partition"][is_of_several], rows["base"][is_of_several])
    at[~is_added | (at < 0)] = -1
    at[(at >= 0) & ((added["base"][at] > rows["base"]) | (added["last"][at] < rows["last"]))] = -1
    return at


def _faults(state: JournalState, topic: TopicState, kind: Kind, change: Change) -> dict[int, str]:
    """Return the partitions of a topic that a change does not fit, and why."""
    faults: dict[int, str] = {}
    partitions, added = change.partitions, change.added

    def mark(wrong: Rows, why: str) -> None:
        for partition in distinct(wrong).tolist():
            faults.setdefault(partition, why)

    stamped = [(int(row["epoch"]), [int(row["partition"])]) for row in added[added["epoch"] < state.l1_fence]]
    stamped += [(o.epoch, o.partitions.tolist()) for o in change.shared if o.epoch < state.l1_fence]
    for stamp, stale in stamped:
        why = (
            f"the run's objects are stamped with epoch {stamp}, and vacuum has fenced off all below {state.l1_fence}; "
            "none of them counts: run it again"
        )
        faults |= dict.fromkeys(stale, why)
    begins, following = (topic.values(column, partitions, 0) for column in (topic.log_start, topic.next_offsets))
    if kind == EXPIRE:
        starts = change.starts["offset"]
        for at in np.flatnonzero(starts > following).tolist():
            why = f"it has no record {starts[at] - 1}: its next one will be {following[at]}"
            faults.setdefault(int(partitions[at]), why)
        for at in np.flatnonzero(starts <= begins).tolist():
            faults.setdefault(int(partitions[at]), f"it already begins at record {begins[at]}")
        return faults
    if kind == MERGE:
        mark(added["partition"][added["last"] < begins[np.searchsorted(partitions, added["partition"])]], BELOW)
        if not topic.lacks_l1:
            mark(change.removed["partition"][~topic.l1_list.has(change.removed)], MOVED_ON)
    elif kind == DRAIN:
        rows = named_rows_of(topic.shared, partitions)
        holders = _holders(added, rows)
        inside = holders >= 0
        covered = np.bincount(holders[inside], (rows["last"] + 1 - rows["base"])[inside], len(added))
        mark(added["partition"][covered != added["last"] + 1 - added["base"]], NOT_SHARED)
    else:
        ranges, reconciled = change.lifted, topic.values(topic.reconciled, partitions, -1)
        for at in np.flatnonzero((ranges["base"] != reconciled + 1) | ~np.isin(partitions, topic.partitions)).tolist():
            why = f"records up to {reconciled[at]} are already reconciled, so {ranges['base'][at]} is not next"
            faults.setdefault(int(partitions[at]), why)
        mark(partitions[~topic.end_with_extent(ranges)], NOT_AN_END)
    dropped = state.dropped_of(topic.revision)
    mark(_named_before(topic, change, dropped), NAMED_TWICE)
    for o in change.shared:
        if cannot_be_listed(topic, o, dropped):
            mark(o.partitions, NAMED_TWICE)
    return faults


def cannot_be_listed(topic: TopicState, o: SharedObject, dropped: Rows) -> bool:
    """Return whether a shared object was dropped (hazard 26), or another one is listed under its name."""
    listed = next((listed for listed in topic.shared if listed.name == o.name), o)
    return o.name in {bytes(name) for name in dropped["name"]} or not listed.is_same(o)


def _named_before(topic: TopicState, change: Change, dropped: Rows) -> Rows:
    """Return the partitions for which the change names an object twice, or one that they list or have dropped."""
    added = identities(change.added)
    order = np.argsort(added, kind="stable")
    twice = np.isin(added, identities(dropped))
    if not topic.lacks_l1:
        twice |= topic.l1_list.names(change.added)
    twice[order[1:]] |= added[order[1:]] == added[order[:-1]]
    repeated: Rows = change.added["partition"][twice]
    return repeated
