"""What a journal's log says of L1, counted by rules of its own: which objects each partition has, and what it has dropped.

An object is named from the entry that adds it until an entry takes it away; from then on it is dropped, until it is purged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from l0gc.keys import PartitionId, level_one
from l0gc.streamlog.journal.entries import EditedTopic
from l0gc.streamlog.journal.rows import L1_ROW, NAME, Rows, unpack
from l0gc.streamlog.journal.topic import l1_file

Place = tuple[int, int]
"""A revision and a partition."""
Ranges = list[tuple[int, int, int]]
"""Runs of records: the partition, the first and the last one."""


class Wrong(Exception):
    """What does not hold."""


@dataclass(frozen=True)
class Span:
    """Which records an L1 object holds, its stamp `epoch`, its size, and the newest timestamp in it."""

    base: int
    last: int
    epoch: int
    name: bytes
    bytes: int = 0
    newest_ms: int = 0


@dataclass(frozen=True)
class Dropped:
    """When an object was dropped."""

    time_ms: int
    epoch: int
    name: bytes


@dataclass
class L1Shadow:
    """L1 of one journal."""

    fence: int = 0
    files: dict[Place, dict[str, Span]] = field(default_factory=dict)
    dropped: dict[str, Dropped] = field(default_factory=dict)
    named: set[str] = field(default_factory=set)
    ever: set[str] = field(default_factory=set)
    files_ever: dict[Place, list[Span]] = field(default_factory=dict)

    # -- entries ----------------------------------------------------------------------------------------------------------

    def edited(self, name: str, t: EditedTopic, there: Iterable[str], now: tuple[int, int]) -> tuple[Ranges, Ranges]:
        """Take what an edit adds and removes; returns the runs of records that both hold."""
        files, gone = self._files(name, t.revision, t.added), self._files(name, t.revision, t.removed)
        self._change(t.revision, files, gone, there, now)
        return _ranges(files), _ranges(gone)

    def begins(self, revision: int, starts: dict[int, int], now: tuple[int, int]) -> None:
        """What is wholly below the new starts goes."""
        for p, start in starts.items():
            files = self.files.get((revision, p), {})
            for key in [k for k, f in files.items() if f.last < start]:
                self._drop(files, key, now)

    def closed(self, revision: int, now: tuple[int, int]) -> None:
        """A topic is gone: all that it has is dropped."""
        for place in [place for place in self.files if place[0] == revision]:
            files = self.files.pop(place)
            for key in list(files):
                self._drop(files, key, now)

    def purged(self, names: bytes, there: Iterable[str]) -> None:
        """Forget what is gone from the bucket."""
        wanted = {bytes(n) for n in unpack(names, NAME)}
        for key in [k for k, d in self.dropped.items() if d.name in wanted]:
            if key in there:
                raise Wrong(f"forgot {key}, which is still there")
            del self.dropped[key]

    # -- checks -----------------------------------------------------------------------------------------------------------

    def check(self, revision: int, partition: int, reconciled: int) -> None:
        """The L1 objects of a partition hold its reconciled records without a gap."""
        files = sorted(self.files.get((revision, partition), {}).values(), key=lambda f: f.base)
        for before, after in pairwise(files):
            if after.base != before.last + 1:
                raise Wrong(f"has L1 objects of partition {partition} with a gap, or twice, at {after.base}")
        if files and files[-1].last != reconciled:
            raise Wrong(
                f"has L1 objects of partition {partition} up to {files[-1].last}, and {reconciled} is reconciled"
            )

    def names_in_state(self, revision: int) -> set[bytes]:
        """The names of the L1 objects that the state should have of a topic."""
        return {f.name for place, files in self.files.items() if place[0] == revision for f in files.values()}

    def dropped_names(self) -> set[bytes]:
        """The names of what the state should have among the dropped objects."""
        return {d.name for d in self.dropped.values()}

    # -- the change -------------------------------------------------------------------------------------------------------

    def _change(
        self,
        revision: int,
        files: dict[str, tuple[int, Span]],
        gone: dict[str, tuple[int, Span]],
        there: Iterable[str],
        now: tuple[int, int],
    ) -> None:
        for key, (_, span) in files.items():
            if key not in there:
                raise Wrong(f"names {key}, which is not there")
            if span.epoch < self.fence:
                raise Wrong(f"names {key}, which is stamped below its L1 fence {self.fence}")
            if key in self.ever:
                raise Wrong(f"names {key} a second time")
        for key, (p, _) in gone.items():
            have = self.files.get((revision, p), {})
            if key not in have:
                raise Wrong(f"drops {key}, which it does not name")
            self._drop(have, key, now)
        for key, (p, span) in files.items():
            self.files_ever.setdefault((revision, p), []).append(span)
            self.files.setdefault((revision, p), {})[key] = span
            self.named.add(key)
            self.ever.add(key)

    def _drop(self, have: dict[str, Span], key: str, now: tuple[int, int]) -> None:
        span = have.pop(key)
        self.dropped[key] = Dropped(*now, span.name)
        self.named.discard(key)

    # -- rows -------------------------------------------------------------------------------------------------------------

    @staticmethod
    def _files(name: str, revision: int, rows: bytes) -> dict[str, tuple[int, Span]]:
        return dict(spans_of_files(name, revision, unpack(rows, L1_ROW)))


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
