"""A breadth-first search: it omits no state, and the first violation is a shortest one."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

State = TypeVar("State")


@dataclass(frozen=True)
class Limits:
    """Limits of a search that does not find all states: a number of steps, of states (counted after each depth), or of
    seconds of processor time.
    """

    depth: float = float("inf")
    states: float = float("inf")
    seconds: float = float("inf")

    def allow(self, depth: int, states: int, seconds: float) -> bool:
        """Return whether the search may go a step deeper."""
        return depth < self.depth and states < self.states and seconds < self.seconds


NO_LIMITS = Limits()


@dataclass
class Found:
    """The result of a search.

    Every state was checked up to `depth` steps; `complete` means that there are no deeper ones. `ends` counts the
    states without a next step, `content` those of them in which every process has done all its work. `executions`
    counts how often l0gc's code ran. `seconds` are processor time. `trace` is the way to the violation.
    """

    scope: str
    states: int = 0
    transitions: int = 0
    depth: int = 0
    complete: bool = False
    ends: int = 0
    content: int = 0
    executions: int = 0
    seconds: float = 0.0
    wrong: str = ""
    trace: list[str] = field(default_factory=list)


class Numbers:
    """Assigns numbers to values, in the order of their first use."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self.values: list[Any] = []

    def of(self, value: Any) -> int:
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = len(self.values)
            self.values.append(value)
        return number


@contextmanager
def _uncollected() -> Iterator[None]:
    """Disable garbage collection until the block ends: nothing is garbage until then, and collecting would take half of
    the time.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


@_uncollected()
def search(
    scope: str,
    first: State,
    steps_of: Callable[[State], Iterator[tuple[str, State, str]]],
    wrong_in: Callable[[State], str],
    is_content: Callable[[State], bool],
    *,
    limits: Limits,
) -> Found:
    """Search breadth-first, up to the limits.

    Args:
        steps_of: every step from a state: its label, the next state, and what is wrong with it.
        wrong_in: what is wrong with a state.
        is_content: whether every process has done all its work, in a state without a next step.
    """
    started = time.process_time()
    found = Found(scope)
    index: dict[State, int] = {first: 0}
    came_from: list[tuple[int, str]] = [(-1, "")]
    layer = [first]
    while layer and limits.allow(found.depth, len(index), time.process_time() - started):
        following: list[State] = []
        for state in layer:
            at, steps = index[state], 0
            for label, then, wrong_step in steps_of(state):
                steps += 1
                if then in index and not wrong_step:
                    continue
                index[then] = len(came_from)
                came_from.append((at, label))
                found.wrong = wrong_step or wrong_in(then)
                if found.wrong:
                    found.trace = _trace(came_from)
                    break
                following.append(then)
            if found.wrong:
                following = []
                break
            found.transitions += steps
            if not steps:
                found.ends += 1
                found.content += is_content(state)
        layer = following
        found.depth += 1
    found.complete = not layer and not found.wrong
    found.states, found.seconds = len(index), time.process_time() - started
    return found


def _trace(came_from: list[tuple[int, str]]) -> list[str]:
    labels, at = [], len(came_from) - 1
    while at > 0:
        at, label = came_from[at]
        labels.append(label)
    return labels[::-1]
