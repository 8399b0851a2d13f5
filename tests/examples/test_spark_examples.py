"""The examples for Spark do on a real server what they say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import l0gc
from l0gc.storage.config import StoreConfig

pytestmark = [pytest.mark.weed, pytest.mark.spark, pytest.mark.slow, pytest.mark.thorough]

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def cluster(bucket: StoreConfig) -> Iterator[l0gc.Cluster]:
    with l0gc.open(bucket.url) as opened:
        opened.init(create_bucket=True, shards=4)
        yield opened


def run(name: str, *arguments: str) -> None:
    ended = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        env={
            **os.environ,
            "PYTHONPATH": str(EXAMPLES.parent),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]


def test_words_are_counted_as_they_arrive(cluster: l0gc.Cluster, bucket: StoreConfig, tmp_path: Path) -> None:
    cluster.topics.create("lines", partitions=2)
    cluster.topics.create("counts", partitions=2)
    for lines in ([b"to be or", b"not to be"], [b"be that"]):
        cluster.upload("lines", lines)
        run("spark_wordcount.py", bucket.url, "lines", "counts", (tmp_path / "cp").as_uri(), "--available-now")
    newest = {}
    for r in cluster.read("counts"):
        newest[r.key] = int(r.value)
    assert newest == {b"to": 2, b"be": 3, b"or": 1, b"not": 1, b"that": 1}


def test_parquet_goes_into_a_topic_and_out_again(cluster: l0gc.Cluster, bucket: StoreConfig, tmp_path: Path) -> None:
    cluster.topics.create("flights", partitions=3)
    rows = [{"carrier": "ABC"[n % 3], "flight": n} for n in range(100)]
    (tmp_path / "in").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in" / "one.parquet")
    run("spark_parquet.py", "in", bucket.url, "flights", str(tmp_path / "in"), "carrier")
    records = list(cluster.read("flights"))
    assert sorted(json.loads(r.value)["flight"] for r in records) == list(range(100))
    assert all(r.key == json.loads(r.value)["carrier"].encode() for r in records)
    run("spark_parquet.py", "out", bucket.url, "flights", str(tmp_path / "out"))
    assert sorted(pq.read_table(tmp_path / "out").to_pylist(), key=lambda r: r["flight"]) == rows
