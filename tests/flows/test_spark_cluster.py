"""Runs commands on a Spark cluster of two workers that have neither l0gc nor their own credentials."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

import l0gc as library
from l0gc.api import Engine, ExternalFiles, ExternalFrames
from l0gc.embedded.seaweedfs import SeaweedFS
from l0gc.errors import AccessDeniedError, CorruptObjectError, L0gcError, StoppedError
from l0gc.spark import pinned, register, ship
from l0gc.spark.executors import cores_of
from l0gc.spark.gateway import end_java
from l0gc.spark.session import get_session, stop
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store
from tests.flows.test_sweep import LAYOUT, a_bucket, garbage
from tests.support.cli import founded, l0gc, l0gc_process
from tests.support.external import answer, in_the_bucket
from tests.support.spark_cluster import HIDDEN, SparkCluster, spark_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.weed,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.thorough,
    pytest.mark.usefixtures("no_spark"),
]

ROOT = Path(__file__).parents[2]
SUBMIT = ROOT / "examples" / "spark_submit" / "l0gc_submit.py"


@pytest.fixture(scope="module")
def spark_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with spark_cluster(tmp_path_factory.mktemp("spark")) as cluster:
        yield cluster


@pytest.fixture
def records(store: S3Store, tmp_path: Path) -> int:
    """Upload records without reconciling them, and return their number."""
    n = 500
    founded(4)
    (tmp_path / "in").write_text("".join(f'{{"n": {i}}}\n' for i in range(n)))
    assert l0gc("upload", "events", str(tmp_path / "in"))["records"] == n
    return n


def loud(folder: Path) -> list[str]:
    """Return the settings of Spark's most verbose log."""
    folder.mkdir()
    return [
        "spark.eventLog.enabled=true",
        "spark.eventLog.compress=false",
        f"spark.eventLog.dir={folder.as_uri()}",
        "spark.log.level=INFO",
    ]


def options(conf: Mapping[str, str] | Iterable[str]) -> list[str]:
    pairs = [f"{k}={v}" for k, v in conf.items()] if isinstance(conf, Mapping) else conf
    return [o for pair in pairs for o in ("--conf", pair)]


