"""`l0gc vacuum` on a real server: its output, its response to signals, its record, and how its deletions are undone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from l0gc.collect.plan import run_id
from l0gc.collect.record import attempt_key
from l0gc.collect.vacuum import KINDS
from l0gc.keys import ATTEMPTS, RUNS, SCANS, PartitionId, level_one
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.level_one.reconcile import reconcile
from tests.support.cli import ended_here, founded, l0gc
from tests.support.merge import merge
from tests.support.proxy import Proxy

pytestmark = pytest.mark.weed

NOW = ("--l1-grace", "0s", "--orphan-age", "0s")


def name_of(n: int) -> str:
    return f"{n:08x}-0000-4000-8000-000000000000"


def lift(store: S3Store, times: int) -> None:
    """Reconcile this many uploads of ten records each."""
    cluster = ClusterHandles(store)
    for n in range(times):
        done = ended_here("upload", "events", "-", stdin=b"".join(b"%d.%d\n" % (n, i) for i in range(10)))
        assert done.code == 0, done.stderr
        assert not reconcile(cluster).errors


def records() -> list[bytes]:
    return ended_here("read", "events").stdout.split()


@pytest.fixture
def planted(store: S3Store) -> S3Store:
    """Create merged objects, a deleted topic, orphans of a killed run, keys that are not L1 keys, and old records; then
    tick twice.
    """
    founded()
    l0gc("topic", "create", "gone", "--partitions", "1")
    ended_here("upload", "gone", "-", stdin=b"x\ny\n")
    lift(store, 4)
    cluster = ClusterHandles(store)
    assert merge(cluster).objects_after == 2
    cluster.controller.delete_topic("gone")
    l0gc("housekeep")
    p = PartitionId("events", 1, 0)
    store.put(level_one(p, 1, 0, 9, name_of(1)), b"orphan")
    store.put("level_one/data/README", b"foreign")
    for _ in range(3):
        cluster.controller.advance()
    return store


def everything(store: S3Store) -> set[str]:
    return {k for page in store.scan("") for k in page.keys}


def counts(done: dict[str, Any]) -> dict[str, int]:
    return {kind: d["objects"] for kind, d in done["deleted"].items() if d["objects"]}


@pytest.mark.thorough
def test_a_vacuum_deletes_what_its_dry_run_predicted(planted: S3Store) -> None:
    there, before = records(), everything(planted)
    dry = l0gc("vacuum", "--dry-run", *NOW)
    assert everything(planted) == before
    done = l0gc("vacuum", *NOW)
    assert dry["deleted"] == done["deleted"]
    assert counts(done) == {"dropped_l1": 9, "orphaned_l1": 1}
    assert done["unparsable"] == 1
    assert len({k for k in everything(planted) if k.startswith("level_one/")}) == 3
    assert records() == there
    (run,) = l0gc("runs", "list")["runs"]
    assert (run["run_id"], run["command"], run["kinds"]) == (done["run_id"], "vacuum", done["deleted"])
    assert l0gc("runs", "show", run["run_id"])["by_status"] == {"deleted": 10}
    assert counts(l0gc("vacuum", *NOW)) == {}
    assert f"{ATTEMPTS}vacuum.json" in everything(planted)


def test_every_kind_that_there_is_goes_as_the_dry_run_says(planted: S3Store) -> None:
    """A proxy moves the store's clock by a hundred days."""
    planted.put(f"{RUNS}{run_id(0, '0123abcd')}/run.json", b"{}")
    planted.put(f"{SCANS}{0:015}-01234567-0000-4000-8000-000000000000", b"x")
    planted.put(attempt_key("a-job-of-long-ago"), b"{}")
    there = records()
    with Proxy(str(planted.config.endpoint_url), clock_ahead_s=100 * 86_400) as proxy:
        dry = l0gc("vacuum", "--dry-run", *NOW, "--endpoint-url", proxy.endpoint_url)
        done = l0gc("vacuum", *NOW, "--endpoint-url", proxy.endpoint_url)
    assert dry["deleted"] == done["deleted"]
    assert counts(done).keys() == set(KINDS)
    assert records() == there


@pytest.mark.thorough
def test_the_grace_and_the_age_are_waited_for(planted: S3Store) -> None:
    assert counts(l0gc("vacuum")) == {}
    assert counts(l0gc("vacuum", "--l1-grace", "0s")) == {"dropped_l1": 9}
    assert counts(l0gc("vacuum", "--orphan-age", "0s")) == {"orphaned_l1": 1}


@pytest.mark.thorough
def test_the_metrics_of_a_vacuum_have_every_kind(planted: S3Store, tmp_path: Path) -> None:
    l0gc("vacuum", *NOW, "--metrics-file", str(tmp_path / "m.prom"))
    text = (tmp_path / "m.prom").read_text()
    for name, value in (("dropped_l1", 9), ("orphaned_l1", 1), ("run_records", 0)):
        assert f'l0gc_vacuumed_{name}_objects_total{{command="vacuum",step="vacuum"' in text
        assert f"}} {float(value)}\n" in text
