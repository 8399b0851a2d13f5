"""Lost or damaged objects: the reader names them, and returns no other records in their place."""

from __future__ import annotations

from pathlib import Path

import pytest

from l0gc.errors import CorruptObjectError, StoreError
from l0gc.keys import PartitionId
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.journal.row_list import RowList
from l0gc.streamlog.journal.topic import l1_key
from tests.streamlog.test_reader import new_cluster, places, put, read, state_of
from tests.support.memory_store import another_process, failing, store_of
from tests.support.reconcile import files, reconcile


def some_object(cluster: ClusterHandles, level: str, at: int) -> str:
    """Return the key of the object with the record at offset `at` of partition 1."""
    topic = cluster.controller.snapshot().topic("events")
    if level == "level_one/":
        return next(
            l1_key(topic.id(1), f)
            for f in files(cluster, "events", 1)
            if f.base_offset <= at <= f.last_offset
        )  # fmt: skip
    return next(e.key for e in state_of(cluster).extents(1) if e.base_offset <= at <= e.last_offset)


@pytest.mark.parametrize(("level", "at"), [("level_zero/", 12), ("level_one/", 0)])
def test_a_missing_object_the_journal_needs_is_a_loss(tmp_path: Path, level: str, at: int, window_bytes: int) -> None:
    cluster = new_cluster(tmp_path, partitions=2, reconciled=12, unreconciled=5)
    key = some_object(cluster, level, at)
    del store_of(cluster).objects[key]
    records = places(read(another_process(cluster), None, 1))
    assert [next(records) for _ in range(at)] == [(1, o) for o in range(at)]  # the records before it are read
    with pytest.raises(CorruptObjectError, match=f"{key} does not exist, though .*events/1 .* record {at}; restore"):
        next(records)


@pytest.mark.parametrize(("level", "at"), [("level_zero/", 12), ("level_one/", 0)])
@pytest.mark.parametrize("damage", ["cut", "empty", "garbage"])
def test_an_object_that_is_damaged_is_named(
    tmp_path: Path, level: str, at: int, damage: str, window_bytes: int
) -> None:
    cluster = new_cluster(tmp_path, partitions=2, reconciled=12, unreconciled=5)
    key = some_object(cluster, level, at)
    o = store_of(cluster).objects[key]
    o.body = {"cut": o.body[:-20], "empty": b"", "garbage": bytes(len(o.body))}[damage]
    records = places(read(another_process(cluster), None, 1))
    with pytest.raises(CorruptObjectError, match=key):
        list(records)


def test_a_store_that_fails_is_no_damage(tmp_path: Path) -> None:
    cluster = new_cluster(tmp_path, partitions=2, unreconciled=5)
    store_of(cluster).fault = failing(StoreError("no"), "get", "level_zero/")
    with pytest.raises(StoreError, match=r"^no$"):
        list(read(cluster))


@pytest.mark.parametrize("wrong", ["fewer", "other"])
def test_an_l1_object_with_other_records_than_the_journal_says_is_named(tmp_path: Path, wrong: str) -> None:
    cluster = new_cluster(tmp_path, reconciled=12)
    other = new_cluster(tmp_path, reconciled=7 if wrong == "fewer" else 3)
    if wrong == "other":
        put(other, tmp_path, 3, 12)
        reconcile(other)

    def id_of(c: ClusterHandles) -> PartitionId:
        return c.controller.snapshot().topic("events").id(0)

    key = l1_key(id_of(cluster), files(cluster, "events", 0)[0])
    file = files(other, "events", 0)[-1]
    store_of(cluster).objects[key] = store_of(other).objects[l1_key(id_of(other), file)]
    state = state_of(cluster)
    rows = state.l1.copy()
    rows["bytes"][0] = file.bytes
    state.listed = RowList(rows)
    with pytest.raises(CorruptObjectError, match=key):
        list(read(cluster))
