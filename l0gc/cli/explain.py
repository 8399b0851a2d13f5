"""`l0gc explain`."""

from __future__ import annotations

import click
import msgspec

from l0gc.cli.options import common_options, open_cluster
from l0gc.cli.output import Output, epoch
from l0gc.errors import UsageError
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
    from l0gc.inspect.explain import explain_epoch, explain_key, explain_partition

    if sum(x is not None for x in (key, epoch_, partition)) != 1:
        raise UsageError("explain one thing: KEY, --epoch E or --partition TOPIC/N")
    out = Output(settings)
    with open_cluster(settings) as (cluster, store), out.progress("reading"):
        if key is not None:
            e = explain_key(cluster, key.removeprefix(store.config.url))
        elif epoch_ is not None:
            e = explain_epoch(cluster, epoch_)
        else:
            e = explain_partition(cluster, partition or "")
    out.result(
        {
            "subject": e.subject,
            "verdict": e.verdict,
            "epoch": e.epoch,
            "watermark": e.watermark,
            "cluster_epoch": e.cluster_epoch,
            "held_by": e.held_by,
            "holders": [msgspec.structs.asdict(h) for h in e.holders],
            "explanation": e.sentences,
            "broken": e.broken,
            "next": e.next_step,
        },
        [
            f"{e.subject}: {e.verdict}",
            f"M = {epoch(e.watermark)} is published; the cluster epoch is {e.cluster_epoch}",
            *e.sentences,
            f"next: {e.next_step}",
        ],
    )
