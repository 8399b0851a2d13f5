"""`l0gc housekeep`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import click

from l0gc.api.cluster import Cluster as Library
from l0gc.cli.metrics_options import metrics_options
from l0gc.cli.options import asked, common_options, library
from l0gc.cli.output import Output
from l0gc.formatting import count
from l0gc.settings import Settings

if TYPE_CHECKING:
    from l0gc.streamlog.housekeep import HousekeepResult


@click.command("housekeep")
@click.option(
    "--barrier",
    is_flag=True,
    help="Close every window to a fresh epoch: all that was uploaded before, and is reconciled, can go.",
)
@click.option(
    "--accept-set-back", type=click.IntRange(0), metavar="JOURNAL",
    help="First go on with a journal that was set back to an older copy, because its newest log is gone for good.",
)  # fmt: skip
@click.option("--yes", is_flag=True, help="Do not ask before that; needed without a terminal to ask at.")
@common_options
@metrics_options
def command(settings: Settings, barrier: bool, accept_set_back: int | None, yes: bool) -> None:
    """Tick if it is due, slide idle windows, close deleted topics, checkpoint and truncate the logs.

    \b
    Example:
      l0gc housekeep
      l0gc housekeep --barrier     # to drain a quiet cluster
    """
    out = Output(settings)
    with library(settings) as cluster:
        if accept_set_back is not None:
            _accept(out, settings, cluster, accept_set_back, yes=yes)
        run_housekeep(out, partial(cluster.housekeep, barrier=barrier), barrier=barrier)


def _accept(out: Output, settings: Settings, cluster: Library, journal: int, *, yes: bool) -> None:
    """Accept a journal as it is. Raises `UsageError` where the user does not say so, or there is nothing to accept."""
    from l0gc.streamlog.set_back import set_back

    if not yes:
        why = set_back(cluster.handles(), journal)
        asked(settings, "accept", f"journal {journal} as it is, though {why}. What its lost entries named is then lost")
    epoch = cluster.accept_set_back(journal)
    out.note(f"journal {journal} is accepted as it is, at epoch {epoch}: run l0gc reconcile next", "set_back_accepted")


def run_housekeep(out: Output, housekeep: Callable[[], HousekeepResult], *, barrier: bool) -> None:
    """Housekeep, and print the result. Raises `PartialFailureError` if it failed for a log."""

    def lines(r: HousekeepResult) -> list[str]:
        moved = f"{count(r.barriers, 'window')} closed" if barrier else f"{count(r.advanced, 'window')} advanced"
        where = f"{count(r.journals, 'journal')} ({count(r.partitions, 'partition')})"
        truncated = count(r.truncated_entries, "log entry", "log entries")
        return [
            f"epoch {r.cluster_epoch}{' (new)' if r.ticked else ''}: {moved} in {where}, "
            f"{count(r.checkpoints, 'checkpoint')}, {truncated} truncated"
        ]

    out.finish(housekeep, lines, progress="housekeeping")
