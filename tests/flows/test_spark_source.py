"""`format("l0gc")` in Spark: a data frame equals the output of `read`, and a killed stream copies every record once."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import l0gc
import l0gc.spark
from l0gc.errors import L0gcError
from l0gc.storage.config import StoreConfig
from tests.flows.spark_topics import driver, kill, load, recorded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.weed, pytest.mark.spark, pytest.mark.slow, pytest.mark.thorough]

ROOT = Path(__file__).parents[2]


def save(rows: DataFrame, bucket: StoreConfig, topic: str, **options: str) -> None:
    place = {"url": bucket.url, "endpointUrl": bucket.endpoint_url or "", "topic": topic}
    rows.write.format("l0gc").options(**place, **options).mode("append").save()


def lines(first: int, end: int) -> list[bytes]:
    return [b'{"n":"%d","text":"%s"}' % (n, b"x" * (n % 50)) for n in range(first, end)]


def of_frame(frame: DataFrame) -> list[tuple[Any, ...]]:
    """Return the rows of a topic, by partition and offset."""
    rows = frame.selectExpr("partition", "offset", "unix_millis(timestamp) AS ms", "key", "value").collect()
    return sorted(
        (r["partition"], r["offset"], r["ms"], None if r["key"] is None else bytes(r["key"]), bytes(r["value"]))
        for r in rows
    )


def of_read(cluster: l0gc.Cluster, topic: str) -> list[tuple[Any, ...]]:
    return [(r.partition, r.offset, r.timestamp_ms, r.key, r.value) for r in cluster.read(topic)]


def test_headers_and_create_times_go_through_a_batch_and_a_stream(
    spark: SparkSession, bucket: StoreConfig, cluster: l0gc.Cluster, tmp_path: Path
) -> None:
    for topic in ("events", "copy"):
        cluster.topics.create(topic, partitions=2)
    header = "named_struct('key', 'a', 'value', {})".format
    headers = (
        f"IF(id % 3 = 0, NULL, array({header('CAST(CAST(id AS STRING) AS BINARY)')}, {header('CAST(NULL AS BINARY)')}))"
    )
    rows = spark.range(0, 100, numPartitions=2).selectExpr(
        "CAST(id AS STRING) AS value",
        f"{headers} AS headers",
        "IF(id % 2 = 0, NULL, timestamp_millis(id)) AS timestamp",
    )
    save(rows, bucket, "events")
    place = {"url": bucket.url, "endpointUrl": bucket.endpoint_url or ""}
    source = spark.readStream.format("l0gc").options(
        **place, topic="events", startingOffsets="earliest", includeHeaders="true"
    )
    copied = source.load().select("value", "headers", "create_time").writeStream.format("l0gc")
    copied = copied.options(**place, topic="copy", checkpointLocation=str(tmp_path)).trigger(availableNow=True)
    copied.start().awaitTermination()
    cluster.reconcile()
    expected = {b"%d" % n: ((("a", b"%d" % n), ("a", None)) if n % 3 else (), n if n % 2 else None) for n in range(100)}
    for topic in ("events", "copy"):
        assert {r.value: (r.headers, r.create_time_ms) for r in cluster.read(topic)} == expected
    found = load(spark, bucket, topic="copy", includeHeaders="true").selectExpr(
        "value", "headers", "unix_millis(create_time) AS ms"
    )
    seen = {
        bytes(r["value"]): (
            tuple((h["key"], None if h["value"] is None else bytes(h["value"])) for h in r["headers"] or ()),
            r["ms"],
        )
        for r in found.collect()
    }
    assert seen == expected


@contextmanager
def collecting(bucket: StoreConfig) -> Iterator[Counter[str]]:
    """Reconcile, merge and sweep everything again and again until the block ends."""
    done: Counter[str] = Counter()
    stop = threading.Event()
    errors: list[BaseException] = []

    def loop() -> None:
        try:
            with l0gc.open(bucket.url, endpoint_url=bucket.endpoint_url, epoch_interval_s=0.001) as cluster:
                while not stop.is_set():
                    cluster.housekeep()
                    with suppress(L0gcError):
                        done["reconciled"] += cluster.reconcile().records
                    done["merged"] += cluster.merge(fan_in=2).objects_before
                    cluster.compute_watermark(scan=False)
                    done["swept"] += cluster.sweep().deleted
                    done["vacuumed"] += cluster.vacuum(l1_grace_s=0).objects
        except BaseException as e:
            errors.append(e)
            raise

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield done
    finally:
        stop.set()
        thread.join()
        assert not errors


def test_a_data_frame_equals_read_during_reconcile_merge_and_sweep(
    spark: SparkSession, cluster: l0gc.Cluster, bucket: StoreConfig
) -> None:
    cluster.topics.create("events", partitions=6, journals=2)
    cluster.upload("events", lines(0, 2000), key_field="n")
    cluster.reconcile()
    for n in range(1, 4):
        for part in range(4):
            first = 2000 * n + 500 * part
            cluster.upload("events", lines(first, first + 500), key_field="n")
        with collecting(bucket) as done:
            frame = load(spark, bucket, topic="events", minPartitions="6")
            assert of_frame(frame) == of_read(cluster, "events")
            rows = of_read(cluster, "events")
            assert of_frame(frame) == rows
            times = sorted(row[2] for row in rows)
            first, end = times[len(times) // 3], times[2 * len(times) // 3]
            bounds = {
                f"{side}OffsetsByTimestamp": json.dumps({"events": dict.fromkeys("012345", time)})
                for side, time in (("starting", first), ("ending", end))
            }
            between = load(spark, bucket, topic="events", **bounds)
            assert of_frame(between) == [row for row in rows if first <= row[2] < end]
        assert frame.count() == 2000 * (n + 1)
        assert done["swept"] + done["reconciled"] > 0


def test_columns_types_and_a_schema_of_fewer_columns(
    spark: SparkSession, cluster: l0gc.Cluster, bucket: StoreConfig
) -> None:
    cluster.topics.create("events", partitions=2)
    cluster.upload("events", lines(0, 10), key_field="n")
    frame = load(spark, bucket, topic="events")
    assert frame.dtypes == [
        ("key", "binary"), ("value", "binary"), ("topic", "string"), ("partition", "int"), ("offset", "bigint"),
        ("timestamp", "timestamp"), ("epoch", "bigint"),
    ]  # fmt: skip
    assert frame.selectExpr("count(DISTINCT topic)", "min(epoch) > 0").collect() == [(1, True)]
    some = spark.read.format("l0gc").schema("value binary, offset bigint")
    some = some.options(url=bucket.url, endpointUrl=bucket.endpoint_url or "", topic="events")
    assert some.load().selectExpr("max(offset)").collect()[0][0] > 0
    assert load(spark, bucket, assign='{"events":[1]}').select("partition").distinct().collect() == [(1,)]


def test_a_frame_with_several_filters_is_never_missing_rows(
    spark: SparkSession, cluster: l0gc.Cluster, bucket: StoreConfig
) -> None:
    """Spark 4.3 gives one query the plan that another one's filters have made, if both begin at one data frame."""
    cluster.topics.create("events", partitions=8)
    cluster.upload("events", lines(0, 800), key_field="n")
    cluster.reconcile()
    name = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(name)
    spark.conf.set(name, "true")
    try:
        shared = load(spark, bucket, topic="events")
        both = shared.filter("partition = 1").unionAll(shared.filter("partition = 2")).groupBy("partition").count()
        assert {r["partition"] for r in both.collect()} == {1, 2}
        assert shared.count() == 800
    finally:
        spark.conf.set(name, before or "false")


