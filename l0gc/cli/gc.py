"""`l0gc gc`: the steps of a garbage collection, one after another, in one process and at most one Spark session."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from l0gc.api.cluster import Cluster as Library
from l0gc.api.engine import Engine
from l0gc.cli import logs
from l0gc.cli.compute_watermark import run_compute_watermark
from l0gc.cli.gc_due import Due
from l0gc.cli.housekeep import run_housekeep
from l0gc.cli.merge import rule_options, run_merge
from l0gc.cli.metrics_options import measuring, metrics_options
from l0gc.cli.options import common_options, library
from l0gc.cli.output import Output, Result, taking_results
from l0gc.cli.reconcile import run_reconcile
from l0gc.cli.run_options import new_run, removal_options
from l0gc.cli.signals import INTERRUPTED, stopping
from l0gc.cli.spark_options import engine_options
from l0gc.cli.sweep import run_sweep
from l0gc.cli.vacuum import run_vacuum
from l0gc.collect.attempts import read_attempts
from l0gc.collect.gc_steps import (
    COMPUTE,
    EXPIRE,
    HOUSEKEEP,
    MERGE,
    RECONCILE,
    STEPS,
    SWEEP,
    VACUUM,
    is_final,
    is_left_out,
    worst,
)
from l0gc.collect.plan import run_id
from l0gc.errors import L0gcError, StepsFailedError, StoppedError
from l0gc.events import event
from l0gc.settings import Settings

if TYPE_CHECKING:
    from l0gc.streamlog.level_one.merge_plan import MergeRule

_log: Final = logging.getLogger(__name__)
_OF_SWEEP: Final = ("min_age_s", "max_delete_ratio")
_OF_VACUUM: Final = ("l1_grace_s", "orphan_age_s", "keep_runs_s")
"""The options that only one of the two has."""


@click.command("gc")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Change nothing: compute M, and show what a sweep by the published M and a vacuum would do.",
)
@click.option("--no-reconcile", is_flag=True, help="Leave reconcile and merge out: another job does them.")
@click.option("--barrier", is_flag=True, help="Housekeep with --barrier: close every window to a fresh epoch.")
@removal_options("gc")
@rule_options("merge-")
@common_options
@engine_options("Where each step runs")
@metrics_options
def command(
    settings: Settings,
    no_reconcile: bool,
    barrier: bool,
    dry_run: bool,
    engine: Engine,
    rule: MergeRule,
    **removal: Any,
) -> None:
    """Housekeep, reconcile, merge, expire, compute-watermark, sweep and vacuum, each if it is due: for cron.

    A quiet cluster takes a second or two, without Spark. With --engine local no step starts Spark.

    \b
    Example:
      l0gc gc --min-age 1h
      l0gc gc --dry-run
    """
    out = Output(settings)
    began = time.monotonic()
    with library(settings) as whole:
        cluster, store = whole.handles(), whole.store
        cluster.controller.snapshot()  # without a cluster, nothing begins
        name = new_run(cluster)
        removal |= {"dry_run": dry_run, "run_id": name}
        steps = _steps(out, whole, removal, engine, rule, barrier=barrier)
        if no_reconcile:
            steps = [s for s in steps if s.name not in (RECONCILE, MERGE)]
        if dry_run:
            out.note(
                "a dry run leaves out what comes before compute-watermark, and sweeps by the M that is published now"
            )
            steps = [s for s in steps if s.name in (COMPUTE, SWEEP, VACUUM)]
        failed_before = [a.command for a in read_attempts(store, cluster.parallel).values() if not a.ok]
        run = _Gc(out, steps, failed_before)
        run.play()
    data: dict[str, Any] = {step.replace("-", "_"): run.data(step) for step in STEPS}
    data["not_due"] = {step.replace("-", "_"): why for step, why in run.not_due.items()}
    data["errors"] = run.errors
    data["dry_run"] = dry_run
    data["seconds"] = round(time.monotonic() - began, 3)
    data["run_id"] = name
    width = max(map(len, STEPS)) + 2
    out.result(data, run.lines(width), indent=width)
    run.raise_what_went_wrong()


@dataclass(frozen=True, slots=True)
class _Step:
    """A step: what it does, and why it is not due, read when it comes up; empty if it is."""

    name: str
    work: Callable[[], None]
    not_due: Callable[[], str] = lambda: ""
    done: Callable[[dict[str, Any]], None] = lambda data: None


def _steps(
    out: Output,
    whole: Library,
    removal: dict[str, Any],
    engine: Engine,
    rule: MergeRule,
    *,
    barrier: bool,
) -> list[_Step]:
    """The steps, in their order."""
    cluster = whole.handles()
    of_vacuum = run_id(cluster.now_ms(), cluster.runtime.new_id())  # it has a separate record
    due = Due(
        cluster,
        rule,
        dry_run=removal["dry_run"],
        l1_grace_ms=int(removal["l1_grace_s"] * 1000),
        orphan_age_ms=int(removal["orphan_age_s"] * 1000),
    )

    def expire() -> None:
        from l0gc.cli.retention import run_expire

        run_expire(out, whole)

    def sweep() -> None:
        run_sweep(out, whole, engine, **{k: v for k, v in removal.items() if k not in _OF_VACUUM})

    def vacuum() -> None:
        options = {k: v for k, v in removal.items() if k not in _OF_SWEEP}
        run_vacuum(out, whole, engine, **options | {"run_id": of_vacuum, "orphans": due.orphans()})

    return [
        _Step(HOUSEKEEP, lambda: run_housekeep(out, whole, barrier=barrier)),
        _Step(
            RECONCILE,
            lambda: run_reconcile(out, whole, engine),
            due.no_reconcile,
        ),
        _Step(
            MERGE,
            lambda: run_merge(out, whole, engine, rule),
            due.no_merge,
        ),
        _Step(EXPIRE, expire, due.no_expiry),
        _Step(
            COMPUTE,
            lambda: run_compute_watermark(out, whole, engine, dry_run=removal["dry_run"]),
            due.no_watermark,
            due.computed,
        ),
        _Step(SWEEP, sweep, due.no_sweep, due.swept),
        _Step(VACUUM, vacuum, due.no_vacuum),
    ]


class _Gc:
    """One run: the steps that it has, and what became of each. A step that failed in the last run is due."""

    def __init__(self, out: Output, steps: Sequence[_Step], failed_before: Collection[str]) -> None:
        self._out, self._steps, self._failed_before = out, steps, failed_before
        self.not_due: dict[str, str] = {}
        self._results: dict[str, Result] = {}
        self._signals: list[int] = []
        self._stopped: StoppedError | None = None
        self.errors: list[dict[str, Any]] = []

    def play(self) -> None:
        """Do the steps. Raises only what nobody expects."""
        try:
            with stopping(_interrupt, self._signals):
                for step in self._steps:
                    if is_left_out(step.name, [e["step"] for e in self.errors]):
                        self._out.note(f"{step.name} is left out: M was not computed", "step_left_out", step=step.name)
                    elif not self._do(step):
                        break
        except KeyboardInterrupt:
            code = 128 + (self._signals[0] if self._signals else signal.SIGINT)
            self._stopped = StoppedError(
                "stopped; the steps shown are done, and another run continues from there", code
            )

    def _do(self, s: _Step) -> bool:
        """Whether to go on after this step."""
        step, began = s.name, time.monotonic()
        results: list[Result] = []
        code = INTERRUPTED
        try:
            why = s.not_due() if step not in self._failed_before else ""
            if why:
                with measuring(step):  # that it was not needed is a success
                    self.not_due[step] = why
                code = 0
                return True
            _log.info("%s begins", step, extra=event("step_began", step=step))
            with taking_results() as results, measuring(step):
                s.work()
            code = 0
            s.done(results[-1].data)
        except StoppedError as e:
            self._stopped, code = e, e.exit_code
            return False
        except L0gcError as e:
            code = e.exit_code
            self.errors.append({"step": step, "exit_code": code, "message": str(e)})
            logs.error(f"{step}: {e}", code, step=step)
            return not is_final(e)
        finally:
            if results:
                self._results[step] = results[-1]
            seconds = round(time.monotonic() - began, 3)
            if step in self.not_due:
                fields = event("step_not_due", step=step, reason=self.not_due[step], seconds=seconds)
                _log.info("%s is not due: %s", step, self.not_due[step], extra=fields)
            else:
                numbers = logs.scalars(self.data(step) or {}) | {"step": step, "exit_code": code, "seconds": seconds}
                _log.info("%s ended after %.1f s", step, seconds, extra=event("step_ended", **numbers))
        return True

    def data(self, step: str) -> dict[str, Any] | None:
        """What the step's command would have printed as JSON; None if it did not run, or has no result."""
        return self._results[step].data if step in self._results else None

    def lines(self, width: int) -> list[str]:
        """The same as text, each step's name before its first line."""
        lines = []
        for step in (s.name for s in self._steps):
            text = self._results[step].text if step in self._results else []
            if step in self.not_due:
                text = [f"not due: {self.not_due[step]}"]
            names = [step, *[""] * (len(text) - 1)]
            lines += [f"{name:{width}}{line}" for name, line in zip(names, text, strict=False)]
        return lines

    def raise_what_went_wrong(self) -> None:
        """Raise what sets the exit code.

        Raises:
            StoppedError: a signal ended the run.
            StepsFailedError: steps failed.
        """
        if self._stopped is not None:
            raise self._stopped
        if self.errors:
            failed = ", ".join(f"{e['step']} ({e['exit_code']})" for e in self.errors)
            raise StepsFailedError(
                f"not every step went through: {failed}; what each said is above",
                worst(e["exit_code"] for e in self.errors),
            )


def _interrupt() -> None:
    """Leave a step where it is, as Ctrl-C does: no `except` for errors may take it for one, Spark's neither."""
    raise KeyboardInterrupt
