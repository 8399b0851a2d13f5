"""Encode the journal's state as a checkpoint, and define the machine that the shared log runs (pure).

A checkpoint contains exactly what the log contains (hazard 18): it is made from the state that the entries produced.
Stored bytes are accepted only if they are consistent; all others are corrupt and stop the journal.

Its second part contains the L1 rows. A reader that needs only the window, the bounds and the offsets skips it. Its
state then has the sums of the rows instead, and raises an error if a row is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from l0gc.decoding import UNDECODABLE
from l0gc.epoch import MAX_EPOCH, is_epoch
from l0gc.errors import CorruptObjectError, UsageError
from l0gc.keys import journal_log
from l0gc.storage.entry import StoredEntry, join_state, split_state
from l0gc.streamlog.journal.apply import apply
from l0gc.streamlog.journal.entries import EXPIRE, Closed, Edit, decode_journal_entry
from l0gc.streamlog.journal.producers import Int62, ProducerState
from l0gc.streamlog.journal.row_list import L1Sums, RowList
from l0gc.streamlog.journal.rows import (
    BLOCK,
    DROPPED,
    EXTENT,
    L1_ROW,
    MAX_OFFSET,
    NUMBER,
    OFFSET,
    Rows,
    ascending,
    check_rows,
    in_order,
    indices_in,
    pack,
    pack_columns,
    ranges_of,
    unpack,
    unpack_columns,
)
from l0gc.streamlog.journal.shared import PackedShared, SharedObject, unpack_shared
from l0gc.streamlog.journal.state import JournalState
from l0gc.streamlog.journal.topic import TopicState, UnreconciledObject


class _Object(msgspec.Struct, array_like=True):
    key: str
    epoch: Int62
    log_offset: Int62
    time_ms: Int62
    start: Int62
    blocks: Int62
    extents: Int62


class _Topic(msgspec.Struct, array_like=True):
    revision: Int62
    topic_id: str
    partitions: bytes
    next_offsets: bytes
    reconciled: bytes
    log_start: bytes
    objects: list[_Object]
    blocks: bytes
    extents: bytes
    l1: L1Sums
    misfits: Int62 = 0
    shared: list[PackedShared] = []


class _Rows(msgspec.Struct, array_like=True):
    """The L1 rows of the topic at the same index among the topics."""

    l1: bytes


class _Checkpoint(msgspec.Struct, array_like=True):
    """The journal's number, and the fields of `JournalState` under the same names."""

    journal: Int62
    max_applied_epoch: Int62
    previous_applied_epoch: Int62
    window_offset: Int62
    topics: list[_Topic]
    producers: dict[int, ProducerState]
    time_ms: Int62
    expired_ms: Int62
    closed_revisions: bytes
    l1_fence: Int62
    dropped: bytes
    set_backs: Int62 = 0
    kept_below: Int62 = 0


_DECODER: Final = msgspec.msgpack.Decoder(_Checkpoint)
_REST: Final = msgspec.msgpack.Decoder(list[_Rows])


