"""Runs `format("l0gc")` and plain Parquet in Spark, and times the job separately from the session's start.

Usage: spark_source.py JOB ARGUMENT... with the name of one of the functions below; the environment names the cluster.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import l0gc
import l0gc.spark
from l0gc.spark.session import get_session
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.level_one import share

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LONG_JOBS = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=4",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
}
"""Settings of long jobs: Java optimises as well as it can, as in users' sessions; l0gc's own settings are for short
jobs. Records go from Python to Java as docs/work/spark.md advises.
"""
STORED = (
    "offset bigint NOT NULL, timestamp timestamp NOT NULL, key binary, value binary NOT NULL, epoch bigint NOT NULL"
)
"""The columns that L1 objects have, as the source describes them."""
NAMES = [column.split()[0] for column in STORED.split(", ")]
SHARED, OWN = "shared", "own"
"""Topics with the same records."""
_TEXT = "concat('record ', id, ' with a text that is about as long as a line of a log: ', md5(CAST(id AS STRING)))"


def fill(spark: SparkSession, topic: str, records: str, folder: str) -> int:
    """Put this many records of about 100 bytes into L1, and a copy of the L1 objects into a folder."""
    _write(spark.range(int(records)).selectExpr("CAST(id AS STRING) AS key", f"{_TEXT} AS value"), topic)
    with l0gc.open(os.environ["L0GC_URL"]) as cluster:
        lifted = cluster.reconcile(spark).records
        store = cluster.handles().store
        assert isinstance(store, S3Store)
        for page in store.scan("level_one/data/"):
            for key in page.keys:
                (Path(folder) / key.replace("/", "_")).write_bytes(store.get(key).body)
    return lifted


def read(spark: SparkSession, topic: str) -> int:
    """Read every record of L1, with every stored column."""
    frame = spark.read.format("l0gc").schema(STORED).options(url=os.environ["L0GC_URL"], topic=topic)
    return _nowhere(frame.load())


def read_parquet(spark: SparkSession, folder: str) -> int:
    """Read the same files on the local disk by Spark's own reader, which checks nothing."""
    return _nowhere(spark.read.parquet(folder))


