"""The examples for Spark do what they promise on a real server."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import l0gc
from l0gc.storage.config import StoreConfig

pytestmark = [pytest.mark.weed, pytest.mark.spark, pytest.mark.slow, pytest.mark.thorough]

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def cluster(bucket: StoreConfig) -> Iterator[l0gc.Cluster]:
    with l0gc.open(bucket.url) as opened:
        opened.init(create_bucket=True, shards=4)
        yield opened


@pytest.fixture
def run(one_spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Yield a function that runs an example in this process, where its builder finds the tests' session."""

    def run(name: str, *arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")

    shuffled = str(one_spark.conf.get("spark.sql.shuffle.partitions"))
    yield run
    one_spark.conf.set("spark.sql.shuffle.partitions", shuffled)  # an example has set another number


def test_words_are_counted_as_they_arrive(
    cluster: l0gc.Cluster, run: Callable[..., None], bucket: StoreConfig, tmp_path: Path
) -> None:
    cluster.topics.create("lines", partitions=2)
    cluster.topics.create("counts", partitions=2)
    for lines in ([b"to be or", b"not to be"], [b"be that"]):
        cluster.upload("lines", lines)
        run("spark_wordcount.py", bucket.url, "lines", "counts", (tmp_path / "cp").as_uri(), "--available-now")
    newest = {}
    for r in cluster.read("counts"):
        newest[r.key] = int(r.value)
    assert newest == {b"to": 2, b"be": 3, b"or": 1, b"not": 1, b"that": 1}


def test_parquet_goes_into_a_topic_and_out_again(
    cluster: l0gc.Cluster, run: Callable[..., None], bucket: StoreConfig, tmp_path: Path
) -> None:
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
