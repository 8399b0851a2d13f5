"""Drain shared L1 objects: each partition's rows in them become separate L1 objects.

The flow is that of a reconcile (`reconcile.py`), one layer up: the shared objects are read, oldest first, each block once
for all partitions, and their records are written and committed.

Why it is safe: a block is checked against the journal's checksum. Each new object is read back and compared with its
sources, column by column, before it is uploaded, and the commit comes after the uploads. Its entry lands only for
partitions whose rows of shared objects still hold exactly the same records (hazard 24), and nothing is deleted here. A
shared object is dropped with its last row, and stays in the bucket for readers and for repeated commits until vacuum
deletes it (hazard 26).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar, Final

import msgspec

from l0gc.errors import CorruptObjectError
from l0gc.formatting import Outcome
from l0gc.storage.workers import LocalWorkers, Workers
from l0gc.streamlog.cluster import ClusterHandles, committing
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.journal.entries import DRAIN
from l0gc.streamlog.journal.rows import Rows, distinct, in_order, indices_in
from l0gc.streamlog.journal.topic import UnreconciledObject
from l0gc.streamlog.level_one.edit import Editor
from l0gc.streamlog.level_one.merge_plan import Drain, drains_of
from l0gc.streamlog.level_one.plan import Fault, ObjectRead, Round, Window, task_counts
from l0gc.streamlog.level_one.read import StillNeeded
from l0gc.streamlog.level_one.reconcile import Files, Lift, gathered, named_partitions

_ROUND_BYTES: Final = 1 << 30
"""About how many bytes a round drains before it commits, as in a merge."""


class DrainResult(msgspec.Struct, Outcome):
    """The result of a drain; its fields are those of a merge's result."""

    objects_before: int = 0
    objects_after: int = 0
    records: int = 0
    bytes: int = 0
    bytes_read: int = 0
    partitions: int = 0
    drained: int = 0
    lost: int = 0
    errors: list[str] = []


class DrainWindow(Window, frozen=True):
    """The topics of a journal, each with the piece that a round drains, by revision."""

    drains: Mapping[int, Drain] = {}


def drain(
    cluster: ClusterHandles, due: Mapping[int, Sequence[Drain]], workers: Workers[ClusterHandles]
) -> Iterator[DrainResult]:
    """Drain pieces of topics, given by journal, and yield the results of each round, journal by journal. Raises
    `StoreError`; finished rounds stay committed.
    """
    of_topic = [(j, r, list(drains)) for j, of in due.items() for r, drains in groupby(of, key=lambda d: d.revision)]
    while of_topic:
        state = cluster.controller.snapshot()
        live = {t.revision: t for t in state.topics.values()}
        takes: dict[int, dict[int, Drain]] = {}
        size = 0
        for journal, revision, pieces in of_topic:
            if revision not in live:
                pieces.clear()
            elif size < _ROUND_BYTES:
                takes.setdefault(journal, {})[revision] = pieces.pop(0)
                size += takes[journal][revision].bytes
        of_topic = [one for one in of_topic if one[2]]
        windows, before = [], 0
        for journal, drains in takes.items():
            windows.append(DrainWindow(journal, {r: live[r] for r in drains}, begins=before, drains=drains))
            before += sum(d.bytes for d in drains.values())
        if windows:
            objects, partitions = (sum(getattr(d, n) for w in windows for d in w.drains.values()) for n in _SIZES)
            r = Round(state.epoch, windows, before, *task_counts(before, objects, workers.cores, partitions))
            with committing(cluster, workers) as begin:
                yield from workers.flow(range(len(windows)), *DrainLift(r, begin).stages(workers.slots))


def drain_topic(cluster: ClusterHandles, topic: Topic) -> list[str]:
    """Drain all shared objects of a topic that gets a table; return the errors. Raises `StoreError`."""
    due: dict[int, list[Drain]] = {}
    for journal in topic.journals:
        for state in cluster.journal(journal).topics([topic]):
            due[journal] = list(drains_of(state, 0, has_table=True))
    return [e for done in drain(cluster, due, LocalWorkers(cluster)) for e in done.errors]


