"""Configures catalogs for tests of tables, and lists what a table names."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.table import Table
from pyiceberg.utils.config import Config

from l0gc.integrations.iceberg.catalog import load_table, open_catalog
from l0gc.integrations.iceberg.sync import create_table, sync_tables
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import TopicTable
from l0gc.streamlog.housekeep import housekeep
from l0gc.streamlog.tables import TableSynced, table_of
from tests.support.reconcile import named, put, reconcile
from tests.support.vacuum import tick, vacuum

DAY_MS = 86_400_000
HOUR_MS = 3_600_000


def sql_catalog(monkeypatch: pytest.MonkeyPatch, folder: Path, warehouse: str = "") -> None:
    """Configure PyIceberg's catalog `lake`, in SQLite."""
    configure(
        monkeypatch,
        type="sql",
        uri=f"sqlite:///{folder / 'catalog.db'}",
        warehouse=warehouse or f"file://{folder}/lake",
    )


def configure(monkeypatch: pytest.MonkeyPatch, **settings: str) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name.replace('-', '_').replace('.', '__').upper()}", value)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())


def with_table(cluster: ClusterHandles) -> TopicTable:
    """Give the topic `events` a table."""
    wanted = table_of(cluster.controller.snapshot().topic("events"), "lake", None)
    create_table(cluster, wanted)
    return wanted


def sync(cluster: ClusterHandles, keep_ms: int = DAY_MS) -> TableSynced:
    """Sync the table of `events`, and check that it names what the journals list, each object once."""
    result = sync_tables(cluster, "events", keep_ms)
    if result.failures:
        raise result.failures[0]
    assert_named(cluster)
    return result.tables[0]


def table(cluster: ClusterHandles) -> Table:
    state = cluster.controller.snapshot()
    known = state.table("events")
    return load_table(open_catalog(known.catalog, cluster.store), known, state.cluster_id, cluster.store.url)


def names(cluster: ClusterHandles, snapshot_id: int | None = None) -> list[str]:
    """Return the keys of the objects that a snapshot names, with repetitions."""
    tasks = table(cluster).scan(snapshot_id=snapshot_id).plan_files()
    return sorted(t.file.file_path.removeprefix(cluster.store.url) for t in tasks)


def assert_named(cluster: ClusterHandles) -> None:
    assert names(cluster) == sorted(named(cluster, "events"))


def lift(cluster: ClusterHandles, times: int = 1) -> None:
    """Upload and reconcile this many objects of each partition."""
    for n in range(times):
        put(cluster, "events", {p: [b"%d" % n] for p in range(2)})
        cluster.controller.advance()
        reconcile(cluster)


def vacuum_all(cluster: ClusterHandles) -> None:
    """Run a vacuum that deletes whatever no pin keeps."""
    housekeep(cluster, barrier=True)
    tick(cluster, 3)
    housekeep(cluster, barrier=True)
    vacuum(cluster)
