"""Executors that die in an evacuation and in the reconcile after it, on a Spark cluster: nothing is lost, or there twice.

An executor is killed when its append to a journal has landed, before it learns so. Its task is done again elsewhere; where
its disk is lost as well, so are the tasks before, which write copies and L1 objects once more.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from l0gc.api.engine import Engine
from l0gc.embedded.seaweedfs import SeaweedFS
from l0gc.spark.handles import ClusterAddress
from l0gc.spark.workers import SparkWorkers
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.cluster import Handles
from l0gc.streamlog.evacuation.evacuate import run_evacuation
from l0gc.streamlog.evacuation.plan import EvacuateResult, plan_evacuation
from l0gc.streamlog.level_one import reconcile as runs
from tests.crash.cases import VACUUM, only_named_is_left
from tests.crash.checks import look
from tests.flows.test_loop import l0_objects
from tests.flows.test_repeated_commits import PATIENCE_S, executor_of, kill, until
from tests.support.cli import l0gc
from tests.support.deep import deep_findings
from tests.support.outcomes import HoldAppend
from tests.support.processes import holder_of
from tests.support.proxy import Proxy
from tests.support.reconcile import put, reconcile
from tests.support.spark_cluster import SparkCluster, spark_cluster

pytestmark = [
    pytest.mark.weed,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.thorough,
    pytest.mark.usefixtures("no_spark"),
]

PARTITIONS: Final = 6
OBJECTS: Final = 5
"""L0 objects of each topic in a round."""
CONF: Final = {
    "spark.default.parallelism": "2",
    "spark.task.maxFailures": "20",
    "spark.stage.maxConsecutiveAttempts": "10",
    "spark.driver.memory": "512m",
}


@dataclass
class Scene:
    """A topic over two journals that nobody reconciles, and one whose objects are garbage."""

    config: StoreConfig
    weed: SeaweedFS
    machines: SparkCluster
    spark: SparkSession
    chance: random.Random = field(default_factory=lambda: random.Random(26))
    values: dict[str, list[list[bytes]]] = field(default_factory=dict)

    @property
    def cluster(self) -> Handles:
        """The handles of a new process."""
        return Handles(S3Store(self.config))

    def workers(self, config: StoreConfig) -> SparkWorkers:
        return SparkWorkers(self.spark, ClusterAddress(config))

    def put(self) -> None:
        """A round of uploads, at epochs that are over, and listed."""
        cluster = self.cluster
        for topic in ("lagging", "busy"):
            known = self.values.setdefault(topic, [[] for _ in range(PARTITIONS)])
            for _ in range(OBJECTS):
                records = {p: [self.chance.randbytes(900) for _ in range(3)] for p in range(PARTITIONS)}
                put(cluster, topic, records)
                for p, values in records.items():
                    known[p] += values
        reconcile(cluster, "busy")
        self.compute()

    def compute(self) -> None:
        for _ in range(2):
            l0gc("housekeep", "--barrier")
        l0gc("compute-watermark", "--engine", "local")

    def interrupted(self, work: Callable[[SparkWorkers], Any], *, with_disk: bool) -> Any:
        """What is done on a cluster of which an executor dies after its first append to a journal has landed."""
        hold = HoldAppend(1)
        with Proxy(self.weed.endpoint_url, hold) as proxy, ThreadPoolExecutor(1) as driver:
            config = replace(self.config, endpoint_url=proxy.endpoint_url)
            job = driver.submit(work, self.workers(config))
            try:
                until(lambda: hold.landed.is_set() or job.done(), "nothing was appended")
                assert hold.held is not None, job.result()
                worker = holder_of(hold.held.port, int(proxy.endpoint_url.rpartition(":")[2]))
                kill(executor_of(self.machines, worker), with_disk=with_disk)
            finally:
                hold.go_on()
            return job.result(PATIENCE_S)

    def evacuate(self, workers: SparkWorkers) -> EvacuateResult:
        cluster = self.cluster
        return run_evacuation(cluster, plan_evacuation(cluster, workers), workers)

    def reconcile(self, workers: SparkWorkers) -> runs.ReconcileResult:
        return runs.reconcile(self.cluster, workers=workers)

    def check(self) -> None:
        """Every record is read once and in order, and the bucket has all that is named."""
        view = look(self.cluster)
        assert view.records == self.values
        assert deep_findings(view.cluster) == []


@pytest.mark.timeout(600)
def test_an_executor_that_is_killed_in_an_evacuation_and_in_the_reconcile_after_it_loses_nothing(
    bucket: StoreConfig, store: S3Store, weed: SeaweedFS, tmp_path: Path
) -> None:
    with spark_cluster(tmp_path, cores=2, shuffle_service=True) as machines:
        l0gc("init", "--create-bucket", "--shards", "4", "--journals", "3")
        l0gc("topic", "create", "lagging", "--partitions", str(PARTITIONS), "--journals", "2")
        l0gc("topic", "create", "busy", "--partitions", str(PARTITIONS))
        with Engine("spark", master=machines.url, conf=machines.conf | CONF, send_credentials=True) as engine:
            scene = Scene(bucket, weed, machines, engine.session(bucket))
            for with_disk in (False, True):
                scene.put()
                old = l0_objects(store)
                evacuated = scene.interrupted(scene.evacuate, with_disk=with_disk)
                assert (evacuated.engine, evacuated.errors) == ("spark", [])
                assert evacuated.target_epoch is not None
                scene.check()
                scene.compute()
                l0gc("sweep", "--engine", "local")
                assert not old.keys() & l0_objects(store).keys()
                scene.check()
                lifted = scene.interrupted(scene.reconcile, with_disk=with_disk)
                assert lifted.errors == []
                scene.check()
    assert l0gc("verify", "--deep", "--engine", "local")["findings"] == []
    scene.compute()
    l0gc("sweep", "--engine", "local")
    assert l0_objects(store) == {}
    l0gc(*VACUUM)  # whether a task wrote its L1 objects twice depends on which executor had the lost part
    only_named_is_left(look(scene.cluster))
    assert l0gc("verify", "--deep", "--min-age", "0s", "--engine", "local")["findings"] == []
    scene.check()
