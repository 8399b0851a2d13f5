"""Workers that a run takes for a Spark session's: work and results pass through pickle."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any, Final

from l0gc.storage.workers import SPARK, Workplace


class Elsewhere:
    """Does one part after another, and passes each through pickle. Its store is the caller's."""

    engine: Final = SPARK
    reason: Final = "the test"
    cores: Final = 2

    def __init__(self, place: Workplace, slots: int = 8) -> None:
        self._place, self.slots = place, slots
        self.cancelled = False

    def map(self, work: Callable[[Any, Any], Any], parts: Sequence[Any]) -> list[Any]:
        sent = [pickle.dumps((work, part)) for part in parts]
        return [pickle.loads(pickle.dumps(self.do(*pickle.loads(s)))) for s in sent]

    def do(self, work: Callable[[Any, Any], Any], part: Any) -> Any:
        """Do one part."""
        return work(self._place, part)

    def reduce(self, work: Any, parts: Any, merge: Any) -> Any:
        raise NotImplementedError

    def flow(self, parts: Any, *stages: Any) -> list[Any]:
        raise NotImplementedError

    def say(self, text: str, *, done: float | None = None, total: float | None = None, **fields: Any) -> None:
        """Discard the progress."""

    def cancel(self) -> None:
        self.cancelled = True
