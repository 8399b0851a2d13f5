"""What each command asks of the store, as formulas; `docs/scaling.md` tells them in words.

`test_counts.py` and `test_large.py` compare them with requests counted in runs, `paper.py` works out the document's tables
with them. All they rest on is in the first part: what a run asks once (`ONCE`), sizes, limits and prices. Who adds a request
to a command adds it there, and the tests say if it is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

from l0gc.collect.record import SEGMENT_OBJECTS
from l0gc.storage.objectstore import PAGE_SIZE
from l0gc.storage.ranges import FIRST_PAGES, GROWTH
from l0gc.storage.replica import CHECKPOINT_EVERY


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
    # two looks at the controller, the published M; the report
    "upload": Requests(gets=3, puts=1),
    # two looks at the controller; the report, how it ended
    "housekeep": Requests(gets=2, puts=2),
    # two looks at the controller, M before and while it is published, the time; M, how it ended
    "compute-watermark": Requests(gets=5, puts=2),
    # old ones; the new one
    "scan snapshot": Requests(lists=1, puts=1),
    # with --producer: a look at the controller; its new epoch
    "upload --producer": Requests(gets=1, puts=1),
    # unfinished uploads, old records; its name, M, versioning, the pause, the time; 1 GET and 2 PUTs when it ends
    "sweep": Requests(lists=2, gets=6, puts=2),
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

ENTRY_BYTES: Final = 320
"""A log entry with one placeholder."""
PLACEHOLDER_BYTES: Final = 220
"""An unreconciled placeholder in a checkpoint."""
L1_ROW_BYTES: Final = 180
"""An L1 object in a checkpoint, for good."""
STATE_BYTES: Final = 380
"""An unreconciled placeholder in the memory of a process that holds its partition."""
REPORT_ROW_BYTES: Final = 126
"""A partition's report in the memory of whoever computes M."""


# -- logs -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Log:
    """A shared log: `behind` entries behind its newest checkpoint, `covered` ones that are still stored before it."""

    behind: float
    covered: float = 0
    checkpoints: int = 0

    @property
    def objects(self) -> float:
        """Objects in its folder, but for the boundary."""
        return self.behind + self.covered + self.checkpoints


def pages(keys: float) -> int:
    """LIST requests for so many keys: at least one."""
    return max(1, ceil(keys / PAGE_SIZE))


def batches(keys: float) -> int:
    """DELETE requests for so many keys."""
    return ceil(keys / PAGE_SIZE)


def read_log(log: Log) -> Requests:
    """Building the state, once for each log in each process."""
    return Requests(lists=pages(log.objects), gets=(log.checkpoints > 0) + log.behind)


def look(new: float = 0) -> Requests:
    """Looking for news in a log that was read: each new entry, and the one that is not there yet."""
    return Requests(gets=new + 1)


def append_behind(new: float, *, idle: bool) -> Requests:
    """Appending when others have appended `new` entries since the last look.

    Args:
        idle: whether that look is more than a minute ago; else the writer learns of the entries by losing the offset.
    """
    if idle:
        return look(new) + Requests(puts=1)
    return Requests(gets=1, puts=2) + look(new) if new else Requests(puts=1)


def checkpoint_and_truncate(log: Log, old: float) -> Requests:
    """Keeping the state, and deleting `old` entries that it covers.

    Args:
        log: as it was before.
    """
    new = Requests(lists=pages(log.objects + 1), puts=1)
    if old:
        new += Requests(gets=2, puts=1, deletes=batches(old))
    return new + Requests(deletes=log.checkpoints + 1 > 2)


# -- commands -------------------------------------------------------------------------------------------------------------


def upload(
    controller: Log,
    partition: Log,
    *,
    partitions: int,
    objects: int,
    placeholders: int,
    tick: bool = False,
    producer: bool = False,
) -> Requests:
    """An upload of one input into `partitions` partitions, whose logs are alike and whose only writer it is."""
    new = [(placeholders + i) // partitions for i in range(partitions)]
    checkpoints = sum(int(partition.behind + n) // CHECKPOINT_EVERY for n in new)
    return (
        ONCE["upload"]
        + read_log(controller)
        + partitions * read_log(partition)
        + Requests(puts=objects + placeholders + checkpoints + tick)
        + (ONCE["upload --producer"] + partitions * look() if producer else NOTHING)
    )


def housekeep(
    controller: Log, partition: Log, *, partitions: int, slide: bool, due: bool, old: float, tick: bool = False
) -> Requests:
    """Housekeeping of partitions whose logs are alike.

    Args:
        slide: whether each window slides, which is an entry.
        due: whether each log gets a checkpoint.
        old: entries that each truncation deletes.
    """
    each = read_log(partition) + Requests(puts=slide)
    if due:
        each += checkpoint_and_truncate(Log(partition.behind + slide, partition.covered, partition.checkpoints), old)
    return ONCE["housekeep"] + read_log(controller) + Requests(puts=tick) + partitions * each


def compute_watermark(controller: Log, *, files: int, listing: float = 0, compact: bool = False) -> Requests:
    """A run over `files` report files, with a listing of so many LIST requests (none with `--no-scan`)."""
    reports = Requests(lists=2 * pages(files), gets=files) if files else Requests(lists=1)
    compaction = Requests(puts=1, deletes=batches(files)) if compact else NOTHING
    scan = Requests(lists=listing) + ONCE["scan snapshot"] if listing else NOTHING
    return ONCE["compute-watermark"] + read_log(controller) + reports + scan + compaction


def listing(keys: float, readers: int) -> float:
    """The most LIST requests of a full listing by so many readers: its pages, and one for each range that is read.

    See `l0gc/storage/ranges.py`: a round reads each range up to so many pages, and cuts what is left of it in pieces.
    """
    left, ranges, each, read = keys / PAGE_SIZE, readers, FIRST_PAGES, readers
    while left > ranges * each:
        left -= ranges * each
        ranges *= 3 * max(2, ceil(readers / ranges))
        read += ranges
        each *= GROWTH
    return pages(keys) + read


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


def sweep(controller: Log, *, garbage: float, lists: float) -> Requests:
    """A sweep that deletes `garbage` objects, and finds them with `lists` LIST requests."""
    segments = ceil(garbage / SEGMENT_OBJECTS)
    return (
        ONCE["sweep"]
        + read_log(controller)
        + Requests(lists=lists, gets=segments, puts=2 * segments, deletes=batches(garbage))
    )
