"""Commits that Spark repeats, on a real cluster, during expiry, deletion of records, merge and vacuum.

An executor's append to a journal lands. Before the executor learns this, its process is killed, or also loses its disk,
or stops until a copy of its task has ended. In the meantime L1 objects that the append named are dropped and deleted.
Then the task's second try begins.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from pyspark.sql import SparkSession

from l0gc.api.engine import Engine
from l0gc.collect.dropped_l1 import GRACE_EPOCHS
from l0gc.embedded.seaweedfs import SeaweedFS
from l0gc.spark import ship
from l0gc.spark.handles import ClusterAddress
from l0gc.spark.workers import SparkWorkers
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.journal.state import JournalState
from l0gc.streamlog.level_one import reconcile as runs
from tests.crash.cases import VACUUM, only_named_is_left
from tests.crash.checks import GONE, View, look
from tests.support.cli import l0gc
from tests.support.deep import deep_findings
from tests.support.merge import merge
from tests.support.outcomes import HoldAppend, Request
from tests.support.processes import family, holder_of, parents
from tests.support.proxy import Proxy
from tests.support.reconcile import put, reconcile
from tests.support.spark import commands_use
from tests.support.spark_cluster import SparkCluster, spark_cluster
from tests.support.speculative_write import SPECULATION

pytestmark = [
    pytest.mark.weed,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.thorough,
    pytest.mark.usefixtures("no_spark"),
]

TOPICS: Final = ("trimmed", "expiring", "merging")
PARTITIONS: Final = 2
OBJECTS: Final = 12
"""The L0 objects of a round in each topic; each becomes an L1 object in each partition."""
CONF: Final = SPECULATION | {
    "spark.speculation.task.duration.threshold": "3s",  # in a stage of few tasks, none has to end before a copy starts
    "spark.speculation.minTaskRuntime": "3s",  # a task that only starts slowly needs no copy
    "spark.default.parallelism": "2",
    "spark.task.maxFailures": "20",
    "spark.stage.maxConsecutiveAttempts": "10",
    "spark.python.task.killTimeout": "600s",  # a stopped task that resumes finds that another has done its work
    "spark.driver.memory": "512m",
}
APART: Final = ("127.0.0.1", "127.0.0.2")
"""Two machines, because Spark starts the copy of a task only on another one."""
CORES: Final = 4
"""The cores of each executor: copies of earlier tasks may also wait for the store."""
PATIENCE_S: Final = 240.0
MERGED: Final = 5
"""The least number of a partition's L1 objects to merge."""

KILLED, WITHOUT_DISK, STOPPED = "killed", "killed, and its disk is gone", "stopped"
ROUNDS: Final = [
    ("reconcile", WITHOUT_DISK, True),
    ("reconcile", STOPPED, False),
    ("merge", KILLED, True),
]
"""A command, how its executor fails, and whether the vacuum in between fences off what the command has stamped."""


