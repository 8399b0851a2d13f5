"""Workers that a run takes for a Spark session's: what is sent to them and what they return goes through pickle."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any, Final

from l0gc.storage.workers import SPARK, Workplace


class Elsewhere:
    """Does one part after another, each with what pickle makes of it. Its store is the caller's."""

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
        """One part."""
        return work(self._place, part)

    def reduce(self, work: Any, parts: Any, merge: Any) -> Any:
        raise NotImplementedError

    def flow(self, parts: Any, *stages: Any) -> list[Any]:
        raise NotImplementedError

    def say(self, text: str, *, done: float | None = None, total: float | None = None, **fields: Any) -> None:
        """Nobody listens."""

    def cancel(self) -> None:
        self.cancelled = True
