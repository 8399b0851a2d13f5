"""A table names what the journals list, once each, even if runs merge, vacuum, sync or die in between (hazard 37)."""

from __future__ import annotations

import json
import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestEntry, ManifestFile
from pyiceberg.table import Table

from l0gc.api import groups
from l0gc.errors import (
    ClusterMismatchError,
    CorruptObjectError,
    NotFoundError,
    SafetyError,
    UsageError,
)
from l0gc.integrations.iceberg import catalog as catalogs
from l0gc.integrations.iceberg import commit, plan
from l0gc.integrations.iceberg import sync as syncing
from l0gc.integrations.iceberg.sync import create_table, drop_table, sync_tables
from l0gc.keys import JOURNALS, L1_DATA, PUBLISHED_COPY, PUBLISHED_WATERMARK, journal_log
from l0gc.runtime import Runtime
from l0gc.storage.entry import Place
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import Pin, Topic, TopicTable
from l0gc.streamlog.delete_records import delete_records
from l0gc.streamlog.tables import PINS_FOR_EACH_LIFE, UNSYNCED_MS, table_of
from l0gc.streamlog.topics import delete_topic
from tests.integrations.iceberg import minutes
from tests.support.interrupting import Interrupt
from tests.support.memory_store import MemoryStore, another_process, copy_of, memory_cluster, put_back, store_of
from tests.support.merge import merge
from tests.support.reconcile import named, put, reconcile
from tests.support.tables import DAY_MS, HOUR_MS, assert_named, lift, names, sync, table, vacuum_all, with_table


def test_a_sync_is_one_snapshot_and_another_one_commits_nothing(cluster: ClusterHandles) -> None:
    lift(cluster, 3)
    merged = merge(cluster)
    done = sync(cluster)
    assert (done.removed, done.added, done.committed) == (2, merged.objects_after, True)
    assert len(table(cluster).metadata.snapshots) == 2
    again = sync(cluster)
    assert (again.committed, again.snapshot_id) == (False, done.snapshot_id)


def test_vacuum_keeps_objects_of_kept_snapshots(cluster: ClusterHandles) -> None:
    lift(cluster, 3)
    first = sync(cluster).snapshot_id
    read = set(names(cluster, first))
    merge(cluster)
    vacuum_all(cluster)
    sync(cluster)
    vacuum_all(cluster)
    stored = set(copy_of(store_of(cluster), L1_DATA))
    assert read <= stored
    for _ in range(2):
        store_of(cluster).clock.ms += DAY_MS + HOUR_MS
        sync(cluster)
    vacuum_all(cluster)
    assert set(copy_of(store_of(cluster), L1_DATA)) == named(cluster, "events")
    assert first not in {s.snapshot_id for s in table(cluster).metadata.snapshots}


def test_only_a_pin_with_a_full_lifetime_is_fresh() -> None:
    """Another sync may have created the pin for snapshots that are kept for a shorter time."""
    note = plan.SnapshotNote("c", "memory:/", 1, {}, 0, "pin", 0, 0)
    pin = Pin("pin", 1, 1, 0, plan.pin_ms(DAY_MS), level_one=True, why="", ends=[])
    assert plan.is_fresh(note, {"pin": pin}, 1, DAY_MS)
    assert not plan.is_fresh(note, {"pin": pin}, 1, DAY_MS + HOUR_MS)
    assert not plan.is_fresh(note, {}, 1, DAY_MS)


@pytest.mark.parametrize("keep_ms", [0, HOUR_MS, DAY_MS, 100 * DAY_MS])
def test_a_pin_outlives_the_last_snapshot_that_names_it(keep_ms: int) -> None:
    """The snapshot took the pin while it was fresh, was replaced by the next sync, and is kept from then on."""
    note, life_ms = plan.SnapshotNote("c", "memory:/", 1, {}, 0, "pin", 0, 0), plan.pin_ms(keep_ms)
    pin = Pin("pin", 1, 1, 0, life_ms, level_one=True, why="", ends=[])
    last_ms = life_ms - keep_ms - UNSYNCED_MS
    assert not plan.is_fresh(note, {"pin": pin}, last_ms + 1, keep_ms)


def test_a_pin_that_nobody_names_ends_an_hour_after_its_creation() -> None:
    pins = {"pin": Pin("pin", 1, 1, 0, DAY_MS, level_one=True, why="", ends=[])}
    assert plan.unused_pins(pins, [], [], HOUR_MS - 1) == []
    assert plan.unused_pins(pins, [], [], HOUR_MS) == ["pin"]


