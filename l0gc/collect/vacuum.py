"""A vacuum: all garbage but L0, one kind after the other, each by the rule of its own module.

What has been dropped goes first, since no listing is needed for it; then the orphans, after the fences; then old records.
A dry run goes the same way, with the fence that the run would append, and deletes nothing: what it counts is what the run
that follows deletes. The pause, the run record, the pace and the limits are those of a sweep, by the same code.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from l0gc.collect.dropped_l1 import DroppedRemoval
from l0gc.collect.garbage import (
    DATA_KINDS,
    KINDS,
    RUN_RECORDS,
    SCAN_SNAPSHOTS,
    Amounts,
    GarbageSource,
    ListingPart,
    LookAt,
)
from l0gc.collect.old_records import KEEP_RUNS, old_run_records, old_scan_snapshots
from l0gc.collect.orphans import OrphanCounts, OrphanScan
from l0gc.collect.pacing import Pacer
from l0gc.collect.pause import refusal
from l0gc.collect.plan import Removal, plan_vacuum
from l0gc.collect.record import VACUUM, Removed
from l0gc.collect.record_places import sink_of
from l0gc.collect.remover import Budget, Remover, Tally
from l0gc.collect.run_end import ending
from l0gc.collect.scan import Deletable
from l0gc.errors import EpochRegressionError, L0gcError, PartialFailureError
from l0gc.formatting import count
from l0gc.storage.objectstore import PAGE_SIZE
from l0gc.storage.parallel import InlineExecutor, Parallel
from l0gc.watermark.source import ClusterHandle

SCANNERS: Final = 8


@dataclass
class VacuumResult:
    """What a vacuum did, or would do. `stopped`: the caller or a pause ended it.

    `fence` is the epoch below which orphans went, -1 if none were searched for; `broken` are units that cannot be read,
    `damaged` dropped objects that cannot be.
    """

    plan: Removal
    engine: str = "local"
    tallies: dict[str, Tally] = field(default_factory=dict)
    scanned: OrphanCounts = field(default_factory=OrphanCounts)
    fence: int = -1
    amounts: Amounts = field(default_factory=Amounts)
    broken: Sequence[str] = ()
    damaged: Sequence[str] = ()
    stopped: bool = False
    throttled: int = 0
    backpressure_s: float = 0.0
    seconds: float = 0.0

    @property
    def run_id(self) -> str:
        return self.plan.run_id

    @property
    def dry_run(self) -> bool:
        return self.plan.dry_run

    @property
    def deleted(self) -> dict[str, Removed]:
        """Of each kind how many objects went, and their bytes."""
        tallies = {kind: self.tallies.get(kind, Tally()) for kind in KINDS}
        return {kind: Removed(t.deleted, t.bytes) for kind, t in tallies.items()}

    @property
    def tally(self) -> Tally:
        """The sum over all kinds."""
        total = Tally()
        for t in self.tallies.values():
            total.add(t)
        return total

    @property
    def left_traces(self) -> bool:
        of_data = any(removed.objects for kind, removed in self.deleted.items() if kind in DATA_KINDS)
        return of_data or self.tally.failed > 0

    def particulars(self) -> dict[str, Any]:
        """What only a vacuum has in its `run.json`."""
        return {
            "purge_versions": False,
            "first_shard": 0,
            "end_shard": 0,
            "listed": self.scanned.listed,
            "command": VACUUM,
            "kinds": self.deleted,
        }

    @property
    def oldest_dropped_age_s(self) -> float | None:
        """How long ago the oldest object was dropped that is still there."""
        if self.amounts.oldest_dropped_ms is None:
            return None
        return max(0, self.plan.started_ms - self.amounts.oldest_dropped_ms) / 1000

    @property
    def paused(self) -> str | None:
        return self.plan.paused or self.tally.paused or None

    @property
    def problem(self) -> L0gcError | None:
        """What kept the run from deleting all that it was to delete."""
        t = self.tally
        if t.paused:
            return refusal(t.paused)
        found = []
        if t.failed:
            first = t.failures[0]
            found.append(f"{count(t.failed, 'object')} could not be deleted; the first is {first.key}: {first.why}")
        if self.broken:
            broken = count(len(self.broken), "journal")
            found.append(f"{broken} could not be read, and nothing of theirs was deleted: {self.broken[0]}")
        if self.damaged:
            damaged = count(len(self.damaged), "dropped index object")
            found.append(f"{damaged} could not be read: {self.damaged[0]}")
        if self.scanned.unknown:
            unknown, folders = count(self.scanned.unknown, "object"), ", ".join(self.scanned.unknown_folders)
            found.append(
                f"{unknown} in {folders} stay, since neither the controller nor a journal has their topics: the controller "
                "log looks restored from an old backup, or they are foreign"
            )
            return EpochRegressionError(
                f"{'; '.join(found)}. The rest is done. Restore the newer controller log, or remove those objects if they "
                "are not l0gc's"
            )
        if not found:
            return None
        return PartialFailureError(f"{'; '.join(found)}. The rest is done; run l0gc vacuum again")


class ScansElsewhere(Protocol):
    """An engine that searches for orphans, and removes them, in other processes."""

    @property
    def slots(self) -> int:
        """Into how many parts a listing is best cut."""
        ...

    def run(
        self, plan: Removal, kind: str, parts: Sequence[ListingPart], look_at: LookAt
    ) -> tuple[Tally, OrphanCounts]: ...


class Vacuum:
    """One run.

    Args:
        source: the writers; None where they keep an external log, and only old records are to go.
        elsewhere: searches for orphans on Spark; by default this process does.
        progress: called after every request, with the kind, and how many objects of all kinds are gone and their bytes.
    """

    def __init__(
        self,
        cluster: ClusterHandle,
        source: GarbageSource | None,
        wanted: Removal | None = None,
        *,
        elsewhere: ScansElsewhere | None = None,
        progress: Callable[[str, int, int], None] = lambda kind, objects, size: None,
    ) -> None:
        self._cluster, self._source = cluster, source
        self._wanted = wanted or Removal()
        self._elsewhere, self._progress = elsewhere, progress
        self._records = sink_of(cluster.store, self._wanted)
        self.stop = threading.Event()
        """Set it, and the run finishes its requests in flight, records them, and returns."""
        self.result: VacuumResult | None = None
        """What was done so far, also by a run that failed; None before there is a plan."""
        self._removers: dict[str, Remover] = {}

    def run(self, scanners: Parallel, deleters: Executor | None = None) -> VacuumResult:
        """Vacuum.

        Raises:
            What `plan_vacuum` raises: nothing was deleted.
            EpochRegressionError: a journal knows what the controller does not (hazard 10).
            StoreError: the store failed; what was deleted until then is on record.
        """
        began = self._cluster.runtime.clock.monotonic()
        plan = plan_vacuum(self._cluster, self._wanted)
        result = self.result = VacuumResult(plan, "local" if self._elsewhere is None else "spark")
        self._pacer, self._budget = Pacer(self._cluster.runtime, plan.max_rate, self.stop), Budget(plan.max_objects)
        self._deleters = deleters or InlineExecutor()
        with ending(self._cluster, self._records, result, began):
            try:
                if self._source is not None and not plan.external_log:
                    self._vacuum_data(self._source, result, scanners)
                self._vacuum_records(result)
                result.stopped = self.stop.is_set()
            except BaseException:
                self.stop.set()  # scanners on other threads end, too
                raise
            finally:
                result.tallies |= {kind: remover.tally for kind, remover in self._removers.items()}
                result.throttled, result.backpressure_s = self._pacer.throttled, self._pacer.backpressure_s
        return result

    # -- data ---------------------------------------------------------------------------------------------------------

    def _vacuum_data(self, source: GarbageSource, result: VacuumResult, scanners: Parallel) -> None:
        plan = result.plan
        source.refresh()
        removal = DroppedRemoval(source, self._of_kind, self.stop, dry_run=plan.dry_run)
        removal.run(plan.started_ms, plan.l1_grace_ms, plan.cluster_epoch)
        result.amounts = source.amounts()
        if plan.orphans and not self._ended:
            self._vacuum_orphans(source, result, scanners)
        result.broken, result.damaged = source.broken, source.damaged

    def _vacuum_orphans(self, source: GarbageSource, result: VacuumResult, scanners: Parallel) -> None:
        plan = result.plan
        before_ms, dropped_before_ms = plan.started_ms - plan.orphan_age_ms, plan.started_ms - plan.l1_grace_ms
        fence = source.fence(before_ms, dropped_before_ms, dry_run=plan.dry_run)
        if fence <= 0:
            return  # nothing is stamped below it
        result.fence = fence
        for kind, prefix in source.prefixes().items():
            if self._elsewhere is None:
                parts = source.parts(prefix, max(1, min(SCANNERS, source.objects // PAGE_SIZE)))
                self._scan(kind, parts, source.looker(remote=False), result, scanners)
            else:
                parts = source.parts(prefix, self._elsewhere.slots)
                tally, counts = self._elsewhere.run(plan, kind, parts, source.looker(remote=True))
                result.tallies[kind] = tally
                result.scanned.add(counts)
                if tally.paused:
                    self.stop.set()
            if self._ended:
                return
        if not plan.dry_run:
            source.scanned(fence, self._left(source.prefixes()))

    def _left(self, kinds: Iterable[str]) -> list[str] | None:
        """The keys of orphans that could not be deleted; None if they are too many to be known."""
        assert self.result is not None
        tallies = {kind: remover.tally for kind, remover in self._removers.items()} | self.result.tallies
        found = [tallies[kind] for kind in kinds if kind in tallies]
        if any(t.failed > len(t.failures) for t in found):
            return None
        return [f.key for t in found for f in t.failures]

    def _scan(
        self, kind: str, parts: Sequence[ListingPart], look_at: LookAt, result: VacuumResult, scanners: Parallel
    ) -> None:
        remover = self._of_kind(kind)

        def one(part: ListingPart) -> OrphanCounts:
            scan = OrphanScan(self._cluster.store, part, look_at)
            self._hand_over(remover, scan.batches())
            return scan.counts

        for counts in scanners.map(one, parts):
            result.scanned.add(counts)
        _drained(remover)

    # -- records ------------------------------------------------------------------------------------------------------

    def _vacuum_records(self, result: VacuumResult) -> None:
        store, now_ms = self._cluster.store, result.plan.started_ms
        before_ms = now_ms - result.plan.keep_runs_ms
        for kind, batches in (
            (RUN_RECORDS, old_run_records(store, before_ms, KEEP_RUNS, result.run_id)),
            (SCAN_SNAPSHOTS, old_scan_snapshots(store, now_ms)),
        ):
            if not self._ended:
                self._take(kind, batches)

    def _take(self, kind: str, batches: Iterable[list[Deletable]]) -> None:
        remover = self._of_kind(kind)
        self._hand_over(remover, batches)
        _drained(remover)

    # -- removers -----------------------------------------------------------------------------------------------------

    def _hand_over(self, remover: Remover, batches: Iterable[list[Deletable]]) -> None:
        for batch in batches:
            remover.take(batch)
            if remover.full or self.stop.is_set():
                return

    @property
    def _ended(self) -> bool:
        """Whether nothing more is to be deleted."""
        return self.stop.is_set() or any(r.full for r in self._removers.values())

    def _of_kind(self, kind: str) -> Remover:
        """The remover of a kind. They share pace and limit; what holds no data is not on record."""
        assert self.result is not None
        if kind not in self._removers:
            self._removers[kind] = Remover(
                self._cluster.store,
                self._cluster.runtime,
                self.result.plan,
                worker=kind,
                deleters=self._deleters,
                records=self._records if kind in DATA_KINDS else None,
                stop=self.stop,
                pacer=self._pacer,
                progress=lambda: self._report(kind),
                budget=self._budget,
            )
        return self._removers[kind]

    def _report(self, kind: str) -> None:
        removers = list(self._removers.values())
        self._progress(kind, sum(r.shown for r in removers), sum(r.shown_bytes for r in removers))


def _drained(remover: Remover) -> None:
    """Wait until all segments have ended. Raises the error that ended the run."""
    remover.drain()
    if remover.error is not None:
        raise remover.error
