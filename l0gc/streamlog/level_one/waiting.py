"""What waits in L0 to be lifted: what a reconciler may take, and whether there is anything.

It is read to choose where work is done, and whether it is due. Nothing here touches records, so it does without Arrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from l0gc.epoch import MAX_EPOCH
from l0gc.errors import CorruptObjectError
from l0gc.streamlog.cluster import Handles
from l0gc.streamlog.controller.state import ControllerState, by_journal
from l0gc.streamlog.journal.handle import JournalHandle
from l0gc.streamlog.level_one.plan import JournalPlan, Window, steps_of, strangers
from l0gc.watermark.publication import refuse_if_set_back

A = TypeVar("A")
B = TypeVar("B")

_LOOK_AT: Final = 8
"""So many journals are read at once, and are in memory, to see whether there is work."""


def windows_of(state: ControllerState, topic: str | None, up_to: int = MAX_EPOCH) -> list[Window]:
    """What a run may take: all of one topic, or of all of them, that holds epochs up to `up_to`. Raises `NotFoundError`."""
    wanted = by_journal(state.topics.values() if topic is None else [state.topic(topic)])
    return [Window(journal, {t.revision: t for t in topics}, epoch=up_to) for journal, topics in wanted.items()]


def judged(windows: Sequence[Window], unread: Mapping[str, str]) -> list[Window]:
    """Those of the journals of which it is known that they were not set back (hazard 38)."""
    return [w for w in windows if f"journal {w.journal}" not in unread]


def plan_journal(handle: JournalHandle, window: Window, budget: int) -> JournalPlan:
    """What a round may take from a journal, up to about `budget` bytes; if it cannot be read, the plan says so."""
    try:
        with handle.replica.lock:
            state = handle.catch_up()
            steps, more = steps_of(state, window, budget)
            errors = strangers(state, window) if window.after < 0 else []  # reported once
            return JournalPlan(window.journal, handle.replica.offset, steps, more, errors)
    except CorruptObjectError as e:
        return JournalPlan(window.journal, -1, errors=[str(e)])


def has_work(cluster: Handles, topic: str | None = None, *, up_to: int = MAX_EPOCH, looked: bool = False) -> bool:
    """Whether there is anything to lift, or a journal that cannot be read; see `waiting_bytes`."""
    return waiting_bytes(cluster, topic, 1, up_to=up_to, looked=looked) > 0


def waiting_bytes(
    cluster: Handles, topic: str | None, enough: int, *, up_to: int = MAX_EPOCH, looked: bool = False
) -> int:
    """How much of L0 there is to lift; above `enough` only that it is more. What must be reported counts as a byte.

    The journals are read here, a few at a time, and forgotten unless the process keeps them: this is to choose where the
    work is done.

    Args:
        up_to: see `windows_of`.
        looked: this process has just found that no log went back; a run looks again before it lifts anything.

    Raises:
        NotFoundError: there is no such topic.
        EpochRegressionError: nothing may be lifted, see `reconcile`.
    """

    def look(window: Window) -> int:
        plan = plan_journal(cluster.passing_journal(window.journal), window, enough)
        return sum(max(1, step.bytes) for step in plan.steps) + len(plan.errors)

    total = 0 if looked else len(refuse_if_set_back(cluster, keep=False).unread)
    for size in few_at_once(cluster, look, windows_of(cluster.controller.snapshot(), topic, up_to)):
        total += size
        if total > enough:
            break
    return total


def few_at_once(cluster: Handles, look: Callable[[A], B], journals: Sequence[A]) -> Iterator[B]:
    """What `look` makes of each, in order, with few journals in memory at once, and no more read than are asked for."""
    for at in range(0, len(journals), _LOOK_AT):
        yield from cluster.parallel.map(look, journals[at : at + _LOOK_AT])
