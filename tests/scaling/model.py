"""What each command asks of the store, as formulas; `docs/scaling.md` gives them in words.

`test_counts.py` and `test_large.py` compare them with requests counted in runs, `paper.py` works out the document's tables
with them. All they rest on is in the first part: what a run asks once (`ONCE`), sizes, limits and prices. Who adds a request
to a command adds it there, and the tests say if it is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log
from typing import Final

from l0gc.collect.record import SEGMENT_OBJECTS
from l0gc.storage.objectstore import PAGE_SIZE
from l0gc.storage.ranges import FIRST_PAGES, GROWTH


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests by what S3 asks for them. `gets` has HEAD and GetBucketVersioning in it, `deletes` those of 1,000 keys."""

    lists: float = 0
    gets: float = 0
    puts: float = 0
    deletes: float = 0

    def __add__(self, other: Requests) -> Requests:
        return Requests(
            self.lists + other.lists, self.gets + other.gets, self.puts + other.puts, self.deletes + other.deletes
        )

    def __rmul__(self, times: float) -> Requests:
        return Requests(times * self.lists, times * self.gets, times * self.puts, times * self.deletes)

    @property
    def total(self) -> float:
        return self.lists + self.gets + self.puts + self.deletes

    @property
    def dollars(self) -> float:
        """What they cost on S3 Standard in us-east-1."""
        return (self.lists + self.puts) * PUT_DOLLARS + self.gets * GET_DOLLARS


# -- what it rests on -----------------------------------------------------------------------------------------------------

NOTHING: Final = Requests()
ONCE: Final = {
    # three reads of the controller, the published M
    "upload": Requests(gets=4),
    # with --producer: a read of the controller, M; the new epoch
    "upload --producer": Requests(gets=2, puts=1),
    # three reads of the controller, the published M; how the run ended
    "housekeep": Requests(gets=4, puts=1),
    # two reads of the controller, the published M; how the run ended
    "merge": Requests(gets=3, puts=1),
    # two reads of the controller, M before and while it is published, the time; M, how the run ended
    "compute-watermark": Requests(gets=6, puts=2),
    # the new one
    "scan snapshot": Requests(puts=1),
    # unfinished uploads; its name, the controller, M, versioning, the pause, the time; 1 GET and 2 PUTs when it ends
    "sweep": Requests(lists=1, gets=7, puts=2),
}
"""What a run of a command asks once, beside the logs that it reads and what grows with its work."""

WORKERS: Final = 16
"""What the sweep's bound on LIST leaves to its eight scanners."""

PUT_DOLLARS: Final = 0.005 / 1000
"""A PUT or a LIST. Prices are those of S3 Standard in us-east-1; DELETE costs nothing."""
GET_DOLLARS: Final = 0.0004 / 1000
STORED_DOLLARS: Final = 0.023
"""A GB for a month, of the first 50 TB."""
INVENTORY_DOLLARS: Final = 0.0025 / 1_000_000
"""An object listed in an inventory."""
WRITES_PER_S: Final = 3500
"""Writes a second that S3 promises for one partitioned prefix; each key of a DELETE counts as one."""

ENTRY_EXTENT_BYTES: Final = 4.5
"""An extent in a journal's entry."""
ENTRY_OBJECT_BYTES: Final = 55
"""An object in an entry, beside its extents."""
CHECKPOINT_EXTENT_BYTES: Final = 8.0
"""An unreconciled extent in a journal's checkpoint."""
CHECKPOINT_OBJECT_BYTES: Final = 40
"""An unreconciled object there, beside its extents."""
L1_ROW_BYTES: Final = 20
"""An L1 object in a journal's checkpoint, as long as it is among its partition's newest."""
STATE_EXTENT_BYTES: Final = 33
"""An unreconciled extent in the memory of a process that holds its journal."""
STATE_OBJECT_BYTES: Final = 390
"""An unreconciled object there, beside its extents."""


# -- logs -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Log:
    """A shared log: `uncovered` entries after its newest checkpoint, `covered` ones that are still stored before it."""

    uncovered: float
    covered: float = 0
    checkpoints: int = 0

    @property
    def objects(self) -> float:
        """Objects in its folder, but for the boundary."""
        return self.uncovered + self.covered + self.checkpoints


def pages(keys: float) -> int:
    """LIST requests for so many keys: at least one."""
    return max(1, ceil(keys / PAGE_SIZE))


def batches(keys: float) -> int:
    """DELETE requests for so many keys."""
    return ceil(keys / PAGE_SIZE)


def read_log(log: Log) -> Requests:
    """Building the state, once for each log in each process."""
    return Requests(lists=pages(log.objects), gets=(log.checkpoints > 0) + log.uncovered)


def poll(new: float = 0) -> Requests:
    """Reading what is new in a log that was read before: each new entry, and the one that is not there yet."""
    return Requests(gets=new + 1)


def lost_race() -> Requests:
    """An append that another writer was ahead of: the refusal, and the read of the winner's entry."""
    return Requests(gets=1, puts=1)


