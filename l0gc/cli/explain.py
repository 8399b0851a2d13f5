"""`l0gc explain`."""

from __future__ import annotations

import click

from l0gc.cli.options import common_options, library
from l0gc.cli.output import Output, epoch
from l0gc.settings import Settings


@click.command("explain")
@click.argument("key", required=False)
@click.option("--epoch", "epoch_", type=click.IntRange(0), metavar="E", help="What holds the objects of this epoch.")
@click.option("--partition", metavar="TOPIC/N", help="What this partition holds.")
@common_options
def command(settings: Settings, key: str | None, epoch_: int | None, partition: str | None) -> None:
    """Explain why the object KEY is kept or may go, down to the placeholder, and which command moves it.

    KEY is relative to the URL, or a whole s3:// URL.

    \b
    Example:
      l0gc explain level_zero/data/042/000000000000000007/3f1c...
      l0gc explain --epoch 7
      l0gc explain --partition events/0
    """
    with library(settings) as cluster:
        Output(settings).finish(
            lambda: cluster.explain(key, epoch=epoch_, partition=partition),
            lambda e: [
                f"{e.subject}: {e.verdict}",
                f"M = {epoch(e.watermark)} is published; the cluster epoch is {e.cluster_epoch}",
                *e.sentences,
                f"next: {e.next_step}",
            ],
            progress="reading",
        )
