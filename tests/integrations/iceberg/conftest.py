"""Fixtures of a topic with a table, in memory and in a catalog in SQLite."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from l0gc.embedded.seaweedfs import SeaweedFS
from l0gc.storage.config import StoreConfig
from l0gc.streamlog.cluster import ClusterHandles
from tests.docs.test_blocks import found
from tests.support.engines import of_server
from tests.support.memory_store import topic_in_memory
from tests.support.tables import configure, lift, sql_catalog, sync, with_table


@pytest.fixture
def documented_catalog(
    bucket: StoreConfig, weed: SeaweedFS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> StoreConfig:
    """Return a bucket, for which docs/work/tables.md configures a catalog in SQLite, with the server's keys."""
    parts = (
        found("docs/work/tables.md", begins).text for begins in ("catalog:\n  lake:\n    type: sql", "    s3.endpoint")
    )
    text = of_server("".join(parts), weed).replace("s3://bucket", f"s3://{bucket.bucket}")
    configure(monkeypatch, **yaml.safe_load(text.replace("/var/lib/l0gc", str(tmp_path)))["catalog"]["lake"])
    return bucket


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterHandles:
    """Create a cluster with a table of `events`, which has been synced once."""
    sql_catalog(monkeypatch, tmp_path)
    made = topic_in_memory(2, 1)
    with_table(made)
    lift(made)
    assert sync(made).added == 2
    return made
