"""`l0gc completion`. Completes commands, options and file names; names in the bucket would need the network."""

from __future__ import annotations

import click

from l0gc.cli.options import common_options
from l0gc.cli.output import Output
from l0gc.settings import Settings


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@common_options
def command(settings: Settings, shell: str) -> None:
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
