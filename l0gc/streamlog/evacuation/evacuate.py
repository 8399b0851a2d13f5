"""An evacuation: what lagging partitions still need moves into new objects, so that M can pass the old ones.

M is a minimum over all partitions, so one that nobody reconciles keeps the dead objects of all others. A run reads the
journals, chooses a target epoch (`choice.py`), copies what is needed up to there (`copy.py`), and has each journal name the
copies (`journal/moves.py`), which decides at the offset where that lands what of it still counts.

Nothing is deleted here. A copy that no journal names, because a run was killed or another one was first, is an L0 object
like any other: M and a sweep end it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from l0gc.errors import CorruptObjectError, ProtocolError
from l0gc.formatting import size
from l0gc.storage.workers import Stage, Workers
from l0gc.streamlog.cluster import Handles
from l0gc.streamlog.evacuation.copy import Copied, Source, copy_all
from l0gc.streamlog.evacuation.needs import needed
from l0gc.streamlog.evacuation.plan import Evacuated, EvacuateResult, EvacuationPlan, Released, read_state
from l0gc.streamlog.journal.moves import objects_by_place
from l0gc.streamlog.journal.state import JournalState
from l0gc.streamlog.level_one.plan import Window

_COPIER_BYTES: Final = 256 << 20
"""About how much a worker copies; less is not worth another task."""


def run_evacuation(cluster: Handles, plan: EvacuationPlan, workers: Workers[Handles]) -> EvacuateResult:
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

    def hand_out(self, cluster: Handles, numbers: Iterable[int]) -> Iterator[tuple[int, Source]]:
        """What is needed up to the target, and who copies it: all of an object is one copier's."""
        for number in numbers:
            window = self.windows[number]
            with cluster.journal(window.journal).replica.lock:
                state = read_state(cluster.journal(window.journal))
                found = [
                    Source.of(window.journal, revision, window.topics[revision].topic_id, o)
                    for revision, o in needed(state, window)
                    if o.epoch <= self.target
                ]
            yield from ((zlib.crc32(s.key.encode()) % self.copiers, s) for s in found)

    def copy(self, cluster: Handles, sources: Iterable[Source]) -> Iterator[tuple[int, Copied]]:
        """The copies, durable, and which journal is to name them."""
        number = {w.journal: i for i, w in enumerate(self.windows)}

        def still_there(s: Source) -> bool:
            handle = cluster.journal(s.journal)
            with handle.replica.lock:
                return (s.key, s.start) in objects_by_place(handle.catch_up().topic(s.revision))

        for copied in copy_all(cluster, sources, self.epoch, still_there):
            yield number[copied.journal], copied

    def land(self, cluster: Handles, copies: Iterable[Copied]) -> Iterator[MoveOutcome]:
        """What became of it, journal by journal."""
        of_journal: dict[int, list[Copied]] = {}
        for copied in copies:
            of_journal.setdefault(copied.journal, []).append(copied)
        windows = {w.journal: w for w in self.windows}
        for journal, some in sorted(of_journal.items()):
            yield self._land(cluster, windows[journal], some)

    def _land(self, cluster: Handles, window: Window, copies: Sequence[Copied]) -> MoveOutcome:
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