@dataclass
class Scene:
    """A cluster, its records, and the start of each partition; `orphans` counts those that vacuums have deleted."""

    config: StoreConfig
    cluster: ClusterHandles
    chance: random.Random
    values: dict[str, list[list[bytes]]] = field(default_factory=dict)
    starts: dict[tuple[str, int], int] = field(default_factory=dict)
    orphans: int = 0

    def put(self) -> None:
        """Put a few more records into each partition, in `OBJECTS` objects of each topic."""
        for topic in TOPICS:
            known = self.values.setdefault(topic, [[] for _ in range(PARTITIONS)])
            objects = []
            for _ in range(OBJECTS):
                records = {p: [self.chance.randbytes(90) for _ in range(3)] for p in range(PARTITIONS)}
                objects.append(records)
                for p, values in records.items():
                    known[p] += values
            put(self.cluster, topic, *objects)

    def state(self, topic: str) -> tuple[int, JournalState]:
        """Return a topic's revision and its journal's state."""
        t = self.cluster.controller.snapshot().topic(topic)
        return t.revision, self.cluster.journal(t.journals[0]).catch_up()

    def l1(self, topic: str, partition: int) -> Any:
        """Return the rows of the newest L1 objects of a partition."""
        revision, state = self.state(topic)
        return state.topics[revision].l1_of(partition)[-OBJECTS:]

    # -- changes between a commit's two tries --------------------------------------------------------------------------

    def trim(self) -> None:
        """Delete the records of some of each partition's newest L1 objects, and perhaps one more record."""
        for p in range(PARTITIONS):
            rows = self.l1("trimmed", p)
            if len(rows) > 1:
                start = int(rows["base"][self.chance.randrange(1, len(rows))]) + self.chance.randrange(2)
                if start > self.starts.get(("trimmed", p), 0):
                    l0gc("delete-records", "trimmed", "--partition", str(p), "--before-offset", str(start), "--yes")
                    self.starts["trimmed", p] = start

    def expire(self) -> None:
        """Keep only some of the newest L1 objects."""
        rows = self.l1("expiring", 0)
        kept = int(rows["bytes"][self.chance.randrange(1, max(2, len(rows))) :].sum())
        l0gc("topic", "alter", "expiring", "--retention-bytes", str(kept), "--yes")
        done = l0gc("expire", "expiring")
        assert not done.get("errors")
        l0gc("topic", "alter", "expiring", "--retention-bytes", "-1")
        revision, state = self.state("expiring")
        for p in range(PARTITIONS):
            start = state.topic(revision).view(p).log_start_offset
            assert start <= len(self.values["expiring"][p]) - 3, "retention deletes no partition's newest L1 object"
            self.starts["expiring", p] = start

    def merge(self) -> None:
        """Merge small objects into large ones."""
        l0gc("merge", "merging", "--engine", "local")

    def let_epochs_pass(self) -> None:
        for _ in range(GRACE_EPOCHS + 1):
            l0gc("epoch", "advance")

    def between(self, *, fenced: bool) -> None:
        """Drop L1 objects in every way, in random order, and delete them; if `fenced`, also those that no journal names
        yet.
        """
        for step in self.chance.sample([self.trim, self.expire, self.merge], 3):
            step()
        self.let_epochs_pass()
        dropped = self.vacuum(VACUUM if fenced else ["vacuum", "--l1-grace", "0s"])
        assert dropped, "nothing was dropped between the two tries"

    def vacuum(self, command: Sequence[str]) -> int:
        """Vacuum, and return how many dropped L1 objects were deleted."""
        deleted = l0gc(*command)["deleted"]
        self.orphans += deleted["orphaned_l1"]["objects"]
        return int(deleted["dropped_l1"]["objects"])

    # -- invariants ----------------------------------------------------------------------------------------------------

    def check(self) -> View:
        """Check that every record that was not deleted is read once and in order, and that every named object exists."""
        view = look(ClusterHandles(S3Store(self.config)))
        for topic in TOPICS:
            for p, values in enumerate(self.values[topic]):
                start = self.starts.get((topic, p), 0)
                assert view.records[topic][p] == [GONE] * start + values[start:], f"{topic}/{p}"
        assert deep_findings(view.cluster) == []
        return view


# -- the failing executor -------------------------------------------------------------------------------------------------


def executor_of(spark: SparkCluster, pid: int) -> int:
    """Return the executor that has started a Python worker."""
    known, executors = parents(), spark.executors()
    while pid not in executors:
        pid = known[pid]
    return pid


