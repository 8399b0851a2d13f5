"""One Spark session for many commands in this process; each would else start one and stop it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING
from unittest import mock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextlib.contextmanager
def shared_spark() -> Iterator[SparkSession]:
    """The session that l0gc's commands use in this process until the block ends; but for `sweep`, which starts its own."""
    from l0gc.spark.session import get_session

    spark = get_session("tests", master="local[2]", conf={"spark.sql.shuffle.partitions": "2"})

    @contextlib.contextmanager
    def shared(*args: object) -> Iterator[SparkSession]:
        yield spark

    with contextlib.ExitStack() as stack:
        stack.callback(spark.stop)
        for command in ("reconcile", "compute_watermark", "gc", "verify"):
            stack.enter_context(mock.patch(f"l0gc.cli.{command}.open_spark", shared))
        yield spark
