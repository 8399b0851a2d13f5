"""`l0gc epoch show|advance`."""

from __future__ import annotations

import click

from l0gc.cli.options import common_options, open_cluster
from l0gc.cli.output import Output
from l0gc.cli.pause import user_at_host
from l0gc.errors import EpochRegressionError, UsageError
from l0gc.keys import PUBLISHED_WATERMARK
from l0gc.settings import Settings
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.topics import close_unknown_topics as close_all_unknown
from l0gc.watermark.publication import read_published


@click.group("epoch")
def command() -> None:
    """Show or advance the cluster epoch.

    \b
    Example:
      l0gc epoch show
      l0gc epoch advance --expect 41
    """


@command.command("show")
@common_options
def show(settings: Settings) -> None:
    """Show the cluster epoch.

    \b
    Example:
      l0gc epoch show
    """
    out = Output(settings)
    with open_cluster(settings) as (cluster, _):
        epoch = cluster.controller.snapshot().epoch
    out.result({"epoch": epoch}, [str(epoch)])


@command.command("advance")
@click.option("--expect", type=click.IntRange(0), metavar="E", help="Only if the epoch is E; safe to repeat.")
@click.option(
    "--caller", default=user_at_host, show_default="user@host",
    help="Who repeats: a repeated --expect returns this caller's own advance.",
)  # fmt: skip
@click.option(
    "--above", type=click.IntRange(0), metavar="E",
    help="Until the epoch is above E, also where the controller log went back behind what is published.",
)  # fmt: skip
@click.option(
    "--close-unknown-topics", is_flag=True,
    help="With --above: give up topics that journals hold and the restored controller log does not know.",
)  # fmt: skip
@common_options
def advance(settings: Settings, expect: int | None, caller: str, above: int | None, close_unknown_topics: bool) -> None:
    """Advance the cluster epoch by one.

    With --expect it can be repeated when the reply was lost: it advances once.
    With --above it goes on until the epoch is above E, which is how a controller log that was restored from a
    backup is brought up again; repeated, it changes nothing.

    \b
    Example:
      l0gc epoch advance --expect 41
    """
    if above is not None and expect is not None:
        raise UsageError("--expect and --above exclude each other")
    if close_unknown_topics and above is None:
        raise UsageError("--close-unknown-topics goes with --above")
    out = Output(settings)
    with open_cluster(settings) as (cluster, _):
        controller = cluster.controller
        if above is not None:
            _check_far_enough(cluster, above)
        epoch = controller.advance(expect, caller) if above is None else controller.advance_above(above)
        closed = close_all_unknown(cluster) if close_unknown_topics else []
    rows = [{"journal": journal, "revision": revision, "topic_id": name} for journal, revision, name in closed]
    lines = [f"closed in journal {journal}: the topic of revision {revision}" for journal, revision, _ in closed]
    out.result({"epoch": epoch} | ({"closed": rows} if close_unknown_topics else {}), [str(epoch), *lines])


def _check_far_enough(cluster: Cluster, above: int) -> None:
    """Refuse an epoch that would leave the cluster behind what is published: the entries up to it would be for nothing.

    Raises:
        EpochRegressionError: it would; nothing was written.
    """
    published, _ = read_published(cluster.store, cluster.identity().cluster_id)
    highest = -1 if published is None else max(published.watermark, published.cluster_epoch)
    if highest > above + 1:
        raise EpochRegressionError(
            f"--above {above} is not far enough: {PUBLISHED_WATERMARK} knows epoch {highest}, and up to there all is "
            "refused. Nothing was written; give the highest epoch that the bucket knows (docs/operations.md says where)"
        )
