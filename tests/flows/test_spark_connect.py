"""`format("l0gc")` through Spark Connect: a client registers it at a server, and reads and writes batches and streams."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import l0gc
import l0gc.spark
from l0gc.errors import UsageError
from l0gc.storage.config import StoreConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.weed, pytest.mark.spark, pytest.mark.slow, pytest.mark.thorough]


@pytest.fixture
def client(one_spark: SparkSession) -> Iterator[Any]:
    """Start a Connect server in the tests' Spark, and yield a client's session."""
    from pyspark.sql.connect.session import SparkSession as Client

    jvm, context = one_spark.sparkContext._jvm, one_spark.sparkContext._jsc.sc()
    assert jvm is not None
    for name, value in (("address", "127.0.0.1"), ("port", "0")):
        context.conf().set(f"spark.connect.grpc.binding.{name}", value)
    server = getattr(getattr(jvm, "org.apache.spark.sql.connect.service.SparkConnectService$"), "MODULE$")
    server.start(context)
    try:
        session = Client.builder.remote(f"sc://127.0.0.1:{server.localPort()}").create()
        try:
            yield session
        finally:
            session.stop()
    finally:
        server.stop(jvm.scala.Option.empty(), jvm.scala.Option.empty())


def test_a_client_of_spark_connect_reads_and_writes_batches_and_streams(
    client: Any, bucket: StoreConfig, tmp_path: Path
) -> None:
    with l0gc.open(bucket.url) as cluster:
        cluster.init(create_bucket=True, shards=4)
        for topic in ("events", "copy", "stream"):
            cluster.topics.create(topic, partitions=1)
        cluster.upload("events", [b"a", b"b"])
        place = {"url": bucket.url, "endpointUrl": bucket.endpoint_url or ""}

        with pytest.raises(UsageError, match="Spark Connect cannot send credentials"):
            l0gc.spark.register(client, send_credentials=True)
        l0gc.spark.register(client)
        with pytest.raises(UsageError, match="a Spark Connect server cannot run l0gc's jobs"):
            cluster.sweep(spark=client)
        events = client.read.format("l0gc").options(**place, topic="events").load()
        found = events.selectExpr("value", "offset").collect()
        assert [(bytes(r["value"]), r["offset"]) for r in found] == [(b"a", 0), (b"b", 1)]
        rows = events.selectExpr("value", "array(named_struct('key', 'h', 'value', value)) AS headers")
        rows.write.format("l0gc").options(**place, topic="copy").mode("append").save()

        def copy(**options: str) -> None:
            stream = client.readStream.format("l0gc").options(**place, topic="copy", includeHeaders="true", **options)
            sink = stream.load().select("value", "headers").writeStream.format("l0gc").options(**place, topic="stream")
            query = sink.option("checkpointLocation", str(tmp_path / "cp")).trigger(availableNow=True).start()
            query.awaitTermination()

        copy(startingOffsets="earliest")
        expected = [(value, (("h", value),)) for value in (b"a", b"b")]
        for topic in ("copy", "stream"):
            assert [(r.value, r.headers) for r in cluster.read(topic)] == expected
        assert cluster.lag(tmp_path / "cp").records_behind == 0

        cluster.upload("events", [b"c"])
        assert client.read.format("l0gc").options(**place, topic="events").load().count() == 3  # nothing is cached

        with pytest.raises(Exception, match="option 'startoffsets' does not exist: did you mean 'startingOffsets'"):
            client.read.format("l0gc").options(**place, topic="events", startOffsets="1").load().collect()
        with pytest.raises(Exception, match="a stream has no end: option endingOffsets is for batches only"):
            copy(endingOffsets="latest")
