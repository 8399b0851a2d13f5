"""The objects that the journals refer to, compared with those in the listings of L0 and L1.

The listings are cut into ranges of keys, and each range belongs to one task. A reference goes to the task that lists the
range of its key, so each task can decide alone what is missing and what nobody needs. References travel as columns, some
thousands together, since a journal may refer to a million objects.

A task first takes all references that are sent to it, and only then lists its ranges: a reference that was read before the
listing, and whose object the listing lacks, was reconciled and swept since, or its object is missing. What comes out of here
are suspects, which a second reading decides on (`confirm.py`), and counts of everything that is as it should be.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np

from l0gc.inspect.verify.findings import Kind, Suspect
from l0gc.inspect.verify.reading import block_faults, indexed_rows, l1_fault
from l0gc.inspect.verify.rules import DELETED, FOREIGN, LATER, Basis, Placed, first_place
from l0gc.keys import JUMP, L1_DATA, PartitionId, parse_level_one
from l0gc.storage.objectstore import ListedPage
from l0gc.storage.ranges import KeyRange, RangeReader, cut_range, of_shards
from l0gc.streamlog.cluster import Handles
from l0gc.streamlog.controller.state import ControllerState, Topic
from l0gc.streamlog.journal.rows import Rows, files_in
from l0gc.streamlog.journal.topic import UnreconciledObject, l1_file
from l0gc.streamlog.level_one.index import index_key, l1_key

T = TypeVar("T")

PLACE: Final = np.dtype(
    [("journal", "<i4"), ("revision", "<i8"), ("partition", "<i4"), ("offset", "<i8"), ("expected", "<i8"), ("l1", "?")]
)
"""The journal that refers to it, the partition concerned, its first record there, where the last block ends that is needed,
or an L1 object's size, and whether it is an L1 object."""
_AT_ONCE: Final = 16_384
_INDEXES_AT_ONCE: Final = 64
_LAST: Final = "\U0010ffff"
_READ_AT_ONCE: Final = 64
"""Objects whose contents are read before what they gave is passed on."""


# -- ranges ------------------------------------------------------------------------------------------------------------


class FolderRange(NamedTuple):
    """A range of the keys below a folder."""

    folder: str
    keys: KeyRange


