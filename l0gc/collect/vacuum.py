"""Delete all garbage except L0, one kind after another, each by the rule of its module: a vacuum.

`GARBAGE` lists all kinds, including L0. The collector does not depend on journals: `GarbageSource` is its interface to
the writers, whose units are the journals.

Dropped objects come first, since they need no listing; then the orphans, after the fences; then old records. A dry run
takes the same path, with the fence that a real run would append, and deletes nothing: it counts the objects that the
next run would delete. The code for the pause, the run record, the pace and the limits is shared with sweeps. After the
orphans, unfinished uploads of L1 objects stamped below the fence are aborted, since no journal can list these objects
any more.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Final, NamedTuple, Protocol

import msgspec

from l0gc.collect.deletion import Deletable
from l0gc.collect.dropped_l1 import DROPPED_L1, Amounts, DroppedSource, delete_dropped
from l0gc.collect.gc_steps import SWEEP, VACUUM
from l0gc.collect.history import old_run_records, old_scan_snapshots, usual_objects
from l0gc.collect.orphans import ORPHANED_L1, OrphanSource, delete_orphans
from l0gc.collect.plan import RATIO, DeletionPlan, plan_vacuum
from l0gc.collect.record import ObjectTotals
from l0gc.collect.run import Budget, DeletionQueue, DeletionRun, RunResult
from l0gc.collect.skip_scan import RunCounts
from l0gc.collect.sweep import LEVEL_ZERO
from l0gc.errors import EpochRegressionError, L0gcError, PartialFailureError
from l0gc.formatting import count, size
from l0gc.keys import ATTEMPTS, L1_DATA, RUNS, SCANS, KeyLayout, parse_level_one
from l0gc.operations import Vacuum
from l0gc.storage.objectstore import PAGE_SIZE, ObjectStore, UnfinishedUpload
from l0gc.storage.workers import LOCAL

RUN_RECORDS: Final = "run_records"
SCAN_SNAPSHOTS: Final = "scan_snapshots"


class GarbageKind(NamedTuple):
    """A kind of garbage.

    Attributes:
        text: the name in messages and metrics.
        goes: when it is deleted and why it stays until then, for the documents.
        folders: the folders in which a policy has to allow deletion, which doctor tests.
        command: the command that deletes it.
        old: the function that finds it, if it expires by age.
        recorded: whether its deletions are recorded; those of old records, which contain no data, are not.
    """

    text: str
    goes: str
    folders: tuple[str, ...]
    command: str = VACUUM
    old: Callable[[ObjectStore, DeletionPlan[Vacuum]], Iterator[list[Deletable]]] | None = None
    recorded: bool = True


_DROPPED: Final = (
    "`--l1-grace` after its journal dropped it, by the store's clock, but not before two epochs have passed. No listing is "
    "needed, since the journal keeps its key until it is deleted."
)
_ORPHANED: Final = (
    "A run was killed or refused. First, a fence is appended to the journals, after which objects stamped `--orphan-age` "
    "ago or earlier can no longer be committed. Then the journals are read, and finally L1 is listed."
)
GARBAGE: Final = {
    LEVEL_ZERO: GarbageKind(
        "L0 objects that no partition needs",
        "Its epoch is at or below M and `--up-to`, so no partition accepts a placeholder for it any more.",
        (KeyLayout().data_prefix,),
        SWEEP,
    ),
    DROPPED_L1: GarbageKind("L1 objects that were merged, expired or part of deleted topics", _DROPPED, (L1_DATA,)),
    ORPHANED_L1: GarbageKind("L1 objects that no journal ever named", _ORPHANED, (L1_DATA,)),
    RUN_RECORDS: GarbageKind(
        "objects of old run records",
        "The run is older than `--keep-runs`, or not one of the 10,000 newest. Equally old records of the last runs of "
        "jobs that this l0gc does not have are deleted, too.",
        (RUNS, ATTEMPTS),
        old=old_run_records,
        recorded=False,
    ),
    SCAN_SNAPSHOTS: GarbageKind(
        "old scan snapshots",
        "The snapshot is older than 90 days, or not one of the 1,000 newest.",
        (SCANS,),
        old=old_scan_snapshots,
        recorded=False,
    ),
}
"""All kinds of garbage, from which counts, metrics, messages, the documents' table, the policies' rights and doctor's
tests follow.
"""
KINDS: Final = {name: kind for name, kind in GARBAGE.items() if kind.command == VACUUM}
"""The kinds that a vacuum deletes, in order."""


class GarbageSource(DroppedSource, OrphanSource, Protocol):
    """The writers' side of a vacuum, which answers for each kind. `refresh` discards everything cached."""

    @property
    def broken(self) -> Sequence[str]:
        """Return the units that cannot be read, each with its error. None of their objects counts as garbage."""

    def refresh(self) -> None:
        """Read all units.

        Raises:
            EpochRegressionError: a unit has something that the controller lacks (hazard 10).
        """


