"""What an evacuation would move, and whether that is worth it: read from the journals, the newest scan, and nothing else.

How much a target releases follows from the newest scan snapshot, which has to be newer than the last sweep; a wrong one
costs a copy in vain, and no data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from l0gc.errors import CorruptObjectError, NotFoundError, PartialFailureError, SafetyError
from l0gc.formatting import Outcome
from l0gc.storage.workers import LOCAL, LocalWorkers, Workers
from l0gc.streamlog.cluster import Handles
from l0gc.streamlog.controller.state import ControllerState
from l0gc.streamlog.evacuation.choice import MAX_BYTES, OBJECT_BYTES, RATIO, Holding, Target
from l0gc.streamlog.evacuation.needs import (
    NEVER_LISTED,
    JournalNeeds,
    holdings,
    needs_of,
    outdated,
    unpinned_below,
    weigh,
)
from l0gc.streamlog.journal.handle import JournalHandle
from l0gc.streamlog.journal.state import JournalState
from l0gc.streamlog.level_one.plan import Window
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
class EvacuationPlan:
    """What to move: all from epoch `first` up to the target. `expected` is what a run does if nothing changes meanwhile."""

    windows: list[Window]
    epoch: int
    first: int
    objects: Mapping[int, Holding]
    target: Target
    expected: EvacuateResult


def plan_evacuation(
    cluster: Handles,
    workers: Workers[Handles] | None = None,
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
        SafetyError: the cluster's journals are another system's.
        EpochRegressionError, SetBackError: a log went back; nothing may be moved (hazards 10 and 38).
        StoreError: the store does not answer, or does not let us.
    """
    workers = workers or LocalWorkers(cluster)
    began = cluster.runtime.clock.monotonic()
    state = cluster.controller.snapshot()
    if state.external_log:
        raise SafetyError("this cluster's records are in another system's log: l0gc has nothing of it to move")
    windows = windows_of(state, None)
    # Before the journals are judged, so that each that is changed is among them (hazard 38).
    unread: dict[str, str] = {}
    if not looked:
        unread = refuse_if_set_back(cluster, {w.journal for w in windows}, keep=workers.engine == LOCAL).unread
    objects = listed(cluster, state, swept_ms)
    needs = workers.map(_needs, judged(windows, unread))
    errors = [*unread.values(), *(n.error for n in needs if n.error)]
    expected = EvacuateResult(errors=errors, engine=workers.engine)
    target = Target(why="M waits for what is damaged")
    if not errors:
        limits = {"max_bytes": max_bytes, "object_bytes": object_bytes}
        target = weigh(needs, unpinned_below(state), objects, ratio=ratio, **limits)
    if target.epoch is not None:
        taken = [found for n in needs for e, found in n.parts.items() if e <= target.epoch]
        expected.moved = Evacuated(sum(o for o, _ in taken), sum(n for _, n in taken), target.copied)
        expected.released = Released(*target.released)
    expected.target_epoch, expected.reason = target.epoch, target.why
    expected.seconds = cluster.runtime.clock.monotonic() - began
    first = min((e for n in needs for e in n.bytes), default=0)
    return EvacuationPlan(judged(windows, unread), state.epoch, first, objects, target, expected)


def listed(cluster: Handles, state: ControllerState, swept_ms: int) -> dict[int, Holding]:
    """What the bucket holds at each epoch, by the newest scan. Raises `NotFoundError` if there is none, or a sweep since."""
    keys = list_scans(cluster.store)
    if not keys:
        raise NotFoundError(NEVER_LISTED)
    scan = read_scan(cluster.store, keys[-1], state.cluster_id)
    if why := outdated(scan, swept_ms):
        raise NotFoundError(why)
    return holdings(scan)


def read_state(handle: JournalHandle) -> JournalState:
    """The journal as this process has judged it a moment ago, or as it is now: what lands is decided later."""
    return handle.state if handle.judged else handle.catch_up()


def _needs(cluster: Handles, window: Window) -> JournalNeeds:
    """What a journal needs of L0."""
    handle = cluster.journal(window.journal)
    try:
        with handle.replica.lock:
            return needs_of(read_state(handle), window)
    except CorruptObjectError as e:
        return JournalNeeds(window.journal, None, {}, {}, str(e))
