"""`format("l0gc")` on a Spark cluster whose workers have neither l0gc nor credentials, with speculation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import l0gc
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store
from tests.support import speculative_write
from tests.support.spark_cluster import spark_cluster

pytestmark = [pytest.mark.weed, pytest.mark.spark, pytest.mark.slow, pytest.mark.thorough]

ROOT = Path(__file__).parents[2]
APART = ("127.0.0.1", "127.0.0.2")
"""Spark starts the second attempt of a task on another machine only."""


@pytest.mark.timeout(1800)
def test_two_tasks_that_write_the_same_part_of_a_batch_land_it_once(
    bucket: StoreConfig, store: S3Store, tmp_path: Path
) -> None:
    with l0gc.open(bucket.url) as cluster, spark_cluster(tmp_path, hosts=APART) as spark:
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
        assert len(written) > len(landed)  # both attempts have written theirs
