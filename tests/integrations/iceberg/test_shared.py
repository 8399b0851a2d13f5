"""Tables of topics whose partitions share L1 objects: shared objects are drained, and a table never lacks records
between others.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from l0gc.integrations.iceberg.sync import sync_tables
from l0gc.keys import parse_level_one
from l0gc.streamlog.cluster import ClusterHandles
from tests.support.memory_store import store_of
from tests.support.reconcile import put, reconcile
from tests.support.sharing import drain, loaded, state_of
from tests.support.tables import names, sql_catalog, sync, with_table
from tests.test_api import over

PARTITIONS = 100


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterHandles:
    """Create a topic with two shared objects, each with two records of each partition."""
    sql_catalog(monkeypatch, tmp_path)
    return loaded(2, PARTITIONS)[0]


def offsets(cluster: ClusterHandles) -> dict[int, list[tuple[int, int]]]:
    """Return by partition the first and the last offset of each object that the table names."""
    found: dict[int, list[tuple[int, int]]] = {}
    for key in map(parse_level_one, names(cluster)):
        assert key is not None
        found.setdefault(key.partition, []).append((key.base, key.last))
    return {p: sorted(some) for p, some in sorted(found.items())}


def test_a_topic_is_drained_when_it_gets_a_table(cluster: ClusterHandles, monkeypatch: pytest.MonkeyPatch) -> None:
    with over(cluster, monkeypatch) as library:
        library.tables.create("events", catalog="lake")
    assert state_of(cluster).shared == ()
    assert sync(cluster).added == PARTITIONS
    assert offsets(cluster) == {p: [(0, 3)] for p in range(PARTITIONS)}


def test_a_table_names_nothing_above_rows_of_shared_objects(cluster: ClusterHandles) -> None:
    with_table(cluster)
    put(cluster, "events", {p: [b"later"] for p in range(3)})
    reconcile(cluster)
    sync_tables(cluster, "events", 0)
    assert offsets(cluster) == {}
    damaged = state_of(cluster).shared_objects("events", 0)[1].key
    body = store_of(cluster).objects[damaged].body
    store_of(cluster).objects[damaged].body = body[:-1]
    assert drain(cluster).errors
    sync_tables(cluster, "events", 0)
    assert offsets(cluster) == {p: [(0, 1)] for p in range(PARTITIONS)}
    store_of(cluster).objects[damaged].body = body
    assert not drain(cluster).errors
    sync(cluster)
    assert offsets(cluster) == {p: [(0, 1), (2, 3), (4, 4)][: 3 if p < 3 else 2] for p in range(PARTITIONS)}
