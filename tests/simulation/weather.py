"""The circumstances that differ from seed to seed: the store's habits, clocks, ages, faults, and the operator's
actions.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING
from unittest import mock

import pyarrow as pa

import l0gc.collect.plan
import l0gc.collect.skip_scan
import l0gc.storage.log
import l0gc.storage.replica
import l0gc.streamlog.journal.row_list
import l0gc.streamlog.level_one.merge_plan
import l0gc.streamlog.level_one.reconcile
import l0gc.streamlog.level_one.share
import l0gc.streamlog.level_one.write
import l0gc.streamlog.reader
from l0gc.storage.log import SharedLog
from l0gc.streamlog.level_one.write import L1Writer
from tests.simulation.store import HABITS
from tests.support.memory_store import FakeClock

if TYPE_CHECKING:
    from tests.simulation.world import Process, World

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

NOTHING = "nothing happens"
TEN_DAYS = "ten days go by"
LONG_BREAK = "three weeks go by"
OLD_BACKUP = "the controller log is restored from an old backup, and later from the newest"
FOR_GOOD = "the controller log is restored from an old backup for good; later somebody notices"
NOTICED = "the controller log is restored from an old backup for good, and somebody notices"
FOREIGN_WATERMARK = "another cluster's watermark lies in the bucket for a while"
EVENTS = (NOTHING, TEN_DAYS, LONG_BREAK, OLD_BACKUP, OLD_BACKUP, FOR_GOOD, FOR_GOOD, NOTICED, FOREIGN_WATERMARK)

ANSWERS = {"throttles": 0.3, "mistakes": 0.3, "late_dates": 0.3}
"""The share of seeds with each kind of answer of `answers.py`; the other seeds take the same steps as without them."""


@dataclass(frozen=True)
class Shape:
    """A topic's number of partitions and of journals."""

    partitions: int
    journals: int


@dataclass(frozen=True)
class Faults:
    """The probability of each fault, for each store call.

    Attributes:
        late: a write without an answer takes effect up to 20 minutes later.
        twice: a proxy sends a conditional write twice: it lands, and the repeat's refusal is the answer.
        nap: a process that has appended to a journal sleeps before it gets the reply, while others truncate its entry.
        interrupt: an exception is raised between two bytecodes of `apply`; for each apply, not for each call.
    """

    before: float = 0.008
    after: float = 0.01
    throttled: float = 0.005
    pause: float = 0.01
    crash: float = 0.004
    late: float = 0.01
    twice: float = 0.02
    nap: float = 0.03
    interrupt: float = 0.05

    @cached_property
    def any(self) -> float:
        """An upper bound of the probability of any fault, before or after a call."""
        return float(sum(astuple(self)))

    @classmethod
    def none(cls) -> Faults:
        return cls(0, 0, 0, 0, 0, 0, 0, 0, 0)

    def times(self, factor: float) -> Faults:
        return Faults(*(factor * f for f in astuple(self)))


