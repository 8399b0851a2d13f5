"""`l0gc read`."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec

from l0gc.api.cluster import Cluster
from l0gc.cli.files import whole_file
from l0gc.cli.names import TOPIC
from l0gc.cli.options import common_options, library
from l0gc.cli.output import Output, writing_stdout
from l0gc.cli.signals import telling_stop
from l0gc.formatting import count, size
from l0gc.settings import Settings

if TYPE_CHECKING:
    from l0gc.streamlog.reader import Record

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
    with library(settings) as cluster:
        if output is not None and output != _STDOUT:
            _write_file(Output(settings), cluster, topic, partition, start, Path(output))
            return
        with writing_stdout():
            if settings.json:
                _print_json(topic, cluster.read(topic, partition, start))
            else:
                for some in cluster.read_lines(topic, partition, start):
                    sys.stdout.buffer.write(some.lines)


def _write_file(
    out: Output, cluster: Cluster, topic: str, partition: int | None, start: int | None, path: Path
) -> None:
    """Read into a file, and print the result."""
    records = written = 0
    whole = False

    def stopped() -> str:
        return f"{path} is {'whole' if whole else 'as it was'}; running the command again is safe"

    with telling_stop(stopped):
        with out.progress(f"reading {topic}") as show, whole_file(path) as write:
            for some in cluster.read_lines(topic, partition, start, progress=show):
                write(some.lines)
                records, written = records + some.records, written + len(some.lines)
        whole = True
        data = {"topic": topic, "output": str(path), "count": records, "bytes": written}
        out.result(data, [f"{count(records, 'record')} ({size(written)}) in {path}"])


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
