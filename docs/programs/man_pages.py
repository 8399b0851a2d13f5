"""Write man pages, one for each command, from the text of `--help`: `python docs/programs/man_pages.py DIRECTORY`
(`make docs`).
"""

from __future__ import annotations

import copy
import re
import sys
from pathlib import Path

import click

from l0gc import __version__
from l0gc.cli.main import COMMANDS, cli

_DATE = "2026"
"""A fixed date, so that the same source makes the same pages."""


def whole() -> click.Group:
    """Return `l0gc` with all of its commands, of which it knows only the names until one is used."""
    context = click.Context(cli)
    commands: dict[str, click.Command] = {}
    for name, row in COMMANDS.items():
        command = cli.get_command(context, name)
        assert command is not None
        commands[name] = _with_sentence(command, row.text)
    return click.Group("l0gc", commands=commands, params=cli.params, help=cli.help, short_help=_first(cli))


def _with_sentence(command: click.Command, short: str = "") -> click.Command:
    """Return a copy without hidden parts, whose short help is a whole sentence; click would cut the sentence off."""
    command = copy.copy(command)
    command.short_help = short or _first(command)
    command.params = [p for p in command.params if not getattr(p, "hidden", False)]
    if isinstance(command, click.Group):
        command.commands = {name: _with_sentence(below) for name, below in command.commands.items()}
    return command


def _first(command: click.Command) -> str:
    return " ".join((command.help or "").split("\n\n", maxsplit=1)[0].split())


def write(directory: Path) -> list[Path]:
    """Write the pages into a directory, which is created if needed."""
    from click_man.core import write_man_pages

    directory.mkdir(parents=True, exist_ok=True)
    write_man_pages("l0gc", whole(), version=__version__, target_dir=str(directory), date=_DATE)
    pages = sorted(directory.glob("l0gc*.1"))
    for page in pages:
        page.write_text(_examples(page.read_text()))
    return pages


def _examples(page: str) -> str:
    """Keep the line breaks of examples, for which `--help` uses a control character."""
    return re.sub(r"\x08\n(.*?)(?=\n\.SH|\Z)", r".nf\n\1\n.fi", page, flags=re.DOTALL)


COMMAND = whole()
"""The command for `cli.rst`."""

if __name__ == "__main__":
    write(Path(sys.argv[1]))
