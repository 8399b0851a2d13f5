"""Delete orphans: L1 objects that no journal ever listed, such as the leftovers of a killed run.

What makes it safe: stamp, fence, look, list. A run stamps its objects, in their keys, with the cluster epoch of the round
before it writes the first of them. A fence E is then appended to the journal, which from then on refuses objects stamped
below E. The journal is read after the fence, and only then is the bucket listed. So an object stamped below E that the
journal does not list there will never be listed (hazard 25). No time is guessed: a slower run is refused at its commit,
and stamps its next round anew.

Objects that the journal has dropped follow another rule, with a grace period for readers. A key that is not an L1
key is never deleted, only counted and shown (hazard 13). A key whose topic is in no log also stays, because the
controller log may have been set back (hazard 10). The topic's folder is left unchanged and reported, and the run ends as
refused. The order of the listing does not matter: each key is checked alone, and a store that lists out of order is read
to the end (hazard 12).
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
    """The facts about a listed key: its epoch (-1 if it is not such a key), its unit's fence, and its status there.

    Nothing stamped below the fence is ever listed again. The status is whether the unit lists it, or has dropped it.
    `unknown`: it belongs to something that the writers should have, and do not (hazard 10).
    """

    epoch: int
    fence: int
    needed: bool
    unknown: bool = False


KeyFacts = Callable[[Sequence[str]], list[Fact]]
"""Returns the state of each key, according to the units of a part of the listing at or after their fences."""


FactsReader = Callable[[ObjectStore, KeyRange], KeyFacts]
"""Reads the units of a part, once the fences are in their logs."""


class OrphanSource(Protocol):
    """The units that list L1 objects, and refuse those that are stamped below their fence."""

    @property
    def objects(self) -> int:
        """Return the approximate number of objects that the units list."""

    def fence(self, before_ms: int, dropped_before_ms: int, *, dry_run: bool) -> int:
        """Append a fence to all units against stamps older than `before_ms`; return its epoch, 0 without one.

        An object that was dropped since `dropped_before_ms` is not garbage yet, even if only the listing finds it. A unit
        that does not accept the fence counts as broken from then on. A dry run appends nothing, and assumes that it had.
        """

    def parts(self, prefix: str, count: int) -> Sequence[KeyRange]:
        """Return the listing below `prefix` in about `count` parts, which together cover all of it."""

    def facts_reader(self, *, remote: bool) -> FactsReader:
        """Return the function that reads a part; `remote` if that is done in another process."""

    def scanned(self, fence: int, left: Collection[str] | None) -> None:
        """Record that all unneeded objects below the fence were found: what was kept only to find them may be
        forgotten.

        Args:
            left: the keys of those that could not be deleted; None if they are too many to list.
        """


def is_orphan(fact: Fact) -> bool:
    """Return whether a listed object may be deleted."""
    return 0 <= fact.epoch < fact.fence and not fact.needed and not fact.unknown


def delete_orphans(read_facts: FactsReader, workplace: Workplace, queue: DeletionQueue, part: KeyRange) -> None:
    """Hand over the orphans of a part. Memory is bounded by one page and what the part's units list.

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
