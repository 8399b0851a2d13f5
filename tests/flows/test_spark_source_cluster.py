"""`format("l0gc")` on a Spark cluster whose workers have neither l0gc nor credentials, with speculation and kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import l0gc
from l0gc.api import Record
from l0gc.errors import NotFoundError
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.ingest.headers_and_times import Headers
from tests.flows.spark_topics import driver, kill, recorded
from tests.support import speculative_write
from tests.support.spark_cluster import SparkCluster, spark_cluster

pytestmark = [pytest.mark.weed, pytest.mark.spark, pytest.mark.slow, pytest.mark.thorough]

ROOT = Path(__file__).parents[2]
APART = ("127.0.0.1", "127.0.0.2")
"""Two machines, because Spark starts the second attempt of a task only on another one."""
BEGAN_MS = 1_700_000_000_000
"""The earliest create time of the records."""


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with spark_cluster(tmp_path_factory.mktemp("spark"), hosts=APART) as cluster:
        yield cluster


@pytest.mark.timeout(1800)
def test_two_tasks_writing_the_same_part_land_it_once(spark: SparkCluster, bucket: StoreConfig, store: S3Store) -> None:
    with l0gc.open(bucket.url) as cluster:
        cluster.init(create_bucket=True, shards=4)
        cluster.topics.create("events", partitions=3)
        settings = [f"{name}={value}" for name, value in spark.conf.items()]
        ended = subprocess.run(
            [sys.executable, speculative_write.__file__, spark.url, bucket.url, "events", *settings],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=1500,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr[-4000:]
        counts = json.loads(ended.stdout.splitlines()[-1])
        assert counts == {f"{n:0400}": 1 for n in range(speculative_write.ROWS)}
        assert sorted(int(r.value) for r in cluster.read("events")) == list(range(speculative_write.ROWS))
        topic = cluster.handles().controller.snapshot().topic("events")
        landed = cluster.handles().journal(topic.journals[0]).catch_up().topics[topic.revision].objects
        written = store.list("level_zero/data/").modified_ms
        assert len(written) > len(landed)  # both attempts have written their objects


def put(cluster: l0gc.Cluster, topic: str, first: int, end: int) -> None:
    """Put records with these numbers into two partitions in turn: most with headers, every other one with a create
    time.
    """
    with cluster.producers.sender(topic, "numbers") as sender:
        numbered = [Record(*written(topic, n), partition=n % 2) for n in range(first, end)]
        sender.send(numbered, {p: sender.positions.get(p, 0) + (end - first) // 2 for p in range(2)})


def written(topic: str, n: int) -> tuple[bytes, bytes | None, Headers, int | None]:
    """Return value, key, headers and create time."""
    headers = (("n", b"%d" % n), ("n", None)) if n % 3 else ()
    return f"{topic} {n}".encode(), None if n % 5 else b"k", headers, BEGAN_MS + n if n % 2 else None


def size_of(checkpoint: Path, batch_id: int) -> int:
    """Return how many records a micro-batch has."""
    before, after = (
        json.loads((checkpoint / "offsets" / f"{n}").read_text().splitlines()[2]) for n in (batch_id - 1, batch_id)
    )
    ahead = (
        at - before.get(topic, {}).get(p, 0) for topic, of in after.items() for p, at in of.items() if p.isdecimal()
    )
    return sum(n for n in ahead if n > 0)


def until(ready: Callable[[], bool], query: subprocess.Popen[bytes]) -> None:
    while not ready():
        assert query.poll() is None, query.stderr.read()[-4000:] if query.stderr else b""
        time.sleep(0.05)


@pytest.mark.timeout(1800)
def test_a_kafka_style_query_copies_once_whatever_is_killed(
    spark: SparkCluster, bucket: StoreConfig, tmp_path: Path
) -> None:
    """The query has a pattern, a start by time, limits from below and above, headers, and a target by option. An
    executor and a driver are killed, a topic appears before the driver starts again, and one is deleted and created
    again.
    """
    checkpoint, started = tmp_path / "checkpoint", list[subprocess.Popen[bytes]]()
    with l0gc.open(bucket.url) as cluster:
        cluster.init(create_bucket=True, shards=4)
        for topic in ("in-a", "copy"):
            cluster.topics.create(topic, partitions=2)
        put(cluster, "in-a", 0, 100)
        time.sleep(1.1)  # the server's clock has a resolution of a second
        put(cluster, "in-a", 100, 200)
        since = next(r.timestamp_ms for r in cluster.read("in-a", 0, 50))
        assert all(r.timestamp_ms < since for r in cluster.read("in-a") if r.offset < 50)

        def start() -> subprocess.Popen[bytes]:
            given = [f"--conf={name}={value}" for name, value in spark.conf.items()]
            given += [
                "subscribePattern=in-.*",
                f'startingOffsetsByTimestamp={{"in-a":{{"0":{since},"1":{since}}}}}',
                "includeHeaders=true", "failOnDataLoss=false",
                "minOffsetsPerTrigger=60", "maxTriggerDelay=1s", "maxOffsetsPerTrigger=100",
            ]  # fmt: skip
            started.append(driver(bucket.url, "copy", checkpoint, f"--master={spark.url}", *given))
            return started[-1]

        def has_read(*topics: str) -> bool:
            try:
                lag = cluster.lag(checkpoint)
            except NotFoundError:
                return False
            return {p.topic for p in lag.partitions} == set(topics) and lag.records_behind == 0

        try:
            query = start()
            until(lambda: recorded(checkpoint, "offsets") > recorded(checkpoint, "commits"), query)
            os.kill(spark.executors()[0], signal.SIGKILL)
            until(lambda: has_read("in-a"), query)
            put(cluster, "in-a", 200, 260)
            until(lambda: recorded(checkpoint, "offsets") > recorded(checkpoint, "commits"), query)
            kill(query)

            cluster.topics.create("in-b", partitions=2)
            put(cluster, "in-b", 0, 130)
            query = start()
            until(lambda: has_read("in-a", "in-b"), query)
            cluster.topics.delete("in-a")
            cluster.topics.create("in-a", partitions=2)
            put(cluster, "in-a", 1000, 1030)  # fewer records than it waits for
            until(lambda: has_read("in-a", "in-b"), query)
        finally:
            for query in started:
                kill(query)
        expected = {("in-a", n) for n in [*range(100, 260), *range(1000, 1030)]} | {("in-b", n) for n in range(130)}
        found = list(cluster.read("copy"))
        copied = [(r.partition, topic, int(n)) for r in found for topic, n in [r.value.decode().split()]]
        assert sorted((topic, n) for _, topic, n in copied) == sorted(expected)
        for topic in ("in-a", "in-b"):
            for partition in range(2):
                numbers = [n for p, t, n in copied if (p, t) == (partition, topic)]
                assert numbers == sorted(n for t, n in expected if t == topic and n % 2 == partition)
        for r, (_, topic, n) in zip(found, copied, strict=True):
            assert (r.value, r.key, r.headers, r.create_time_ms) == written(topic, n)
    taken = [size_of(checkpoint, n) for n in range(1, recorded(checkpoint, "offsets"))]
    assert max(taken) <= 100 + 4  # at least one of each partition
