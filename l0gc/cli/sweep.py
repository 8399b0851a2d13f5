"""`l0gc sweep` and `l0gc vacuum`, and the functions by which they and `l0gc gc` print their results."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from l0gc.api import Cluster, Engine
from l0gc.cli import logs
from l0gc.cli.globals import FILE, cli_command
from l0gc.cli.metrics_options import metrics_options
from l0gc.cli.options import cluster_options, engine_options, operation_options
from l0gc.cli.output import Output, R, epoch, listing
from l0gc.cli.signals import stop_event
from l0gc.collect.plan import UNKNOWN, DeletionPlan, run_id
from l0gc.collect.run import RunResult
from l0gc.collect.sweep import SweepResult
from l0gc.collect.vacuum import KINDS
from l0gc.errors import UsageError
from l0gc.formatting import count, size, span
from l0gc.operations import Sweep, Vacuum
from l0gc.runtime import give_memory_back
from l0gc.storage.objectstore import ENABLED, SUSPENDED

if TYPE_CHECKING:
    from l0gc.collect.vacuum import VacuumResult


def new_run(cluster: Cluster) -> str:
    """Return a name for the run's record, which ends with the start of the log's `run_id`, and add it to the log's
    events.
    """
    logs.HANDLER.run = run_id(cluster.handles().now_ms(), logs.HANDLER.run_id)
    return logs.HANDLER.run


@cli_command("sweep")
@operation_options(Sweep)
@click.option(
    "--list",
    "listed",
    type=FILE,
    metavar="FILE",
    help="With --dry-run: write the objects that would be deleted to this file (key, epoch, bytes, time); - for "
    "stdout.",
)
@cluster_options(engine_options(), metrics_options)
def sweep_command(out: Output, cluster: Cluster, engine: Engine, listed: str | None, **options: Any) -> None:
    """Delete the L0 objects whose epoch is at or below the published watermark M.

    \b
    Example:
      l0gc sweep --dry-run
      l0gc sweep --shadow                       # for l0gc verify --shadow
      l0gc sweep --grace 1d --max-rate 3000
      l0gc sweep --up-to 4100                   # a canary: less than M allows
      l0gc sweep --dry-run --list - | head
      l0gc sweep --record-dir /var/lib/l0gc     # the store is full
    """
    if listed is not None and not options["dry_run"]:
        raise UsageError(
            "--list needs --dry-run, since it writes what would be deleted; l0gc runs show lists what a run deleted"
        )
    if listed == "-" and out.json:
        raise UsageError("--list - writes to stdout, and so does --json: name a file for one of them")
    run_id = new_run(cluster)

    def sweep(**hooks: Any) -> SweepResult:
        with listing(listed) as gone:
            return cluster.sweep(engine, run_id=run_id, gone=gone, **options, **hooks)

    run_sweep(out, sweep, aside=listed == "-")


def _run_deletion(out: Output, work: Callable[..., R], **shown: Any) -> None:
    """Run a deletion, and print its result as `Output.finish` does. The first signal ends the run in good order."""
    give_memory_back()
    with stop_event() as stop:
        out.finish(partial(work, stop=stop), reports=True, **shown)


def swept(r: SweepResult) -> list[str]:
    """Return a sweep's result as text."""
    plan = r.plan
    up_to = (f", up to epoch {r.bound}" if r.bound >= 0 else ", nothing yet") if r.bound < r.watermark else ""
    lines = [
        f"M = {epoch(r.watermark)}{up_to}: {count(r.deleted, 'version' if plan.by_version else 'object')} ({size(r.bytes)}) "
        f"{'would be deleted' if r.dry_run else f'deleted in {r.seconds:.1f} s'}; "
        f"{r.listed:,} listed, {r.eligible:,} eligible, {r.requests['list']:,} LIST and "
        f"{count(r.requests['delete'], 'DELETE request')}"
    ]
    lines += _limit(r)
    if plan.options.grace_s and r.bound < r.watermark:
        lines.append(
            f"--grace held back what only an M published within this time allows: "
            f"{span(int(1000 * plan.options.grace_s))}"
        )
    if r.watermark < 0:
        lines.append("nothing is published yet: run l0gc compute-watermark")
    if plan.options.shadow:
        before = r.eligible - r.held_by_age - r.deleted
        more = f", and {count(before, 'object')} by earlier ones" if before > 0 and not r.limited else ""
        lines.append(
            f"shadow run {r.run_id}: nothing was deleted, and it is on record{more}; l0gc verify --shadow checks it"
        )
    if plan.paused:
        lines.append(f"sweeps are paused, so a run would delete nothing: {plan.paused}")
    if r.held_by_age:
        young = count(
            r.held_by_age, "object is too young for --min-age and stays", "objects are too young for --min-age and stay"
        )
        lines.append(f"{young} for now")
    if r.unparsable:
        foreign = count(r.unparsable, "key is not an L0 key and stays", "keys are not L0 keys and stay")
        lines.append(f"{foreign}, e.g. {r.unparsable_samples[0]}")
    lines += _uploads(r)
    if r.throttled:
        waited = f"{r.backpressure_seconds:.1f} s were spent waiting for it"
        lines.append(f"the store asked to slow down {count(r.throttled, 'time')}; {waited}")
    if not plan.by_version and r.deleted:
        lines += bytes_that_stay(plan, " or l0gc sweep --purge-versions")
    if r.versioning == UNKNOWN:
        lines.append("it is unknown whether the bucket keeps versions: the store did not answer s3:GetBucketVersioning")
    return lines