class JournalMachine:
    def __init__(self, journal: int) -> None:
        self._journal = journal

    def initial(self) -> JournalState:
        return JournalState()

    def check(self, state: JournalState, offset: int, payload: bytes) -> None:
        decode_journal_entry(payload, f"journal {self._journal}'s entry {offset}")

    def apply(self, state: JournalState, entry: StoredEntry) -> None:
        apply(state, entry, f"{journal_log(self._journal)}log/{entry.offset:020}")

    def lacks(self, state: JournalState, entry: StoredEntry | None = None) -> bool:
        """Return whether the state lacks L1 rows that `entry` needs; without an entry, any L1 rows. An entry needs a
        topic's rows if it removes objects without naming them.
        """
        topics = {t.revision for t in state.topics.values() if t.lacks_l1}
        if not topics or entry is None:
            return bool(topics)
        match decode_journal_entry(entry.payload, f"journal {self._journal}'s entry {entry.offset}"):
            case Edit(kind=kind, topics=edited):
                return kind == EXPIRE and any(t.revision in topics for t in edited)
            case Closed(topics=closed):
                return any(t.revision in topics for t in closed)
        return False

    def encode(self, state: JournalState) -> bytes:
        columns = {name: getattr(state, name) for name in _Checkpoint.__struct_fields__ if name != "journal"}
        columns["topics"] = [_encode_topic(t) for t in state.topics.values()]
        columns |= {"closed_revisions": pack(state.closed_revisions), "dropped": pack_columns(state.dropped)}
        rows = [_Rows(pack_columns(t.l1)) for t in state.topics.values()]
        return join_state(
            msgspec.msgpack.encode(_Checkpoint(self._journal, **columns)),
            msgspec.msgpack.encode(rows),
        )

    def decode(self, body: bytes, source: str) -> JournalState:
        try:
            head, rest = split_state(body)
            c = _DECODER.decode(head)
            rows = _REST.decode(rest) if rest else [None] * len(c.topics)
            if len(rows) != len(c.topics):
                raise UsageError("its L1 rows do not match its topics")
            if c.journal != self._journal:
                raise UsageError(f"it is journal {c.journal}'s")
            if not 0 <= c.previous_applied_epoch <= c.max_applied_epoch:
                raise UsageError(f"its window is [{c.previous_applied_epoch}, {c.max_applied_epoch}]")
            topics = {t.revision: _decode_topic(t, of) for t, of in zip(c.topics, rows, strict=True)}
            if len(topics) != len(c.topics):
                raise UsageError("it has a topic twice")
            closed = unpack(c.closed_revisions, OFFSET)
            if not ascending(closed) or np.isin(closed, list(topics)).any():
                raise UsageError("its deleted topics are not in order, or are also listed as live")
            if not is_epoch(c.l1_fence):
                raise UsageError(f"its L1 fence is at {c.l1_fence}")
            if c.set_backs < 0 or not is_epoch(c.kept_below) or c.kept_below > c.l1_fence:
                raise UsageError(f"it was set back {c.set_backs} times, and keeps objects stamped below {c.kept_below}")
            dropped = unpack_columns(c.dropped, DROPPED)
            _check_dropped(dropped)
        except (*UNDECODABLE, UsageError, ValueError) as e:
            raise CorruptObjectError(f"{source} is not a checkpoint of journal {self._journal}: {e}") from e
        columns = {name: getattr(c, name) for name in c.__struct_fields__ if name != "journal"}
        return JournalState(**columns | {"topics": topics, "closed_revisions": closed, "dropped": dropped})


def _encode_topic(t: TopicState) -> _Topic:
    return _Topic(
        t.revision,
        t.topic_id,
        pack(t.partitions),
        pack(t.next_offsets),
        pack(t.reconciled),
        pack(t.log_start),
        [_Object(o.key, o.epoch, o.log_offset, o.time_ms, o.start, len(o.blocks), len(o.extents)) for o in t.objects],
        b"".join(pack(o.blocks) for o in t.objects),
        b"".join(pack(o.extents) for o in t.objects),
        t.listed.sums,
        t.misfits,
        [o.packed() for o in t.shared],
    )


def _decode_topic(t: _Topic, rows: _Rows | None) -> TopicState:
    partitions = unpack(t.partitions, NUMBER).copy()
    columns = [unpack(body, OFFSET).copy() for body in (t.next_offsets, t.reconciled, t.log_start)]
    if any(len(c) != len(partitions) for c in columns) or not ascending(partitions):
        raise UsageError(f"the partitions of revision {t.revision} are not in order, or lack a number")
    following, reconciled, log_start = columns
    if len(partitions) and (
        partitions[0] < 0
        or (log_start < 0).any()
        or (reconciled < -1).any()
        or (reconciled >= following).any()
        or (log_start > following).any()
        or (following > MAX_OFFSET).any()
    ):
        raise UsageError(f"the offsets of revision {t.revision} are impossible")
    shared = tuple(map(unpack_shared, t.shared))
    if len({o.name for o in shared}) != len(shared):
        raise UsageError(f"revision {t.revision} has a shared L1 object twice")
    listed: RowList | L1Sums = t.l1 if t.l1.objects else RowList()
    if rows is not None:
        l1 = unpack_columns(rows.l1, L1_ROW)
        check_rows(l1)
        _check_l1(t.revision, partitions, reconciled, log_start, l1, shared)
        listed = RowList(l1)
    if min(t.l1) < 0 or listed.sums != t.l1:
        raise UsageError(f"the L1 objects of revision {t.revision} do not add up to {tuple(t.l1)}")
    if not 0 <= t.misfits <= int((reconciled + 1).sum()):
        raise UsageError(f"revision {t.revision} has {t.misfits} records that do not fit its value schema")
    objects = _decode_objects(t, partitions, following)
    topic = TopicState(t.revision, t.topic_id, partitions, following, reconciled, log_start, objects, listed, shared)
    topic.misfits = t.misfits
    _check_no_gap(t, topic)
    return topic


