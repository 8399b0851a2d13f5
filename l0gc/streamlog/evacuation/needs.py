"""What journals still need of L0, and the target that follows from it (pure).

`evacuate` chooses by this, and so does what shows who lags (`inspect/laggards.py`), so both name the same target.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from l0gc.formatting import span
from l0gc.streamlog.controller.state import ControllerState
from l0gc.streamlog.evacuation.choice import Holding, Target, choose_target
from l0gc.streamlog.journal.state import JournalState
from l0gc.streamlog.journal.topic import UnreconciledObject
from l0gc.streamlog.level_one.plan import Window, strangers
from l0gc.watermark.scans import ScanSnapshot

NEVER_LISTED: Final = "nobody has listed the bucket yet: run l0gc compute-watermark first, without --no-scan"


@dataclass(frozen=True, slots=True)
class JournalNeeds:
    """What a journal holds in L0: `below` is the lowest epoch that it may still take for one of its topics.

    `bytes` and `parts` are by epoch: how much of the objects is needed, and in how many objects and extents. `error` says
    why nothing of it can be moved.
    """

    journal: int
    below: int | None
    bytes: dict[int, int]
    parts: dict[int, tuple[int, int]]
    error: str = ""


def needed(state: JournalState, window: Window) -> Iterator[tuple[int, UnreconciledObject]]:
    """The objects that a journal needs, as (revision, object): also for what waits behind a hole. That cannot be lifted yet,
    but holds M as all else does."""
    for revision, wanted in sorted(window.topics.items()):
        topic = state.topics.get(revision)
        if topic is not None and topic.topic_id == wanted.topic_id:
            yield from ((revision, o) for o in topic.objects)


def needs_of(state: JournalState, window: Window) -> JournalNeeds:
    """What a journal needs of L0, by its state."""
    if wrong := strangers(state, window):
        return JournalNeeds(window.journal, None, {}, {}, wrong[0])
    sizes, parts = dict[int, int](), dict[int, tuple[int, int]]()
    for _, o in needed(state, window):
        objects, extents = parts.get(o.epoch, (0, 0))
        sizes[o.epoch] = sizes.get(o.epoch, 0) + o.bytes
        parts[o.epoch] = (objects + 1, extents + len(o.extents))
    below = min((max(r, state.window.oldest) for r in window.topics if not state.closed(r)), default=None)
    return JournalNeeds(window.journal, below, sizes, parts)


def unpinned_below(state: ControllerState) -> int:
    """The cluster epoch, or the lowest epoch that a pin keeps: nothing from there on is worth a move."""
    return min([state.epoch, *(p.watermark + 1 for p in state.pins.values() if not p.level_one)])


def lowest_window(needs: Sequence[JournalNeeds], epoch: int) -> int:
    """The lowest epoch that a journal may still take, or `epoch`; see `unpinned_below`."""
    return min([epoch, *(n.below for n in needs if n.below is not None)])


def weigh(needs: Sequence[JournalNeeds], epoch: int, objects: Mapping[int, Holding], **limits: Any) -> Target:
    """The target by what all journals need; see `choose_target` for `objects` and `limits`."""
    total = sum((Counter(n.bytes) for n in needs), Counter[int]())
    return choose_target(objects, total, lowest_window(needs, epoch), **limits)


def holdings(scan: ScanSnapshot) -> dict[int, Holding]:
    """What the bucket held at each epoch."""
    return {r.epoch: Holding(r.objects, r.bytes) for r in scan.epochs if r.epoch is not None}


def outdated(scan: ScanSnapshot, swept_ms: int) -> str:
    """Why nothing is moved by this scan: a sweep has ended after it, at `swept_ms` by the store's clock; or empty."""
    if swept_ms <= scan.totals.taken_ms:
        return ""
    return (
        f"a sweep has ended {span(swept_ms - scan.totals.taken_ms)} after the bucket was listed, so what it holds is not "
        "known: run l0gc compute-watermark first, without --no-scan"
    )
