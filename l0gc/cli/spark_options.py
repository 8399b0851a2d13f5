"""The options of commands that run on Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from l0gc.errors import UsageError
from l0gc.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def spark_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give `command` the options `master` and `conf`."""
    command = click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A Spark setting; may be repeated.")(
        command
    )
    return click.option("--master", envvar="L0GC_MASTER", help="The Spark cluster.  [default: local[*]]")(command)


@contextmanager
def open_spark(settings: Settings, app: str, master: str | None, conf: tuple[str, ...]) -> Iterator[SparkSession]:
    """A session for one command, stopped at its end."""
    from l0gc.spark.session import get_session

    pairs: dict[str, str] = {}
    for item in conf:
        key, separator, value = item.partition("=")
        if not separator:
            raise UsageError(f"--conf {item!r} must look like KEY=VALUE")
        pairs[key] = value
    spark = get_session(app, master=master, conf=pairs, verbose=settings.verbose > 1)
    try:
        yield spark
    finally:
        spark.stop()
