"""Estimate how long work takes in this process and on Spark; `auto` takes the lower estimate (pure).

The rates of listing, deleting and rewriting were measured, and so was Spark's start; the others are assumed. The store
waits 50 ms before each answer, about as S3 does. `benchmarks/run engines` measures start and listing anew, and checks
that `auto` is at most 1.2 times slower than the better engine.
"""

from __future__ import annotations

from math import ceil, inf
from typing import Final

import msgspec


class Pace(msgspec.Struct, frozen=True):
    """The speed of a kind of work.

    Attributes:
        here: units a second in this process, for each of its cores that the work uses.
        core: units a second on each core of Spark.
        most_cores: how many cores of its machine a process uses at most.
    """

    here: float
    core: float
    most_cores: int = 1


LISTING: Final = Pace(here=120_000, core=16_000)
"""Keys. One process has up to 64 LISTs in flight, and one core to read them; a Spark task waits for each page."""
DELETING: Final = Pace(here=30_000, core=12_000)
"""Objects that are listed, deleted and recorded."""
REWRITING: Final = Pace(here=9_000_000, core=8_500_000, most_cores=2)
"""Bytes of L0, or of small L1 objects, that become L1. In one process this was measured on two cores."""
READING_FILES: Final = Pace(here=2.5, core=2.5, most_cores=1 << 20)
"""Files of an external log: one process reads 16 as fast as Spark starts, and no slower on the same cores."""
JOURNALS: Final = Pace(here=10, core=5)
"""Journals with 64 entries after their checkpoint, of which one process reads 32 at once, and a Spark task 16."""

START_S: Final = 6.5
"""The start of a session, with its first Python workers."""
RUNNING_S: Final = 2.0
"""The start if Java or the session is already running: its Python workers."""
CLUSTER_CORES: Final = 16
"""The number of cores assumed for a cluster if no setting gives it."""


class SparkTarget(msgspec.Struct, frozen=True):
    """Where Spark would do the work.

    Attributes:
        master: its name in messages.
        cores: how many tasks it runs at once.
        cluster: whether it uses other machines.
        running: whether the session, or its Java, has started.
    """

    master: str
    cores: int
    cluster: bool = False
    running: bool = False


class EngineEstimate(msgspec.Struct, frozen=True):
    """The estimated time of a kind of work, for any number of units.

    Attributes:
        pace: of the work.
        journals: how many are read in addition.
        cores: the cores of this machine.
        spark: where Spark would do it.
    """

    pace: Pace
    journals: int
    cores: int
    spark: SparkTarget

    def local_s(self, units: float) -> float:
        """Return the seconds that this many units take in this process."""
        return self.journals / JOURNALS.here + units * self._here_unit

    def spark_s(self, units: float) -> float:
        """Return the seconds on Spark, with its start."""
        start = RUNNING_S if self.spark.running else START_S
        return start + (self.journals / JOURNALS.core + units / self.pace.core) / self.spark.cores

    @property
    def break_even(self) -> float:
        """Return the number of units from which on Spark is faster: 0 if it always is, infinite if it never is."""
        behind = self.spark_s(0) - self.local_s(0)
        gain = self._here_unit - 1 / self.pace.core / self.spark.cores
        if gain <= 0:
            return inf if behind >= 0 else 0.0
        return float(max(0, ceil(behind / gain)))

    @property
    def _here_unit(self) -> float:
        return 1 / self.pace.here / min(self.cores, self.pace.most_cores)
