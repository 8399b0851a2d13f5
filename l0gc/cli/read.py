"""`l0gc read` prints records, and `l0gc log show` prints the logs."""

from __future__ import annotations

import base64
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from l0gc.api import Cluster
from l0gc.cli.globals import CommandGroup, cli_command
from l0gc.cli.options import TOPIC, cluster_options, moment_of, operation_options
from l0gc.cli.output import Output, atomic_file, writing_stdout
from l0gc.cli.signals import stop_on_interrupt, stopping
from l0gc.cli.terminal import json_escaped
from l0gc.cli.units import Whole, interval
from l0gc.errors import CorruptObjectError, StoppedError, UsageError
from l0gc.formatting import as_duration, count, size
from l0gc.operations import FOLLOW_S, LENGTH_BYTES, Read

if TYPE_CHECKING:
    from l0gc.streamlog.follow import Follower
    from l0gc.streamlog.ingest.headers_and_times import Record
    from l0gc.streamlog.reader import RecordLines

_STDOUT: Final = "-"
_LENGTH_PREFIXED: Final = "length-prefixed"
_NOT_BOTH: Final = f"--json prints JSON, and --format {_LENGTH_PREFIXED} does not: give one of them, or -o FILE"


@cli_command("read")
@click.argument("topic", shell_complete=TOPIC)
@operation_options(Read)
@click.option(
    "-o", "--output", metavar="FILE", help="Write the records to this file, replacing its contents; - for stdout."
)
@click.option(
    "--format", "form", type=click.Choice(["lines", _LENGTH_PREFIXED]), default="lines", show_default=True,
    help="The separation of records: a newline after each, or the length before each, as l0gc upload accepts it.",
)  # fmt: skip
@click.option(
    "--follow", is_flag=True, help="Continue as records land, until Ctrl-C, which prints where to continue later."
)
@click.option(
    "--interval", type=interval, default=as_duration(FOLLOW_S), show_default=True, metavar="DURATION",
    help="With --follow, how long to wait between two checks; up to eight times as long while nothing lands.",
)  # fmt: skip
@cluster_options()
def read_command(
    out: Output,
    cluster: Cluster,
    topic: str,
    output: str | None,
    form: str,
    follow: bool,
    interval: float,
    **options: Any,
) -> None:
    """Print TOPIC's records, byte for byte as uploaded, one per line, from L1 and, if they are not reconciled yet, from
    L0.

    A value that contains newlines takes several lines; --format length-prefixed and --json keep these values separate.
    With -o FILE, the file is replaced once the new one is complete. A TIME is a time such as 2026-01-31T12:00:00Z, or
    an age such as 90m, 12h or 7d.

    \b
    Example:
      l0gc read events --partition 3 --from 1000
      l0gc read events --from-time 1h
      l0gc read events -o events.ndjson
      l0gc read events --json
      l0gc read events --follow
    """
    for name in ("from_time_ms", "before_time_ms"):
        options[name] = moment_of(cluster, options[name])
    if follow:
        if output not in (None, _STDOUT):
            raise UsageError("--follow has no end, and -o FILE writes a whole file: use > FILE instead")
        out.refuse_file("> FILE")
        if out.json and form == _LENGTH_PREFIXED:
            raise UsageError(_NOT_BOTH)
        _follow(out, partial(cluster.follow, topic, interval_s=interval, **options), form)
        return
    lines = partial(cluster.read_lines, topic, length_prefixed=form == _LENGTH_PREFIXED, **options)
    if output is not None and output != _STDOUT:
        _write_file(out, topic, lines, Path(output))
        return
    out.refuse_file("-o FILE")
    if out.json and form == _LENGTH_PREFIXED:
        raise UsageError(_NOT_BOTH)
    with writing_stdout():
        if out.json:
            _print_json(topic, cluster.read(topic, **options))
        else:
            for chunk in lines():
                sys.stdout.buffer.write(chunk.lines)


def _write_file(out: Output, topic: str, lines: Callable[..., Iterator[RecordLines]], path: Path) -> None:
    """Read into a file, and print the result."""
    records = written = 0
    whole = False

    def stopped() -> str:
        return f"{path} is {'complete' if whole else 'unchanged'}; running the command again is safe"

    with stop_on_interrupt(stopped):
        with out.progress(f"reading {topic}") as show, atomic_file(path) as write:
            for part in lines(progress=show):
                write(part.lines)
                records, written = records + part.records, written + len(part.lines)
        whole = True
        data = {"topic": topic, "output": str(path), "count": records, "bytes": written}
        out.result(data, [f"{count(records, 'record')} ({size(written)}) in {path}"])


