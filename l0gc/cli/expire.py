"""`l0gc expire`."""

from __future__ import annotations

from typing import Final

import click

from l0gc.cli.names import TOPIC
from l0gc.cli.options import common_options, open_cluster
from l0gc.cli.output import Output
from l0gc.cli.retention import tell
from l0gc.cli.signals import telling_stop
from l0gc.collect.attempts import LastRun
from l0gc.settings import Settings
from l0gc.streamlog.cluster import Cluster

SHOWN: Final = 20
"""Partitions that are named."""


@click.command("expire")
@click.argument("topic", required=False, type=TOPIC)
@click.option("--dry-run", is_flag=True, help="Delete nothing; say what a run would delete.")
@common_options
def command(settings: Settings, topic: str | None, dry_run: bool) -> None:
    """Delete the records of TOPIC, or of all topics, that are beyond the topic's retention.

    By Kafka's rules, where a segment is an L1 object: what is not in L1 yet stays. Readers see no more of the records at
    once; l0gc vacuum removes the L1 objects later.

    \b
    Example:
      l0gc topic alter events --retention-ms 7d
      l0gc expire --dry-run
    """
    with open_cluster(settings) as (cluster, _):
        run_expire(Output(settings), cluster, topic, dry_run=dry_run)


def run_expire(out: Output, cluster: Cluster, topic: str | None = None, *, dry_run: bool = False) -> None:
    """Delete what is beyond retention, and tell the result. Raises as `tell` does."""
    from l0gc.streamlog.level_one.expire import expire

    whole = topic is None and not dry_run
    with telling_stop(lambda: "what is deleted stays deleted; l0gc expire continues from there"):
        with LastRun(cluster, "expire", whole=whole), out.progress("expiring") as show:
            show("reading the journals")
            result = expire(cluster, topic, dry_run=dry_run, shown=SHOWN)
        tell(out, result, dry_run=dry_run)
