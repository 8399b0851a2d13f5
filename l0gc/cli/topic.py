"""`l0gc topic create|alter|delete|list|describe|infer`, and `l0gc expire`, `delete-records` and `give-up`, which end
records.
"""

from __future__ import annotations

import json
from contextlib import suppress
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Final

import click
from msgspec import UNSET, UnsetType

from l0gc.api import Cluster
from l0gc.cli.globals import CommandGroup, cli_command, options
from l0gc.cli.metrics_options import metrics_options
from l0gc.cli.options import TOPIC, asked, cluster_options, moment_of, operation_options, yes_option
from l0gc.cli.output import Output, misfits_text
from l0gc.cli.units import BYTES, DEFAULT, MS, Whole, quantity, span_of, time_ms
from l0gc.errors import CorruptObjectError, UsageError
from l0gc.formatting import count, size, span
from l0gc.operations import PARTITIONS_SHOWN, Expire
from l0gc.streamlog.controller.state import UNLIMITED, Topic
from l0gc.streamlog.topics import Alteration, InferredSchema, PartitionOffsets, TopicDescription

if TYPE_CHECKING:
    from l0gc.streamlog.level_one.expire import ExpireResult

_RANGES_SHOWN: Final = 20
_SCHEMA_BYTES: Final = 1 << 20


retention_options: Final = options([
    click.option(
        "--retention", "retention_ms", type=quantity(MS, "90m, 12h or 7d"), default=UNSET,
        metavar="DURATION", help="Delete L1 objects whose newest record is older than this. -1: unlimited.",
    ),
    click.option(
        "--retention-bytes", type=quantity(BYTES, "512MiB, 10GiB or a number of bytes"), default=UNSET, metavar="SIZE",
        help="Delete the oldest L1 objects of a partition while the rest has at least this size. -1: unlimited.",
    ),
])  # fmt: skip


def retention_text(ms: int | None, bytes_: int | None) -> str:
    """Return a retention as text; None means the cluster's default."""
    kept_ms = DEFAULT if ms is None else "unlimited" if ms == UNLIMITED else span(ms) if ms >= 1000 else f"{ms} ms"
    kept_bytes = DEFAULT if bytes_ is None else "unlimited" if bytes_ == UNLIMITED else size(bytes_)
    if kept_ms == kept_bytes:
        return f"retention {kept_ms}"
    return f"retention {kept_ms} and {kept_bytes}"


schema_option: Final = click.option(
    "--value-schema", type=click.File("rb"), metavar="FILE",
    help="Also parse values, which must be JSON objects, into typed columns. FILE (- for stdin) is a JSON Schema, or "
         "Iceberg's or Arrow's schema as JSON.",
)  # fmt: skip


def _schema_text(file: IO[bytes] | None) -> str | None:
    """Return the schema in a file. Raises `UsageError` if it is too large or not UTF-8."""
    if file is None:
        return None
    text = file.read(_SCHEMA_BYTES + 1)
    with suppress(UnicodeDecodeError):
        if len(text) <= _SCHEMA_BYTES:
            return text.decode("utf-8-sig")
    raise UsageError(f"{file.name} is not a value schema: it must be JSON, in UTF-8, of at most {size(_SCHEMA_BYTES)}")


@click.group("topic", cls=CommandGroup)
def topic_command() -> None:
    """Create, alter, delete, list and describe topics, and propose a schema of their values.

    \b
    Example:
      l0gc topic create events --partitions 8
      l0gc topic list --json
    """


@topic_command.command("create")
@click.argument("name")
@click.option("--partitions", type=Whole(1), required=True, help="The number of partitions, which cannot change.")
@click.option(
    "--journals", type=Whole(1),
    help="Spread the partitions over this many journals; an upload then commits to each of them.  [default: 1]",
)  # fmt: skip
@retention_options
@schema_option
@cluster_options()
def create(
    out: Output,
    cluster: Cluster,
    name: str,
    partitions: int,
    journals: int | None,
    value_schema: IO[bytes] | None,
    **retention: int | UnsetType | None,
) -> None:
    """Create a topic. A repeated run with the same arguments changes nothing.

    \b
    Example:
      l0gc topic create events --partitions 8
      l0gc topic create events --partitions 8 --retention 7d
    """
    schema = _schema_text(value_schema)
    out.finish(
        lambda: cluster.topics.create(name, partitions, journals, value_schema=schema, **retention),
        lambda t: [f"topic {t.name} {'created' if t.created else 'exists'}: {_line(t)}"],
    )


