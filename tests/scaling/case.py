"""The worked case of `docs/scaling.md`: what it assumes, and what follows from that by the formulas of `model.py`.

Also the sweeps that the document tells the LIST requests of; `test_large.py` runs them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

from l0gc.storage.log import TRUNCATE_MIN_AGE_MS
from l0gc.storage.objectstore import PAGE_SIZE
from l0gc.storage.replica import CHECKPOINT_EVERY
from tests.scaling import model
from tests.scaling.model import Log, Requests

DAY_S: Final = 86_400

# -- assumed ------------------------------------------------------------------------------------------------------------

OBJECTS: Final = 10**9
PARTITIONS: Final = 10**5
PER_S: Final = 10**4
"""New objects a second."""
PER_OBJECT: Final = 10
"""Partitions in one object, so placeholders for it."""
OBJECT_BYTES: Final = 100_000
SHARDS: Final = 1000

EPOCH_S: Final = 600
HOUSEKEEP_S: Final = 300
RECONCILE_S: Final = 600
WATERMARK_S: Final = 1200
SWEEP_S: Final = 1200

REQUEST_S: Final = 0.02
"""A small GET or PUT from the same region; AWS says that tens of milliseconds are usual."""
PAGE_S: Final = 0.1
"""A LIST of 1,000 keys."""
THREADS: Final = 16
CORES: Final = 16
"""Of the Spark cluster."""
MEMORY_BYTES: Final = 8 * 10**9

# -- measured: see "Measured" in the document -----------------------------------------------------------------------------

LISTED_PER_CPU_S: Final = 200_000
"""Keys that a sweep lists and sorts out in a second of processor time."""
DELETED_PER_CPU_S: Final = 33_000
"""Objects that it lists, deletes and puts on record."""
SPARK_LISTED_PER_CORE_S: Final = 68_000
"""Keys that `compute-watermark` lists on a core in a second; at least."""

# -- what follows ---------------------------------------------------------------------------------------------------------

LIFE_S: Final = 2 * EPOCH_S + HOUSEKEEP_S + RECONCILE_S + WATERMARK_S + SWEEP_S
"""How long an object lives at most where every job keeps up: two ticks, and a period of each job."""
KEPT_UP: Final = PER_S * LIFE_S
"""Objects of a bucket where every job keeps up."""
LAG_S: Final = OBJECTS / PER_S
"""How far M is behind in a bucket of so many objects."""
STEADY: Final = PER_S * SWEEP_S
"""Garbage for each sweep, whatever M's lag."""
BACKLOG: Final = OBJECTS - KEPT_UP
"""Garbage for the first sweep when M has caught up."""
APPENDS: Final = PER_S * PER_OBJECT / PARTITIONS
"""Entries a second in each partition's log."""
CONTROLLER: Final = Log(behind=25, covered=TRUNCATE_MIN_AGE_MS / 1000 / EPOCH_S, checkpoints=2)
"""The controller's log: housekeeping checkpoints at 50 entries."""


def partition_log(period_s: float) -> Log:
    """A busy partition's log if housekeeping truncates it once in so many seconds."""
    return Log(CHECKPOINT_EVERY / 2, APPENDS * (TRUNCATE_MIN_AGE_MS / 1000 + period_s), checkpoints=2)


IDLE_LOG: Final = Log(behind=25, covered=25, checkpoints=2)
"""That of a partition whose window slides with each tick, and nothing else happens."""


def housekeep(partitions: float = PARTITIONS, period_s: float = HOUSEKEEP_S) -> Requests:
    """A run of housekeeping where all partitions are busy, and the last run was so long ago."""
    each = model.read_log(partition_log(period_s)) + model.checkpoint_and_truncate(
        partition_log(period_s), APPENDS * period_s
    )
    return model.ONCE["housekeep"] + model.read_log(CONTROLLER) + partitions * each


def housekeep_idle() -> Requests:
    """The same for a partition where nothing happens but ticks."""
    return model.read_log(IDLE_LOG) + Requests(puts=HOUSEKEEP_S / EPOCH_S)


def in_threads(requests: Requests) -> float:
    """How long so many requests take, one after another in each of 16 threads."""
    return requests.total * REQUEST_S / THREADS