def test_a_wrong_option_gets_one_sentence(spark: SparkSession, cluster: l0gc.Cluster, bucket: StoreConfig) -> None:
    cluster.topics.create("events", partitions=1)
    with pytest.raises(Exception, match="UsageError: option startingOffsets must be earliest, latest, or JSON"):
        load(spark, bucket, topic="events", startingOffsets="first").collect()
    with pytest.raises(Exception, match="topic 'evenst' does not exist; did you mean 'events'"):
        load(spark, bucket, topic="evenst").collect()


def test_a_batch_is_written_by_key_and_again_only_under_another_id(
    spark: SparkSession, cluster: l0gc.Cluster, bucket: StoreConfig
) -> None:
    cluster.topics.create("events", partitions=6, journals=2)
    rows = spark.range(3000).selectExpr("CAST(id % 97 AS STRING) AS key", "CAST(id AS STRING) AS value").repartition(4)
    for batch_id in ("1", "1", "2"):
        save(rows, bucket, "events", producerName="job", batchId=batch_id)
    found = list(cluster.read("events"))
    assert Counter(r.value for r in found) == {b"%d" % n: 2 for n in range(3000)}
    places: dict[bytes | None, set[int]] = {}
    for r in found:
        places.setdefault(r.key, set()).add(r.partition)
    assert all(len(p) == 1 for p in places.values())
    cluster.upload("events", lines(0, 97), key_field="n")  # the command puts the same keys into the same partitions
    for r in cluster.read("events"):
        places[r.key].add(r.partition)
    assert all(len(p) == 1 for p in places.values())


