"""The worked case of `docs/why/scaling.md`: its assumptions, and the results of its formulas.

Also the sweeps whose LIST requests the document gives; `test_large.py` runs them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from docs.programs import scaling as model
from docs.programs.scaling import Log, Requests
from l0gc.storage.log import TRUNCATE_MIN_AGE_MS
from l0gc.storage.replica import CHECKPOINT_BYTES, CHECKPOINT_EVERY
from l0gc.storage.workers import SPARK
from l0gc.streamlog.journal.handle import APPEND_INTERVAL_S
from l0gc.streamlog.level_one.merge_plan import DRAINED_ROWS

DAY_S: Final = 86_400

# -- assumptions --------------------------------------------------------------------------------------------------------

OBJECTS: Final = 10**9
PARTITIONS: Final = 10**5
JOURNALS: Final = 100
"""Each holds a topic of 1,000 partitions."""
PER_S: Final = 10**4
"""New objects a second."""
PER_OBJECT: Final = 10
"""Partitions in one object, all of which belong to one journal."""
OBJECT_BYTES: Final = 100_000
SHARDS: Final = 1000

EPOCH_S: Final = 600
HOUSEKEEP_S: Final = 300
RECONCILE_S: Final = 600
ROUND_BYTES: Final = 16 << 30
"""The `--round-bytes` of the case: four times the default, as a run takes 600 GB."""
WATERMARK_S: Final = 1200
SWEEP_S: Final = 1200

REQUEST_S: Final = 0.02
"""The seconds of a small GET or PUT from the same region; AWS calls tens of milliseconds usual."""
PAGE_S: Final = 0.1
"""The seconds of a LIST of 1,000 keys."""
THREADS: Final = 16
CORES: Final = 16
"""The cores of the Spark cluster."""
MEMORY_BYTES: Final = 8 * 10**9

# -- measurements: see "Measured" in the document -------------------------------------------------------------------------

LISTED_PER_CPU_S: Final = 200_000
"""Keys that a sweep lists and classifies in a second of processor time."""
DELETED_PER_CPU_S: Final = 80_000
"""Objects that a sweep lists, deletes and records in a second of processor time."""
SPARK_LISTED_PER_CORE_S: Final = 130_000
"""The least number of keys that `compute-watermark` lists on a core in a second."""

# -- results --------------------------------------------------------------------------------------------------------------

LIFE_S: Final = 2 * EPOCH_S + HOUSEKEEP_S + RECONCILE_S + WATERMARK_S + SWEEP_S
"""The longest life of an object if every job keeps up: two ticks, and a period of each job."""
KEPT_UP: Final = PER_S * LIFE_S
"""Objects of a bucket in which every job keeps up."""
LAG_S: Final = OBJECTS / PER_S
"""How far M is behind in a bucket of this many objects."""
STEADY: Final = PER_S * SWEEP_S
"""Garbage for each sweep, whatever M's lag."""
BACKLOG: Final = OBJECTS - KEPT_UP
"""Garbage for the first sweep when M has caught up."""
PER_JOURNAL: Final = PER_S / JOURNALS
"""Objects a second in each journal."""
APPENDS: Final = min(PER_JOURNAL, 1 / APPEND_INTERVAL_S)
"""Entries a second in each journal, which has one writer: objects that arrive in between go into its next entry."""
ENTRY_BYTES: Final = PER_JOURNAL / APPENDS * (model.ENTRY_OBJECT_BYTES + PER_OBJECT * model.ENTRY_EXTENT_BYTES)
UNRECONCILED: Final = PER_JOURNAL * RECONCILE_S
"""Objects in a journal that are not in L1, before a run of reconcile."""
L1_ROWS: Final = 64 * PARTITIONS / JOURNALS
"""L1 rows of a journal, of 64 L1 objects in each partition."""
ROUNDS: Final = ceil(PER_S * RECONCILE_S * OBJECT_BYTES / ROUND_BYTES)
"""Rounds of a reconcile."""
SHARED_ROWS: Final = ROUNDS * PARTITIONS / JOURNALS
"""Rows of shared L1 objects in a journal, before the merge that follows a reconcile drains them."""
CHECKPOINT: Final = (
    UNRECONCILED * (model.CHECKPOINT_OBJECT_BYTES + PER_OBJECT * model.CHECKPOINT_EXTENT_BYTES)
    + L1_ROWS * model.L1_ROW_BYTES
    + SHARED_ROWS * model.SHARED_ROW_BYTES
)
"""Bytes of a journal's checkpoint."""
ENTRY_CHARGE: Final = max(ENTRY_BYTES, CHECKPOINT_BYTES / CHECKPOINT_EVERY)
CHECKPOINT_ENTRIES: Final = 2 * CHECKPOINT / ENTRY_CHARGE
"""Entries after a checkpoint when the next one is due: they weigh twice as much."""
CONTROLLER: Final = Log(uncovered=4, covered=TRUNCATE_MIN_AGE_MS / 1000 / EPOCH_S, checkpoints=2)
"""The controller's log: housekeeping checkpoints at 4 entries."""


