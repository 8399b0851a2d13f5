"""`l0gc topic create|delete|list`."""

from __future__ import annotations

import click

from l0gc.cli.options import common_options, open_cluster
from l0gc.cli.output import Output
from l0gc.errors import PartialFailureError
from l0gc.figures import count
from l0gc.settings import Settings
from l0gc.streamlog.topics import create_topic, delete_topic


@click.group("topic")
def command() -> None:
    """Create, delete and list topics.

    \b
    Example:
      l0gc topic create events --partitions 8
      l0gc topic list --json
    """


@command.command("create")
@click.argument("name")
@click.option("--partitions", type=click.IntRange(1), required=True, help="How many partitions; it cannot change.")
@common_options
def create(settings: Settings, name: str, partitions: int) -> None:
    """Create a topic; run again with as many partitions, it changes nothing.

    \b
    Example:
      l0gc topic create events --partitions 8
    """
    out = Output(settings)
    with open_cluster(settings) as (cluster, _):
        topic, created = create_topic(cluster, name, partitions)
    out.result(
        {"name": topic.name, "revision": topic.revision, "partitions": topic.partitions, "created": created},
        [
            f"topic {topic.name} {'created' if created else 'exists'}: revision {topic.revision}, "
            f"{count(topic.partitions, 'partition')}"
        ],
    )


@command.command("delete")
@click.argument("name")
@common_options
def delete(settings: Settings, name: str) -> None:
    """Delete a topic: its partitions take nothing more, and no longer hold M back.

    \b
    Example:
      l0gc topic delete events
    """
    out = Output(settings)
    with open_cluster(settings) as (cluster, _):
        topic, broken = delete_topic(cluster, name)
    out.result(
        {"name": topic.name, "revision": topic.revision, "partitions": topic.partitions},
        [
            f"topic {topic.name} (revision {topic.revision}) deleted; "
            f"{count(topic.partitions - len(broken), 'partition')} closed"
        ],
    )
    if broken:
        raise PartialFailureError(f"the topic is deleted, but not every log could be closed: {broken[0].error}")


@command.command("list")
@common_options
def list_topics(settings: Settings) -> None:
    """List the topics.

    \b
    Example:
      l0gc topic list
    """
    out = Output(settings)
    with open_cluster(settings) as (cluster, _):
        state = cluster.controller.snapshot()
    topics = [state.topics[n] for n in sorted(state.topics)]
    out.result(
        {"topics": [{"name": t.name, "revision": t.revision, "partitions": t.partitions} for t in topics]},
        [f"{t.name}  revision {t.revision}  {count(t.partitions, 'partition')}" for t in topics]
        or ["there are no topics; create one with l0gc topic create NAME --partitions N"],
    )
