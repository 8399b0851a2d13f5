"""`l0gc expire` and `l0gc delete-records`, and the options and the text of a retention."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from l0gc.cli.names import TOPIC
from l0gc.cli.options import common_options, library
from l0gc.cli.output import Output
from l0gc.cli.signals import telling_stop
from l0gc.cli.units import BYTES, DEFAULT, MS, Moment, Quantity
from l0gc.errors import UsageError
from l0gc.formatting import count, size, span
from l0gc.settings import Settings
from l0gc.streamlog.controller.entries import UNLIMITED

if TYPE_CHECKING:
    from l0gc.streamlog.level_one.expire import ExpireResult


def retention_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `--retention-ms` and `--retention-bytes`."""
    for option in (
        click.option(
            "--retention-bytes", type=Quantity(BYTES, "1073741824 or 1GiB"), metavar="N",
            help="Delete the oldest L1 objects of a partition while the others are as large as this. -1: unlimited.",
        ),
        click.option(
            "--retention-ms", type=Quantity(MS, "604800000 or 7d"), metavar="N",
            help="Delete L1 objects whose newest record is older than this. -1: unlimited.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def settings_of(ms: int | str | None, size: int | str | None) -> dict[str, Any]:
    """The arguments that the options say, and no others; None for the cluster's setting."""
    given = {"retention_ms": ms, "retention_bytes": size}
    return {name: None if value == DEFAULT else value for name, value in given.items() if value is not None}


def retention_text(ms: int | None, bytes_: int | None) -> str:
    """A retention as text; None if it is the cluster's."""
    kept_ms = DEFAULT if ms is None else "unlimited" if ms == UNLIMITED else span(ms) if ms >= 1000 else f"{ms} ms"
    kept_bytes = DEFAULT if bytes_ is None else "unlimited" if bytes_ == UNLIMITED else size(bytes_)
    if kept_ms == kept_bytes:
        return f"retention {kept_ms}"
    return f"retention {kept_ms} and {kept_bytes}"


@click.command("expire")
@click.argument("topic", required=False, type=TOPIC)
@click.option("--dry-run", is_flag=True, help="Delete nothing; say what a run would delete.")
@common_options
def expire_command(settings: Settings, topic: str | None, dry_run: bool) -> None:
    """Delete the records of TOPIC, or of all topics, that are beyond the topic's retention.

    By Kafka's rules, where a segment is an L1 object: what is not in L1 yet stays. Readers see no more of the records at
    once; l0gc vacuum removes the L1 objects later.

    \b
    Example:
      l0gc topic alter events --retention-ms 7d
      l0gc expire --dry-run
    """
    with library(settings) as cluster:
        run_expire(Output(settings), partial(cluster.expire, topic, dry_run=dry_run))


def run_expire(out: Output, expire: Callable[[], ExpireResult]) -> None:
    """Delete what is beyond retention, and print the result. Raises `PartialFailureError` if something was left out."""
    with telling_stop(lambda: "what is deleted stays deleted; l0gc expire continues from there"):
        out.finish(expire, _lines, progress="expiring: reading the journals")


@click.command("delete-records")
@click.argument("topic", type=TOPIC)
@click.option("--partition", type=int, metavar="N", help="Only of partition N.  [default: of all]")
@click.option(
    "--before-offset",
    type=click.IntRange(-1),
    metavar="N",
    help="The first offset that stays. -1: delete all that there is now.",
)
@click.option(
    "--before-time",
    type=Moment(),
    metavar="TIME",
    help="Delete what lies before the first record of this time or later: 2026-01-31T12:00:00Z, or 7d ago.",
)
@click.option("--dry-run", is_flag=True, help="Delete nothing; say what a run would delete.")
@common_options
def delete_records_command(
    settings: Settings,
    topic: str,
    partition: int | None,
    before_offset: int | None,
    before_time: int | None,
    dry_run: bool,
) -> None:
    """Delete TOPIC's oldest records by moving its partitions' start offsets.

    They are gone for readers at once, and for good. An L1 object goes when all of its records are deleted, by the next
    l0gc vacuum; what was never reconciled no longer holds M back.

    \b
    Example:
      l0gc delete-records events --partition 3 --before-offset 1000
      l0gc delete-records events --before-time 7d --dry-run
    """
    if (before_offset is None) == (before_time is None):
        raise UsageError("say before what records are to be deleted: --before-offset or --before-time, one of the two")
    with library(settings) as cluster:
        if before_time is not None and before_time <= 0:
            before_time += cluster.handles().now_ms()
        Output(settings).finish(
            lambda: cluster.delete_records(
                topic, partition, before_offset=before_offset, before_time_ms=before_time, dry_run=dry_run
            ),
            _lines,
        )


def _lines(result: ExpireResult) -> list[str]:
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
        lines.append(f"{count(result.lost, 'partition')} changed during the run; the next run takes them")
    return lines
