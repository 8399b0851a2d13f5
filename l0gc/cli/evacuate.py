"""`l0gc evacuate`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from l0gc.api import Cluster, Engine
from l0gc.cli.metrics_options import metrics_options
from l0gc.cli.options import Decorator, cluster_options, engine_options, options
from l0gc.cli.output import Output
from l0gc.cli.units import size_up_to
from l0gc.formatting import count, size

if TYPE_CHECKING:
    from l0gc.streamlog.evacuation.plan import EvacuateResult


def limit_options(prefix: str = "", ratio: float = 4) -> Decorator:
    """Give a command the options that say what is worth moving.

    Args:
        prefix: what the options' names begin with, where it does more than evacuate.
    """
    least = click.option(
        f"--{prefix}ratio",
        type=click.FloatRange(0, min_open=True),
        default=ratio,
        show_default=True,
        help="Bytes of garbage that have to be released for each byte that an evacuation copies.",
    )
    most = click.option(
        f"--{prefix}max-bytes",
        type=size_up_to(1 << 40),
        default="1GiB",
        show_default=True,
        envvar="L0GC_EVACUATE_MAX_BYTES",
        help="The most that an evacuation copies.",
    )
    return options([least, most])


@click.command("evacuate")
@click.option("--dry-run", is_flag=True, help="Copy nothing; print what a run would copy and release.")
@limit_options()
@cluster_options(engine_options(), metrics_options)
def command(out: Output, cluster: Cluster, engine: Engine, **limits: Any) -> None:
    """Copy what lagging partitions still need into new L0 objects, so that M can pass the old ones.

    A partition that is not reconciled holds M, and so the garbage of all others. Offsets, order and timestamps stay as they
    are. The next compute-watermark and sweep take what is released.

    \b
    Example:
      l0gc compute-watermark && l0gc evacuate --dry-run
      l0gc evacuate --ratio 10 --max-bytes 4GiB
    """
    run_evacuate(out, partial(cluster.evacuate, engine, **limits))


def _moved(result: EvacuateResult) -> list[str]:
    if result.target_epoch is None:
        return [f"nothing to move: {result.reason}"]
    moved, released = result.moved, result.released
    verb, releases = ("would be moved", "would release") if result.dry_run else ("moved", "releases")
    text = f"{count(moved.extents, 'extent')} of {count(moved.objects, 'object')} ({size(moved.bytes)}) {verb}, "
    text += f"up to epoch {result.target_epoch}, which {releases} {count(released.objects, 'object')} "
    text += f"({size(released.bytes)})"
    if released.bytes:
        text += f": {moved.bytes / released.bytes:.3f} bytes copied for each that is released"
    return [text]


run_evacuate: Final = partial(
    Output.finish,
    lines=_moved,
    title="evacuating",
    reports=True,
    stays=lambda _: "what is moved stays moved; l0gc evacuate continues from there",
)
"""As the command shows its work and its result, for it and for `l0gc gc`."""
