"""Look up which keys of a listing the journals need, in this process or on an executor that replays them.

A part of the listing carries its topics, their journals, and the epochs of the fences. A look reads the states of these
journals, which must include these fences, and keeps the names of their objects, sorted, 16 bytes each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from l0gc.collect.orphans import Fact, KeyFacts
from l0gc.errors import StoreError
from l0gc.keys import L1Key, journal_log, parse_level_one
from l0gc.runtime import Runtime
from l0gc.storage.log import SharedLog
from l0gc.storage.objectstore import ObjectStore
from l0gc.storage.ranges import KeyRange
from l0gc.storage.replica import Replica
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.journal.checkpoint import JournalMachine
from l0gc.streamlog.journal.rows import NAME, Rows, indices_in, name_bytes
from l0gc.streamlog.journal.state import JournalState

_IN_ORDER: Final = 100_000
"""Up to this many partitions have numbers of five digits, whose text sorts like the numbers."""
_NAME: Final = np.dtype("S16")
"""A UUID in a type that numpy can sort. All have the same length, so trailing zeros make no difference."""


def _cut_in(folder: str, cut: str) -> int | None:
    """Return the partition after which a listing is cut, if the cut is in this folder."""
    return int(cut[len(folder) : -1]) if cut.startswith(folder) else None


class Span(NamedTuple):
    """The partitions of a topic whose keys may be in a part, inclusive; keys of shared objects may be in any part."""

    first: int
    last: int

    def holds(self, rows: Rows) -> Rows:
        held_rows: Rows = rows[
            (rows["partition"] < 0) | (rows["partition"] >= self.first) & (rows["partition"] <= self.last)
        ]
        return held_rows

    def has(self, partition: int) -> bool:
        return partition < 0 or self.first <= partition <= self.last


class JournalPart(KeyRange, frozen=True, kw_only=True):
    """A part of a listing, with the facts that are needed to read its journals. It is sent to executors, so it holds no
    secret.

    Attributes:
        epoch: the cluster epoch of the snapshot that has the topics.
        fences: the L1 fence of each journal; a journal without one cannot be read, and none of its objects is deleted.
        forgotten: revisions of topics that journals have closed and the controller has forgotten, ascending.
        waiting: the forgotten topics whose objects were dropped too recently to be deleted.
        assumed: whether the fences are missing from the logs because the run is a dry run.
    """

    topics: list[Topic]
    epoch: int
    fences: dict[int, int]
    forgotten: list[int]
    waiting: list[int]
    assumed: bool = False

    def span(self, t: Topic) -> Span:
        """Return which of a topic's partitions may be in the part, given its cuts between partitions."""
        folder, last = f"{self.folder}{t.name}-{t.revision}/", t.partitions - 1
        if t.partitions > _IN_ORDER:
            return Span(0, last)  # their keys do not sort like their numbers
        start, end = (_cut_in(folder, cut) for cut in (self.start, self.end or ""))
        return Span(0 if start is None else start + 1, last if end is None else end)


def read_facts(store: ObjectStore, part: KeyRange) -> KeyFacts:
    """Replay the journals of a part. Raises `StoreError` if a fence is missing from its log."""
    assert isinstance(part, JournalPart)
    runtime = Runtime()

    def replayed(journal: int) -> JournalState:
        log = SharedLog(store, journal_log(journal), runtime)
        return Replica(log, JournalMachine(journal), runtime).catch_up()

    return JournalNames(part, replayed).facts


class JournalNames:
    """The names in a part's journals, to be compared with its keys.

    Args:
        state_of: returns the state of a journal after its fence.
    """

    def __init__(self, part: JournalPart, state_of: Callable[[int], JournalState]) -> None:
        self._part = part
        self._topics = {(t.name, t.revision): t for t in part.topics}
        self._spans = {t.revision: part.span(t) for t in part.topics}
        self._kept: dict[tuple[int, int], int] = {}
        self._names: dict[tuple[int, int], Rows] = {}
        self._lowest = min(part.fences.values(), default=-1)
        for journal in sorted({j for t in part.topics for j in t.journals} & part.fences.keys()):
            self._keep(journal, state_of(journal))

    def _keep(self, journal: int, state: JournalState) -> None:
        """Store the names that a journal has of the part's topics."""
        if state.l1_fence < self._part.fences[journal] and not self._part.assumed:
            raise StoreError(
                f"journal {journal} was read with its L1 fence at {state.l1_fence}, though {self._part.fences[journal]} has "
                "landed: the store does not return the newest writes"
            )
        for t in self._part.topics:
            if journal in t.journals:
                at = t.revision, journal
                span, topic = self._spans[t.revision], state.topics.get(t.revision)
                self._kept[at] = 0 if state.closed(t.revision) else state.kept_below
                names = [span.holds(state.dropped_of(t.revision))["name"]]
                if topic is not None:
                    names.append(span.holds(topic.l1)["name"])
                    names.append(np.array([o.name for o in topic.shared], NAME))
                self._names[at] = np.sort(np.frombuffer(np.concatenate(names).tobytes(), _NAME))

    def facts(self, keys: Sequence[str]) -> list[Fact]:
        facts: list[Fact] = []
        by_journal: dict[tuple[int, int], list[tuple[int, L1Key]]] = {}
        for i, key in enumerate(keys):
            k = parse_level_one(key)
            if k is None:
                facts.append(Fact(-1, -1, True))
                continue
            topic = self._topics.get((k.topic, k.revision))
            if topic is None:
                facts.append(self._of_unlisted(k))
                continue
            if k.partition >= topic.partitions or (k.partition < 0 and k.journal not in topic.journals):
                facts.append(Fact(-1, -1, True))
                continue
            journal = k.journal if k.partition < 0 else topic.journal_of(k.partition)
            fence = self._part.fences.get(journal, -1)
            facts.append(Fact(k.epoch, fence, needed=True))
            span = self._spans[k.revision]
            # An object that a log has forgotten because it was set back is needed, although no entry names it (hazard 38).
            if self._kept.get((k.revision, journal), 0) <= k.epoch < fence and span.has(k.partition):
                by_journal.setdefault((k.revision, journal), []).append((i, k))
        for at, named in by_journal.items():
            names = np.frombuffer(b"".join(name_bytes(k.name) for _, k in named), _NAME)
            for (i, _), needed in zip(named, indices_in(self._names[at], names)[1].tolist(), strict=True):
                facts[i] = facts[i]._replace(needed=needed)
        return facts

    def _of_unlisted(self, k: L1Key) -> Fact:
        """Return the facts about a key whose topic the controller does not have.

        Journals remember the topics that they closed, so the fence of a forgotten topic is known. A topic above the epoch
        of the controller's snapshot may have been created after it. Any other topic is unknown: the controller log looks
        restored from an old backup, or the object is foreign.
        """
        at = int(np.searchsorted(self._part.forgotten, k.revision))
        if at < len(self._part.forgotten) and self._part.forgotten[at] == k.revision:
            return Fact(k.epoch, -1 if k.revision in self._part.waiting else self._lowest, needed=False)
        return Fact(k.epoch, -1, needed=True, unknown=k.revision <= self._part.epoch)
