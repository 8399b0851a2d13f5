"""A table in the REST catalog of `weed`, on a server, through its whole life."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
import yaml
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table import Table

import l0gc
from l0gc.api import Cluster
from l0gc.embedded.seaweedfs import SeaweedFS
from l0gc.integrations.iceberg import plan
from l0gc.integrations.iceberg.catalog import VERSIONS_KEPT
from l0gc.keys import L1_DATA
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.tables import TableSynced
from tests.docs.test_blocks import found
from tests.support.engines import a_duckdb, access, of_server, rows_of
from tests.support.tables import configure

pytestmark = [pytest.mark.weed, pytest.mark.thorough]

DOCUMENT = "docs/work/tables.md"
NAMES = ["partition", "offset", "timestamp", "key", "value"]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SeaweedFS]:
    """Yield a server whose catalog PyIceberg knows as `lake`, and which the environment names."""
    with SeaweedFS(warehouse="lakehouse") as weed:
        for key, value in weed.environment().items():
            monkeypatch.setenv(key, value)
        text = of_server(found(DOCUMENT, "catalog:\n  lake:\n    type: rest").text, weed)
        configure(monkeypatch, **yaml.safe_load(text)["catalog"]["lake"])
        yield weed


def lifted(cluster: Cluster, n: int) -> None:
    """Lift more records, in one L1 object of each partition."""
    cluster.upload("events", [b'{"user":"ann","n":%d}' % n, b'{"user":"bob"}'] * 15, key_field="user")
    cluster.reconcile()


def synced(cluster: Cluster, **settings: Any) -> TableSynced:
    (done,) = cluster.tables.sync(**settings).tables
    return done


def vacuumed(cluster: Cluster) -> None:
    """Vacuum without grace."""
    cluster.advance_epoch()
    cluster.housekeep(barrier=True)
    for _ in range(3):
        cluster.advance_epoch()
    cluster.housekeep(barrier=True)
    cluster.vacuum(l1_grace_s=0, orphan_age_s=0)


def what_read_gives(cluster: Cluster) -> list[tuple[Any, ...]]:
    return sorted((r.partition, r.offset, r.timestamp_ms, r.key, r.value) for r in cluster.read("events"))


def read_of(found: pa.Table) -> list[tuple[Any, ...]]:
    return rows_of(pl.DataFrame(found).select(NAMES))


def loaded(weed: SeaweedFS) -> Table:
    """Return the table as a reader without l0gc loads it."""
    return load_catalog("lake", **access(weed)).load_table("l0gc.events")


def test_a_rest_catalog_supports_a_tables_whole_life(server: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> None:
    config = StoreConfig("cluster", "some/prefix/", server.endpoint_url, server.region)
    with l0gc.open(config.url) as cluster:
        cluster.init(create_bucket=True, journals=2)
        cluster.topics.create("events", partitions=3, journals=2)
        cluster.tables.create("events", catalog="lake")
        for n in range(4):
            lifted(cluster, n)
            assert synced(cluster).added > 0
        at_first = what_read_gives(cluster)
        kept = loaded(server)
        reader = ArrowScan(kept.metadata, kept.io, kept.schema(), AlwaysTrue())
        tasks = list(kept.scan().plan_files())
        files = [t.file.file_path.removeprefix(config.url) for t in tasks]
        begun = reader.to_table(tasks[:2])

        merged = cluster.merge()
        assert synced(cluster).removed == merged.objects_before == len(files)
        vacuumed(cluster)
        cluster.topics.alter("events", retention_bytes=0)
        cluster.expire()
        assert (synced(cluster).removed, synced(cluster).files) == (merged.objects_after, 0)
        cluster.topics.alter("events", retention_bytes=None)
        vacuumed(cluster)
        lifted(cluster, 9)
        synced(cluster)
        vacuumed(cluster)

        stored = S3Store(config)
        assert {k for page in stored.scan(L1_DATA) for k in page.keys} >= set(files)
        assert read_of(pa.concat_tables([begun, reader.to_table(tasks[2:])])) == at_first
        select, duck = ", ".join(f'"{n}"' for n in NAMES), a_duckdb(server)
        assert rows_of(duck.sql(f"SELECT {select} FROM iceberg_scan('{kept.metadata_location}')").pl()) == at_first

        wanted, now = what_read_gives(cluster), loaded(server)
        assert 0 < len(wanted) < len(at_first)
        assert read_of(now.scan().select(*NAMES).to_arrow()) == wanted
        assert rows_of(pl.scan_iceberg(now).select(NAMES).collect()) == wanted
        assert rows_of(duck.sql(f"SELECT {select} FROM iceberg_scan('{now.metadata_location}')").pl()) == wanted
        by_user = duck.sql(of_server(found(DOCUMENT, "ATTACH 'lakehouse'").text, server)).fetchall()
        assert sum(n for _, n in by_user) == len(wanted)
        assert rows_of(duck.sql(f"SELECT {select} FROM lake.l0gc.events").pl()) == wanted

        # another sync in between: the catalog refuses the later commit, which is decided anew
        with l0gc.open(config.url) as other:
            real, others = plan.check_not_ahead, [other]

            def meanwhile(*arguments: Any) -> None:
                if others:
                    others.pop().tables.sync()
                real(*arguments)

            monkeypatch.setattr(plan, "check_not_ahead", meanwhile)
            lifted(cluster, 10)
            assert synced(cluster).added == 0

        for n in range(VERSIONS_KEPT):
            lifted(cluster, n)
            synced(cluster, keep_snapshots_s=0)
        vacuumed(cluster)
        last = loaded(server).metadata
        assert (len(last.snapshots), len(last.metadata_log)) == (2, VERSIONS_KEPT)
        assert not {k for page in stored.scan(L1_DATA) for k in page.keys} & set(files)
        assert read_of(loaded(server).scan().select(*NAMES).to_arrow()) == what_read_gives(cluster)

        cluster.tables.drop("events")
        assert not load_catalog("lake").table_exists("l0gc.events")
        assert (cluster.tables.list(), cluster.pins.list()) == ([], [])
        left = server.client().list_objects_v2(Bucket="lakehouse").get("Contents", [])
        assert [o["Key"] for o in left if not o["Key"].endswith("/")] == []
        assert len(what_read_gives(cluster)) > 0