BUCKET: Final = model.Bucket(OBJECTS, PER_S, OBJECT_BYTES, SHARDS, SWEEP_S, PAGE_S, cores=CORES)
"""The listings and sweeps of the case."""
BUCKETS: Final = [replace(BUCKET, objects=10**n, per_second=10**n / 10**5) for n in (6, 7, 8, 9)]
"""Smaller buckets, which get 1/100,000 of their objects each second: M is as far behind as in the case."""


def journal_log(period_s: float = HOUSEKEEP_S) -> Log:
    """Return the log of a busy journal that housekeeping truncates once in this many seconds."""
    covered = APPENDS * (TRUNCATE_MIN_AGE_MS / 1000 + period_s)
    return Log(CHECKPOINT_ENTRIES / 2, covered, checkpoints=2)


IDLE_LOG: Final = Log(uncovered=3, covered=4, checkpoints=2)
"""The log of a journal in which nothing happens except that its window slides with each tick."""


def housekeep() -> Requests:
    """Return the requests of a run of housekeeping if all journals are busy."""
    each = model.housekeep_log(journal_log(), slide=False, due=False, old=APPENDS * HOUSEKEEP_S)
    return model.ONCE["housekeep"] + model.read_log(CONTROLLER) + JOURNALS * each


def housekeep_idle() -> Requests:
    """Return the requests of a run of housekeeping if nothing happens but ticks."""
    each = model.housekeep_log(IDLE_LOG, slide=True, due=True, old=4)
    return model.ONCE["housekeep"] + model.read_log(CONTROLLER) + JOURNALS * each


def in_threads(requests: Requests) -> float:
    """Return how many seconds the requests take, one after another in each of 16 threads."""
    return requests.total * REQUEST_S / THREADS


def reconcile_journal() -> Requests:
    """Return a run's requests for a journal: its log for the plan, for each reading task and for the commit."""
    return (2 + CORES / JOURNALS) * model.read_log(journal_log()) + model.poll() + Requests(puts=1)


def reconcile() -> Requests:
    """Return the requests of a run of reconcile: those for the journals, and the objects since the last run.

    Each round polls each journal for the plan, the work and the commit, commits there, and writes L1 objects. No
    partition has much in a round, so all share objects.
    """
    written = model.l1_objects(PARTITIONS / JOURNALS, writers=CORES)
    each = JOURNALS * (3 * model.poll() + Requests(puts=1 + written))
    objects = Requests(gets=PER_S * RECONCILE_S) + ROUNDS * each
    return model.read_log(CONTROLLER) + JOURNALS * reconcile_journal() + objects


def few_records(partitions: int, *, shared: bool) -> tuple[Requests, Requests]:
    """Return the requests of all reconciles of a day, and of all merges except their own small ones.

    One process handles a topic in one journal, with few records in each partition. A merge after each reconcile writes
    0.7 objects for each partition and reads 2.4, and a drain follows every 32nd one.
    """
    runs = DAY_S / RECONCILE_S
    written = model.l1_objects(partitions, table=not shared)
    merges = partitions * Requests(gets=2.4, puts=0.7)
    drains = DRAINED_ROWS * Requests(gets=written) + Requests(puts=partitions)
    return runs * Requests(puts=written), runs / DRAINED_ROWS * (drains + merges) if shared else runs * merges


