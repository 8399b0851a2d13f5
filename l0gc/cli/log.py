"""`l0gc log show`."""

from __future__ import annotations

import sys

import click

from l0gc.cli.options import common_options, library
from l0gc.cli.output import Output, writing_stdout
from l0gc.cli.terminal import json_escaped
from l0gc.errors import CorruptObjectError, UsageError
from l0gc.formatting import count
from l0gc.settings import Settings


@click.group("log")
def command() -> None:
    """Show what the cluster's logs hold.

    \b
    Example:
      l0gc log show --journal 3
    """


@command.command("show")
@click.option("--controller", is_flag=True, help="The controller's log: topics, producers and epochs.  [default]")
@click.option("--journal", type=click.IntRange(0), metavar="N", help="The log of journal N.")
@click.option("--from", "start", type=click.IntRange(0), default=0, metavar="OFFSET", help="Begin at this offset.")
@click.option("--checkpoint", is_flag=True, help="Show the newest checkpoint first, also where no entry is gone.")
@common_options
def show(settings: Settings, controller: bool, journal: int | None, start: int, checkpoint: bool) -> None:
    """Print what a log holds, one JSON object a line: its entries, and before them, where older ones are gone, its newest
    checkpoint. With --json these lines are the `lines` of one object.

    What cannot be read is a line with an `error`; the command then ends with exit code 4.

    \b
    Example:
      l0gc log show --controller
      l0gc log show --journal 3 --from 1200
    """
    if controller and journal is not None:
        raise UsageError("show one log: --controller or --journal N")
    lines = damaged = 0
    with library(settings) as cluster, writing_stdout():
        out = sys.stdout.buffer
        for shown in cluster.log(journal, start, checkpoint=checkpoint):
            if settings.json:  # as it goes: a log may be larger than the memory
                out.write(b"," if lines else _head(journal))
            lines, damaged = lines + 1, damaged + shown.damaged
            out.writelines(json_escaped(piece.decode()).encode() for piece in shown.pieces())
            out.write(b"" if settings.json else b"\n")
        if settings.json:
            out.write((b"" if lines else _head(journal)) + b'],"count":%d,"damaged":%d}\n' % (lines, damaged))
    name = "the controller's log" if journal is None else f"journal {journal}"
    if damaged:
        raise CorruptObjectError(f"{count(damaged, 'line')} of {name} cannot be read; those with an error say why")
    if not lines:
        Output(settings).note(f"{name} holds nothing" + (f" from offset {start} on" if start else ""))


def _head(journal: int | None) -> bytes:
    log = "controller" if journal is None else "journal"
    return b'{"log":"%s","journal":%s,"lines":[' % (log.encode(), b"null" if journal is None else b"%d" % journal)
