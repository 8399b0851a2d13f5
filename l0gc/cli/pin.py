"""`l0gc pin create|list|delete` manages pins, each of which keeps a state of the cluster readable until it ends."""

from __future__ import annotations

import click

from l0gc.api import Cluster
from l0gc.cli.globals import CommandGroup
from l0gc.cli.options import cluster_options
from l0gc.cli.output import Output, epoch
from l0gc.cli.units import duration
from l0gc.formatting import moment
from l0gc.operations import PIN_TTL_S
from l0gc.streamlog.pins import PinView


@click.group("pin", cls=CommandGroup)
def pin_command() -> None:
    """Create, list and delete pins.

    While a pin lasts, M does not pass the epochs that were needed at its creation, and L1 objects dropped since and log
    entries since are not deleted. Each pin has an end.

    \b
    Example:
      l0gc pin create backup --ttl 6h --why "nightly backup"
      l0gc pin delete backup
    """


@pin_command.command("create")
@click.argument("name")
@click.option(
    "--ttl", type=duration, default=f"{PIN_TTL_S // 86_400}d", show_default=True, help="How long the pin lasts."
)
@click.option("--topic", help="Keep only this topic, that is its L1 objects and the L0 objects that it needs.")
@click.option("--level-one", is_flag=True, help="Keep only L1 objects, and let M move.")
@click.option("--why", default="", metavar="TEXT", help="The reason, which is shown to others.")
@cluster_options()
def create(out: Output, cluster: Cluster, name: str, ttl: int, topic: str | None, level_one: bool, why: str) -> None:
    """Create a pin: the state of the cluster at the end of this command stays readable until the pin ends.

    \b
    Example:
      l0gc pin create backup --ttl 6h
      l0gc pin create audit --topic orders --level-one --ttl 30d --why May
    """
    out.finish(
        lambda: cluster.pins.create(name, ttl_s=ttl, topic=topic, level_one=level_one, why=why),
        lambda p: [f"pin {p.name} created: {_line(p)}"],
    )


@pin_command.command("list")
@cluster_options()
def list_pins(out: Output, cluster: Cluster) -> None:
    """List the pins that have not ended.

    \b
    Example:
      l0gc pin list
    """
    none = "no pins exist; create one with l0gc pin create NAME"
    out.finish(cluster.pins.list, lambda pins: [f"{p.name}  {_line(p)}" for p in pins] or [none])


@pin_command.command("delete")
@click.argument("name")
@cluster_options()
def delete(out: Output, cluster: Cluster, name: str) -> None:
    """Delete a pin, so that the next runs may delete the objects that it kept.

    \b
    Example:
      l0gc pin delete backup
    """
    out.finish(lambda: cluster.pins.delete(name), lambda p: [f"pin {p.name} deleted: {_line(p)}"])


def _line(p: PinView) -> str:
    if not p.in_effect:
        effect = "not in effect yet; M and all dropped objects wait for it"
    else:
        effect = "L1 alone" if p.watermark is None else f"M stays at {epoch(p.watermark)} or below"
    why = f", {p.why}" if p.why else ""
    of = f", for topic {p.topic}" if p.topic is not None else ""
    return f"epoch {p.epoch}{of}, {effect}, ends at {moment(p.expires_ms)}{why}"
