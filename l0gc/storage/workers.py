"""Run work in threads of this process, or on executors of a Spark session (`spark/workers.py`), by the same functions.

Work is a function of a workplace and a part. The workplace provides what the function needs: a cluster's handles in
this process or in the executor. Results of `map` should be small, because all of them arrive in one process; `reduce`
combines larger ones on the way, and `flow` passes them from stage to stage.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from l0gc.events import Progress, quiet
from l0gc.storage.objectstore import ObjectStore
from l0gc.storage.parallel import Parallel

AUTO: Final = "auto"
LOCAL: Final = "local"
SPARK: Final = "spark"
"""The engine that runs work on the executors of a Spark session."""
LOCAL_SLOTS: Final = 8

A = TypeVar("A")
B = TypeVar("B")


class Workplace(Protocol):
    @property
    def store(self) -> ObjectStore: ...

    @property
    def parallel(self) -> Parallel:
        """Return the threads for requests that one part sends concurrently."""
        ...


P = TypeVar("P", bound=Workplace)
P_co = TypeVar("P_co", bound=Workplace, covariant=True)


class Stage(msgspec.Struct, frozen=True):
    """A stage of a flow: its number of tasks, and the work that each task does with the items sent to it.

    `work` gets the workplace and the items. In the last stage, it yields results; in other stages, it yields pairs: the
    number of a task of the next stage, and an item for that task.
    """

    tasks: int
    work: Callable[[Any, Iterable[Any]], Iterable[Any]]


class Workers(Protocol[P_co]):
    """Runs the same work on many parts, on any engine. Errors of the work are raised in the caller."""

    @property
    def engine(self) -> str:
        """Return LOCAL or SPARK."""
        ...

    @property
    def reason(self) -> str:
        """Return why this engine was chosen."""
        ...

    @property
    def cores(self) -> int:
        """Return how many tasks of a stage run concurrently."""
        ...

    @property
    def slots(self) -> int:
        """Return the best number of parts for a large piece of work."""
        ...

    def map(self, work: Callable[[P_co, A], B], parts: Sequence[A]) -> list[B]:
        """Return the result of `work` for each part, in order."""
        ...

    def reduce(self, work: Callable[[P_co, A], B], parts: Sequence[A], merge: Callable[[B, B], B]) -> B | None:
        """Return the results of `work`, merged in any order; None if `parts` is empty. `merge` may change its first
        argument.
        """
        ...

    def flow(self, parts: Sequence[Any], *stages: Stage) -> list[Any]:
        """Return the results of the last stage. The first stage gets the parts. On Spark, items are pickled between
        stages.

        A stage with one task may get items while the previous stage still runs. A stage with several tasks begins when
        the previous one has ended.
        """
        ...

    def say(self, text: str, *, done: float | None = None, total: float | None = None, **fields: Any) -> None:
        """Report the current step; on Spark, with the share of the tasks that have ended."""
        ...

    def cancel(self) -> None:
        """Stop the running work soon. Its parts fail unless they have ended."""
        ...


class LocalWorkers(Generic[P]):
    """Runs the work in this process."""

    engine: Final = LOCAL
    cores: Final = 1

    def __init__(self, workplace: P, slots: int = LOCAL_SLOTS, progress: Progress = quiet) -> None:
        self._workplace, self.slots, self.say = workplace, slots, progress
        self.reason = ""

    def map(self, work: Callable[[P, A], B], parts: Sequence[A]) -> list[B]:
        return self._workplace.parallel.map(functools.partial(work, self._workplace), parts)

    def reduce(self, work: Callable[[P, A], B], parts: Sequence[A], merge: Callable[[B, B], B]) -> B | None:
        done = self.map(work, parts)
        return functools.reduce(merge, done) if done else None

    def flow(self, parts: Sequence[Any], *stages: Stage) -> list[Any]:
        items: Iterable[Any] = parts
        for i, stage in enumerate(stages):
            if i == 0:
                items = stage.work(self._workplace, items)
            elif stage.tasks == 1:
                items = stage.work(self._workplace, (item for _, item in items))
            else:
                items = self._each_task(stage, items)
        return list(items)

    def _each_task(self, stage: Stage, sent: Iterable[tuple[int, Any]]) -> Iterable[Any]:
        by_task: dict[int, list[Any]] = {}
        for task, item in sent:
            by_task.setdefault(task, []).append(item)
        for task in sorted(by_task):
            yield from stage.work(self._workplace, by_task.pop(task))

    def cancel(self) -> None:
        """Do nothing, since parts in this process check whether they should stop."""