@cli_command("vacuum")
@operation_options(Vacuum)
@cluster_options(engine_options("Where orphans are searched for"), metrics_options)
def vacuum_command(out: Output, cluster: Cluster, engine: Engine, **options: Any) -> None:
    """Delete all other garbage: replaced and expired L1 objects, orphans and old records.

    l0gc sweep deletes L0 objects, and l0gc housekeep deletes log entries.

    \b
    Example:
      l0gc vacuum --dry-run
      l0gc vacuum --l1-grace 2h
    """
    run_vacuum(out, partial(cluster.vacuum, engine, run_id=new_run(cluster), **options))


def vacuumed(r: VacuumResult) -> list[str]:
    """Return a vacuum's result as text."""
    done = "would be deleted" if r.dry_run else f"deleted in {r.seconds:.1f} s"
    lines = [f"{count(r.objects, 'object')} ({size(r.bytes)}) {done}"]
    lines += [f"  {KINDS[kind].text}: {d.objects:,} ({size(d.bytes)})" for kind, d in r.deleted.items() if d.objects]
    lines += _limit(r)
    if r.fence is not None:
        listed = count(r.listed, "object")
        lines.append(f"orphans were stamped below epoch {r.fence}, and no journal names them; {listed} listed")
    if r.oldest_dropped_age_s is not None and (r.dry_run or not r.paused):
        lines.append(
            f"the oldest object that waits for its grace was dropped {span(1000 * r.oldest_dropped_age_s)} ago (--l1-grace)"
        )
    if r.plan.paused:
        lines.append(f"deletions are paused, so a run would delete nothing: {r.plan.paused}")
    if r.unparsable:
        keys = count(r.unparsable, "key is not an L1 key and stays", "keys are not L1 keys and stay")
        lines.append(f"{keys}, e.g. {r.unparsable_samples[0]}")
    lines += _uploads(r)
    if r.objects:
        lines += bytes_that_stay(r.plan)
    return lines


def _limit(r: RunResult) -> list[str]:
    return [r.rest] if r.limited and not r.over_ratio else []  # the run's error explains it


def _uploads(r: RunResult) -> list[str]:
    would = "would be " if r.dry_run else ""
    aborted = [f"{count(r.uploads_aborted, 'unfinished upload')} {would}aborted"] if r.uploads_aborted else []
    return aborted + ([r.uploads_note] if r.uploads_note else [])


def bytes_that_stay(plan: DeletionPlan[Any], or_what: str = "") -> list[str]:
    """Return a sentence about the bytes that remain after a run in a bucket that keeps, or kept, versions.

    Args:
        plan: the run's plan. After a dry run, nothing can be brought back.
        or_what: what else, apart from a lifecycle rule, removes the bytes.
    """
    undelete = ""
    options = plan.options
    if options.record and not options.dry_run:
        in_folder = f" --record-dir {options.record_dir}" if options.record_dir is not None else ""
        undelete = f"; l0gc undelete --run {plan.run_id}{in_folder} brings them back until then"
    return {
        ENABLED: [f"the bucket keeps versions: the bytes stay until a lifecycle rule{or_what} removes them{undelete}"],
        SUSPENDED: [
            "the bucket's versioning is suspended: what was written since is gone for good; the bytes of what was written "
            f"before stay until a lifecycle rule{or_what} removes them{undelete}"
        ],
    }.get(plan.versioning, [])


run_sweep: Final = partial(_run_deletion, lines=swept, title="sweeping")
run_vacuum: Final = partial(_run_deletion, lines=vacuumed, title="vacuuming")
"""Runs a step, shows its progress and prints its result, for its command and for `l0gc gc`."""
