"""What an evacuation would move, and whether that is worth it: read from the journals, the newest scan, and nothing else.

How much a target releases follows from the newest scan snapshot, which has to be newer than the last sweep; a wrong one
costs a copy in vain, and no data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from l0gc.errors import CorruptObjectError, ExternalLogError, NotFoundError, PartialFailureError
from l0gc.formatting import Outcome, span
from l0gc.storage.workers import LOCAL, LocalWorkers, Workers
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.controller.state import ControllerState
from l0gc.streamlog.evacuation.choice import MAX_BYTES, OBJECT_BYTES, RATIO, Holding, Target, choose_target
from l0gc.streamlog.journal.handle import JournalHandle
from l0gc.streamlog.journal.state import JournalState
from l0gc.streamlog.level_one.plan import Window, strangers, unreconciled
from l0gc.streamlog.level_one.waiting import judged, windows_of
from l0gc.watermark.publication import refuse_if_set_back
from l0gc.watermark.scans import list_scans, read_scan


@dataclass(slots=True)
class Evacuated(Outcome):
    """What was moved out of L0 objects, each counted for each journal that needed it: so many extents, so many bytes."""

    objects: int = 0
    extents: int = 0
    bytes: int = 0


@dataclass(slots=True)
class Released(Outcome):
    """What M may pass now, in L0 objects and their bytes; with the old copies of what was moved."""

    objects: int = 0
    bytes: int = 0


@dataclass(slots=True)
class EvacuateResult(Outcome):
    """What a run did, or with `dry_run` would do.

    Attributes:
        target_epoch: what was still needed up to this epoch was moved; None if nothing is worth it.
        moved: what was copied into newer objects.
        released: what M may pass because of that, once it is computed anew.
        reason: why nothing is worth it.
        errors: what could not be moved, and why; M stays below it.
        engine: LOCAL or SPARK.
    """

    target_epoch: int | None = None
    moved: Evacuated = field(default_factory=Evacuated)
    released: Released = field(default_factory=Released)
    reason: str = ""
    errors: list[str] = field(default_factory=list)
    engine: str = LOCAL
    dry_run: bool = False
    seconds: float = 0.0

    @property
    def problem(self) -> PartialFailureError | None:
        """What went wrong, in one sentence."""
        return PartialFailureError.of("not everything could be moved", self.errors)


@dataclass(frozen=True, slots=True)
class JournalNeeds:
    """What a journal holds in L0: `below` is the lowest epoch that it may still take for one of its topics.

    `bytes` and `parts` are by epoch: how much of the objects is needed, and in how many objects and extents. `error` says
    why nothing of it can be moved.
    """

    journal: int
    below: int | None
    bytes: dict[int, int]
    parts: dict[int, tuple[int, int]]
    error: str = ""


@dataclass(frozen=True, slots=True)
class EvacuationPlan:
    """What to move: all from epoch `first` up to the target. `expected` is what a run does if nothing changes meanwhile."""

    windows: list[Window]
    epoch: int
    first: int
    objects: Mapping[int, Holding]
    target: Target
    expected: EvacuateResult


def plan_evacuation(
    cluster: Cluster,
    workers: Workers[Cluster] | None = None,
    *,
    ratio: float = RATIO,
    max_bytes: int = MAX_BYTES,
    object_bytes: int = OBJECT_BYTES,
    swept_ms: int = 0,
    looked: bool = False,
) -> EvacuationPlan:
    """What a run would move now, and what that would release.

    Args:
        ratio: see `choose_target`, and so for `max_bytes` and `object_bytes`.
        swept_ms: when the last sweep ended, by the store's clock; 0 for never.
        looked: this process has just found that no log went back, and this is to learn whether a run is due.

    Raises:
        NotFoundError: nobody has listed the bucket since the last sweep.
        ExternalLogError: the cluster's journals are another system's.
        EpochRegressionError, SetBackError: a log went back; nothing may be moved (hazards 10 and 38).
        StoreError: the store does not answer, or does not let us.
    """
    workers = workers or LocalWorkers(cluster)
    began = cluster.runtime.clock.monotonic()
    unread = {} if looked else refuse_if_set_back(cluster, keep=workers.engine == LOCAL).unread
    state = cluster.controller.snapshot()
    if state.external_log:
        raise ExternalLogError("this cluster's records are in another system's log: l0gc has nothing of it to move")
    objects = listed(cluster, state, swept_ms)
    windows = windows_of(state, None)
    needs = workers.map(_needs, judged(windows, unread))
    errors = [*unread.values(), *(n.error for n in needs if n.error)]
    expected = EvacuateResult(errors=errors, engine=workers.engine)
    target = Target(why="M waits for what is damaged")
    if not errors:
        needed = sum((Counter(n.bytes) for n in needs), Counter[int]())
        below = min([state.epoch, *(n.below for n in needs if n.below is not None)])
        limits = {"max_bytes": max_bytes, "object_bytes": object_bytes}
        target = choose_target(objects, needed, below, ratio=ratio, **limits)
    if target.epoch is not None:
        taken = [found for n in needs for e, found in n.parts.items() if e <= target.epoch]
        expected.moved = Evacuated(sum(o for o, _ in taken), sum(n for _, n in taken), target.copied)
        expected.released = Released(*target.released)
    expected.target_epoch, expected.reason = target.epoch, target.why
    expected.seconds = cluster.runtime.clock.monotonic() - began
    first = min((e for n in needs for e in n.bytes), default=0)
    return EvacuationPlan(judged(windows, unread), state.epoch, first, objects, target, expected)


def listed(cluster: Cluster, state: ControllerState, swept_ms: int) -> dict[int, Holding]:
    """What the bucket holds at each epoch, by the newest scan. Raises `NotFoundError` if there is none, or a sweep since."""
    keys = list_scans(cluster.store)
    if not keys:
        raise NotFoundError("nobody has listed the bucket yet: run l0gc compute-watermark first, without --no-scan")
    scan = read_scan(cluster.store, keys[-1], state.cluster_id)
    if swept_ms > scan.totals.taken_ms:
        age = span(swept_ms - scan.totals.taken_ms)
        raise NotFoundError(
            f"a sweep has ended {age} after the bucket was listed, so what it holds is not known: run l0gc "
            "compute-watermark first, without --no-scan"
        )
    return {r.epoch: Holding(r.objects, r.bytes) for r in scan.epochs if r.epoch is not None}


def read_state(handle: JournalHandle) -> JournalState:
    """The journal as this process has judged it a moment ago, or as it is now: what lands is decided later."""
    return handle.state if handle.judged else handle.catch_up()


def _needs(cluster: Cluster, window: Window) -> JournalNeeds:
    """What a journal needs of L0."""
    handle, sizes, parts = cluster.journal(window.journal), dict[int, int](), dict[int, tuple[int, int]]()
    try:
        with handle.replica.lock:
            state = read_state(handle)
            if wrong := strangers(state, window):
                return JournalNeeds(window.journal, None, {}, {}, wrong[0])
            for _, o in unreconciled(state, window):
                objects, extents = parts.get(o.epoch, (0, 0))
                sizes[o.epoch] = sizes.get(o.epoch, 0) + o.bytes
                parts[o.epoch] = (objects + 1, extents + len(o.extents))
            below = min((max(r, state.window.oldest) for r in window.topics if not state.closed(r)), default=None)
            return JournalNeeds(window.journal, below, sizes, parts)
    except CorruptObjectError as e:
        return JournalNeeds(window.journal, None, {}, {}, str(e))
