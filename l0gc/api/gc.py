"""A garbage collection: the steps one after another, each if it is due, and what became of each.

`collect/gc_steps.py` and each step's own module decide which steps are due, and which still run after one has failed; here
the facts are read. If they are unknown, or the step failed in the last run, it is due. Whoever calls may do something around
each step, as the command line does, which measures it and shows its progress; it cannot change which steps run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from l0gc.api.engine import Engine
from l0gc.api.groups import checked
from l0gc.api.operations import Operations
from l0gc.collect import gc_steps
from l0gc.collect.attempts import Attempt, read_attempts, read_gc_note, write_gc_note
from l0gc.collect.plan import KEEP_QUARANTINE_S, L1_GRACE_MS, ORPHAN_AGE_MS
from l0gc.collect.plan import run_id as new_run_id
from l0gc.collect.runs import KEEP_RUNS_S
from l0gc.errors import CorruptObjectError, EndedError, L0gcError, StoppedError, StoreError
from l0gc.events import NOTE, event, scalars
from l0gc.formatting import Outcome
from l0gc.streamlog.cluster import Handles
from l0gc.streamlog.controller.state import Retention
from l0gc.streamlog.pins import PIN_TTL_S, PinView
from l0gc.streamlog.tables import KEEP_SNAPSHOTS_S
from l0gc.watermark.publication import PublishedWatermark, read_published

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from l0gc.api.results import *
    from l0gc.streamlog.garbage import JournalGarbage
    from l0gc.streamlog.level_one.merge_plan import MergeRule

_INTERRUPTED: Final = 130
_log: Final = logging.getLogger(__name__)

Around = Callable[[str, Callable[..., Outcome] | None], object]
"""Does the step of that name by a call of the function, which takes what the step's own method does to show its progress or
to stop it; None where the step is not due. What the function raises has to be raised."""


class StepError(msgspec.Struct, frozen=True):
    """Why a step failed."""

    step: str
    exit_code: int
    message: str


@dataclass(slots=True)
class GcResult(Outcome):
    """What each step did; None if it did not run, or has no result. `not_due` has the reasons of those that need not run."""

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

    @property
    def problem(self) -> EndedError | None:
        """Which steps failed, as the error that the run ends with."""
        if not self.errors:
            return None
        failed = ", ".join(f"{e.step} ({e.exit_code})" for e in self.errors)
        text = f"not every step went through: {failed}; what each said is above, and l0gc status has the way out"
        return EndedError(text, gc_steps.worst(e.exit_code for e in self.errors))


class Cluster(Operations):
    """A cluster, as `l0gc.open` gives it. Several threads may use it."""

    @contextmanager
    def pin(self, name: str, *, ttl_s: float = PIN_TTL_S, level_one: bool = False, why: str = "") -> Iterator[PinView]:
        """A pin for a `with` block, which is deleted at its end; see `Pins.create` for the arguments.

        Raises:
            NotFoundError: at the end of the block, if the pin had ended before, so that what was read may have been gone.
        """
        pin = self.pins.create(name, ttl_s=ttl_s, level_one=level_one, why=why)
        try:
            yield pin
        except BaseException:
            with suppress(L0gcError):
                self.pins.delete(name, epoch=pin.epoch)
            raise
        self.pins.delete(name, epoch=pin.epoch)

    def gc(
        self,
        spark: SparkSession | Engine | None = None,
        *,
        dry_run: bool = False,
        reconcile: bool = True,
        barrier: bool = False,
        min_age_s: float = 0,
        max_objects: int | None = None,
        max_rate: float | None = None,
        max_delete_ratio: float | None = None,
        record: bool = True,
        record_dir: Path | None = None,
        l1_grace_s: float = L1_GRACE_MS / 1000,
        orphan_age_s: float = ORPHAN_AGE_MS / 1000,
        keep_runs_s: float = KEEP_RUNS_S,
        keep_quarantine_s: float = KEEP_QUARANTINE_S,
        merge_target_bytes: int = 128 << 20,
        merge_fan_in: int = 4,
        keep_snapshots_s: float = KEEP_SNAPSHOTS_S,
        run_id: str = "",
        around: Around = lambda step, call: call and call(),
    ) -> GcResult:
        """Housekeep, reconcile, merge, expire, sync tables, compute M, sweep, vacuum, each if due. As `l0gc gc`.

        Steps that fail are in the result of the error that is raised in the end; the others were done.

        Args:
            spark: see `reconcile`; each step decides whether it uses an engine's session.
            dry_run: change nothing: compute M, and see what a sweep by the published M and a vacuum would do.
            reconcile: False leaves out reconcile and merge, because another job does them.
            barrier: see `housekeep`.
            min_age_s: see `sweep`, and so for `max_objects`, `max_rate`, `max_delete_ratio`, `record` and `record_dir`.
            l1_grace_s: see `vacuum`, and so for `orphan_age_s`, `keep_runs_s` and `keep_quarantine_s`.
            merge_target_bytes: `target_bytes` of `merge`; `merge_fan_in` is its `fan_in`.
            keep_snapshots_s: see `Tables.sync`.
            run_id: the name of the run, and of its sweep; by default a new one.
            around: does each step, by calling the function that it gets with the step's name; None where it is not due.
        """
        from l0gc.streamlog.level_one.merge_plan import MergeRule

        began, handles, engine = time.monotonic(), self.handles(), Engine.of(spark)
        external = handles.controller.snapshot().external_log  # without a cluster, nothing begins
        run_id = run_id or new_run_id(handles.now_ms(), handles.runtime.new_id())
        rule = MergeRule(merge_target_bytes, merge_fan_in)
        last = read_attempts(handles.store, handles.parallel)
        due = _Due(handles, rule, last, l1_grace_s=l1_grace_s, orphan_age_s=orphan_age_s)
        everything = dry_run or external
        both: dict[str, Any] = {
            "dry_run": dry_run, "max_objects": max_objects, "max_rate": max_rate, "record": record,
            "record_dir": record_dir, "spark": engine,
        }  # fmt: skip
        merge = partial(self.merge, engine, target_bytes=rule.target_bytes, fan_in=rule.fan_in)
        compute = partial(self.compute_watermark, engine, dry_run=dry_run)
        sweep = partial(self.sweep, **both, min_age_s=min_age_s, max_delete_ratio=max_delete_ratio, run_id=run_id)
        ages: dict[str, Any] = {
            "l1_grace_s": l1_grace_s, "orphan_age_s": orphan_age_s, "keep_runs_s": keep_runs_s,
            "keep_quarantine_s": keep_quarantine_s,
        }  # fmt: skip
        vacuum = partial(self.vacuum, **both, **ages)
        steps = [
            _Step(gc_steps.HOUSEKEEP, partial(self.housekeep, barrier=barrier), done=due.housekept),
            _Step(gc_steps.RECONCILE, partial(self.reconcile, engine), due.no_reconcile),
            _Step(gc_steps.MERGE, merge, due.no_merge),
            _Step(gc_steps.EXPIRE, self.expire, due.no_expiry),
            _Step(gc_steps.TABLE_SYNC, partial(self.tables.sync, keep_snapshots_s=keep_snapshots_s), due.no_table),
            _Step(gc_steps.COMPUTE, compute, due.no_watermark, due.computed),
            _Step(gc_steps.SWEEP, sweep, due.no_sweep, due.swept),
            _Step(gc_steps.VACUUM, lambda **hooks: vacuum(orphans=everything or due.orphans(), **hooks), due.no_vacuum),
        ]
        if not reconcile:
            steps = [s for s in steps if s.name not in (gc_steps.RECONCILE, gc_steps.MERGE)]
        if everything:
            steps = [s for s in steps if s.name in (gc_steps.COMPUTE, gc_steps.SWEEP, gc_steps.VACUUM)]
        if external:  # the other system's log takes no entries of ours, and M comes from its reports
            steps = [s for s in steps if s.name != gc_steps.COMPUTE]
        always = gc_steps.STEPS if everything else [step for step, a in last.items() if not a.ok]
        result = GcResult(dry_run=dry_run, run_id=run_id)
        computed = last.get(gc_steps.COMPUTE)
        if external and computed is not None and not computed.ok:  # only it notices that their log was set back
            result.errors.append(
                StepError(gc_steps.COMPUTE, computed.exit_code, f"its last run failed: {computed.error}")
            )
        try:
            _Run(result, always, around).play(steps)
        except KeyboardInterrupt as e:
            vars(e)["so_far"] = result
            raise
        except StoppedError as e:
            e.result = result
            raise
        finally:
            result.seconds = time.monotonic() - began
        return checked(result)


class _Step(NamedTuple):
    """A step: what does it, why it is not due, read when it comes up, and what it leaves for the next run."""

    name: str
    work: Callable[..., Outcome]
    not_due: Callable[[], str] = lambda: ""
    done: Callable[[Any], None] = lambda result: None

    @property
    def field(self) -> str:
        """Its name in the result."""
        return self.name.replace("-", "_")


class _Run:
    """One run of the steps, of which some are `always` due."""

    def __init__(self, result: GcResult, always: Collection[str], around: Around) -> None:
        self._result, self._always, self._around = result, always, around

    def play(self, steps: Iterable[_Step]) -> None:
        """Do the steps. Raises `StoppedError` and what nobody expects; of others, see `GcResult.errors`."""
        for step in steps:
            if gc_steps.is_left_out(step.name, [e.step for e in self._result.errors]):
                left_out = event("step_left_out", step=step.name)
                _log.log(NOTE, "%s is left out: M was not computed", step.name, extra=left_out)
            elif not self._do(step):
                break

    def _do(self, step: _Step) -> bool:
        """Whether to go on after this step."""
        began, code, why = time.monotonic(), _INTERRUPTED, ""
        try:
            why = step.not_due() if step.name not in self._always else ""
            if why:
                self._result.not_due[step.field] = why
                self._around(step.name, None)
            else:
                _log.info("%s begins", step.name, extra=event("step_began", step=step.name))
                self._around(step.name, partial(self._work, step))
            code = 0
        except StoppedError as e:
            code = e.exit_code
            raise
        except L0gcError as e:
            code = e.exit_code
            self._result.errors.append(StepError(step.name, code, str(e)))
            _log.error("%s: %s", step.name, e, extra=event("error", exit_code=code, step=step.name))
            return not gc_steps.is_final(e)
        finally:
            self._log_end(step, why, code, round(time.monotonic() - began, 3))
        return True

    def _work(self, step: _Step, **hooks: Any) -> Outcome:
        try:
            result = step.work(**hooks)
        except L0gcError as e:
            if isinstance(e.result, Outcome):
                setattr(self._result, step.field, e.result)
            raise
        setattr(self._result, step.field, result)
        if not self._result.dry_run:
            step.done(result)
        return result

    def _log_end(self, step: _Step, why: str, code: int, seconds: float) -> None:
        if why:
            fields = event("step_not_due", step=step.name, reason=why, seconds=seconds)
            _log.info("%s is not due: %s", step.name, why, extra=fields)
            return
        done = getattr(self._result, step.field)
        numbers = scalars(done.to_json() if done is not None else {})
        numbers |= {"step": step.name, "exit_code": code, "seconds": seconds}
        _log.info("%s ended after %.1f s", step.name, seconds, extra=event("step_ended", **numbers))


class _Due:
    """Each `no_…` says why its step is not due, or nothing if it is.

    Once housekeeping has found that no log went back, the questions about what is due do not look for that again. Each step
    that is due does, and so does the question about vacuum, at the end.
    """

    def __init__(
        self, cluster: Handles, rule: MergeRule, last: Mapping[str, Attempt], *, l1_grace_s: float, orphan_age_s: float
    ) -> None:
        self._cluster, self._rule, self._last = cluster, rule, last
        self._l1_grace_ms, self._orphan_age_ms = int(l1_grace_s * 1000), int(orphan_age_s * 1000)
        self._note = gc_steps.GcNote()
        self._landed = -1
        self._garbage: JournalGarbage | None = None
        self._looked = False

    def housekept(self, result: HousekeepResult) -> None:
        self._looked = True

    def no_reconcile(self) -> str:
        from l0gc.streamlog.level_one.waiting import has_work

        with suppress(CorruptObjectError, StoreError):
            return "" if has_work(self._cluster, looked=self._looked) else "everything is in L1"
        return ""  # the run names the journal

    def no_merge(self) -> str:
        from l0gc.streamlog.level_one.merge import merge_due

        due = merge_due(self._cluster, self._rule)
        return "" if due else "no partition has L1 objects that should be one"

    def no_expiry(self) -> str:
        state = self._cluster.controller.snapshot()
        limited = any(state.retention(t) != Retention() for t in state.topics.values())
        return "" if limited else "no topic has a retention"

    def no_table(self) -> str:
        return "" if self._cluster.controller.replica.state.tables else "no topic has a table"

    def no_watermark(self) -> str:
        from l0gc.streamlog.epoch_source import journal_totals

        self._note = read_gc_note(self._cluster.store)
        now = journal_totals(self._cluster)
        self._landed = now.landed
        published = self._published()
        lowest, landed, now_ms = now.lowest, now.landed, self._now_ms()
        return gc_steps.compute_not_due(published, self._note, lowest=lowest, landed=landed, now_ms=now_ms)

    def computed(self, result: WatermarkResult) -> None:
        """Keep for the next run what M was computed from."""
        published, listing = self._published(), result.listing
        if published is None:
            return
        held = -1
        if listing is not None:
            held = listing.objects - listing.eligible_objects - listing.unparsable
        self._keep(landed=self._landed, published_ms=published.published_at_ms, held=held)

    def no_sweep(self) -> str:
        return gc_steps.sweep_not_due(self._published(), self._note)

    def swept(self, result: SweepResult) -> None:
        """Keep for the next run up to where nothing is left."""
        if result.eligible == result.deleted and not result.stopped and not result.paused:
            self._keep(swept=result.bound)

    def no_vacuum(self) -> str:
        source = self._garbage_now()
        dropped = source.is_due(self._now_ms() - self._l1_grace_ms)
        if dropped or source.broken or self.orphans():
            return ""
        return "nothing that was dropped has had its grace, and orphans were searched for within a day"

    def orphans(self) -> bool:
        """Whether it is time to look for orphans, which takes a listing."""
        before_ms = self._now_ms() - self._orphan_age_ms - gc_steps.SCAN_EVERY_MS
        return self._garbage_now().scan_due(before_ms)

    def _garbage_now(self) -> JournalGarbage:
        from l0gc.streamlog.garbage import JournalGarbage

        if self._garbage is None:
            self._garbage = JournalGarbage(self._cluster)
            self._garbage.refresh()
        return self._garbage

    def _published(self) -> PublishedWatermark | None:
        return read_published(self._cluster.store, self._cluster.controller.replica.state.cluster_id)[0]

    def _now_ms(self) -> int:
        """The store's clock at the last look at the controller's log, which each question begins with."""
        as_of_ms = self._cluster.controller.replica.as_of_ms
        return self._cluster.store.now_ms() if as_of_ms is None else as_of_ms

    def _keep(self, **fields: int) -> None:
        self._note = msgspec.structs.replace(self._note, **fields)
        write_gc_note(self._cluster.store, self._note)