@topic_command.command("alter")
@click.argument("name", required=False, shell_complete=TOPIC)
@click.option("--defaults", is_flag=True, help="Alter the defaults of topics without their own settings.")
@retention_options
@schema_option
@yes_option
@cluster_options()
def alter(
    out: Output,
    cluster: Cluster,
    name: str | None,
    defaults: bool,
    yes: bool,
    value_schema: IO[bytes] | None,
    **retention: int | UnsetType | None,
) -> None:
    """Change the retention or the value schema of topic NAME. Settings that are not given stay; `default` means the
    cluster's default.

    The command asks for confirmation if the next l0gc gc would then delete more than half of a topic's records, or if a
    value schema loses or replaces columns, which it names. l0gc merge adds the new columns to existing L1 objects;
    values stay unchanged.

    \b
    Example:
      l0gc topic alter events --retention 7d --retention-bytes -1
      l0gc topic alter --defaults --retention 30d
    """
    if (name is None) != defaults:
        raise UsageError("name one topic, or give --defaults")
    schema = _schema_text(value_schema)
    if set(retention.values()) == {UNSET} and schema is None:
        raise UsageError("nothing to change: give --retention, --retention-bytes or --value-schema")
    if defaults and schema is not None:
        raise UsageError("a value schema belongs to one topic: name the topic instead of --defaults")

    def confirm(effect: Alteration) -> None:
        if lost := _lost(effect):
            asked(out, cluster, "delete", f"{lost} with the next l0gc gc")
        if effect.loses_columns:
            asked(out, cluster, "change", f"the typed columns of topic {name}: {'; '.join(effect.changes)}")

    if name is not None:
        out.finish(
            lambda: cluster.topics.alter(name, value_schema=schema, confirm=None if yes else confirm, **retention),
            lambda t: [f"topic {t.name}: {_line(t)}", *t.changes],
        )
        return
    out.finish(
        lambda: cluster.topics.alter_defaults(confirm=None if yes else confirm, **retention),
        lambda now: [f"the cluster's default: {retention_text(now.retention_ms, now.retention_bytes)}"],
    )


def _lost(effect: Alteration) -> str:
    """Return a text about the records that the next expiry would delete; empty if they are at most half of each topic,
    and all could be counted.
    """
    much = [loss for loss in effect.losses if 2 * loss.records > loss.present]
    uncounted = f" that cannot be counted ({effect.uncounted[0]})" if effect.uncounted else ""
    if not much:
        return f"records{uncounted}" if uncounted else ""
    others = f", and so of {count(len(much) - 1, 'other topic')}" if much[1:] else ""
    more = f", and records{uncounted}" if uncounted else ""
    return f"{much[0].records:,} of the {count(much[0].present, 'record')} of topic {much[0].topic}{others}{more}"


@topic_command.command("delete")
@click.argument("name", shell_complete=TOPIC)
@yes_option
@cluster_options()
def delete(out: Output, cluster: Cluster, name: str, yes: bool) -> None:
    """Delete a topic, whose partitions then accept no more records and no longer hold M back. Show the loss, and ask
    first.

    \b
    Example:
      l0gc topic delete events
      l0gc topic delete events --yes
    """

    def confirm(topic: Topic) -> None:
        consequence = (
            f"{_what_goes(cluster, topic)}; its records can then no longer be read, and their objects are deleted"
        )
        asked(out, cluster, "delete", consequence)

    out.finish(
        lambda: cluster.topics.delete(name, confirm=None if yes else confirm),
        lambda t: [
            f"topic {t.name} (revision {t.revision}) deleted; closed in "
            f"{count(len(t.journals) - len(t.broken), 'journal')}"
        ],
    )


