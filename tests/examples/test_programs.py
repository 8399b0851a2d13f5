"""The programs that use the library do what they promise on a real server: a service, a task, a notebook, a consumer."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

import l0gc
from l0gc.keys import journal_log
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store
from tests.support.outcomes import Outcome, Passing, Request
from tests.support.proxy import Proxy

EXAMPLES: Final = Path(__file__).parents[2] / "examples"
CLIENTS: Final = 12


def founded(bucket: StoreConfig) -> None:
    with l0gc.open(bucket.url) as cluster:
        cluster.init(create_bucket=True, shards=4, journals=1)
        cluster.topics.create("events", partitions=4)


def values_in(bucket: StoreConfig) -> list[bytes]:
    with l0gc.open(bucket.url) as cluster:
        return sorted(r.value for r in cluster.read("events"))


# -- the service ----------------------------------------------------------------------------------------------------------


def post(address: str, topic: str, body: bytes) -> tuple[int, Any]:
    try:
        with urlopen(f"{address}/{topic}", body, timeout=60) as reply:
            return reply.status, json.load(reply)
    except HTTPError as e:
        return e.code, json.load(e)


@pytest.mark.weed
@pytest.mark.timeout(120)
@pytest.mark.thorough
def test_the_service_commits_what_many_clients_post_before_it_replies(bucket: StoreConfig) -> None:
    founded(bucket)
    service = subprocess.Popen(
        [sys.executable, EXAMPLES / "ingest_service.py", "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert service.stdout is not None
        address = service.stdout.readline().decode().split()[-1]

        def client(n: int) -> list[tuple[int, Any]]:
            return [post(address, "events", b"%d-%d-a\n%d-%d-b\n" % (n, m, n, m)) for m in range(5)]

        with ThreadPoolExecutor(CLIENTS) as clients:
            replies = [reply for some in clients.map(client, range(CLIENTS)) for reply in some]
        assert {(status, reply["records"]) for status, reply in replies} == {(200, 2)}
        expected = sorted(b"%d-%d-%c" % (n, m, c) for n in range(CLIENTS) for m in range(5) for c in b"ab")
        assert values_in(bucket) == expected
        places = [
            (p["partition"], o) for _, r in replies for p in r["places"] for o in range(p["first"], p["last"] + 1)
        ]
        assert len(places) == len(set(places)) == len(expected)
        appends = len(S3Store(bucket).list(journal_log(0) + "log/").modified_ms)
        assert appends < len(replies)  # threads that finish together share an append
        assert post(address, "event", b"x")[0] == 404
        assert post(address, "events", b"")[1] == {"records": 0, "places": []}
    finally:
        service.send_signal(signal.SIGTERM)
        _, said = service.communicate(timeout=60)
    assert service.returncode == 0, said.decode()
    assert values_in(bucket) == expected


# -- the task -------------------------------------------------------------------------------------------------------------


def run_task(*arguments: str | Path, **environment: str) -> tuple[int, str, str]:
    words = [sys.executable, EXAMPLES / "orchestrated_task.py", *arguments]
    ended = subprocess.run(
        words, env=os.environ | environment, capture_output=True, text=True, check=False, timeout=100
    )
    return ended.returncode, ended.stdout, ended.stderr


class DeniesAtFirst(Passing):
    """Fails every read of an L0 object during the first attempt, when the upload has already landed."""

    attempts = 0

    def decide(self, request: Request) -> Outcome:
        self.attempts += request.key.endswith("l0gc/format.json")
        read = request.operation == "GetObject" and "level_zero/data/" in request.key
        return Outcome.DENY if read and self.attempts == 1 else Outcome.PASS


@pytest.mark.weed
@pytest.mark.timeout(120)
@pytest.mark.thorough
def test_the_task_is_repeated_and_loads_each_record_once(bucket: StoreConfig, tmp_path: Path) -> None:
    founded(bucket)
    day = tmp_path / "day.ndjson"
    day.write_bytes(b"".join(b"%03d\n" % n for n in range(100)))
    with Proxy(str(bucket.endpoint_url), DeniesAtFirst()) as proxy:
        code, printed, said = run_task("events", day, "--wait", "0", AWS_ENDPOINT_URL_S3=proxy.endpoint_url)
    assert (code, printed) == (0, "100 new records, 0 were there\n"), said
    assert "attempt 1 of 4: " in said
    assert run_task("events", day)[:2] == (0, "0 new records, 100 were there\n")
    assert values_in(bucket) == day.read_bytes().split()


@pytest.mark.weed
def test_the_task_does_not_repeat_what_cannot_go(bucket: StoreConfig, tmp_path: Path) -> None:
    founded(bucket)
    code, printed, said = run_task("event", tmp_path / "day.ndjson")
    assert (code, printed) == (5, "")
    assert "topic 'event'" in said
    assert "attempt" not in said


# -- the notebook ---------------------------------------------------------------------------------------------------------


@pytest.mark.weed
@pytest.mark.timeout(120)
@pytest.mark.thorough
def test_the_notebook_queries_the_topic_and_its_table(bucket: StoreConfig, tmp_path: Path) -> None:
    catalog = {
        "TYPE": "sql",
        "URI": f"sqlite:///{tmp_path}/catalog.db",
        "WAREHOUSE": f"s3://{bucket.bucket}/tables",
        "S3__ENDPOINT": str(bucket.endpoint_url),
    }
    environment = {f"PYICEBERG_CATALOG__LAKE__{name}": value for name, value in catalog.items()}
    ended = subprocess.run(
        [sys.executable, EXAMPLES / "notebook.py"],
        env=os.environ | environment, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("100 records uploaded\n")
    means, highest, low, by_sensor = ended.stdout.split("shape: ")[1:]
    assert "24.5" in means  # s0 has 0, 3.5, …, 49
    assert "49.0" in highest
    assert low.startswith("(6, 2)")
    assert by_sensor.startswith("(7, 3)")
    assert "367.5" in by_sensor
    assert "a sweep would delete 1 of 1 objects" in ended.stdout
    assert len(S3Store(bucket).list("level_zero/data/").modified_ms) == 1


# -- the consumer ---------------------------------------------------------------------------------------------------------


@contextmanager
def consumer(database: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the program that counts records; it is killed at the end."""
    with subprocess.Popen([sys.executable, EXAMPLES / "follow_to_sqlite.py", "events", database]) as process:
        try:
            yield process
        finally:
            process.kill()


