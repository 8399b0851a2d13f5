"""Delete a topic's oldest records, before an offset or before a time, like Kafka's DeleteRecords.

The new log start offsets are decided once, from the partitions' offsets at the beginning; a time stands for the first
record that is not older. Then each log start offset is raised, by the rules of `level_one/expire.py`. If any of the
requested partitions has too few records, nothing is deleted. A caller may confirm the decision. The offsets are not
decided again after that, so records that land in the meantime stay.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

import numpy as np

from l0gc.errors import L0gcError, OffsetOutOfRangeError, UsageError
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import PartitionRange, Topic
from l0gc.streamlog.journal.rows import Rows, indices_in
from l0gc.streamlog.journal.topic import TopicState
from l0gc.streamlog.level_one.expire import ExpireResult, run_expiry
from l0gc.streamlog.topic_view import TopicView
from l0gc.watermark.publication import refuse_if_set_back

HIGH_WATERMARK: Final = -1
"""The offset that stands for all current records, as in Kafka's DeleteRecords."""


def delete_records(
    cluster: ClusterHandles,
    topic: str,
    partition: int | None = None,
    *,
    before_offset: int | None = None,
    before_time_ms: int | None = None,
    dry_run: bool = False,
    shown: int = 0,
    confirm: Callable[[ExpireResult], None] | None = None,
) -> ExpireResult:
    """Delete the records before an offset, or before the first record at or after a time, in one partition or in all.

    Args:
        before_offset: the first offset that stays; `HIGH_WATERMARK` for all current records.
        before_time_ms: keep the first record whose timestamp is not before this time, and all records after it.
        dry_run, shown: see `expire`.
        confirm: called with the result of a dry run, if that deletes records; if it raises, nothing is deleted.

    Raises:
        OffsetOutOfRangeError: a partition has fewer records; nothing was deleted.
        NotFoundError: the topic does not exist.
        UsageError: the partition does not exist, or not exactly one of the two ends is given.
        EpochRegressionError: a published epoch is above the cluster epoch; nothing was deleted (hazard 10).
    """
    if (before_offset is None) == (before_time_ms is None):
        raise UsageError("give the end of the records to delete: either an offset or a time")
    if before_offset is not None and before_offset < HIGH_WATERMARK:
        raise UsageError(f"offset {before_offset} is not valid; give 0 or more, or -1 for all present records")
    refuse_if_set_back(cluster)
    state = cluster.controller.snapshot()
    target = state.topic(topic)
    ranges = target.partition_ranges()
    if partition is not None:
        ranges = [PartitionRange(target.journal_of(partition), partition, 1)]
    views = cluster.parallel.map(lambda r: TopicView(cluster, cluster.journal(r.journal), target, r), ranges)
    partitions, ends = (np.concatenate(c) for c in zip(*((v.partitions, v.next) for v in views), strict=True))
    unreadable: dict[int, L0gcError] = {}
    if before_offset is not None:
        new_starts = ends if before_offset == HIGH_WATERMARK else np.full(len(partitions), before_offset, np.int64)
        for at in np.flatnonzero(new_starts > ends)[:1].tolist():
            raise OffsetOutOfRangeError(
                f"partition {target.name}/{partitions[at]} has no record before offset {before_offset}: its next one will "
                f"have offset {ends[at]}. Nothing was deleted; give an offset up to that, or -1 for all records"
            )
    else:
        assert before_time_ms is not None
        new_starts = np.concatenate([v.at_time(before_time_ms, unreadable) for v in views])

    def of_journal(t: Topic, state: TopicState) -> tuple[Rows, Rows]:
        at, is_held = indices_in(partitions, state.partitions)
        further = np.flatnonzero(is_held)
        further = further[new_starts[at[further]] > state.log_start[further]]
        return state.partitions[further], new_starts[at[further]]

    left_out = [
        f"partition {target.id(p)}: {e}; its records stay until that object is restored from a version or a backup, or they "
        "are given up (l0gc help operate-lost)"
        for p, e in sorted(unreadable.items())
    ]
    if confirm is not None and not dry_run:
        plan = run_expiry(cluster, [target], of_journal, dry_run=True, shown=sys.maxsize)
        planned = np.isin(partitions, [start.partition for start in plan.starts])
        partitions, new_starts = partitions[planned], new_starts[planned]
        if plan.records:
            plan.errors = [*left_out, *plan.errors]
            confirm(plan)
    result = run_expiry(cluster, [target], of_journal, dry_run, shown)
    result.errors = [*left_out, *result.errors]
    return result
