"""`l0gc sweep`."""

from __future__ import annotations

import time

import click

from l0gc.cli.options import Duration, common_options, open_cluster
from l0gc.cli.output import Output, count, epoch, size
from l0gc.errors import PartialFailureError, UsageError
from l0gc.settings import Settings
from l0gc.sweep.local import WORKERS, LocalSweep, SweepResult


@click.command("sweep")
@click.option("--dry-run", is_flag=True, help="Delete nothing; print the numbers that the run would print.")
@click.option("--min-age", type=Duration(), default="0s", show_default=True, help="Leave objects younger than this.")
@click.option("--max-objects", type=click.IntRange(1), metavar="N", help="Delete no more than N objects.")
@click.option(
    "--engine", type=click.Choice(["auto", "local", "spark"]), default="auto", show_default=True,
    help="Where it runs; auto is local.",
)  # fmt: skip
@common_options
def command(settings: Settings, dry_run: bool, min_age: int, max_objects: int | None, engine: str) -> None:
    """Delete the L0 objects whose epoch is at or below the published watermark M.

    \b
    Example:
      l0gc sweep --dry-run
      l0gc sweep --min-age 1h
    """
    if engine == "spark":
        raise UsageError("the spark engine is not part of this version; --engine local sweeps any bucket")
    out = Output(settings)
    started = time.monotonic()
    with open_cluster(settings) as (cluster, _), out.progress("sweeping") as show:
        sweep = LocalSweep(
            cluster,
            dry_run=dry_run,
            min_age_ms=min_age * 1000,
            max_objects=max_objects,
            progress=lambda deleted: show(f"{count(deleted, 'object')} deleted"),
        )
        result = sweep.run(cluster.parallel, WORKERS if max_objects is None else 1)
    print_result(out, result, time.monotonic() - started)


def print_result(out: Output, r: SweepResult, seconds: float) -> None:
    """The result of a sweep; raises `PartialFailureError` if objects could not be deleted."""
    c = r.counts
    lists = c.requests
    done = "would be deleted" if r.dry_run else "deleted"
    lines = [
        f"M = {epoch(r.watermark)}: {count(r.deleted, 'object')} ({size(r.bytes)}) {done} in {seconds:.1f} s; "
        f"{c.listed:,} listed, {c.eligible:,} eligible, {lists:,} LIST and {r.delete_requests:,} DELETE requests"
    ]
    if r.watermark < 0:
        lines.append("nothing is published yet: run l0gc compute-watermark")
    if c.held_by_age:
        lines.append(f"{count(c.held_by_age, 'object')} too young for --min-age stay for now")
    if c.unparsable:
        lines.append(f"{count(c.unparsable, 'key')} are no L0 keys and stay, e.g. {c.unparsable_sample}")
    out.result(
        {
            "watermark": r.watermark,
            "dry_run": r.dry_run,
            "listed": c.listed,
            "eligible": c.eligible,
            "deleted": r.deleted,
            "bytes": r.bytes,
            "failed": r.failed,
            "held_by_age": c.held_by_age,
            "unparsable": c.unparsable,
            "requests": {"list": lists, "delete": r.delete_requests},
            "failures": [{"key": f.key, "code": f.code, "message": f.message} for f in r.failures],
            "engine": "local",
            "seconds": round(seconds, 3),
            "run_id": r.run_id,
        },
        lines,
    )
    if r.failed:
        first = r.failures[0]
        raise PartialFailureError(
            f"{count(r.failed, 'object')} could not be deleted, the rest is done; the first is {first.key}: "
            f"{first.code} {first.message}. Run the sweep again"
        )