def _check_l1(
    revision: int, partitions: Rows, reconciled: Rows, log_start: Rows, l1: Rows, shared: Sequence[SharedObject]
) -> None:
    """Check that each partition's L1 objects hold every record from its log start to its last reconciled one, and end
    there.

    Otherwise, readers would take missing records for deleted ones, and vacuum would take unlisted objects for garbage.
    """
    ranges = ranges_of(l1)
    if shared:
        ranges = ranges_of(in_order(np.concatenate([ranges, *(o.ranges() for o in shared)])))
    at, is_kept = indices_in(partitions, ranges["partition"])
    kept = reconciled >= log_start  # the other partitions have nothing left in L1
    whole = is_kept.all() and len(ranges) == kept.sum() and ascending(ranges["partition"]) and kept[at].all()
    if not whole or (ranges["base"] > log_start[at]).any() or (ranges["last"] != reconciled[at]).any():
        raise UsageError(f"the L1 objects of revision {revision} are not those of the records that it lists as in L1")


def _check_dropped(dropped: Rows) -> None:
    """Raise `UsageError` for rows that no entry can have dropped."""
    wrong = (dropped["last"] < dropped["base"]) | (dropped["partition"] < -1)
    for column in ("base", "bytes", "revision", "epoch", "dropped_epoch"):
        wrong |= dropped[column] < 0
    for column in ("revision", "epoch", "dropped_epoch"):
        wrong |= dropped[column] > MAX_EPOCH
    if wrong.any():
        raise UsageError("one of its dropped objects is impossible")


def _decode_objects(t: _Topic, partitions: Rows, following: Rows) -> list[UnreconciledObject]:
    """Return the objects of a topic, after checking all of their extents at once."""
    if not is_epoch(t.revision) or any(not t.revision <= o.epoch <= MAX_EPOCH for o in t.objects):
        raise UsageError(f"revision {t.revision} has an object at an impossible epoch")
    blocks, extents = unpack(t.blocks, BLOCK), unpack(t.extents, EXTENT)
    of_blocks = np.fromiter((o.blocks for o in t.objects), np.int64, len(t.objects))
    of_extents = np.fromiter((o.extents for o in t.objects), np.int64, len(t.objects))
    if (of_blocks < 1).any() or (of_extents < 1).any():
        raise UsageError(f"an object of revision {t.revision} is empty")
    ends_of_blocks, ends = np.cumsum(of_blocks), np.cumsum(of_extents)
    if (of_blocks.sum(), of_extents.sum()) != (len(blocks), len(extents)):
        raise UsageError(f"the objects of revision {t.revision} do not have the blocks and extents that they count")
    if len(extents):
        inside = np.ones(len(extents) - 1, bool)
        inside[ends[:-1] - 1] = False  # the next row is another object's
        at, is_kept = indices_in(partitions, extents["partition"])
        if (
            not is_kept.all()
            or ((extents["partition"][1:] <= extents["partition"][:-1]) & inside).any()
            or (extents["block"] < 0).any()
            or (extents["block"] >= np.repeat(of_blocks, of_extents)).any()
            or (extents["row"] < 0).any()
            or (extents["records"] < 1).any()
            or (extents["base"] < 0).any()
            or (extents["base"] + extents["records"] > following[at]).any()
        ):
            raise UsageError(f"the extents of revision {t.revision} are impossible")
    return [
        UnreconciledObject(
            o.key,
            o.epoch,
            o.log_offset,
            o.time_ms,
            o.start,
            blocks[end_of_blocks - o.blocks : end_of_blocks],
            extents[end - o.extents : end],
        )
        for o, end_of_blocks, end in zip(t.objects, ends_of_blocks.tolist(), ends.tolist(), strict=True)
    ]


def _check_no_gap(t: _Topic, topic: TopicState) -> None:
    """Check that every record outside L1 lies in exactly one extent, and that extents are ordered by offset.

    Otherwise, M would pass the epoch of a missing extent.
    """
    extents = unpack(t.extents, EXTENT)
    partition, base, ends = extents["partition"], extents["base"], extents["base"] + extents["records"]
    order = np.lexsort((base, partition))
    ordered = (order == np.argsort(partition, kind="stable")).all()
    at, base, ends = np.searchsorted(topic.partitions, partition[order]), base[order], ends[order]
    begins = topic.reconciled[at] + 1
    same = at[1:] == at[:-1]
    begins[1:][same] = ends[:-1][same]
    last = topic.reconciled + 1
    last[at] = ends  # if a partition has several ends, the last one stays
    if not ordered or (base != begins).any() or (last != topic.next_offsets).any():
        raise UsageError(f"the extents of revision {t.revision} leave a gap, or overlap")
