"""A stream of `format("l0gc")` that runs while records ahead of it are lost and given up."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

import l0gc
import l0gc.errors
import l0gc.spark
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.weed, pytest.mark.spark, pytest.mark.slow, pytest.mark.thorough]

RECORDS = 10
"""The records of each L0 object, and of each micro-batch."""
LOST = range(RECORDS, 2 * RECORDS)
"""The offsets of the second object."""
WAIT_S = 120


class Query:
    """A running query, whose first micro-batch waits for `go_on`; `rows` holds its rows so far."""

    def __init__(self, spark: SparkSession, bucket: StoreConfig, checkpoint: Path, **options: str) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.rows: dict[int, bytes] = {}
        stream = spark.readStream.format("l0gc").options(
            url=bucket.url,
            endpointUrl=bucket.endpoint_url or "",
            topic="events",
            startingOffsets="earliest",
            maxOffsetsPerTrigger=str(RECORDS),
            **options,
        )
        sink = stream.load().writeStream.foreachBatch(self._take).option("checkpointLocation", str(checkpoint))
        self.query: StreamingQuery = sink.start()

    def _take(self, rows: DataFrame, batch_id: int) -> None:
        for row in rows.select("offset", "value").collect():
            assert self.rows.setdefault(row["offset"], bytes(row["value"])) == bytes(row["value"])
        self.begun.set()
        assert self.go_on.wait(WAIT_S)


@pytest.fixture
def cluster(bucket: StoreConfig) -> Iterator[l0gc.Cluster]:
    """Create three L0 objects of one partition."""
    with l0gc.open(bucket.url) as opened:
        opened.init(create_bucket=True, shards=4)
        opened.topics.create("events", partitions=1)
        for n in range(3):
            opened.upload("events", lines(n * RECORDS, (n + 1) * RECORDS))
        yield opened


def lines(first: int, end: int) -> list[bytes]:
    return [b"record %d" % n for n in range(first, end)]


def lose_and_give_up(cluster: l0gc.Cluster, bucket: StoreConfig) -> None:
    """Delete the object of `LOST` by hand, lift the records before it, and give up its records."""
    topic = cluster.handles().controller.snapshot().topic("events")
    journal = cluster.handles().journal(topic.journals[0]).catch_up()
    S3Store(bucket).delete([journal.topic(topic.revision).extents(0)[1].key])
    with pytest.raises(l0gc.errors.PartialFailureError):
        cluster.reconcile(topic="events")
    cluster.give_up("events", 0, (LOST[0], LOST[-1]))


def test_a_hole_fails_a_running_stream_unless_it_is_accepted(
    one_spark: SparkSession, cluster: l0gc.Cluster, bucket: StoreConfig, tmp_path: Path
) -> None:
    l0gc.spark.register(one_spark)
    strict = Query(one_spark, bucket, tmp_path / "strict")
    lenient = Query(one_spark, bucket, tmp_path / "lenient", failOnDataLoss="false")
    try:
        for q in (strict, lenient):
            assert q.begun.wait(WAIT_S), q.query.exception()
        lose_and_give_up(cluster, bucket)
        for q in (strict, lenient):
            q.go_on.set()

        with pytest.raises(StreamingQueryException) as failed:
            strict.query.awaitTermination(WAIT_S)
        said = re.findall(r"l0gc\.errors\.RecordsLostError: (.*)", str(failed.value))
        assert said, failed.value
        assert set(said) == {
            "the records 10 to 19 of partition events/0 were given up, since they could not be read; leave them out with "
            "option failOnDataLoss=false"
        }
        assert sorted(strict.rows) == list(range(LOST[0]))

        cluster.upload("events", lines(30, 40))
        lenient.query.processAllAvailable()
        expected = {n: b"record %d" % n for n in range(40) if n not in LOST}
        assert lenient.rows == expected

        again = Query(one_spark, bucket, tmp_path / "strict", failOnDataLoss="false")
        again.go_on.set()
        again.query.processAllAvailable()
        again.query.stop()
        assert strict.rows | again.rows == expected
        assert not strict.rows.keys() & again.rows.keys()
    finally:
        for q in (strict, lenient):
            q.go_on.set()
            q.query.stop()
