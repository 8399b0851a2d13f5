"""Writes a batch on a Spark cluster, with one task so slow that Spark starts it again, and reads the batch back.

Usage: python speculative_write.py MASTER URL TOPIC [NAME=VALUE ...]   (Spark's settings)
Prints as JSON in how many rows each value was read back.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import l0gc.spark
from l0gc.spark.session import get_session

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50",  # so that rows are written before their task ends
}
ROWS = 4000


def slow_once(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield all rows, but let the first attempt of task 0 hang after them."""
    import time

    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    yield from batches
    if context.partitionId() == 0 and context.attemptNumber() == 0:
        time.sleep(60)


def main(master: str, url: str, topic: str, *settings: str) -> None:
    conf = dict(pair.split("=", 1) for pair in settings)
    spark = get_session("speculation", master=master, conf=conf | SPECULATION)
    l0gc.spark.register(spark)
    rows = spark.range(0, ROWS, 1, 6).selectExpr("lpad(id, 400, '0') AS value").mapInArrow(slow_once, "value string")
    rows.write.format("l0gc").options(url=url, topic=topic, objectBytes="16384").mode("append").save()
    back = spark.read.format("l0gc").options(url=url, topic=topic).load().groupBy("value").count()
    counts = {row["value"].decode(): row["count"] for row in back.collect()}
    sys.stdout.write(json.dumps(counts) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
