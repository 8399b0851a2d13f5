"""The driver of a query that copies topics into another one, micro-batch by micro-batch, until it is killed.

Usage: python stream_copy.py URL TO CHECKPOINT [--available-now] [--conf NAME=VALUE] OPTION=VALUE ...   (of the source)
"""

from __future__ import annotations

import argparse

import l0gc.spark
from l0gc.spark.session import get_session

SHORT_LIVED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Settings under which Java compiles nothing for the few rows of this short-lived driver."""


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("url", "to", "checkpoint"):
        parser.add_argument(name)
    parser.add_argument("--available-now", action="store_true")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--conf", action="append", default=[])
    parser.add_argument("options", nargs="*")
    given = parser.parse_intermixed_args()
    conf, options = (dict(pair.split("=", 1) for pair in pairs) for pairs in (given.conf, given.options))
    spark = get_session("copy", master=given.master, conf=SHORT_LIVED | conf)
    l0gc.spark.register(spark)
    source = spark.readStream.format("l0gc").options(url=given.url, **options)
    rows = source.load().drop("offset", "timestamp", "epoch")
    query = rows.writeStream.format("l0gc").options(url=given.url, topic=given.to, checkpointLocation=given.checkpoint)
    query = query.trigger(availableNow=True) if given.available_now else query.trigger(processingTime="0 seconds")
    query.start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
