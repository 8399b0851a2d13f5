"""The options of commands whose work runs in this process or on Spark."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import click

from l0gc.api.engine import Engine
from l0gc.errors import UsageError
from l0gc.settings import Settings
from l0gc.storage.workers import AUTO, LOCAL, SPARK

_OPTIONS: Final = [
    click.option("--master", envvar="L0GC_MASTER", help="The Spark cluster.  [default: local[*]]"),
    click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A Spark setting; may be repeated."),
    click.option(
        "--send-credentials/--no-send-credentials", default=None,
        help="Whether a cluster's executors get the driver's credentials.  [default: unless it has them from a role]",
    ),
]  # fmt: skip


def spark_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give `command` the options that say how Spark is started."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def engine_options(where: str = "Where it runs") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give `command`, whose first argument is the settings, the options that say where its work runs.

    It gets them as one `Engine`, `engine`, whose session ends with the command.

    Args:
        where: how the help of `--engine` begins.
    """
    choice = click.option(
        "--engine", type=click.Choice([AUTO, LOCAL, SPARK]), default=AUTO, show_default=True,
        help=f"{where}: auto takes this process for small work, and then needs no Java.",
    )  # fmt: skip

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def wrapped(
            settings: Settings,
            *args: Any,
            engine: str,
            master: str | None,
            conf: tuple[str, ...],
            send_credentials: bool | None,
            **kwargs: Any,
        ) -> Any:
            name = click.get_current_context().command_path.split(" ", 1)[-1]
            with Engine(
                engine,
                master=master,
                conf=_pairs(conf),
                send_credentials=send_credentials,
                app=name,
                verbose=settings.verbose > 1,
            ) as chosen:
                return command(settings, *args, engine=chosen, **kwargs)

        return choice(spark_options(wrapped))

    return decorate


def _pairs(conf: tuple[str, ...]) -> dict[str, str]:
    """The KEY=VALUE settings that the user gives. Raises `UsageError`."""
    found: dict[str, str] = {}
    for item in conf:
        key, separator, value = item.partition("=")
        if not separator:
            raise UsageError(f"--conf {item!r} must look like KEY=VALUE")
        found[key] = value
    return found
