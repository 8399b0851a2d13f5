"""Parses command lines of examples as l0gc does, without running them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

import click

from l0gc.cli.main import cli


def parse(line: str | Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return the command and its options. Raises `click.UsageError` if l0gc would refuse the line."""
    words = shlex.split(line) if isinstance(line, str) else ["l0gc", *line]
    assert words[0].rsplit("/")[-1] == "l0gc"
    context = click.Context(cli, info_name="l0gc")
    command: click.Command = cli
    rest = words[1:]
    while isinstance(command, click.Group):
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None
        command, context = found, click.Context(found, context, info_name=name)
    return words[1], command.make_context(command.name, list(rest), parent=context).params
