"""A Spark query fetches only what it needs: a proxy counts the bodies that a real server sends.

A query needs the L0 blocks that hold one of its records, the columns that it reads of such L1 row groups, and the
footers of the L1 objects that can hold its records: objects of its partitions that are not wholly older according to
the journal. It may fetch `ROOM` times that from L0 and L1. To locate the records, each reading process fetches at most
the size of the logs, which does not grow with the data.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import l0gc.spark
from l0gc.runtime import Runtime
from l0gc.storage import s3
from l0gc.storage.config import StoreConfig
from l0gc.storage.parallel import Parallel
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.journal.topic import l1_key
from l0gc.streamlog.level_one import write
from tests.support.proxy import Proxy
from tests.support.reconcile import files, partition_of, put, reconcile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = [pytest.mark.weed, pytest.mark.spark, pytest.mark.slow, pytest.mark.thorough]

ROOM = 1.02
READERS = 3
"""The processes that read the logs: the planner and two workers."""
YEAR = datetime(2025, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
PER_DAY = 32
ALL = ("offset", "timestamp", "key", "value", "epoch")


@pytest.fixture
def spark(one_spark: SparkSession) -> SparkSession:
    l0gc.spark.register(one_spark)
    return one_spark


class StoreClock:
    """The date of the server's replies, as this process reads it: it becomes the records' timestamp."""

    now = YEAR

    def date_ms(self, _: object) -> int:
        return int(self.now.timestamp() * 1000)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StoreClock:
    clock = StoreClock()
    monkeypatch.setattr(s3, "date_ms", clock.date_ms)
    return clock


@pytest.fixture
def cluster(bucket: StoreConfig, clock: StoreClock) -> Iterator[ClusterHandles]:
    """Create a cluster whose logs begin at `clock`'s time, since the time in a log never goes back."""
    with l0gc.open(bucket.url) as opened, Parallel(8) as threads:
        opened.init(create_bucket=True, shards=4)
        yield ClusterHandles(S3Store(bucket), Runtime(), threads)


@dataclass
class Fetched:
    """How much a query fetched: bytes of L0 and L1, and of all other objects."""

    data: int = 0
    logs: int = 0


class Query:
    """Reads through its own proxy: a process caches by address, so it has nothing cached for this one."""

    def __init__(self, spark: SparkSession, url: str, endpoint_url: str) -> None:
        self._spark, self._place = spark, {"url": url, "endpointUrl": endpoint_url}

    def load(self, schema: str = "", **options: str) -> DataFrame:
        reader = self._spark.read.format("l0gc").options(**self._place, **options)
        return (reader.schema(schema) if schema else reader).load()


@contextmanager
def counted(spark: SparkSession, bucket: StoreConfig, fetched: Fetched) -> Iterator[Query]:
    with Proxy(bucket.endpoint_url or "") as proxy:
        yield Query(spark, bucket.url, proxy.endpoint_url)
        proxy.settle()
        for key, size in proxy.body_bytes.items():
            if "/level_zero/data/" in key or "/level_one/data/" in key:
                fetched.data += size
            elif not key.endswith("/"):  # the prefix of a listing ends with a slash
                fetched.logs += size


def values(seed: int, count: int, size: int) -> list[bytes]:
    """Return records that do not compress."""
    chance = random.Random(seed)
    return [chance.randbytes(size) for _ in range(count)]


def values_of(rows: list[Row]) -> list[bytes]:
    """Return the values in the order of their offsets. Spark does not sort them, because it would read twice for that."""
    return [bytes(r["value"]) for r in sorted(rows, key=lambda r: r["offset"])]


def needed_of_l1(cluster: ClusterHandles, partition: int, first: datetime, end: datetime, *names: str) -> int:
    """Return how many bytes of a partition's L1 objects these columns of the records in this time need."""
    needed = 0
    for f in files(cluster, "events", partition):
        if f.max_timestamp < int(first.timestamp() * 1000):
            continue
        body = cluster.store.get(l1_key(partition_of(cluster, "events", partition), f)).body
        needed += 8 + int.from_bytes(body[-8:-4], "little")
        parquet = pq.ParquetFile(pa.BufferReader(body))
        for n in range(parquet.num_row_groups):
            if any(first <= t < end for t in parquet.read_row_group(n, ["timestamp"]).column(0).to_pylist()):
                group = parquet.metadata.row_group(n)
                columns: list[Any] = [group.column(i) for i in range(group.num_columns)]
                needed += sum(c.total_compressed_size for c in columns if c.path_in_schema in names)
    return needed


def logs_of(cluster: ClusterHandles) -> int:
    """Return the bytes of all objects except L0 and L1."""
    return sum(sum(page.sizes) for page in cluster.store.scan("l0gc/"))


@pytest.mark.timeout(900)
def test_a_day_of_a_year(
    spark: SparkSession,
    cluster: ClusterHandles,
    bucket: StoreConfig,
    clock: StoreClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(write, "FILE_BYTES", 32 << 20)
    topic, _ = cluster.controller.create_topic("events", 1)
    for day in range(365):
        clock.now = YEAR + day * DAY
        cluster.journal(topic.journals[0]).catch_up()  # as a writer that was idle does
        put(cluster, "events", {0: values(day, PER_DAY, 8192)})
    reconcile(cluster)
    first, end = YEAR + 200 * DAY, YEAR + 201 * DAY
    expected = values(200, PER_DAY, 8192)
    assert len(files(cluster, "events", 0)) > 2
    needed = needed_of_l1(cluster, 0, first, end, *ALL)
    starting, ending = (str(int(t.timestamp() * 1000)) for t in (first, end))
    fetched = Fetched()
    with counted(spark, bucket, fetched) as query:
        rows = query.load(topic="events", startingTimestamp=starting, endingTimestamp=ending).collect()
    assert values_of(rows) == expected
    assert fetched.data <= ROOM * needed
    assert fetched.logs <= READERS * logs_of(cluster)

    times = needed_of_l1(cluster, 0, first, end, "offset", "timestamp")
    fetched = Fetched()
    with counted(spark, bucket, fetched) as query:
        schema = "offset bigint, timestamp timestamp"
        rows = query.load(schema, topic="events", startingTimestamp=starting, endingTimestamp=ending).collect()
    assert len(rows) == PER_DAY
    assert times <= fetched.data < needed / 50
