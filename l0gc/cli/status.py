"""`l0gc status`."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from l0gc.cli.metrics_options import metrics_options
from l0gc.cli.options import common_options, open_cluster
from l0gc.cli.output import Output, count, epoch, held_back, size
from l0gc.settings import Settings


@click.command("status")
@common_options
@metrics_options
def command(settings: Settings) -> None:
    """Show the cluster, M, and what holds it back, from the partitions' own logs.

    \b
    Example:
      l0gc status
    """
    from l0gc.upkeep.status import status

    out = Output(settings)
    with open_cluster(settings) as (cluster, store), out.progress("looking"):
        s = status(cluster)
    w = s.now
    lines = [
        f"cluster    {s.cluster_id} at {store.config.url}",
        f"epoch      {s.cluster_epoch}, {count(s.topics, 'topic')}, {count(w.partitions, 'partition')}",
        f"M          {epoch(s.watermark)} published, {epoch(w.watermark)} if it were computed now; lag "
        f"{count(s.cluster_epoch - s.watermark, 'epoch')}",
        f"records    {s.records:,}, of which {s.unreconciled_records:,} unreconciled in L0",
    ]
    if s.eligible_objects >= 0:
        lines.append(f"eligible   {count(s.eligible_objects, 'object')} ({size(s.eligible_bytes)}) when M was computed")
    lines += [f"held back  by {line}" for line in held_back(w.held_back_by)]
    lines += [f"broken     {e}" for e in s.errors]
    lines.append(f"next       {s.next_step}")
    data: dict[str, Any] = {
        "cluster_id": s.cluster_id,
        "cluster_epoch": s.cluster_epoch,
        "topics": s.topics,
        "partitions": w.partitions,
        "watermark": s.watermark,
        "computable_watermark": w.watermark,
        "lag_epochs": s.cluster_epoch - s.watermark,
        "records": s.records,
        "unreconciled_records": s.unreconciled_records,
        "eligible_objects": s.eligible_objects,
        "eligible_bytes": s.eligible_bytes,
        "held_back_by": [msgspec.structs.asdict(h) for h in w.held_back_by],
        "errors": s.errors,
        "next": s.next_step,
    }
    out.result(data, lines, indent=11)
