"""`l0gc status`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from l0gc.cli.metrics_options import metrics_options
from l0gc.cli.options import Number, common_options, open_cluster, price_option
from l0gc.cli.output import Output, is_coloured
from l0gc.cli.signals import code_of
from l0gc.settings import Settings

if TYPE_CHECKING:
    from l0gc.inspect.status import Status

WATCH_S: Final = 5.0


@click.command("status")
@click.option(
    "--watch", type=Number(min=0.1), is_flag=False, flag_value=WATCH_S, metavar="[SECONDS]",
    help="Look again every so often (every 5 seconds), until Ctrl-C.",
)  # fmt: skip
@price_option
@common_options
@metrics_options
def command(settings: Settings, watch: float | None, price_gb_month: float) -> None:
    """Show M, how old it is, what holds it back and why, and what to do next. Changes nothing.

    \b
    Example:
      l0gc status
      l0gc status --watch
    """
    from l0gc.cli.status_text import folded, lines_of
    from l0gc.inspect.status import status

    out = Output(settings)
    with open_cluster(settings) as (cluster, store):

        def look() -> tuple[dict[str, Any], list[str]]:
            s = status(cluster)
            lines = folded(lines_of(s, store.config.url, price_gb_month), coloured=is_coloured())
            return _data(s, price_gb_month), lines

        if watch is None:
            with out.progress("reading"):
                data, lines = look()
            out.result(data, lines, indent=None, styled=True)
            return
        try:
            with out.watching() as show:
                while True:
                    show(*look())
                    cluster.runtime.clock.sleep(watch)
        except KeyboardInterrupt as e:
            click.get_current_context().exit(code_of(e))


def _data(s: Status, price: float) -> dict[str, Any]:
    from l0gc.cli.runs import run_data
    from l0gc.cli.status_text import cost

    amount = cost(s, price)
    return {
        "cluster_id": s.cluster_id,
        "external_log": s.external_log,
        "as_of_ms": s.as_of_ms,
        "cluster_epoch": s.cluster_epoch,
        "epoch_ms": s.epoch_ms,
        "topics": s.topics,
        "partitions": s.partitions,
        "journals": s.journals,
        "watermark": s.watermark,
        "published_ms": s.published_ms,
        "computable_watermark": s.computable,
        "lag_epochs": s.lag_epochs,
        "lag_ms": s.lag_ms,
        "lag_at_least": s.lag_at_least,
        "records": s.records,
        "unreconciled_records": s.unreconciled_records,
        "eligible_objects": s.garbage.objects,
        "eligible_bytes": s.garbage.bytes,
        "eligible_as_of_ms": s.garbage.as_of_ms,
        "deleted_since": {"objects": s.garbage.deleted_objects, "bytes": s.garbage.deleted_bytes},
        "price_gb_month": price,
        "dollars_month": None if amount is None else round(amount, 6),
        "held_back_by": [{**msgspec.structs.asdict(h.holder), "oldest_ms": h.oldest_ms} for h in s.held],
        "held_partitions": s.held_partitions,
        "errors": s.errors,
        "attempts": [{**msgspec.structs.asdict(a), "ok": a.ok} for a in s.attempts],
        "runs": [run_data(r) for r in s.runs],
        "paused": None if s.pause is None else msgspec.structs.asdict(s.pause),
        "causes": [msgspec.structs.asdict(c) for c in s.causes],
        "warnings": [msgspec.structs.asdict(c) for c in s.warnings],
        "next": s.next_step,
    }
