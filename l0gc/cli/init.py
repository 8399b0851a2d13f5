"""`l0gc init`."""

from __future__ import annotations

from dataclasses import asdict

import click

from l0gc.cli.options import common_options, open_cluster
from l0gc.cli.output import Output
from l0gc.formatting import count
from l0gc.keys import DEFAULT_TEMPLATE
from l0gc.settings import Settings
from l0gc.streamlog.controller.entries import DEFAULT_JOURNALS, MAX_JOURNALS
from l0gc.streamlog.founding import found_cluster


@click.command("init")
@click.option("--create-bucket", is_flag=True, help="Create the bucket if it is not there.")
@click.option("--shards", type=click.IntRange(1, 1000), help="Folders that L0 keys are spread over.  [default: 1000]")
@click.option("--key-template", metavar="TEMPLATE", help=f"The shape of L0 keys.  [default: {DEFAULT_TEMPLATE}]")
@click.option(
    "--journals", type=click.IntRange(1, MAX_JOURNALS),
    help=f"Logs that topics are spread over.  [default: {DEFAULT_JOURNALS}]",
)  # fmt: skip
@click.option(
    "--external-log", is_flag=True, help="Epochs and partitions are those of another system, with a log of its own."
)
@common_options
def command(
    settings: Settings,
    create_bucket: bool,
    shards: int | None,
    key_template: str | None,
    journals: int | None,
    external_log: bool,
) -> None:
    """Probe the store and found a cluster; run again, it changes nothing.

    \b
    Example:
      l0gc init --url s3://bucket/prefix --create-bucket
    """
    out = Output(settings)
    with open_cluster(settings) as (cluster, store):
        made = found_cluster(
            cluster,
            store,
            create_bucket=create_bucket,
            shards=shards,
            key_template=key_template,
            journals=journals,
            external_log=external_log,
        )
    out.result(
        asdict(made),
        [
            f"cluster {made.cluster_id} {'founded' if made.created else 'is here already'} at {store.config.url}",
            f"epoch {made.cluster_epoch}, {count(made.shards, 'shard')}, {count(made.journals, 'journal')}; "
            f"the store passed: {', '.join(made.probed)}",
        ],
    )
