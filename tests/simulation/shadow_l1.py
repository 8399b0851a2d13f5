"""What a journal's log says of L1, counted by rules of its own: which objects each partition has, and what it has dropped.

An object is named from the entry that adds it until an entry takes it away; from then on it is dropped, until it is purged.
Here every L1 object of a partition is known, also those that only its index objects list.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from l0gc.keys import PartitionId, level_one, level_one_index
from l0gc.streamlog.journal.entries import EditedTopic
from l0gc.streamlog.journal.rows import INDEX_ROW, L1_ROW, NAME, Rows, name_text, unpack
from l0gc.streamlog.journal.topic import l1_file

Place = tuple[int, int]
"""A revision and a partition."""
Ranges = list[tuple[int, int, int]]
"""Runs of records: the partition, the first and the last one."""


class Wrong(Exception):
    """What does not hold."""


@dataclass(frozen=True)
class Span:
    """Which records an L1 object holds, or the L1 objects that an index object lists; `epoch` stamps it.

    Of an L1 object, `bytes` and `newest_ms` are its size and the newest timestamp in it.
    """

    base: int
    last: int
    epoch: int
    name: bytes
    bytes: int = 0
    newest_ms: int = 0


@dataclass
class Lists:
    """What a partition has in L1, by key."""

    files: dict[str, Span] = field(default_factory=dict)
    indexes: dict[str, Span] = field(default_factory=dict)

    def listed(self, file: Span) -> bool:
        """Whether an index object lists it."""
        return any(i.base <= file.base and file.last <= i.last for i in self.indexes.values())


@dataclass(frozen=True)
class Dropped:
    """When an object was dropped. `leads_to` are the L1 objects that go with an index object."""

    time_ms: int
    epoch: int
    name: bytes
    leads_to: tuple[str, ...] = ()
    alone: bool = True


@dataclass
class L1Shadow:
    """L1 of one journal."""

    fence: int = 0
    lists: dict[Place, Lists] = field(default_factory=dict)
    dropped: dict[str, Dropped] = field(default_factory=dict)
    named: set[str] = field(default_factory=set)
    ever: set[str] = field(default_factory=set)
    files_ever: dict[Place, list[Span]] = field(default_factory=dict)

    # -- entries ----------------------------------------------------------------------------------------------------------

    def edited(self, name: str, t: EditedTopic, there: Iterable[str], now: tuple[int, int]) -> tuple[Ranges, Ranges]:
        """Take what an edit adds and removes; returns the runs of records that both hold."""
        files, gone = self._files(name, t.revision, t.added), self._files(name, t.revision, t.removed)
        indexes, replaced = (self._indexes(name, t.revision, rows) for rows in (t.indexes, t.removed_indexes))
        self._change(t.revision, files, gone, indexes, replaced, there, now)
        return _ranges(files), _ranges(gone)

    def begins(self, revision: int, starts: dict[int, int], now: tuple[int, int]) -> None:
        """What is wholly below the new starts goes, but for what an index object still lists."""
        for p, start in starts.items():
            lists = self.lists.get((revision, p), Lists())
            for key in [k for k, i in lists.indexes.items() if i.last < start]:
                self._drop_tree(lists, key, now)
            for key in [k for k, f in lists.files.items() if f.last < start and not lists.listed(f)]:
                self._drop(lists.files, key, now)

    def closed(self, revision: int, now: tuple[int, int]) -> None:
        """A topic is gone: all that it has is dropped."""
        for place in [place for place in self.lists if place[0] == revision]:
            lists = self.lists.pop(place)
            for key in list(lists.indexes):
                self._drop_tree(lists, key, now)
            for key in list(lists.files):
                self._drop(lists.files, key, now)

    def purged(self, names: bytes, there: Iterable[str], vanished: Container[str]) -> None:
        """Forget what is gone from the bucket.

        Args:
            vanished: index objects that a restore took away: what only they listed is left for the search for orphans.
        """
        wanted = {bytes(n) for n in unpack(names, NAME)}
        for key in [k for k, d in self.dropped.items() if d.name in wanted and d.alone]:
            for gone in (key, *self.dropped[key].leads_to):
                if gone in there and key not in vanished:
                    raise Wrong(f"forgot {gone}, which is still there")
                self.dropped.pop(gone, None)

    # -- checks -----------------------------------------------------------------------------------------------------------

    def check(self, revision: int, partition: int, reconciled: int) -> None:
        """The L1 objects of a partition hold its reconciled records without a gap, and its index objects list whole ones."""
        lists = self.lists.get((revision, partition), Lists())
        files = sorted(lists.files.values(), key=lambda f: f.base)
        for before, after in pairwise(files):
            if after.base != before.last + 1:
                raise Wrong(f"has L1 objects of partition {partition} with a gap, or twice, at {after.base}")
        if files and files[-1].last != reconciled:
            raise Wrong(
                f"has L1 objects of partition {partition} up to {files[-1].last}, and {reconciled} is reconciled"
            )

    def names_in_state(self, revision: int) -> tuple[set[bytes], set[bytes]]:
        """The names of the L1 objects and of the index objects that the state should have of a topic."""
        mine = [lists for place, lists in self.lists.items() if place[0] == revision]
        files = {f.name for lists in mine for f in lists.files.values() if not lists.listed(f)}
        return files, {i.name for lists in mine for i in lists.indexes.values()}

    def dropped_names(self) -> set[bytes]:
        """The names of what the state should have among the dropped objects."""
        return {d.name for d in self.dropped.values() if d.alone}

    # -- the change -------------------------------------------------------------------------------------------------------

    def _change(
        self,
        revision: int,
        files: dict[str, tuple[int, Span]],
        gone: dict[str, tuple[int, Span]],
        indexes: dict[str, tuple[int, Span]],
        replaced: dict[str, tuple[int, Span]],
        there: Iterable[str],
        now: tuple[int, int],
    ) -> None:
        for key, (_, span) in (files | indexes).items():
            if key not in there:
                raise Wrong(f"names {key}, which is not there")
            if span.epoch < self.fence:
                raise Wrong(f"names {key}, which is stamped below its L1 fence {self.fence}")
            if key in self.ever:
                raise Wrong(f"names {key} a second time")
        for kind, change in (("files", gone), ("indexes", replaced)):
            for key, (p, _) in change.items():
                have = getattr(self.lists.get((revision, p), Lists()), kind)
                if key not in have:
                    raise Wrong(f"drops {key}, which it does not name")
                self._drop(have, key, now)
        for p, span in files.values():
            self.files_ever.setdefault((revision, p), []).append(span)
        for kind, change in (("files", files), ("indexes", indexes)):
            for key, (p, span) in change.items():
                getattr(self.lists.setdefault((revision, p), Lists()), kind)[key] = span
                self.named.add(key)
                self.ever.add(key)

    def _drop(self, have: dict[str, Span], key: str, now: tuple[int, int], *, alone: bool = True) -> None:
        span = have.pop(key)
        self.dropped[key] = Dropped(*now, span.name, alone=alone)
        self.named.discard(key)

    def _drop_tree(self, lists: Lists, key: str, now: tuple[int, int]) -> None:
        index = lists.indexes.pop(key)
        self.named.discard(key)
        leads_to = tuple(k for k, f in lists.files.items() if index.base <= f.base and f.last <= index.last)
        for file in leads_to:
            self._drop(lists.files, file, now, alone=False)
        self.dropped[key] = Dropped(*now, index.name, tuple(k for k in leads_to if k in self.dropped))

    # -- rows -------------------------------------------------------------------------------------------------------------

    @staticmethod
    def _files(name: str, revision: int, rows: bytes) -> dict[str, tuple[int, Span]]:
        return dict(spans_of_files(name, revision, unpack(rows, L1_ROW)))

    @staticmethod
    def _indexes(name: str, revision: int, rows: bytes) -> dict[str, tuple[int, Span]]:
        found = {}
        for row in unpack(rows, INDEX_ROW):
            p, epoch = PartitionId(name, revision, int(row["partition"])), int(row["epoch"])
            span = Span(int(row["base"]), int(row["last"]), epoch, bytes(row["name"]))
            found[level_one_index(p, epoch, name_text(row["name"]))] = (p.partition, span)
        return found


def spans_of_files(name: str, revision: int, rows: Rows) -> Iterator[tuple[str, tuple[int, Span]]]:
    """The L1 objects in rows of `L1_ROW`: the key, the partition, and what it holds."""
    for row in rows:
        f = l1_file(row)
        key = level_one(PartitionId(name, revision, f.partition), f.epoch, f.base_offset, f.last_offset, f.name)
        span = Span(f.base_offset, f.last_offset, f.epoch, bytes(row["name"]), f.bytes, f.max_timestamp)
        yield key, (f.partition, span)


def _ranges(files: dict[str, tuple[int, Span]]) -> Ranges:
    """The runs of records that files hold, by partition."""
    found: Ranges = []
    for p, base, last in sorted((p, f.base, f.last) for p, f in files.values()):
        if found and found[-1][0] == p and found[-1][2] + 1 == base:
            found[-1] = (p, found[-1][1], last)
        else:
            found.append((p, base, last))
    return found
