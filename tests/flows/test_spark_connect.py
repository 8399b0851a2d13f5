"""`format("l0gc")` through Spark Connect: a client registers it at a server, which starts in the client's process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import l0gc
from l0gc.embedded.seaweedfs import SeaweedFS
from l0gc.storage.config import StoreConfig

pytest.importorskip("grpc", reason="Spark Connect needs grpcio, grpcio-status and googleapis-common-protos")
pytestmark = [pytest.mark.weed, pytest.mark.spark, pytest.mark.slow, pytest.mark.thorough]

CLIENT = """
import sys
from pyspark.sql import SparkSession
import l0gc.spark
(url,) = sys.argv[1:]
settings = {"spark.ui.enabled": "false", "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
spark = SparkSession.builder.remote("local[1]").config(map=settings).getOrCreate()
l0gc.spark.register(spark)
place = {"url": url, "topic": "events"}
found = spark.read.format("l0gc").options(**place).load().select("value").collect()
assert sorted(bytes(r.value) for r in found) == [b"a", b"b"], found
rows = spark.read.format("l0gc").options(**place).load().select("key", "value")
rows.write.format("l0gc").options(url=url, topic="copy").mode("append").save()
try:
    spark.read.format("l0gc").options(**place, startOffsets="1").load().schema
except Exception as e:
    assert "did you mean 'startingOffsets'?" in str(e), e
else:
    sys.exit("an option that does not exist was accepted")
spark.stop()
"""


def test_a_client_of_spark_connect_reads_and_writes(weed: SeaweedFS, bucket: StoreConfig) -> None:
    with l0gc.open(bucket.url) as cluster:
        cluster.init(create_bucket=True, shards=4)
        for topic in ("events", "copy"):
            cluster.topics.create(topic, partitions=1)
        cluster.upload("events", [b"a", b"b"])
    command = [sys.executable, "-c", CLIENT, bucket.url]
    done = subprocess.run(
        command,
        env={**os.environ, **weed.environment()},
        cwd=Path(__file__).parents[2],
        timeout=120,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    with l0gc.open(bucket.url) as cluster:
        assert [r.value for r in cluster.read("copy")] == [b"a", b"b"]
