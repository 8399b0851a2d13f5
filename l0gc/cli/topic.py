"""`l0gc topic create|alter|delete|list|describe`."""

from __future__ import annotations

from typing import Final

import click

from l0gc.api.cluster import Cluster
from l0gc.cli.names import TOPIC
from l0gc.cli.options import asked, common_options, library
from l0gc.cli.output import Output
from l0gc.cli.retention import retention_options, retention_text, settings_of
from l0gc.errors import CorruptObjectError, UsageError
from l0gc.formatting import count, size
from l0gc.settings import Settings
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.topics import PARTITIONS_SHOWN, PartitionOffsets, TopicDescription

_RUNS_SHOWN: Final = 20


@click.group("topic")
def command() -> None:
    """Create, alter, delete, list and describe topics.

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
@retention_options
@common_options
def create(
    settings: Settings,
    name: str,
    partitions: int,
    journals: int | None,
    retention_ms: int | str | None,
    retention_bytes: int | str | None,
) -> None:
    """Create a topic; run again with the same numbers, it changes nothing.

    \b
    Example:
      l0gc topic create events --partitions 8
      l0gc topic create events --partitions 8 --retention-ms 7d
    """
    kept = settings_of(retention_ms, retention_bytes)
    with library(settings) as cluster:
        Output(settings).finish(
            lambda: cluster.topics.create(name, partitions, journals, **kept),
            lambda t: [f"topic {t.name} {'created' if t.created else 'exists'}: {_line(t)}"],
        )


@command.command("alter")
@click.argument("name", required=False, type=TOPIC)
@click.option("--defaults", is_flag=True, help="Alter the settings of topics without their own.")
@retention_options
@common_options
def alter(
    settings: Settings,
    name: str | None,
    defaults: bool,
    retention_ms: int | str | None,
    retention_bytes: int | str | None,
) -> None:
    """Change how long, or how much, topic NAME keeps. Settings that are not given stay; `default` is the cluster's.

    \b
    Example:
      l0gc topic alter events --retention-ms 7d --retention-bytes -1
      l0gc topic alter --defaults --retention-ms 30d
    """
    kept = settings_of(retention_ms, retention_bytes)
    if (name is None) != defaults:
        raise UsageError("name one topic, or say --defaults")
    if not kept:
        raise UsageError("say what to change: --retention-ms or --retention-bytes")
    out = Output(settings)
    with library(settings) as cluster:
        if name is not None:
            out.finish(lambda: cluster.topics.alter(name, **kept), lambda t: [f"topic {t.name}: {_line(t)}"])
            return
        out.finish(
            lambda: cluster.topics.alter_defaults(**kept),
            lambda now: [f"the cluster's default: {retention_text(now.retention_ms, now.retention_bytes)}"],
        )


@command.command("delete")
@click.argument("name", type=TOPIC)
@click.option("--yes", is_flag=True, help="Do not ask; needed without a terminal to ask at.")
@common_options
def delete(settings: Settings, name: str, yes: bool) -> None:
    """Delete a topic: its partitions take nothing more, and no longer hold M back. Says what goes, and asks.

    \b
    Example:
      l0gc topic delete events
      l0gc topic delete events --yes
    """
    with library(settings) as cluster:
        if not yes:
            what = f"{_what_goes(cluster, name)}; its records can then be read no more, and their objects go"
            asked(settings, "delete", what)
        Output(settings).finish(
            lambda: cluster.topics.delete(name),
            lambda t: [
                f"topic {t.name} (revision {t.revision}) deleted; closed in "
                f"{count(len(t.journals) - len(t.broken), 'journal')}"
            ],
        )


def _what_goes(cluster: Cluster, name: str) -> str:
    """The topic and its records, in a sentence. Raises `TopicNotFoundError`."""
    topic = cluster.handles().controller.snapshot().topic(name)
    what = f"topic {topic.name} (revision {topic.revision}) with {count(topic.partitions, 'partition')}"
    try:
        totals = cluster.topics.describe(name, limit=0).totals
    except CorruptObjectError:
        return f"{what}; a journal of it cannot be read, so nobody knows how many records it has"
    records = count(totals.records, "record")
    return f"{what} and {records}, {totals.unreconciled_records:,} of them not in L1"


@command.command("list")
@common_options
def list_topics(settings: Settings) -> None:
    """List the topics.

    \b
    Example:
      l0gc topic list
    """
    none = "no topics exist; create one with l0gc topic create NAME --partitions N"
    with library(settings) as cluster:
        Output(settings).finish(cluster.topics.list, lambda topics: [f"{t.name}  {_line(t)}" for t in topics] or [none])


@command.command("describe")
@click.argument("name", type=TOPIC)
@click.option("--partition", type=int, metavar="N", help="Show partition N alone.")
@click.option(
    "--limit",
    type=click.IntRange(0),
    default=PARTITIONS_SHOWN,
    show_default=True,
    metavar="N",
    help="Show the first N partitions.",
)
@common_options
def describe(settings: Settings, name: str, partition: int | None, limit: int) -> None:
    """Show topic NAME: its retention, which journals keep its partitions, and what these hold.

    \b
    Example:
      l0gc topic describe events
      l0gc topic describe events --partition 3 --json
    """
    with library(settings) as cluster:
        Output(settings).finish(
            lambda: cluster.topics.describe(name, partition, limit),
            lambda found: _described(found, found.topic.partitions - len(found.offsets) if partition is None else 0),
        )


def _described(found: TopicDescription, hidden: int) -> list[str]:
    """The topic, its journals, and a table of its partitions, of which `hidden` are not shown."""
    topic, totals, kept = found.topic, found.totals, found.retention
    runs = topic.runs()
    lines = [f"journal {r.journal}: {_partitions(r.first, r.count)}" for r in runs[:_RUNS_SHOWN]]
    if len(runs) > _RUNS_SHOWN:
        lines.append(f"and {count(len(runs) - _RUNS_SHOWN, 'journal')} more (--json has them)")
    return [
        f"topic {topic.name}: {_line(topic)}, id {topic.topic_id}",
        f"{retention_text(kept.ms, kept.bytes)} in effect; "
        f"{count(totals.l1_objects, 'L1 object')} ({size(totals.l1_bytes)})",
        *lines,
        *_table(found.offsets),
        *([f"and {count(hidden, 'partition')} more"] if hidden else []),
    ]


def _table(offsets: list[PartitionOffsets]) -> list[str]:
    """A line for each partition, below a head."""
    head = ["partition", "journal", "log start", "last reconciled", "next offset", "L1 objects", "L1 size"]
    rows = [
        [
            *(str(v) for v in (o.partition, o.journal, o.log_start_offset)),
            *(str(v) for v in (o.last_reconciled_offset, o.next_offset, o.l1_objects)),
            size(o.l1_bytes),
        ]
        for o in offsets
    ]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return ["  ".join(v.rjust(w) for v, w in zip(row, widths, strict=True)) for row in ([head, *rows] if rows else [])]


def _line(topic: Topic) -> str:
    where = f"journal {topic.journals[0]}" if len(topic.journals) == 1 else count(len(topic.journals), "journal")
    line = f"revision {topic.revision}, {count(topic.partitions, 'partition')} in {where}"
    own = topic.retention_ms, topic.retention_bytes
    return line if own == (None, None) else f"{line}, {retention_text(*own)}"


def _partitions(first: int, n: int) -> str:
    return f"partition {first:,}" if n == 1 else f"partitions {first:,} to {first + n - 1:,}"
