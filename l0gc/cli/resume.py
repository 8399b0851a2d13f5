"""`l0gc resume`."""

from __future__ import annotations

import click

from l0gc.cli.options import common_options, open_cluster
from l0gc.cli.output import Output
from l0gc.collect.pause import clear_pause, describe
from l0gc.settings import Settings


@click.command("resume")
@common_options
def command(settings: Settings) -> None:
    """Let sweeps go on after l0gc pause.

    \b
    Example:
      l0gc resume
    """
    out = Output(settings)
    with open_cluster(settings) as (cluster, store):
        cluster.identity()
        pause = clear_pause(store)
    out.result(
        {"was_paused": pause is not None, "why": pause.why if pause else None, "by": pause.by if pause else None},
        [f"sweeps go on; they were paused for: {describe(pause)}" if pause else "sweeps were not paused"],
    )
