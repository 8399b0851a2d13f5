"""The requests of each command, as formulas; `docs/why/scaling.md` gives them in words.

`.venv/bin/python docs/programs/scaling.py --objects 1e8 --cores 32` prints the hours and dollars of your bucket. In
`tests/scaling`, `test_counts.py` and `test_large.py` compare the formulas with requests counted in runs, and `paper.py`
computes the document's tables with them. They use only the first part: what a run requests once (`ONCE`), sizes, limits
and prices. If you add a request to a command, add it there; the tests fail if it is wrong.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, fields
from math import ceil, log
from typing import Final

from l0gc.api.estimate import LISTING
from l0gc.collect.record import SEGMENT_OBJECTS
from l0gc.storage.objectstore import PAGE_SIZE
from l0gc.storage.ranges import FIRST_PAGES, GROWTH
from l0gc.streamlog.level_one.plan import TOGETHER
from l0gc.streamlog.level_one.share import LEAST_PARTITIONS, MOST_PARTITIONS


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests by kind. `gets` includes HEAD and GetBucketVersioning, `deletes` are those of 1,000 keys."""

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
        """Their price on S3 Standard in us-east-1."""
        return (self.lists + self.puts) * PUT_DOLLARS + self.gets * GET_DOLLARS


# -- sizes, limits and prices ---------------------------------------------------------------------------------------------

NOTHING: Final = Requests()
ONCE: Final = {
    # three reads of the controller, and one of the published M
    "upload": Requests(gets=4),
    # with --producer: a read of the controller, one of M, and the write of the new epoch
    "upload --producer": Requests(gets=2, puts=1),
    # three reads of the controller, one of the published M, and the note of the run's end
    "housekeep": Requests(gets=4, puts=1),
    # two reads of the controller, one of the published M, and the note of the run's end
    "merge": Requests(gets=3, puts=1),
    # two reads of the controller, M before and while it is published, the time twice; writes of M, its copy and the note
    "compute-watermark": Requests(gets=7, puts=3),
    # a new snapshot
    "scan snapshot": Requests(puts=1),
    # unfinished uploads; its name, the controller, M, versioning, the pause, the time; at its end, 1 GET and 2 PUTs
    "sweep": Requests(lists=1, gets=7, puts=2),
}
"""The requests that a run of a command makes once, besides the logs that it reads and what grows with its work."""

WORKERS: Final = 16
"""The extra LIST requests that the sweep's bound allows its eight scanners."""

SCANNERS: Final = 8
"""The scanners of a sweep in one process, each with a page at a time."""
READERS: Final = 64
"""The most LISTs that one process has in flight when it lists the whole bucket."""

PUT_DOLLARS: Final = 0.005 / 1000
"""The price of a PUT or a LIST. Prices are those of S3 Standard in us-east-1; DELETE costs nothing."""
GET_DOLLARS: Final = 0.0004 / 1000
STORED_DOLLARS: Final = 0.023
"""The price of a GB for a month, of the first 50 TB."""
INVENTORY_DOLLARS: Final = 0.0025 / 1_000_000
"""The price of an object listed in an inventory."""
WRITES_PER_S: Final = 3500
"""Writes a second that S3 promises for one partitioned prefix; each key of a DELETE counts as one."""

ENTRY_EXTENT_BYTES: Final = 4.5
"""Bytes of an extent in a journal's entry."""
ENTRY_OBJECT_BYTES: Final = 55
"""Bytes of an object in an entry, besides its extents."""
CHECKPOINT_EXTENT_BYTES: Final = 8.0
"""Bytes of an unreconciled extent in a journal's checkpoint."""
CHECKPOINT_OBJECT_BYTES: Final = 40
"""Bytes of an unreconciled object there, besides its extents."""
L1_ROW_BYTES: Final = 20
"""Bytes of an L1 object in a journal's checkpoint, as long as it is among its partition's newest."""
SHARED_ROW_BYTES: Final = 6
"""The most bytes of a partition's row of a shared L1 object there."""
STATE_EXTENT_BYTES: Final = 33
"""Bytes of an unreconciled extent in the memory of a process that holds its journal."""
STATE_OBJECT_BYTES: Final = 390
"""Bytes of an unreconciled object there, besides its extents."""


# -- logs -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Log:
    """A shared log: `uncovered` entries after its newest checkpoint, `covered` ones that are still stored before it."""

    uncovered: float
    covered: float = 0
    checkpoints: int = 0

    @property
    def objects(self) -> float:
        """Objects in its folder, except the boundary."""
        return self.uncovered + self.covered + self.checkpoints


