"""`l0gc gc`: the steps of a garbage collection, one after another, in one process and at most one Spark session."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable
from typing import Any, Final

import click

from l0gc.cli import logs
from l0gc.cli.compute_watermark import run_compute_watermark
from l0gc.cli.exit_codes import INTERRUPTED
from l0gc.cli.housekeep import run_housekeep
from l0gc.cli.metrics_options import measuring, metrics_options
from l0gc.cli.options import common_options, open_cluster
from l0gc.cli.output import Output, Result, taking_results
from l0gc.cli.pause import whoever
from l0gc.cli.reconcile import run_reconcile
from l0gc.cli.signals import stopping
from l0gc.cli.spark_options import OneSession, open_spark, spark_options
from l0gc.cli.sweep import Limits, eligible, limits, run_sweep
from l0gc.collect.gc_steps import COMPUTE, HOUSEKEEP, RECONCILE, STEPS, SWEEP, is_final, is_left_out, worst
from l0gc.collect.plan import choose_engine, run_id
from l0gc.collect.under_way import UnderWay, announced, describe
from l0gc.errors import L0gcError, StepsFailedError, StoppedError
from l0gc.events import event
from l0gc.settings import Settings

_log: Final = logging.getLogger(__name__)


@click.command("gc")
@click.option(
    "--dry-run", is_flag=True, help="Change nothing: compute M and show what a sweep by the published M would do."
)
@click.option("--no-reconcile", is_flag=True, help="Leave reconcile out: another job does it.")
@click.option("--barrier", is_flag=True, help="Housekeep with --barrier: close every window to a fresh epoch.")
@limits
@spark_options
@common_options
@metrics_options
def command(
    settings: Settings,
    dry_run: bool,
    no_reconcile: bool,
    barrier: bool,
    bounds: Limits,
    master: str | None,
    conf: tuple[str, ...],
) -> None:
    """Housekeep, reconcile, compute-watermark and sweep, one after another, with one Spark session: for cron.

    \b
    Example:
      l0gc gc --min-age 1h
      l0gc gc --dry-run
    """
    out = Output(settings)
    began = time.monotonic()
    session = OneSession(lambda: open_spark(settings, "gc", master, conf), conf)
    with open_cluster(settings) as (cluster, store):
        cluster.controller.snapshot()  # without a cluster, nothing begins
        now_ms = store.now_ms()
        name = run_id(now_ms, cluster.runtime.new_id())
        logs.set_run_id(name)
        options = bounds.options(dry_run=dry_run, run_id=name)

        def sweep() -> None:
            chosen, why = choose_engine(bounds.engine, master, lambda: eligible(cluster), limited=bounds.limited)
            run_sweep(out, cluster, store, options, session, chosen, why, bounds.keep_runs)

        work: dict[str, Callable[[], None]] = {
            HOUSEKEEP: lambda: run_housekeep(out, cluster, barrier=barrier),
            RECONCILE: lambda: run_reconcile(out, cluster, store.config, session),
            COMPUTE: lambda: run_compute_watermark(out, cluster, store.config, session, dry_run=dry_run),
            SWEEP: sweep,
        }
        if no_reconcile:
            del work[RECONCILE]
        if dry_run:
            out.note("a dry run leaves housekeep and reconcile out, and sweeps by the M that is published now")
            work.pop(HOUSEKEEP)
            work.pop(RECONCILE, None)
        run = _Gc(out, work)
        with announced(store, UnderWay(name, whoever(), now_ms), quietly=dry_run) as others:
            for other in others:
                out.note(describe(other), "another_gc", other_run_id=other.run_id, by=other.by)
            with session:
                run.play()
    data: dict[str, Any] = {step.replace("-", "_"): run.data(step) for step in STEPS}
    data["errors"] = run.errors
    data["others"] = [other.run_id for other in others]
    data["dry_run"] = dry_run
    data["seconds"] = round(time.monotonic() - began, 3)
    data["run_id"] = name
    width = max(map(len, STEPS)) + 2
    out.result(data, run.lines(width), indent=width)
    run.raise_what_went_wrong()


class _Gc:
    """One run: the steps that it has, and what became of each."""

    def __init__(self, out: Output, work: dict[str, Callable[[], None]]) -> None:
        self._out, self._work = out, work
        self._results: dict[str, Result] = {}
        self._signals: list[int] = []
        self._stopped: StoppedError | None = None
        self.errors: list[dict[str, Any]] = []

    def play(self) -> None:
        """Do the steps. Raises only what nobody expects."""
        try:
            with stopping(_interrupt, self._signals):
                for step, work in self._work.items():
                    if is_left_out(step, [e["step"] for e in self.errors]):
                        self._out.note(f"{step} is left out: M was not computed", "step_left_out", step=step)
                    elif not self._do(step, work):
                        break
        except KeyboardInterrupt:
            code = 128 + (self._signals[0] if self._signals else signal.SIGINT)
            self._stopped = StoppedError(
                "stopped; the steps shown are done, and another run continues from there", code
            )

    def _do(self, step: str, work: Callable[[], None]) -> bool:
        """Whether to go on behind this step."""
        _log.info("%s begins", step, extra=event("step_began", step=step))
        began = time.monotonic()
        results: list[Result] = []
        code = INTERRUPTED
        try:
            with taking_results() as results, measuring(step):
                work()
            code = 0
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
            numbers = logs.scalars(self.data(step) or {}) | {"step": step, "exit_code": code, "seconds": seconds}
            _log.info("%s ended after %.1f s", step, seconds, extra=event("step_ended", **numbers))
        return True

    def data(self, step: str) -> dict[str, Any] | None:
        """What the step's command would have printed as JSON; None if it did not run, or has no result."""
        return self._results[step].data if step in self._results else None

    def lines(self, width: int) -> list[str]:
        """The same as text, each step's name before its first line."""
        lines = []
        for step, result in self._results.items():
            names = [step, *[""] * (len(result.text) - 1)]
            lines += [f"{name:{width}}{text}" for name, text in zip(names, result.text, strict=True)]
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
