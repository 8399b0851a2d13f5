"""`l0gc runs list` and `l0gc runs show`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from l0gc.cli.names import RUN
from l0gc.cli.object_lines import ObjectLines
from l0gc.cli.options import common_options, open_cluster
from l0gc.cli.output import Output, epoch
from l0gc.collect.record import VACUUM, RecordSource, folder
from l0gc.collect.record_places import FolderRecords
from l0gc.collect.runs import RunEntry, list_runs, show_run
from l0gc.errors import UsageError
from l0gc.formatting import count, size
from l0gc.settings import Settings
from l0gc.storage.objectstore import OFF


def record_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give `command` the option that says where records are, as `record_dir`."""
    return click.option(
        "--record-dir", type=click.Path(file_okay=False, exists=True, path_type=Path), metavar="DIR",
        help="Read the records that l0gc sweep --record-dir kept in this folder.",
    )(command)  # fmt: skip


def records_in(record_dir: Path | None, store: RecordSource) -> RecordSource:
    """Where run records are read."""
    return FolderRecords(record_dir) if record_dir is not None else store


@click.group("runs")
def command() -> None:
    """List and show the records of past sweeps and vacuums.

    \b
    Example:
      l0gc runs list
    """


@command.command("list")
@click.option("--last", type=click.IntRange(1), default=20, show_default=True, metavar="N", help="The N newest runs.")
@record_option
@common_options
def list_command(settings: Settings, last: int, record_dir: Path | None) -> None:
    """List the runs that are on record, the newest last.

    \b
    Example:
      l0gc runs list --last 5
    """
    out = Output(settings)
    with open_cluster(settings) as (cluster, store):
        cluster.identity()
        shown, total = list_runs(records_in(record_dir, store), last)
    lines = [_line(r) for r in shown] or ["no run is on record: none has deleted anything, or the records have expired"]
    if total > len(shown):
        lines.append(f"{count(total - len(shown), 'older run')} not shown (--last)")
    out.result({"runs": [run_data(r) for r in shown], "total": total}, lines)


@command.command("show")
@click.argument("run_id", type=RUN, metavar="RUN")
@click.option("--all", "all_objects", is_flag=True, help="Print every object, as it is read.")
@record_option
@common_options
def show_command(settings: Settings, run_id: str, all_objects: bool, record_dir: Path | None) -> None:
    """Show what became of the objects of one run, also of one that was killed.

    \b
    Example:
      l0gc runs show 20260131T235959Z-0123abcd
      l0gc runs show 20260131T235959Z-0123abcd --all
    """
    out = Output(settings)
    if all_objects and settings.json:
        raise UsageError("--all prints an object on each line, and --json one JSON object: give one of the two")
    with open_cluster(settings) as (cluster, store), ObjectLines.to(None) as lines_of_all:
        cluster.identity()
        records = records_in(record_dir, store)
        each = lines_of_all.recorded if all_objects else lambda row: None
        detail = show_run(cluster, run_id, sample=0 if all_objects else 10, records=records, each=each)
    gone = detail.by_status["deleted"]
    lines = [
        _line(detail.entry),
        f"{count(gone, 'object')} ({size(detail.bytes)}) deleted, epochs {epoch(detail.lowest_epoch)} to "
        f"{epoch(detail.highest_epoch)}; {detail.by_status['failed']:,} failed, {detail.by_status['left']:,} left",
        *(f"  {f.status:8} {f.key}  {size(f.size)}" for f in detail.sample),
    ]
    more = sum(detail.by_status.values()) - len(detail.sample)
    if more > 0 and not all_objects:
        below = f"{record_dir}/" if record_dir is not None else ""
        lines.append(f"  and {more:,} more, in the Parquet files below {below}{folder(run_id)}")
    out.result(
        run_data(detail.entry)
        | {
            "by_status": dict(detail.by_status),
            "deleted_bytes": detail.bytes,
            "lowest_epoch": detail.lowest_epoch,
            "highest_epoch": detail.highest_epoch,
            "sample": [{"key": f.key, "epoch": f.epoch, "size": f.size, "status": f.status} for f in detail.sample],
        },
        lines,
    )


def run_data(r: RunEntry) -> dict[str, Any]:
    """A run, for `--json`."""
    s = r.summary
    return {
        "run_id": r.run_id,
        "started_ms": r.started_ms,
        "ended_ms": s.ended_ms if s else None,
        "outcome": s.outcome if s else "killed",
        "command": s.command if s else None,
        "purge_versions": s.purge_versions if s else None,
        "kinds": {k: {"objects": d.objects, "bytes": d.bytes} for k, d in s.kinds.items()} if s else {},
        "engine": s.engine if s else None,
        "watermark": s.watermark if s else None,
        "deleted": s.deleted if s else None,
        "bytes": s.bytes if s else None,
        "failed": s.failed if s else None,
        "segments": r.segments,
    }


def _line(r: RunEntry) -> str:
    began = f"{datetime.fromtimestamp(r.started_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"
    return f"{r.run_id}  {began}  {run_outcome(r)}"


def run_outcome(r: RunEntry) -> str:
    """What became of a run."""
    if r.summary is None:
        return f"killed, or still running: l0gc runs show {r.run_id}"
    s = r.summary
    failed = f", {s.failed:,} failed" if s.failed else ""
    what = "vacuum" if s.command == VACUUM else f"M = {s.watermark}"
    purged = " for good, with all versions" if s.purge_versions and s.versioning != OFF else ""
    return f"{s.outcome}: {what}, {s.deleted:,} deleted{purged} ({size(s.bytes)}){failed}"
