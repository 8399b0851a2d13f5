"""The objects in the listings of L0 and L1, compared with those that the journals refer to.

A task first takes all references that are sent to it, and only then lists its ranges: a reference that was read before the
listing, and whose object the listing lacks, was reconciled and swept since, or its object is missing. What comes out of here
are suspects, which a second reading decides on (`confirm.py`), and counts of everything that is as it should be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import msgspec

from l0gc.inspect.verify import findings as kinds
from l0gc.inspect.verify.basis import DELETED, FOREIGN, LATER, Basis, FolderRange, KnownTopics
from l0gc.inspect.verify.findings import Suspect
from l0gc.inspect.verify.reading import block_faults, l1_fault, unpack_object
from l0gc.inspect.verify.references import References, Referred, in_chunks
from l0gc.keys import parse_level_one
from l0gc.storage.objectstore import ListedPage
from l0gc.storage.ranges import RangeReader
from l0gc.streamlog.cluster import Cluster

_READ_AT_ONCE: Final = 64
"""Objects whose contents are read before what they gave is passed on."""


@dataclass(slots=True)
class Seen:
    """What is as it should be, and L0 keys above the cluster epoch, of which a bucket may have many.

    `counts` are by the names of the result's fields. `ahead` has for each such epoch the number of objects, and their first
    key.
    """

    counts: Counter[str] = field(default_factory=Counter)
    ahead: dict[int, tuple[int, str]] = field(default_factory=dict)

    def add(self, other: Seen) -> None:
        self.counts.update(other.counts)
        for epoch, (objects, key) in other.ahead.items():
            self._ahead(epoch, objects, key)

    def object_ahead(self, epoch: int, key: str) -> None:
        self._ahead(epoch, 1, key)

    def _ahead(self, epoch: int, objects: int, key: str) -> None:
        known, first = self.ahead.get(epoch, (0, key))
        self.ahead[epoch] = known + objects, min(first, key)


@dataclass(frozen=True, slots=True)
class TaskRanges:
    """What a task has to list."""

    ranges: list[FolderRange]


@dataclass(frozen=True, slots=True)
class InDoubt:
    """A journal that may have lost entries: what it does not name, it may have named."""

    journal: int


def compare(basis: Basis, deep: bool, cluster: Cluster, sent: Iterable[Any]) -> Iterator[Suspect | Seen]:
    """List a task's share, and compare it with the references to it.

    Args:
        sent: the task's `TaskRanges`, the `References` that fall into it, every journal that is `InDoubt`, and whatever else
            was found of the journals, which is passed on.
    """
    found: list[References] = []
    ranges: list[FolderRange] = []
    doubtful: set[int] = set()
    for item in sent:
        match item:
            case References():
                found.append(item)
            case TaskRanges():
                ranges += item.ranges
            case InDoubt():
                doubtful.add(item.journal)
            case _:
                yield item
    # No reference comes after this, so the listing is newer than all of them.
    comparison = _Comparison(basis, Referred(found), doubtful)
    for suspects, seen in cluster.parallel.map(partial(comparison.read, cluster), ranges):
        yield from suspects
        yield seen
    yield from comparison.missing()
    if deep:
        yield from _contents(cluster, comparison.referred)


class _Comparison:
    """One task's references, and what its ranges have of them."""

    def __init__(self, basis: Basis, referred: Referred, doubtful: set[int]) -> None:
        self.referred = referred
        self._basis, self._layout, self._topics, self._doubtful = basis, basis.layout, KnownTopics(basis), doubtful

    def read(self, cluster: Cluster, part: FolderRange) -> tuple[list[Suspect], Seen]:
        """List a range. Several may be read at once, since no key is in two of them."""
        suspects, seen = list[Suspect](), Seen()
        look = self._l0 if part.folder == self._layout.data_prefix else self._l1
        for page in RangeReader(cluster.store, self._layout, part.keys, folder=part.folder).read():
            look(page, suspects, seen)
        return suspects, seen

    def missing(self) -> Iterator[Suspect]:
        """What was not listed."""
        for refs, at in self.referred.left():
            is_l0 = refs.folder == self._layout.data_prefix
            yield refs.suspect(at, kinds.L0_MISSING if is_l0 else kinds.L1_MISSING)

    def _l0(self, page: ListedPage, suspects: list[Suspect], seen: Seen) -> None:
        basis, counts, expected = self._basis, seen.counts, self.referred.expected
        for key, size, epoch in zip(page.keys, page.sizes, self._layout.epochs(page.keys), strict=True):
            refs = self.referred.take(key)
            short = [n for n in refs if expected[n] > size]
            if short:
                suspects += [self.referred.suspect(n, kinds.L0_SHORT) for n in short]
            elif epoch < 0:
                counts["unparsable_keys"] += 1
                continue
            elif epoch > basis.cluster_epoch:
                seen.object_ahead(epoch, key)
            elif not refs:
                kind = "eligible" if epoch <= basis.watermark else "waiting"
                counts[f"{kind}_objects"] += 1
                counts[f"{kind}_bytes"] += size
            counts["l0_objects"] += 1

    def _l1(self, page: ListedPage, suspects: list[Suspect], seen: Seen) -> None:
        counts, expected = seen.counts, self.referred.expected
        for key, size, modified_ms in zip(page.keys, page.sizes, page.modified_ms, strict=True):
            refs = self.referred.take(key)
            suspects += [self.referred.suspect(n, kinds.L1_SIZE) for n in refs if expected[n] != size]
            parsed = parse_level_one(key)
            owner, journal = self._topics.owner(parsed)
            if refs:
                pass
            elif parsed is None or owner == FOREIGN:
                counts["unparsable_keys"] += 1
                continue
            elif owner == DELETED:
                counts["deleted_topic_objects"] += 1
            elif owner == LATER or modified_ms > self._basis.young_after_ms or journal in self._doubtful:
                counts["young_l1_objects"] += 1
            else:
                p = parsed.id
                suspects.append(Suspect(kinds.L1_ORPHAN, journal, p.topic, p.revision, p.partition, key))
            counts["l1_objects"] += max(1, len(refs))


