"""The options that every command takes, and the handles that are built from them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, Final

import click

from l0gc.cli.logs import FORMATS, logging_command
from l0gc.errors import UsageError
from l0gc.figures import STANDARD_PRICE
from l0gc.runtime import Runtime
from l0gc.settings import Settings, load_file
from l0gc.storage.config import ENDPOINT_VARIABLES, REGION_VARIABLES, StoreConfig
from l0gc.storage.s3 import S3Store
from l0gc.streamlog import cluster
from l0gc.streamlog.cluster import Cluster

FILE: Final = click.Path(readable=False, allow_dash=True)
"""A file's name, which shells complete; whether it can be read is found out, and told, by whoever reads it."""


class Number(click.FloatRange):
    """A number within bounds. `nan` would pass any of them, since it compares with nothing."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is no number", param, ctx)
        return number


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
        help="Advance the epoch when it is older than this.  [default: 600]",
    ),
    click.option(
        "--epoch-cache", envvar="L0GC_EPOCH_CACHE", type=Number(min=0), metavar="SECONDS", hidden=True,
        help="How long an uploader may use an epoch before it looks again.  [default: 10]",
    ),
    click.option("--config", envvar="L0GC_CONFIG", type=FILE, metavar="FILE", help="A TOML file with these options."),
    click.option("--json", is_flag=True, default=None, envvar="L0GC_JSON", help="Print one JSON object to stdout."),
    click.option(
        "--log-format", type=click.Choice(FORMATS), envvar="L0GC_LOG_FORMAT",
        help="How notes and errors are written to stderr; json: one event a line.  [default: text]",
    ),
    click.option(
        "-v", "--verbose", count=True, help="Tell what the work does; an error shows its traceback. Twice: tell more."
    ),
]  # fmt: skip


def common_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give `command` the common options; it gets them as one `Settings`, its first argument."""
    names = {f.name for f in fields(Settings)}

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        given = {k: v for k, v in kwargs.items() if k in names and v is not None and (k != "verbose" or v)}
        rest = {k: v for k, v in kwargs.items() if k not in names and k != "config"}
        file = load_file(kwargs["config"]) if kwargs.get("config") else {}
        settings = Settings(**(file | given))
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
"""Of what tells the cost of garbage."""


def store_config(settings: Settings) -> StoreConfig:
    """Where the cluster is. Raises `UsageError` if nobody said."""
    if not settings.url:
        raise UsageError("no URL: say where the cluster is with --url s3://bucket/prefix or L0GC_URL")
    return StoreConfig.from_url(
        settings.url, endpoint_url=settings.endpoint_url, region=settings.region, profile=settings.profile
    )


@contextmanager
def open_cluster(settings: Settings) -> Iterator[tuple[Cluster, S3Store]]:
    """The handles of one command."""
    with cluster.open_cluster(
        store_config(settings),
        expected_cluster_id=settings.cluster_id,
        epoch_cache_s=settings.epoch_cache,
        epoch_interval_s=settings.epoch_interval,
    ) as handles:
        yield handles


_MOST_BYTES: Final = 1 << 30
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Duration(click.ParamType[int]):
    """`30s`, `15m`, `2h`, `7d`; seconds, as an int."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value).strip().lower()
        if text[:-1].isdecimal() and text[-1:] in _UNITS:
            return int(text[:-1]) * _UNITS[text[-1]]
        if not text.isdecimal():
            self.fail(f"{value!r} is no duration; write 30s, 15m, 2h or 7d", param, ctx)
        return int(text)


class Size(click.ParamType[int]):
    """`4MiB`, `512KiB`, `1GiB` or bytes, as an int; at most 1 GiB by default, for what is held in memory at once."""

    name = "size"

    def __init__(self, most: int = _MOST_BYTES) -> None:
        self._most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value).strip().lower().removesuffix("b").removesuffix("i")
        factor = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}.get(text[-1:], 1)
        number = text[:-1] if factor > 1 else text
        if not number.isdecimal() or int(number) < 1:
            self.fail(f"{value!r} is no size; write 4MiB, 512KiB or a number of bytes", param, ctx)
        if int(number) * factor > self._most:
            self.fail(f"{value!r} is more than {self._most >> 30}GiB", param, ctx)
        return int(number) * factor