def beside(spark: SparkSession, topic: str, folder: str, rounds: str) -> dict[str, Any]:
    """Read a topic and the same files by Spark's own reader, in turn, in one session; return the seconds and those of
    user + sys of each round.

    The first round is not counted, because Java compiles and Python's processes start in it.
    """
    plain = spark.read.parquet(folder)
    files = len(list(Path(folder).iterdir()))
    batches = str(-(-plain.count() // files))

    def ours(columns: str) -> DataFrame:
        return _columns_of(spark, topic, columns)

    stream = spark.readStream.format("l0gc").options(url=os.environ["L0GC_URL"], topic=topic, columns=",".join(NAMES))
    stream = stream.options(startingOffsets="earliest", maxOffsetsPerTrigger=batches)
    plain_stream = spark.readStream.schema(plain.schema).option("maxFilesPerTrigger", 1)
    jobs: dict[str, tuple[Callable[[], int], Callable[[], int]]] = {
        "all": (lambda: _nowhere(ours(",".join(NAMES))), lambda: _nowhere(spark.read.parquet(folder))),
        "value": (lambda: _nowhere(ours("value")), lambda: _nowhere(spark.read.parquet(folder).select("value"))),
        "count": (lambda: ours("offset").count(), lambda: spark.read.parquet(folder).count()),
        "stream": (lambda: _drained(stream.load()), lambda: _drained(plain_stream.parquet(folder))),
    }
    records, found = _in_turn(jobs, int(rounds))
    return {"records": records, "found": found, "batches": files}


def shared(spark: SparkSession, partitions: str, records: str, lifts: str, rounds: str) -> dict[str, Any]:
    """Read `records` records in shared L1 objects and in objects of single partitions, as `beside` does.

    Each topic is reconciled `lifts` times.
    """
    with l0gc.open(os.environ["L0GC_URL"]) as cluster:
        for topic in (SHARED, OWN):
            cluster.topics.create(topic, int(partitions))
        for n in range(int(lifts)):
            some = int(records) // int(lifts)
            rows = spark.range(n * some, (n + 1) * some).selectExpr("CAST(id AS STRING) AS key", f"{_TEXT} AS value")
            for topic in (SHARED, OWN):
                _write(rows, topic)
                share.LEAST_PARTITIONS = int(partitions) + (topic == OWN)  # type: ignore[misc]
                cluster.reconcile(topic=topic)
        objects = {topic: cluster.topics.describe(topic).l1_objects for topic in (SHARED, OWN)}

    def jobs_of(columns: str, job: Callable[[DataFrame], int]) -> tuple[Callable[[], int], Callable[[], int]]:
        return lambda: job(_columns_of(spark, SHARED, columns)), lambda: job(_columns_of(spark, OWN, columns))

    jobs = {"value": jobs_of("value", _nowhere), "count": jobs_of("offset", lambda frame: frame.count())}
    read, found = _in_turn(jobs, int(rounds))
    return {"records": read, "found": found, "objects": objects}


def _columns_of(spark: SparkSession, topic: str, columns: str) -> DataFrame:
    return spark.read.format("l0gc").options(url=os.environ["L0GC_URL"], topic=topic, columns=columns).load()


def _in_turn(
    jobs: dict[str, tuple[Callable[[], int], Callable[[], int]]], rounds: int
) -> tuple[int, dict[str, tuple[list[tuple[float, float]], list[tuple[float, float]]]]]:
    """Run pairs of jobs in turn; return how many records each has read, and for each pair the seconds, and those of
    user + sys, round by round.

    The first round is not counted.
    """
    found: dict[str, tuple[list[tuple[float, float]], list[tuple[float, float]]]] = {name: ([], []) for name in jobs}
    records = set()
    for number in range(rounds + 1):
        for name, both in jobs.items():
            for job, kept in zip(both, found[name], strict=True):
                started, used = time.monotonic(), _used()
                records.add(job())
                if number:
                    kept.append((time.monotonic() - started, _used() - used))
    if len(records) != 1:
        sys.exit(f"the jobs read different numbers of records: {sorted(records)}")
    return records.pop(), found


def _used() -> float:
    """Return the seconds of user + sys of this process and its children; 0 without /proc."""
    parents, used = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            fields = stat.read_text().rpartition(")")[2].split()
            pid = int(stat.parent.name)
            parents[pid], used[pid] = int(fields[1]), sum(map(int, fields[11:15]))
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(used.get(pid, 0) for pid in ours) / os.sysconf("SC_CLK_TCK")


def write(spark: SparkSession, topic: str, field: str, file: str) -> Callable[[], int]:
    """Write the lines of a file into a topic, with a field as their key."""
    _write(_keyed(spark, field, file), topic)

    def written() -> int:
        with l0gc.open(os.environ["L0GC_URL"]) as cluster:
            return sum(1 for _ in cluster.read(topic))

    return written


def write_parquet(spark: SparkSession, folder: str, field: str, file: str) -> Callable[[], int]:
    """Write the same into Parquet files on the local disk."""
    _keyed(spark, field, file).write.option("compression", "zstd").parquet(folder)
    return lambda: int(spark.read.parquet(folder).count())


def _keyed(spark: SparkSession, field: str, file: str) -> DataFrame:
    from pyspark.sql import functions as F

    return spark.read.text(file).select(F.get_json_object("value", f"$.{field}").alias("key"), "value")


def _write(rows: DataFrame, topic: str) -> None:
    rows.write.format("l0gc").options(url=os.environ["L0GC_URL"], topic=topic).mode("append").save()


def _drained(frame: DataFrame) -> int:
    """Run a stream that discards its rows until it has read all that there is; return the number of rows."""
    with tempfile.TemporaryDirectory() as checkpoint:
        sink = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = sink.trigger(availableNow=True).start()
        query.awaitTermination()
        return sum(int(p["numInputRows"]) for p in query.recentProgress)


def _nowhere(frame: DataFrame) -> int:
    """Compute all of a frame; return the number of rows."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    seen = Observation()
    frame.observe(seen, F.count(F.lit(1)).alias("rows")).write.format("noop").mode("overwrite").save()
    return int(seen.get["rows"])


def main(job: str, *arguments: str) -> dict[str, Any]:
    """Run a job."""
    jobs: dict[str, Callable[..., int | dict[str, Any] | Callable[[], int]]] = {
        f.__name__: f for f in (fill, read, read_parquet, beside, shared, write, write_parquet)
    }
    started = time.monotonic()
    spark = get_session(job, conf=LONG_JOBS)
    l0gc.spark.register(spark)
    ready = time.monotonic()
    found = jobs[job](spark, *arguments)
    done = time.monotonic()
    counted = found() if callable(found) else found  # after the clock has stopped
    spark.stop()
    more = counted if isinstance(counted, dict) else {"records": counted}
    return {"job_seconds": done - ready, "session_seconds": ready - started, **more}


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
