"""L1 according to a journal's log, counted by separate rules: which objects each partition has, and which it has
dropped.

An object is named from the entry that adds it until an entry removes it; then it is dropped, until it is purged. A
shared object is named for each partition separately, and dropped when the last of them releases it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from l0gc.keys import PartitionId, level_one, level_one_shared
from l0gc.streamlog.journal.entries import EditedTopic
from l0gc.streamlog.journal.rows import BLOCK, L1_ROW, NAME, Rows, name_text, unpack, unpack_columns
from l0gc.streamlog.journal.shared import SHARED_ROW
from l0gc.streamlog.journal.topic import l1_file

Place = tuple[int, int]
"""A revision and a partition."""
Ranges = list[tuple[int, int, int]]
"""Runs of records: the partition, and the first and last offset."""


class Wrong(Exception):
    """A condition that does not hold."""


@dataclass(frozen=True)
class Span:
    """The records that an L1 object holds, its stamp `epoch`, its size, and the newest timestamp in it."""

    base: int
    last: int
    epoch: int
    name: bytes
    bytes: int = 0
    newest_ms: int = 0


Spans = list[tuple[str, tuple[int, Span]]]
"""Records of partitions that objects hold, each with the object's key."""


@dataclass(frozen=True)
class Dropped:
    """When an object was dropped."""

    time_ms: int
    epoch: int
    name: bytes


