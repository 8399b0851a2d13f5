"""Holds the one Spark session of a test process from its first use: every command would need seconds to start its own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final
from unittest import mock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MASTER: Final = "local[2,2]"
"""The 2 after the comma lets a failed task run again, as on a cluster."""

_running: list[SparkSession] = []


def the_session() -> SparkSession:
    """Return the session of this process; its workers have the environment of its start."""
    from l0gc.spark.session import get_session

    if not _running or _running[0].sparkContext._jsc is None:  # a test has ended it
        conf = {"spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC"}
        with mock.patch.dict(os.environ):
            os.environ.pop("L0GC_URL", None)  # later tests have another bucket than the first one
            _running[:] = [get_session("tests", master=_MASTER, conf=conf)]
    return _running[0]


def stop_session() -> None:
    """End the session, before this process starts a Spark of another kind and at the end."""
    from l0gc.spark.session import stop

    while _running:
        stop(_running.pop())


@contextlib.contextmanager
def shared_spark() -> Iterator[SparkSession]:
    """Yield the session, which l0gc's commands use in this process until the block ends."""
    with commands_use(the_session()) as spark:
        yield spark


@contextlib.contextmanager
def commands_use(spark: SparkSession) -> Iterator[SparkSession]:
    """Have l0gc's commands use that session in this process until the block ends."""
    with (
        mock.patch("l0gc.api.engine.Engine.session", return_value=spark),
        mock.patch("l0gc.api.engine.Engine._end_java"),
    ):
        yield spark