class VacuumResult(RunResult, kw_only=True):
    """The result of a vacuum, or of its dry run: the deleted objects and bytes of each kind, and their sum.

    Attributes:
        deleted: The deleted `objects` of each kind and their `bytes`; in a dry run, those that a real run would delete.
        objects: The number of all deleted objects.
        bytes: Their size.
        failed: The number of objects that could not be deleted. If there are any, the exit code is 3.
        dry_run: Whether it was a dry run.
        fence: The epoch below which orphans were deleted; null if no search was made.
        listed: The number of keys read below `level_one/`.
        unparsable: The number of these keys that are not L1 keys; they stay.
        unparsable_samples: Up to three of these keys.
        unknown: The number of objects of topics that the controller and the journals lack; they stay. If there are any,
            the exit code is 4.
        unknown_folders: The folders of up to three of these topics.
        l1: The amounts in the journals at the end: `live_objects` and `live_bytes` are listed; `dropped_objects` and
            `dropped_bytes` wait for the end of their grace.
        oldest_dropped_age_s: How long the oldest dropped object that no pin keeps has waited; null if there is none.
        uploads_aborted: The number of aborted multipart uploads of L1 objects, which a killed run left and which are
            stamped below the fence.
        requests: The numbers of `list` and `delete` requests.
        throttled: How often the store asked to slow down, or did not answer in time.
        backpressure_seconds: How long deletions waited because of that.
        failures: Up to 20 failures, each with `key`, `code` and `message`.
        broken: The journals that could not be read, with their errors; none of their objects was deleted. If there are
            any, the exit code is 3.
        versioning: `off`, `enabled`, `suspended`, or `unknown` if the store does not allow reading it.
        engine: `local` or `spark`.
        engine_reason: Why this engine was chosen.
        stopped: Whether a signal or a pause ended the run.
        limited_by: The option whose limit left some eligible objects: `max_objects`, `max_bytes` or `max_delete_ratio`;
            null if none did. For `max_delete_ratio`, the exit code is 4.
        paused: The pause that ended the run, or that a dry run found; null if there was none.
        seconds: How long the run took, without the start of Spark.
        run_id: The folder below `l0gc/runs/` with the record of deletions. A run that deleted no data and had no
            failures writes no record.
    """

    command: ClassVar[str] = VACUUM
    hidden: ClassVar[frozenset[str]] = RunResult.hidden | {"eligible", "held_by_age"}

    plan: DeletionPlan[Vacuum]
    deleted: dict[str, ObjectTotals] = msgspec.field(default_factory=lambda: dict.fromkeys(KINDS, ObjectTotals()))
    fence: int | None = None
    l1: Amounts = msgspec.field(default_factory=Amounts)
    oldest_dropped_age_s: float | None = None
    broken: Sequence[str] = ()

    @property
    def kinds(self) -> dict[str, ObjectTotals]:
        return self.deleted

    @property
    def left_traces(self) -> bool:
        return any(self.deleted[name].objects for name, kind in KINDS.items() if kind.recorded) or self.failed > 0

    @property
    def problem(self) -> L0gcError | None:
        """Return the error that kept the run from deleting everything, or None."""
        if super().problem is not None:
            return super().problem
        problems = []
        if self.failed:
            first = self.failures[0]
            problems.append(
                f"{count(self.failed, 'object')} could not be deleted; the first is {first.key}: {first.why}"
            )
        if self.broken:
            broken = count(len(self.broken), "journal")
            problems.append(f"{broken} could not be read, so none of their objects was deleted: {self.broken[0]}")
        if self.unknown:
            unknown, folders = count(self.unknown, "object"), ", ".join(self.unknown_folders)
            problems.append(
                f"{unknown} in {folders} stay, since neither the controller nor a journal has their topics: the controller "
                "log looks restored from an old backup, or they are foreign"
            )
            return EpochRegressionError(
                f"{'; '.join(problems)}. The rest is done. Restore the newest controller log, or leave the objects to their "
                "owner: no command deletes them"
            )
        if not problems:
            return None
        return PartialFailureError(f"{'; '.join(problems)}. The rest is done; run l0gc vacuum again")


