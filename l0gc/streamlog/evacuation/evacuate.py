"""An evacuation: what lagging partitions still need moves into new objects, so that M can pass the old ones.

M is a minimum over all partitions, so one that nobody reconciles keeps the dead objects of all others. A run reads the
journals, chooses a target epoch (`choice.py`), copies what is needed up to there (`copy.py`), and has each journal name the
copies (`journal/moves.py`), which decides at the offset where that lands what of it still counts.

Nothing is deleted here. A copy that no journal names, because a run was killed or another one was first, is an L0 object
like any other: M and a sweep end it. How much a target releases follows from the newest scan snapshot, which has to be
newer than the last sweep; a wrong one costs a copy in vain, and no data.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from l0gc.errors import CorruptObjectError, ExternalLogError, NotFoundError, PartialFailureError, ProtocolError
from l0gc.formatting import Outcome, size
from l0gc.storage.workers import LOCAL, LocalWorkers, Stage, Workers
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.controller.state import ControllerState
from l0gc.streamlog.evacuation.choice import MAX_BYTES, OBJECT_BYTES, RATIO, Holding, Target
from l0gc.streamlog.evacuation.copy import Copied, Source, copy_all
from l0gc.streamlog.evacuation.needs import NEVER_LISTED, JournalNeeds, holdings, needed, needs_of, outdated, weigh
from l0gc.streamlog.journal.handle import JournalHandle
from l0gc.streamlog.journal.moves import objects_by_place
from l0gc.streamlog.journal.state import JournalState
from l0gc.streamlog.level_one.plan import Window
from l0gc.streamlog.level_one.reconcile import judged, windows_of
from l0gc.watermark.publication import refuse_if_set_back
from l0gc.watermark.scans import list_scans, read_scan

_COPIER_BYTES: Final = 256 << 20
"""About how much a worker copies; less is not worth another task."""


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
    cluster: Cluster,
    workers: Workers[Cluster] | None = None,
    *,
    ratio: float = RATIO,
    max_bytes: int = MAX_BYTES,
    object_bytes: int = OBJECT_BYTES,
    swept_ms: int = 0,
) -> EvacuationPlan:
    """What a run would move now, and what that would release.

    Args:
        ratio: see `choose_target`, and so for `max_bytes` and `object_bytes`.
        swept_ms: when the last sweep ended, by the store's clock; 0 for never.

    Raises:
        NotFoundError: nobody has listed the bucket since the last sweep.
        ExternalLogError: the cluster's journals are another system's.
        EpochRegressionError, SetBackError: a log went back; nothing may be moved (hazards 10 and 38).
        StoreError: the store does not answer, or does not let us.
    """
    workers = workers or LocalWorkers(cluster)
    began = cluster.runtime.clock.monotonic()
    state = cluster.controller.snapshot()
    if state.external_log:
        raise ExternalLogError("this cluster's records are in another system's log: l0gc has nothing of it to move")
    windows = windows_of(state, None)
    # Before the journals are judged, so that each that is changed is among them (hazard 38).
    unread = refuse_if_set_back(cluster, {w.journal for w in windows}, keep=workers.engine == LOCAL).unread
    objects = listed(cluster, state, swept_ms)
    needs = workers.map(_needs, judged(windows, unread))
    errors = [*unread.values(), *(n.error for n in needs if n.error)]
    expected = EvacuateResult(errors=errors, engine=workers.engine)
    target = Target(why="M waits for what is damaged")
    if not errors:
        target = weigh(needs, state.epoch, objects, ratio=ratio, max_bytes=max_bytes, object_bytes=object_bytes)
    if target.epoch is not None:
        taken = [found for n in needs for e, found in n.parts.items() if e <= target.epoch]
        expected.moved = Evacuated(sum(o for o, _ in taken), sum(n for _, n in taken), target.copied)
        expected.released = Released(*target.released)
    expected.target_epoch, expected.reason = target.epoch, target.why
    expected.seconds = cluster.runtime.clock.monotonic() - began
    first = min((e for n in needs for e in n.bytes), default=0)
    return EvacuationPlan(judged(windows, unread), state.epoch, first, objects, target, expected)


def run_evacuation(cluster: Cluster, plan: EvacuationPlan, workers: Workers[Cluster]) -> EvacuateResult:
    """Move what was planned, and is still there. Raises `StoreError`; what was moved before stays moved."""
    began, target = cluster.runtime.clock.monotonic(), plan.target.epoch
    result = EvacuateResult(target, reason=plan.expected.reason, engine=workers.engine)
    result.errors += plan.expected.errors
    if target is not None:
        workers.say(f"moving {size(plan.target.copied)}", total=plan.target.copied)
        move = Move(
            plan.windows, target, plan.epoch, max(1, min(workers.cores, -(-plan.target.copied // _COPIER_BYTES)))
        )
        reached = target
        for landed in workers.flow(range(len(plan.windows)), *move.stages(workers.slots)):
            result.moved.add(landed.moved, "objects", "extents", "bytes")
            result.errors += landed.errors
            reached = min(reached, landed.reached)
        passed = [held for e, held in plan.objects.items() if plan.first <= e <= reached]
        result.released = Released(sum(h.objects for h in passed), sum(h.bytes for h in passed))
    result.seconds = plan.expected.seconds + cluster.runtime.clock.monotonic() - began
    return result


def listed(cluster: Cluster, state: ControllerState, swept_ms: int) -> dict[int, Holding]:
    """What the bucket holds at each epoch, by the newest scan. Raises `NotFoundError` if there is none, or a sweep since."""
    keys = list_scans(cluster.store)
    if not keys:
        raise NotFoundError(NEVER_LISTED)
    scan = read_scan(cluster.store, keys[-1], state.cluster_id)
    if why := outdated(scan, swept_ms):
        raise NotFoundError(why)
    return holdings(scan)


def _read(handle: JournalHandle) -> JournalState:
    """The journal as this process has judged it a moment ago, or as it is now: what lands is decided later."""
    return handle.state if handle.judged else handle.catch_up()


def _needs(cluster: Cluster, window: Window) -> JournalNeeds:
    """What a journal needs of L0."""
    handle = cluster.journal(window.journal)
    try:
        with handle.replica.lock:
            return needs_of(_read(handle), window)
    except CorruptObjectError as e:
        return JournalNeeds(window.journal, None, {}, {}, str(e))


# -- what workers do ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MoveOutcome:
    """What became of an evacuation in one journal, of which M may pass all up to `reached` now."""

    moved: Evacuated
    reached: int
    errors: list[str]


@dataclass(frozen=True)
class Move:
    """What the workers do, in three stages: hand out what is to be copied, copy it, have the journals name the copies."""

    windows: Sequence[Window]
    target: int
    epoch: int
    copiers: int

    def stages(self, slots: int) -> list[Stage]:
        journals = max(1, min(len(self.windows), slots))
        return [Stage(journals, self.hand_out), Stage(self.copiers, self.copy), Stage(journals, self.land)]

    def hand_out(self, cluster: Cluster, numbers: Iterable[int]) -> Iterator[tuple[int, Source]]:
        """What is needed up to the target, and who copies it: all of an object is one copier's."""
        for number in numbers:
            window = self.windows[number]
            with cluster.journal(window.journal).replica.lock:
                state = _read(cluster.journal(window.journal))
                found = [
                    Source.of(window.journal, revision, window.topics[revision].topic_id, o)
                    for revision, o in needed(state, window)
                    if o.epoch <= self.target
                ]
            yield from ((zlib.crc32(s.key.encode()) % self.copiers, s) for s in found)

    def copy(self, cluster: Cluster, sources: Iterable[Source]) -> Iterator[tuple[int, Copied]]:
        """The copies, durable, and which journal is to name them."""
        number = {w.journal: i for i, w in enumerate(self.windows)}

        def still_there(s: Source) -> bool:
            handle = cluster.journal(s.journal)
            with handle.replica.lock:
                return (s.key, s.start) in objects_by_place(handle.catch_up().topic(s.revision))

        for copied in copy_all(cluster, sources, self.epoch, still_there):
            yield number[copied.journal], copied

    def land(self, cluster: Cluster, copies: Iterable[Copied]) -> Iterator[MoveOutcome]:
        """What became of it, journal by journal."""
        of_journal: dict[int, list[Copied]] = {}
        for copied in copies:
            of_journal.setdefault(copied.journal, []).append(copied)
        windows = {w.journal: w for w in self.windows}
        for journal, some in sorted(of_journal.items()):
            yield self._land(cluster, windows[journal], some)

    def _land(self, cluster: Cluster, window: Window, copies: Sequence[Copied]) -> MoveOutcome:
        handle, moved = cluster.journal(window.journal), Evacuated()
        errors = list(dict.fromkeys(c.error for c in copies if c.error))
        try:
            extents = handle.move([c.part for c in copies if c.part is not None])
            for c in copies:
                n = 0 if c.part is None else extents[c.part.key, c.part.start]
                moved.add(Evacuated(1, n, c.bytes) if n else Evacuated(), "objects", "extents", "bytes")
            with handle.replica.lock:
                reached = _lowest(handle.state, window) - 1
        except (ProtocolError, CorruptObjectError) as e:
            return MoveOutcome(moved, -1, [*errors, f"journal {window.journal}: {e}"])
        return MoveOutcome(moved, reached, errors)


def _lowest(state: JournalState, window: Window) -> int:
    """The lowest epoch that a partition of the journal may still need."""
    bounds: list[Any] = [
        state.bounds(revision, run.first, run.count).min()
        for revision, topic in window.topics.items()
        if not state.closed(revision)
        for run in topic.runs()
        if run.journal == window.journal
    ]
    return int(min(bounds, default=state.previous_applied_epoch))
