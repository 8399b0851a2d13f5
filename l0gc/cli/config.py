"""`l0gc config show`."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path

import click
from click.core import ParameterSource

from l0gc.cli.logs import without_secret
from l0gc.cli.options import common_options, settings_file
from l0gc.cli.output import Output
from l0gc.settings import FileSettings, Settings, default_file


@click.group("config")
def command() -> None:
    """Show the settings that commands use.

    \b
    Example:
      l0gc config show
    """


@command.command("show")
@common_options
def show_command(settings: Settings) -> None:
    """Show each setting, and where its value comes from: option, environment, file or default.

    The file is the one that --config or L0GC_CONFIG names, else ~/.config/l0gc/config.toml. It may have contexts: what
    stands below its line [contexts.prod] holds for a command with --context prod, before the environment. Credentials are
    no settings, and are not shown.

    \b
    Example:
      l0gc config show
      l0gc --context prod config show --config /etc/l0gc.toml
    """
    out = Output(settings)
    context = click.get_current_context()
    file, first = settings_file(context)
    names = [f.name for f in fields(Settings)]
    rows = [(n, _shown(getattr(settings, n)), _source(context, n, file, first)) for n in names]
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
    """With `~` for the home directory, as people write it."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def _shown(value: object) -> object:
    return without_secret(value) if isinstance(value, str) else value


def _source(context: click.Context, name: str, file: FileSettings, first: set[str]) -> str:
    of_file = f"context {file.context} in {file.path}" if name in file.of_context else file.path
    if name in first:
        return of_file
    parameter = next(p for p in context.command.params if p.name == name)
    match context.get_parameter_source(name):
        case ParameterSource.COMMANDLINE:
            return "option"
        case ParameterSource.ENVIRONMENT:
            names = [parameter.envvar] if isinstance(parameter.envvar, str) else list(parameter.envvar or [])
            return next((n for n in names if os.environ.get(n)), "environment")
        case _:
            return of_file if name in file.values else "default"
