"""Copy Parquet files into a topic, a JSON record for each row; or a topic's JSON records into Parquet files.

python examples/spark_parquet.py in URL TOPIC PATH [KEY_COLUMN]
python examples/spark_parquet.py out URL TOPIC PATH
"""

import sys

from pyspark.sql import DataFrame, SparkSession

import l0gc.spark


def put(files: DataFrame, url: str, topic: str, key: str | None = None) -> None:
    columns = ["to_json(struct(*)) AS value", *([f"CAST(`{key}` AS STRING) AS key"] if key else [])]
    files.selectExpr(*columns).write.format("l0gc").options(url=url, topic=topic).mode("append").save()


def get(spark: SparkSession, url: str, topic: str) -> DataFrame:
    records = (
        spark.read.format("l0gc").options(url=url, topic=topic).load().selectExpr("CAST(value AS STRING) AS value")
    )
    return spark.read.json(records.rdd.map(lambda row: row["value"]))


if __name__ == "__main__":
    direction, url, topic, path, *key = sys.argv[1:]
    session = SparkSession.builder.appName(f"parquet {direction}").getOrCreate()
    l0gc.spark.register(session)
    if direction == "in":
        put(session.read.parquet(path), url, topic, *key)
    else:
        get(session, url, topic).write.parquet(path)
