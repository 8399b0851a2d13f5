"""Run l0gc's work on Spark, and provide `format("l0gc")`, by which Spark programs read and write topics.

`l0gc.spark.register(spark)` makes the format known to a session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

__all__ = ["own_errors", "pinned", "register"]


def register(spark: SparkSession, *, profile: str | None = None, send_credentials: bool | None = None) -> None:
    """Register `format("l0gc")` with a session as a source and a sink, and prepare a cluster's executors for it.

    l0gc itself is sent to a cluster's executors, and so are the driver's credentials, unless these come with the
    machine. With Spark Connect, nothing is sent: the server is the driver, and it and its executors must have l0gc and
    credentials.

    Args:
        profile: the AWS profile whose credentials are sent.
        send_credentials: whether to send credentials; by default, only those that an executor cannot get on its own are
            sent.

    Raises:
        UsageError: this Spark is older than 4.2, or credentials should be sent through Spark Connect.
        L0gcError: the executors' Python cannot run l0gc.
        AccessDeniedError: credentials should be sent, but none were found.
    """
    from l0gc.errors import UsageError
    from l0gc.spark.master import is_connect

    try:
        from l0gc.integrations.spark.source import L0gcDataSource
    except ImportError as e:
        raise UsageError(f'format("l0gc") needs Spark 4.2 or newer, and this is {spark.version} ({e})') from e
    if is_connect(spark):
        if profile is not None or send_credentials:
            raise UsageError(
                "Spark Connect cannot send credentials: give them to the server and its executors, as a role or in their "
                "environment, and name a profile of theirs with option profile"
            )
    else:
        from l0gc.spark.executors import cores_of
        from l0gc.spark.handles import CORES
        from l0gc.spark.ship import make_ready
        from l0gc.storage.config import StoreConfig

        make_ready(spark, StoreConfig("", profile=profile), send_credentials)
        # The cores are known once executors exist, or from the executors that may exist.
        spark.sparkContext.environment[CORES] = str(cores_of(spark.sparkContext))
    spark.dataSource.register(L0gcDataSource)


def pinned(**options: object) -> AbstractContextManager[dict[str, str]]:
    """Protect a batch's records for a `with` block, which gets the options to load them: the given ones, and `pin`.

    This process creates the pin, which is of L1 only if the batch reads nothing else, renews it during the block, and
    deletes it at the end. If the process dies, the pin ends after some minutes. With Spark Connect, the client
    therefore needs access to the bucket.

    Args:
        options: the options of `spark.read.format("l0gc")`.

    Raises:
        UsageError, NotFoundError, OffsetOutOfRangeError: the errors of `load()` and its first action.
        AccessDeniedError: the credentials allow only reading.
    """
    from l0gc.integrations.spark.readers import with_pin

    return with_pin(options)


def own_errors() -> AbstractContextManager[None]:
    """Raise an error of l0gc in a query of Spark as that error, so that a traceback ends with its sentence.

    Spark puts a Python error in the middle of its own error, before the query's plan. `with own_errors():
    query.awaitTermination()` raises, for example, a `NotFoundError` that names the topic.
    """
    from l0gc.spark.workers import raising_causes

    return raising_causes()
