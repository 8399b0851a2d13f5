"""`l0gc sweep`."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from l0gc.api.engine import Engine
from l0gc.cli.files import ObjectLines
from l0gc.cli.metrics_options import metrics_options
from l0gc.cli.options import FILE, common_options, library
from l0gc.cli.output import Output, epoch
from l0gc.cli.run_options import bytes_that_stay, new_run, removal_options
from l0gc.cli.signals import stop_event
from l0gc.cli.spark_options import engine_options
from l0gc.collect.plan import UNKNOWN
from l0gc.collect.sweep import SweepResult
from l0gc.errors import UsageError
from l0gc.formatting import count, size
from l0gc.runtime import give_memory_back
from l0gc.settings import Settings


class ShardRange(click.ParamType[tuple[int, int]]):
    """`000-249`, or one shard; the first and the last."""

    name = "shards"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        m = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", str(value).strip())
        if m is None or int(m[2] or m[1]) < int(m[1]):
            self.fail(f"{value!r} is not a range of shards; use for example 000-249 or 7", param, ctx)
        return int(m[1]), int(m[2] or m[1])


@click.command("sweep")
@removal_options("sweep")
@click.option("--shards", type=ShardRange(), metavar="FIRST-LAST", help="Sweep these shards only, e.g. 000-249.")
@click.option("--purge-versions", is_flag=True, help="Remove every version of what is deleted, for good.")
@click.option(
    "--list",
    "listed",
    type=FILE,
    metavar="FILE",
    help="With --dry-run: write what would be deleted there (key, epoch, bytes, time), - for stdout.",
)
@common_options
@engine_options("Where it runs")
@metrics_options
def command(settings: Settings, engine: Engine, listed: str | None, **options: Any) -> None:
    """Delete the L0 objects whose epoch is at or below the published watermark M.

    \b
    Example:
      l0gc sweep --dry-run
      l0gc sweep --min-age 1h --max-rate 3000
      l0gc sweep --dry-run --list - | head
      l0gc sweep --record-dir /var/lib/l0gc     # the store is full
    """
    if listed is not None and not options["dry_run"]:
        raise UsageError(
            "--list writes what would be deleted, so it belongs to --dry-run; of a run, see l0gc runs show"
        )
    if listed == "-" and settings.json:
        raise UsageError("--list - writes to stdout, and so does --json: name a file for one of them")
    with library(settings) as cluster:
        sweep = partial(cluster.sweep, spark=engine, run_id=new_run(cluster.handles()), **options)
        run_sweep(Output(settings), sweep, listed)


def run_sweep(out: Output, sweep: Callable[..., SweepResult], listed: str | None = None) -> None:
    """Sweep, and print the result.

    Args:
        listed: the file that a dry run lists the objects in, - for stdout; the result is then a note.
    """
    give_memory_back()
    with stop_event() as stop:

        def work() -> SweepResult:
            path = None if listed in (None, "-") else Path(str(listed))
            with ObjectLines.to(path) as lines, out.progress("sweeping") as show:
                gone = None if listed is None else lines.found
                return sweep(progress=show, stop=stop, gone=gone)

        out.finish(work, lines_of, aside=listed == "-")


def lines_of(r: SweepResult) -> list[str]:
    """The run as text."""
    plan = r.plan
    lines = [
        f"M = {epoch(r.watermark)}: {count(r.deleted, 'version' if plan.by_version else 'object')} ({size(r.bytes)}) "
        f"{'would be deleted' if r.dry_run else 'deleted'} in {r.seconds:.1f} s; "
        f"{r.listed:,} listed, {r.eligible:,} eligible, {r.requests['list']:,} LIST and {r.requests['delete']:,} DELETE "
        "requests"
    ]
    if r.watermark < 0:
        lines.append("nothing is published yet: run l0gc compute-watermark")
    if plan.paused:
        lines.append(f"sweeps are paused, so a run would delete nothing: {plan.paused}")
    if r.held_by_age:
        young = count(
            r.held_by_age, "object is too young for --min-age and stays", "objects are too young for --min-age and stay"
        )
        lines.append(f"{young} for now")
    if r.unparsable:
        foreign = count(r.unparsable, "key is not an L0 key and stays", "keys are not L0 keys and stay")
        lines.append(f"{foreign}, e.g. {r.tally.unparsable_samples[0]}")
    if r.uploads_aborted:
        would = "would be " if r.dry_run else ""
        lines.append(f"{count(r.uploads_aborted, 'unfinished upload')} {would}aborted")
    if r.uploads_note:
        lines.append(r.uploads_note)
    if r.throttled:
        waited = f"{r.backpressure_seconds:.1f} s were spent waiting for it"
        lines.append(f"the store asked to slow down {count(r.throttled, 'time')}; {waited}")
    if not plan.purge_versions and r.deleted:
        lines += bytes_that_stay(plan, " or l0gc sweep --purge-versions")
    if r.versioning == UNKNOWN:
        lines.append("whether the bucket keeps versions is not known: the store does not say (s3:GetBucketVersioning)")
    return lines
