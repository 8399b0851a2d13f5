"""Which topics and partitions are behind, as their journals have it (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from l0gc.inspect.journals import Journals
from l0gc.watermark.source import HELD_BACK_SHOWN, UnitSummary

SHOWN_BEHIND: Final = HELD_BACK_SHOWN
SHOWN_TOPICS: Final = 50


class PartitionLag(msgspec.Struct, frozen=True):
    """How far a partition's gc epoch, from its journal, lags the cluster epoch."""

    topic: str
    partition: int
    gc_epoch: int
    lag_epochs: int
    unreconciled_records: int
    reason: str


class TopicFacts(msgspec.Struct, frozen=True):
    """A topic, as its journals have it; `unread` of these cannot be read, and are not in the numbers."""

    topic: str
    partitions: int
    journals: int
    unread: int
    records: int
    unreconciled_records: int
    l1_objects: int
    gc_epoch: int
    lag_epochs: int


def lags(cluster_epoch: int, units: Sequence[UnitSummary]) -> tuple[list[PartitionLag], int, int]:
    """The partitions with the most lag, how many others there are, and the most that one of those lags (pure)."""
    low = sorted((h for u in units for h in u.lowest if h.topic), key=lambda h: (h.gc_epoch, h.topic, h.partition))
    shown = low[:SHOWN_BEHIND]
    rest: Counter[int] = Counter()
    for u in units:
        rest.update(u.gc_epochs)
    rest.subtract(h.gc_epoch for h in shown)
    others = [gc_epoch for gc_epoch, n in rest.items() if n > 0]
    return (
        [
            PartitionLag(h.topic, h.partition, h.gc_epoch, cluster_epoch - h.gc_epoch, h.unreconciled_records, h.reason)
            for h in shown
        ],
        sum(n for n in rest.values() if n > 0),
        cluster_epoch - min(others, default=cluster_epoch),
    )


def by_topic(cluster_epoch: int, journals: Journals) -> list[TopicFacts]:
    """The topics with the most unreconciled records (pure)."""
    found = []
    for topic in journals.snapshot.topics.values():
        read = [(run, s) for run in topic.runs() if (s := journals.readings[run.journal].state) is not None]
        totals = [s.topic(topic.revision).totals() for _, s in read]
        low = [s.lowest(topic.revision, run.first, run.count, 1)[0].gc_epoch for run, s in read]
        gc_epoch = min(low, default=-1)
        found.append(
            TopicFacts(
                topic.name,
                topic.partitions,
                len(topic.journals),
                len(topic.journals) - len(read),
                sum(t.records for t in totals),
                sum(t.unreconciled_records for t in totals),
                sum(t.l1_objects for t in totals),
                gc_epoch,
                cluster_epoch - gc_epoch,
            )
        )
    return sorted(found, key=lambda t: (-t.unreconciled_records, t.topic))[:SHOWN_TOPICS]