def _contents(cluster: Cluster, referred: Referred) -> Iterator[Suspect | Seen]:
    """Read what the journals refer to, several objects at a time."""
    for chunk in in_chunks(referred.all(), _READ_AT_ONCE):
        read = cluster.parallel.map(partial(_check, cluster), chunk)
        yield from (s for s, _ in read if s is not None)
        yield Seen(Counter(bytes_read=sum(size for _, size in read)))


def _check(cluster: Cluster, ref: tuple[References, int]) -> tuple[Suspect | None, int]:
    """What is wrong with the contents of an object, and how many bytes were read; none if its size is the fault."""
    refs, at = ref
    return _check_l0(cluster, refs, at) if refs.needs else _check_l1(cluster, refs, at)


def _check_l0(cluster: Cluster, refs: References, at: int) -> tuple[Suspect | None, int]:
    o = unpack_object(refs.keys[at], refs.needs[at])
    faults = block_faults(cluster.store, o)
    if faults is None:
        return None, 0
    size = sum(o.block(n).length for n in set(o.extents["block"].tolist()))
    if not faults:
        return None, size
    extent, text = faults[0]
    where: dict[str, Any] = {"partition": extent.partition, "offset": extent.base_offset, "detail": text}
    return msgspec.structs.replace(refs.suspect(at, kinds.L0_CORRUPT), **where, ref=refs.needs[at]), size


def _check_l1(cluster: Cluster, refs: References, at: int) -> tuple[Suspect | None, int]:
    s = refs.suspect(at, kinds.L1_CORRUPT)
    fault = l1_fault(cluster.store, s.key, s.expected)
    if fault is None:
        return None, 0
    return (msgspec.structs.replace(s, detail=fault) if fault else None), s.expected
