"""Delete orphans: L1 objects that no journal has ever listed, such as the leftovers of a killed run.

This is safe because of the order of four steps. First, a run stamps the keys of its objects with the round's cluster
epoch before it writes any of them. Second, a fence E is appended to the journal, which then refuses objects stamped
below E. Third, the journal is read. Fourth, the bucket is listed. An object stamped below E that the journal does not
list at that point will therefore never be listed (hazard 25). No time is guessed: a slower run is refused at its
commit, and stamps its next round anew.

Objects that the journal has dropped follow a different rule, with a grace period for readers. A key that is not an L1
key is never deleted, only counted and shown (hazard 13). A key whose topic is in no log also stays, because the
controller log may have been set back (hazard 10): the topic's folder stays unchanged, the run reports it and ends as
refused. The order of the listing does not matter, since each key is checked alone, and a store that lists out of order
is read to the end (hazard 12).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from l0gc.collect.deletion import Deletable
from l0gc.collect.run import DeletionQueue
from l0gc.collect.skip_scan import SAMPLES, RunCounts
from l0gc.keys import KeyLayout
from l0gc.storage.objectstore import ObjectStore
from l0gc.storage.ranges import KeyRange, RangeReader
from l0gc.storage.workers import Workplace

ORPHANED_L1: Final = "orphaned_l1"


class Fact(NamedTuple):
    """The facts about a listed key: its epoch (-1 if it is not an L1 key), the fence of its unit, and its status in the
    unit.

    Nothing stamped below the fence will be listed any more. The status is whether the unit lists the key, or has
    dropped it. `unknown` means that the key belongs to a topic that no log has (hazard 10).
    """

    epoch: int
    fence: int
    needed: bool
    unknown: bool = False


KeyFacts = Callable[[Sequence[str]], list[Fact]]
"""A function that returns the facts about keys, from the units of a part of the listing as of their fences or later."""


FactsReader = Callable[[ObjectStore, KeyRange], KeyFacts]
"""A function that reads the units of a part, once the fences are in their logs."""


class OrphanSource(Protocol):
    """The units, which list L1 objects and refuse those that are stamped below their fence."""

    @property
    def objects(self) -> int:
        """Return the approximate number of objects that the units list."""

    def fence(self, before_ms: int, dropped_before_ms: int, *, dry_run: bool) -> int:
        """Append a fence against stamps older than `before_ms` to all units. Return its epoch, or 0 if no fence is
        needed.

        An object that was dropped after `dropped_before_ms` is not garbage yet, even if only the listing finds it. A
        unit that does not accept the fence then counts as broken. A dry run appends nothing and acts as if it had.
        """

    def parts(self, prefix: str, count: int) -> Sequence[KeyRange]:
        """Return about `count` parts of the listing below `prefix`, which together cover all of it."""

    def facts_reader(self, *, remote: bool) -> FactsReader:
        """Return the function that reads a part; `remote` means that it runs in another process."""

    def scanned(self, fence: int, left: Collection[str] | None) -> None:
        """Record that all orphans below the fence were found, so that the units may forget data kept only to find them.

        Args:
            left: the keys of the orphans that could not be deleted; None if there are too many to list.
        """


def is_orphan(fact: Fact) -> bool:
    """Return whether a listed object may be deleted."""
    return 0 <= fact.epoch < fact.fence and not fact.needed and not fact.unknown


def delete_orphans(read_facts: FactsReader, workplace: Workplace, queue: DeletionQueue, part: KeyRange) -> None:
    """Hand the orphans of a part to the queue. Memory is bounded by one page and the objects that the part's units
    list.

    Args:
        read_facts: reads the units of the part; called after the fence, and before the first page is listed.
    """
    counts = RunCounts()
    listing = RangeReader(workplace.store, KeyLayout(), part)

    def orphans() -> Iterator[list[Deletable]]:
        facts_of = read_facts(workplace.store, part)
        for page in listing.read():
            counts.listed += len(page)
            deletable = []
            rows = zip(page.keys, facts_of(page.keys), page.sizes, page.modified_ms, strict=True)
            for key, fact, size, modified_ms in rows:
                if fact.epoch < 0:
                    counts.unparsable += 1
                    counts.unparsable_samples += [key] if len(counts.unparsable_samples) < SAMPLES else []
                elif fact.unknown:
                    topic = key.removeprefix(part.folder).partition("/")[0]
                    counts.include(RunCounts(unknown=1, unknown_folders=[f"{part.folder}{topic}/"]))
                elif is_orphan(fact):
                    deletable.append(Deletable(key, fact.epoch, size, modified_ms))
            yield deletable

    try:
        queue.take_all(orphans())
    finally:
        counts.list_requests = listing.requests
        queue.count(counts)