@dataclass(frozen=True)
class Weather:
    """The circumstances of one seed. `bursts` is the probability that the same thread runs again at the next step."""

    habit: str
    page_size: int
    journals: int
    shapes: tuple[Shape, ...]
    truncate_min_age_ms: int
    small_checkpoint: int
    epoch_interval_s: float
    checkpoint_every: int
    piece_rows: int
    window_bytes: int
    wrong_clocks: bool
    date_jumps: bool
    trouble: float
    bursts: float
    event: str
    all_topics_go: bool
    expires: bool
    no_writes: bool
    external_log: bool
    l1_records: int
    pins: bool = False
    renews_pins: bool = False
    schemas: bool = False
    shares: bool = False
    throttles: bool = False
    mistakes: bool = False
    late_dates: bool = False

    @classmethod
    def draw(cls, chance: random.Random) -> Weather:
        journals = chance.choice([1, 2, 2, 3, 6])
        return cls(
            habit=chance.choice(HABITS),
            page_size=chance.choice([3, 5, 8, 1000]),
            journals=journals,
            shapes=tuple(_shape(chance, journals) for _ in range(3)),
            truncate_min_age_ms=chance.choice([2_000, 2_000, 10_000, 60_000, 15 * 60_000]),
            small_checkpoint=chance.choice([1, 2, 4]),
            epoch_interval_s=chance.choice([2.0, 10.0, 30.0]),
            checkpoint_every=chance.choice([3, 10, 100]),
            piece_rows=chance.choice([2, 4, 64]),
            window_bytes=chance.choice([1, 1, 32 << 20]),
            wrong_clocks=chance.random() < 0.5,
            date_jumps=chance.random() < 0.5,
            trouble=chance.choice([0.3, 1.0, 1.0, 2.0]),
            bursts=chance.choice([0.0, 0.0, 0.5, 0.9, 0.97]),
            event=chance.choice(EVENTS),
            all_topics_go=chance.random() < 0.1,
            expires=chance.random() < 0.4,
            no_writes=chance.random() < 0.5,
            external_log=chance.random() < 0.4,
            l1_records=chance.choice([0, 0, 1, 2]),
        )

    def with_answers(self, seed: int) -> Weather:
        """Return the same circumstances with answers of `answers.py`."""

        def has(what: str) -> bool:
            return random.Random(f"{what} of {seed}").random() < ANSWERS[what]

        return replace(self, throttles=has("throttles"), mistakes=has("mistakes"), late_dates=has("late_dates"))

    def skew(self, chance: random.Random) -> int:
        """Return how far a process's clock is ahead of the store's, in milliseconds."""
        return (
            chance.choice([-365 * DAY_MS, -7 * HOUR_MS, -HOUR_MS, 0, HOUR_MS, 7 * HOUR_MS, 365 * DAY_MS])
            if self.wrong_clocks
            else 0
        )

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Set l0gc's constants for this seed: small pages, early checkpoints, read in parts, pieces of a few L1 rows."""
        constants = [
            (l0gc.collect.skip_scan, "PAGE_SIZE", self.page_size),
            (l0gc.collect.plan, "PAGE_SIZE", self.page_size),
            (l0gc.storage.replica, "CHECKPOINT_EVERY", self.checkpoint_every),
            (l0gc.storage.replica, "_SMALL_CHECKPOINT_ENTRIES", self.small_checkpoint),
            (l0gc.streamlog.journal.row_list, "PIECE_ROWS", self.piece_rows),
            (l0gc.storage.log, "READ_AT_ONCE", 16 * self.piece_rows),
            (l0gc.streamlog.level_one.merge_plan, "OBJECTS", 1),
            (l0gc.streamlog.reader, "WINDOW_BYTES", self.window_bytes),
        ]
        if self.shares:  # the partitions of a topic in a journal, if it has two, share what each round writes
            constants += [
                (l0gc.streamlog.level_one.share, "LEAST_PARTITIONS", 2),
                (l0gc.streamlog.level_one.merge_plan, "DRAINED_ROWS", 2),
            ]
        with ExitStack() as stack:
            for module, name, value in constants:
                stack.enter_context(mock.patch.object(module, name, value))
            # Tasks and merges use the default; all processes of a cluster agree on it.
            if self.l1_records:
                stack.enter_context(small_l1(self.l1_records))
            ages = {"truncate_min_age_ms": self.truncate_min_age_ms}
            stack.enter_context(mock.patch.dict(SharedLog.__init__.__kwdefaults__, ages))
            yield


@contextmanager
def small_l1(records: int) -> Iterator[None]:
    """Let reconcilers write L1 objects of this many records until the block ends: several of a partition are committed
    together.
    """
    write = L1Writer.write

    def in_pieces(self: L1Writer, batch: pa.RecordBatch, width: float) -> None:
        for at in range(0, batch.num_rows, records):
            write(self, batch.slice(at, records), width)

    with (
        mock.patch.object(L1Writer, "write", in_pieces),
        mock.patch.object(l0gc.streamlog.level_one.write, "FILE_BYTES", 1),
        mock.patch.object(l0gc.streamlog.level_one.write, "_ROW_GROUP_BYTES", 1),
    ):
        yield


class ProcessClock(FakeClock):
    """A process's own clock: it runs at the right speed, but may be wrong by hours."""

    def __init__(self, world: World, process: Process) -> None:
        super().__init__()
        self._world, self._process = world, process

    def now_ms(self) -> int:
        return self._world.clock.ms + self._process.skew_ms

    def monotonic(self) -> float:
        return (self.now_ms() - self._process.suspended_ms) / 1000

    def sleep(self, seconds: float) -> None:
        self._world.sleep(seconds)


def _shape(chance: random.Random, journals: int) -> Shape:
    partitions = chance.choice([1, 2, 2, 3, 5])
    return Shape(partitions, chance.randint(1, min(journals, partitions)))