def counts_in(database: Path) -> dict[bytes, int]:
    with closing(sqlite3.connect(database)) as connection, suppress(sqlite3.OperationalError):
        return dict(connection.execute("SELECT key, records FROM counts"))
    return {}


@pytest.mark.weed
@pytest.mark.thorough
@pytest.mark.timeout(180)
def test_a_consumer_that_is_killed_counts_each_record_once(bucket: StoreConfig, tmp_path: Path) -> None:
    founded(bucket)
    database, records = tmp_path / "counts.db", 0
    in_transaction = database.with_name("counts.db-journal")

    def upload() -> int:
        with l0gc.open(bucket.url) as cluster:
            cluster.upload("events", [(b"k%d" % (n % 7), b"%d" % n) for n in range(records, records + 3000)])
            cluster.reconcile()
        return records + 3000

    for kills in range(4):
        records, before = upload(), counts_in(database)
        with consumer(database) as process:
            while not in_transaction.exists() or (kills % 2 and counts_in(database) == before):
                assert process.poll() is None
    with consumer(database) as process:
        for _ in range(2):  # the second time, they land while it waits
            records = upload()
            while sum(counts_in(database).values()) < records:
                assert process.poll() is None
                time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert counts_in(database) == {b"k%d" % k: len(range(k, records, 7)) for k in range(7)}
