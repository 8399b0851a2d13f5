"""Remove orphans: L1 objects that no journal ever listed, such as the leftovers of a killed run.

What makes it safe: stamp, fence, look, list. A run stamps its objects, in their keys, with the cluster epoch of the round
before it writes the first of them. A fence E is then appended to the journal, which from then on refuses objects stamped
below E. The journal is read after the fence, and only then is the bucket listed. So an object stamped below E that the
journal does not list there will never be listed (hazard 25). No time is guessed: a slower run is refused at its commit,
and stamps its next round anew.

Objects that the journal has dropped follow another rule, with a grace period for readers. A key that is not an L1
key is never deleted, only counted and shown (hazard 13). A key of a topic that no log has also stays, because the
controller log may have been set back (hazard 10). The topic's folder is left unchanged and reported, and the run ends as
refused. The order of the listing does not matter: each key is judged alone, and a store that lists out of order is read
to the end (hazard 12).
"""

from __future__ import annotations

from collections.abc import Iterator

from l0gc.collect.garbage import Fact, LookAt
from l0gc.collect.remover import Remover
from l0gc.collect.scan import SAMPLES, Deletable, Tally
from l0gc.keys import KeyLayout
from l0gc.storage.ranges import KeyRange, RangeReader
from l0gc.storage.workers import Workplace


def is_orphan(fact: Fact) -> bool:
    """Return whether a listed object may be deleted."""
    return 0 <= fact.epoch < fact.fence and not fact.needed and not fact.unknown


def remove_orphans(look_at: LookAt, place: Workplace, remover: Remover, part: KeyRange) -> None:
    """Hand over the orphans of a part. Memory is bounded by one page and what the part's units list.

    Args:
        look_at: reads the units of the part; called after the fence, and before the first page is listed.
    """
    counts = Tally()
    listing = RangeReader(place.store, KeyLayout(), part)

    def orphans() -> Iterator[list[Deletable]]:
        facts_of = look_at(place.store, part)
        for page in listing.read():
            counts.listed += len(page)
            found = []
            rows = zip(page.keys, facts_of(page.keys), page.sizes, page.modified_ms, strict=True)
            for key, fact, size, modified_ms in rows:
                if fact.epoch < 0:
                    counts.unparsable += 1
                    counts.unparsable_samples += [key] if len(counts.unparsable_samples) < SAMPLES else []
                elif fact.unknown:
                    topic = key.removeprefix(part.folder).partition("/")[0]
                    counts.count(Tally(unknown=1, unknown_folders=[f"{part.folder}{topic}/"]))
                elif is_orphan(fact):
                    found.append(Deletable(key, fact.epoch, size, modified_ms))
            yield found

    try:
        remover.take_all(orphans())
    finally:
        counts.list_requests = listing.requests
        remover.count(counts)
