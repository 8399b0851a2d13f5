"""`l0gc pause`."""

from __future__ import annotations

import getpass
import socket

import click

from l0gc.cli.options import common_options, open_cluster
from l0gc.cli.output import Output
from l0gc.collect.pause import describe, set_pause
from l0gc.errors import UsageError
from l0gc.settings import Settings


@click.command("pause")
@click.option("--why", required=True, metavar="TEXT", help="The reason, which every sweep then gives.")
@click.option("--by", metavar="NAME", help="Who pauses.  [default: user@host]")
@common_options
def command(settings: Settings, why: str, by: str | None) -> None:
    """Pause all sweeps of this cluster, wherever they run: they exit with 4 and say why, until l0gc resume.

    A sweep that is under way ends in good order, at most 16,000 objects later (on Spark, of each task).
    Uploads, reconcile, housekeep and compute-watermark go on.

    \b
    Example:
      l0gc pause --why "restoring a backup"
    """
    out = Output(settings)
    if not why.strip():
        raise UsageError('--why is empty: say why sweeps are paused, e.g. --why "restoring a backup"')
    if by is not None and not by.strip():
        raise UsageError("--by is empty: say who pauses, or leave it out for user@host")
    with open_cluster(settings) as (cluster, store):
        cluster.identity()
        pause, new = set_pause(store, why, by or user_at_host())
    out.result(
        {"why": pause.why, "by": pause.by, "since_ms": pause.since_ms, "new": new},
        [f"sweeps are paused{'' if new else ' already'}: {describe(pause)}"],
    )


def user_at_host() -> str:
    """The user and the host of this process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container without a name for its user
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
