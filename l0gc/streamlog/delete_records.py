"""Deleting a topic's oldest records, before an offset or before a time; Kafka's DeleteRecords.

The new log start offsets are decided once, from the partitions' offsets at the beginning: for a time, the first record that
is as new. Then each log start offset moves up, by the rules of `level_one/expire.py`. Nothing is deleted if one of the
requested partitions has fewer records than that.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from l0gc.errors import OffsetOutOfRangeError, UsageError
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.journal.rows import OFFSET, Rows
from l0gc.streamlog.journal.topic import TopicState
from l0gc.streamlog.level_one.expire import ExpireResult, Listed, left_out, run_expiry
from l0gc.streamlog.level_one.index import UNREADABLE, files_of
from l0gc.streamlog.reader import first_at_or_after
from l0gc.watermark.publication import refuse_if_set_back

HIGH_WATERMARK: Final = -1
"""As an offset to delete records before: all that there are, as in Kafka's DeleteRecords."""


def delete_records(
    cluster: Cluster,
    topic: str,
    partition: int | None = None,
    *,
    before_offset: int | None = None,
    before_time_ms: int | None = None,
    dry_run: bool = False,
    shown: int = 0,
) -> ExpireResult:
    """Delete the records before an offset, or before the first record of a time, of one partition or of all.

    Args:
        before_offset: the first offset that stays; `HIGH_WATERMARK` for all records that there are now.
        before_time_ms: the first record whose timestamp is this one, or a later one, stays, and all after it.
        dry_run, shown: see `expire`.

    Raises:
        OffsetOutOfRangeError: a partition has fewer records; nothing was deleted.
        TopicNotFoundError: there is no such topic.
        UsageError: it has no such partition, or not exactly one place is given.
        EpochRegressionError: what is published is above the cluster epoch; nothing was deleted (hazard 10).
    """
    if (before_offset is None) == (before_time_ms is None):
        raise UsageError("say before what records are to be deleted: an offset or a time, one of the two")
    if before_offset is not None and before_offset < HIGH_WATERMARK:
        raise UsageError(f"offset {before_offset} cannot be; give one from 0 up, or -1 for all records that there are")
    refuse_if_set_back(cluster)
    state = cluster.controller.snapshot()
    target = state.topic(topic)
    partitions = np.arange(target.partitions) if partition is None else np.array([target.id(partition).partition])
    ends, starts = _ends(cluster, target, partitions)
    errors: dict[int, str] = {}
    if before_offset is not None:
        wanted = ends if before_offset == HIGH_WATERMARK else np.full(len(partitions), before_offset, np.int64)
        for at in np.flatnonzero(wanted > ends)[:1].tolist():
            raise OffsetOutOfRangeError(
                f"partition {target.name}/{partitions[at]} has no record before offset {before_offset}: its next one will "
                f"have offset {ends[at]}. Nothing was deleted; give an offset up to that, or -1 for all records"
            )
    else:
        assert before_time_ms is not None
        search = [(p, s, e) for p, s, e in zip(*(c.tolist() for c in (partitions, starts, ends)), strict=True)]

        def first(of: tuple[int, int, int]) -> int:
            try:
                return _first(cluster, target, *of, before_time_ms)
            except UNREADABLE as e:
                errors[of[0]] = left_out(target.id(of[0]), e)
                return of[1]  # where it begins

        wanted = np.array(cluster.parallel.map(first, search), np.int64)
    chosen = dict(zip(partitions.tolist(), wanted.tolist(), strict=True))

    def of_journal(t: Topic, known: TopicState, listed: Listed) -> tuple[Rows, Rows]:
        mine = known.partitions[np.isin(known.partitions, partitions)]
        offsets = np.array([chosen[p] for p in mine.tolist()], OFFSET)
        begins = known.log_start[np.searchsorted(known.partitions, mine)]
        return mine[offsets > begins], offsets[offsets > begins]

    result = run_expiry(cluster, [target], of_journal, dry_run, shown)
    result.errors = [*(error for _, error in sorted(errors.items())), *result.errors]
    return result


def _ends(cluster: Cluster, topic: Topic, partitions: Rows) -> tuple[Rows, Rows]:
    """The next offset of each partition, and its log start offset, as the journals have them now."""
    ends, starts = np.zeros(len(partitions), np.int64), np.zeros(len(partitions), np.int64)
    runs = [r for r in topic.runs() if ((partitions >= r.first) & (partitions < r.first + r.count)).any()]
    for run in runs:
        handle = cluster.journal(run.journal)
        with handle.replica.lock:
            known = handle.catch_up().topics.get(topic.revision)
            if known is None or not len(known.partitions):
                continue
            at = np.searchsorted(known.partitions, partitions)
            at[at == len(known.partitions)] = 0
            here = known.partitions[at] == partitions
            ends[here], starts[here] = known.next_offsets[at[here]], known.log_start[at[here]]
    return ends, starts


def _first(cluster: Cluster, topic: Topic, partition: int, start: int, end: int, time_ms: int) -> int:
    """The first offset from `start` on whose record is as new as `time_ms`; `end` if none is."""
    handle, p = cluster.journal(topic.journal_of(partition)), topic.id(partition)
    with handle.replica.lock:
        state = handle.state
        reconciled = state.partition(topic.revision, partition).last_reconciled_offset
        files = files_of(cluster.store, p, state, start)
    base = next((max(start, f.base_offset) for f in files if f.max_timestamp >= time_ms), max(start, reconciled + 1))
    return first_at_or_after(cluster, topic, partition, base, time_ms, end) if base < end else end
