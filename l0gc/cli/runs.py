"""`l0gc runs list`, `show` and `find`, and `l0gc undelete`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from l0gc.api import Cluster
from l0gc.cli.globals import CommandGroup, cli_command
from l0gc.cli.options import RUN, cluster_options
from l0gc.cli.output import Output, object_line, to_stdout
from l0gc.cli.units import Whole
from l0gc.collect.gc_steps import SWEEP, UNDELETE, VACUUM
from l0gc.collect.history import RunDetail, RunEntry, RunList, UndeleteResult
from l0gc.collect.record import RecordedObject, folder
from l0gc.errors import UsageError
from l0gc.formatting import count, epochs, moment, size
from l0gc.storage.objectstore import OFF

record_option: Final = click.option(
    "--record-dir", type=click.Path(file_okay=False, exists=True, path_type=Path), metavar="DIR",
    help="Read the records that l0gc sweep --record-dir kept in this folder.",
)  # fmt: skip


@click.group("runs", cls=CommandGroup)
def command() -> None:
    """List, show and search the records of past sweeps and vacuums.

    \b
    Example:
      l0gc runs list
    """


@command.command("list")
@click.option("--last", type=Whole(1), default=20, show_default=True, metavar="N", help="List the N newest runs.")
@record_option
@cluster_options()
def list_command(out: Output, cluster: Cluster, last: int, record_dir: Path | None) -> None:
    """List the recorded runs, the newest last.

    \b
    Example:
      l0gc runs list --last 5
    """
    out.finish(lambda: cluster.runs.list(last, record_dir=record_dir), _list_lines)


def _list_lines(runs: RunList) -> list[str]:
    if not runs.runs:
        return ["no run is on record: none has deleted anything, or the records have expired"]
    older = runs.total - len(runs.runs)
    more = [f"{count(older, 'older run')} not shown (--last)"] if older else []
    return [*(_line(r) for r in runs.runs), *more]


@command.command("show")
@click.argument("run_id", shell_complete=RUN, metavar="RUN")
@click.option("--all", "all_objects", is_flag=True, help="Print every object when it is read.")
@record_option
@cluster_options()
def show_command(out: Output, cluster: Cluster, run_id: str, all_objects: bool, record_dir: Path | None) -> None:
    """Show the outcome of a run's objects, even if the run was killed.

    \b
    Example:
      l0gc runs show 20260131T235959Z-0123abcd
      l0gc runs show 20260131T235959Z-0123abcd --all
    """
    if all_objects and out.json:
        raise UsageError("--all prints an object on each line, and --json one JSON object: give one of the two")

    def each(row: RecordedObject) -> None:
        if all_objects:
            to_stdout(object_line(row, row.status))

    out.finish(
        lambda: cluster.runs.show(run_id, sample=0 if all_objects else 10, record_dir=record_dir, each=each),
        lambda detail: _show_lines(detail, record_dir, all_objects=all_objects),
    )


def _show_lines(detail: RunDetail, record_dir: Path | None, *, all_objects: bool) -> list[str]:
    if detail.command == UNDELETE:
        return [_line(detail)]
    gone = detail.by_status["deleted"]
    of = f", {epochs(detail.lowest_epoch, detail.highest_epoch)}" if detail.lowest_epoch >= 0 else ""
    lines = [
        _line(detail),
        *(f"  brought back: {_line(r)}" for r in detail.undeletes),
        f"{count(gone, 'object')} ({size(detail.deleted_bytes)}) deleted{of}; {detail.by_status['failed']:,} failed, "
        f"{detail.by_status['left']:,} left",
        *(f"  {f.status:8} {f.key}  {size(f.size)}" for f in detail.sample),
    ]
    more = sum(detail.by_status.values()) - len(detail.sample)
    if more > 0 and not all_objects:
        below = f"{record_dir}/" if record_dir is not None else ""
        lines.append(f"  and {more:,} more, in the Parquet files below {below}{folder(detail.run_id)}")
    return lines


@command.command("find")
@click.argument("key")
@record_option
@cluster_options()
def find_command(out: Output, cluster: Cluster, key: str, record_dir: Path | None) -> None:
    """Find the run that deleted an object, by its key.

    \b
    Example:
      l0gc runs find level_zero/data/000/000000000000000007/0192a8b0-4ff2...
    """
    out.finish(lambda: cluster.runs.find(key, record_dir=record_dir), lambda result: [result.sentence])


def _line(r: RunEntry) -> str:
    return f"{r.run_id}  {moment(r.started_ms)}  {run_outcome(r)}"


def run_outcome(r: RunEntry) -> str:
    """Return the outcome of a run as text."""
    if r.damage:
        return r.damage
    if r.summary is None:
        return f"killed, or still running: l0gc runs show {r.run_id}"
    s = r.summary
    if s.command == UNDELETE:
        return (
            f"{s.outcome}: undelete of run {s.of_run}, {s.restored.objects:,} brought back ({size(s.restored.bytes)})"
        )
    failed = f", {s.failed:,} failed" if s.failed else ""
    up_to = f", up to epoch {s.bound}" if s.bound < s.watermark else ""
    subject = "vacuum" if s.command == VACUUM else f"M = {s.watermark}{up_to}"
    purged = " for good, with all versions" if s.purge_versions and s.versioning != OFF else ""
    rest = f"; {s.rest}" if s.limited else ""
    return f"{s.outcome}: {subject}, {s.objects:,} deleted{purged} ({size(s.bytes)}){failed}{rest}"


@cli_command("undelete")
@click.option(
    "--run", "run_id", required=True, shell_complete=RUN, metavar="RUN", help="The run to undo (l0gc runs list)."
)
@record_option
@cluster_options()
def undelete_command(out: Output, cluster: Cluster, run_id: str, record_dir: Path | None) -> None:
    """Bring back the objects that a sweep or a vacuum deleted from a versioned bucket.

    It removes the delete markers that the run created, while the versions below them still exist. The objects are still
    garbage, so the next sweep or vacuum deletes them again.

    \b
    Example:
      l0gc undelete --run 20260131T235959Z-0123abcd
    """
    out.finish(lambda: cluster.undelete(run_id, record_dir=record_dir), _undelete_lines, title="bringing back")


def _undelete_lines(result: UndeleteResult) -> list[str]:
    lines = [f"{count(result.restored, 'object')} of run {result.run_id} brought back"]
    if result.already:
        lines.append(f"{count(result.already, 'object was', 'objects were')} back before")
    for run, objects in sorted(result.again.items()):
        lines.append(
            f"{count(objects, 'object')} did not come back: run {run} deleted {'it' if objects == 1 else 'them'} again; "
            f"l0gc undelete --run {run}"
        )
    if result.gone:
        lines.append(
            f"{count(result.gone, 'object')} did not come back: no version is left, the store kept the markers, or a "
            f"run that is no longer on record deleted {'it' if result.gone == 1 else 'them'} again"
        )
    if result.restored:
        why = "it is at or below M" if result.command == SWEEP else "no journal names it"
        lines.append(
            f"the next {result.command} deletes what was brought back ({why}): copy it first, or run l0gc pause "
            f"--why TEXT"
        )
    return lines
