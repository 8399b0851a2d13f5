"""Find the laggards: their names, since when they lag, how much garbage they keep, and the cost of lifting their
records (pure).

A partition lags if it needs an L0 object below every journal's window; without that need, M could move up. All numbers
follow from two histograms: the bytes of the objects by epoch, from the newest listing, and the bytes of the
unreconciled extents by epoch. A sweep deletes nothing that laggards hold, so an old listing shows too little, never too
much.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from l0gc.formatting import Outcome, count, size, span
from l0gc.streamlog.journal.topic import UnreconciledObject
from l0gc.watermark.scans import ScanSnapshot

COMPUTE: Final = "l0gc compute-watermark"
RECONCILE: Final = "l0gc reconcile"
TOPICS_SHOWN: Final = 10
_NAMED: Final = 3


class Release(NamedTuple):
    """The effect of reconciling everything needed up to `epoch`.

    Extents of `lifted` bytes are lifted. This releases `objects` of `bytes` bytes, of which no partition needed
    `garbage` bytes.
    """

    epoch: int
    lifted: int
    objects: int
    bytes: int
    garbage: int


def releases(objects: Mapping[int, tuple[int, int]], unreconciled: Mapping[int, int], below: int) -> list[Release]:
    """Return the cost and the effect of reconciling up to each epoch, in order of the epoch; empty if nothing lags.

    Args:
        objects: the number of objects in the bucket at each epoch, and their bytes.
        unreconciled: the bytes of the unreconciled extents at each epoch.
        below: the lowest epoch that a journal may still admit, or that a pin keeps.
    """
    first = min(unreconciled, default=below)
    choices = list[Release]()
    lifted = released = released_bytes = garbage = 0
    for epoch in sorted(e for e in {*objects, *unreconciled} if first <= e < below):
        needed, (objects_there, there_bytes) = unreconciled.get(epoch, 0), objects.get(epoch, (0, 0))
        lifted, released, released_bytes = lifted + needed, released + objects_there, released_bytes + there_bytes
        garbage += max(0, there_bytes - needed)
        choices.append(Release(epoch, lifted, released, released_bytes, garbage))
    return choices


def best_release(choices: Sequence[Release]) -> Release:
    """Return the choice with the largest difference between released garbage and lifted bytes; among equals, the
    highest epoch.
    """
    return max(choices, key=lambda c: (c.garbage - c.lifted, c.epoch))


class Laggard(msgspec.Struct, frozen=True):
    """A topic that lags: the number of its lagging partitions, the first of them, and the `bytes` of L0 that they need.

    `since_ms` is when the oldest of these records landed, by the log's time.
    """

    topic: str
    partitions: int
    partition: int
    since_ms: int
    bytes: int

    @property
    def name(self) -> str:
        """Return `events/3`, or `12 partitions of events`."""
        if self.partitions == 1:
            return f"{self.topic}/{self.partition}"
        return f"{self.partitions:,} partitions of {self.topic}"


class Laggards(msgspec.Struct, Outcome, frozen=True, kw_only=True):
    """The partitions that lag.

    Attributes:
        partitions: The number of partitions that lag. If it is 0, the other fields are empty.
        topics: Up to ten of their topics, the one with the oldest records first, each with `topic`, `partitions` (the
            number that lag), `partition` (the first of them), `since_ms` and the `bytes` of L0 that they need.
        topics_total: The number of all topics that lag.
        since_ms: When the oldest of their records landed; -1 if nothing lags.
        first_epoch: The lowest epoch that they need; -1 if nothing lags.
        up_to_epoch: The epoch up to which it is best to lift their records; -1 if there is none.
        garbage_bytes: The bytes of L0 that no partition needs, and that M could pass without the laggards; null if the
            bucket was never listed.
        listed_ms: When the bucket was last listed; -1 if it never was.
        lifted_bytes: The bytes in L0 of their records up to `up_to_epoch`, which reconciling lifts.
        released_objects: The number of L0 objects that M can then pass.
        released_bytes: The bytes of these objects.
        sentence: A summary in one sentence.
    """

    partitions: int = 0
    topics: list[Laggard] = []
    topics_total: int = 0
    since_ms: int = -1
    first_epoch: int = -1
    up_to_epoch: int = -1
    garbage_bytes: int | None = 0
    listed_ms: int = -1
    lifted_bytes: int = 0
    released_objects: int = 0
    released_bytes: int = 0
    sentence: str = ""

    def hold(self, epoch: int) -> bool:
        """Return whether they keep M from passing an epoch that reconciling would release."""
        return bool(self.partitions) and self.first_epoch <= epoch <= self.up_to_epoch


def find_laggards(
    unreconciled: Sequence[tuple[str, UnreconciledObject]],
    below: int,
    scan: ScanSnapshot | None,
    *,
    now_ms: int,
    giving_up: str = "",
) -> Laggards:
    """Return the laggards, and the garbage that they keep.

    Args:
        unreconciled: the objects that the journals need, each with its topic, including those that wait for a hole.
        below: the lowest epoch that a journal may still admit, or that a pin keeps.
        scan: the newest listing; None if there is none.
        now_ms: the store's clock.
        giving_up: the command that gives up the lost object that holds M; empty if no lost object does.
    """
    sizes = Counter[int]()
    for _, o in unreconciled:
        sizes[o.epoch] += extent_bytes(o)
    if min(sizes, default=below) >= below:
        return Laggards()
    if scan is None:
        laggards = _who(unreconciled, below - 1)
        text = "; how much garbage that keeps is unknown, since the bucket was never listed"
        sentence = f"{_lag(laggards, now_ms)}{_ending(text, COMPUTE, giving_up)}"
        return msgspec.structs.replace(laggards, garbage_bytes=None, sentence=sentence)
    objects = {r.epoch: (r.objects, r.bytes) for r in scan.epochs if r.epoch is not None}
    choices = releases(objects, sizes, below)
    garbage = choices[-1].garbage
    if not garbage:
        return Laggards(listed_ms=scan.totals.taken_ms)
    best = best_release(choices)
    laggards = msgspec.structs.replace(
        _who(unreconciled, best.epoch),
        garbage_bytes=garbage,
        listed_ms=scan.totals.taken_ms,
        lifted_bytes=best.lifted,
        released_objects=best.objects,
        released_bytes=best.bytes,
    )
    keeps = "keeps" if laggards.partitions == 1 else "keep"
    listed = f"listed {span(now_ms - scan.totals.taken_ms)} ago"
    released = f"{count(best.objects, 'object')} with {size(best.garbage)} of it"
    then = f"; lifting {size(best.lifted)} releases {released}"
    command = f"{RECONCILE} --up-to {best.epoch} && {COMPUTE}"
    sentence = (
        f"{_lag(laggards, now_ms)} and {keeps} {size(garbage)} of other partitions' garbage ({listed})"
        f"{_ending(then, command, giving_up)}"
    )
    return msgspec.structs.replace(laggards, sentence=sentence)


def extent_bytes(o: UnreconciledObject) -> int:
    """Return how many bytes of an object its unreconciled extents take, including their share of blocks that other
    extents use, too.
    """
    left = np.bincount(o.extents["block"], minlength=len(o.blocks))
    return int((o.blocks["length"].astype(np.int64) * left // o.blocks["extents"]).sum())


def _who(unreconciled: Sequence[tuple[str, UnreconciledObject]], last: int) -> Laggards:
    """Return the topics that need an object at or below the epoch `last`."""
    needed: dict[str, list[UnreconciledObject]] = {}
    for topic, o in unreconciled:
        if o.epoch <= last:
            needed.setdefault(topic, []).append(o)
    topics = []
    for topic, objects in needed.items():
        numbers = np.unique(np.concatenate([o.extents["partition"] for o in objects]))
        since_ms, total = min(o.time_ms for o in objects), sum(map(extent_bytes, objects))
        topics.append(Laggard(topic, len(numbers), int(numbers[0]), since_ms, total))
    topics.sort(key=lambda t: (t.since_ms, t.topic))
    return Laggards(
        partitions=sum(t.partitions for t in topics),
        topics=topics[:TOPICS_SHOWN],
        topics_total=len(topics),
        since_ms=topics[0].since_ms,
        first_epoch=min(o.epoch for objects in needed.values() for o in objects),
        up_to_epoch=last,
    )


def _lag(laggards: Laggards, now_ms: int) -> str:
    """Return `a/3 and 12 partitions of b have lagged for 3 d`."""
    names = [t.name for t in laggards.topics[:_NAMED]]
    if laggards.topics_total > len(names):
        names.append(count(laggards.topics_total - len(names), "more topic"))
    *others, end = names
    who = f"{', '.join(others)} and {end}" if others else end
    return f"{who} {'has' if laggards.partitions == 1 else 'have'} lagged for {span(now_ms - laggards.since_ms)}"


def _ending(text: str, command: str, giving_up: str) -> str:
    """Return the end of the sentence. A lost object comes first, since it cannot be lifted."""
    if giving_up:
        return f"; that ends when the lost object is restored, or its records are given up: {giving_up}"
    return f"{text}: {command}"
