"""`l0gc pause` and `l0gc resume`."""

from __future__ import annotations

import click

from l0gc.cli.options import common_options, library
from l0gc.cli.output import Output
from l0gc.collect.pause import describe
from l0gc.settings import Settings


@click.command("pause")
@click.option("--why", required=True, metavar="TEXT", help="The reason, which every sweep then gives.")
@click.option("--by", metavar="NAME", help="Who pauses.  [default: user@host]")
@common_options
def pause_command(settings: Settings, why: str, by: str | None) -> None:
    """Pause all sweeps of this cluster, wherever they run: they exit with 4 and say why, until l0gc resume.

    A sweep in progress ends in good order, at most 16,000 objects later (on Spark, of each task).
    Uploads, reconcile, housekeep and compute-watermark go on.

    \b
    Example:
      l0gc pause --why "restoring a backup"
    """
    with library(settings) as cluster:
        Output(settings).finish(
            lambda: cluster.pause(why, by),
            lambda pause: [f"sweeps are paused{'' if pause.new else ' already'}: {describe(pause)}"],
        )


@click.command("resume")
@common_options
def resume_command(settings: Settings) -> None:
    """Let sweeps go on after l0gc pause.

    \b
    Example:
      l0gc resume
    """
    with library(settings) as cluster:
        pause = cluster.resume()
    Output(settings).result(
        {"was_paused": pause is not None, "why": pause.why if pause else None, "by": pause.by if pause else None},
        [f"sweeps go on; they were paused for: {describe(pause)}" if pause else "sweeps were not paused"],
    )