def housekeep_seconds() -> float:
    """How long a run takes if it begins when the one before has ended: longer runs leave longer logs to the next."""
    seconds = float(HOUSEKEEP_S)
    for _ in range(50):
        seconds = max(HOUSEKEEP_S, in_threads(housekeep(period_s=seconds)))
    return seconds


def reconcile_plan() -> Requests:
    """What one process of reconcile does for a partition: its log, a look before the commit, the commit."""
    return model.read_log(partition_log(HOUSEKEEP_S)) + model.look() + Requests(puts=1)


def reconcile() -> Requests:
    """A run of reconcile: beside that, an L1 object for each partition and the objects since the last run."""
    objects = Requests(gets=PER_S * RECONCILE_S)
    return model.read_log(CONTROLLER) + PARTITIONS * (reconcile_plan() + Requests(puts=1)) + objects + Requests(puts=1)


def uploads_per_s() -> Requests:
    """All uploads of a second, where each partition has one writer."""
    placeholders = PER_S * PER_OBJECT
    return Requests(puts=PER_S + placeholders + placeholders / CHECKPOINT_EVERY)


def uploads_spread_per_s(writers: int) -> Requests:
    """The same where each partition has so many writers in turn: each reads what the others have appended."""
    spread = model.append_behind(writers - 1, idle=False)
    return uploads_per_s() + PER_S * PER_OBJECT * Requests(gets=spread.gets, puts=spread.puts - 1)


def upload_processes() -> int:
    """How many uploads it takes: the placeholders of a batch are appended at once, batches one after another."""
    return ceil(PER_S * ceil(PER_OBJECT / THREADS) * REQUEST_S)


def compute_watermark(*, scan: bool) -> Requests:
    """A run over 16 report files or fewer."""
    lists = model.pages(OBJECTS) + 4 * CORES if scan else 0
    return model.compute_watermark(CONTROLLER, files=8, listing=lists)


def sweep(garbage: int) -> Requests:
    """A sweep of the bucket of 10^9 objects."""
    return model.sweep(CONTROLLER, garbage=garbage, lists=model.sweep_lists_bound(OBJECTS, garbage, SHARDS))


def prefixes(writes_per_s: float) -> int:
    """Into how many partitions S3 has to have split a prefix to take so many writes a second."""
    return ceil(writes_per_s / model.WRITES_PER_S)


# -- limits -----------------------------------------------------------------------------------------------------------------


def partitions_in_time(each: Requests, seconds: float) -> float:
    """How many partitions one process gets through in so long."""
    return seconds / in_threads(each)


def each_of(requests: Requests) -> Requests:
    """The part of one partition."""
    return (1 / PARTITIONS) * requests


def partitions_in_memory() -> float:
    """How many partitions' states a process can hold: what was not reconciled since the last run."""
    return MEMORY_BYTES / (APPENDS * RECONCILE_S * model.STATE_BYTES)


def keys_in_time() -> float:
    """How many keys Spark lists within `compute-watermark`'s period, a page at a time on each core."""
    return WATERMARK_S / PAGE_S * CORES * PAGE_SIZE


# -- sweeps -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SweepCase:
    """A bucket of `keys` L0 objects, `garbage` of them to go.

    Attributes:
        counted: LIST requests where shards are so small that the formula knows their bound alone.
        run: whether a test sweeps it; else it is worked out.
        dry_run: whether that test deletes nothing.
        thorough: whether that test is one of those that `make test` leaves out.
    """

    keys: int
    garbage: int
    shards: int
    counted: int | None = None
    run: bool = True
    dry_run: bool = False
    thorough: bool = False

    @property
    def name(self) -> str:
        return f"{self.keys:,} keys, {self.garbage:,} garbage, {self.shards:,} shards"

    @property
    def lists(self) -> int:
        """LIST requests of the data prefix."""
        return self.counted or model.sweep_lists(self.keys, self.garbage, self.shards)


SWEEPS: Final = [
    SweepCase(10**6, 2 * 10**5, 100),
    SweepCase(5 * 10**5, 5 * 10**4, 1000, counted=504),
    SweepCase(10**6, 10**5, 1000),
    SweepCase(10**8, 10**5, 1000),
    SweepCase(10**9, 10**6, 1000, dry_run=True),
    SweepCase(OBJECTS, STEADY, SHARDS, dry_run=True, thorough=True),
    SweepCase(OBJECTS, BACKLOG, SHARDS, run=False),
]