@dataclass
class L1Shadow:
    """The L1 objects of one journal."""

    journal: int = 0
    fence: int = 0
    files: dict[Place, dict[str, Span]] = field(default_factory=dict)
    dropped: dict[str, Dropped] = field(default_factory=dict)
    named: set[str] = field(default_factory=set)
    ever: set[tuple[str, int]] = field(default_factory=set)
    files_ever: dict[Place, list[Span]] = field(default_factory=dict)

    # -- entries ----------------------------------------------------------------------------------------------------------

    def edited(self, name: str, t: EditedTopic, there: Iterable[str], now: tuple[int, int]) -> tuple[Ranges, Ranges]:
        """Take what an edit adds and removes; return the runs of records in both."""
        files, gone = self._files(name, t.revision, t.added), self._files(name, t.revision, t.removed)
        added = [*files, *self.spans_of_shared(name, t)]
        self._change(t.revision, added, gone, there, now)
        return _ranges(added), _ranges(gone)

    def drained(self, revision: int, ranges: Ranges, now: tuple[int, int]) -> None:
        """Check that what a drain has added replaces shared objects: exactly their records of these partitions."""
        for p, base, last in ranges:
            files = self.files.get((revision, p), {})
            gone = {k: f for k, f in files.items() if is_shared(k) and base <= f.base and f.last <= last}
            records = sorted((f.base, f.last) for f in gone.values())
            if [b for b, _ in records] != [base, *(e + 1 for _, e in records[:-1])] or records[-1][1] != last:
                raise Wrong(f"drained records {base} to {last} of partition {p} from {records}")
            for key in gone:
                self._drop(revision, files, key, now)

    def begins(self, revision: int, starts: dict[int, int], now: tuple[int, int]) -> None:
        """Drop what is wholly below the new starts."""
        for p, start in starts.items():
            files = self.files.get((revision, p), {})
            for key in [k for k, f in files.items() if f.last < start]:
                self._drop(revision, files, key, now)

    def closed(self, revision: int, now: tuple[int, int]) -> None:
        """Drop all objects of a deleted topic."""
        for place in [place for place in self.files if place[0] == revision]:
            files = self.files[place]
            for key in list(files):
                self._drop(revision, files, key, now)
            del self.files[place]

    def purged(self, names: bytes, there: Iterable[str]) -> None:
        """Forget objects that are deleted from the bucket."""
        wanted = {bytes(n) for n in unpack(names, NAME)}
        for key in [k for k, d in self.dropped.items() if d.name in wanted]:
            if key in there:
                raise Wrong(f"forgot {key}, which is still there")
            del self.dropped[key]

    # -- checks -----------------------------------------------------------------------------------------------------------

    def check(self, revision: int, partition: int, reconciled: int) -> None:
        """Check that the L1 objects of a partition hold its reconciled records without a gap."""
        files = sorted(self.files.get((revision, partition), {}).values(), key=lambda f: f.base)
        for before, after in pairwise(files):
            if after.base != before.last + 1:
                raise Wrong(f"has L1 objects of partition {partition} with a gap, or twice, at {after.base}")
        if files and files[-1].last != reconciled:
            raise Wrong(
                f"has L1 objects of partition {partition} up to {files[-1].last}, and {reconciled} is reconciled"
            )

    def rows_in_state(self, revision: int) -> set[tuple[int, int, int, bytes]]:
        """Return what the state should list of a topic: the partition, the first and the last record, and the object's
        name.
        """
        mine = [(place[1], files) for place, files in self.files.items() if place[0] == revision]
        return {(p, f.base, f.last, f.name) for p, files in mine for f in files.values()}

    def dropped_names(self) -> set[bytes]:
        """Return the names that the state should have among the dropped objects."""
        return {d.name for d in self.dropped.values()}

    # -- changes ----------------------------------------------------------------------------------------------------------

    def _change(
        self,
        revision: int,
        files: Spans,
        gone: Spans,
        there: Iterable[str],
        now: tuple[int, int],
    ) -> None:
        for key, (p, span) in files:
            if key not in there:
                raise Wrong(f"names {key}, which is not there")
            if span.epoch < self.fence:
                raise Wrong(f"names {key}, which is stamped below its L1 fence {self.fence}")
            if (key, p) in self.ever or key in self.dropped:
                raise Wrong(f"names {key} a second time")
        for key, (p, _) in gone:
            have = self.files.get((revision, p), {})
            if key not in have:
                raise Wrong(f"drops {key}, which it does not name")
            self._drop(revision, have, key, now)
        for key, (p, span) in files:
            self.files_ever.setdefault((revision, p), []).append(span)
            self.files.setdefault((revision, p), {})[key] = span
            self.named.add(key)
            self.ever.add((key, p))

    def _drop(self, revision: int, have: dict[str, Span], key: str, now: tuple[int, int]) -> None:
        span = have.pop(key)
        if is_shared(key) and any(key in files for place, files in self.files.items() if place[0] == revision):
            return
        self.dropped[key] = Dropped(*now, span.name)
        self.named.discard(key)

    # -- rows -------------------------------------------------------------------------------------------------------------

    @staticmethod
    def _files(name: str, revision: int, rows: bytes) -> Spans:
        return list(spans_of_files(name, revision, unpack(rows, L1_ROW)))

    def spans_of_shared(self, name: str, t: EditedTopic) -> Spans:
        """Return the rows of shared objects that an edit names."""
        found: Spans = []
        for o in t.shared:
            key = level_one_shared(name, t.revision, self.journal, o.epoch, name_text(o.name))
            blocks = [b for b, n in enumerate(unpack(o.blocks, BLOCK)["extents"].tolist()) for _ in range(n)]
            rows = unpack_columns(o.rows, SHARED_ROW).tolist()
            lengths, of_block = unpack(o.blocks, BLOCK)["length"].tolist(), dict.fromkeys(blocks, 0)
            for block, (_, records, _, _) in zip(blocks, rows, strict=True):
                of_block[block] += records
            for block, flag, (p, records, base, newest_ms) in zip(blocks, o.flags, rows, strict=True):
                if flag == 1:
                    size = max(1, int(lengths[block] * (records / of_block[block])))
                    found.append((key, (p, Span(base, base + records - 1, o.epoch, o.name, size, newest_ms))))
        return found


def spans_of_files(name: str, revision: int, rows: Rows) -> Iterator[tuple[str, tuple[int, Span]]]:
    """Yield the L1 objects in rows of `L1_ROW`: the key, the partition, and the span."""
    for row in rows:
        f = l1_file(row)
        key = level_one(PartitionId(name, revision, f.partition), f.epoch, f.base_offset, f.last_offset, f.name)
        span = Span(f.base_offset, f.last_offset, f.epoch, bytes(row["name"]), f.bytes, f.max_timestamp)
        yield key, (f.partition, span)


def is_shared(key: str) -> bool:
    return not key.endswith(".parquet")


def _ranges(files: Spans) -> Ranges:
    """Return the runs of records that files hold, by partition."""
    found: Ranges = []
    for p, base, last in sorted((p, f.base, f.last) for _, (p, f) in files):
        if found and found[-1][0] == p and found[-1][2] + 1 == base:
            found[-1] = (p, found[-1][1], last)
        else:
            found.append((p, base, last))
    return found
