"""Everything that a sync leaves behind is removed in the end: pins of lost commits, and metadata files that nothing
names.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitStateUnknownException

from l0gc.errors import AmbiguousWriteError, NotFoundError, StoreTimeoutError
from l0gc.integrations.iceberg import catalog as catalogs
from l0gc.integrations.iceberg import commit, plan
from l0gc.integrations.iceberg.sync import drop_table, sync_tables
from l0gc.keys import L1_DATA
from l0gc.streamlog.cluster import ClusterHandles
from tests.support.interrupting import Interrupt
from tests.support.memory_store import another_process, copy_of, store_of
from tests.support.merge import merge
from tests.support.reconcile import named
from tests.support.tables import DAY_MS, HOUR_MS, lift, sync, table, vacuum_all
from tests.support.vacuum import vacuum

Commit = Callable[..., Any]


def pins_that_nothing_names(cluster: ClusterHandles) -> set[str]:
    notes = [plan.note_of(s.summary.additional_properties) for s in table(cluster).metadata.snapshots if s.summary]
    return cluster.controller.snapshot().pins.keys() - {note.pin for note in notes if note}


def fails(
    cluster: ClusterHandles, monkeypatch: pytest.MonkeyPatch, commits: Callable[[Commit], Commit], minutes: int = 7 * 60
) -> Exception:
    """Run a sync that takes a new pin, with its commit replaced, and return its failure."""
    store_of(cluster).clock.ms += minutes * 60_000
    lift(cluster)
    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", commits(SqlCatalog.commit_table))
        (failure,) = sync_tables(cluster, "events", DAY_MS).failures
    return failure


def before(real: Commit) -> Commit:
    def lost(*arguments: Any) -> Any:
        raise CommitStateUnknownException("the reply is lost")

    return lost


def after(real: Commit) -> Commit:
    def landed(*arguments: Any) -> Any:
        real(*arguments)
        raise CommitStateUnknownException("the reply is lost")

    return landed


@pytest.mark.parametrize("commits", [before, after])
def test_the_next_commit_ends_the_pins_of_commits_that_nobody_knows_about(
    commits: Callable[[Commit], Commit], cluster: ClusterHandles, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        failure = fails(cluster, monkeypatch, commits)
        assert isinstance(failure, AmbiguousWriteError)
        assert "may or may not have committed" in str(failure)
        vacuum_all(cluster)
        assert {s.removeprefix(cluster.store.url) for s in _kept(cluster)} <= set(copy_of(store_of(cluster), L1_DATA))
    assert len(pins_that_nothing_names(cluster)) == (1 if commits is before else 0)
    store_of(cluster).clock.ms += HOUR_MS
    sync(another_process(cluster))
    assert pins_that_nothing_names(cluster) == set()


def test_a_catalog_refusing_commits_does_not_accumulate_pins(
    cluster: ClusterHandles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try takes a pin, and a cluster can have at most a thousand (hazard 32)."""
    for n in range(12):
        failure = fails(cluster, monkeypatch, before, minutes=20 if n else 7 * 60)
        assert isinstance(failure, AmbiguousWriteError)
        assert len(pins_that_nothing_names(cluster)) <= 4


def _kept(cluster: ClusterHandles) -> set[str]:
    there = table(cluster)
    found = [there.scan(snapshot_id=s.snapshot_id).plan_files() for s in there.metadata.snapshots]
    return {t.file.file_path for tasks in found for t in tasks}


