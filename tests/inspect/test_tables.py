"""`status` and `explain` name the same table that is not synced, and what tables keep."""

from __future__ import annotations

from pathlib import Path

import pytest

from l0gc.formatting import size
from l0gc.inspect.explain import explain_key
from l0gc.inspect.overview import TableState
from l0gc.inspect.overview_reader import read_overview
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.topics import delete_topic
from tests.support.memory_store import store_of, topic_in_memory
from tests.support.merge import merge
from tests.support.tables import DAY_MS, HOUR_MS, lift, names, sql_catalog, sync, with_table


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterHandles:
    sql_catalog(monkeypatch, tmp_path)
    made = topic_in_memory(2, 1)
    with_table(made)
    return made


def the_table(cluster: ClusterHandles) -> TableState:
    """Return the table's state in status, and check that status warns of it exactly if it is overdue."""
    seen = read_overview(cluster)
    (held,) = seen.tables
    warned = [(w.detail, w.remedy) for w in seen.warnings if w.cause == "overdue_table"]
    assert warned == ([(held.sentence, held.remedy)] if held.overdue else [])
    return held


def test_a_table_unsynced_for_a_day_is_overdue(cluster: ClusterHandles) -> None:
    never = the_table(cluster)
    assert (never.pins, never.overdue, never.remedy) == (0, True, "l0gc table sync events")
    assert never.sentence.startswith("l0gc.events of topic events was not synced yet, or its pins have ended since")
    lift(cluster)
    for keep_ms, due_ms in ((DAY_MS, 6 * HOUR_MS), (0, 0), (20 * DAY_MS, 5 * DAY_MS)):
        sync(cluster, keep_ms)
        store_of(cluster).clock.ms += due_ms + DAY_MS - HOUR_MS
        assert (the_table(cluster).overdue, the_table(cluster).remedy) == (False, "")
        store_of(cluster).clock.ms += 2 * HOUR_MS
        assert (the_table(cluster).overdue, the_table(cluster).remedy) == (True, "l0gc table sync events")
    sync(cluster)
    assert not the_table(cluster).overdue


def test_bytes_kept_by_table_pins_are_reported(cluster: ClusterHandles) -> None:
    lift(cluster, 4)
    sync(cluster)
    assert the_table(cluster).l1_bytes == 0
    (dropped, *_) = names(cluster)
    merge(cluster)
    store_of(cluster).clock.ms += HOUR_MS
    held, (pin,) = the_table(cluster), read_overview(cluster).pins
    assert held.l1_bytes == pin.l1_bytes > 0
    assert pin.table == held.table
    assert "was synced about 60 min ago and can be read until" in held.sentence
    assert held.sentence.endswith(f"1 pin of it keeps {size(held.l1_bytes)} of dropped L1")
    told = explain_key(cluster, dropped)
    assert told.explanation[1].startswith("Journal 0 has dropped it")
    assert told.explanation[2:] == [f"Table {held.sentence}."]
    assert told.next.startswith("nothing: leave it to l0gc; a vacuum deletes it once")
    delete_topic(cluster, "events")
    gone = the_table(cluster)
    assert gone.sentence.startswith("l0gc.events of deleted topic events was synced")
    assert gone.remedy == explain_key(cluster, dropped).next == "l0gc table drop events"
