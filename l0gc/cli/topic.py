"""`l0gc topic create|delete|list|describe`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from l0gc.cli.options import common_options, open_cluster
from l0gc.cli.output import Output
from l0gc.figures import count
from l0gc.settings import Settings
from l0gc.streamlog.topics import create_topic, delete_topic, problem_of

if TYPE_CHECKING:
    from l0gc.streamlog.controller.state import Topic

_RUNS_SHOWN: Final = 20


@click.group("topic")
def command() -> None:
    """Create, delete, list and describe topics.

    \b
    Example:
      l0gc topic create events --partitions 8
      l0gc topic list --json
    """


@command.command("create")
@click.argument("name")
@click.option("--partitions", type=click.IntRange(1), required=True, help="How many partitions; it cannot change.")
@click.option(
    "--journals", type=click.IntRange(1),
    help="Spread the partitions over so many journals. An upload then commits to each of them.  [default: 1]",
)  # fmt: skip
@common_options
def create(settings: Settings, name: str, partitions: int, journals: int | None) -> None:
    """Create a topic; run again with the same numbers, it changes nothing.

    \b
    Example:
      l0gc topic create events --partitions 8
    """
    out = Output(settings)
    with open_cluster(settings) as (cluster, _):
        topic, created = create_topic(cluster, name, partitions, journals)
    out.result(
        {**_data(topic), "created": created},
        [f"topic {topic.name} {'created' if created else 'exists'}: {_line(topic)}"],
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
    closed = len(topic.journals) - len(broken)
    out.result(
        _data(topic),
        [f"topic {topic.name} (revision {topic.revision}) deleted; closed in {count(closed, 'journal')}"],
    )
    if (problem := problem_of(broken)) is not None:
        raise problem


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
        {"topics": [_data(t) for t in topics]},
        [f"{t.name}  {_line(t)}" for t in topics]
        or ["there are no topics; create one with l0gc topic create NAME --partitions N"],
    )


@command.command("describe")
@click.argument("name")
@common_options
def describe(settings: Settings, name: str) -> None:
    """Show topic NAME, and which journals keep its partitions.

    \b
    Example:
      l0gc topic describe events
    """
    out = Output(settings)
    with open_cluster(settings) as (cluster, _):
        topic = cluster.controller.snapshot().topic(name)
    runs = topic.runs()
    lines = [f"journal {r.journal}: {_partitions(r.first, r.count)}" for r in runs[:_RUNS_SHOWN]]
    if len(runs) > _RUNS_SHOWN:
        lines.append(f"and {count(len(runs) - _RUNS_SHOWN, 'journal')} more (--json has them)")
    out.result(
        {
            **_data(topic),
            "topic_id": topic.topic_id,
            "runs": [{"journal": r.journal, "first": r.first, "count": r.count} for r in runs],
        },
        [f"topic {topic.name}: {_line(topic)}, id {topic.topic_id}", *lines],
    )


def _data(topic: Topic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "revision": topic.revision,
        "partitions": topic.partitions,
        "journals": list(topic.journals),
    }


def _line(topic: Topic) -> str:
    where = f"journal {topic.journals[0]}" if len(topic.journals) == 1 else count(len(topic.journals), "journal")
    return f"revision {topic.revision}, {count(topic.partitions, 'partition')} in {where}"


def _partitions(first: int, n: int) -> str:
    return f"partition {first:,}" if n == 1 else f"partitions {first:,} to {first + n - 1:,}"
