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
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from l0gc.errors import CorruptObjectError, ExternalLogError, NotFoundError, PartialFailureError, ProtocolError
from l0gc.formatting import Outcome, size, span
from l0gc.storage.workers import LOCAL, LocalWorkers, Stage, Workers
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.controller.state import ControllerState
from l0gc.streamlog.evacuation.choice import MAX_BYTES, OBJECT_BYTES, RATIO, Holding, Target, choose_target
from l0gc.streamlog.evacuation.copy import Copied, Source, copy_all
from l0gc.streamlog.journal.handle import JournalHandle
from l0gc.streamlog.journal.moves import places
from l0gc.streamlog.journal.state import JournalState
from l0gc.streamlog.level_one.plan import Window, strangers, unreconciled
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
    unread = refuse_if_set_back(cluster, keep=workers.engine == LOCAL).unread
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
        pinned = (p.watermark + 1 for p in state.pins.values() if not p.level_one)
        below = min([state.epoch, *pinned, *(n.below for n in needs if n.below is not None)])
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
        raise NotFoundError("nobody has listed the bucket yet: run l0gc compute-watermark first, without --no-scan")
    scan = read_scan(cluster.store, keys[-1], state.cluster_id)
    if swept_ms > scan.totals.taken_ms:
        age = span(swept_ms - scan.totals.taken_ms)
        raise NotFoundError(
            f"a sweep has ended {age} after the bucket was listed, so what it holds is not known: run l0gc "
            "compute-watermark first, without --no-scan"
        )
    return {r.epoch: Holding(r.objects, r.bytes) for r in scan.epochs if r.epoch is not None}


def _read(handle: JournalHandle) -> JournalState:
    """The journal as this process has judged it a moment ago, or as it is now: what lands is decided later."""
    return handle.state if handle.judged else handle.catch_up()


def _needs(cluster: Cluster, window: Window) -> JournalNeeds:
    """What a journal needs of L0."""
    handle, sizes, parts = cluster.journal(window.journal), dict[int, int](), dict[int, tuple[int, int]]()
    try:
        with handle.replica.lock:
            state = _read(handle)
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
                    for revision, o in unreconciled(state, window)
                    if o.epoch <= self.target
                ]
            yield from ((zlib.crc32(s.key.encode()) % self.copiers, s) for s in found)

    def copy(self, cluster: Cluster, sources: Iterable[Source]) -> Iterator[tuple[int, Copied]]:
        """The copies, durable, and which journal is to name them."""
        number = {w.journal: i for i, w in enumerate(self.windows)}

        def still_there(s: Source) -> bool:
            handle = cluster.journal(s.journal)
            with handle.replica.lock:
                return (s.key, s.start) in places(handle.catch_up().topic(s.revision))

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
