"""A topic with a table, in memory and in a catalog in SQLite."""

from __future__ import annotations

from pathlib import Path

import pytest

from l0gc.streamlog.cluster import Handles
from tests.support.memory_store import topic_in_memory
from tests.support.tables import lift, sql_catalog, sync, with_table


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Handles:
    """A cluster with a table of `events`, which has been synced once."""
    sql_catalog(monkeypatch, tmp_path)
    made = topic_in_memory(2, 1)
    with_table(made)
    lift(made)
    assert sync(made).added == 2
    return made