_SIZES: Final = ("objects", "partitions")


@dataclass(frozen=True, slots=True)
class DrainLift(Lift):
    """The work of a round of drains; see `Lift`."""

    drains: ClassVar[bool] = True

    def hand_out(self, cluster: ClusterHandles, takes: Iterable[int]) -> Iterator[tuple[int, ObjectRead]]:
        for number in takes:
            take, before = self.round.takes[number], 0
            for revision, o in _objects(cluster, take):
                yield self.round.reader_of(take, before), ObjectRead(take.journal, revision, o)
                before += o.bytes

    def still_needed(self, cluster: ClusterHandles) -> StillNeeded:
        """Reduce an unreadable shared object to the rows that its journal still lists, since another drain may have been
        first.
        """
        takes = {take.journal: take for take in self.round.takes}

        def ask(read: ObjectRead) -> ObjectRead | None:
            extents = read.object.extents
            try:
                for _, o in _objects(cluster, takes[read.journal]):
                    if o.key == read.object.key:
                        left = extents[indices_in(o.extents["partition"], extents["partition"])[1]]
                        return read._replace(object=msgspec.structs.replace(o, extents=left)) if len(left) else None
            except CorruptObjectError:
                return read
            return None

        return ask

    def commit(self, cluster: ClusterHandles, parts: Iterable[Files | Fault]) -> Iterator[Outcome]:
        written = gathered(parts)
        for take in self.round.takes:
            files = {revision: rows for (of, revision), rows in written.files.items() if of == take.journal}
            faults = [f for f in written.faults if f.journal == take.journal]
            if files or faults:
                yield _Commit(cluster, take, self.round.epoch).run(files, faults)


def _objects(cluster: ClusterHandles, take: Window) -> Iterator[tuple[int, UnreconciledObject]]:
    """Yield the shared objects of a window, oldest first, with the extents that the round drains, as (revision, object)."""
    assert isinstance(take, DrainWindow)
    for state in cluster.journal(take.journal).topics(take.topics.values()):
        d = take.drains[state.revision]
        for o in state.shared_objects(take.topics[state.revision].name, take.journal):
            partition = o.extents["partition"]
            extents = o.extents[(partition >= d.first) & (partition < d.end)]
            if len(extents):
                yield state.revision, msgspec.structs.replace(o, extents=extents)


class _Commit(Editor):
    """Commits a round's drained records in one journal."""

    def __init__(self, cluster: ClusterHandles, take: Window, epoch: int) -> None:
        self._epoch, self._result = epoch, DrainResult()
        super().__init__(cluster.journal(take.journal), take.topics, self._result.errors)

    def run(self, files: Mapping[int, Rows], faults: Sequence[Fault]) -> DrainResult:
        with self.recording_errors():
            ordered = {revision: in_order(rows) for revision, rows in files.items()}
            landed = self.land(DRAIN, self._epoch, [(r, {"added": rows}) for r, rows in ordered.items()])
            result = self._result
            result.lost += len(landed.refused)
            result.objects_before += len(landed.dropped)
            result.bytes_read += int(landed.dropped["bytes"].sum())
            for revision, every in ordered.items():
                rows = every[landed.has(revision, every["partition"])]
                records = int((rows["last"] + 1 - rows["base"]).sum())
                result.objects_after += len(rows)
                result.partitions += len(distinct(rows["partition"]))
                result.records += records
                result.drained += records
                result.bytes += int(rows["bytes"].sum())
        of_cause: dict[str, list[str]] = {}
        for f in faults:
            name = self.topics[f.revision].name
            of_cause.setdefault(f.message, []).extend(f"{name}/{p}" for p in f.partitions.tolist())
        self.errors += [f"{why}; it holds {named_partitions(names)}" for why, names in sorted(of_cause.items())]
        return self._result