def submit(*args: str) -> subprocess.CompletedProcess[str]:
    home = Path(pyspark.__file__).parent
    environment = os.environ | {"SPARK_HOME": str(home)}
    args = ("--conf", f"spark.pyspark.driver.python={sys.executable}", *args)
    return subprocess.run(
        [str(home / "bin" / "spark-submit"), *args],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def holding(secret: str, folder: Path) -> list[Path]:
    return [p for p in folder.rglob("*") if p.is_file() and secret.encode() in p.read_bytes()]


def test_reconcile_and_watermark_with_the_drivers_credentials_which_no_log_shows(
    spark_workers: SparkCluster, records: int, weed: SeaweedFS, tmp_path: Path
) -> None:
    conf = options(loud(tmp_path / "events"))
    keys = tmp_path.with_name(f"{tmp_path.name}-keys")
    keys.write_text(f"[here]\naws_access_key_id={weed.access_key}\naws_secret_access_key={weed.secret_key}\n")
    # The executors do not have this profile.
    profile = {"AWS_PROFILE": "here", "AWS_SHARED_CREDENTIALS_FILE": str(keys)}
    lifted = l0gc_process("reconcile", "--json", "-vv", *spark_workers.options, *conf, environment=profile)
    assert (lifted.code, lifted.data["records"]) == (0, records), lifted.stderr[-3000:]
    # Under spark-submit, its own options name the master and the settings.
    place = ["--master", spark_workers.url, *options(spark_workers.conf)]
    file = tmp_path / "result.json"
    command = ["compute-watermark", "--engine", "spark", "-vv", "--json", "--json-file", str(file)]
    computed = submit(*place, *conf, str(SUBMIT), *command)
    assert computed.returncode == 0, computed.stderr[-3000:]
    # spark-submit joins stderr to stdout, and thus the log to the result.
    assert not computed.stdout.startswith("{")
    result = json.loads(file.read_bytes())
    assert (result["partitions"], result["listing"]["objects"]) == (4, 1)
    here = l0gc("compute-watermark", "--engine", "local")
    assert [here[name] for name in ("watermark", "held_back_by")] == [result[n] for n in ("watermark", "held_back_by")]
    assert here["listing"]["epochs"] == result["listing"]["epochs"]
    # Even with a master, small work stays in this process.
    chosen = l0gc("compute-watermark", "--master", spark_workers.url, "--conf", "spark.cores.max=2")
    assert chosen["engine"] == "local"
    assert f"Spark ({spark_workers.url}, 2 cores)" in chosen["engine_reason"]

    (tmp_path / "driver.log").write_text(lifted.stderr + computed.stderr)
    for what, folder in [
        ("INFO SparkContext: Running Spark", tmp_path),
        ("SparkListenerJobStart", tmp_path),
        ("INFO CoarseGrainedExecutorBackend", spark_workers.folder),
        ("Registered app", spark_workers.folder),
    ]:
        assert holding(what, folder), f"{what} was not looked through"
    for secret in (weed.secret_key, weed.access_key):
        assert holding(secret, tmp_path) == []
        assert holding(secret, spark_workers.folder) == []


def test_spark_submit_ends_with_the_commands_exit_code(records: int) -> None:
    ended = submit("--master", "local", str(SUBMIT), "reconcile", "evenst")
    assert ended.returncode == 5
    assert ended.stdout == "l0gc: topic 'evenst' does not exist; did you mean 'events'?\n"  # spark-submit joins them


def test_executors_without_the_package_or_libraries_are_reported(
    spark_workers: SparkCluster, records: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*conf: str) -> str:
        with pytest.raises(L0gcError) as e:
            l0gc("compute-watermark", *spark_workers.options, *options(conf))
        return str(e.value)

    with monkeypatch.context() as without:
        without.setattr(ship, "package_zip", lambda: None)
        assert "cannot import l0gc (No module named 'l0gc')" in refused()
    message = refused(f"spark.executorEnv.{HIDDEN}=crc32c obstore")
    assert message.startswith("the Spark executors' Python lacks crc32c, obstore: ")
    monkeypatch.setattr(ship, "SILENCE_S", 1.0)
    monkeypatch.setattr(ship, "PATIENCE_S", 2.0)
    reason = (
        "it asks for an executor of 100g (spark.executor.memory) and 1 core (spark.executor.cores), and the largest of 2 "
        "workers has 640m and 1 core, which other applications may use"
    )
    assert refused("spark.executor.memory=100g").endswith(f"gave no executor within 2 s: {reason}")
    said = [r.getMessage() for r in caplog.records if r.name == "l0gc.spark.ship"]
    assert [s.endswith(f"has given no executor for 1 s: {reason}") for s in said] == [True]


def test_spark_remote_is_ignored_with_a_warning(records: int, tmp_path: Path) -> None:
    dynamic = {"enabled": "true", "shuffleTracking.enabled": "true", "maxExecutors": "1000"}
    with spark_cluster(tmp_path, cores=2) as cluster:
        conf = cluster.conf | {f"spark.dynamicAllocation.{k}": v for k, v in dynamic.items()}
        place = ["--master", cluster.url, *options(conf)]
        remote = {"SPARK_REMOTE": "sc://127.0.0.1:1/;token=secret", "SPARK_API_MODE": "connect"}
        computed = l0gc_process("compute-watermark", "--json", *place, environment=remote)
        assert (computed.code, computed.data["partitions"]) == (0, 4), computed.stderr
        assert "SPARK_REMOTE" not in computed.stderr
        spark = get_session("test", master=cluster.url, conf=conf)
        try:
            assert (spark.sparkContext.defaultParallelism, cores_of(spark.sparkContext)) == (2, 4)
        finally:
            stop(spark)
            end_java()
    lifted = l0gc_process("reconcile", "--json", "--engine", "spark", environment=remote)
    assert (lifted.code, lifted.data["records"]) == (0, records), lifted.stderr
    said = "a Spark Connect server cannot run l0gc's jobs, so SPARK_REMOTE is ignored and they run on local[*]"
    assert said in lifted.stderr
    assert "secret" not in lifted.stderr


def test_executors_left_to_their_own_credentials_have_none(spark_workers: SparkCluster, records: int) -> None:
    with pytest.raises(AccessDeniedError, match="no credentials"):
        l0gc("compute-watermark", *spark_workers.options, "--no-send-credentials")


# -- a program's own session takes all cores, so these tests are last ------------------------------------------------------


@pytest.fixture(scope="module")
def session(spark_workers: SparkCluster, weed: SeaweedFS) -> Iterator[SparkSession]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in weed.environment().items():
            patch.setenv(name, value)
        spark = get_session("test", master=spark_workers.url, conf=spark_workers.conf)
        register(spark)
    try:
        yield spark
    finally:
        stop(spark)
        end_java()


def test_an_external_logs_export_gives_the_answer_of_one_process(
    session: SparkSession, spark_workers: SparkCluster, bucket: StoreConfig, store: S3Store, tmp_path: Path
) -> None:
    """The export comes as files that Spark has written, one of zero bytes among them, and as data frames."""
    listed = [(topic, 3 + n % 2, n) for topic in ("clicks", "a/b=c d", "views") for n in range(400)]
    reported = [(topic, r, n, 40 + n % 7) for topic, r, n in listed if (topic, n) != ("clicks", 78)]
    reports = session.createDataFrame(reported, "topic string, revision long, partition int, gc_epoch long")
    partitions = session.createDataFrame(
        [(*row, 99) for row in listed], "topic string, revision long, partition int, cluster_epoch long"
    )
    with library.open(bucket.url) as cluster:
        cluster.init(create_bucket=True, external_log=True)
        for epoch in range(10):
            store.put(LAYOUT.format(epoch % 4, epoch, f"{epoch:08x}-0000-4000-8000-000000000000"), b"x")
        files = ExternalFiles(
            in_the_bucket(cluster, "reports", reports.repartition(5), tmp_path, "topic", kind="json"),
            in_the_bucket(cluster, "partitions", partitions.repartition(5), tmp_path, "topic", "revision", kind="json"),
        )
        assert len(spark_workers.executors()) == 2
        for place in (files.reports, files.partitions):
            store.at(place).put("topic=views/part-99999.json", b"")
        assert answer(cluster, session, external=files) == CorruptObjectError
        files = replace(files, expect_partitions=len(listed))
        said = [
            answer(cluster, Engine("local"), scan=True, external=files),
            answer(cluster, session, scan=True, external=files),
            answer(cluster, session, scan=True, reports=reports, partitions=partitions),
            answer(cluster, None, scan=True, external=ExternalFrames(reports, partitions, expect_partitions=1200)),
        ]
        assert said == [said[0]] * 4
        found = json.loads(str(said[0]))
        # No report mentions a partition that was created at epoch 3.
        assert (found["watermark"], found["partitions"], found["cluster_epoch"]) == (2, 1200, 99)
        (holder,) = found["held_back_by"]
        assert (holder["topic"], holder["partition"], holder["gc_epoch"]) == ("clicks", 78, 2)
        assert [row["epoch"] for row in found["listing"]["epochs"]] == list(range(10))
        assert found["listing"]["eligible_objects"] == 3


def test_sql_and_a_pinned_data_frame_read_a_topic_on_executors(session: SparkSession, bucket: StoreConfig) -> None:
    """The frame is read from L0 after the topic was deleted, because the sweep waits for the pin."""
    with library.open(bucket.url) as cluster:
        cluster.init(create_bucket=True, shards=4)
        cluster.topics.create("flights", partitions=4)
        values = [b"%d" % n for n in range(100)]
        cluster.upload("flights", values)
        place = f"url = '{bucket.url}', endpointUrl = '{bucket.endpoint_url}'"
        session.sql("CREATE TABLE l0gc USING l0gc")
        try:
            counted = session.sql(f"SELECT count(*) FROM l0gc WITH ({place}, topic = 'flights')").collect()
        finally:
            session.sql("DROP TABLE l0gc")
        assert [tuple(row) for row in counted] == [(100,)]
        given = {"url": bucket.url, "endpointUrl": bucket.endpoint_url or "", "topic": "flights", "minPartitions": "4"}
        with pinned(**given) as options:
            flights = session.read.format("l0gc").options(**options).load()
            cluster.topics.delete("flights")
            for _ in range(3):
                cluster.advance_epoch()
                cluster.housekeep(barrier=True)
            cluster.compute_watermark(session)
            assert cluster.sweep(session).deleted == 0
            for _ in range(2):
                assert sorted(bytes(row.value) for row in flights.select("value").collect()) == sorted(values)
        assert cluster.pins.list() == []
        cluster.advance_epoch()
        assert cluster.compute_watermark(session).published
        assert cluster.sweep(session).deleted > 0


def test_a_sweep_that_is_stopped_ends_no_other_job_of_the_session(
    session: SparkSession, bucket: StoreConfig, store: S3Store, tmp_path: Path
) -> None:
    begun, go_on = tmp_path / "begun", tmp_path / "go-on"

    def others(_: object) -> str:
        begun.touch()
        until = time.monotonic() + 240
        while not go_on.exists() and time.monotonic() < until:
            time.sleep(0.05)
        return "others"

    a_bucket(store, objects=1000)
    before, stopping = len(garbage(store)), threading.Event()
    with ThreadPoolExecutor(2) as threads, library.open(bucket.url) as cluster:
        job = threads.submit(lambda: session.sparkContext.parallelize([0], 1).map(others).collect())
        try:
            until(begun.exists)
            sweeping = threads.submit(lambda: cluster.sweep(session, stop=stopping, max_rate=100))
            until(lambda: len(garbage(store)) < before)
            stopping.set()
            assert isinstance(sweeping.exception(240), StoppedError)
            assert not job.done()
        finally:
            go_on.touch()
        assert job.result(240) == ["others"]
    assert garbage(store)


def until(ready: Callable[[], Any]) -> None:
    end = time.monotonic() + 240
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.05)
