"""`l0gc read`."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click
import msgspec

from l0gc.cli.names import TOPIC
from l0gc.cli.options import common_options, open_cluster
from l0gc.cli.output import writing_stdout
from l0gc.errors import UsageError
from l0gc.settings import Settings

if TYPE_CHECKING:
    from l0gc.streamlog.parts import RecordSlice
    from l0gc.streamlog.reader import Record

_FLUSH = 4096


@click.command("read")
@click.argument("topic", type=TOPIC)
@click.option("--partition", type=int, metavar="N", help="Only partition N.  [default: all, one after another]")
@click.option(
    "--from", "start", type=click.IntRange(0), metavar="OFFSET",
    help="Begin at this offset.  [default: the first one that is there]",
)  # fmt: skip
@common_options
def command(settings: Settings, topic: str, partition: int | None, start: int | None) -> None:
    """Print TOPIC's records, byte for byte as uploaded, a line each: from L1, and from L0 what is not reconciled yet.

    \b
    Example:
      l0gc read events --partition 3 --from 1000
      l0gc read events --json
    """
    from l0gc.streamlog.reader import read_slices, read_topic

    with open_cluster(settings) as (cluster, _):
        target = cluster.controller.snapshot().topic(topic)
        if partition is not None and not 0 <= partition < target.partitions:
            raise UsageError(
                f"partition {partition} is out of range: topic {topic!r} has partitions 0 to {target.partitions - 1}"
            )
        partitions = None if partition is None else [partition]
        with writing_stdout():
            if settings.json:
                _print_json(topic, read_topic(cluster, target, partitions, start))
            else:
                _print_lines(read_slices(cluster, target, partitions, start))


def _print_lines(slices: Iterator[RecordSlice]) -> None:
    out, lines = sys.stdout.buffer, list[bytes]()
    for s in slices:
        lines += s.batch.column(2).to_pylist()
        if len(lines) >= _FLUSH:
            out.write(b"\n".join(lines) + b"\n")
            lines.clear()
    if lines:
        out.write(b"\n".join(lines) + b"\n")


def _print_json(topic: str, records: Iterator[Record]) -> None:
    """One JSON object, written as it goes: it may be larger than the memory."""
    out, n = sys.stdout.buffer, 0
    out.write(b'{"topic":' + msgspec.json.encode(topic) + b',"records":[')
    for n, r in enumerate(records, 1):
        row = {"partition": r.partition, "offset": r.offset, "timestamp_ms": r.timestamp_ms}
        body = msgspec.json.encode(row | _text("key", r.key) | _text("value", r.value))
        out.write(body if n == 1 else b"," + body)
    out.write(b'],"count":%d}\n' % n)


def _text(name: str, value: bytes | None) -> dict[str, str | None]:
    """As text where it is UTF-8, else as base64 under another name, so that nothing is lost."""
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}
