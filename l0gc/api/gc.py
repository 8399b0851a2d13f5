"""Run a garbage collection: run each step in turn if it is due, and collect the outcomes.

`collect/gc_steps.py` and the modules of the steps decide which steps are due, and which ones run after a failure; this
module reads the facts. A step is due if the facts are unknown, or if it failed in the last run. The caller may wrap
each step, as the command line does to measure it and show its progress, but cannot change which steps run.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import msgspec

from l0gc.collect import gc_steps
from l0gc.collect.deletion import read_pause
from l0gc.collect.record import Attempts, read_gc_note, write_gc_note
from l0gc.errors import (
    AccessDeniedError,
    CorruptObjectError,
    EndedError,
    L0gcError,
    StoppedError,
    StoreError,
    StoreUnreachableError,
    unexpected,
)
from l0gc.events import NOTE, event, scalars
from l0gc.formatting import Outcome
from l0gc.operations import Gc, Merge, Operation, Sweep, Vacuum
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import Retention
from l0gc.watermark.publication import PublishedWatermark, read_published

if TYPE_CHECKING:
    from l0gc.api.results import *
    from l0gc.streamlog.garbage import JournalGarbage

_INTERRUPTED: Final = 130
_log: Final = logging.getLogger(__name__)

StepRunner = Callable[[str, Callable[..., Outcome] | None], object]
"""A function that runs the step with the given name by calling the given function, which takes the same progress and
stop arguments as the step's method, and is None if the step is not due. Errors of that function must be raised again.
"""


class StepError(msgspec.Struct, frozen=True):
    """The error of a failed step."""

    step: str
    exit_code: int
    message: str


@dataclass(slots=True)  # the signature of a struct would need the types that only type checkers import
class GcResult(Outcome):
    """The results of the steps; None for a step that did not run or has no result.

    `refused` is whether the store refused all reads or writes of a step, as it would refuse those of `l0gc status`.

    Attributes:
        housekeep: The output of [housekeep](#l0gc-housekeep); null if it did not run or has no result, as for the next
            seven.
        reconcile: The output of [reconcile](#l0gc-reconcile).
        merge: The output of [merge](#l0gc-merge).
        expire: The output of [expire](#l0gc-expire).
        table_sync: The output of [table sync](#l0gc-table-sync).
        compute_watermark: The output of [compute-watermark](#l0gc-compute-watermark).
        sweep: The output of [sweep](#l0gc-sweep).
        vacuum: The output of [vacuum](#l0gc-vacuum).
        not_due: The steps that were skipped because they were not due, each with the reason.
        errors: The steps that failed, each with `step`, `exit_code` and `message`.
        dry_run: Whether it was a dry run.
        seconds: How long the run took, including the start of Spark.
        run_id: The name of the run, in its log (`run`) and in the record of its sweep.
    """

    housekeep: HousekeepResult | None = None
    reconcile: ReconcileResult | None = None
    merge: MergeResult | None = None
    expire: ExpireResult | None = None
    table_sync: TableSyncResult | None = None
    compute_watermark: WatermarkResult | None = None
    sweep: SweepResult | None = None
    vacuum: VacuumResult | None = None
    not_due: dict[str, str] = field(default_factory=dict)
    errors: list[StepError] = field(default_factory=list)
    dry_run: bool = False
    seconds: float = 0.0
    run_id: str = ""
    refused: bool = False

    hidden: ClassVar[frozenset[str]] = frozenset({"refused"})

    @property
    def problem(self) -> EndedError | None:
        if not self.errors:
            return None
        failed = ", ".join(f"{e.step} ({e.exit_code})" for e in self.errors)
        text = f"some steps failed: {failed}; their errors are above"
        if not self.refused:
            text += ", and l0gc status shows what to do"
        return EndedError(text, gc_steps.worst(e.exit_code for e in self.errors))


class GcStep(NamedTuple):
    """A step: its options, or None to skip it; its function; a function that returns why it is not due, called when its
    turn comes; and a function that records facts from its result for the next run.
    """

    name: str
    options: Operation | None
    work: Callable[..., Outcome]
    not_due: Callable[[], str] = lambda: ""
    done: Callable[[Any], None] = lambda result: None

    @property
    def field(self) -> str:
        return self.name.replace("-", "_")


def play(result: GcResult, steps: Iterable[GcStep], last: Attempts, run_step: StepRunner, *, external: bool) -> None:
    """Run the due steps in order.

    Args:
        last: the last recorded run of each step. A step that failed is due, and so is a step whose record the store
            refused.
        external: whether another system keeps the log, so that l0gc appends no entries and M comes from that system's
            reports.
    """
    began = time.monotonic()
    always = [step for step, a in last.known.items() if not a.ok] + [*last.refused]
    chosen = [s for s in steps if s.options is not None]
    if result.dry_run or external:
        always = list(gc_steps.STEPS)
        chosen = [s for s in chosen if s.name in gc_steps.EXTERNAL_STEPS]
    if external:
        chosen = [s for s in chosen if s.name != gc_steps.COMPUTE]
        # Only the computation detects that the external log was set back.
        computed, refused = last.known.get(gc_steps.COMPUTE), last.refused.get(gc_steps.COMPUTE)
        if computed is not None and not computed.ok:
            why = f"its last run failed: {computed.error}"
            result.errors.append(StepError(gc_steps.COMPUTE, computed.exit_code, why))
        elif refused is not None:
            why = f"it is unknown how its last run ended: {refused}"
            result.errors.append(StepError(gc_steps.COMPUTE, refused.exit_code, why))
    try:
        _Run(result, always, run_step).play(chosen)
    finally:
        result.seconds = time.monotonic() - began


class _Run:
    """A run of the steps. The steps in `always` are due in any case."""

    def __init__(self, result: GcResult, always: Collection[str], run_step: StepRunner) -> None:
        self._result, self._always, self._run_step = result, always, run_step

    def play(self, steps: Iterable[GcStep]) -> None:
        for step in steps:
            if gc_steps.is_left_out(step.name, [e.step for e in self._result.errors]):
                left_out = event("step_left_out", step=step.name)
                _log.log(NOTE, "%s is skipped: M was not computed", step.name, extra=left_out)
            elif not self._do(step):
                break

    def _do(self, step: GcStep) -> bool:
        """Run a step, and return whether to continue after it."""
        began, code, why = time.monotonic(), _INTERRUPTED, ""
        try:
            why = step.not_due() if step.name not in self._always else ""
            if why:
                self._result.not_due[step.field] = why
                self._run_step(step.name, None)
            else:
                _log.info("%s begins", step.name, extra=event("step_began", step=step.name))
                self._run_step(step.name, partial(self._work, step))
            code = 0
        except StoppedError as e:
            code = e.exit_code
            raise
        except Exception as e:  # noqa: BLE001 - of a catalog's plugin, for example, which must not end the other steps
            error = e if isinstance(e, L0gcError) else unexpected(e)
            code = error.exit_code
            self._result.errors.append(StepError(step.name, code, str(error)))
            self._result.refused |= isinstance(e, AccessDeniedError | StoreUnreachableError)
            _log.error("%s: %s", step.name, error, extra=event("error", exit_code=code, step=step.name))
            if error is not e:
                for line in "".join(traceback.format_exception(e)).splitlines():
                    _log.info("%s", line, extra=event("traceback", step=step.name))
            return not gc_steps.is_final(error)
        finally:
            self._log_end(step, why, code, round(time.monotonic() - began, 3))
        return True

    def _work(self, step: GcStep, **hooks: Any) -> Outcome:
        options = msgspec.structs.asdict(step.options) if step.options is not None else {}
        if self._result.dry_run:
            options["dry_run"] = True
        try:
            result = step.work(**options, **hooks)
        except L0gcError as e:
            if isinstance(e.result, Outcome):
                setattr(self._result, step.field, e.result)
            raise
        setattr(self._result, step.field, result)
        if not options.get("dry_run") or options.get("shadow"):
            step.done(result)
        return result

    def _log_end(self, step: GcStep, why: str, code: int, seconds: float) -> None:
        if why:
            fields = event("step_not_due", step=step.name, reason=why, seconds=seconds)
            _log.info("%s is not due: %s", step.name, why, extra=fields)
            return
        done = getattr(self._result, step.field)
        numbers = scalars(done.to_json() if done is not None else {})
        numbers |= {"step": step.name, "exit_code": code, "seconds": seconds}
        _log.info("%s ended after %.1f s", step.name, seconds, extra=event("step_ended", **numbers))


class Due:
    """Decides which steps are due. Each `no_…` returns why its step is not due, or an empty text if it is due.

    Once housekeeping has found that no log was set back, these methods do not check that again. Each due step does, and
    so does the check of vacuum at the end.
    """

    def __init__(self, cluster: ClusterHandles, request: Gc) -> None:
        self._cluster, self._merge, self._vacuum = cluster, request.merge or Merge(), request.vacuum or Vacuum()
        self._sweep = request.sweep or Sweep()
        self._note: gc_steps.GcNote | None = None
        self._dry_run = request.dry_run
        self._landed = -1
        self._garbage: JournalGarbage | None = None
        self._looked = False
        self._seen: PublishedWatermark | None = None

    def housekept(self, result: HousekeepResult) -> None:
        self._looked = True

    def no_reconcile(self) -> str:
        from l0gc.streamlog.level_one.plan import has_work

        with suppress(CorruptObjectError, StoreError):
            return "" if has_work(self._cluster, looked=self._looked) else "everything is in L1"
        return ""  # the run reports the journal

    def no_merge(self) -> str:
        from l0gc.streamlog.level_one.merge import merge_due, merge_fingerprint
        from l0gc.streamlog.level_one.merge_plan import MergeRule

        rule, none = MergeRule(self._merge.target_bytes, self._merge.fan_in), "no partition has L1 objects to merge"
        fingerprint = merge_fingerprint(self._cluster, rule)
        if fingerprint is not None and fingerprint == self._noted().merged:
            return none
        if merge_due(self._cluster, rule):
            return ""
        if fingerprint is not None and self._looked and not self._dry_run:  # a refused run writes nothing
            self._keep(merged=fingerprint)
        return none

    def no_expiry(self) -> str:
        state = self._cluster.controller.replica.state
        limited = any(state.retention(t) != Retention() for t in state.topics.values())
        return "" if limited else "no topic has a retention"

    def no_table(self) -> str:
        state = self._cluster.controller.replica.state
        return "" if any(map(state.topic_of, state.tables.values())) else "no topic has a table"

    def no_watermark(self) -> str:
        from l0gc.streamlog.epoch_source import journal_totals

        now = journal_totals(self._cluster)
        self._landed = now.landed
        published = self._published()
        lowest, landed, now_ms = now.lowest, now.landed, self._now_ms()
        why = gc_steps.compute_not_due(published, self._noted(), lowest=lowest, landed=landed, now_ms=now_ms)
        self._seen = published if why else None
        return why

    def computed(self, result: WatermarkResult) -> None:
        """Record for the next run the state from which M was computed."""
        published, listing = self._published(), result.listing
        if published is None or not result.published:
            return
        kept = -1
        if listing is not None:
            kept = listing.objects - listing.eligible_objects - listing.unparsable
        self._keep(landed=self._landed, published_ms=published.published_at_ms, held=kept)

    def no_sweep(self) -> str:
        grace_ms, shadow = int(1000 * self._sweep.grace_s), self._sweep.shadow
        if not shadow and read_pause(self._cluster.store) is not None:
            return ""  # the run refuses and reports the pause, even if it would find nothing
        before_ms = self._now_ms() - grace_ms if grace_ms else None
        return gc_steps.sweep_not_due(self._seen or self._published(), self._noted(), before_ms, shadow=shadow)

    def swept(self, result: SweepResult) -> None:
        """Record for the next run the epoch up to which nothing is left, or up to which a shadow run has recorded
        everything."""
        options = result.plan.options
        if options.shards is not None or result.stopped:
            return
        if options.shadow:
            if not result.limited and not result.held_by_age:
                self._keep(shadowed=result.bound)
        elif result.eligible == result.deleted and not result.paused:
            self._keep(swept=result.bound)

    def no_vacuum(self) -> str:
        source = self._garbage_now()
        dropped = source.is_due(self._now_ms() - int(1000 * self._vacuum.l1_grace_s))
        if dropped or source.broken or self.orphans():
            return ""
        return "the grace of dropped objects has not ended, and orphans were searched for less than a day ago"

    def orphans(self) -> bool:
        """Return whether it is time to search for orphans, which takes a listing."""
        before_ms = self._now_ms() - int(1000 * self._vacuum.orphan_age_s) - gc_steps.SCAN_EVERY_MS
        return self._garbage_now().scan_due(before_ms)

    def _garbage_now(self) -> JournalGarbage:
        from l0gc.streamlog.garbage import JournalGarbage

        if self._garbage is None:
            self._garbage = JournalGarbage(self._cluster)
            self._garbage.refresh(looked=self._looked)
        return self._garbage

    def _published(self) -> PublishedWatermark | None:
        published, etag = read_published(self._cluster.store, self._cluster.controller.replica.state.cluster_id)
        return published if etag else None  # the computation refuses if the file is lost

    def _now_ms(self) -> int:
        """Return the store's time at the last read of the controller's log, with which each check begins."""
        as_of_ms = self._cluster.controller.replica.as_of_ms
        return self._cluster.store.now_ms() if as_of_ms is None else as_of_ms

    def _noted(self) -> gc_steps.GcNote:
        """Return the note of the last runs, which is read only once."""
        if self._note is None:
            self._note = read_gc_note(self._cluster.store)
        return self._note

    def _keep(self, **fields: int) -> None:
        self._note = msgspec.structs.replace(self._noted(), **fields)
        write_gc_note(self._cluster.store, self._note)