def test_a_snapshot_with_a_tag_does_not_end(cluster: ClusterHandles) -> None:
    lift(cluster)
    tagged = sync(cluster).snapshot_id
    table(cluster).manage_snapshots().create_tag(tagged, "audit").commit()
    for _ in range(3):
        store_of(cluster).clock.ms += DAY_MS + HOUR_MS
        lift(cluster)
        last = sync(cluster)
    assert last.expired > 0
    assert tagged in {s.snapshot_id for s in table(cluster).metadata.snapshots}


def test_a_snapshot_is_followed_by_the_first_that_took_its_place() -> None:
    """Two syncs, or a rollback and a sync, can leave a snapshot with several successors."""
    times_ms = {1: 0, 2: 100, 3: 5000}
    notes = {at: plan.SnapshotNote("c", "memory:/", 1, {}, time_ms, "pin", 0, 0) for at, time_ms in times_ms.items()}
    for order in ((1, 2, 3), (3, 2, 1)):
        ended = plan.ended_snapshots(
            {at: notes[at] for at in order}, {1: None, 2: 1, 3: 1}, 3, ["pin"], now_ms=5050, keep_ms=1000
        )
        assert ended == {1, 2}


def test_a_table_synced_each_minute_keeps_few_snapshots() -> None:
    minute, slot_ms, most = 60_000, DAY_MS // plan.SLOTS + 1, 0
    kept, parents = dict[int, plan.SnapshotNote](), dict[int, int | None]()
    for now_ms in range(minute, 2 * DAY_MS + HOUR_MS, minute):
        ended = plan.ended_snapshots(kept, parents, now_ms - minute, ["pin"], now_ms=now_ms, keep_ms=DAY_MS)
        for at in ended:
            del kept[at]
        kept[now_ms] = plan.SnapshotNote("c", "memory:/", 1, {}, now_ms, "pin", 0, 0)
        parents[now_ms] = now_ms - minute if now_ms > minute else None
        most = max(most, len(kept))
        if now_ms % (7 * minute):
            continue
        recent = [at for at in kept if now_ms - at <= HOUR_MS]
        assert len(recent) == min(now_ms, HOUR_MS) // minute + (now_ms > HOUR_MS)
        slots = {at // slot_ms for at in kept}
        assert slots >= set(range((max(now_ms - DAY_MS, 0)) // slot_ms + 1, now_ms // slot_ms))
    assert 150 < most <= plan.SLOTS + 60 + plan.THINNED + 4


@pytest.mark.thorough
def test_the_metadata_of_a_table_that_is_synced_each_minute_stays_small() -> None:
    """`python -m tests.integrations.iceberg.minutes 10000` runs the same for a week of minutes."""
    left = minutes.main(130)
    assert left.snapshots <= 110
    assert left.metadata_bytes < 100_000


def test_a_snapshot_between_others_ends_and_its_metadata_with_it(
    cluster: ClusterHandles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "THINNED", 3)
    folder = Path(table(cluster).location().removeprefix("file://"), "metadata")
    expired = deleted = 0
    for n in range(14):
        store_of(cluster).clock.ms += HOUR_MS // 12 if n < 12 else HOUR_MS
        lift(cluster)
        done = sync(cluster)
        expired, deleted = expired + done.expired, deleted + done.metadata_deleted
    there = table(cluster)
    assert (expired, len(there.metadata.snapshots)) == (15 - len(there.metadata.snapshots), 15 - expired)
    assert expired >= 6
    assert deleted >= expired
    for s in there.metadata.snapshots:
        assert len(list(there.scan(snapshot_id=s.snapshot_id).plan_files())) > 0
    named = {Path(path).name for path in commit.metadata_files(there)}
    assert {f.name for f in folder.iterdir() if not f.name.startswith(".")} - named == set()


@pytest.mark.parametrize("lifted", [0, 1], ids=["ends a snapshot", "adds one"])
def test_a_sync_is_interrupted_only_once_its_files_are_committed(
    cluster: ClusterHandles, monkeypatch: pytest.MonkeyPatch, lifted: int
) -> None:
    for passed_ms in (0, HOUR_MS - 60_000):
        store_of(cluster).clock.ms += passed_ms
        lift(cluster)
        last = sync(cluster, HOUR_MS).snapshot_id
    store_of(cluster).clock.ms += 120_000
    lift(cluster, lifted)
    folder, held = Path(table(cluster).location().removeprefix("file://"), "metadata"), threading.Event()
    new_output = PyArrowFileIO.new_output

    def output(io: PyArrowFileIO, location: str) -> Any:
        assert held.is_set()
        return new_output(io, location)

    @contextmanager
    def writing() -> Iterator[threading.Event]:
        before = set(folder.iterdir())
        held.set()
        yield threading.Event()
        held.clear()
        written = {f.name for f in folder.iterdir() if f not in before and not f.name.startswith(".")}
        assert written
        assert written <= {Path(path).name for path in commit.metadata_files(table(cluster))}
        raise KeyboardInterrupt

    monkeypatch.setattr(PyArrowFileIO, "new_output", output)
    monkeypatch.setattr(cluster, "writing", writing)
    with pytest.raises(KeyboardInterrupt):
        sync_tables(cluster, "events", HOUR_MS)
    assert_named(cluster)
    assert (table(cluster).metadata.current_snapshot_id != last) == bool(lifted)
    assert not sync(cluster, HOUR_MS).committed


def test_a_snapshot_whose_pin_has_ended_is_followed_and_ends(cluster: ClusterHandles) -> None:
    (pin,) = cluster.controller.snapshot().pins.values()
    assert pin.topic == cluster.controller.snapshot().topic("events").revision
    first = sync(cluster).snapshot_id
    cluster.controller.delete_pin(pin.name)
    done = sync(cluster)
    assert (done.committed, done.expired, done.added) == (True, 1, 0)
    assert [s.snapshot_id for s in table(cluster).metadata.snapshots] == [done.snapshot_id] != [first]


def test_only_manifests_of_affected_ages_are_rewritten(
    cluster: ClusterHandles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "MANIFEST_FILES", 4)
    lift(cluster, 40)
    sync(cluster)
    before = {m.manifest_path for m in commit.manifests_of(table(cluster), table(cluster).current_snapshot())}
    assert len(before) == 21
    delete_records(cluster, "events", before_offset=3)
    lift(cluster)
    read: list[ManifestFile] = []

    def counted(there: Table, some: Sequence[ManifestFile]) -> list[commit.Entries]:
        read.extend(some)
        return commit.entries_of(there, some)

    with monkeypatch.context() as patch:
        patch.setattr(syncing, "entries_of", counted)
        done = sync(cluster)
    assert (done.added, done.removed, len(read)) == (2, 6, commit.READ_FIRST)
    after = {m.manifest_path for m in commit.manifests_of(table(cluster), table(cluster).current_snapshot())}
    assert (len(before - after), len(after - before)) == (2, 1)


def test_syncs_in_one_epoch_name_each_object_once(cluster: ClusterHandles) -> None:
    """In this case the epochs of objects do not show which of them a snapshot has."""
    for n in range(3):
        put(cluster, "events", {1 - n % 2: [b"%d" % n]})
        reconcile(cluster)
        sync(cluster)
    delete_records(cluster, "events", before_offset=1)
    put(cluster, "events", {0: [b"more"]})
    reconcile(cluster)
    done = sync(cluster)
    assert (done.added, done.removed) == (1, 2)


def test_a_table_naming_foreign_objects_is_refused(cluster: ClusterHandles) -> None:
    (path, *_), url = sorted(named(cluster, "events")), cluster.store.url
    assert commit.name_in(f"{url}{path}", url, "t")
    for other in (path, f"s3://another/{path}", f"{url}{path}x", f"{url}level_zero/data/{path[15:60]}"):
        with pytest.raises(SafetyError, match="another program wrote it"):
            commit.name_in(other, url, "t")


@pytest.mark.thorough
@pytest.mark.slow
def test_fifty_rounds_leave_a_bounded_number_of_everything(cluster: ClusterHandles) -> None:
    for n in range(50):
        lift(cluster)
        store_of(cluster).clock.ms += 2 * HOUR_MS
        if n % 7 == 6:
            merge(cluster)
            vacuum_all(cluster)
        sync(cluster)
    there = table(cluster)
    assert len(there.metadata.snapshots) <= 14
    assert len(commit.manifests_of(there, there.current_snapshot())) < 2 * commit.SMALL_MANIFESTS
    folder = Path(there.location().removeprefix("file://")) / "metadata"
    written = {f"file://{f}" for f in folder.iterdir()}
    assert written == commit.metadata_files(there)
    assert len(cluster.controller.snapshot().pins) <= PINS_FOR_EACH_LIFE + 2
    drop_table(cluster, cluster.controller.snapshot().table("events"))
    assert (list(folder.iterdir()), cluster.controller.snapshot().pins) == ([], {})
    assert set(copy_of(store_of(cluster), L1_DATA)) >= named(cluster, "events")


# -- killed runs, and two runs at once ------------------------------------------------------------------------------------


class Dying:
    """Counts the calls to the catalog and the warehouse, and ends the run before or after the `last` of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, last: int, when: str) -> None:
        self.seen, self._last, self._when = 0, last, when
        for owner, name in (
            (SqlCatalog, "load_table"),
            (SqlCatalog, "commit_table"),
            (PyArrowFileIO, "new_output"),
            (PyArrowFileIO, "new_input"),
            (PyArrowFileIO, "delete"),
        ):
            monkeypatch.setattr(owner, name, self._dies(getattr(owner, name)))

    def _dies(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            self.seen += 1
            here = self.seen == self._last
            if here and self._when == "before":
                raise Interrupt
            result = call(*arguments, **named)
            if here:
                raise Interrupt
            return result

        return called


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_run_that_died_anywhere_is_made_good_by_the_next(
    when: str, cluster: ClusterHandles, monkeypatch: pytest.MonkeyPatch
) -> None:
    for last in range(1, 60):
        lift(cluster, 2)
        if last % 2:
            merge(cluster)
        store_of(cluster).clock.ms += 5 * HOUR_MS
        with monkeypatch.context() as patch:
            dying = Dying(patch, last, when)
            try:
                sync_tables(cluster, "events", DAY_MS)
            except Interrupt:
                pass
            else:
                if dying.seen < last:
                    break
        vacuum_all(cluster)
        sync(another_process(cluster, seed=100 + last))
    assert 10 < last < 59


def test_of_two_at_once_one_decides_anew(cluster: ClusterHandles, monkeypatch: pytest.MonkeyPatch) -> None:
    lift(cluster)
    real, other = plan.check_not_ahead, [another_process(cluster)]

    def meanwhile(*arguments: Any) -> None:
        if other:
            sync(other.pop())
        real(*arguments)

    monkeypatch.setattr(plan, "check_not_ahead", meanwhile)
    lift(cluster)
    done = sync(cluster)
    assert done.added == 0
    assert len(table(cluster).metadata.snapshots) == 2


@pytest.mark.parametrize("what", ["fewer", "another number of records", "another partition"])
def test_a_manifest_that_is_read_badly_is_not_written_on(
    what: str, cluster: ClusterHandles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Avro has no checksum, and a sync copies what it reads of a manifest into the next one (hazard 34)."""
    lift(cluster, 3)
    sync(cluster)
    merge(cluster)
    real, times = ManifestFile.fetch_manifest_entry, [1]

    def fetch(self: ManifestFile, *args: Any, **options: Any) -> list[ManifestEntry]:
        found: list[ManifestEntry] = real(self, *args, **options)
        if times[0]:
            times[0] -= 1
            if what == "fewer":
                return found[1:]
            if what == "another partition":
                found[0].data_file.partition[0] += 1
            else:
                found[0].data_file[4] += 1
        return found

    monkeypatch.setattr(ManifestFile, "fetch_manifest_entry", fetch)
    assert sync(cluster).committed
    assert times == [0]
    lift(cluster, 4)
    assert merge(cluster).objects_after
    times[0] = 1_000
    before = table(cluster).metadata_location
    with pytest.raises(CorruptObjectError, match="sync again, or restore it"):
        raise sync_tables(cluster, "events", DAY_MS).failures[0]
    assert table(cluster).metadata_location == before


# -- refusals -------------------------------------------------------------------------------------------------------------


def test_a_table_of_another_owner_or_earlier_topic_is_refused(
    cluster: ClusterHandles, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = copy_of(store_of(cluster))
    known = cluster.controller.snapshot().table("events")
    there = table(cluster)
    with pytest.raises(ClusterMismatchError, match="revision 99"):
        catalogs.load_table(
            there.catalog, TopicTable("events", 99, "lake", known.table), there.properties[catalogs.OWNER], "memory:/"
        )
    with pytest.raises(ClusterMismatchError, match="belongs to cluster"):
        catalogs.load_table(there.catalog, known, "another", "memory:/")
    there.catalog.create_table("l0gc.theirs", catalogs.SCHEMA)
    with pytest.raises(UsageError, match="did not create it"):
        catalogs.load_table(there.catalog, TopicTable("events", 1, "lake", "l0gc.theirs"), "x", "memory:/")
    with there.update_schema() as change:
        change.rename_column("epoch", "other")
    with pytest.raises(SafetyError, match="other columns"):
        sync(cluster)
    with there.update_schema() as change:
        change.rename_column("other", "epoch")
    there.delete("offset >= 0")
    with pytest.raises(SafetyError, match="another program has written"):
        sync(cluster)
    assert {k: v for k, v in copy_of(store_of(cluster)).items() if k in before} == before


def copied(cluster: ClusterHandles) -> ClusterHandles:
    """Return a restored copy of the cluster, in another bucket, with the same catalog in its configuration."""
    store = store_of(cluster)
    other = MemoryStore(store.clock)
    other.url = "memory:copy/"
    put_back(other, "", copy_of(store))
    return ClusterHandles(other, Runtime(store.clock, random.Random(99)))


def test_a_restored_copy_of_a_cluster_leaves_productions_table_as_it_is(cluster: ClusterHandles) -> None:
    lift(cluster)
    sync(cluster)
    copy, before = copied(cluster), (table(cluster).metadata_location, names(cluster))
    lift(copy)
    for refused in (lambda: sync(copy), lambda: with_table(copy), lambda: drop_table(copy, copied_table(copy))):
        with pytest.raises(
            ClusterMismatchError, match=r"belongs to the cluster at memory:/, and this one, at memory:copy/"
        ):
            refused()
    assert (table(cluster).metadata_location, names(cluster)) == before
    lift(cluster)
    assert sync(cluster).committed, "production goes on"
    drop_table(copy, copied_table(copy), forget=True)
    assert copy.controller.snapshot().tables == {}
    assert not [p for p in copy.controller.snapshot().pins if p.startswith("table-")]
    create_table(copy, TopicTable("events", copied_topic(copy).revision, "lake", "l0gc.of_the_copy"))
    assert sync(copy).files


def copied_table(copy: ClusterHandles) -> TopicTable:
    return copy.controller.snapshot().table("events")


def copied_topic(copy: ClusterHandles) -> Topic:
    return copy.controller.snapshot().topic("events")


def test_two_clusters_do_not_share_a_table_of_one_name(cluster: ClusterHandles) -> None:
    lift(cluster)
    other = memory_cluster(MemoryStore(store_of(cluster).clock), seed=7)
    store_of(other).url = "memory:other/"
    other.controller.create_topic("events", 2)
    with pytest.raises(ClusterMismatchError, match="belongs to cluster"):
        with_table(other)
    assert other.controller.snapshot().tables == {}


def test_a_table_of_a_regrown_journal_is_refused(cluster: ClusterHandles) -> None:
    """The table is refused even if nothing published shows that the journal was set back."""
    before = copy_of(store_of(cluster), JOURNALS)
    lift(cluster)
    sync(cluster)
    was = table(cluster).metadata_location
    put_back(store_of(cluster), JOURNALS, before)
    store_of(cluster).delete([PUBLISHED_WATERMARK, PUBLISHED_COPY])
    restored = another_process(cluster)
    lift(restored, 9)
    with pytest.raises(SafetyError, match="that log does not have that entry"):
        sync(restored)
    assert table(cluster).metadata_location == was


def point(cluster: ClusterHandles, metadata_location: str) -> None:
    """Let the table's entry name this file, as a user with rights on the catalog alone could."""
    engine = table(cluster).catalog.engine  # type: ignore[attr-defined]  # SQLite's
    with engine.begin() as sql:
        sql.exec_driver_sql(
            "UPDATE iceberg_tables SET metadata_location = ? WHERE table_name = 'events'", (metadata_location,)
        )


@pytest.mark.parametrize("does", ["all of it", "its log"])
def test_a_table_pointing_at_foreign_metadata_stays_refused(cluster: ClusterHandles, does: str) -> None:
    there, known = table(cluster), cluster.controller.snapshot().table("events")
    theirs = there.catalog.create_table(
        "l0gc.theirs", catalogs.SCHEMA, partition_spec=catalogs.SPEC, properties=there.properties
    )
    for n in range(3):
        with theirs.transaction() as change:
            change.set_properties(n=str(n))
    folder = Path(theirs.location().removeprefix("file://")) / "metadata"
    files = {f.name for f in folder.iterdir()}
    pointed = theirs.metadata_location
    if does == "its log":
        metadata = json.loads(Path(there.metadata_location.removeprefix("file://")).read_text())
        log = [{"metadata-file": f"file://{folder}/{name}", "timestamp-ms": 1} for name in sorted(files)]
        made = Path(there.location().removeprefix("file://")) / "metadata" / "00009-x.metadata.json"
        made.write_text(json.dumps({**metadata, "metadata-log": log}))
        pointed = f"file://{made}"
    point(cluster, pointed)
    store_of(cluster).clock.ms += 2 * DAY_MS
    for _ in range(catalogs.VERSIONS_KEPT + 1):
        lift(cluster)
        (failure,) = sync_tables(cluster, "events", 0).failures
        assert isinstance(failure, SafetyError)
        assert "was created at" in str(failure)
        assert "nothing was changed or deleted" in str(failure)
    with pytest.raises(SafetyError, match="--forget"):
        drop_table(cluster, known)
    assert {f.name for f in folder.iterdir()} == files


def test_a_table_that_knows_more_than_its_journal_is_refused(cluster: ClusterHandles) -> None:
    before = copy_of(store_of(cluster), journal_log(0))
    lift(cluster)
    sync(cluster)
    put_back(store_of(cluster), journal_log(0), before)
    restored = another_process(cluster)
    with pytest.raises(SafetyError, match=r"set back|went back|older|behind"):
        sync(restored)
    note = plan.SnapshotNote("c", "memory:/", 1, {0: Place(7, "id")}, 0, "", 0, 0)
    with pytest.raises(SafetyError, match="as of offset 7, but that log does not have that entry"):
        plan.check_not_ahead(note, lambda journal, place: False, TopicTable("events", 1, "lake", "l0gc.events"))


def test_a_deleted_topics_table_stays_until_it_is_dropped(cluster: ClusterHandles) -> None:
    was = names(cluster)
    delete_topic(cluster, "events")
    with pytest.raises(NotFoundError, match="stays as it is until"):
        sync(cluster)
    cluster.controller.create_topic("events", 2)
    with pytest.raises(NotFoundError, match="was deleted"):
        sync(cluster)
    every = sync_tables(cluster, None, 0)
    assert every.problem is None
    assert every.tables == []
    assert len(every.warnings) == 1
    assert "until l0gc table drop events (with --forget the catalog keeps it)" in every.warnings[0]
    assert names(cluster) == was
    drop_table(cluster, cluster.controller.snapshot().table("events"))
    with_table(cluster)
    lift(cluster)
    sync(cluster)


def test_what_a_catalogs_plugin_raises_keeps_no_other_table_from_being_synced(
    cluster: ClusterHandles, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.controller.create_topic("others", 1)
    create_table(cluster, table_of(cluster.controller.snapshot().topic("others"), "lake", None))
    real = SqlCatalog.load_table

    def load(self: SqlCatalog, name: str) -> Table:
        if name == "l0gc.events":
            raise LookupError("the plugin has a bug")
        return real(self, name)

    monkeypatch.setattr(SqlCatalog, "load_table", load)
    result = sync_tables(cluster, None, DAY_MS)
    assert [t.topic for t in result.tables] == ["others"]
    assert result.errors == ["topic events: unexpected LookupError: the plugin has a bug"]
    assert result.problem is not None


def test_bad_input_is_one_sentence(cluster: ClusterHandles) -> None:
    known = cluster.controller.snapshot().table("events")
    with pytest.raises(UsageError, match=r"namespace\.name"):
        cluster.controller.create_table(TopicTable("events", known.revision, "lake", "plain"))
    with pytest.raises(UsageError, match="cannot be kept"):
        sync_tables(cluster, "events", 400 * DAY_MS)


def test_only_metadata_files_of_the_table_are_ever_deleted(cluster: ClusterHandles) -> None:
    there, url = table(cluster), cluster.store.url
    inside = f"{there.location()}/metadata/"
    for path in (
        f"{url}{names(cluster)[0]}",
        f"{inside}x.parquet",
        f"{inside}../data/snap-1.avro",
        "file:///etc/passwd",
    ):
        with pytest.raises(SafetyError, match="was not deleted"):
            commit.end_metadata(there, [path], url)
    with pytest.raises(SafetyError, match="was not deleted"):
        commit.end_metadata(there, [f"{inside}snap-1-0-x.avro"], there.location().removesuffix("l0gc/events"))


def test_without_pyiceberg_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("l0gc.integrations.iceberg.sync")
    for module in [m for m in sys.modules if m.startswith(("pyiceberg", "l0gc.integrations.iceberg."))]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    with pytest.raises(UsageError, match=r"pip install '\.\[iceberg\]' in a checkout"):
        groups._syncing()
