"""`l0gc help`: what `--help` says, for those who type the word first, as with git."""

from __future__ import annotations

import click

from l0gc.cli.options import common_options
from l0gc.cli.output import Output
from l0gc.errors import UsageError
from l0gc.settings import Settings


@click.command("help")
@click.argument("command", nargs=-1, metavar="[COMMAND]...")
@common_options
def command(settings: Settings, command: tuple[str, ...]) -> None:
    """Show the help of a command, or of l0gc.

    \b
    Example:
      l0gc help
      l0gc help topic create
    """
    context = click.get_current_context().find_root()
    for name in command:
        group = context.command
        if not isinstance(group, click.Group):
            raise UsageError(f"{context.command_path} has no commands of its own, so none called {name!r}")
        _, found, _ = group.resolve_command(context, [name])
        assert found is not None  # resolve_command says what is wrong
        context = click.Context(found, info_name=name, parent=context)
    text = context.get_help()
    Output(settings).result({"command": " ".join(command), "help": text}, text.splitlines(), indent=None)
