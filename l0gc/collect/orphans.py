"""Orphans: L1 and index objects that no journal ever named, as a killed run leaves them behind.

What makes their deletion safe: stamp, fence, look, list. A run stamps its objects with the cluster epoch of the round, in
their keys, before it writes the first of them. A fence E is then appended to the journal: from there on it refuses to name
what is stamped below E. The journal is read after the fence, and only then the bucket is listed. So an object stamped
below E that the journal does not name there will never be named (hazard 25). No time is guessed: a run that takes longer is
refused at its commit, and stamps its next round anew. What the journal has dropped is not for this rule: it has its own,
with a time of grace for readers. A key that is not an L1 or index key is never deleted, only counted and shown (hazard 13).
A key of a topic that no log has stays, too: the controller log may have been set back (hazard 10), so the topic's folder is
left as it is and named, and the run ends as refused.
The order of the listing decides nothing: each key is judged alone, and a store that lists out of order is read to the end
(hazard 12).
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import lt

from l0gc.collect.garbage import Fact, ListingPart, LookAt
from l0gc.collect.remover import Remover
from l0gc.collect.scan import SAMPLES, Deletable, Tally
from l0gc.storage.objectstore import ListedPage, ObjectStore
from l0gc.storage.workers import Place


def is_orphan(fact: Fact) -> bool:
    """Whether an object that is listed may go."""
    return 0 <= fact.epoch < fact.fence and not fact.needed and not fact.unknown


class OrphanScan:
    """The orphans of one part of a listing, page by page; memory is that of a page, and of what the part's units name."""

    def __init__(self, store: ObjectStore, part: ListingPart, look_at: LookAt) -> None:
        self._store, self._part, self._look_at = store, part, look_at
        self.counts = Tally()

    def batches(self) -> Iterator[list[Deletable]]:
        """The orphans of each page; may be empty. Raises what `KeyFacts.facts` raises."""
        look = self._look_at(self._store, self._part)  # after the fence, and before the first page
        for page in self._pages():
            self.counts.listed += len(page)
            found = []
            rows = zip(page.keys, look.facts(page.keys), page.sizes, page.modified_ms, strict=True)
            for key, fact, size, modified_ms in rows:
                if fact.epoch < 0:
                    self.counts.unparsable += 1
                    self.counts.unparsable_samples += [key] if len(self.counts.unparsable_samples) < SAMPLES else []
                elif fact.unknown:
                    self.counts.add(Tally(unknown=1, unknown_folders=[self._folder(key)]))
                elif is_orphan(fact):
                    found.append(Deletable(key, fact.epoch, size, modified_ms))
            yield found

    def _folder(self, key: str) -> str:
        """The folder below the listed prefix that holds `key`."""
        return f"{self._part.prefix}{key.removeprefix(self._part.prefix).partition('/')[0]}/"

    def _pages(self) -> Iterator[ListedPage]:
        """What of the listing is of this part."""
        start, end = self._part.start, self._part.end
        last, ordered = start, True
        self.counts.list_requests = 1  # for the first page, also if it is empty
        for number, page in enumerate(self._store.scan(self._part.prefix, start)):
            self.counts.list_requests += number > 0
            keys = page.keys
            ordered = ordered and keys[0] > last and all(map(lt, keys, keys[1:]))
            last = keys[-1]
            if ordered and (end is None or last <= end):
                yield page
                continue
            inside = [i for i, k in enumerate(keys) if k > start and (end is None or k <= end)]
            if inside:
                yield ListedPage(
                    [keys[i] for i in inside],
                    [page.sizes[i] for i in inside],
                    [page.modified_ms[i] for i in inside],
                )
            if ordered:
                return


def remove_orphans(look_at: LookAt, place: Place, remover: Remover, part: ListingPart) -> None:
    """Hand over the orphans of a part."""
    scan = OrphanScan(place.store, part, look_at)
    try:
        remover.take_all(scan.batches())
    finally:
        with remover.lock:
            remover.tally.add(scan.counts)
