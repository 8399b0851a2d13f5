"""`l0gc vacuum`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import click

from l0gc.api.engine import Engine
from l0gc.cli.metrics_options import metrics_options
from l0gc.cli.options import common_options, library
from l0gc.cli.output import Output
from l0gc.cli.run_options import bytes_that_stay, new_run, removal_options
from l0gc.cli.signals import stop_event
from l0gc.cli.spark_options import engine_options
from l0gc.collect.garbage import KINDS
from l0gc.collect.vacuum import VacuumResult
from l0gc.formatting import count, size, span
from l0gc.runtime import give_memory_back
from l0gc.settings import Settings


@click.command("vacuum")
@removal_options("vacuum")
@common_options
@engine_options("Where orphans are searched for")
@metrics_options
def command(settings: Settings, engine: Engine, **options: Any) -> None:
    """Delete what else is garbage: replaced and expired L1 objects, orphans, old records.

    L0 objects are deleted by l0gc sweep, log entries by l0gc housekeep.

    \b
    Example:
      l0gc vacuum --dry-run
      l0gc vacuum --l1-grace 2h
    """
    with library(settings) as cluster:
        run_id = new_run(cluster.handles())
        run_vacuum(Output(settings), partial(cluster.vacuum, spark=engine, run_id=run_id, **options))


def run_vacuum(out: Output, vacuum: Callable[..., VacuumResult]) -> None:
    """Vacuum, and print the result."""
    give_memory_back()
    with stop_event() as stop:

        def work() -> VacuumResult:
            with out.progress("vacuuming") as show:
                return vacuum(progress=show, stop=stop)

        out.finish(work, lines_of)


def lines_of(r: VacuumResult) -> list[str]:
    """The run as text."""
    would = "would be deleted" if r.dry_run else "deleted"
    lines = [f"{count(r.objects, 'object')} ({size(r.bytes)}) {would} in {r.seconds:.1f} s"]
    lines += [f"  {d.objects:,} {KINDS[kind].text} ({size(d.bytes)})" for kind, d in r.deleted.items() if d.objects]
    if r.fence is not None:
        listed = count(r.listed, "object")
        lines.append(f"orphans were stamped below epoch {r.fence}, and no journal names them; {listed} listed")
    if r.oldest_dropped_age_s is not None and not r.tally.paused:
        lines.append(
            f"the oldest object that waits for its grace was dropped {span(1000 * r.oldest_dropped_age_s)} ago (--l1-grace)"
        )
    if r.plan.paused:
        lines.append(f"deletions are paused, so a run would delete nothing: {r.plan.paused}")
    if r.unparsable:
        keys = count(r.unparsable, "key is not an L1 key and stays", "keys are not L1 keys and stay")
        lines.append(f"{keys}, e.g. {r.unparsable_samples[0]}")
    if r.objects:
        lines += bytes_that_stay(r.plan)
    return lines
