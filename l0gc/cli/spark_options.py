"""The options of commands that run on Spark."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from l0gc.errors import UsageError
from l0gc.events import event
from l0gc.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_log: Final = logging.getLogger(__name__)

OpenSpark = Callable[[tuple[str, ...]], "AbstractContextManager[SparkSession]"]
"""Opens a session for a step; it says KEY=VALUE settings that suit it, and the user's own come before them."""


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


class OneSession:
    """The one Spark session of a run of several steps: started by the first that needs it, stopped behind the last.

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
            heard, began = signal.getsignal(signal.SIGINT), time.monotonic()
            self._spark = self._stack.enter_context(self._start())
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGINT, heard)  # Spark puts a handler of its own there
            seconds = round(time.monotonic() - began, 3)
            _log.info("Spark started after %.1f s", seconds, extra=event("spark_started", seconds=seconds))
        for key, _, value in (item.partition("=") for item in defaults):
            if key not in self._given:
                self._spark.conf.set(key, value)
        yield self._spark