class VacuumRun(DeletionRun[Vacuum, VacuumResult]):
    """Runs one vacuum."""

    operation = Vacuum

    def run(self, source: GarbageSource | None) -> VacuumResult:
        """Vacuum.

        Args:
            source: the writers; None if they keep an external log, in which case only old records are deleted.

        Raises:
            The errors of `plan_vacuum`, in which case nothing was deleted. UsageError: an option needs a single
            process. EpochRegressionError: a journal has something that the controller lacks (hazard 10). StoreError:
            the store failed. The objects deleted until then are on record.
        """
        plan = plan_vacuum(self._cluster, self._options, self._run_id)
        workers = self._workers
        result = VacuumResult(plan=plan, paused=plan.paused, engine=workers.engine, engine_reason=workers.reason)
        self._begin(plan)
        with self._recording(result):
            if source is not None and not plan.external_log:
                self._vacuum_data(source, result)
                self._budget.lift(RATIO)  # old records are not part of the share
            for name, kind in KINDS.items():
                if kind.old is not None and not self._ended:
                    queue = self._queue(name)
                    with queue.finishing():
                        queue.take_all(kind.old(self._cluster.store, plan))
        return result

    def _vacuum_data(self, source: GarbageSource, result: VacuumResult) -> None:
        source.refresh()
        amounts = source.amounts()
        usual = 0
        if self._options.max_delete_ratio:
            usual = usual_objects(self._cluster, VACUUM, self._plan.started_ms, (DROPPED_L1, ORPHANED_L1))
        plan = self._plan.limited_to_share(amounts.live_objects + amounts.dropped_objects, usual)
        self._plan, result.plan, self._budget = plan, plan, Budget(plan.limits, RunCounts())
        delete_dropped(source, self._queue(DROPPED_L1))
        result.l1 = source.amounts()
        if result.l1.oldest_dropped_ms is not None:
            result.oldest_dropped_age_s = max(0, plan.started_ms - result.l1.oldest_dropped_ms) / 1000
        if plan.options.orphans and not self._ended:
            self._vacuum_orphans(source, result)
        result.broken = source.broken

    def _vacuum_orphans(self, source: GarbageSource, result: VacuumResult) -> None:
        plan, workers = self._plan, self._workers
        ago = [plan.started_ms - int(1000 * s) for s in (plan.options.orphan_age_s, plan.options.l1_grace_s)]
        fence = source.fence(*ago, dry_run=plan.options.dry_run)
        if fence <= 0:
            return  # no object is stamped below the fence
        result.fence = fence
        is_local = workers.engine == LOCAL
        parts = max(1, min(workers.slots, source.objects // PAGE_SIZE)) if is_local else workers.slots
        parts = (
            1 if plan.limits else parts
        )  # in key order, a limit covers the same objects in a dry run and in a real run
        find = functools.partial(delete_orphans, source.facts_reader(remote=not is_local))
        self._spread(ORPHANED_L1, find, source.parts(L1_DATA, parts))
        if self._ended:
            return
        queue = self._queue(ORPHANED_L1)
        self._abort_uploads(L1_DATA, queue, result, functools.partial(_is_below, fence))
        if not plan.options.dry_run:
            failures = queue.counts.failures
            source.scanned(fence, [f.key for f in failures] if queue.counts.failed <= len(failures) else None)

    def _queue(self, kind: str, *, record: bool = True) -> DeletionQueue:
        return super()._queue(kind, record=KINDS[kind].recorded)

    def _total(self, result: VacuumResult) -> None:
        super()._total(result)
        result.deleted |= {kind: ObjectTotals(r.counts.objects, r.counts.bytes) for kind, r in self._queues.items()}

    def _report(self, kind: str) -> None:
        queues = list(self._queues.values())
        deleted, total = sum(r.counts.objects for r in queues), sum(r.counts.bytes for r in queues)
        self._workers.say(f"{kind}: {deleted:,} deleted, {size(total)}", kind=kind, deleted=deleted, bytes=total)


def _is_below(fence: int, upload: UnfinishedUpload) -> bool:
    """Return whether no journal can list the object of an upload any more. An earlier abort would make a run's round
    fail.
    """
    key = parse_level_one(upload.key)
    return key is not None and key.epoch < fence
