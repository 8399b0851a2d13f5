"""The options that every command takes, before or after its name. A command's help lists them last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import click
from click.core import ParameterSource

from l0gc.cli.logs import FORMATS
from l0gc.cli.units import interval
from l0gc.errors import UsageError
from l0gc.settings import load_settings
from l0gc.storage.config import ENCRYPTIONS, ENDPOINT_VARIABLES, REGION_VARIABLES

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

FILE: Final = click.Path(readable=False, allow_dash=True)
"""The type of a file name, which shells complete. The file is checked when it is read."""


class GlobalOption(click.Option):
    """An option that every command takes."""


def context_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the contexts of the settings file for a shell's completion; none if it cannot be read."""
    try:
        names = load_settings(context.params.get("config")).contexts
    except UsageError:
        return []
    return [n for n in names if n.startswith(incomplete)]


_option: Final = partial(click.option, cls=GlobalOption)
GLOBAL_OPTIONS: Final = [
    _option("--url", envvar="L0GC_URL", metavar="s3://BUCKET[/PREFIX]", help="The URL of the cluster.  [L0GC_URL]"),
    _option(
        "--endpoint-url", envvar=["L0GC_ENDPOINT_URL", *ENDPOINT_VARIABLES], metavar="URL",
        help="An S3-compatible server.  [AWS_ENDPOINT_URL_S3]",
    ),
    _option("--region", envvar=["L0GC_REGION", *REGION_VARIABLES], help="The bucket's region."),
    _option("--profile", envvar=["L0GC_PROFILE", "AWS_PROFILE"], help="The AWS profile to use."),
    _option(
        "--sse", envvar="L0GC_SSE", type=click.Choice(ENCRYPTIONS), help="The encryption of objects that l0gc writes."
    ),
    _option("--sse-kms-key-id", envvar="L0GC_SSE_KMS_KEY_ID", metavar="ID", help="The key for --sse aws:kms."),
    _option(
        "--store-timeout", envvar="L0GC_STORE_TIMEOUT", type=interval, metavar="DURATION",
        help="How long a run waits in total for a silent store.  [default: 2m]",
    ),
    _option(
        "--idle-timeout", envvar="L0GC_IDLE_TIMEOUT", type=interval, metavar="DURATION",
        help="How long a connection may be idle before it is closed, before a NAT forgets it.  [default: 45s]",
    ),
    _option("--cluster-id", envvar="L0GC_CLUSTER_ID", metavar="ID", help="Refuse a bucket of any other cluster."),
    _option(
        "--config", envvar="L0GC_CONFIG", type=FILE, metavar="FILE", is_eager=True,
        help="A TOML file with these options.  [default: ~/.config/l0gc/config.toml, if it exists]",
    ),
    _option(
        "--context", envvar="L0GC_CONTEXT", metavar="NAME", shell_complete=context_names, is_eager=True,
        help="The context in that file to use, which names a cluster.",
    ),
    _option("--json", is_flag=True, default=None, envvar="L0GC_JSON", help="Print one JSON object to stdout."),
    _option(
        "--json-file", envvar="L0GC_JSON_FILE", type=FILE, metavar="FILE",
        help="Also write the result's JSON object to this file.",
    ),
    _option(
        "--quiet", is_flag=True, default=None, envvar="L0GC_QUIET",
        help="Print nothing unless something needs attention, for cron.",
    ),
    _option(
        "--log-format", type=click.Choice(FORMATS), envvar="L0GC_LOG_FORMAT",
        help="The format of notes and errors on stderr; json prints one event per line.  [default: text]",
    ),
    _option(
        "-v", "--verbose", count=True, help="Log the steps of the work, and the traceback of an error; twice, log more."
    ),
]  # fmt: skip

epoch_interval_option: Final = click.option(
    "--epoch-interval", envvar="L0GC_EPOCH_INTERVAL", type=interval, metavar="DURATION",
    help="The age of an epoch at which the next one begins.  [default: 10m]",
)  # fmt: skip
"""The option of commands that advance the epoch when it is due, or report whether that happens."""


def on_command_line(context: click.Context) -> dict[str, Any]:
    """Return the options on the command line. An option after the command's name takes precedence over one before it."""
    parameters = dict[str, Any]()
    for part in (context.find_root(), context):
        parameters |= {
            k: v for k, v in part.params.items() if part.get_parameter_source(k) is ParameterSource.COMMANDLINE
        }
    return parameters


def options(several: Sequence[Decorator]) -> Decorator:
    """Give a command several options, which its help shows in this order."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(several):
            command = option(command)
        return command

    return decorate


class Command(click.Command):
    """A command whose help lists its own options first."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the two sections of options; `--help` is one of the global options."""
        rows: dict[str, list[tuple[str, str]]] = {"Options": [], "Global options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                is_global = isinstance(parameter, GlobalOption) or "--help" in parameter.opts
                rows["Global options" if is_global else "Options"].append(record)
        for title, rows_of_title in rows.items():
            if rows_of_title:
                with formatter.section(title):
                    formatter.write_dl(rows_of_title)


class CommandGroup(click.Group):
    """A group of commands whose help lists their own options first."""

    command_class = Command


cli_command: Final = partial(click.command, cls=Command)
