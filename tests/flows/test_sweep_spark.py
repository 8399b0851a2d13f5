"""The sweep on a Spark cluster of two workers deletes the same set as on the local engine, even if an executor dies."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from l0gc.collect.record import DELETED
from l0gc.storage.s3 import S3Store
from tests.flows.test_sweep import a_bucket, garbage, level_zero
from tests.support.cli import l0gc
from tests.support.spark_cluster import spark_cluster

pytestmark = [
    pytest.mark.weed,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.thorough,
    pytest.mark.usefixtures("no_spark"),
]


def test_a_sweep_with_a_killed_worker_deletes_the_same_set(store: S3Store, tmp_path: Path) -> None:
    a_bucket(store, objects=1000)
    before, dead = level_zero(store), garbage(store)
    local = l0gc("sweep", "--dry-run", "--engine", "local")
    killed: list[int] = []
    with spark_cluster(tmp_path) as cluster, ThreadPoolExecutor(1) as background:
        on_spark = ["--engine", "spark", *cluster.options]
        over = threading.Event()

        def kill_one() -> None:
            """Kill an executor once some of the garbage, but not all, is deleted."""
            # Nothing is listed before executors have started, because they need the cores.
            while not cluster.executors() and not over.is_set():
                time.sleep(0.5)
            while not over.is_set():
                left = len(garbage(store))
                if left < len(dead):
                    victim = cluster.executors()[0]
                    os.kill(victim, signal.SIGKILL)
                    killed.extend([victim, left])
                    return
                time.sleep(0.05)

        watching = background.submit(kill_one)
        try:
            # The rate is low enough for the kill to come in the middle.
            swept = l0gc("sweep", *on_spark, "--max-rate", "200")
        finally:
            over.set()
        watching.result()
    assert killed[1] > 0, "the sweep was over before an executor could be killed"
    gone = before - level_zero(store)
    assert gone == dead
    assert swept["deleted"] == local["deleted"] == len(gone)
    assert (swept["engine"], swept["failed"]) == ("spark", 0)
    assert swept["bytes"] == local["bytes"]
    shown = l0gc("runs", "show", swept["run_id"])
    assert shown["by_status"] == {DELETED: len(gone)}
    assert (shown["outcome"], shown["deleted"]) == ("done", len(gone))
