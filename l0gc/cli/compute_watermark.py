"""`l0gc compute-watermark`."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from l0gc.cli.options import common_options, open_cluster
from l0gc.cli.output import Output, count, epoch, held_back, size
from l0gc.cli.spark_options import open_spark, spark_options
from l0gc.settings import Settings


@click.command("compute-watermark")
@click.option("--scan/--no-scan", default=True, show_default=True, help="Read the listing, too: what is eligible.")
@click.option("--dry-run", is_flag=True, help="Compute M and publish nothing.")
@spark_options
@common_options
def command(settings: Settings, scan: bool, dry_run: bool, master: str | None, conf: tuple[str, ...]) -> None:
    """Compute M from the partitions' reports, look at what the bucket holds, and publish M, on Spark.

    \b
    Example:
      l0gc compute-watermark
      l0gc compute-watermark --no-scan --json
    """
    out = Output(settings)
    with open_cluster(settings) as (cluster, store):
        cluster.controller.snapshot()  # what is wrong with the arguments is said before Spark starts
        with out.progress("computing M"), open_spark(settings, "compute-watermark", master, conf) as spark:
            from l0gc.spark import watermark_job

            result = watermark_job.run(spark, cluster, store.config, scan=scan, publish_it=not dry_run)
    print_result(out, result)


def print_result(out: Output, result) -> None:  # type: ignore[no-untyped-def]  # WatermarkResult, whose module needs Spark
    """The result of a compute-watermark run."""
    w, listing = result.watermark, result.listing
    data: dict[str, Any] = {
        "watermark": w.watermark,
        "previous_watermark": result.previous_watermark,
        "cluster_epoch": w.cluster_epoch,
        "partitions": w.partitions,
        "held_back_by": [msgspec.structs.asdict(h) for h in w.held_back_by],
        "listing": None,
        "published": result.published,
    }
    lines = [
        f"M = {epoch(w.watermark)} (was {epoch(result.previous_watermark)}), cluster epoch {w.cluster_epoch}, "
        f"{count(w.partitions, 'partition')}{'' if result.published else '; not published'}"
    ]
    if listing is not None:
        data["listing"] = {
            "objects": listing.objects,
            "bytes": listing.bytes,
            "eligible_objects": listing.eligible_objects,
            "eligible_bytes": listing.eligible_bytes,
            "unparsable": listing.unparsable,
            "epochs": [{"epoch": r.epoch, "objects": r.objects, "bytes": r.bytes} for r in listing.epochs],
        }
        lines.append(
            f"L0 holds {count(listing.objects, 'object')} ({size(listing.bytes)}); eligible now: "
            f"{listing.eligible_objects:,} ({size(listing.eligible_bytes)})"
        )
        if listing.unparsable:
            lines.append(
                f"{count(listing.unparsable, 'key')} are no L0 keys and are never deleted, e.g. {listing.unparsable_sample}"
            )
    lines += [f"held back by {line}" for line in held_back(w.held_back_by)]
    out.result(data, lines)
