"""`l0gc reconcile`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from l0gc.api.engine import Engine
from l0gc.cli import logs
from l0gc.cli.metrics_options import metrics_options
from l0gc.cli.names import TOPIC
from l0gc.cli.options import common_options, library
from l0gc.cli.output import Output
from l0gc.cli.signals import telling_stop
from l0gc.cli.spark_options import engine_options
from l0gc.cli.units import Size
from l0gc.formatting import count, size
from l0gc.settings import Settings

if TYPE_CHECKING:
    from l0gc.streamlog.level_one.reconcile import ReconcileResult

_MOST_ROUND_BYTES: Final = 1 << 40


@click.command("reconcile")
@click.argument("topic", required=False, type=TOPIC)
@click.option(
    "--round-bytes",
    type=Size(_MOST_ROUND_BYTES),
    default="4GiB",
    show_default=True,
    help="L0 that is lifted and committed at once.",
)
@common_options
@engine_options()
@metrics_options
def command(settings: Settings, engine: Engine, topic: str | None, round_bytes: int) -> None:
    """Lift the unreconciled records of TOPIC, or of all topics, from L0 into L1 Parquet.

    \b
    Example:
      l0gc reconcile
      l0gc reconcile events --master spark://host:7077
    """
    with library(settings) as cluster:
        run_reconcile(Output(settings), partial(cluster.reconcile, engine, topic, round_bytes=round_bytes))


def run_reconcile(out: Output, reconcile: Callable[..., ReconcileResult]) -> None:
    """Reconcile, and print the result. Raises `PartialFailureError` if something was left out."""
    lifted = 0

    def stopped() -> str:
        known = f" ({count(lifted, 'record')} so far)" if lifted else ""
        return f"what is in L1 stays{known}; l0gc {logs.running('reconcile')} continues from there"

    def work() -> ReconcileResult:
        with out.progress("reconciling") as show:

            def progress(text: str, **fields: Any) -> None:
                nonlocal lifted
                lifted = fields.get("records", lifted)
                show(text, **fields)

            return reconcile(progress=progress)

    with telling_stop(stopped):
        out.finish(work, _lines)


def _lines(result: ReconcileResult) -> Sequence[str]:
    text = f"{count(result.records, 'record')} of {count(result.partitions, 'partition')} in "
    text += f"{count(result.l1_objects, 'L1 object')} ({size(result.bytes)})"
    if result.rounds > 1:
        text += f", in {count(result.rounds, 'round')}"
    if result.lost:
        text += f"; {count(result.lost, 'partition')} left to another reconciler, which was first"
    return [text]
