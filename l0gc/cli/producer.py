"""`l0gc producer describe|list`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from l0gc.cli.names import PRODUCER
from l0gc.cli.options import common_options, library
from l0gc.cli.output import Output, epoch
from l0gc.formatting import count, moment
from l0gc.settings import Settings

if TYPE_CHECKING:
    from l0gc.streamlog.producers import InputView, JournalView, ProducerList, ProducerView

_INPUTS_SHOWN: Final = 3
_DIGITS_SHOWN: Final = 12


@click.group("producer")
def command() -> None:
    """Show producers, and how far their uploads got.

    \b
    Example:
      l0gc producer list
      l0gc producer describe nightly
    """


@command.command("describe")
@click.argument("name", type=PRODUCER)
@common_options
def describe(settings: Settings, name: str) -> None:
    """Show the newest run of producer NAME, and how far each journal is with it.

    \b
    Example:
      l0gc producer describe nightly
    """
    with library(settings) as cluster:
        Output(settings).finish(lambda: cluster.producers.describe(name), _lines, progress="reading", indent=13)


@command.command("list")
@common_options
def list_all(settings: Settings) -> None:
    """List the producers that the controller knows.

    \b
    Example:
      l0gc producer list
    """

    def lines(found: ProducerList) -> list[str]:
        shown = [
            f"{p.name}  id {p.producer_id}  epoch {p.epoch}  last run {moment(p.began_ms)}" for p in found.producers
        ]
        return shown or ["no producers exist; l0gc upload --producer NAME makes one"]

    with library(settings) as cluster:
        Output(settings).finish(cluster.producers.list, lines)


def _lines(view: ProducerView) -> list[str]:
    lines = [
        f"producer     {view.name}: id {view.producer_id}, epoch {view.epoch}, last epoch {epoch(view.last_epoch)}",
        f"began        {moment(view.began_ms)}; last used {moment(view.last_used_ms)}",
        f"expires      {moment(view.expires_ms)}, unless another run begins before",
    ]
    for j in view.journals:
        lines += _journal(j)
    if view.unknown_journals:
        begin = "it may begin there" if view.may_begin else "the run is too old to begin there, upload again"
        lines.append(f"unknown      in {count(view.unknown_journals, 'journal')}; {begin}")
    return [*lines, *(f"broken       {e}" for e in view.errors)]


def _journal(j: JournalView) -> list[str]:
    known = f"epoch {j.epoch}, next sequence {j.next_sequence}, last landed {moment(j.last_landed_ms)}"
    rest = [j.meaning, *_inputs(j.inputs)]
    return [f"journal {j.journal:<4} {known}", *(f"{'':13}{line}" for line in rest)]


def _inputs(inputs: Sequence[InputView]) -> list[str]:
    """The inputs that landed last; how many there are of the others."""
    lines = [f"input {_short(i.input)}: {count(i.landed, 'record')} landed" for i in inputs[:_INPUTS_SHOWN]]
    more = len(inputs) - _INPUTS_SHOWN
    return [*lines, f"and {count(more, 'input')} before (--json has them)"] if more > 0 else lines


def _short(input_id: str) -> str:
    """The hash, shortened, and the number after the point, which counts inputs of the same content."""
    digest, point, nth = input_id.partition(".")
    return digest[:_DIGITS_SHOWN] + point + nth