def kill(pid: int, *, with_disk: bool) -> None:
    """Kill an executor and its descendants, as if its machine failed; `with_disk` also deletes what it has written."""
    names = (pair.partition(b"=") for pair in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    folders = next(v for k, _, v in names if k == b"SPARK_EXECUTOR_DIRS").decode().split(os.pathsep)
    for one in family(pid):
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
    if with_disk:
        lost = [blocks for folder in folders for blocks in Path(folder).glob("blockmgr-*")]
        assert lost
        for blocks in lost:
            while blocks.exists():
                with suppress(FileNotFoundError):  # Spark's worker removes them, too
                    shutil.rmtree(blocks)


@contextmanager
def stopped(pid: int) -> Iterator[Callable[[], None]]:
    """Stop a process until the yielded function, or the end of the block, lets it continue."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield lambda: os.kill(pid, signal.SIGCONT)
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def copied(spark: SparkSession) -> bool:
    """Return whether a second copy of a task runs."""
    tracker = spark.sparkContext.statusTracker()
    stages = [s for s in map(tracker.getStageInfo, tracker.getActiveStageIds()) if s is not None]
    return any(s.numActiveTasks > s.numTasks - s.numCompletedTasks for s in stages)


def until(happens: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not happens():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def is_read(held: Request, requests: list[Request]) -> bool:
    """Return whether a process has read the appended entry, which is how a writer learns that it has landed."""
    return any(r.key == held.key and r.operation == "GetObject" for r in requests)


# -- the rounds -----------------------------------------------------------------------------------------------------------


@dataclass
class Stage:
    """The cluster and the session on which the rounds run."""

    scene: Scene
    weed: SeaweedFS
    machines: SparkCluster
    spark: SparkSession

    def run(self, command: str, fault: str, *, fenced: bool) -> None:
        """Run one round: a command that repeats one of its commits."""
        scene = self.scene
        scene.put()
        if command == "merge":
            for _ in range(MERGED):
                reconcile(scene.cluster)
                scene.put()
        # If a command is fenced off, the object that another journal was to name becomes an orphan.
        hold = HoldAppend(1 if fenced else scene.chance.randint(1, 2))
        with Proxy(self.weed.endpoint_url, hold) as proxy, ThreadPoolExecutor(1) as driver:
            config = msgspec.structs.replace(scene.config, endpoint_url=proxy.endpoint_url)
            job = driver.submit(getattr(self, command), config)
            try:
                errors = self._repeat(job, proxy, hold, fault, fenced=fenced)
            finally:
                hold.go_on()
        assert fenced or not errors, errors
        scene.check()

    def _repeat(self, job: Future[Any], proxy: Proxy, hold: HoldAppend, fault: str, *, fenced: bool) -> list[str]:
        """Let the first try fail and the second one end; return the command's errors."""
        until(lambda: hold.landed.is_set() or job.done(), "no commit was appended")
        assert hold.held is not None, job.result()
        worker = holder_of(hold.held.port, int(proxy.endpoint_url.rpartition(":")[2]))
        executor = executor_of(self.machines, worker)
        if fault != STOPPED:
            kill(executor, with_disk=fault == WITHOUT_DISK)
            self.scene.between(fenced=fenced)
            hold.go_on()
            return self._errors(job)
        with stopped(worker) as go_on:
            until(lambda: copied(self.spark), "Spark has not begun a copy of the task")
            self.scene.between(fenced=fenced)
            hold.go_on()
            errors = self._errors(job)
            self.scene.check()
            held, seen = hold.held, len(proxy.requests)
            go_on()
            until(lambda: is_read(held, proxy.requests[seen:]), "the task that was stopped has not gone on")
            while seen < len(proxy.requests):
                seen = len(proxy.requests)
                time.sleep(1)
            return errors

    def _errors(self, job: Future[Any]) -> list[str]:
        result = job.result(PATIENCE_S)
        sys.stdout.write(f"{result}\n")
        errors: list[str] = result.errors
        return errors

    def reconcile(self, config: StoreConfig) -> Any:
        return runs.reconcile(
            ClusterHandles(S3Store(self.scene.config)), workers=SparkWorkers(self.spark, ClusterAddress(config))
        )

    def merge(self, config: StoreConfig) -> Any:
        return merge(
            ClusterHandles(S3Store(self.scene.config)), workers=SparkWorkers(self.spark, ClusterAddress(config))
        )


@pytest.fixture
def small_l1_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let executors write an L1 object for each L0 object; the default size is 128 MiB."""
    changes = {"read.py": b"\nBATCH_BYTES = 1\n", "write.py": b"\nFILE_BYTES = _ROW_GROUP_BYTES = 1\n"}
    package, changed = ship.package_zip(), tmp_path / "l0gc-small.zip"
    assert package is not None
    with zipfile.ZipFile(package) as old, zipfile.ZipFile(changed, "w") as new:
        for item in old.infolist():
            folder, _, name = item.filename.rpartition("/")
            more = changes.pop(name, b"") if folder == "l0gc/streamlog/level_one" else b""
            new.writestr(item, old.read(item) + more)
    assert changes == {}
    monkeypatch.setattr(ship, "package_zip", lambda: changed)


@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("small_l1_objects")
@pytest.mark.parametrize("seed", [1])
def test_a_repeated_commit_counts_every_record_once(
    seed: int, bucket: StoreConfig, weed: SeaweedFS, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    sys.stdout.write(f"seed {seed}\n")
    with spark_cluster(tmp_path, cores=CORES, hosts=APART, shuffle_service=True) as machines:
        l0gc("init", "--create-bucket", "--shards", "4", "--journals", "2")
        for topic in TOPICS:
            l0gc("topic", "create", topic, "--partitions", str(PARTITIONS))
        scene = Scene(bucket, ClusterHandles(S3Store(bucket)), chance)
        with Engine("spark", master=machines.url, conf=machines.conf | CONF, send_credentials=True) as engine:
            spark = engine.session(bucket)
            stage = Stage(scene, weed, machines, spark)
            for command, fault, fenced in chance.sample(ROUNDS, len(ROUNDS)):
                began = time.monotonic()
                sys.stdout.write(f"{command}: {fault}\n")
                sys.stdout.flush()
                stage.run(command, fault, fenced=fenced)
                sys.stdout.write(f"{time.monotonic() - began:.1f} s\n")
            scene.put()
            reconcile(scene.cluster)
            scene.let_epochs_pass()
            l0gc("housekeep")
            scene.vacuum(VACUUM)
            assert scene.orphans, "no vacuum has found an orphan"
            only_named_is_left(scene.check())
            with commands_use(spark):
                assert l0gc("verify", "--deep", "--min-age", "0s")["findings"] == []