def test_a_write_that_fails_lands_nothing(spark: SparkSession, cluster: l0gc.Cluster, bucket: StoreConfig) -> None:
    cluster.topics.create("events", partitions=2)
    rows = spark.range(0, 1000, 1, 4).selectExpr("IF(id = 999, NULL, CAST(id AS STRING)) AS value")
    with pytest.raises(Exception, match="has no value"):
        save(rows, bucket, "events")
    assert list(cluster.read("events")) == []


def test_each_batch_of_a_stream_is_written_once_with_for_each_batch(
    spark: SparkSession, cluster: l0gc.Cluster, bucket: StoreConfig, tmp_path: Path
) -> None:
    cluster.topics.create("events", partitions=3)
    cluster.topics.create("copy", partitions=3)
    cluster.upload("events", lines(0, 300), key_field="n")
    place = {"url": bucket.url, "endpointUrl": bucket.endpoint_url or ""}

    def write(rows: DataFrame, batch_id: int) -> None:
        for _ in range(2):  # as if the driver had died after the first commit
            save(rows.select("key", "value"), bucket, "copy", producerName="each", batchId=str(batch_id))

    stream = spark.readStream.format("l0gc").options(
        topic="events", startingOffsets="earliest", maxOffsetsPerTrigger="100", **place
    )
    query = stream.load().writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "cp"))
    query.trigger(availableNow=True).start().awaitTermination()
    assert sorted(r.value for r in cluster.read("copy")) == sorted(lines(0, 300))


def test_a_query_stops_if_its_checkpoint_went_back(
    spark: SparkSession, cluster: l0gc.Cluster, bucket: StoreConfig, tmp_path: Path
) -> None:
    """Its newest files are removed, or an older copy is restored, and the source has new records by then."""
    cluster.topics.create("events", partitions=2)
    cluster.topics.create("copy", partitions=2)
    place = {"url": bucket.url, "endpointUrl": bucket.endpoint_url or ""}

    def copy(checkpoint: Path, starting: str = "earliest") -> None:
        stream = spark.readStream.format("l0gc").options(topic="events", startingOffsets=starting, **place).load()
        sink = stream.select("key", "value", "partition").writeStream.format("l0gc").options(topic="copy", **place)
        query = sink.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()

    checkpoint, older = tmp_path / "checkpoint", tmp_path / "older"
    for n in range(3):
        cluster.upload("events", lines(100 * n, 100 * n + 100), key_field="n")
        copy(checkpoint)
        if n == 0:
            shutil.copytree(checkpoint, older)
    cluster.upload("events", lines(300, 400), key_field="n")
    newest = recorded(checkpoint, "offsets") - 1
    for folder in ("offsets", "commits"):
        (checkpoint / folder / f"{newest}").unlink()
        (checkpoint / folder / f".{newest}.crc").unlink(missing_ok=True)
    for place_of_one, message in (
        (checkpoint, f"batch {newest} .* with 100 rows .* comes again with 200 rows"),
        (older, f"batch 1 .* with 300 rows .* is older than batch {newest}, which landed .* with 100 rows"),
    ):
        with pytest.raises(Exception, match=message):
            copy(place_of_one)
        assert sorted(r.value for r in cluster.read("copy")) == sorted(lines(0, 300))
    landed = Counter(r.partition for r in cluster.read("copy"))
    copy(tmp_path / "new", json.dumps({"events": {str(p): n for p, n in landed.items()}}))
    copied, original = ([(r.partition, r.key, r.value) for r in cluster.read(name)] for name in ("copy", "events"))
    assert copied == original
    assert len(original) == 400


