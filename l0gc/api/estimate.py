"""Estimate how long work takes in this process and on Spark; `auto` takes the lower estimate (pure).

The rates of listing, deleting and rewriting, and Spark's start, were measured; the others are assumed. In the
measurements, the store waited 50 ms before each answer, about as S3 does. `benchmarks/run engines` measures start and
listing again, and checks that `auto` takes at most 1.2 times as long as the better engine.
"""

from __future__ import annotations

from math import ceil, inf
from typing import Final

import msgspec


class Pace(msgspec.Struct, frozen=True):
    """The speed of a kind of work.

    Attributes:
        here: units per second in this process, for each core that the work uses.
        core: units per second on each core of Spark.
        most_cores: the most cores that a process uses on its machine.
    """

    here: float
    core: float
    most_cores: int = 1


LISTING: Final = Pace(here=120_000, core=16_000)
"""The pace in keys. One process has up to 64 LISTs in flight, and one core to read the answers; a Spark task waits for
each page.
"""
DELETING: Final = Pace(here=30_000, core=12_000)
"""The pace in objects that are listed, deleted and recorded."""
REWRITING: Final = Pace(here=9_000_000, core=8_500_000, most_cores=2)
"""The pace in bytes of L0, or of small L1 objects, that are written to L1. In one process, it was measured on two
cores.
"""
READING_FILES: Final = Pace(here=2.5, core=2.5, most_cores=1 << 20)
"""The pace in files of an external log. One process reads 16 files while Spark starts, and is as fast as Spark on the
same cores.
"""
JOURNALS: Final = Pace(here=10, core=5)
"""The pace in journals with 64 entries after their checkpoint; one process reads 32 entries at once, a Spark task 16.
"""

START_S: Final = 6.5
"""The duration of a session's start, including its first Python workers."""
RUNNING_S: Final = 2.0
"""The duration of a start if Java or the session is already running: that of the Python workers."""
CLUSTER_CORES: Final = 16
"""The number of cores assumed for a cluster if no setting gives it."""


class SparkTarget(msgspec.Struct, frozen=True):
    """Where Spark would do the work.

    Attributes:
        master: the name of the master in messages.
        cores: the number of tasks that run at once.
        cluster: whether other machines are used.
        running: whether the session, or its Java, is already running.
    """

    master: str
    cores: int
    cluster: bool = False
    running: bool = False


class EngineEstimate(msgspec.Struct, frozen=True):
    """The estimated time of a kind of work, for any number of units.

    Attributes:
        pace: the pace of the work.
        journals: the number of journals that are also read.
        cores: the number of cores of this machine.
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
        """Return the seconds that this many units take on Spark, including its start."""
        start = RUNNING_S if self.spark.running else START_S
        return start + (self.journals / JOURNALS.core + units / self.pace.core) / self.spark.cores

    @property
    def break_even(self) -> float:
        """Return the number of units from which Spark is faster: 0 if it always is, infinity if it never is."""
        behind = self.spark_s(0) - self.local_s(0)
        gain = self._here_unit - 1 / self.pace.core / self.spark.cores
        if gain <= 0:
            return inf if behind >= 0 else 0.0
        return float(max(0, ceil(behind / gain)))

    @property
    def _here_unit(self) -> float:
        return 1 / self.pace.here / min(self.cores, self.pace.most_cores)