def test_the_next_sync_finds_a_late_commit(cluster: ClusterHandles, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, landed = threading.Event(), threading.Event()

    def late(real: Commit) -> Commit:
        def commits(*arguments: Any) -> Any:
            go_on.wait(10)
            real(*arguments)
            landed.set()

        return commits

    with monkeypatch.context() as patch:
        patch.setattr(catalogs, "ANSWER_SECONDS", 0.5)
        assert isinstance(fails(cluster, monkeypatch, late), StoreTimeoutError)
    go_on.set()
    assert landed.wait(10)
    assert (sync(cluster).committed, pins_that_nothing_names(cluster)) == (False, set())


@contextmanager
def meanwhile(method: str, does: Callable[[], object]) -> Iterator[None]:
    """Do something before the next call of the catalog's method."""
    real, left = getattr(SqlCatalog, method), [does]

    def late(*arguments: Any) -> Any:
        if left:
            left.pop()()
        return real(*arguments)

    with mock.patch.object(SqlCatalog, method, late):
        yield
    assert not left


def head_pin(cluster: ClusterHandles) -> str:
    head = table(cluster).current_snapshot()
    assert head is not None
    assert head.summary is not None
    note = plan.note_of(head.summary.additional_properties)
    assert note is not None
    return note.pin


def test_a_sync_does_not_end_another_syncs_pin(cluster: ClusterHandles) -> None:
    """One sync has nothing new to commit and ends an old snapshot, so it does not disturb the other's commit."""
    lift(cluster)
    sync(cluster, keep_ms=HOUR_MS)
    store_of(cluster).clock.ms += HOUR_MS
    lift(cluster)
    sync(cluster, keep_ms=2 * HOUR_MS)
    other, snapshots = another_process(cluster), len(table(cluster).metadata.snapshots)
    running = set[str]()

    def ends_the_old_ones() -> None:
        running.update(pins_that_nothing_names(cluster))
        assert not sync(other, keep_ms=HOUR_MS).added
        assert len(table(other).metadata.snapshots) < snapshots

    with meanwhile("commit_table", ends_the_old_ones):
        assert sync(cluster, keep_ms=DAY_MS).committed
    assert running == {head_pin(cluster)} <= cluster.controller.snapshot().pins.keys()
    vacuum_all(cluster)
    sync(another_process(cluster), keep_ms=DAY_MS)
    assert len(_kept(cluster)) > 0


def test_a_sync_whose_pin_is_deleted_before_its_commit_takes_another(cluster: ClusterHandles) -> None:
    def delete_all() -> None:
        for pin in cluster.controller.snapshot().pins.values():
            cluster.controller.delete_pin(pin.name)

    store_of(cluster).clock.ms += 7 * HOUR_MS
    lift(cluster)
    with meanwhile("commit_table", delete_all):
        sync(cluster)
    assert head_pin(cluster) in cluster.controller.snapshot().pins


def test_the_snapshot_of_a_sync_that_ended_while_another_began_stays(cluster: ClusterHandles) -> None:
    """The other sync has read the pins before it loads the table, which names a new one."""
    other = another_process(cluster)
    store_of(cluster).clock.ms += 7 * HOUR_MS
    lift(cluster)
    made: list[int] = []
    with meanwhile("load_table", lambda: made.append(sync(other).snapshot_id)):
        (synced,) = sync_tables(cluster, "events", DAY_MS).tables
    assert ([synced.snapshot_id], synced.expired) == (made, 0)


def test_a_dead_syncs_ineffective_pin_ends(cluster: ClusterHandles) -> None:
    known = cluster.controller.snapshot().table("events")
    pin = cluster.controller.create_pin(f"{known.pin_prefix}x", 30 * DAY_MS, level_one=True, why="")
    lift(cluster)
    assert sync(cluster).committed
    assert pins_that_nothing_names(cluster) == {pin.name}
    store_of(cluster).clock.ms += HOUR_MS
    lift(cluster)
    assert sync(cluster).committed
    assert pins_that_nothing_names(cluster) == set()
    cluster.controller.create_pin(f"{known.pin_prefix}y", 30 * DAY_MS, level_one=True, why="")
    drop_table(cluster, known)
    assert cluster.controller.snapshot().pins == {}


def test_dropping_a_table_during_its_sync_is_one_sentence(
    cluster: ClusterHandles, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = cluster.controller.snapshot().table("events")

    def dropped(real: Commit) -> Commit:
        def commits(*arguments: Any) -> Any:
            drop_table(another_process(cluster), known)
            return real(*arguments)

        return commits

    failure = fails(cluster, monkeypatch, dropped)
    assert isinstance(failure, NotFoundError)
    assert "has no table l0gc.events" in str(failure)
    assert cluster.controller.snapshot().pins == {}


def test_bytes_kept_by_table_pins_do_not_wait_for_vacuum(cluster: ClusterHandles) -> None:
    lift(cluster, 3)
    sync(cluster)
    merge(cluster)
    store_of(cluster).clock.ms += 2 * DAY_MS
    kept = vacuum(cluster)
    assert (kept.l1.dropped_objects > 0, kept.oldest_dropped_age_s) == (True, None)
    for pin in cluster.controller.snapshot().pins.values():
        cluster.controller.delete_pin(pin.name)
    assert vacuum(cluster).oldest_dropped_age_s == pytest.approx(2 * 86_400, abs=60)


def folder_of(cluster: ClusterHandles) -> Path:
    return Path(table(cluster).location().removeprefix("file://")) / "metadata"


def dated(folder: Path, ms: int) -> None:
    """Set the time of everything in a folder."""
    for file in folder.rglob("*"):
        os.utime(file, (ms / 1000, ms / 1000))


def known_files(cluster: ClusterHandles) -> set[str]:
    return {f.rpartition("/")[2] for f in commit.metadata_files(table(cluster))}


@pytest.mark.parametrize("ahead_days", [2, -2])
def test_the_metadata_of_another_commit_stays_whatever_the_warehouses_clock_says(
    cluster: ClusterHandles, ahead_days: int
) -> None:
    """By the bucket's clock, a new file can be days old, or dated the day after tomorrow."""
    store_of(cluster).clock.ms = int(time.time() * 1000) + ahead_days * DAY_MS
    other, real, left = another_process(cluster), SqlCatalog.commit_table, [True]

    def followed(*arguments: Any) -> Any:
        response = real(*arguments)
        if left:
            left.clear()
            lift(other)
            sync(other)
        return response

    lift(cluster)
    with mock.patch.object(SqlCatalog, "commit_table", followed):
        assert sync(cluster, keep_ms=0).expired
    assert sync(cluster).files == 6


def test_unreferenced_metadata_files_end_after_a_day(cluster: ClusterHandles, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, clock = folder_of(cluster), store_of(cluster).clock

    def dies(real: Commit) -> Commit:
        def commits(*arguments: Any) -> Any:
            raise Interrupt

        return commits

    with pytest.raises(Interrupt):
        fails(cluster, monkeypatch, dies)
    orphans = {f.name for f in folder.iterdir()} - known_files(cluster)
    assert len(orphans) == 2  # a manifest and a manifest list
    (folder / "00007-of-a-commit-that-was-lost.metadata.json").touch()
    theirs = {"notes.txt", "version-hint.text", "x.parquet", "statistics.puffin", "m0.avro", "snap-1-0-x.avro"}
    for name in theirs - {"snap-1-0-x.avro"}:
        (folder / name).touch()
    (folder / "snap-1-0-x.avro").mkdir()
    (folder / "snap-1-0-x.avro" / "snap-1-0-x.avro").touch()
    (folder.parent / "snap-1-0-x.avro").touch()

    for hours in (1, 22):  # the orphans could belong to a running sync
        clock.ms += hours * HOUR_MS
        merge(cluster)
        lift(cluster)
        sync(cluster, keep_ms=0)
    assert orphans <= {f.name for f in folder.iterdir()}
    dated(folder, int(time.time() * 1000) - 25 * HOUR_MS)
    for _ in range(3):
        clock.ms += 5 * HOUR_MS
        lift(cluster)
        sync(cluster, keep_ms=0)
    assert {f.name for f in folder.iterdir()} == theirs | known_files(cluster)
    assert [f.name for f in (folder / "snap-1-0-x.avro").iterdir()] == ["snap-1-0-x.avro"]

    (folder / "snap-2-0-x.avro").touch()
    drop_table(cluster, cluster.controller.snapshot().table("events"))
    assert {f.name for f in folder.iterdir()} == theirs
    assert (folder.parent / "snap-1-0-x.avro").exists()
    assert set(copy_of(store_of(cluster), L1_DATA)) >= named(cluster, "events")