def pages(keys: float) -> int:
    """Return the LIST requests for this many keys: at least one."""
    return max(1, ceil(keys / PAGE_SIZE))


def batches(keys: float) -> int:
    """Return the DELETE requests for this many keys."""
    return ceil(keys / PAGE_SIZE)


def read_log(log: Log) -> Requests:
    """Return the requests that build the state, once for each log in each process."""
    return Requests(lists=pages(log.objects), gets=(log.checkpoints > 0) + log.uncovered)


def poll(new: float = 0) -> Requests:
    """Return the requests of reading what is new in a log: each new entry, and the one that does not exist yet."""
    return Requests(gets=new + 1)


def lost_race() -> Requests:
    """Return the requests of an append that came after another writer's: the refusal, and the read of the winner's
    entry.
    """
    return Requests(gets=1, puts=1)


def truncation(old: float, checkpoints: int = 2) -> Requests:
    """Return the requests that raise the boundary, and then delete `old` covered entries and all but the last two
    checkpoints.
    """
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
    """Return the requests of an upload into a topic of this many journals, whose logs are alike and which has no other
    writer.

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
    """Return the requests of housekeeping for one journal.

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
    """Return the requests of housekeeping for journals whose logs are alike; partitions cost nothing."""
    each = housekeep_log(journal, slide=slide, due=due)
    return ONCE["housekeep"] + read_log(controller) + Requests(puts=tick) + journals * each


def compute_watermark(
    controller: Log, journal: Log, *, journals: int, listing: float = 0, rounds: float = 0
) -> Requests:
    """Return the requests of a run over this many journals, with `listing` LIST requests (none with `--no-scan`).

    Args:
        rounds: rounds of the listing that leave something: each reads the epoch.
    """
    scan = Requests(lists=listing, gets=rounds) + ONCE["scan snapshot"] if listing else NOTHING
    return ONCE["compute-watermark"] + read_log(controller) + journals * read_log(journal) + scan


