"""`l0gc housekeep`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from l0gc.cli.metrics_options import metrics_options
from l0gc.cli.options import common_options, open_cluster
from l0gc.cli.output import Output
from l0gc.collect.attempts import Noted
from l0gc.errors import PartialFailureError
from l0gc.figures import count
from l0gc.settings import Settings
from l0gc.streamlog.cluster import Cluster

if TYPE_CHECKING:
    from l0gc.streamlog.housekeep import HousekeepResult


@click.command("housekeep")
@click.option(
    "--barrier",
    is_flag=True,
    help="Close every window to a fresh epoch: all that was uploaded before can go.",
)
@common_options
@metrics_options
def command(settings: Settings, barrier: bool) -> None:
    """Tick if it is due, slide idle windows, checkpoint, truncate, report.

    \b
    Example:
      l0gc housekeep
      l0gc housekeep --barrier     # to drain a quiet cluster
    """
    with open_cluster(settings) as (cluster, _):
        run_housekeep(Output(settings), cluster, barrier=barrier)


def run_housekeep(out: Output, cluster: Cluster, *, barrier: bool) -> None:
    """Housekeep, and tell the result. Raises `PartialFailureError` if a partition could not be looked after."""
    from l0gc.streamlog.housekeep import housekeep

    with Noted(cluster, "housekeep"):
        with out.progress("housekeeping"):
            r = housekeep(cluster, barrier=barrier)
        print_result(out, r, barrier=barrier)


def print_result(out: Output, r: HousekeepResult, *, barrier: bool) -> None:
    """The result of a housekeeping; raises `PartialFailureError` if a partition could not be looked after."""
    moved = f"{count(r.barriers, 'window')} closed" if barrier else f"{count(r.advanced, 'window')} advanced"
    out.result(
        {
            "cluster_epoch": r.cluster_epoch,
            "ticked": r.ticked,
            "partitions": r.partitions,
            "advanced": r.advanced,
            "barriers": r.barriers,
            "checkpoints": r.checkpoints,
            "truncated_entries": r.truncated_entries,
            "closed": r.closed,
            "broken": [msgspec.structs.asdict(b) for b in r.broken],
        },
        [
            f"epoch {r.cluster_epoch}{' (new)' if r.ticked else ''}: {moved} of {count(r.partitions, 'partition')}, "
            f"{count(r.checkpoints, 'checkpoint')}, {count(r.truncated_entries, 'log entry', 'log entries')} truncated"
        ],
    )
    if r.broken:
        raise PartialFailureError(
            f"{count(len(r.broken), 'partition')} could not be looked after, which holds M where it is unless the topic "
            "is deleted: " + "; ".join(b.error for b in r.broken[:3])
        )