def l1_ranges(state: ControllerState, parts: int) -> list[FolderRange]:
    """Ranges that cover the L1 folders of every past or present topic.

    A range never spans two topics: stores that list folder by folder put `a-1/` before `a-1.b-2/`, others after it. Within
    a topic the bounds sort after one partition's folder and before the next one's, and do not equal a folder's name, since
    some stores would skip that folder (hazard 12).
    """
    ranges = []
    step = max(1, -(-state.partition_count // parts))
    for t in state.topics.values():
        folder = topic_folder(t)
        cuts = (f"{folder}{p - 1:05}{JUMP}" for p in range(step, t.partitions, step))
        ranges += [FolderRange(folder, keys) for keys in cut_range(KeyRange(), cuts)]
    return ranges + [FolderRange(topic_folder(d.topic), KeyRange()) for d in state.deleted]


def topic_folder(topic: Topic) -> str:
    """Where the L1 objects of a topic are."""
    return f"{L1_DATA}{topic.name}-{topic.revision}/"


class Cut:
    """The listings in ranges of keys, and which task reads each.

    Args:
        parts: about into how many ranges each of the two listings is cut.
    """

    def __init__(self, basis: Basis, parts: int, tasks: int) -> None:
        self.tasks = tasks
        self.l0 = basis.layout.data_prefix
        ranges = [FolderRange(self.l0, keys) for keys in of_shards(basis.layout, parts)]
        ends = {(r.folder, r.keys.end or _LAST): r for r in [*ranges, *l1_ranges(basis.state, parts)]}
        self._ends = sorted(ends)
        self._ranges = [ends[end] for end in self._ends]

    def share(self, task: int) -> list[FolderRange]:
        """What a task lists."""
        return self._ranges[task :: self.tasks]

    def task_of(self, folder: str, key: str) -> int:
        """Who lists a key of one of the folders."""
        return bisect_left(self._ends, (folder, key)) % self.tasks


# -- references --------------------------------------------------------------------------------------------------------


class References(NamedTuple):
    """Objects that journals refer to: their keys, and rows of `PLACE`.

    For a deep reading, `needed` is what a journal needs of each L0 object.
    """

    keys: list[str]
    places: Rows
    needed: list[UnreconciledObject]

    def by_task(self, cut: Cut, folder: str) -> Iterator[tuple[int, References]]:
        """Those for each task, if all are in one folder."""
        task = np.fromiter((cut.task_of(folder, k) for k in self.keys), np.int64, len(self.keys))
        for t in np.unique(task).tolist():
            at = np.flatnonzero(task == t)
            needed = [self.needed[i] for i in at] if self.needed else []
            yield t, References([self.keys[i] for i in at], self.places[at], needed)


def in_chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items, so many at a time."""
    it = iter(items)
    while chunk := list(islice(it, size)):
        yield chunk


def l0_references(cut: Cut, journal: int, p: Placed, *, deep: bool) -> Iterator[tuple[int, References]]:
    """The L0 objects that the journal still needs for a topic; the place is the first extent that is left."""
    for objects in in_chunks(p.state.objects, _AT_ONCE):
        places = np.array([(journal, p.topic.revision, *first_place(o), False) for o in objects], PLACE)
        yield from References([o.key for o in objects], places, objects if deep else []).by_task(cut, cut.l0)


def l1_references(cut: Cut, cluster: Handles, journal: int, p: Placed) -> Iterator[tuple[int, References | Suspect]]:
    """The L1 objects that the journal names for a topic, and the index objects that cannot be read.

    Older L1 objects of a partition that has many are in index objects; a partition's rows are let go before others are read.
    """
    yield from _named(cut, journal, p, p.state.l1)

    def read(index: Rows) -> Rows | str:
        partition = int(index["partition"][0])
        log_start = p.state.view(partition).log_start_offset
        return indexed_rows(cluster.store, p.topic.id(partition), index, log_start)

    rows = p.state.index
    partitions = (
        np.split(rows, np.flatnonzero(rows["partition"][1:] != rows["partition"][:-1]) + 1) if len(rows) else []
    )
    for chunk in in_chunks(partitions, _INDEXES_AT_ONCE):
        for index, found in zip(chunk, cluster.parallel.map(read, chunk), strict=True):
            if isinstance(found, str):
                partition = p.topic.id(int(index["partition"][0]))
                where = (journal, partition.topic, partition.revision, partition.partition)
                key = index_key(partition, index[-1])
                yield journal % cut.tasks, Suspect(Kind.INDEX_UNREADABLE, *where, key, detail=found)
            else:
                yield from _named(cut, journal, p, found)


def _named(cut: Cut, journal: int, p: Placed, rows: Rows) -> Iterator[tuple[int, References]]:
    rows = files_in(rows)
    for at in range(0, len(rows), _AT_ONCE):
        chunk = rows[at : at + _AT_ONCE]
        places = np.empty(len(chunk), PLACE)
        places["journal"], places["revision"], places["l1"] = journal, p.topic.revision, True
        places["partition"], places["offset"], places["expected"] = chunk["partition"], chunk["base"], chunk["bytes"]
        keys = [l1_key(PartitionId(p.topic.name, p.topic.revision, f.partition), f) for f in map(l1_file, chunk)]
        yield from References(keys, places, []).by_task(cut, topic_folder(p.topic))


# -- listings ----------------------------------------------------------------------------------------------------------


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
            self.add_ahead(epoch, objects, key)

    def add_ahead(self, epoch: int, objects: int, key: str) -> None:
        known, first = self.ahead.get(epoch, (0, key))
        self.ahead[epoch] = known + objects, min(first, key)


class InDoubt(NamedTuple):
    """A journal that may have lost entries: what it does not name, it may have named."""

    journal: int


def compare(basis: Basis, deep: bool, cluster: Handles, sent: Iterable[Any]) -> Iterator[Suspect | Seen]:
    """List a task's share, and compare it with the references to it.

    Args:
        sent: the ranges that the task lists, the `References` that fall into them, every journal that is `InDoubt`, and
            whatever else was found of the journals, which is passed on.
    """
    found: list[References] = []
    ranges: list[FolderRange] = []
    doubtful: set[int] = set()
    for item in sent:
        match item:
            case References():
                found.append(item)
            case FolderRange():
                ranges.append(item)
            case InDoubt():
                doubtful.add(item.journal)
            case _:
                yield item
    # No reference comes after this, so the listing is newer than all of them.
    comparison = _Comparison(cluster, basis, found, doubtful)
    for suspects, seen in cluster.parallel.map(comparison.read, ranges):
        yield from suspects
        yield seen
    yield from comparison.missing()
    if deep:
        yield from comparison.contents()


class _Comparison:
    """All that one task's ranges should have, by key, and what they have of it.

    A listed object is taken out of `_first`, so that the missing ones are left.
    """

    def __init__(self, cluster: Handles, basis: Basis, found: Sequence[References], doubtful: set[int]) -> None:
        self._cluster, self._basis, self._layout, self._doubtful = cluster, basis, basis.layout, doubtful
        self._keys = [k for r in found for k in r.keys]
        self._places: Rows = np.concatenate([np.empty(0, PLACE), *(r.places for r in found)])
        self._expected: Rows = self._places["expected"]
        self._needed: list[UnreconciledObject | None] = []
        for r in found:
            self._needed += r.needed or [None] * len(r.keys)
        self._first: dict[str, int] = {}
        self._more: dict[str, list[int]] = {}
        for n, key in enumerate(self._keys):
            if self._first.setdefault(key, n) != n:
                self._more.setdefault(key, []).append(n)

    def _take(self, key: str) -> list[int]:
        """The numbers of the references to an object that was listed."""
        n = self._first.pop(key, None)
        return [] if n is None else [n, *self._more.get(key, ())]

    def _suspect(self, n: int, kind: Kind) -> Suspect:
        """A suspect about the reference with that number."""
        journal, revision, partition, offset, expected, _ = self._places[n].tolist()
        topic = self._basis.live[revision].name
        return Suspect(kind, journal, topic, revision, partition, self._keys[n], offset, expected)

    def missing(self) -> Iterator[Suspect]:
        """What was not listed."""
        for key in list(self._first):
            for n in self._take(key):
                yield self._suspect(n, Kind.L1_MISSING if self._places["l1"][n] else Kind.L0_MISSING)

    def read(self, part: FolderRange) -> tuple[list[Suspect], Seen]:
        """List a range. Several may be read at once, since no key is in two of them."""
        suspects, seen = list[Suspect](), Seen()
        look = self._l0 if part.folder == self._layout.data_prefix else self._l1
        for page in RangeReader(self._cluster.store, self._layout, part.keys, folder=part.folder).read():
            look(page, suspects, seen)
        return suspects, seen

    def _l0(self, page: ListedPage, suspects: list[Suspect], seen: Seen) -> None:
        basis, counts, expected = self._basis, seen.counts, self._expected
        for key, size, epoch in zip(page.keys, page.sizes, self._layout.epochs(page.keys), strict=True):
            refs = self._take(key)
            short = [n for n in refs if expected[n] > size]
            if short:
                suspects += [self._suspect(n, Kind.L0_SHORT) for n in short]
            elif epoch < 0:
                counts["unparsable_keys"] += 1
                continue
            elif epoch > basis.state.epoch:
                seen.add_ahead(epoch, 1, key)
            elif not refs:
                kind = "eligible" if epoch <= basis.watermark else "waiting"
                counts[f"{kind}_objects"] += 1
                counts[f"{kind}_bytes"] += size
            counts["l0_objects"] += 1

    def _l1(self, page: ListedPage, suspects: list[Suspect], seen: Seen) -> None:
        counts, expected = seen.counts, self._expected
        for key, size, modified_ms in zip(page.keys, page.sizes, page.modified_ms, strict=True):
            refs = self._take(key)
            suspects += [self._suspect(n, Kind.L1_SIZE) for n in refs if expected[n] != size]
            parsed = parse_level_one(key)
            owner, journal = self._basis.owner(parsed)
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
                suspects.append(Suspect(Kind.L1_ORPHAN, journal, p.topic, p.revision, p.partition, key))
            counts["l1_objects"] += max(1, len(refs))

    def contents(self) -> Iterator[Suspect | Seen]:
        """Read what the journals refer to, several objects at a time."""
        for chunk in in_chunks(range(len(self._keys)), _READ_AT_ONCE):
            read = self._cluster.parallel.map(self._check, chunk)
            yield from (s for s, _ in read if s is not None)
            yield Seen(Counter(bytes_read=sum(size for _, size in read)))

    def _check(self, n: int) -> tuple[Suspect | None, int]:
        """What is wrong with the contents of an object, and how many bytes were read; none if its size is the fault."""
        o = self._needed[n]
        if o is None:
            s = self._suspect(n, Kind.L1_CORRUPT)
            fault = l1_fault(self._cluster.store, s.key, s.expected)
            found = msgspec.structs.replace(s, detail=fault) if fault else None
            return found, 0 if fault is None else s.expected
        faults = block_faults(self._cluster.store, o)
        if faults is None:
            return None, 0
        size = sum(o.block(number).length for number in set(o.extents["block"].tolist()))
        if not faults:
            return None, size
        extent, text = faults[0]
        where: dict[str, Any] = {"partition": extent.partition, "offset": extent.base_offset, "detail": text}
        return msgspec.structs.replace(self._suspect(n, Kind.L0_CORRUPT), **where, needed=o), size
