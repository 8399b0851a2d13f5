"""Conditions that must hold in a bucket at any time, including after a killed command, checked by l0gc's own readers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from l0gc.keys import PartitionId
from l0gc.operations import Read
from l0gc.storage.objectstore import ObjectStore
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import ControllerState
from l0gc.streamlog.journal.rows import name_text, of_partition
from l0gc.streamlog.journal.state import JournalState
from l0gc.streamlog.journal.topic import l1_file, l1_key, shared_key
from l0gc.streamlog.reader import read_topic
from l0gc.watermark.publication import read_published, watermark_of
from tests.crash.scenes import Records, Scene
from tests.support.journal import gc_epoch_of

GONE: Final = b"(deleted)"
LOST: Final = b"(given up)"


class BrokenError(AssertionError):
    """A condition that must hold does not."""


@dataclass(frozen=True)
class View:
    """A bucket's present state. In `records`, deleted records are `GONE`, and given-up ones `LOST`."""

    cluster: ClusterHandles
    state: ControllerState
    watermark: int
    partitions: dict[PartitionId, JournalState]
    records: Records
    keys: set[str]

    def l0_epochs(self, scene: Scene) -> dict[str, int]:
        """Return every L0 object with its epoch."""
        parsed = {k: scene.layout.parse(k) for k in self.keys}
        return {k: p.epoch for k, p in parsed.items() if p is not None}


def look(cluster: ClusterHandles) -> View:
    """Read everything. Raises what l0gc's readers raise, `CorruptObjectError` for a loss."""
    store: ObjectStore = cluster.store
    state = cluster.controller.snapshot()
    published, _ = read_published(store, state.cluster_id)
    partitions: dict[PartitionId, JournalState] = {}
    records: Records = {}
    for topic in state.topics.values():
        starts = [
            cluster.journal(topic.journal_of(p)).catch_up().topic(topic.revision).view(p).log_start_offset
            for p in range(topic.partitions)
        ]
        values: list[list[bytes]] = [[GONE] * start for start in starts]
        holes: dict[tuple[int, int], int] = {}
        for p in range(topic.partitions):
            for hole in cluster.journal(topic.journal_of(p)).state.topic(topic.revision).files(p):
                if hole.is_hole:
                    holes[p, hole.base_offset] = hole.last_offset + 1
        for r in read_topic(cluster, topic, Read(skip_holes=True)):
            there, end = values[r.partition], holes.get((r.partition, len(values[r.partition])), 0)
            there += [LOST] * (end - len(there))
            if r.offset != len(values[r.partition]):
                raise BrokenError(f"{topic.name}/{r.partition} has offset {r.offset} behind {len(values[r.partition])}")
            values[r.partition].append(r.value)
        records[topic.name] = values
        for p, there in enumerate(values):
            journal = partitions[topic.id(p)] = cluster.journal(topic.journal_of(p)).catch_up()
            if journal.topic(topic.revision).view(p).next_offset != len(there):
                raise BrokenError(f"{topic.name}/{p} has {len(there)} records, and its journal says another number")
    keys = {k for page in store.scan("") for k in page.keys}
    return View(cluster, state, watermark_of(published), partitions, records, keys)


def check(
    view: View,
    scene: Scene,
    *,
    watermark_before: int,
    coming: Records,
    complete: bool,
    may_go: frozenset[str] = frozenset(),
    hole: tuple[str, int, int, int] | None = None,
) -> None:
    """Check a bucket; raises `BrokenError`.

    Args:
        watermark_before: the M that was published when the command began.
        coming: the records that the command uploads, of which a part may have landed.
        complete: whether all of them must be there.
        may_go: the topics whose records the command deletes, the oldest first.
        hole: the topic, partition, first and last offset of what the command gives up: all of it, or nothing yet.
    """
    if not watermark_before <= view.watermark <= view.state.epoch:
        raise BrokenError(f"M is {view.watermark}, was {watermark_before}, and the epoch is {view.state.epoch}")
    for p, journal in view.partitions.items():
        gc_epoch = gc_epoch_of(journal, p.revision, p.partition)
        if gc_epoch < view.watermark:
            raise BrokenError(f"{p} may still need epoch {gc_epoch + 1}, and M is {view.watermark}")
        for e in journal.topic(p.revision).extents(p.partition):
            if e.key not in view.keys:
                raise BrokenError(f"{p} needs {e.key}, which is gone")
            if e.epoch <= view.watermark:
                raise BrokenError(f"{p} needs {e.key}, which M = {view.watermark} lets go")
        start = journal.topic(p.revision).view(p.partition).log_start_offset
        last = journal.topic(p.revision).view(p.partition).last_reconciled_offset
        files = _listed(view, p)
        at = min(start, files[0][1]) if files else last + 1
        for key, base, end in files:
            if end < start:
                raise BrokenError(f"{p} has {key} in L1, which lies below its log start offset {start}")
            if key not in view.keys or base != at:
                raise BrokenError(f"{p} has {key} in L1, which is gone or does not begin at {at}")
            at = end + 1
        if at != last + 1:
            raise BrokenError(f"{p} is reconciled up to {last}, and L1 ends before {at}")
    for topic, partitions in view.records.items():
        for i, got in enumerate(partitions):
            sure = scene.records[topic][i] if topic in scene.records else []
            rest = coming[topic][i] if topic in coming else []
            want = sure + rest if complete else sure + rest[: max(0, len(got) - len(sure))]
            gone = got.count(GONE) if topic in may_go else 0
            if hole is not None and hole[:2] == (topic, i) and (complete or LOST in got):
                want[hole[2] : hole[3] + 1] = [LOST] * (hole[3] + 1 - hole[2])
            if got != [GONE] * gone + want[gone:]:
                raise BrokenError(f"{topic}/{i} has {got}, not {want}")


def _listed(view: View, p: PartitionId) -> list[tuple[str, int, int]]:
    """Return the L1 objects of a partition in order: the key of its own or a shared object, its first and last offset
    there.
    """
    topic, journal = view.partitions[p].topic(p.revision), view.state.topic(p.topic).journal_of(p.partition)
    shared = {name_text(o.name): shared_key(p.topic, p.revision, journal, o) for o in topic.shared}
    files = map(l1_file, of_partition(topic.all_rows(), p.partition))
    return [(shared.get(f.name) or l1_key(p, f), f.base_offset, f.last_offset) for f in files]
