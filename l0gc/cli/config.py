"""`l0gc config show`."""

from __future__ import annotations

import os
from dataclasses import fields

import click
from click.core import ParameterSource

from l0gc.cli.logs import without_secret
from l0gc.cli.options import common_options
from l0gc.cli.output import Output
from l0gc.settings import Settings, load_file


@click.group("config")
def command() -> None:
    """Show the settings that commands go by.

    \b
    Example:
      l0gc config show
    """


@command.command("show")
@common_options
def show_command(settings: Settings) -> None:
    """Show each setting, and where its value comes from: option, environment, file or default.

    Credentials are no settings, and are not shown.

    \b
    Example:
      l0gc config show --config /etc/l0gc.toml
    """
    out = Output(settings)
    context = click.get_current_context()
    path = context.params.get("config")
    file = load_file(path) if path else {}
    names = [f.name for f in fields(Settings)]
    rows = [(n, _shown(getattr(settings, n)), _source(context, n, file, path)) for n in names]
    width = max(len(name) for name, _, _ in rows)
    out.result(
        {"settings": [{"name": name, "value": value, "source": source} for name, value, source in rows]},
        [f"{name:{width}}  {'-' if value is None else value}  ({source})" for name, value, source in rows],
    )


def _shown(value: object) -> object:
    return without_secret(value) if isinstance(value, str) else value


def _source(context: click.Context, name: str, file: dict[str, object], path: str | None) -> str:
    parameter = next(p for p in context.command.params if p.name == name)
    match context.get_parameter_source(name):
        case ParameterSource.COMMANDLINE:
            return "option"
        case ParameterSource.ENVIRONMENT:
            names = [parameter.envvar] if isinstance(parameter.envvar, str) else list(parameter.envvar or [])
            return next((n for n in names if os.environ.get(n)), "environment")
        case _:
            return str(path) if name in file else "default"
