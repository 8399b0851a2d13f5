"""Stream a topic of Kafka into a topic of l0gc with Spark's own Kafka source, with headers and create times.

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 examples/kafka/spark_kafka.py \
        BOOTSTRAP_SERVERS KAFKA_TOPIC URL TOPIC CHECKPOINT
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import l0gc.spark


def start(spark: SparkSession, servers: str, source: str, url: str, topic: str, checkpoint: str) -> StreamingQuery:
    kafka = spark.readStream.format("kafka").options(
        **{
            "kafka.bootstrap.servers": servers,
            "subscribe": source,
            "startingOffsets": "earliest",
            "includeHeaders": "true",
        }
    )
    # A sink takes `timestamp` as the create time. A value in l0gc is never null.
    records = kafka.load().selectExpr("partition", "key", "coalesce(value, X'') AS value", "headers", "timestamp")
    return (
        records.writeStream.format("l0gc")
        .outputMode("append")
        .options(url=url, topic=topic, checkpointLocation=checkpoint)
        .start()
    )


if __name__ == "__main__":
    session = SparkSession.builder.appName("kafka to l0gc").getOrCreate()
    l0gc.spark.register(session)
    servers, source, url, topic, checkpoint = sys.argv[1:]
    start(session, servers, source, url, topic, checkpoint).awaitTermination()
