"""`l0gc init`."""

from __future__ import annotations

from typing import Any

import click

from l0gc.cli.options import common_options, library
from l0gc.cli.output import Output
from l0gc.formatting import count
from l0gc.keys import DEFAULT_TEMPLATE
from l0gc.settings import Settings
from l0gc.streamlog.controller.entries import DEFAULT_JOURNALS, MAX_JOURNALS


@click.command("init")
@click.option("--create-bucket", is_flag=True, help="Create the bucket if it is not there.")
@click.option("--shards", type=click.IntRange(1, 1000), help="Folders that L0 keys are spread over.  [default: 1000]")
@click.option("--key-template", metavar="TEMPLATE", help=f"The shape of L0 keys.  [default: {DEFAULT_TEMPLATE}]")
@click.option(
    "--journals", type=click.IntRange(1, MAX_JOURNALS),
    help=f"Logs that topics are spread over.  [default: {DEFAULT_JOURNALS}]",
)  # fmt: skip
@click.option(
    "--external-log", is_flag=True, help="Epochs and partitions are those of another system, with its own log."
)
@common_options
def command(settings: Settings, **options: Any) -> None:
    """Probe the store and found a cluster; run again, it changes nothing.

    \b
    Example:
      l0gc init --url s3://bucket/prefix --create-bucket
    """
    with library(settings) as cluster:
        Output(settings).finish(
            lambda: cluster.init(**options),
            lambda made: [
                f"cluster {made.cluster_id} {'founded' if made.created else 'is here already'} at {cluster.url}",
                f"epoch {made.cluster_epoch}, {count(made.shards, 'shard')}, {count(made.journals, 'journal')}; "
                f"the store passed: {', '.join(made.probed)}",
            ],
        )