def _follow(out: Output, follow: Callable[..., Follower], form: str) -> None:
    """Print records as they land; with --json, each as an object on one line. Raises `StoppedError` with the positions."""
    stdout, signals = sys.stdout.buffer, list[int]()
    stop = threading.Event()
    with writing_stdout(), stopping(stop.set, signals):
        followed = follow(caught_up=stdout.flush, stop=stop)
        for record in followed:
            if out.json:
                stdout.write(_json_of(record) + b"\n")
            elif form == _LENGTH_PREFIXED:
                stdout.write(len(record.value).to_bytes(LENGTH_BYTES, "big") + record.value)
            else:
                stdout.write(record.value + b"\n")
    positions = ",".join(f"{p}:{offset}" for p, offset in sorted(followed.positions.items()))
    raise StoppedError(f"stopped: continue with --from {positions}", 128 + signals[0])


def _print_json(topic: str, records: Iterator[Record]) -> None:
    """Print a JSON object piece by piece, since it may be larger than the memory."""
    out, n = sys.stdout.buffer, 0
    out.write(b'{"topic":' + msgspec.json.encode(topic) + b',"records":[')
    for n, r in enumerate(records, 1):
        out.write(_json_of(r) if n == 1 else b"," + _json_of(r))
    out.write(b'],"count":%d}\n' % n)


def _json_of(r: Record) -> bytes:
    row = {"partition": r.partition, "offset": r.offset, "timestamp_ms": r.timestamp_ms}
    more: dict[str, Any] = {}
    if r.create_time_ms is not None:
        row["create_time_ms"] = r.create_time_ms
    if r.headers:
        more["headers"] = [{"key": key, **_text("value", value)} for key, value in r.headers]
    return msgspec.json.encode(row | _text("key", r.key) | _text("value", r.value) | more)


def _text(name: str, value: bytes | None) -> dict[str, str | None]:
    """Return UTF-8 as text, and other bytes as base64 under a different name, so that nothing is lost."""
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


@click.group("log", cls=CommandGroup)
def log_command() -> None:
    """Show the contents of the cluster's logs.

    \b
    Example:
      l0gc log show --journal 3
    """


@log_command.command("show")
@click.option("--controller", is_flag=True, help="Show the controller's log: topics, producers and epochs.  [default]")
@click.option("--journal", type=Whole(0), metavar="N", help="Show the log of journal N.")
@click.option("--from", "start", type=Whole(0), default=0, metavar="OFFSET", help="Begin at this offset.")
@click.option("--checkpoint", is_flag=True, help="Show the newest checkpoint first, even if no entries were deleted.")
@cluster_options()
def show(out: Output, cluster: Cluster, controller: bool, journal: int | None, start: int, checkpoint: bool) -> None:
    """Print the contents of a log, one JSON object per line: its entries, after its newest checkpoint if older entries
    are deleted. With --json, these lines are the field `lines` of one object.

    A line that cannot be read has an `error`, and the command then ends with exit code 4.

    \b
    Example:
      l0gc log show --controller
      l0gc log show --journal 3 --from 1200
    """
    if controller and journal is not None:
        raise UsageError("--controller and --journal exclude each other")
    out.refuse_file("--json")
    lines = damaged = 0
    with writing_stdout():
        stdout = sys.stdout.buffer
        for shown in cluster.log(journal, start, checkpoint=checkpoint):
            if out.json:  # line by line, since a log may be larger than the memory
                stdout.write(b"," if lines else _head(journal))
            lines, damaged = lines + 1, damaged + shown.damaged
            stdout.writelines(json_escaped(piece.decode()).encode() for piece in shown.pieces())
            stdout.write(b"" if out.json else b"\n")
        if out.json:
            stdout.write((b"" if lines else _head(journal)) + b'],"count":%d,"damaged":%d}\n' % (lines, damaged))
    name = "the controller's log" if journal is None else f"journal {journal}"
    if damaged:
        raise CorruptObjectError(
            f"{count(damaged, 'line')} of {name} cannot be read; each of those lines has its error"
        )
    if not lines:
        out.note(f"{name} holds nothing" + (f" from offset {start} on" if start else ""))


def _head(journal: int | None) -> bytes:
    log = "controller" if journal is None else "journal"
    return b'{"log":"%s","journal":%s,"lines":[' % (log.encode(), b"null" if journal is None else b"%d" % journal)