def metadata_per_s() -> Requests:
    """Return the journals' requests for all uploads of a second: entries, and occasional checkpoints."""
    return JOURNALS * Requests(puts=APPENDS + APPENDS / CHECKPOINT_ENTRIES)


def uploads_per_s() -> Requests:
    """Return the requests of all uploads of a second."""
    return Requests(puts=PER_S) + metadata_per_s()


def compute_watermark(*, scan: bool) -> Requests:
    """Return the requests of a run over all journals."""
    lists, rounds = (model.pages(OBJECTS) + 4 * CORES, model.listing_rounds(OBJECTS, SPARK)) if scan else (0, 0)
    return model.compute_watermark(CONTROLLER, journal_log(), journals=JOURNALS, listing=lists, rounds=rounds)


def sweep(garbage: int) -> Requests:
    """Return the requests of a sweep of the bucket of 10^9 objects."""
    lists = model.sweep_lists_bound(OBJECTS, garbage, SHARDS)
    return model.sweep(CONTROLLER, journal_log(), journals=JOURNALS, garbage=garbage, lists=lists)


def prefixes(writes_per_s: float) -> int:
    """Return into how many partitions S3 must have split a prefix to take this many writes a second."""
    return ceil(writes_per_s / model.WRITES_PER_S)


DELETE_PREFIXES: Final = prefixes(2 * PER_S)
"""Uploads and deletes count as writes of the same prefixes."""


# -- limits -----------------------------------------------------------------------------------------------------------------


def journals_in_time(requests: Requests, seconds: float) -> float:
    """Return how many journals one process handles in this time, if `requests` are those of all journals of the case."""
    return JOURNALS * seconds / in_threads(requests)


def journals_in_memory() -> float:
    """Return how many journals' states a process can hold."""
    extents = UNRECONCILED * (model.STATE_OBJECT_BYTES + PER_OBJECT * model.STATE_EXTENT_BYTES)
    return MEMORY_BYTES / (extents + L1_ROWS * 52)


def appends_possible() -> float:
    """Return how many entries a second a journal takes: one round trip for each, and a read if writers take turns."""
    return 1 / (2 * REQUEST_S)


def objects_possible() -> float:
    """Return how many objects a second a journal takes: entries hold about 1 MiB, and come at the pace of busy writers."""
    each = 200 + 2 * 4 * PER_OBJECT + 12
    return (1 << 20) / each / APPEND_INTERVAL_S


def keys_in_time() -> float:
    """Return how many keys Spark lists in a day, a page at a time on each core: M needs no listing, so once a day is
    enough.
    """
    return OBJECTS * DAY_S / BUCKET.listing_spark_s


# -- sweeps -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SweepCase:
    """A bucket of `keys` L0 objects, `garbage` of them to be deleted.

    Attributes:
        counted: LIST requests if shards are so small that the formula gives only their bound.
        run: whether a test sweeps it; else it is worked out.
        dry_run: whether that test deletes nothing.
        thorough: whether `make test` leaves that test out.
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
        """The LIST requests for the data prefix."""
        return self.counted or model.sweep_lists(self.keys, self.garbage, self.shards)


SWEEPS: Final = [
    SweepCase(10**6, 2 * 10**5, 100, thorough=True),
    SweepCase(5 * 10**5, 5 * 10**4, 1000, counted=504),
    SweepCase(10**6, 10**5, 1000, thorough=True),
    SweepCase(10**8, 10**5, 1000, thorough=True),
    SweepCase(10**9, 10**6, 1000, dry_run=True, thorough=True),
    SweepCase(OBJECTS, STEADY, SHARDS, run=False),
    SweepCase(OBJECTS, BACKLOG, SHARDS, run=False),
]