def _what_goes(cluster: Cluster, topic: Topic) -> str:
    """Return a phrase about the topic and its records. Raises `NotFoundError`."""
    summary = f"topic {topic.name} (revision {topic.revision}) with {count(topic.partitions, 'partition')}"
    try:
        totals = cluster.topics.describe(topic.name, limit=0)
    except CorruptObjectError:
        return f"{summary}; one of its journals cannot be read, so its number of records is unknown"
    records = count(totals.records, "record")
    return f"{summary} and {records}, {totals.unreconciled_records:,} of them not in L1"


@topic_command.command("list")
@cluster_options()
def list_topics(out: Output, cluster: Cluster) -> None:
    """List the topics.

    \b
    Example:
      l0gc topic list
    """
    none = "no topics exist; create one with l0gc topic create NAME --partitions N"
    out.finish(cluster.topics.list, lambda topics: [f"{t.name}  {_line(t)}" for t in topics] or [none])


@topic_command.command("infer")
@click.argument("name", shell_complete=TOPIC)
@click.option("--records", type=Whole(1), default=10_000, show_default=True, help="Read at most this many records.")
@cluster_options()
def infer_command(out: Output, cluster: Cluster, name: str, records: int) -> None:
    """Propose a value schema for topic NAME from its first records, as JSON for --value-schema.

    A field that is not suitable as a column is omitted and named. A field that is always null becomes a string.

    \b
    Example:
      l0gc topic infer events > schema.json
      l0gc topic alter events --value-schema schema.json
    """

    def infer() -> InferredSchema:
        schema = cluster.topics.infer(name, records)
        for f in schema.left_out:
            out.note(f"field {f.field!r} is left out: {f.reason}")
        return schema

    out.finish(
        infer,
        lambda schema: json.dumps(schema.to_json(), indent=2).splitlines(),
        indent=None,
    )


@topic_command.command("describe")
@click.argument("name", shell_complete=TOPIC)
@click.option("--partition", type=int, metavar="N", help="Show only partition N.")
@click.option(
    "--limit",
    type=Whole(0),
    default=PARTITIONS_SHOWN,
    show_default=True,
    metavar="N",
    help="Show the first N partitions.",
)
@cluster_options()
def describe(out: Output, cluster: Cluster, name: str, partition: int | None, limit: int) -> None:
    """Show topic NAME: its retention, its journals, and the offsets of its partitions.

    \b
    Example:
      l0gc topic describe events
      l0gc topic describe events --partition 3 --json
    """
    out.finish(
        lambda: cluster.topics.describe(name, partition, limit),
        lambda topic: _described(topic, topic.partitions - len(topic.offsets) if partition is None else 0),
    )


def _described(topic: TopicDescription, hidden: int) -> list[str]:
    """Return lines about the topic, its journals, and its partitions, `hidden` of which are not shown."""
    lines = [f"journal {r.journal}: {_partitions(r.first, r.count)}" for r in topic.partition_ranges[:_RANGES_SHOWN]]
    if len(topic.partition_ranges) > _RANGES_SHOWN:
        lines.append(f"and {count(len(topic.partition_ranges) - _RANGES_SHOWN, 'journal')} more (--json has them)")
    dead = f", {size(topic.dead_bytes)} of it in rows that have left shared objects" if topic.dead_bytes else ""
    return [
        f"topic {topic.name}: {_line(topic)}, id {topic.topic_id}",
        f"{retention_text(topic.effective_retention_ms, topic.effective_retention_bytes)} in effect; "
        f"{count(topic.l1_objects, 'L1 object')} ({size(topic.l1_bytes)}{dead})",
        *([f"{count(topic.lost_records, 'record')} given up, in {count(topic.holes, 'hole')}"] if topic.holes else []),
        *_columns(topic.value_schema, topic.misfits),
        *(
            [
                f"{count(topic.outdated_records, 'record')} in L1 ({size(topic.outdated_bytes)}) of an older value schema: "
                "l0gc merge and l0gc gc rewrite them"
            ]
            if topic.outdated_records
            else []
        ),
        *lines,
        *_table(topic.offsets),
        *([f"and {count(hidden, 'partition')} more"] if hidden else []),
    ]