def truncation(old: float, checkpoints: int = 2) -> Requests:
    """Deleting `old` entries that a checkpoint covers, and all but the last two checkpoints, after raising the boundary."""
    deleted = batches(old + max(0, checkpoints - 2))
    return Requests(gets=1 if old else 0, puts=1 if old else 0, deletes=deleted)


# -- commands -------------------------------------------------------------------------------------------------------------


def upload(
    controller: Log,
    journal: Log,
    *,
    journals: int,
    objects: int,
    entries: int,
    tick: bool = False,
    producer: bool = False,
) -> Requests:
    """An upload into a topic of so many journals, whose logs are alike and whose only writer it is.

    Args:
        entries: how many of each journal; a batch is at most one, and batches that wait for each other share one.
    """
    return (
        ONCE["upload"]
        + read_log(controller)
        + journals * read_log(journal)
        + Requests(puts=objects + journals * entries + tick)
        + (ONCE["upload --producer"] + journals * poll() if producer else NOTHING)
    )


def housekeep_log(log: Log, *, slide: bool, due: bool, old: float = 0) -> Requests:
    """Housekeeping of one journal.

    Args:
        slide: whether its window slides, which is an entry.
        due: whether a checkpoint is written.
        old: entries that are truncated.
    """
    spent = log.checkpoints + due > 2
    return (
        read_log(log)
        + poll()
        + Requests(puts=slide + due)
        + (truncation(old, log.checkpoints + due) if old or spent else NOTHING)
    )


def housekeep(controller: Log, journal: Log, *, journals: int, tick: bool = False, slide: bool, due: bool) -> Requests:
    """Housekeeping of journals whose logs are alike; partitions cost nothing."""
    each = housekeep_log(journal, slide=slide, due=due)
    return ONCE["housekeep"] + read_log(controller) + Requests(puts=tick) + journals * each


def compute_watermark(
    controller: Log, journal: Log, *, journals: int, listing: float = 0, rounds: float = 0
) -> Requests:
    """A run over so many journals, with a listing of so many LIST requests (none with `--no-scan`).

    Args:
        rounds: of the listing, those that leave something: each reads the epoch.
    """
    scan = Requests(lists=listing, gets=rounds) + ONCE["scan snapshot"] if listing else NOTHING
    return ONCE["compute-watermark"] + read_log(controller) + journals * read_log(journal) + scan


def merge(controller: Log, journal: Log, *, journals: int, sources: float = 0, merges: float = 0) -> Requests:
    """A merge of small L1 objects in journals whose logs are alike, in one process and one round for each journal.

    Args:
        sources: how many there are to merge in all.
        merges: how many they become.
    """
    each = read_log(journal) + 3 * poll() + Requests(puts=1)
    work = journals * each + Requests(gets=sources + merges, puts=merges) if merges else NOTHING
    return ONCE["merge"] + read_log(controller) + journals * read_log(journal) + work


def listing(keys: float, readers: int, engine: str) -> float:
    """The most LIST requests of a full listing by so many readers: its pages, and one for each range that is read.

    See `l0gc/storage/ranges.py`: a round reads each range up to so many pages, and cuts what is left of it in pieces. A
    range leaves something only where it was read that far, so that a round has no more rests than the pages allow, however
    unevenly the keys lie in the ranges.
    """
    ranges, each, read = readers, FIRST_PAGES[engine], readers
    while rests := min(ranges, pages(keys) // each):
        readers *= GROWTH
        ranges = rests * 3 * max(2, ceil(readers / rests))
        read += ranges
        each *= GROWTH
    return pages(keys) + read


def listing_rounds(keys: float, engine: str) -> int:
    """The most rounds of a full listing that leave something, even if all keys are in one range."""
    return ceil(log(pages(keys) * (GROWTH - 1) / FIRST_PAGES[engine] + 1, GROWTH))


def sweep_lists_bound(keys: float, garbage: float, shards: int) -> int:
    """The most LIST requests of the data prefix that a sweep needs."""
    return ceil(min(keys / PAGE_SIZE, garbage / PAGE_SIZE + shards)) + WORKERS


def sweep_lists(keys: int, garbage: int, shards: int) -> int:
    """How many it is if they are spread evenly, and the page that each shard's garbage ends in is full of its keys.

    Raises:
        ValueError: they are not; then only the bound is known.
    """
    of_shard = garbage // shards // PAGE_SIZE + 1
    if keys % shards or garbage % shards or of_shard * PAGE_SIZE > keys // shards:
        raise ValueError(f"{garbage} of {keys} keys over {shards} shards: only the bound is known")
    return shards * of_shard + 1


def sweep(controller: Log, journal: Log, *, journals: int, garbage: float, lists: float) -> Requests:
    """A sweep that deletes `garbage` objects, and finds them with `lists` LIST requests; it reads each journal before."""
    segments = ceil(garbage / SEGMENT_OBJECTS)
    return (
        ONCE["sweep"]
        + read_log(controller)
        + journals * read_log(journal)
        + Requests(lists=lists, gets=segments, puts=2 * segments, deletes=batches(garbage))
    )
