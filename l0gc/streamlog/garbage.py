"""Find the stream log's garbage for a vacuum: the objects that journals dropped, and the listed keys that no journal
needs.

Each journal is read once, and again after its fence. The state, after the fence, of the one journal with the key's
partition decides whether a key is needed. If the journal cannot be read, or its log does not have the fence, the key
counts as needed.

A controller log restored from a backup is detected here (hazard 10): a journal is above the cluster epoch, or holds a
topic that the controller does not have, or a key has the revision of such a topic. A topic that the controller has
forgotten, because all its objects were deleted, is still in the journals, which remember closed topics.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec
import numpy as np

from l0gc.collect.deletion import Deletable
from l0gc.collect.dropped_l1 import GRACE_EPOCHS, Amounts
from l0gc.collect.orphans import FactsReader, KeyFacts
from l0gc.errors import (
    CorruptObjectError,
    EpochRegressionError,
    ProtocolError,
    StoreError,
    StoreUnreachableError,
)
from l0gc.keys import PartitionId, level_one, level_one_shared, parse_level_one
from l0gc.storage.objectstore import PAGE_SIZE, ObjectStore
from l0gc.storage.ranges import KeyRange
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import ControllerState, Topic
from l0gc.streamlog.epoch_source import unknown_topic
from l0gc.streamlog.garbage_facts import JournalNames, JournalPart, read_facts
from l0gc.streamlog.journal.handle import JournalHandle
from l0gc.streamlog.journal.rows import Rows, distinct, name_bytes, name_text
from l0gc.streamlog.journal.state import JournalState

BATCH: Final = 16 * PAGE_SIZE
"""How many dropped objects are deleted before their journal records it."""
_FORGOTTEN: Final = (
    "the controller log looks restored from a backup that is older than the topic; nothing more was deleted. Restore the "
    "newer controller log, or see l0gc help operate-logs"
)


class JournalGarbage:
    """The journals as a `GarbageSource`."""

    def __init__(self, cluster: ClusterHandles) -> None:
        self._cluster = cluster
        self._states: dict[int, JournalState] = {}
        self._fences: dict[int, int] = {}
        self._broken: dict[int, str] = {}
        self._assumed = False
        self._waiting: set[int] = set()
        """The revisions with objects that were dropped too recently to be deleted."""
        self._state = ControllerState()
        self._names: dict[int, str] = {}

    @property
    def broken(self) -> list[str]:
        return [f"journal {j}: {error}" for j, error in sorted(self._broken.items())]

    @property
    def objects(self) -> int:
        return sum(s.topic(r).totals().l1_objects for s in self._states.values() for r in s.topics)

    def refresh(self, *, looked: bool = False) -> None:
        """Read everything anew, or, if the process has just `looked` at every journal, use that reading, which only shows
        what is due.
        """
        controller = self._cluster.controller
        self._state = controller.replica.state if looked else controller.snapshot()
        self._names = {t.revision: t.name for t in self._topics()}
        self._states, self._fences, self._broken = {}, {}, {}
        self._cluster.parallel.map(functools.partial(self._read, looked), range(self._state.journals))
        for journal, state in sorted(self._states.items()):
            self._check(journal, state)

    @contextmanager
    def _alone(self, journal: int) -> Iterator[JournalHandle]:
        """Mark a journal as broken if its work fails, and let the others continue unless the store is unreachable."""
        try:
            yield self._cluster.journal(journal)
        except StoreUnreachableError:
            raise
        except (CorruptObjectError, StoreError, ProtocolError) as e:
            self._broken[journal] = str(e)

    def _read(self, looked: bool, journal: int) -> None:
        with self._alone(journal) as handle:
            if handle.unread is not None:
                raise handle.unchecked_error(handle.unread)
            if not (looked and handle.checked):
                handle.catch_up(whole=False)
            self._states[journal] = _as_it_stands(handle, whole=False)

    def _check(self, journal: int, state: JournalState) -> None:
        """Refuse a journal with an epoch or a topic that the controller log should contain (hazard 10)."""
        self._cluster.journal(journal).check_not_ahead(max(state.max_applied_epoch, state.l1_fence))
        ids = ((t.revision, t.topic_id) for t in state.topics.values())
        if unknown := unknown_topic(self._state, f"journal {journal}", ids):
            raise EpochRegressionError(f"{unknown}: {_FORGOTTEN}")

    def units(self) -> list[int]:
        return sorted(self._states)

    # -- what was dropped ---------------------------------------------------------------------------------------------

    def amounts(self) -> Amounts:
        """Return the amounts: see `GarbageSource.amounts`."""
        return amounts_of(self._state, self._now().values())

    def _now(self) -> dict[int, JournalState]:
        return {j: self._cluster.journal(j).head for j in self._states}

    def dropped(self, unit: int, before_ms: int, epoch: int) -> Iterator[list[Deletable]]:
        rows = self._ripe(self._states[unit], before_ms, epoch)
        # A topic that was closed because the controller does not list it has no name: see `_purge_unnamed`.
        rows = rows[np.isin(rows["revision"], list(self._names))]
        for at in range(0, len(rows), BATCH):
            yield [self._dropped(unit, row) for row in rows[at : at + BATCH]]

    def _ripe(self, state: JournalState, before_ms: int, epoch: int, *, others: bool = False) -> Rows:
        """Return the rows that were dropped by `before_ms`, at or below `epoch`, and are not pinned; with `others`, all
        other rows.
        """
        limits = unpinned(self._state, epoch, state.dropped["revision"])
        ripe: Rows = state.dropped[state.is_dropped_before(before_ms, limits) != others]
        return ripe

    def is_due(self, before_ms: int) -> bool:
        """Return whether any object that was dropped by `before_ms` may be deleted."""
        epoch = self._state.epoch - GRACE_EPOCHS
        ripe = (self._ripe(s, before_ms, epoch) for s in self._states.values())
        return any(np.isin(rows["revision"], list(self._names)).any() for rows in ripe)

    def _dropped(self, unit: int, row: Rows) -> Deletable:
        revision, epoch, partition = int(row["revision"]), int(row["epoch"]), int(row["partition"])
        topic, name = self._names[revision], name_text(row["name"])
        if partition < 0:
            key = level_one_shared(topic, revision, unit, epoch, name)
        else:
            p = PartitionId(topic, revision, partition)
            key = level_one(p, epoch, int(row["base"]), int(row["last"]), name)
        return Deletable(key, epoch, int(row["bytes"]), int(row["dropped_ms"]))

    def purged(self, unit: int, objects: Sequence[Deletable]) -> None:
        names = [name_bytes(key.name) for o in objects if (key := parse_level_one(o.key)) is not None]
        self._cluster.journal(unit).purge(names)

    # -- orphans ------------------------------------------------------------------------------------------------------

    def fence(self, before_ms: int, dropped_before_ms: int, *, dry_run: bool) -> int:
        epoch, self._assumed = self._state.epoch_before(before_ms), dry_run

        def raise_fence(journal: int) -> None:
            with self._alone(journal) as handle:
                fence = self._states[journal].l1_fence
                if epoch > fence and not dry_run:
                    fence = handle.fence_l1(epoch)
                self._fences[journal] = max(fence, epoch)
                self._states[journal] = _as_it_stands(handle, whole=True)

        self._cluster.parallel.map(raise_fence, [j for j in self._states if j not in self._broken])
        oldest = self._state.epoch - GRACE_EPOCHS
        late = (self._ripe(s, dropped_before_ms, oldest, others=True) for s in self._states.values())
        self._waiting = {int(revision) for rows in late for revision in distinct(rows["revision"])}
        return min(self._fences.values(), default=0)

    def scan_due(self, before_ms: int) -> bool:
        """Return whether the fences are older than `before_ms`, so that no run has searched for orphans since."""
        epoch = self._state.epoch_before(before_ms)
        return any(epoch > s.l1_fence for s in self._states.values() if s.topics or len(s.closed_revisions))

    def parts(self, prefix: str, count: int) -> list[JournalPart]:
        """Return the parts: see `GarbageSource.parts`. The cuts lie between partitions, so that all parts have about as
        many listed objects.
        """
        topics = sorted(self._topics(), key=lambda t: f"{t.name}-{t.revision}/")
        named = (sum(s.topic(t.revision).totals().l1_objects for s in self._states.values()) for t in topics)
        weights = np.cumsum([1 + objects for objects in named], dtype=np.float64)
        cuts = []
        for i in range(1, count if topics else 1):
            at = weights[-1] * i / count
            n = int(np.searchsorted(weights, at, "right"))
            before = float(weights[n - 1]) if n else 0.0
            partition = int((at - before) / (float(weights[n]) - before) * topics[n].partitions)
            # '~' sorts after everything that follows a partition's number, and the key does not name a "directory" (hazard
            # 12).
            cuts.append(f"{prefix}{topics[n].name}-{topics[n].revision}/{partition:05}~")
        cuts = sorted(set(cuts))
        folders = [(t, f"{prefix}{t.name}-{t.revision}/") for t in topics]
        forgotten = sorted({int(r) for s in self._states.values() for r in s.closed_revisions} - self._names.keys())
        waiting = sorted(self._waiting.intersection(forgotten))
        return [
            JournalPart(
                start, end, prefix,
                topics=[t for t, folder in folders if f"{folder}~" > start and (end is None or folder <= end)],
                epoch=self._state.epoch, fences=dict(self._fences), forgotten=forgotten, waiting=waiting,
                assumed=self._assumed,
            )
            for start, end in zip(["", *cuts], [*cuts, None], strict=True)
        ]  # fmt: skip

    def _topics(self) -> list[Topic]:
        return [*self._state.topics.values(), *(d.topic for d in self._state.deleted)]

    def facts_reader(self, *, remote: bool) -> FactsReader:
        return read_facts if remote else self._facts_here

    def _facts_here(self, store: ObjectStore, part: KeyRange) -> KeyFacts:
        assert isinstance(part, JournalPart)
        return JournalNames(part, self._states.__getitem__).facts

    def scanned(self, fence: int, left: Collection[str] | None) -> None:
        """Have the controller forget the topics that have no objects left and cannot get new ones.

        A run whose stamp is at or above the fence has seen that the topic was deleted.
        """
        if left is not None:
            self._purge_unnamed(fence, {key.revision for k in left if (key := parse_level_one(k)) is not None})
        now = self._now()
        done = [
            d.topic.revision
            for d in self._state.deleted
            if d.deleted_epoch < fence
            and all(j in now and j not in self._broken for j in d.topic.journals)
            and all(
                now[j].closed(d.topic.revision) and not now[j].has_dropped(d.topic.revision) for j in d.topic.journals
            )
        ]
        if done:
            self._cluster.controller.forget_topics(done)

    def _purge_unnamed(self, fence: int, left: Collection[int]) -> None:
        """Purge the dropped objects of topics that were closed because the controller does not have them.

        These topics have no name, so the listing found their objects, and those below the fence are gone if their grace
        period was over. A later listing finds an object stamped at the fence or above, since a journal never forgets the
        topics that it has closed.

        Args:
            left: the revisions of topics with an object that could not be deleted.
        """
        stay = [*self._names, *self._waiting, *left]
        for journal in self._fences:
            rows = self._states[journal].dropped
            gone = rows[~np.isin(rows["revision"], stay) & (rows["epoch"] < fence)]
            if len(gone) and journal not in self._broken:
                self._cluster.journal(journal).purge([bytes(name) for name in gone["name"]])


def amounts_of(cluster: ControllerState, journals: Iterable[JournalState]) -> Amounts:
    """Return how many objects the journals list, and how many they have dropped."""
    live, dropped, oldest = np.zeros(3, np.int64), np.zeros(2, np.int64), []
    for state in journals:
        for t in state.topics.values():
            totals = t.totals()
            live += (totals.l1_objects, totals.l1_bytes, totals.dead_bytes)
        rows = state.dropped
        dropped += (len(rows), int(rows["bytes"].sum()))
        waiting = rows[rows["dropped_epoch"] <= unpinned(cluster, cluster.epoch, rows["revision"])]
        oldest += [int(waiting["dropped_ms"].min())] if len(waiting) else []
    objects, size, dead = live.tolist()
    return Amounts(objects, size, int(dropped[0]), int(dropped[1]), min(oldest, default=None), dead)


def unpinned(cluster: ControllerState, epoch: int, topics: Rows) -> Rows:
    """Return, for each topic, given by revision, `epoch` or the last epoch before its first pin, whichever is lower.

    No pin keeps an object that was dropped at or below that epoch (hazard 36). A pin that this vacuum has not seen is
    newer than the epoch of its snapshot, which is above `epoch`.
    """
    revisions = distinct(topics)
    pinned = [cluster.pinned_from(revision) for revision in revisions.tolist()]
    limits = np.array([epoch if p is None else min(epoch, p - 1) for p in pinned], np.int64)
    return limits[np.searchsorted(revisions, topics)]


def _as_it_stands(handle: JournalHandle, *, whole: bool) -> JournalState:
    """Return a copy of the current state, possibly without L1 rows if not `whole`. Without a copy, another thread could be
    applying the next entry, and be interrupted (hazard 29).

    Halfway through, an object may be neither in the lists nor among the dropped ones.
    """
    with handle.replica.lock:
        state = handle.state if whole else handle.head
        return msgspec.structs.replace(
            state, topics={revision: msgspec.structs.replace(topic) for revision, topic in state.topics.items()}
        )
