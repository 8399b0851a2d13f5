"""What differs from seed to seed: the store's habits, clocks, ages, how often what fails, and what the operator does."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from unittest import mock

import l0gc.collect.local
import l0gc.collect.plan
import l0gc.collect.scan
import l0gc.storage.replica
from tests.simulation.store import HABITS

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

NOTHING = "nothing happens"
LONG_BREAK = "eight days go by"
OLD_BACKUP = "the controller log is restored from an old backup, and later from the newest"
FOREIGN_WATERMARK = "another cluster's watermark lies in the bucket for a while"
FOREIGN_REPORT = "another cluster's report lies in the bucket for a while"
EVENTS = (NOTHING, NOTHING, LONG_BREAK, OLD_BACKUP, OLD_BACKUP, FOREIGN_WATERMARK, FOREIGN_REPORT)


@dataclass(frozen=True)
class Faults:
    """How likely each fault is, for each store call."""

    before: float = 0.01
    after: float = 0.01
    throttled: float = 0.005
    pause: float = 0.01
    crash: float = 0.004

    @cached_property
    def any(self) -> float:
        """At least as likely as any fault, before or after a call."""
        return self.before + self.after + self.throttled + self.pause + self.crash

    @classmethod
    def none(cls) -> Faults:
        return cls(0, 0, 0, 0, 0)

    def times(self, factor: float) -> Faults:
        return Faults(*(factor * f for f in (self.before, self.after, self.throttled, self.pause, self.crash)))


@dataclass(frozen=True)
class Weather:
    """The circumstances of one seed. `bursts`: how likely a thread goes on that has just gone on."""

    habit: str
    page_size: int
    truncate_min_age_ms: int
    epoch_interval_s: float
    checkpoint_every: int
    wrong_clocks: bool
    trouble: float
    bursts: float
    event: str
    all_topics_go: bool

    @classmethod
    def draw(cls, chance: random.Random) -> Weather:
        return cls(
            habit=chance.choice(HABITS),
            page_size=chance.choice([3, 5, 8, 1000]),
            truncate_min_age_ms=chance.choice([0, 0, 0, 60_000, 15 * 60_000]),
            epoch_interval_s=chance.choice([2.0, 10.0, 30.0]),
            checkpoint_every=chance.choice([3, 10, 100]),
            wrong_clocks=chance.random() < 0.5,
            trouble=chance.choice([0.3, 1.0, 1.0, 2.0]),
            bursts=chance.choice([0.0, 0.0, 0.5, 0.9, 0.97]),
            event=chance.choice(EVENTS),
            all_topics_go=chance.random() < 0.1,
        )

    def skew(self, chance: random.Random) -> int:
        """By how much a process's clock is ahead of the store's, in milliseconds."""
        return chance.choice([-7 * HOUR_MS, -HOUR_MS, 0, HOUR_MS, 7 * HOUR_MS]) if self.wrong_clocks else 0

    @contextmanager
    def applied(self) -> Iterator[None]:
        """l0gc's constants as this seed has them: small pages, and checkpoints by writers soon."""
        with ExitStack() as stack:
            for module in (l0gc.collect.plan, l0gc.collect.scan, l0gc.collect.local):
                if hasattr(module, "PAGE_SIZE"):
                    stack.enter_context(mock.patch.object(module, "PAGE_SIZE", self.page_size))
            stack.enter_context(mock.patch.object(l0gc.storage.replica, "CHECKPOINT_EVERY", self.checkpoint_every))
            yield