# -- killed drivers -------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(3600)
def test_a_killed_stream_copies_every_record_once_in_order(
    cluster: l0gc.Cluster, bucket: StoreConfig, tmp_path: Path
) -> None:
    """A driver lives until it has begun or ended one more micro-batch, and then for a random time: most of this test is
    the start of Java, so each driver copies little.
    """
    chance = random.Random(16)
    cluster.topics.create("from", partitions=4)
    cluster.topics.create("to", partitions=4, journals=2)
    checkpoint, total = tmp_path / "checkpoint", 0
    options = ("topic=from", "startingOffsets=earliest", "maxOffsetsPerTrigger=200")
    for n in range(2):
        cluster.upload("from", lines(total, total + 400), key_field="n")
        total += 400
        folder = "offsets" if n == 0 else chance.choice(("offsets", "commits"))
        before = recorded(checkpoint, folder)
        process = driver(bucket.url, "to", checkpoint, *options)
        try:
            while recorded(checkpoint, folder) == before and process.poll() is None:
                time.sleep(0.02)
            assert process.poll() is None, process.stderr.read()[-3000:] if process.stderr else b""
            time.sleep(chance.random() * 1.5)
        finally:
            kill(process)
        if chance.random() < 0.5:
            cluster.reconcile()
            cluster.housekeep()
            cluster.compute_watermark(scan=False)
            cluster.sweep()
    last = driver(bucket.url, "to", checkpoint, "--available-now", *options)
    try:
        _, stderr = last.communicate(timeout=1800)
    finally:
        kill(last)
    assert last.returncode == 0, stderr[-3000:]
    copied, original = ([(r.partition, r.key, r.value) for r in cluster.read(name)] for name in ("to", "from"))
    assert len(original) == total
    assert copied == original
    ends = json.loads(
        sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda f: int(f.name))[-1].read_text().split("\n")[-1]
    )
    assert sum(v for k, v in ends["from"].items() if k.isdecimal()) == total
    cluster.upload("from", lines(total, total + 20), key_field="n")
    lag = cluster.lag(checkpoint)
    assert (lag.batch_id, lag.records_behind) == (recorded(checkpoint, "commits") - 1, 20)
    for folder in ("offsets", "commits"):
        for file in (checkpoint / folder).iterdir():
            cluster.store.below("checkpoint/").put(f"{folder}/{file.name}", file.read_bytes())
    in_bucket = cluster.lag(f"s3a://{bucket.bucket}/checkpoint")
    assert [msgspec.structs.replace(p, oldest_unread_ms=None) for p in in_bucket.partitions] == [
        msgspec.structs.replace(p, oldest_unread_ms=None) for p in lag.partitions
    ]


WITHOUT_ENVIRONMENT = """
import sys
from pyspark.sql import SparkSession
import l0gc
import l0gc.spark

url = sys.argv[1]
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
with l0gc.open(url) as cluster:
    if sys.argv[2] == "register":
        l0gc.spark.register(spark)
        rows = spark.range(50).selectExpr("CAST(id AS STRING) AS value")
        rows.write.format("l0gc").options(url=url, topic="events").mode("append").save()
        print(spark.read.format("l0gc").options(url=url, topic="events").load().count())
    else:
        print(cluster.reconcile(spark).records)
"""


@pytest.mark.parametrize("what", ["register", pytest.param("reconcile", marks=pytest.mark.release)])
def test_a_program_started_without_an_activated_environment_has_workers_that_have_l0gc(
    cluster: l0gc.Cluster, bucket: StoreConfig, tmp_path: Path, what: str
) -> None:
    """The `python3` of the PATH is not the program's interpreter."""
    cluster.topics.create("events", partitions=2)
    if what == "reconcile":
        (tmp_path / "in").write_bytes(b"x\n" * 50)
        cluster.upload("events", tmp_path / "in")
    (tmp_path / "bin").mkdir()
    other = tmp_path / "bin" / "python3"
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o700)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "VIRTUAL_ENV"))}
    environment["PATH"] = f"{other.parent}{os.pathsep}{os.environ['PATH']}"
    command = [sys.executable, "-c", WITHOUT_ENVIRONMENT, bucket.url, what]
    ended = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
    )
    assert (ended.returncode, ended.stdout.split()) == (0, ["50"]), ended.stderr[-3000:]
