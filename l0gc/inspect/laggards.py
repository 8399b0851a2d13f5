"""Who lags, since when, how much of other partitions' garbage that keeps, and what an evacuation would do about it (pure).

A partition lags if it needs an L0 object below every journal's window: without it M could pass. What it keeps is the
garbage that M could release at any cost, and what an evacuation would do follows from the function and the limits of
`l0gc evacuate`. Both come from the newest listing: a sweep deletes nothing above M, so an old one says too little and
never too much.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import numpy as np

from l0gc.formatting import Outcome, count, size, span
from l0gc.streamlog.evacuation.choice import MAX_BYTES, OBJECT_BYTES, RATIO, Target
from l0gc.streamlog.evacuation.needs import holdings, lowest_window, needed, needs_of, outdated, weigh
from l0gc.streamlog.journal.rows import Rows
from l0gc.streamlog.journal.state import JournalState
from l0gc.streamlog.level_one.plan import Window
from l0gc.watermark.scans import ScanSnapshot

COMPUTE: Final = "l0gc compute-watermark"
RECONCILE: Final = "l0gc reconcile"
EVACUATE: Final = "l0gc evacuate"
TOPICS_SHOWN: Final = 10
_NAMED: Final = 3


class Laggard(msgspec.Struct, frozen=True):
    """A topic that lags: so many of its partitions, of which `partition` is the first, with `bytes` of L0 that they need.

    `since_ms` is when the oldest of these records landed, by the log's time.
    """

    topic: str
    partitions: int
    partition: int
    since_ms: int
    bytes: int

    @property
    def name(self) -> str:
        """`events/3`, or `12 partitions of events`."""
        if self.partitions == 1:
            return f"{self.topic}/{self.partition}"
        return f"{self.partitions:,} partitions of {self.topic}"


class Laggards(msgspec.Struct, Outcome, frozen=True, kw_only=True):
    """Who lags now; nobody, if `partitions` is 0.

    Attributes:
        topics: those that lag, the oldest first; of very many the first few, and `topics_total` counts all.
        since_ms: when the oldest of their records landed, by the log's time; -1 for none.
        first_epoch, last_epoch: the lowest epoch of what they need, which M cannot pass, and the highest that it could reach
            without them, or that an evacuation would release; -1 for none.
        garbage_bytes: the L0 there that no partition needs; None if nobody has listed the bucket.
        listed_ms: when the bucket was so, by the store's clock; -1 if nobody has listed it.
        target_epoch: up to where an evacuation would move what they need; None if that is not worth it.
        copied_bytes: what it would copy. `released_objects` and `released_bytes` could go then.
        reason: why nothing is worth it.
        sentence: all of it as text, with the command at the end; empty if nobody lags.
    """

    partitions: int = 0
    topics: list[Laggard] = []
    topics_total: int = 0
    since_ms: int = -1
    first_epoch: int = -1
    last_epoch: int = -1
    garbage_bytes: int | None = 0
    listed_ms: int = -1
    target_epoch: int | None = None
    copied_bytes: int = 0
    released_objects: int = 0
    released_bytes: int = 0
    reason: str = ""
    sentence: str = ""

    def hold(self, epoch: int) -> bool:
        """Whether they keep M from passing an epoch that their evacuation would release."""
        return bool(self.partitions) and self.first_epoch <= epoch <= self.last_epoch


def find_laggards(
    journals: Sequence[tuple[Window, JournalState]],
    epoch: int,
    read_scan: Callable[[], ScanSnapshot | None],
    *,
    now_ms: int,
    swept_ms: int = 0,
    giving_up: str = "",
) -> Laggards | None:
    """Who lags, and what that costs; None if a journal holds another topic than the controller's log says.

    Args:
        journals: all of them, with the topics that there are.
        epoch: the cluster epoch, or the lowest epoch that a pin keeps.
        read_scan: gives the newest listing, None without one; called only if somebody lags.
        now_ms: the store's clock.
        swept_ms: when the last sweep ended; see `outdated`.
        giving_up: the command that gives up the lost object that holds M; empty for none.
    """
    needs = [needs_of(state, window) for window, state in journals]
    if any(n.error for n in needs):
        return None
    first, last = min((e for n in needs for e in n.bytes), default=epoch), lowest_window(needs, epoch) - 1
    if first > last:
        return Laggards()
    scan = read_scan()
    if scan is None:
        found = _who(journals, first, last)
        text = "; how much garbage that keeps is not known, since nobody has listed the bucket yet"
        return msgspec.structs.replace(
            found, garbage_bytes=None, sentence=f"{_lag(found, now_ms)}{_ending(text, COMPUTE, giving_up)}"
        )
    objects = holdings(scan)
    kept = weigh(needs, epoch, objects, ratio=0, max_bytes=sys.maxsize)
    if kept.epoch is None:
        return Laggards(listed_ms=scan.totals.taken_ms)
    target = weigh(needs, epoch, objects, ratio=RATIO, max_bytes=MAX_BYTES, object_bytes=OBJECT_BYTES)
    worth = target.epoch is not None
    found = msgspec.structs.replace(
        _who(journals, first, kept.epoch if target.epoch is None else target.epoch),
        garbage_bytes=kept.garbage,
        listed_ms=scan.totals.taken_ms,
        target_epoch=target.epoch,
        copied_bytes=target.copied if worth else 0,
        released_objects=target.released.objects if worth else 0,
        released_bytes=target.released.bytes if worth else 0,
        reason=target.why,
    )
    keeps = "keeps" if found.partitions == 1 else "keep"
    text = f" and {keeps} {size(kept.garbage)} of other partitions' garbage"
    text += f" (listed {span(now_ms - scan.totals.taken_ms)} ago)"
    then, command = _way(target, outdated(scan, swept_ms))
    sentence = f"{_lag(found, now_ms)}{text}{_ending(then, command, giving_up)}"
    return msgspec.structs.replace(found, sentence=sentence)


def _who(journals: Sequence[tuple[Window, JournalState]], first: int, last: int) -> Laggards:
    """The topics that need an object of these epochs."""
    of: dict[str, tuple[list[Rows], list[int], list[int]]] = {}
    for window, state in journals:
        for revision, o in needed(state, window):
            if o.epoch <= last:
                partitions, times, sizes = of.setdefault(window.topics[revision].name, ([], [], []))
                partitions.append(o.extents["partition"])
                times.append(o.time_ms)
                sizes.append(o.bytes)
    topics = []
    for topic, (partitions, times, sizes) in of.items():
        numbers = np.unique(np.concatenate(partitions))
        topics.append(Laggard(topic, len(numbers), int(numbers[0]), min(times), sum(sizes)))
    topics.sort(key=lambda t: (t.since_ms, t.topic))
    return Laggards(
        partitions=sum(t.partitions for t in topics),
        topics=topics[:TOPICS_SHOWN],
        topics_total=len(topics),
        since_ms=topics[0].since_ms,
        first_epoch=first,
        last_epoch=last,
    )


def _lag(found: Laggards, now_ms: int) -> str:
    """`a/3 and 12 partitions of b have lagged for 3 d`."""
    names = [t.name for t in found.topics[:_NAMED]]
    if found.topics_total > len(names):
        names.append(count(found.topics_total - len(names), "more topic"))
    *others, end = names
    who = f"{', '.join(others)} and {end}" if others else end
    return f"{who} {'has' if found.partitions == 1 else 'have'} lagged for {span(now_ms - found.since_ms)}"


def _way(target: Target, old: str) -> tuple[str, str]:
    """What an evacuation would do, and the command."""
    if target.epoch is None:
        return f"; {target.why}", f"{RECONCILE} && {COMPUTE}"
    objects = count(target.released.objects, "object")
    text = f"; moving {size(target.copied)} would release {objects} with {size(target.garbage)} of it"
    return text, f"{f'{COMPUTE} && ' if old else ''}{EVACUATE} && {COMPUTE}"


def _ending(text: str, command: str, giving_up: str) -> str:
    """How the sentence ends; a lost object comes before all else, since nothing of it can be moved."""
    if giving_up:
        return f"; that ends when the lost object is restored, or its records are given up: {giving_up}"
    return f"{text}: {command}"
