"""Where work runs: threads of this process, or executors of a Spark session (`spark/workers.py`), by the same functions.

Work is a function of a place and a part. The place is what the function works with: a cluster's handles, of this process or
of the executor's. What it returns should be small, since all of it comes together in one process; where it is not, `reduce`
adds it up on the way, and `flow` hands it from one stage to the next.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from l0gc.events import Progress, quiet
from l0gc.storage.objectstore import ObjectStore
from l0gc.storage.parallel import Parallel

AUTO: Final = "auto"
LOCAL: Final = "local"
SPARK: Final = "spark"
"""The engines: this process, a Spark session, or whichever of them suits the work."""
LOCAL_SLOTS: Final = 8

A = TypeVar("A")
B = TypeVar("B")


class Place(Protocol):
    @property
    def store(self) -> ObjectStore: ...

    @property
    def parallel(self) -> Parallel:
        """For requests that one part sends at once."""
        ...


P = TypeVar("P", bound=Place)
P_co = TypeVar("P_co", bound=Place, covariant=True)


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of a flow: in how many tasks it runs, and what each of them makes of the items that are sent to it.

    `work` gets the place and the items. What it yields is the result if its stage is the last one; else pairs of the number
    of the next stage's task and an item for it.
    """

    tasks: int
    work: Callable[[Any, Iterable[Any]], Iterable[Any]]


class Workers(Protocol[P_co]):
    """Does the same to many parts, wherever that is. What the work raises is raised here."""

    @property
    def engine(self) -> str:
        """LOCAL or SPARK."""
        ...

    @property
    def reason(self) -> str:
        """Why that one."""
        ...

    @property
    def cores(self) -> int:
        """Return how many stages' tasks run at once."""
        ...

    @property
    def slots(self) -> int:
        """Into how many parts a large piece of work is best cut."""
        ...

    def map(self, work: Callable[[P_co, A], B], parts: Sequence[A]) -> list[B]:
        """What `work` makes of each part, in their order."""
        ...

    def reduce(self, work: Callable[[P_co, A], B], parts: Sequence[A], merge: Callable[[B, B], B]) -> B | None:
        """What `work` makes of the parts, merged in any order; None without parts. `merge` may change its first argument."""
        ...

    def flow(self, parts: Sequence[Any], *stages: Stage) -> list[Any]:
        """What the last stage yields. The first one gets the parts; items between stages are pickled on Spark.

        A stage of one task may get items while the stage before still runs; of several, each begins when that has ended.
        """
        ...

    def say(self, text: str, *, done: float | None = None, total: float | None = None, **fields: Any) -> None:
        """Tell the progress what is being done; on Spark with the share of the tasks that have ended."""
        ...

    def cancel(self) -> None:
        """End what runs now, soon. Its parts fail, or have ended."""
        ...


class LocalWorkers(Generic[P]):
    """Does it in this process."""

    engine: Final = LOCAL
    cores: Final = 1

    def __init__(self, place: P, slots: int = LOCAL_SLOTS, progress: Progress = quiet) -> None:
        self._place, self.slots, self.say = place, slots, progress
        self.reason = ""

    def map(self, work: Callable[[P, A], B], parts: Sequence[A]) -> list[B]:
        return self._place.parallel.map(functools.partial(work, self._place), parts)

    def reduce(self, work: Callable[[P, A], B], parts: Sequence[A], merge: Callable[[B, B], B]) -> B | None:
        done = self.map(work, parts)
        return functools.reduce(merge, done) if done else None

    def flow(self, parts: Sequence[Any], *stages: Stage) -> list[Any]:
        items: Iterable[Any] = parts
        for i, stage in enumerate(stages):
            if i == 0:
                items = stage.work(self._place, items)
            elif stage.tasks == 1:
                items = stage.work(self._place, (item for _, item in items))
            else:
                items = self._each_task(stage, items)
        return list(items)

    def _each_task(self, stage: Stage, sent: Iterable[tuple[int, Any]]) -> Iterable[Any]:
        by_task: dict[int, list[Any]] = {}
        for task, item in sent:
            by_task.setdefault(task, []).append(item)
        for task in sorted(by_task):
            yield from stage.work(self._place, by_task.pop(task))

    def cancel(self) -> None:
        """Parts that run in this process look for themselves whether they are to end."""
