"""The options of commands that run on Spark."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from l0gc.api.engine import Engine
from l0gc.cli.options import store_config
from l0gc.cli.progress import say
from l0gc.errors import UsageError
from l0gc.events import Progress, event
from l0gc.settings import Settings
from l0gc.storage.workers import AUTO, LOCAL, SPARK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SEND: Final = "spark.l0gc.sendCredentials"
"""How `--send-credentials` travels to `open_spark`; Spark itself does not get it."""

_OPTIONS: Final = [
    click.option("--master", envvar="L0GC_MASTER", help="The Spark cluster.  [default: local[*]]"),
    click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A Spark setting; may be repeated."),
    click.option(
        "--send-credentials/--no-send-credentials", default=None,
        help="Whether a cluster's executors get the driver's credentials.  [default: unless it has them from a role]",
    ),
]  # fmt: skip


_log: Final = logging.getLogger(__name__)

OpenSpark = Callable[[tuple[str, ...]], "AbstractContextManager[SparkSession]"]
"""Opens a session for a step; it says KEY=VALUE settings that suit it, and the user's own come before them."""


def spark_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give `command` the Spark options; it gets them as `master` and `conf`."""

    @functools.wraps(command)
    def wrapped(*args: Any, conf: tuple[str, ...], send_credentials: bool | None, **kwargs: Any) -> Any:
        if send_credentials is not None:
            conf = (*conf, f"{_SEND}={str(send_credentials).lower()}")
        return command(*args, conf=conf, **kwargs)

    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


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
                conf=pairs(conf),
                send_credentials=send_credentials,
                app=name,
                verbose=settings.verbose > 1,
            ) as chosen:
                return command(settings, *args, engine=chosen, **kwargs)

        for option in reversed([choice, *_OPTIONS]):
            wrapped = option(wrapped)
        return wrapped

    return decorate


def pairs(conf: tuple[str, ...]) -> dict[str, str]:
    """The KEY=VALUE settings that the user gives. Raises `UsageError`."""
    found: dict[str, str] = {}
    for item in conf:
        key, separator, value = item.partition("=")
        if not separator:
            raise UsageError(f"--conf {item!r} must look like KEY=VALUE")
        found[key] = value
    return found


def engine_of(settings: Settings, wanted: str, app: str, master: str | None, conf: tuple[str, ...]) -> Engine:
    """The engine that these options ask for."""
    given = pairs(conf)
    send = {"true": True, "false": False}.get(given.pop(_SEND, ""))
    return Engine(wanted, master=master, conf=given, send_credentials=send, app=app, verbose=settings.verbose > 1)


@contextmanager
def open_spark(settings: Settings, app: str, master: str | None, conf: tuple[str, ...]) -> Iterator[SparkSession]:
    """A session for one command, stopped at its end; a cluster's executors have l0gc, and credentials if need be."""
    settings_of = pairs(conf)
    send = {"true": True, "false": False}.get(settings_of.pop(_SEND, ""))
    say("starting Spark")
    from l0gc.spark.session import temporary_session
    from l0gc.spark.ship import prepared

    with (
        temporary_session(app, master=master, conf=settings_of, verbose=settings.verbose > 1) as spark,
        prepared(spark, store_config(settings), send),
    ):
        say("")
        yield spark


@contextmanager
def telling_tasks(spark: SparkSession, show: Progress) -> Iterator[Callable[[str], None]]:
    """Text passed to the yielded function is shown with the share of Spark's tasks that are done."""
    from l0gc.spark.tasks import following_tasks

    said = [""]

    def tell(text: str) -> None:
        said[0] = text
        show(text)

    with following_tasks(spark, lambda done, total: show(said[0], done=done, total=total)):
        yield tell


class OneSession:
    """The one Spark session of a run of several steps: started by the first that needs it, stopped after the last.

    Args:
        start: opens it.
        conf: the user's KEY=VALUE settings, which come before what suits a step.
    """

    def __init__(self, start: Callable[[], AbstractContextManager[SparkSession]], conf: tuple[str, ...]) -> None:
        self._start = start
        self._given = {item.partition("=")[0] for item in conf}
        self._stack = ExitStack()
        self._spark: SparkSession | None = None

    def __enter__(self) -> OneSession:
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.close()

    @contextmanager
    def __call__(self, defaults: tuple[str, ...]) -> Iterator[SparkSession]:
        """The session for a step; see `OpenSpark`."""
        if self._spark is None:
            began = time.monotonic()
            self._spark = self._stack.enter_context(self._start())
            seconds = round(time.monotonic() - began, 3)
            _log.info("Spark started after %.1f s", seconds, extra=event("spark_started", seconds=seconds))
        from l0gc.spark.gateway import end_java
        from l0gc.spark.remote import telling_causes

        try:
            with telling_causes():  # each step fails separately
                for key, _, value in (item.partition("=") for item in defaults):
                    if key not in self._given:
                        self._spark.conf.set(key, value)
                yield self._spark
        except KeyboardInterrupt:
            end_java()  # no step comes after this one
            raise
