"""The objects that the journals refer to, sent by the tasks that read journals to those that read the listings.

The listings of L0 and L1 are cut into ranges of keys, and each range belongs to one task. A reference goes to the task that
lists the range of its key, so each task can decide alone what is missing and what nobody needs. References travel as
columns, some thousands together, since a journal may refer to a million objects.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Final, TypeVar

import numpy as np

from l0gc.inspect.verify import findings as kinds
from l0gc.inspect.verify.basis import Basis, FolderRange, l1_ranges, topic_folder
from l0gc.inspect.verify.findings import Suspect
from l0gc.inspect.verify.reading import indexed_rows, pack_object
from l0gc.inspect.verify.rules import Placed, first_place
from l0gc.keys import PartitionId
from l0gc.storage.ranges import of_shards
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.journal.rows import Rows
from l0gc.streamlog.journal.topic import l1_file
from l0gc.streamlog.level_one.index import index_key, l1_key

T = TypeVar("T")

PLACE: Final = np.dtype([("partition", "<i4"), ("offset", "<i8"), ("expected", "<i8")])
"""The partition concerned, its first record there, and where the last block ends that is needed, or an L1 object's size."""
_AT_ONCE: Final = 16_384
_INDEXES_AT_ONCE: Final = 64


class Cut:
    """The listings in ranges of keys, and which task reads each.

    Args:
        parts: about into how many ranges each of the two listings is cut.
    """

    def __init__(self, basis: Basis, parts: int, tasks: int) -> None:
        self.tasks = tasks
        self.l0 = basis.layout.data_prefix
        self._ranges = [FolderRange(self.l0, keys) for keys in of_shards(basis.layout, parts)]
        self._ranges += l1_ranges(basis, parts)
        self._first: dict[str, int] = {}
        self._ends: dict[str, list[str]] = {}
        for i, r in enumerate(self._ranges):
            self._first.setdefault(r.folder, i)
            ends = self._ends.setdefault(r.folder, [])
            if r.keys.end is not None:
                ends.append(r.keys.end)

    def share(self, task: int) -> list[FolderRange]:
        """What a task lists."""
        return self._ranges[task :: self.tasks]

    def task_of(self, folder: str, key: str) -> int:
        """Who lists a key of one of the folders."""
        return (self._first[folder] + bisect_left(self._ends[folder], key)) % self.tasks


@dataclass(frozen=True, slots=True)
class References:
    """Objects that a journal refers to for a topic; all are L0 or all are L1.

    `places` are rows of `PLACE`. For a deep reading, `needs` has what the journal needs of each L0 object.
    """

    folder: str
    journal: int
    topic: str
    revision: int
    keys: list[str]
    places: Rows
    needs: list[bytes]

    def suspect(self, at: int, kind: str) -> Suspect:
        """A suspect about one of them."""
        partition, offset, expected = self.places[at].tolist()
        return Suspect(kind, self.journal, self.topic, self.revision, partition, self.keys[at], offset, expected)

    def by_task(self, cut: Cut) -> Iterator[tuple[int, References]]:
        """Those for each task."""
        task = np.fromiter((cut.task_of(self.folder, k) for k in self.keys), np.int64, len(self.keys))
        for t in np.unique(task).tolist():
            at = np.flatnonzero(task == t)
            keys, needs = [self.keys[i] for i in at], [self.needs[i] for i in at] if self.needs else []
            yield t, References(self.folder, self.journal, self.topic, self.revision, keys, self.places[at], needs)


class Referred:
    """All that one task's ranges should have, by key: a listed object is taken out, so that the missing ones are left."""

    def __init__(self, found: Sequence[References]) -> None:
        self._found = found
        self._starts = list(accumulate((len(r.keys) for r in found), initial=0))
        self._first: dict[str, int] = {}
        self._more: dict[str, list[int]] = {}
        for start, refs in zip(self._starts, found, strict=False):
            for n, key in enumerate(refs.keys, start):
                if self._first.setdefault(key, n) != n:
                    self._more.setdefault(key, []).append(n)
        places = [r.places for r in found] or [np.empty(0, PLACE)]
        self.expected: Rows = np.concatenate(places)["expected"]

    def take(self, key: str) -> list[int]:
        """The numbers of the references to an object that was listed."""
        n = self._first.pop(key, None)
        return [] if n is None else [n, *self._more.get(key, ())]

    def left(self) -> Iterator[tuple[References, int]]:
        """The references to what was not listed."""
        for key, n in self._first.items():
            yield from map(self._at, [n, *self._more.get(key, ())])

    def all(self) -> Iterator[tuple[References, int]]:
        """Every reference: with whom it came, and its place there."""
        return ((refs, at) for refs in self._found for at in range(len(refs.keys)))

    def suspect(self, n: int, kind: str) -> Suspect:
        """A suspect about the reference with that number."""
        refs, at = self._at(n)
        return refs.suspect(at, kind)

    def _at(self, n: int) -> tuple[References, int]:
        i = bisect_right(self._starts, n) - 1
        return self._found[i], n - self._starts[i]


def in_chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items, so many at a time."""
    it = iter(items)
    while chunk := list(islice(it, size)):
        yield chunk


# -- what a journal refers to ----------------------------------------------------------------------------------------------


def l0_references(folder: str, journal: int, p: Placed, *, deep: bool) -> Iterator[References]:
    """The L0 objects that the journal still needs for a topic; the place is the first extent that is left."""
    for objects in in_chunks(p.state.objects, _AT_ONCE):
        places = np.array([first_place(o) for o in objects], PLACE)
        needs = [pack_object(o) for o in objects] if deep else []
        keys = [o.key for o in objects]
        yield References(folder, journal, p.topic.name, p.topic.revision, keys, places, needs)


def l1_references(cluster: Cluster, journal: int, p: Placed) -> Iterator[References | Suspect]:
    """The L1 objects that the journal names for a topic, and the index objects that cannot be read.

    Older L1 objects of a partition that has many are in index objects; a partition's rows are let go before others are read.
    """
    yield from _l1_references(journal, p, p.state.l1)

    def read(index: Rows) -> Rows | str:
        partition = int(index["partition"][0])
        log_start = p.state.view(partition).log_start_offset
        return indexed_rows(cluster.store, p.topic.id(partition), index, log_start)

    for chunk in in_chunks(_by_partition(p.state.index), _INDEXES_AT_ONCE):
        for index, found in zip(chunk, cluster.parallel.map(read, chunk), strict=True):
            if isinstance(found, str):
                partition = int(index["partition"][0])
                where = (journal, p.topic.name, p.topic.revision, partition)
                yield Suspect(kinds.INDEX_UNREADABLE, *where, index_key(p.topic.id(partition), index[-1]), detail=found)
            else:
                yield from _l1_references(journal, p, found)


def _l1_references(journal: int, p: Placed, rows: Rows) -> Iterator[References]:
    topic = p.topic
    folder = topic_folder(topic)
    for at in range(0, len(rows), _AT_ONCE):
        chunk = rows[at : at + _AT_ONCE]
        keys = [l1_key(PartitionId(topic.name, topic.revision, f.partition), f) for f in map(l1_file, chunk)]
        places = np.empty(len(chunk), PLACE)
        places["partition"], places["offset"], places["expected"] = chunk["partition"], chunk["base"], chunk["bytes"]
        yield References(folder, journal, topic.name, topic.revision, keys, places, [])


def _by_partition(rows: Rows) -> Iterator[Rows]:
    """The index objects of each partition."""
    yield from np.split(rows, np.flatnonzero(rows["partition"][1:] != rows["partition"][:-1]) + 1) if len(rows) else ()
