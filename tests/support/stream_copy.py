"""The driver of a query that copies one topic into another, micro-batch by micro-batch, until somebody kills it.

Usage: python stream_copy.py URL FROM TO CHECKPOINT [--available-now]
"""

from __future__ import annotations

import sys

import l0gc.spark
from l0gc.spark.session import get_session

SHORT_LIVED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Java compiles nothing for the few rows that this driver lives to see."""


def main(url: str, source: str, target: str, checkpoint: str, *flags: str) -> None:
    spark = get_session("copy", master="local[2]", conf=SHORT_LIVED)
    l0gc.spark.register(spark)
    rows = (
        spark.readStream.format("l0gc")
        .options(url=url, topic=source, startingOffsets="earliest", maxOffsetsPerTrigger="200")
        .load()
        .select("key", "value", "partition")
    )
    query = rows.writeStream.format("l0gc").options(url=url, topic=target, checkpointLocation=checkpoint)
    query = (
        query.trigger(availableNow=True) if "--available-now" in flags else query.trigger(processingTime="0 seconds")
    )
    query.start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
