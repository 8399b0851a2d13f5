"""`l0gc compute-watermark`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from l0gc.api import Cluster, Engine
from l0gc.cli import logs
from l0gc.cli.globals import cli_command
from l0gc.cli.metrics_options import metrics_options
from l0gc.cli.options import asked, cluster_options, engine_options, operation_options, yes_option
from l0gc.cli.output import Output, epoch, held_back
from l0gc.cli.units import Whole, duration
from l0gc.errors import UsageError
from l0gc.formatting import count, size, span
from l0gc.operations import ComputeWatermark
from l0gc.watermark.publication import what_is_lost
from l0gc.watermark.source import HELD_BACK_SHOWN, PINNED

if TYPE_CHECKING:
    from l0gc.watermark.external_files import ExternalFiles
    from l0gc.watermark.pipeline import WatermarkResult
    from l0gc.watermark.scans import ScanReport, ScanRow

_HELD_LINES: Final = 3


@cli_command("compute-watermark")
@operation_options(ComputeWatermark)
@click.option(
    "--reports", metavar="PATH", help="The reports of another system, as Parquet, CSV or NDJSON, local or s3://."
)
@click.option("--partitions", metavar="PATH", help="The partitions of that system, as of one snapshot.")
@click.option("--cluster-epoch", type=Whole(0), metavar="E", help="The epoch of that system at the snapshot.")
@click.option("--snapshot-age", type=duration, help="The largest age of the snapshot.  [default: 1h]")
@click.option(
    "--expect-partitions",
    type=Whole(0),
    metavar="N",
    help="Require N partitions. Without this, a folder must have a file _SUCCESS.",
)
@click.option(
    "--allow-no-partitions",
    is_flag=True,
    help="Accept that the system has no partitions, so that everything up to E may be deleted.",
)
@click.option(
    "--allow-fewer-partitions", is_flag=True, help="Accept that the system has deleted partitions since the last run."
)
@click.option("--allow-unlisted-reports", is_flag=True, help="Accept reports of partitions that were deleted.")
@click.option(
    "--accept-lost",
    is_flag=True,
    help="Publish M although published.json is lost, damaged or foreign. Show the loss, and ask first.",
)
@yes_option
@cluster_options(engine_options("Where M is computed"), metrics_options)
def command(
    out: Output,
    cluster: Cluster,
    engine: Engine,
    scan: bool,
    dry_run: bool,
    accept_lost: bool,
    yes: bool,
    **theirs: Any,
) -> None:
    """Compute M from the journals, count the objects in the bucket, and publish M.

    With --reports and --partitions, M is computed for a system with an external log (l0gc init --external-log).

    \b
    Example:
      l0gc compute-watermark
      l0gc compute-watermark --no-scan --json
      l0gc compute-watermark --reports r/ --partitions p.csv --cluster-epoch 47
    """
    files = _external_files(**theirs)
    if accept_lost and (loss := what_is_lost(cluster.handles())):
        if not (yes or dry_run):
            asked(out, cluster, "accept", f"that {loss}")
        out.note(loss, "lost_watermark")
    compute = partial(
        cluster.compute_watermark, engine, scan=scan, external=files, dry_run=dry_run, accept_lost=accept_lost
    )
    run_compute_watermark(out, compute)


def run_compute_watermark(out: Output, compute: Callable[..., WatermarkResult]) -> None:
    """Compute M, and print the result."""

    def stays(reported: object) -> str:
        return f"M is published whole or not at all; run l0gc {logs.running('compute-watermark')} again"

    out.finish(compute, partial(_lines, out), title="computing M", reports=True, stays=stays)


def _external_files(reports: str | None, partitions: str | None, **more: Any) -> ExternalFiles | None:
    """Return the paths of another system's files; None if none are given."""
    if (reports is None) != (partitions is None):
        raise UsageError("--reports and --partitions need each other")
    if reports is None or partitions is None:
        if given := [name for name, value in more.items() if value is not None and value is not False]:
            raise UsageError(f"--{given[0].replace('_', '-')} needs --reports and --partitions")
        return None
    from l0gc.watermark.external_files import ExternalFiles

    age = more.pop("snapshot_age")
    if age is not None:
        more["snapshot_age_ms"] = age * 1000
    return ExternalFiles(reports, partitions, **more)


def _lines(out: Output, result: WatermarkResult) -> list[str]:
    lines = [
        f"M = {epoch(result.watermark)} (was {epoch(result.previous_watermark)}), cluster epoch {result.cluster_epoch}, "
        f"{count(result.partitions, 'partition')}{'' if result.published else '; not published'}"
    ]
    if result.overtaken:
        lines.append(
            f"a faster run has published M = {epoch(result.previous_watermark)} since this one began, which stays"
        )
    if result.listing is not None:
        lines += _listing_lines(result, result.listing)
    cut = len(result.held_back_by) == HELD_BACK_SHOWN
    lines += [f"held back by {line}" for line in held_back(result.held_back_by, cut=cut)]
    if out.verbose:
        lines.append("seconds: " + ", ".join(f"{name} {s:.1f}" for name, s in result.seconds.items()))
    for u in result.unreadable:
        out.note(f"{u.unit} cannot be read, so M does not pass it: {u.error}", "unreadable", needed=True, unit=u.unit)
    return lines


def _listing_lines(result: WatermarkResult, seen: ScanReport) -> list[str]:
    lines = [
        f"L0 holds {count(seen.objects, 'object')} ({size(seen.bytes)}); eligible now: "
        f"{seen.eligible_objects:,} ({size(seen.eligible_bytes)}{_oldest(seen.oldest_eligible_age_s)})"
    ]
    rows_by_holder: dict[str, list[ScanRow]] = {}
    for r in seen.epochs:
        if r.epoch is not None and r.epoch > result.watermark:
            rows_by_holder.setdefault(_held(result, r.epoch, r), []).append(r)
    most = sorted(rows_by_holder.items(), key=lambda item: -sum(r.bytes for r in item[1]))
    for by, rows in most[:_HELD_LINES]:
        oldest = _oldest((seen.taken_ms - min(r.oldest_ms for r in rows)) / 1000)
        lines.append(f"held {by}: {_sums(rows)}{oldest})")
    if rest := [r for _, rows in most[_HELD_LINES:] for r in rows]:
        lines.append(f"held by others: {_sums(rest)}; --json has them)")
    if seen.unparsable:
        lines.append(f"{count(seen.unparsable, 'unrecognized key')}, never deleted, for example:")
        lines += [f"  {key}" for key in seen.unparsable_samples]
    return lines


def _held(result: WatermarkResult, epoch: int, r: ScanRow) -> str:
    """Return the holders of an epoch as text. If no partition in the run's snapshot needs the epoch, only pins hold it."""
    if r.held_by:
        return f"by {r.held_by}{f' and {r.holders - 1:,} more' if r.holders > 1 else ''}"
    if epoch > result.cluster_epoch:
        return "until the next run (newer than the snapshot)"
    pins = [h.reason for h in result.held_back_by if h.kind == PINNED]
    return f"by {pins[0]}" if len(pins) == 1 else "by pins (l0gc pin list)"


def _sums(rows: Sequence[ScanRow]) -> str:
    return f"{count(sum(r.objects for r in rows), 'object')} ({size(sum(r.bytes for r in rows))}"


def _oldest(age_s: float | None) -> str:
    return "" if age_s is None else f", oldest {span(age_s * 1000)}"
