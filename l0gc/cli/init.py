"""`l0gc init`."""

from __future__ import annotations

import click

from l0gc.cli.options import common_options, open_cluster
from l0gc.cli.output import Output
from l0gc.keys import DEFAULT_TEMPLATE
from l0gc.settings import Settings
from l0gc.storage.probe import probe


@click.command("init")
@click.option("--create-bucket", is_flag=True, help="Create the bucket if it is not there.")
@click.option("--shards", type=click.IntRange(1, 1000), help="Folders that L0 keys are spread over.  [default: 1000]")
@click.option("--key-template", metavar="TEMPLATE", help=f"The shape of L0 keys.  [default: {DEFAULT_TEMPLATE}]")
@click.option(
    "--external-log", is_flag=True, help="Epochs and partitions are those of another system, with a log of its own."
)
@common_options
def command(
    settings: Settings, create_bucket: bool, shards: int | None, key_template: str | None, external_log: bool
) -> None:
    """Probe the store and found a cluster; run again, it changes nothing.

    \b
    Example:
      l0gc init --url s3://bucket/prefix --create-bucket
    """
    out = Output(settings)
    with open_cluster(settings) as (cluster, store):
        if create_bucket:
            store.create_bucket()
        store.now_ms()  # some stores create a bucket at the first write; only --create-bucket may do that
        tried = probe(store, cluster.runtime)
        created = cluster.controller.bootstrap(shards=shards, key_template=key_template, external_log=external_log)
        state = cluster.controller.snapshot()
    out.result(
        {
            "cluster_id": state.cluster_id,
            "cluster_epoch": state.epoch,
            "created": created,
            "shards": state.shards,
            "key_template": state.key_template,
            "external_log": state.external_log,
            "probed": tried,
        },
        [
            f"cluster {state.cluster_id} {'founded' if created else 'is here already'} at {store.config.url}",
            f"epoch {state.epoch}, {state.shards} shards; the store passed: {', '.join(tried)}",
        ],
    )
