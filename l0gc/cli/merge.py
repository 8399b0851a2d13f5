"""`l0gc merge`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from l0gc.api.engine import Engine
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
    from l0gc.streamlog.level_one.merge_commit import MergeResult

_MOST_BYTES: Final = 1 << 40


def rule_options(prefix: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the options that say what is merged.

    Args:
        prefix: what the options' names begin with, where it does more than merge.
    """
    target = click.option(
        f"--{prefix}target-bytes",
        type=Size(_MOST_BYTES),
        default="128MiB",
        show_default=True,
        envvar="L0GC_MERGE_TARGET_BYTES",
        help="The most that a merged object may have; one that has half of it is left alone.",
    )
    fan_in = click.option(
        f"--{prefix}fan-in",
        type=click.IntRange(2),
        default=4,
        show_default=True,
        envvar="L0GC_MERGE_FAN_IN",
        help="A partition may keep one more small object each time that they have grown by this factor.",
    )
    return lambda command: target(fan_in(command))


@click.command("merge")
@click.argument("topic", required=False, type=TOPIC)
@click.option("--dry-run", is_flag=True, help="Merge nothing; print what there is to merge.")
@rule_options()
@common_options
@engine_options()
@metrics_options
def command(settings: Settings, engine: Engine, topic: str | None, **options: Any) -> None:
    """Merge small consecutive L1 objects of each partition of TOPIC, or of all topics, into large ones.

    Replaced objects stay in the bucket for readers that have found them, until vacuum takes them.

    \b
    Example:
      l0gc merge --dry-run
      l0gc merge events --target-bytes 256MiB
    """
    with library(settings) as cluster:
        run_merge(Output(settings), partial(cluster.merge, engine, topic, **options))


def run_merge(out: Output, merge: Callable[..., MergeResult]) -> None:
    """Merge, and print the result. Raises `PartialFailureError` if something was left out."""
    merged = 0

    def stopped() -> str:
        known = f" ({count(merged, 'L1 object')} so far)" if merged else ""
        return f"what is merged stays{known}; l0gc merge continues from there"

    def work() -> MergeResult:
        with out.progress("merging") as show:

            def progress(text: str, **fields: Any) -> None:
                nonlocal merged
                merged = fields.get("objects", merged)
                show(text, **fields)

            return merge(progress=progress)

    with telling_stop(stopped):
        out.finish(work, _lines)


def _lines(result: MergeResult) -> Sequence[str]:
    if not result.objects_before:
        text = "nothing to merge"
    else:
        text = f"{count(result.objects_before, 'L1 object')} of {count(result.partitions, 'partition')} "
        text += f"{'would become' if result.dry_run else 'became'} {result.objects_after:,} "
        sizes = [] if result.dry_run else [f"now {size(result.bytes)}"]
        text += f"({', '.join([count(result.records, 'record'), size(result.bytes_read), *sizes])})"
    if result.lost:
        text += f"; {count(result.lost, 'merge')} given up, because another run has changed those objects"
        text += " (l0gc vacuum removes what was written)"
    return [text]
