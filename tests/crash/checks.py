"""What must hold in a bucket at any moment, and so also behind a killed command: looked up by l0gc's own readers."""

from __future__ import annotations

from dataclasses import dataclass

from l0gc.keys import PartitionId
from l0gc.storage.objectstore import ObjectStore
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.controller.state import ControllerState
from l0gc.streamlog.journal.state import PartitionState
from l0gc.streamlog.reader import read_partition
from l0gc.watermark.publication import read_published, watermark_of
from tests.crash.scenes import Records, Scene


class BrokenError(AssertionError):
    """Something that must hold does not."""


@dataclass(frozen=True)
class View:
    """A bucket as it is now."""

    cluster: Cluster
    state: ControllerState
    watermark: int
    partitions: dict[PartitionId, PartitionState]
    records: Records
    keys: set[str]

    def l0_epochs(self, scene: Scene) -> dict[str, int]:
        """Every L0 object, with its epoch."""
        parsed = {k: scene.layout.parse(k) for k in self.keys}
        return {k: p.epoch for k, p in parsed.items() if p is not None}


def look(cluster: Cluster) -> View:
    """Read everything. Raises what l0gc's readers raise, `CorruptObjectError` for a loss."""
    store: ObjectStore = cluster.store
    state = cluster.controller.snapshot()
    published, _ = read_published(store, state.cluster_id)
    ids = state.partitions()
    states = dict(zip(ids, cluster.parallel.map(lambda p: cluster.partition(p).catch_up(), ids), strict=True))
    records: Records = {}
    for p in ids:
        read = list(read_partition(store, cluster.partition(p)))
        if [r.offset for r in read] != list(range(states[p].next_offset)):
            raise BrokenError(f"{p} has the offsets {[r.offset for r in read]}, not 0 to {states[p].next_offset - 1}")
        records.setdefault(p.topic, []).append([r.value for r in read])
    keys = {k for page in store.scan("") for k in page.keys}
    return View(cluster, state, watermark_of(published), states, records, keys)


def check(view: View, scene: Scene, *, watermark_before: int, coming: Records, complete: bool) -> None:
    """Raises `BrokenError`.

    Args:
        watermark_before: the M that was published when the command began.
        coming: the records that the command uploads; they may be there as far as it got.
        complete: whether all of them must be there.
    """
    if not watermark_before <= view.watermark <= view.state.epoch:
        raise BrokenError(f"M is {view.watermark}, was {watermark_before}, and the epoch is {view.state.epoch}")
    for p, state in view.partitions.items():
        if state.gc_epoch < view.watermark:
            raise BrokenError(f"{p} may still need epoch {state.gc_epoch + 1}, and M is {view.watermark}")
        for u in state.placeholders:
            if u.placeholder.key not in view.keys:
                raise BrokenError(f"{p} needs {u.placeholder.key}, which is gone")
            if u.epoch <= view.watermark:
                raise BrokenError(f"{p} needs {u.placeholder.key}, which M = {view.watermark} lets go")
        at = 0
        for file in state.l1:
            if file.key not in view.keys or file.base_offset != at:
                raise BrokenError(f"{p} has {file.key} in L1, which is gone or does not begin at {at}")
            at = file.last_offset + 1
        if at != state.last_reconciled_offset + 1:
            raise BrokenError(f"{p} is reconciled up to {state.last_reconciled_offset}, and L1 ends before {at}")
    for topic, partitions in view.records.items():
        for i, got in enumerate(partitions):
            sure = scene.records[topic][i] if topic in scene.records else []
            rest = coming[topic][i] if topic in coming else []
            want = sure + rest if complete else sure + rest[: max(0, len(got) - len(sure))]
            if got != want:
                raise BrokenError(f"{topic}/{i} has {got}, not {want}")
