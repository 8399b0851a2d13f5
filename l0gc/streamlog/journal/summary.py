"""Summarise a journal in a few numbers: the epochs that its partitions may still need, and the end of its log.

An unreadable journal holds M at the lowest possible value of its partitions: the lowest revision of its topics less
one, or the published M if that is higher, since no partition was ever below a published M (hazard 6).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from l0gc.epoch import NO_WATERMARK, prev
from l0gc.errors import CorruptObjectError, L0gcError, StoreError, StoreUnreachableError
from l0gc.formatting import count
from l0gc.keys import journal_log
from l0gc.runtime import Runtime
from l0gc.storage.entry import Place
from l0gc.storage.log import SharedLog
from l0gc.storage.objectstore import ObjectStore
from l0gc.storage.parallel import Parallel
from l0gc.storage.replica import Replica
from l0gc.streamlog.controller.state import ALL_TOPICS, ControllerState, PartitionRange, Topic
from l0gc.streamlog.journal.checkpoint import JournalMachine
from l0gc.streamlog.journal.state import JournalState, PartitionLow
from l0gc.watermark.source import HELD_BACK_SHOWN, IDLE, UNREADABLE, UNRECONCILED, Holder, LogEnd, UnitSummary

READERS: Final = 8
"""How many entries of a journal are best read at once."""

TopicPartitions = tuple[Topic, PartitionRange]
"""A topic, and its partitions in one journal."""


class JournalTask(msgspec.Struct, frozen=True, array_like=True):
    """The task to read one journal; M is held at `floor` if it cannot be read. `noted` is where its log ended before."""

    journal: int
    topics: list[TopicPartitions]
    floor: int
    noted: LogEnd | None = None


def tasks_of(
    state: ControllerState, floor: int, only: int = ALL_TOPICS, noted: Mapping[str, LogEnd] = {}
) -> list[JournalTask]:
    """Return a task for each journal of the cluster, for all topics or only for the one with revision `only`.

    `floor` is the published M, and `noted` where the logs ended when it was published.
    """
    topics_of: dict[int, list[TopicPartitions]] = {j: [] for j in range(state.journals)}
    for topic in state.topics.values():
        for partition_range in topic.partition_ranges() if only in {ALL_TOPICS, topic.revision} else ():
            topics_of[partition_range.journal].append((topic, partition_range))
    return [
        JournalTask(
            j,
            topics,
            max(floor, min((prev(topic.revision) for topic, _ in topics), default=NO_WATERMARK)),
            noted.get(unit_name(j)),
        )
        for j, topics in topics_of.items()
    ]


def unit_name(journal: int) -> str:
    return f"journal {journal}"


def read_journal(
    store: ObjectStore, task: JournalTask, *, readers: int = 0
) -> tuple[UnitSummary, list[tuple[int, str]]]:
    """Replay a journal; return its summary, and its topics that are not closed, as (revision, topic id).

    See `JournalSource` for `readers`. Raises `StoreUnreachableError` if nothing can be read.
    """
    runtime = Runtime()
    with Parallel(readers) as parallel:
        log = SharedLog(store, journal_log(task.journal), runtime, parallel=parallel)
        summary, state = sum_up(task, Replica(log, JournalMachine(task.journal), runtime))
    return summary, [] if state is None else [(t.revision, t.topic_id) for t in state.topics.values()]


def sum_up(
    task: JournalTask, replica: Replica[JournalState], *, whole: bool = False
) -> tuple[UnitSummary, JournalState | None]:
    """Return the summary of a journal's current log, and its state, or None if it cannot be read. The state may lack L1 rows
    if not `whole`.

    Raises `StoreUnreachableError`.
    """
    try:
        with replica.lock:
            state = replica.catch_up(whole=whole)
            summary = summary_of(task.journal, task.topics, state, replica.end)
            return msgspec.structs.replace(summary, rewritten=is_rewritten(task.noted, state, replica)), state
    except StoreUnreachableError:
        raise
    except (CorruptObjectError, StoreError) as e:
        return unreadable(task, e), None


def is_rewritten(noted: LogEnd | None, state: JournalState, replica: Replica[JournalState]) -> bool:
    """Return whether the log lacks the entry at which it ended before, and has not been accepted since."""
    return noted is not None and noted[0] == state.set_backs and not replica.holds(noted[1])


def summary_of(journal: int, topics: Sequence[TopicPartitions], state: JournalState, end: Place) -> UnitSummary:
    """Return a summary of the lowest epochs that these partitions may need, from the state after the entry at `end`.

    A topic that is closed here accepts no data, so it needs no epoch, even if a restored controller log lists it
    (hazard 10).
    """
    at: Counter[int] = Counter()
    low: list[Holder] = []
    for topic, partition_range in topics:
        if state.closed(topic.revision):
            continue
        bounds = state.bounds(topic.revision, partition_range.first, partition_range.count)
        at.update({prev(e): n for e, n in Counter(bounds.tolist()).items()})
        lowest = state.lowest(topic.revision, partition_range.first, partition_range.count, HELD_BACK_SHOWN)
        low += [_holder(topic.name, state, p) for p in lowest]
    low.sort(key=lambda h: (h.gc_epoch, h.topic, h.partition))
    revision = state.highest_revision
    highest = max(state.max_applied_epoch, revision)
    return UnitSummary(
        unit=unit_name(journal),
        gc_epochs=dict(at),
        lowest=low[:HELD_BACK_SHOWN],
        highest_epoch=highest,
        highest_in=f"journal {journal}" if highest > revision else f"a topic in journal {journal}",
        end=(state.set_backs, end),
    )


def unreadable(task: JournalTask, error: L0gcError) -> UnitSummary:
    """Return the summary of an unreadable journal: where it holds M, and for which topic."""
    damaged = isinstance(error, CorruptObjectError) and not isinstance(
        error, StoreError
    )  # a log that the store refuses may be whole
    oldest = min(task.topics, key=lambda r: (r[0].revision, r[0].name), default=None)
    reason = f"journal {task.journal} cannot be read: {error}"
    if damaged:
        reason += "; restore that object from a version or a backup"
    topic, partition = (oldest[0].name, oldest[1].first) if oldest is not None else ("", -1)
    partitions = sum(r.count for _, r in task.topics)
    return UnitSummary(
        unit=unit_name(task.journal),
        gc_epochs={task.floor: partitions} if partitions else {},
        lowest=[Holder(topic, partition, task.floor, UNREADABLE, reason)],
        error=str(error),
        damaged=damaged,
    )


def _holder(topic: str, state: JournalState, p: PartitionLow) -> Holder:
    """Return the reason for a partition's M(p), with the remedy."""
    if p.lowest_epoch is not None and p.lowest_epoch <= p.gc_epoch + 1:
        records = count(p.unreconciled_records, "unreconciled record")
        reason = f"{records} from epoch {p.lowest_epoch} on (l0gc reconcile)"
        return Holder(topic, p.partition, p.gc_epoch, UNRECONCILED, reason, p.unreconciled_records, p.key)
    oldest = p.gc_epoch + 1  # the window's, or the topic's revision if that is higher
    newest = max(oldest, state.max_applied_epoch)
    # A tick makes the newest epoch the oldest one, which moves it only if the window spans two epochs.
    tick = "next tick" if newest > oldest else "second tick from now"
    reason = (
        f"the window [{oldest}, {newest}] of its journal may still take epoch {oldest}; it moves with the {tick} "
        "(l0gc housekeep)"
    )
    return Holder(topic, p.partition, p.gc_epoch, IDLE, reason, p.unreconciled_records)
