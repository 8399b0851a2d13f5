"""The options that every command takes, and the handles that are built from them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, Final

import click
from click.core import ParameterSource

from l0gc.api.cluster import Cluster as Library
from l0gc.cli.logs import FORMATS, logging_command
from l0gc.cli.terminal import is_text
from l0gc.cli.units import Number
from l0gc.errors import UsageError
from l0gc.formatting import STANDARD_PRICE
from l0gc.runtime import Runtime
from l0gc.settings import FileSettings, Settings, load_settings
from l0gc.storage.config import ENDPOINT_VARIABLES, REGION_VARIABLES, StoreConfig
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.cluster import Cluster

FILE: Final = click.Path(readable=False, allow_dash=True)
"""A file's name, which shells complete; whether it can be read is found out when it is read."""


def context_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """The contexts of the settings file, for a shell; none if it cannot be read."""
    try:
        names = load_settings(context.params.get("config")).contexts
    except UsageError:
        return []
    return [n for n in names if n.startswith(incomplete)]


_OPTIONS: Final = [
    click.option("--url", envvar="L0GC_URL", metavar="s3://BUCKET[/PREFIX]", help="Where the cluster is.  [L0GC_URL]"),
    click.option(
        "--endpoint-url",
        envvar=["L0GC_ENDPOINT_URL", *ENDPOINT_VARIABLES],
        metavar="URL",
        help="An S3-compatible server.  [AWS_ENDPOINT_URL_S3]",
    ),
    click.option("--region", envvar=["L0GC_REGION", *REGION_VARIABLES], help="The bucket's region."),
    click.option("--profile", envvar=["L0GC_PROFILE", "AWS_PROFILE"], help="The AWS profile to use."),
    click.option(
        "--cluster-id", envvar="L0GC_CLUSTER_ID", metavar="ID", help="Refuse a bucket of any other cluster."
    ),
    click.option(
        "--epoch-interval", envvar="L0GC_EPOCH_INTERVAL", type=Number(min=0), metavar="SECONDS",
        help="How old an epoch gets before the next one.  [default: 600]",
    ),
    click.option(
        "--config", envvar="L0GC_CONFIG", type=FILE, metavar="FILE",
        help="A TOML file with these options.  [default: ~/.config/l0gc/config.toml, if it is there]",
    ),
    click.option(
        "--context", envvar="L0GC_CONTEXT", metavar="NAME", shell_complete=context_names,
        help="The context of that file to use: a cluster by its name.",
    ),
    click.option("--json", is_flag=True, default=None, envvar="L0GC_JSON", help="Print one JSON object to stdout."),
    click.option(
        "--log-format", type=click.Choice(FORMATS), envvar="L0GC_LOG_FORMAT",
        help="How notes and errors are written to stderr; json: one event a line.  [default: text]",
    ),
    click.option(
        "-v", "--verbose", count=True, help="Log what the work does, and the traceback of an error. Twice: log more."
    ),
]  # fmt: skip


def check_text(parameters: Iterable[click.Parameter], values: Mapping[str, Any]) -> None:
    """Only a path may be any bytes; what is stored, compared or sent is text. Raises `UsageError`."""
    for p in parameters:
        value = values.get(p.name or "")
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, str) and not isinstance(p.type, click.Path) and not is_text(item):
                raise UsageError(
                    f"{p.opts[0] if p.param_type_name == 'option' else p.human_readable_name} is not UTF-8: {item}"
                )


def settings_file(context: click.Context) -> tuple[FileSettings, set[str]]:
    """What the settings file says to a command, and which of it comes before the environment.

    The context is the command's own, else that of `l0gc --context NAME COMMAND`; one from the environment is the weakest.
    """
    own, source = context.params.get("context"), context.get_parameter_source("context")
    of_group = context.find_root().params.get("context") if context.parent is not None else None
    by_flag = source is ParameterSource.COMMANDLINE or of_group is not None
    chosen = own if source is ParameterSource.COMMANDLINE else of_group or own
    file = load_settings(context.params.get("config"), chosen)
    if not by_flag:
        return file, set()
    return file, {k for k in file.of_context if context.get_parameter_source(k) is not ParameterSource.COMMANDLINE}


def common_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give `command` the common options; it gets them as one `Settings`, its first argument."""
    names = {f.name for f in fields(Settings)}

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        check_text(click.get_current_context().command.params, kwargs)
        file, first = settings_file(click.get_current_context())
        given = {k: v for k, v in kwargs.items() if k in names and v is not None and (k != "verbose" or v)}
        rest = {k: v for k, v in kwargs.items() if k not in {*names, "config", "context"}}
        settings = Settings(**(file.values | given | {k: file.values[k] for k in first}))
        name = click.get_current_context().command_path.split(" ", 1)[-1]
        with logging_command(settings, name, Runtime().new_id()):
            return command(settings, *args, **rest)

    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


price_option: Final = click.option(
    "--price-gb-month", type=Number(min=0), default=STANDARD_PRICE, show_default=True, metavar="DOLLARS",
    help="What the store asks for a GB and month.",
)  # fmt: skip
"""For commands that show the cost of garbage."""


def store_config(settings: Settings) -> StoreConfig:
    """Where the cluster is. Raises `UsageError` if nobody said."""
    if not settings.url:
        raise UsageError("no URL: say where the cluster is with --url s3://bucket/prefix or L0GC_URL")
    return StoreConfig.from_url(
        settings.url, endpoint_url=settings.endpoint_url, region=settings.region, profile=settings.profile
    )


def settings_while_typing(context: click.Context) -> Settings:
    """The settings on a line that is being typed, for what completes it. Raises `UsageError`."""
    file, first = settings_file(context)
    names = {f.name for f in fields(Settings)}
    given = {k: v for k, v in context.params.items() if k in names and v is not None}
    return Settings(**(file.values | given | {k: file.values[k] for k in first}))


def library(settings: Settings) -> Library:
    """The cluster of one command, to be used in a `with` block."""
    return Library(store_config(settings), settings.cluster_id, settings.epoch_interval)


@contextmanager
def open_cluster(settings: Settings) -> Iterator[tuple[Cluster, S3Store]]:
    """The handles of one command."""
    with library(settings) as cluster:
        yield cluster.handles(), cluster.store


def asked(settings: Settings, verb: str, what: str) -> None:
    """Go on if the user says so. Raises `UsageError` where there is nobody to ask, or the answer is no."""
    if settings.json or not sys.stdin.isatty() or not sys.stderr.isatty():
        raise UsageError(f"this would {verb} {what}: without a terminal to ask at, give --yes")
    if not click.confirm(f"This {verb}s {what}. {verb.capitalize()} it?", err=True):
        raise UsageError(f"nothing is {verb.removesuffix('e')}ed")
