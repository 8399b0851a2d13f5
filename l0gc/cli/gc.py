"""`l0gc gc` runs the steps of a garbage collection in order, in one process and at most one Spark session."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from typing import Any

from l0gc.api import Cluster, Engine
from l0gc.api.gc import GcResult
from l0gc.cli.cluster import run_housekeep
from l0gc.cli.compute_watermark import run_compute_watermark
from l0gc.cli.globals import cli_command, epoch_interval_option
from l0gc.cli.metrics import Run
from l0gc.cli.metrics_options import measuring, metrics_options
from l0gc.cli.options import cluster_options, engine_options, operation_options
from l0gc.cli.output import Output, measured, taking_results
from l0gc.cli.reconcile import run_merge, run_reconcile
from l0gc.cli.signals import stopping
from l0gc.cli.sweep import new_run, run_sweep, run_vacuum
from l0gc.cli.table import run_table_sync
from l0gc.cli.topic import run_expire
from l0gc.collect.gc_steps import COMPUTE, EXPIRE, HOUSEKEEP, MERGE, RECONCILE, STEPS, SWEEP, TABLE_SYNC, VACUUM
from l0gc.errors import StoppedError
from l0gc.formatting import Outcome
from l0gc.operations import Gc


@cli_command("gc")
@operation_options(Gc)
@cluster_options(engine_options("Where each step runs"), metrics_options, epoch_interval_option)
def command(out: Output, cluster: Cluster, engine: Engine, **options: Any) -> None:
    """Housekeep, reconcile, merge, expire, table sync, compute-watermark, sweep, vacuum, each if due: for cron.

    A quiet cluster takes a second or two. Spark starts only for large work, and never with --engine local. Each step
    takes all options of its command, prefixed with its name: l0gc merge --fan-in is --merge-fan-in here. The settings
    file can set an option for both commands: fan-in = 8 below [merge].

    \b
    Example:
      l0gc gc --sweep-grace 1d --quiet
      l0gc gc --dry-run
      l0gc gc --shadow       # at first: record everything, delete nothing
    """
    text, signals, run_id = dict[str, list[str]](), list[int](), new_run(cluster)
    # These are the functions by which each step's command shows progress, ends on a signal and prints its result.
    run: dict[str, Callable[..., None]] = {
        HOUSEKEEP: partial(run_housekeep, barrier=options["housekeep"] is not None and options["housekeep"].barrier),
        RECONCILE: run_reconcile,
        MERGE: run_merge,
        EXPIRE: run_expire,
        TABLE_SYNC: run_table_sync,
        COMPUTE: run_compute_watermark,
        SWEEP: run_sweep,
        VACUUM: run_vacuum,
    }
    if options["dry_run"]:
        out.note("a dry run skips the steps before compute-watermark, and uses the M that is published now")

    def run_step(step: str, call: Callable[..., Outcome] | None) -> None:
        if call is None:
            if (whole := measured.get()) is not None:
                whole.parts.append(Run(step, due=False))
            return
        with measuring(step), taking_results() as results:
            try:
                run[step](out, call)
            finally:
                text[step] = [line for result in results for line in result.text]

    def work() -> GcResult:
        try:
            with stopping(_interrupt, signals):
                return cluster.gc(engine, run_id=run_id, run_step=run_step, **options)
        except KeyboardInterrupt as e:
            code = 128 + (signals[0] if signals else signal.SIGINT)
            stopped = StoppedError("stopped; the steps shown are done, and another run continues from there", code)
            stopped.result = vars(e).get("so_far")
            raise stopped from e

    def lines(result: GcResult) -> list[str]:
        """Return the lines of each step, the first with the step's name, and a line for all steps that were not due."""
        shown = []
        for step in STEPS:
            for i, line in enumerate(text.get(step, [])):
                shown.append(f"{'' if i else step:{width}}{line}")
        if not result.not_due:
            return shown
        if set(text) <= {HOUSEKEEP} and not (result.errors or signals):
            kept = result.housekeep
            epoch = f"epoch {kept.cluster_epoch}{' (new)' if kept.ticked else ''}: " if kept is not None else ""
            why = result.not_due.get("compute_watermark") or next(iter(result.not_due.values()))
            return [f"{epoch}nothing was due; {why}"]
        return [*shown, f"{'not due':{width}}{', '.join(result.not_due).replace('_', '-')}"]

    width = max(map(len, STEPS)) + 2
    out.finish(work, lines, indent=width)


def _interrupt() -> None:
    """Interrupt a step as Ctrl-C does, so that no `except` for errors, including Spark's, catches it."""
    raise KeyboardInterrupt
