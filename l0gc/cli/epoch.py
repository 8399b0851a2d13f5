"""`l0gc init` founds a cluster; `l0gc epoch show|advance` is about its epoch."""

from __future__ import annotations

from typing import Any, Final

import click

from l0gc.cli.options import asked, common_options, library
from l0gc.cli.output import Output
from l0gc.formatting import count
from l0gc.keys import DEFAULT_TEMPLATE
from l0gc.settings import Settings
from l0gc.streamlog.controller.entries import DEFAULT_JOURNALS, MAX_JOURNALS
from l0gc.streamlog.topics import AdvancedEpoch


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
def init_command(settings: Settings, **options: Any) -> None:
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


_FAR: Final = 10_000
"""A jump by more epochs is asked about: 10 weeks of ticks."""


@click.group("epoch")
def epoch_command() -> None:
    """Show or advance the cluster epoch.

    \b
    Example:
      l0gc epoch show
      l0gc epoch advance --expect 41
    """


@epoch_command.command("show")
@common_options
def show(settings: Settings) -> None:
    """Show the cluster epoch.

    \b
    Example:
      l0gc epoch show
    """
    with library(settings) as cluster:
        Output(settings).finish(lambda: AdvancedEpoch(cluster.epoch), _lines)


@epoch_command.command("advance")
@click.option("--expect", type=click.IntRange(0), metavar="E", help="Only if the epoch is E; safe to repeat.")
@click.option(
    "--above", type=click.IntRange(0), metavar="E",
    help="To the epoch above E, also where the controller log went back behind what is published.",
)  # fmt: skip
@click.option(
    "--close-unknown-topics", is_flag=True,
    help="With --above: give up topics that journals hold and the restored controller log does not know.",
)  # fmt: skip
@click.option("--yes", is_flag=True, help="Do not ask before the epoch jumps far.")
@common_options
def advance(settings: Settings, expect: int | None, above: int | None, close_unknown_topics: bool, yes: bool) -> None:
    """Advance the cluster epoch by one.

    With --expect it can be repeated when the reply was lost: it advances once.
    With --above one entry brings the epoch above E, which is how a controller log that was restored from a
    backup is brought up again; repeated, it changes nothing. A jump by more than 10,000 epochs is asked about.

    \b
    Example:
      l0gc epoch advance --expect 41
    """
    with library(settings) as cluster:
        if above is not None and not yes and above - (current := cluster.epoch) > _FAR:
            what = f"the cluster epoch from {current} to {above + 1}, which can never be undone"
            asked(settings, "advance", what)
        Output(settings).finish(
            lambda: cluster.advance_epoch(expect, above=above, close_unknown_topics=close_unknown_topics), _lines
        )


def _lines(now: AdvancedEpoch) -> list[str]:
    closed = [f"closed in journal {t.journal}: the topic of revision {t.revision}" for t in now.closed or ()]
    return [str(now.epoch), *closed]