def _columns(schema: dict[str, Any] | None, misfits: int) -> list[str]:
    """Return lines about a topic's typed columns, if it has any, and about records without them."""
    if schema is None:
        return []
    kinds = ((f["name"], f["type"]) for f in schema["fields"])
    names = [f"{name} {kind if isinstance(kind, str) else kind['type']}" for name, kind in kinds]
    more = f" and {len(names) - _RANGES_SHOWN} more" if len(names) > _RANGES_SHOWN else ""
    shown = [f"value schema {schema['schema-id']}: {', '.join(names[:_RANGES_SHOWN])}{more}"]
    return [*shown, misfits_text(misfits)] if misfits else shown


def _table(offsets: list[PartitionOffsets]) -> list[str]:
    """Return a line for each partition, below a header."""
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


def _line(topic: Topic | TopicDescription) -> str:
    where = f"journal {topic.journals[0]}" if len(topic.journals) == 1 else count(len(topic.journals), "journal")
    line = f"revision {topic.revision}, {count(topic.partitions, 'partition')} in {where}"
    own = topic.retention_ms, topic.retention_bytes
    return line if own == (None, None) else f"{line}, {retention_text(*own)}"


def _partitions(first: int, n: int) -> str:
    return f"partition {first:,}" if n == 1 else f"partitions {first:,} to {first + n - 1:,}"


@cli_command("expire")
@click.argument("topic", required=False, shell_complete=TOPIC)
@operation_options(Expire)
@cluster_options(metrics_options)
def expire_command(out: Output, cluster: Cluster, topic: str | None, **options: Any) -> None:
    """Delete the records of TOPIC, or of all topics, that are beyond the topic's retention.

    Kafka's rules apply, with L1 objects as segments: records that are not in L1 yet stay. Deleted records become
    invisible to readers at once; l0gc vacuum deletes the L1 objects later.

    \b
    Example:
      l0gc topic alter events --retention 7d
      l0gc expire --dry-run
    """
    run_expire(out, partial(cluster.expire, topic, **options))


