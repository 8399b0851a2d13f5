"""Counts the words of a topic as records arrive, and writes each new count into another topic, once.

python examples/spark_wordcount.py URL FROM TO CHECKPOINT [--available-now]
"""

import sys

from pyspark.sql import DataFrame, SparkSession

import l0gc.spark

url, source, target, checkpoint, *flags = sys.argv[1:]
spark = SparkSession.builder.appName("word count").config("spark.sql.shuffle.partitions", "4").getOrCreate()
l0gc.spark.register(spark)

lines = spark.readStream.format("l0gc").options(url=url, topic=source, startingOffsets="earliest").load()
words = lines.selectExpr("explode(split(CAST(value AS STRING), ' +')) AS word").filter("word <> ''")
counts = words.groupBy("word").count().selectExpr("word AS key", "CAST(count AS STRING) AS value")


def write(changed: DataFrame, batch_id: int) -> None:
    # Spark's Python sinks take no updates, so this writes each batch of them, which is recognised by its number.
    sink = changed.write.format("l0gc").options(url=url, topic=target)
    sink.options(producerName=f"words {checkpoint}", batchId=str(batch_id)).mode("append").save()


query = counts.writeStream.outputMode("update").foreachBatch(write).option("checkpointLocation", checkpoint)
if "--available-now" in flags:
    query = query.trigger(availableNow=True)
query.start().awaitTermination()
