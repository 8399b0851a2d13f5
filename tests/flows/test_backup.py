"""Backs up and restores with rclone, line by line from docs/work/operate-backup.md, on a real server that stays in use."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import pytest

import l0gc as library
from l0gc.embedded.seaweedfs import SeaweedFS
from l0gc.errors import SafetyError
from l0gc.keys import ATTEMPTS
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.level_one import merge_plan
from l0gc.streamlog.level_one.share import LEAST_PARTITIONS
from tests.support.cli import Ended, ended_here, l0gc
from tests.support.tables import sql_catalog

pytestmark = [pytest.mark.weed, pytest.mark.thorough]

PAGE: Final = (Path(__file__).parents[2] / "docs/work/operate-backup.md").read_text()
ROUNDS: Final = 10
TOPIC: Final = "events"
MANY: Final = "many"
"""The topic whose partitions share L1 objects."""

Read = dict[str, dict[int, list[tuple[int, bytes]]]]
"""The records of each partition of both topics."""


class Places(NamedTuple):
    """The cluster's folder, and the other folders of the recipe, by rclone's names."""

    bucket: str
    copy: str
    restored: str


def lines_of(first: str) -> list[str]:
    """Return the commands of the page's block that begins like this."""
    (block,) = re.findall(rf"^```\n({re.escape(first)}.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return str(block).splitlines()


LOGS: Final = lines_of("l0gc pin create backup --ttl 2d")
DATA: Final = lines_of("rclone copy --size-only --fast-list $BUCKET/level_one")
ELSEWHERE: Final = lines_of("rclone copy --fast-list $COPY $RESTORED")
SETTLED: Final = lines_of("l0gc epoch advance --above $EPOCH --yes")
TABLES: Final = lines_of("l0gc table drop $TOPIC --forget")
SET_BACK: Final = lines_of('l0gc pause --why "restoring')
PUBLISHED: Final = lines_of("rclone copyto $COPY/l0gc/watermarks/published.json")


@pytest.fixture
def places(weed: SeaweedFS, bucket: StoreConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Places:
    """Return the folders, with rclone's remote `store`, which is the server, in the environment of the recipe."""
    other = f"{bucket.bucket}-2"
    weed.client().create_bucket(Bucket=other)
    p = Places(f"store:{bucket.bucket}/some/prefix", f"store:{other}/copy", f"store:{other}/restored")
    remote = {"TYPE": "s3", "PROVIDER": "SeaweedFS", "ENV_AUTH": "true", "ENDPOINT": weed.endpoint_url}
    for name, value in remote.items():
        monkeypatch.setenv(f"RCLONE_CONFIG_STORE_{name}", value)
    monkeypatch.setenv("RCLONE_CONFIG", os.devnull)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    for name, value in p._asdict().items():
        monkeypatch.setenv(name.upper(), value)
    monkeypatch.chdir(tmp_path)
    return p


def follow(lines: list[str], after_each: Callable[[], object] = lambda: None) -> list[Ended]:
    """Follow the page, and return what l0gc's commands printed."""
    ended = []
    for line in lines:
        if line.startswith("l0gc ") and ">" not in line:
            ended.append(done := ended_here(*shlex.split(os.path.expandvars(line))[1:]))
            assert done.code == 0 or "verify" in line, (line, done)
        else:
            run = subprocess.run(["bash", "-ec", line], capture_output=True, text=True, check=False)
            assert run.returncode == 0, (line, run.stderr)
        after_each()
    return ended


def read(cluster: library.Cluster) -> Read:
    found: Read = {TOPIC: {}, MANY: {}}
    for topic, records in found.items():
        for r in cluster.read(topic):
            records.setdefault(r.partition, []).append((r.offset, r.value))
    return found


def shared_keys(store: S3Store) -> set[str]:
    """Return the shared objects in the bucket."""
    return {k for page in store.scan("level_one/data/") for k in page.keys if re.search(r"/j\d{4}/", k)}


def upload(cluster: library.Cluster, text: str) -> None:
    cluster.upload(TOPIC, [f"{text}.{i}".encode() for i in range(20)])


def use(cluster: library.Cluster, name: str) -> int:
    """Use every part of a cluster once, and return how many objects were deleted."""
    upload(cluster, f"{name}.a")
    cluster.upload(MANY, [f"{name}.{i}".encode() for i in range(LEAST_PARTITIONS)])
    cluster.reconcile()
    upload(cluster, f"{name}.b")
    cluster.merge(fan_in=2)
    cluster.expire()
    cluster.housekeep(barrier=True)
    cluster.compute_watermark()
    for _ in range(2):
        cluster.advance_epoch()
    swept = cluster.sweep(record=False).deleted
    return swept + cluster.vacuum(l1_grace_s=0, orphan_age_s=0, record=False).objects


def backed_up(cluster: library.Cluster) -> Read:
    """Back up a cluster in use, and return its records as of the pin."""
    cluster.topics.create(TOPIC, 2)
    cluster.topics.create(MANY, LEAST_PARTITIONS)
    cluster.topics.create("gone", 1)
    cluster.upload("gone", [b"x", b"y"])
    for n in range(3):
        use(cluster, f"before {n}")
    shared = shared_keys(cluster.store)
    assert shared
    l1 = sum(1 for page in cluster.store.scan("level_one/data/") for _ in page.keys)
    follow(LOGS[:1])
    as_of_the_pin = read(cluster)

    def meanwhile() -> None:
        upload(cluster, "meanwhile")
        cluster.reconcile()
        cluster.advance_epoch()

    follow(LOGS[1:], meanwhile)
    cluster.topics.alter(TOPIC, retention_bytes=1)
    cluster.topics.delete("gone")
    assert sum(use(cluster, f"later {n}") for n in range(ROUNDS)) == 0  # the pin keeps it
    assert sum(1 for page in cluster.store.scan("level_one/data/") for _ in page.keys) > l1
    assert read(cluster)[TOPIC][0][0] > as_of_the_pin[TOPIC][0][0]  # retention has removed records
    assert shared_keys(cluster.store) > shared
    follow(DATA)
    assert sum(use(cluster, f"at last {n}") for n in range(2)) > ROUNDS
    assert not shared & shared_keys(cluster.store)  # drained, and then vacuumed
    return as_of_the_pin


def is_whole(cluster: library.Cluster, as_of_the_pin: Read, *, deep: Ended) -> None:
    """Check that a restored cluster has all that the pin promised, and works; `verify --deep` found only later objects."""
    assert deep.code in {0, 4}, deep
    assert set(re.findall(r"^(\w+): ", deep.stdout.decode(), re.MULTILINE)) <= {"l1_orphan"}, deep
    there = read(cluster)
    for topic, partitions in as_of_the_pin.items():
        for partition, records in partitions.items():
            assert there[topic][partition][: len(records)] == records
            assert [offset for offset, _ in there[topic][partition]] == list(range(len(there[topic][partition])))
    assert [r.value for r in cluster.read("gone")] == [b"x", b"y"]
    named = cluster.verify(deep=True, min_age_s=0).counts
    assert set(named) == {"l1_orphan"}, named  # later objects, as orphans
    for n in range(2):
        use(cluster, f"restored {n}")
    assert not cluster.verify(deep=True, min_age_s=0).counts
    now = read(cluster)
    assert all(now[t][p][: len(some)] == some for t, partitions in there.items() for p, some in partitions.items())


def harmless(cluster: library.Cluster) -> None:
    """Check that a run which begins too early deletes nothing that the restored logs name."""
    with suppress(SafetyError):
        cluster.compute_watermark()
    cluster.housekeep(barrier=True)
    cluster.reconcile()
    cluster.merge(fan_in=2)
    cluster.sweep(record=False)
    cluster.vacuum(l1_grace_s=0, orphan_age_s=0, record=False)


def content(store: S3Store) -> set[tuple[str, int, int]]:
    """Return all objects except jobs' records of their failures."""
    return {
        (k, size, when)
        for page in store.scan("")
        for k, size, when in zip(page.keys, page.sizes, page.modified_ms, strict=True)
        if not k.startswith(ATTEMPTS)
    }


CHANGES: Final = (
    "gc", "housekeep", "reconcile", "merge", "expire", "compute-watermark", "sweep", "vacuum", "epoch advance",
    f"upload {TOPIC} -", "topic create new --partitions 1", "topic delete gone --yes", "pin create new", "pin delete backup",
)  # fmt: skip


def refused(store: S3Store, commands: Sequence[str]) -> None:
    """Check that the commands are refused and change nothing."""
    before = content(store)
    for command in commands:
        done = ended_here(*command.split(), stdin=b"x\n")
        assert done.code == 4, (command, done)
    assert content(store) == before


def test_a_backup_of_a_busy_cluster_is_restored(
    places: Places, bucket: StoreConfig, store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge_plan, "DRAINED_ROWS", 4)
    l0gc("init", "--create-bucket", "--shards", "4", "--journals", "2")
    with library.open(bucket.url) as cluster:
        then = backed_up(cluster)
    epoch = Path("epoch").read_text().strip()

    follow(ELSEWHERE)
    with monkeypatch.context() as patch:
        patch.setenv("L0GC_URL", url := places.restored.replace("store:", "s3://"))
        patch.setenv("EPOCH", epoch)
        early = ended_here("compute-watermark")
        assert early.code == 4
        assert "above the cluster epoch" in early.stderr
        with library.open(url) as restored:
            harmless(restored)
        (*_, deep) = follow(SETTLED)
        with library.open(url) as restored:
            is_whole(restored, then, deep=deep)

    newest = ended_here("epoch", "show").stdout.decode().strip()
    monkeypatch.setenv("EPOCH", str(max(int(epoch), int(newest))))
    follow(SET_BACK[:2])
    refused(store, CHANGES[-3:])
    follow(SET_BACK[2:])
    refused(store, CHANGES)
    (*_, deep, _) = follow(PUBLISHED)
    with library.open(bucket.url) as cluster:
        is_whole(cluster, then, deep=deep)


def test_a_restored_copy_syncs_no_table_of_production_and_gets_its_own(
    places: Places, bucket: StoreConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("pyiceberg")
    sql_catalog(monkeypatch, tmp_path)
    l0gc("init", "--create-bucket", "--shards", "4", "--journals", "2")
    with library.open(bucket.url) as cluster:
        cluster.topics.create(TOPIC, 2)
        upload(cluster, "first")
        cluster.reconcile()
        l0gc("table", "create", TOPIC, "--catalog", "lake")
        l0gc("table", "sync")
        epoch = ended_here("epoch", "show").stdout.decode().strip()
        monkeypatch.setenv("COPY", places.bucket)
        follow(ELSEWHERE)
        monkeypatch.setenv("EPOCH", epoch)
        monkeypatch.setenv("L0GC_URL", url := places.restored.replace("store:", "s3://"))
        follow([line for line in SETTLED if "pin delete" not in line])
        with library.open(url) as copy:
            upload(copy, "of the copy")
        done = ended_here("gc")
        assert done.code == 4, done
        assert f"belongs to the cluster at {bucket.url}" in done.stderr + done.stdout.decode()
        for name, value in {"TOPIC": TOPIC, "CATALOG": "lake", "TABLE": "l0gc.restored"}.items():
            monkeypatch.setenv(name, value)
        follow(TABLES)
        l0gc("table", "sync")
        monkeypatch.setenv("L0GC_URL", bucket.url)
        assert not cluster.tables.sync().tables[0].committed, "nothing of production's table has changed"
