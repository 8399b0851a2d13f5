"""`l0gc read`."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec

from l0gc.cli.names import TOPIC
from l0gc.cli.options import common_options, open_cluster
from l0gc.cli.output import Output, writing_stdout
from l0gc.cli.signals import telling_stop
from l0gc.cli.whole_file import whole_file
from l0gc.errors import UsageError
from l0gc.formatting import count, size
from l0gc.settings import Settings

if TYPE_CHECKING:
    from l0gc.streamlog.cluster import Cluster
    from l0gc.streamlog.controller.state import Topic
    from l0gc.streamlog.reader import Record, RecordSlice

_FLUSH: Final = 4096
_STDOUT: Final = "-"


@click.command("read")
@click.argument("topic", type=TOPIC)
@click.option("--partition", type=int, metavar="N", help="Only partition N.  [default: all, one after another]")
@click.option(
    "--from", "start", type=click.IntRange(0), metavar="OFFSET",
    help="Begin at this offset.  [default: the first one that is there]",
)  # fmt: skip
@click.option(
    "-o", "--output", metavar="FILE", help="Write them into this file, in place of what is there; - for stdout."
)
@common_options
def command(settings: Settings, topic: str, partition: int | None, start: int | None, output: str | None) -> None:
    """Print TOPIC's records, byte for byte as uploaded, a line each: from L1, and from L0 what is not reconciled yet.

    With -o FILE, the file is there when it is whole, and until then what was there before stays.

    \b
    Example:
      l0gc read events --partition 3 --from 1000
      l0gc read events -o events.ndjson
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
        if output is not None and output != _STDOUT:
            _write_file(Output(settings), cluster, target, partitions, start, Path(output))
            return
        with writing_stdout():
            if settings.json:
                _print_json(topic, read_topic(cluster, target, partitions, start))
            else:
                for lines, _ in _lines(read_slices(cluster, target, partitions, start)):
                    sys.stdout.buffer.write(lines)


def _write_file(
    out: Output, cluster: Cluster, topic: Topic, partitions: list[int] | None, start: int | None, path: Path
) -> None:
    """Read into a file, and print the result."""
    from l0gc.streamlog.reader import count_records, read_slices

    records = written = 0
    whole = False

    def stopped() -> str:
        return f"{path} is {'whole' if whole else 'as it was'}; running the command again is safe"

    with telling_stop(stopped):
        with out.progress(f"reading {topic.name}") as show:
            show("reading the journals")
            total = count_records(cluster, topic, partitions, start)
            with whole_file(path) as write:
                for lines, n in _lines(read_slices(cluster, topic, partitions, start)):
                    write(lines)
                    records, written = records + n, written + len(lines)
                    show(f"{count(records, 'record')}, {size(written)}", done=records, total=max(total, records))
            whole = True
        data = {"topic": topic.name, "output": str(path), "count": records, "bytes": written}
        out.result(data, [f"{count(records, 'record')} ({size(written)}) in {path}"])


def _lines(slices: Iterator[RecordSlice]) -> Iterator[tuple[bytes, int]]:
    """Some thousand records at once as lines, and how many they are."""
    lines = list[bytes]()
    for s in slices:
        lines += s.batch.column(2).to_pylist()
        if len(lines) >= _FLUSH:
            yield b"\n".join(lines) + b"\n", len(lines)
            lines.clear()
    if lines:
        yield b"\n".join(lines) + b"\n", len(lines)


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
