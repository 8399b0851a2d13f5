"""A merge's commit in one journal: the index objects that it changes, then the entries; and what comes of a run.

All that is named is durable by then. A partition whose objects another merge or an expiry has changed, or whose topic is
gone, is left out by the journal, at the offset where the entry lands; what was written for it stays in the bucket, where no
journal names it, for vacuum. Before anything is appended the state is read once more, so that a merge which has lost
long ago writes no index object in vain, and an object that is gone because of that does not count as damage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Final

import numpy as np

from l0gc.errors import CorruptObjectError, ObjectNotFoundError, PartialFailureError, ProtocolError
from l0gc.formatting import Outcome
from l0gc.keys import PartitionId
from l0gc.storage.workers import LOCAL
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.journal.entries import ENTRY_BYTES, Merged, MergedTopic
from l0gc.streamlog.journal.handle import JournalHandle
from l0gc.streamlog.journal.l1 import Change
from l0gc.streamlog.journal.rows import Rows, pack
from l0gc.streamlog.journal.topic import TopicState
from l0gc.streamlog.level_one.index import read_index, replace_in_index
from l0gc.streamlog.level_one.merge_plan import Merge
from l0gc.streamlog.level_one.plan import Window
from l0gc.streamlog.level_one.rewrite import Rewritten

DAMAGE: Final = (CorruptObjectError, ObjectNotFoundError)
"""What is wrong with one partition, or one journal, while the rest goes on."""
_MERGED: Final = ("objects_before", "objects_after", "records", "bytes", "bytes_read", "partitions")


@dataclass(slots=True)
class MergeResult(Outcome):
    """What a run did, or with `dry_run` would do.

    Attributes:
        objects_before: L1 objects that were replaced.
        objects_after: those that took their places.
        records: how many are in these.
        bytes: the bytes written; a dry run says at most how many.
        bytes_read: the bytes of the objects that were replaced.
        partitions: those in which something was merged.
        lost: merges that were given up because another run had changed the partition's objects; what they wrote is left
            to vacuum.
        errors: what could not be merged, and why.
        engine: LOCAL or SPARK.
    """

    objects_before: int = 0
    objects_after: int = 0
    records: int = 0
    bytes: int = 0
    bytes_read: int = 0
    partitions: int = 0
    lost: int = 0
    errors: list[str] = field(default_factory=list)
    engine: str = LOCAL
    dry_run: bool = False
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        fields = Outcome.to_json(self)
        return {"merged": {name: fields.pop(name) for name in _MERGED}, **fields}

    @property
    def problem(self) -> PartialFailureError | None:
        """What went wrong, in one sentence."""
        return PartialFailureError.of("not everything could be merged", self.errors)

    def add(self, other: MergeResult) -> None:
        """Count what another worker did, in other partitions."""
        self.objects_before += other.objects_before
        self.objects_after += other.objects_after
        self.records += other.records
        self.bytes += other.bytes
        self.bytes_read += other.bytes_read
        self.partitions += other.partitions
        self.lost += other.lost
        self.errors += other.errors

    def count(self, m: Merge, written: int) -> None:
        """Count a merge, whose object has so many bytes."""
        self.objects_before += len(m.sources)
        self.objects_after += 1
        self.records += m.records
        self.bytes += written
        self.bytes_read += m.bytes


@dataclass(frozen=True, slots=True)
class _MergedPart:
    """What is to be committed in one partition."""

    partition: PartitionId
    merges: list[Merge]
    change: Change

    @property
    def weight(self) -> int:
        return sum(rows.nbytes for rows in self.change)


class MergeRound:
    """The commit of a round in one journal: the index objects that it changes, then the entries.

    Args:
        result: what the worker did so far, which is added to; likewise `merged`, the partitions.
    """

    def __init__(
        self,
        cluster: Cluster,
        handle: JournalHandle,
        window: Window,
        epoch: int,
        result: MergeResult,
        merged: set[tuple[int, int]],
    ) -> None:
        self._cluster, self._handle, self._window, self._epoch = cluster, handle, window, epoch
        self._result, self._merged = result, merged

    def commit(self, written: Sequence[Rewritten]) -> None:
        """Commit what was written, durable and checked. The rest is reported, unless it is no longer to be merged."""
        known = {t.revision: t for t in topics_of(self._handle, self._window)}
        entry: list[_MergedPart] = []
        weight = 0
        for part in self._parts(known, written):
            if entry and weight + part.weight > ENTRY_BYTES:
                self._append(entry)
                entry, weight = [], 0
            entry.append(part)
            weight += part.weight
        if entry:
            self._append(entry)

    def _parts(self, known: Mapping[int, TopicState], written: Sequence[Rewritten]) -> Iterator[_MergedPart]:
        """What there is to commit, partition by partition."""
        by_partition: dict[tuple[int, int], list[Rewritten]] = {}
        for r in written:
            by_partition.setdefault((r.merge.revision, r.merge.partition), []).append(r)
        for (revision, partition), found in sorted(by_partition.items()):
            p = PartitionId(self._window.topics[revision].name, revision, partition)
            try:
                left = [r for r in found if self._is_named(p, known.get(revision), r.merge)]
                self._result.lost += len(found) - len(left)
                self._result.errors += [in_partition(p, r.error) for r in left if r.error is not None]
                done = [(r.merge, r.row) for r in left if r.row is not None]
                if done:
                    yield self._part(p, known[revision], done)
            except DAMAGE as e:
                self._result.errors.append(in_partition(p, e))

    def _part(self, p: PartitionId, topic: TopicState, done: Sequence[tuple[Merge, Rows]]) -> _MergedPart:
        replaced = np.concatenate([merge.sources for merge, _ in done])
        files = np.concatenate([row for _, row in done])
        c = self._cluster
        change = replace_in_index(c.store, p, topic, replaced, files, self._epoch, c.runtime)
        return _MergedPart(p, [merge for merge, _ in done], Change(files, replaced, change.indexes, change.replaced))

    def _is_named(self, p: PartitionId, topic: TopicState | None, m: Merge) -> bool:
        """Whether the journal still names the objects of a merge."""
        if topic is None:
            return False
        index = topic.index_of(p.partition)
        listed = (index["last"] >= m.sources["base"][0]) & (index["base"] <= m.sources["last"][-1])
        named = [topic.l1_of(p.partition)["name"], read_index(self._cluster.store, p, index[listed])["name"]]
        return bool(np.isin(m.sources["name"], np.concatenate(named)).all())

    def _append(self, parts: Sequence[_MergedPart]) -> None:
        topics = []
        for revision, of_topic in groupby(parts, key=lambda part: part.partition.revision):
            files, replaced, *indexes = (
                pack(np.concatenate(rows)) for rows in zip(*(part.change for part in of_topic), strict=True)
            )
            topics.append(MergedTopic(revision, replaced, files, *indexes))
        try:
            refused = self._handle.commit_merged(Merged(self._epoch, topics))
        except ProtocolError as e:  # fenced off by a vacuum, say; whether it landed, the next run will see
            self._result.errors.append(in_journal(self._window, e))
            return
        for part in parts:
            at = part.partition.revision, part.partition.partition
            if at in refused:
                self._result.lost += len(part.merges)
                continue
            self._merged.add(at)
            for m, size in zip(part.merges, part.change.files["bytes"].tolist(), strict=True):
                self._result.count(m, size)


def topics_of(handle: JournalHandle, window: Window) -> list[TopicState]:
    """The topics of a window as the journal has them now; they do not change while they are read."""
    with handle.replica.lock:
        state = handle.catch_up()
        found = ((state.topics.get(revision), wanted) for revision, wanted in sorted(window.topics.items()))
        return [replace(t) for t, wanted in found if t is not None and t.topic_id == wanted.topic_id]


def in_journal(window: Window, error: Exception) -> str:
    """What is wrong with a journal, as text."""
    return f"journal {window.journal}: {error}"


def in_partition(p: PartitionId, error: Exception) -> str:
    """What is wrong with a partition, as text."""
    return f"partition {p}: {error}; its L1 objects stay as they are"
