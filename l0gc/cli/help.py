"""`l0gc help`, for those who type the word first, as with git; and `l0gc completion`.

A shell completes commands, options, file names, and the names in the bucket (`names.py`).
"""

from __future__ import annotations

import click

from l0gc.cli.options import common_options
from l0gc.cli.output import Output
from l0gc.errors import UsageError
from l0gc.settings import Settings


@click.command("help")
@click.argument("command", nargs=-1, metavar="[COMMAND]...")
@common_options
def help_command(settings: Settings, command: tuple[str, ...]) -> None:
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
            raise UsageError(f"{context.command_path} has no subcommands, so none called {name!r}")
        _, found, _ = group.resolve_command(context, [name])
        assert found is not None  # resolve_command says what is wrong
        context = click.Context(found, info_name=name, parent=context)
    text = context.get_help()
    Output(settings).result({"command": " ".join(command), "help": text}, text.splitlines(), indent=None)


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@common_options
def completion_command(settings: Settings, shell: str) -> None:
    """Print the script that completes l0gc in a shell.

    \b
    Example:
      l0gc completion bash > ~/.local/share/bash-completion/completions/l0gc
      l0gc completion zsh > "${fpath[1]}/_l0gc"
      l0gc completion fish > ~/.config/fish/completions/l0gc.fish
      source <(l0gc completion bash)     # in this shell alone
    """
    from click.shell_completion import get_completion_class

    complete = get_completion_class(shell)
    assert complete is not None
    root = click.get_current_context().find_root().command
    script = complete(root, {}, "l0gc", "_L0GC_COMPLETE").source().strip()
    Output(settings).result({"shell": shell, "script": script}, script.splitlines())