@cli_command("delete-records")
@click.argument("topic", shell_complete=TOPIC)
@click.option("--partition", type=int, metavar="N", help="Delete records of only partition N.")
@click.option("--all-partitions", is_flag=True, help="Delete records of all partitions.")
@click.option(
    "--before-offset",
    type=Whole(-1),
    metavar="N",
    help="The first offset to keep. -1 deletes all current records.",
)
@click.option(
    "--before-time",
    type=time_ms,
    metavar="TIME",
    help="Delete the records before the first one at this time or later: 2026-01-31T12:00:00Z, or an age such as 7d.",
)
@click.option("--dry-run", is_flag=True, help="Delete nothing, and show what a run would delete.")
@yes_option
@cluster_options()
def delete_records_command(
    out: Output,
    cluster: Cluster,
    topic: str,
    partition: int | None,
    all_partitions: bool,
    before_offset: int | None,
    before_time: int | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Delete TOPIC's oldest records by moving its partitions' start offsets. Show the loss, and ask first.

    Readers lose the records at once and permanently. The next l0gc vacuum deletes L1 objects whose records are all
    deleted; records that were never reconciled no longer hold M back.

    \b
    Example:
      l0gc delete-records events --partition 3 --before-offset 1000
      l0gc delete-records events --all-partitions --before-time 7d --dry-run
    """
    if (before_offset is None) == (before_time is None):
        raise UsageError("give the end of what to delete: either --before-offset or --before-time")
    if (partition is None) != all_partitions:
        raise UsageError("give the partitions: either --partition N or --all-partitions")
    before = moment_of(cluster, before_time)

    def confirm(plan: ExpireResult) -> None:
        records = f"{count(plan.records, 'record')} of {count(plan.partitions, 'partition')} of topic {topic}"
        left_out = f", and leaves others out ({plan.errors[0]})" if plan.errors else ""
        asked(out, cluster, "delete", f"{records} for good{left_out}")

    delete = partial(
        cluster.delete_records, topic, partition,
        before_offset=before_offset, before_time_ms=before, confirm=None if yes else confirm,
    )  # fmt: skip
    out.finish(partial(delete, dry_run=dry_run), _expired)


def _expired(result: ExpireResult) -> list[str]:
    verb = "would be deleted" if result.dry_run else "deleted"
    text = "nothing to delete"
    if result.partitions:
        text = f"{count(result.records, 'record')} of {count(result.partitions, 'partition')} {verb}"
    if result.l1_objects:
        text += f", with {count(result.l1_objects, 'L1 object')} ({size(result.bytes)}) for vacuum"
    lines = [text]
    lines += [
        f"{s.topic}/{s.partition} begins at offset {s.log_start_offset} (was {s.previous})" for s in result.starts
    ]
    if result.partitions > len(result.starts) > 0:
        lines.append(f"and {count(result.partitions - len(result.starts), 'partition')} more")
    if result.lost:
        lines.append(f"{count(result.lost, 'partition')} changed during the run; run it again for these")
    return lines


run_expire: Final = partial(
    Output.finish,
    lines=_expired,
    title="expiring: reading the journals",
    stays=lambda reported: "what is deleted stays deleted; l0gc expire continues from there",
)
"""Runs the step, shows its progress and prints its result, for the command and for `l0gc gc`."""


@cli_command("give-up")
@click.argument("topic", required=False, shell_complete=TOPIC)
@click.option("--object", "objects", multiple=True, metavar="KEY", help="Give up all records of this lost L0 object.")
@click.option("--partition", type=int, metavar="N", help="The partition of TOPIC that has lost records.")
@click.option(
    "--offsets",
    "span",
    type=span_of("offsets", "20-29 or 7"),
    metavar="FIRST-LAST",
    help="The offsets of its lost records, including both ends.",
)
@click.option("--force-readable", is_flag=True, help="Give the records up even if some of them can be read.")
@yes_option
@cluster_options()
def give_up_command(
    out: Output,
    cluster: Cluster,
    topic: str | None,
    objects: tuple[str, ...],
    partition: int | None,
    span: tuple[int, int] | None,
    force_readable: bool,
    yes: bool,
) -> None:
    """Give up records that cannot be read, so that their offsets become a hole and their partitions can continue.

    This is for records that are not in L1 and whose L0 object is lost or damaged and cannot be restored. Give --object
    KEY, once or more, for all records of an object, or TOPIC, --partition and --offsets. All records before them must
    be in L1. The hole is an L1 object without rows, whose footer keeps the remaining bytes. l0gc status names the
    offsets.

    \b
    Example:
      l0gc give-up --object level_zero/data/007/000000000000000042/2f1c3c68...
      l0gc give-up events --partition 3 --offsets 1000-1999
    """
    if (
        bool(objects) == (span is not None)
        or (span is None) != (topic is None)
        or (span is None) != (partition is None)
    ):
        raise click.UsageError("Give --object KEY, or TOPIC with --partition and --offsets.")
    readable = ", also those that can be read," if force_readable else ""
    records = f"{span[0]} to {span[1]} of partition {topic}/{partition}" if span else f"in {', '.join(objects)}"
    confirm = partial(asked, out, cluster, "abandon", f"the records {records}{readable} for ever")
    out.finish(
        lambda: cluster.give_up(
            topic or "",
            -1 if partition is None else partition,
            span,
            objects=objects,
            force_readable=force_readable,
            confirm=None if yes else confirm,
        ),
        lambda r: [
            f"{count(r.records, 'record')} of {count(r.partitions, 'partition')} given up",
            *(
                f"{h.first_offset} to {h.last_offset} of partition {h.topic}/{h.partition}: {h.key}"
                for h in r.holes[:20]
            ),
            *([f"and {len(r.holes) - 20} more"] if len(r.holes) > 20 else []),
        ],
        stays=lambda _: "what is given up stays a hole; l0gc status shows what is still lost",
    )
