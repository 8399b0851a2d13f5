"""`l0gc help` shows a command's help or a page of the documents. The commands `version`, `completion` and `config show`
are also here.

Messages refer to pages by `l0gc help PAGE`, since an installation has no repository. The wheel contains the pages
(pyproject.toml), and a checkout has them next to the package. A shell completes commands, options, file names, and
names in the bucket (`options.py`). Settings are shown with their sources. Credentials are not settings.
"""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.core import ParameterSource

from l0gc import __version__
from l0gc.cli.globals import CommandGroup, cli_command, epoch_interval_option, on_command_line
from l0gc.cli.options import common_options, settings_file
from l0gc.cli.output import Output
from l0gc.errors import UsageError, suggestion
from l0gc.redaction import without_secrets
from l0gc.settings import FileSettings, Settings, default_file


def pages() -> dict[str, Path]:
    """Return the documents of this installation, by name, e.g. `operate-logs`."""
    package = Path(__file__).parents[1]
    folder = next((f for f in (package / "docs", package.parent / "docs") if f.is_dir()), package)
    return {path.stem: path for path in sorted(folder.rglob("*.md"))}


@cli_command("help")
@click.argument("command", nargs=-1, metavar="[COMMAND]... | PAGE")
@common_options
def help_command(settings: Settings, command: tuple[str, ...]) -> None:
    """Show the help of a command or of l0gc, or a page of the documents.

    \b
    Example:
      l0gc help
      l0gc help topic create
      l0gc help operations
    """
    context = click.get_current_context().find_root()
    assert isinstance(context.command, click.Group)
    if len(command) == 1 and command[0] not in (commands := context.command.list_commands(context)):
        by_name = pages()
        if command[0] not in by_name:
            names = sorted(by_name)
            hint = suggestion(command[0], [*commands, *names], f"pages are {', '.join(names)}")
            raise click.UsageError(f"{command[0]!r} is neither a command nor a page; {hint}")
        text = by_name[command[0]].read_text(encoding="utf-8")
        Output(settings).result({"command": command[0], "help": text}, text.splitlines(), indent=None)
        return
    for name in command:
        group = context.command
        if not isinstance(group, click.Group):
            raise UsageError(
                f"{context.command_path} has no subcommand {name!r}; {context.command_path} --help lists its options"
            )
        _, leaf, _ = group.resolve_command(context, [name])
        assert leaf is not None  # resolve_command would have raised an error
        context = click.Context(leaf, info_name=name, parent=context)
    text = context.get_help()
    Output(settings).result({"command": " ".join(command), "help": text}, text.splitlines(), indent=None)


@cli_command("version")
@common_options
def version_command(settings: Settings) -> None:
    """Show the version.

    \b
    Example:
      l0gc version --json
    """
    Output(settings).result({"version": __version__}, [f"l0gc, version {__version__}"])


@cli_command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@common_options
def completion_command(settings: Settings, shell: str) -> None:
    """Print a script that makes a shell complete l0gc's command lines.

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


@click.group("config", cls=CommandGroup)
def config_command() -> None:
    """Show the settings that commands use.

    \b
    Example:
      l0gc config show
    """


@config_command.command("show")
@epoch_interval_option
@common_options
def show_command(settings: Settings) -> None:
    """Show each setting, and the source of its value: option, environment, file or default.

    The file is the one that --config or L0GC_CONFIG names, or else ~/.config/l0gc/config.toml. It may have contexts:
    settings below [contexts.prod] apply to a command with --context prod, and take precedence over the environment.
    Credentials are not settings, and are not shown.

    \b
    Example:
      l0gc config show
      l0gc --context prod config show --config /etc/l0gc.toml
    """
    out = Output(settings)
    context = click.get_current_context()
    file, first = settings_file(context)
    names = [*Settings.__struct_fields__]
    values = {n: getattr(settings, n) for n in names}
    shown = {n: without_secrets(v) if isinstance(v, str) else v for n, v in values.items()}
    rows = [(n, v, _source(context, n, file, first)) for n, v in shown.items()]
    width = max(len(name) for name, _, _ in rows)
    out.result(
        {
            "settings": [{"name": name, "value": value, "source": source} for name, value, source in rows],
            "file": file.path or None,
            "context": file.context,
            "contexts": file.contexts,
        },
        [
            f"settings file: {file.path or f'none ({_short(default_file())} is not there)'}",
            *([f"context: {file.context or 'none'} (of {', '.join(file.contexts)})"] if file.contexts else []),
            *(f"{name:{width}}  {'-' if value is None else value}  ({source})" for name, value, source in rows),
        ],
    )


def _short(path: Path) -> str:
    """Return a path with `~` for the home directory."""
    home = os.path.expanduser("~")  # noqa: PTH111 - a user may have no home directory
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def _source(context: click.Context, name: str, file: FileSettings, first: set[str]) -> str:
    of_file = f"context {file.context} in {file.path}" if name in file.of_context else file.path
    if name in first:
        return of_file
    if name in on_command_line(context):
        return "option"
    parameter = next(p for p in context.command.params if p.name == name)
    match context.get_parameter_source(name):
        case ParameterSource.ENVIRONMENT:
            names = [parameter.envvar] if isinstance(parameter.envvar, str) else list(parameter.envvar or [])
            return next((n for n in names if os.environ.get(n)), "environment")
        case _:
            return of_file if name in file.values else "default"