def l1_objects(partitions: float, *, writers: int = 1, table: bool = False) -> float:
    """Return the L1 objects of a round with few records in each of this many partitions of a topic in one journal.

    Args:
        writers: the writers of one process, or of Spark.
        table: whether the topic has one.
    """
    if table or partitions < LEAST_PARTITIONS:
        return partitions
    return ceil(partitions / MOST_PARTITIONS) if writers == 1 else max(1, partitions // TOGETHER)


def merge(controller: Log, journal: Log, *, journals: int, sources: float = 0, merges: float = 0) -> Requests:
    """Return the requests of a merge in journals whose logs are alike, in one process and one round for each journal.

    Args:
        sources: how many small L1 objects there are to merge in all.
        merges: how many objects replace them.
    """
    each = read_log(journal) + 3 * poll() + Requests(puts=1)
    work = journals * each + Requests(gets=sources + merges, puts=merges) if merges else NOTHING
    return ONCE["merge"] + read_log(controller) + journals * read_log(journal) + work


def listing(keys: float, readers: int, engine: str) -> float:
    """Return the most LIST requests of a full listing by this many readers: its pages, and one for each range that is
    read.

    See `l0gc/storage/ranges.py`: a round reads each range up to a number of pages, and cuts the rest into pieces. A
    range leaves a rest only if it was read that far, so that a round has no more rests than the pages allow, however
    unevenly the keys are spread over the ranges.
    """
    ranges, each, read = readers, FIRST_PAGES[engine], readers
    while rests := min(ranges, pages(keys) // each):
        readers *= GROWTH
        ranges = rests * 3 * max(2, ceil(readers / rests))
        read += ranges
        each *= GROWTH
    return pages(keys) + read


def listing_rounds(keys: float, engine: str) -> int:
    """Return the most rounds of a full listing that leave something, even if all keys are in one range."""
    return ceil(log(pages(keys) * (GROWTH - 1) / FIRST_PAGES[engine] + 1, GROWTH))


def sweep_lists_bound(keys: float, garbage: float, shards: int) -> int:
    """Return the most LIST requests of the data prefix that a sweep needs."""
    return ceil(min(keys / PAGE_SIZE, garbage / PAGE_SIZE + shards)) + WORKERS


def sweep_lists(keys: int, garbage: int, shards: int) -> int:
    """Return the LIST requests if keys are spread evenly, and the page in which each shard's garbage ends is full of
    its keys.

    Raises:
        ValueError: they are not; then only the bound is known.
    """
    of_shard = garbage // shards // PAGE_SIZE + 1
    if keys % shards or garbage % shards or of_shard * PAGE_SIZE > keys // shards:
        raise ValueError(f"{garbage} of {keys} keys over {shards} shards: only the bound is known")
    return shards * of_shard + 1


def sweep(controller: Log, journal: Log, *, journals: int, garbage: float, lists: float) -> Requests:
    """Return the requests of a sweep that deletes `garbage` objects, and finds them with `lists` LIST requests; it
    reads each journal before.
    """
    segments = ceil(garbage / SEGMENT_OBJECTS)
    return (
        ONCE["sweep"]
        + read_log(controller)
        + journals * read_log(journal)
        + Requests(lists=lists, gets=segments, puts=2 * segments, deletes=batches(garbage))
    )


# -- hours and dollars for your numbers ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket, and what lists and sweeps it: your numbers.

    Attributes:
        objects: L0 objects in it.
        per_second: new L0 objects a second.
        object_bytes: size of one.
        shards: of its layout.
        sweep_s: seconds between two sweeps.
        list_s: seconds that a LIST of 1,000 keys takes.
        deletes_per_s: objects that the store deletes in a second.
        cores: of the Spark cluster.
    """

    objects: float = 10**9
    per_second: float = 10**4
    object_bytes: float = 100_000
    shards: int = 1000
    sweep_s: float = 1200
    list_s: float = 0.1
    deletes_per_s: float = 20_000
    cores: int = 16

    @property
    def listing(self) -> Requests:
        """Return the requests of a full listing."""
        return Requests(lists=pages(self.objects))

    @property
    def listing_here_s(self) -> float:
        """Seconds of a full listing in one process, limited by the keys that it reads or by its requests in flight."""
        return self.objects / min(LISTING.here, READERS * PAGE_SIZE / self.list_s)

    @property
    def listing_spark_s(self) -> float:
        """Seconds of a full listing on Spark, a page at a time on each core, without its start."""
        return self.listing.lists * self.list_s / self.cores

    @property
    def garbage(self) -> float:
        """Objects for each sweep, however far M is behind."""
        return min(self.objects, self.per_second * self.sweep_s)

    @property
    def skip_scan(self) -> Requests:
        """The LIST and DELETE requests of a sweep."""
        return Requests(lists=sweep_lists_bound(self.objects, self.garbage, self.shards), deletes=batches(self.garbage))

    @property
    def skip_scan_s(self) -> float:
        """Seconds that a sweep lists, with its scanners at once."""
        return self.skip_scan.lists * self.list_s / SCANNERS

    @property
    def sweep_run_s(self) -> float:
        """Seconds of a sweep, which deletes while it lists."""
        return max(self.skip_scan_s, self.garbage / self.deletes_per_s)

    @property
    def sweeps_dollars(self) -> float:
        """The cost of a day's sweeps, except for the logs that they read."""
        return 86_400 / self.sweep_s * self.skip_scan.dollars

    @property
    def stored_dollars(self) -> float:
        """The cost of the bucket for a month."""
        return self.objects * self.object_bytes / 10**9 * STORED_DOLLARS

    def lines(self) -> list[str]:
        """Return each figure with its name."""
        hours = 3600
        return [
            f"full listing: {self.listing.lists:,.0f} LIST, ${self.listing.dollars:,.2f}; in one process "
            f"{self.listing_here_s / hours:,.2f} h, on Spark with {self.cores} cores {self.listing_spark_s / hours:,.2f} h",
            f"a sweep of {self.garbage:,.0f} objects: {self.skip_scan.lists:,.0f} LIST in {self.skip_scan_s / hours:,.2f} h "
            f"and {self.skip_scan.deletes:,.0f} DELETE, {self.sweep_run_s / hours:,.2f} h, ${self.skip_scan.dollars:,.2f}",
            f"the sweeps of a day: ${self.sweeps_dollars:,.2f}",
            f"a month of the bucket: ${self.stored_dollars:,.2f}",
        ]


def main() -> None:
    """Print hours and dollars for the numbers on the command line."""
    parser = argparse.ArgumentParser(description=main.__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for f in fields(Bucket):
        kind = int if isinstance(f.default, int) and f.name in ("shards", "cores") else float
        parser.add_argument(f"--{f.name.replace('_', '-')}", type=kind, default=f.default, metavar="N", help=" ")
    sys.stdout.write("\n".join(Bucket(**vars(parser.parse_args())).lines()) + "\n")


if __name__ == "__main__":
    main()
