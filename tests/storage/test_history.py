"""Versions, delete markers and unfinished uploads, on SeaweedFS and on moto, which takes three times the CPU."""

from __future__ import annotations

import random
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest

from l0gc.collect.deletion import Deletable
from l0gc.collect.gc_steps import GcNote
from l0gc.collect.history import find_in_runs, list_runs, show_run, undelete, who_deleted
from l0gc.collect.record import (
    DELETED,
    FAILED,
    PLANNED,
    ObjectTotals,
    RecordedObject,
    RunRecord,
    read_gc_note,
    write_gc_note,
)
from l0gc.collect.sweep import SweepResult, SweepRun
from l0gc.errors import UsageError
from l0gc.inspect.overview_reader import deleted_since, read_overview
from l0gc.keys import KeyLayout
from l0gc.operations import Sweep
from l0gc.runtime import Runtime
from l0gc.storage.config import StoreConfig
from l0gc.storage.objectstore import ENABLED, OFF, SUSPENDED, VersionedKey, VersionPage
from l0gc.storage.parallel import Parallel
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.cluster import ClusterHandles
from tests.support.memory_store import publish_m

M = 3
EPOCHS = 5


@pytest.fixture
def moto_store(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATESTACCESSKEY000")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    return S3Store(StoreConfig.from_url(f"s3://bucket-{uuid.uuid4()}/a/prefix", endpoint_url=endpoint))


@pytest.fixture(params=[pytest.param("moto", marks=pytest.mark.thorough), pytest.param("weed", marks=pytest.mark.weed)])
def any_store(request: pytest.FixtureRequest) -> S3Store:
    """Return a store on either server; its bucket is not created yet."""
    found = request.getfixturevalue("moto_store" if request.param == "moto" else "store")
    assert isinstance(found, S3Store)
    return found


def set_versioning(store: S3Store, status: str) -> None:
    store.client.put_bucket_versioning(
        Bucket=store.config.bucket,
        VersioningConfiguration={"Status": status},  # type: ignore[typeddict-item]
    )


def a_cluster(store: S3Store, versioning: str = "", objects: int = 2) -> ClusterHandles:
    """Create a bucket with a cluster at epoch 5, with objects at every epoch of its two shards and M = 3."""
    store.create_bucket()
    if versioning:
        set_versioning(store, versioning)
    cluster = ClusterHandles(store, Runtime(random=random.Random(1)))
    cluster.controller.bootstrap(shards=2, journals=1)
    for _ in range(EPOCHS):
        cluster.controller.advance()
    for shard in range(2):
        for epoch in range(EPOCHS):
            for n in range(objects):
                store.put(cluster.controller.layout().format(shard, epoch, name_of(n)), b"x" * 10)
    publish_m(cluster, M)
    return cluster


def name_of(n: int) -> str:
    return f"{n:08x}-0000-4000-8000-000000000000"


def there(store: S3Store) -> set[str]:
    return {k for p in store.scan("level_zero/data/") for k in p.keys}


def garbage_of(keys: set[str]) -> set[str]:
    layout = KeyLayout(shards=2)
    return {k for k in keys if (p := layout.parse(k)) and p.epoch <= M}


def versions(store: S3Store) -> list[tuple[str, bool, bool]]:
    """Return each version's key, whether it is a delete marker, and whether it is the latest."""
    return [
        (k, m, latest)
        for p in store.versions("level_zero/data/")
        for k, m, latest in zip(p.keys, p.markers, p.latest, strict=True)
    ]


# -- reports of a bucket --------------------------------------------------------------------------------------------------


def test_a_bucket_says_whether_it_keeps_versions(any_store: S3Store) -> None:
    any_store.create_bucket()
    assert any_store.versioning() == OFF
    set_versioning(any_store, "Enabled")
    assert any_store.versioning() == ENABLED
    set_versioning(any_store, "Suspended")
    assert any_store.versioning() == SUSPENDED


def test_versions_are_listed_in_key_order_relative_to_the_prefix(any_store: S3Store) -> None:
    any_store.create_bucket()
    set_versioning(any_store, "Enabled")
    for key in ("x/a", "x/b", "x/c", "y/d"):
        any_store.put(key, b"1")
        any_store.put(key, b"22")
    any_store.delete(["x/b"])
    rows = [(k, m, s) for p in any_store.versions("x/") for k, m, s in zip(p.keys, p.markers, p.sizes, strict=True)]
    assert sorted(rows) == sorted(
        [("x/a", False, 1), ("x/a", False, 2), ("x/b", True, 0), ("x/b", False, 1), ("x/b", False, 2),
         ("x/c", False, 1), ("x/c", False, 2)]
    )  # fmt: skip
    assert [k for k, _, _ in rows] == sorted(k for k, _, _ in rows)
    after = [k for p in any_store.versions("x/", "x/b") for k in p.keys]
    assert [k for k in after if k != "x/b"] == ["x/c", "x/c"]  # moto starts with older versions of x/b


def test_a_listing_of_versions_goes_on_after_the_first_page(
    moto_store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("l0gc.storage.s3.PAGE_SIZE", 3)
    moto_store.create_bucket()
    set_versioning(moto_store, "Enabled")
    for n in range(4):
        for _ in range(2):
            moto_store.put(f"k{n}", b"")
    pages = list(moto_store.versions(""))
    assert len(pages) > 1
    assert sorted(k for p in pages for k in p.keys) == sorted([f"k{n}" for n in range(4)] * 2)
    assert len({v for p in pages for v in p.version_ids}) == 8


def test_versions_that_come_out_of_order_are_shown_out_of_order(moto_store: S3Store) -> None:
    """The scan then notices the disorder, which sorting a page would hide."""

    def row(key: str) -> dict[str, Any]:
        when = datetime.now(UTC)
        return {"Key": f"a/prefix/{key}", "VersionId": "v", "IsLatest": True, "Size": 1, "LastModified": when}

    page: VersionPage = moto_store._version_page({"Versions": [row("c"), row("a")], "DeleteMarkers": [row("b")]})
    assert page.keys != sorted(page.keys)
    good = moto_store._version_page({"Versions": [row("a"), row("c")], "DeleteMarkers": [row("b")]})
    assert good.keys == ["a", "b", "c"]


def test_removing_reported_delete_markers_restores_the_objects(any_store: S3Store) -> None:
    any_store.create_bucket()
    set_versioning(any_store, "Enabled")
    any_store.put("k", b"body")
    done = any_store.delete_versions([VersionedKey("k")])
    assert done.failures == []
    assert list(done.markers) == ["k"]
    assert any_store.list("").modified_ms == {}
    back = any_store.delete_versions([VersionedKey("k", done.markers["k"])])
    assert (back.failures, back.markers) == ([], {})
    assert any_store.get("k").body == b"body"


# -- sweeps ---------------------------------------------------------------------------------------------------------------


def test_a_plain_sweep_leaves_versions_behind_and_can_be_taken_back(any_store: S3Store) -> None:
    cluster = a_cluster(any_store, "Enabled")
    before = there(any_store)
    with Parallel(4) as threads:
        cluster.parallel = threads
        result = SweepRun(cluster).run(2)
        assert there(any_store) == before - garbage_of(before)
        assert result.plan.versioning == ENABLED
        run = result.run_id
        assert {f.status for f in show_run(cluster, run, 99).sample} == {DELETED}
        back = undelete(cluster, run)
        assert (back.restored, back.already, back.failures) == (len(garbage_of(before)), 0, [])
        assert there(any_store) == before
        again = undelete(cluster, run)
        assert (again.restored, again.already, again.gone) == (0, back.restored, 0)
        assert SweepRun(cluster).run(2).deleted == result.deleted


def test_a_purge_removes_every_version_of_eligible_objects_only(any_store: S3Store) -> None:
    cluster = a_cluster(any_store, "Enabled")
    before = there(any_store)
    twice = sorted(garbage_of(before))[0]
    any_store.put(twice, b"another version")
    SweepRun(cluster).run(1)
    kept = [v for v in versions(any_store) if v[0] not in garbage_of(before)]
    held = len(versions(any_store))
    plain = SweepRun(cluster).run(1)
    assert plain.deleted == 0
    dry = SweepRun(cluster, Sweep(purge_versions=True, dry_run=True)).run(1)
    assert len(versions(any_store)) == held
    result = SweepRun(cluster, Sweep(purge_versions=True)).run(1)
    assert versions(any_store) == kept
    assert result.deleted == dry.deleted == result.eligible == 2 * len(garbage_of(before)) + 1
    with pytest.raises(UsageError, match="removed versions for good"):
        undelete(cluster, result.run_id)
    assert show_run(cluster, result.run_id).by_status == {DELETED: result.deleted}
    assert SweepRun(cluster, Sweep(purge_versions=True)).run(1).deleted == 0


def test_a_purge_without_versioning_is_a_plain_sweep(any_store: S3Store) -> None:
    cluster = a_cluster(any_store)
    before = there(any_store)
    result = SweepRun(cluster, Sweep(purge_versions=True)).run(1)
    assert there(any_store) == before - garbage_of(before)
    assert result.deleted == len(garbage_of(before))
    with pytest.raises(UsageError, match="kept no versions"):
        undelete(cluster, result.run_id)


@pytest.mark.weed
def test_what_was_written_while_versioning_was_suspended_is_never_removed(store: S3Store) -> None:
    """A marker of a suspended bucket has no separate id, and a later write replaces it.

    Therefore undelete looks it up before removing it. (moto deletes the versions of a suspended bucket, too; SeaweedFS
    keeps the marker, so no object comes back here.)
    """
    cluster = a_cluster(store, "Enabled")
    before = there(store)
    set_versioning(store, "Suspended")
    result = SweepRun(cluster).run(1)
    assert result.plan.versioning == SUSPENDED
    assert there(store) == before - garbage_of(before)
    rewritten = sorted(garbage_of(before))[0]
    store.put(rewritten, b"written since")
    back = undelete(cluster, result.run_id)
    assert store.get(rewritten).body == b"written since"
    assert (back.restored + back.gone, back.failures) == (len(garbage_of(before)) - 1, [])


def test_what_a_killed_run_had_planned_is_taken_back_if_it_went(any_store: S3Store) -> None:
    cluster = a_cluster(any_store, "Enabled")
    before = there(any_store)
    garbage = sorted(garbage_of(before))
    older = garbage[0]
    any_store.delete([older])  # the key is hidden before the run, so its marker is not the run's
    run = "20990101T000000Z-0123abcd"  # the run starts in the future, so no marker counts as its own
    record = RunRecord(any_store, run, "local")
    record.plan([Deletable(k, 1, 10) for k in garbage])
    recent = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ") + "-0123abcd"
    any_store.delete(garbage[1:4])
    assert undelete(cluster, run).restored == 0
    RunRecord(any_store, recent, "local").plan([Deletable(k, 1, 10) for k in garbage[1:]])
    detail = show_run(cluster, recent)
    assert detail.by_status == {DELETED: 3, "left": len(garbage) - 4}
    assert undelete(cluster, recent).restored == 3
    assert older not in there(any_store)


def test_a_second_try_makes_a_second_marker_and_both_are_taken_back(any_store: S3Store) -> None:
    """The first try lands and its answer is lost, so its marker's id is never reported."""
    cluster = a_cluster(any_store, "Enabled")
    before = there(any_store)
    requests = [0]
    delete = any_store.delete_versions

    def losing(objects: Any) -> Any:
        from l0gc.errors import StoreError

        done = delete(objects)
        requests[0] += 1
        if requests[0] == 1:
            raise StoreError("connection cut")
        return done

    any_store.delete_versions = losing  # type: ignore[method-assign]
    result = SweepRun(cluster).run(1)
    assert result.deleted == len(garbage_of(before))
    assert sum(m for _, m, _ in versions(any_store)) == 2 * len(garbage_of(before))
    undelete(cluster, result.run_id)
    assert there(any_store) == before


def test_what_is_locked_is_reported_by_key_and_stays(moto_store: S3Store) -> None:
    moto_store.client.create_bucket(Bucket=moto_store.config.bucket, ObjectLockEnabledForBucket=True)
    cluster = a_cluster(moto_store)
    locked = sorted(garbage_of(there(moto_store)))[0]
    moto_store.client.put_object_legal_hold(
        Bucket=moto_store.config.bucket, Key=f"a/prefix/{locked}", LegalHold={"Status": "ON"}
    )
    before = there(moto_store)
    result = SweepRun(cluster, Sweep(purge_versions=True)).run(1)
    assert [f.key for f in result.failures] == [locked]
    assert result.delete_requests == 1
    assert there(moto_store) == before - garbage_of(before) | {locked}
    assert show_run(cluster, result.run_id).by_status[FAILED] == 1
    assert PLANNED not in show_run(cluster, result.run_id).by_status


# -- unfinished uploads ---------------------------------------------------------------------------------------------------


def test_unfinished_uploads_below_m_are_aborted_and_the_others_go_on(any_store: S3Store) -> None:
    cluster = a_cluster(any_store)
    layout = cluster.controller.layout()
    keys = [layout.format(0, 1, name_of(90)), layout.format(1, M, name_of(91)), layout.format(1, M + 1, name_of(92)),
            "level_zero/data/000/x", "level_one/data/x"]  # fmt: skip
    for key in keys:
        any_store.client.create_multipart_upload(Bucket=any_store.config.bucket, Key=f"{any_store.config.prefix}{key}")
    dry = SweepRun(cluster, Sweep(dry_run=True)).run(1)
    assert dry.uploads_aborted == 2
    result = SweepRun(cluster).run(1)
    assert (result.uploads_aborted, result.uploads_note) == (2, "")
    left = {u.key for page in any_store.uploads("") for u in page}
    assert left == set(keys[2:])


def test_aborting_what_is_gone_is_no_error(any_store: S3Store) -> None:
    any_store.create_bucket()
    any_store.client.create_multipart_upload(Bucket=any_store.config.bucket, Key=f"{any_store.config.prefix}k")
    ((upload,),) = list(any_store.uploads(""))
    any_store.abort(upload)
    any_store.abort(upload)
    assert list(any_store.uploads("")) == []


def test_what_was_purged_meanwhile_is_reported_as_gone(any_store: S3Store) -> None:
    cluster = a_cluster(any_store, "Enabled")
    swept = SweepRun(cluster).run(1)
    SweepRun(cluster, Sweep(purge_versions=True)).run(1)
    back = undelete(cluster, swept.run_id)
    assert (back.restored, back.gone, back.failures) == (0, swept.deleted, [])
    assert str(back.problem) == f"{swept.deleted} objects of run {swept.run_id} did not come back"


def swept_and_taken_back(store: S3Store) -> tuple[ClusterHandles, SweepResult]:
    """Create a versioned bucket whose garbage an undelete brought back; the run's id sorts before later ones."""
    cluster = a_cluster(store, "Enabled")
    first = SweepRun(cluster, run_id="20260101T000000Z-0123abcd").run(1)
    undelete(cluster, first.run_id)
    return cluster, first


def test_status_and_gc_report_an_undelete(any_store: S3Store) -> None:
    cluster, first = swept_and_taken_back(any_store)
    (undone,) = show_run(cluster, first.run_id).undeletes
    assert undone.summary is not None
    assert (undone.summary.of_run, undone.summary.of_command) == (first.run_id, "sweep")
    assert undone.summary.restored == ObjectTotals(first.deleted, first.bytes)
    runs, total = list_runs(any_store, 9)
    assert (runs[-1], total) == (undone, 2)
    with pytest.raises(UsageError, match=f"is the undelete of run {first.run_id}"):
        undelete(cluster, undone.run_id)
    assert deleted_since(runs, 0) == ObjectTotals(0, 0)
    (warning,) = read_overview(cluster).warnings
    assert (warning.cause, f"{first.deleted} objects of run {first.run_id} came back" in warning.detail) == (
        "brought_back",
        True,
    )
    write_gc_note(any_store, GcNote(swept=M))
    second = SweepRun(cluster).run(1)
    assert read_overview(cluster).warnings == []
    undelete(cluster, second.run_id)
    assert read_gc_note(any_store) == GcNote()  # so the next gc lists the bucket and sweeps


def test_a_later_run_that_deleted_the_same_objects_again_is_named(any_store: S3Store) -> None:
    cluster, first = swept_and_taken_back(any_store)
    some = SweepRun(cluster, Sweep(max_objects=3)).run(1)
    rest = SweepRun(cluster, run_id="20990101T000000Z-0123abcd").run(1)
    back = undelete(cluster, first.run_id)
    assert (back.restored, back.already, back.gone, back.failures) == (0, 0, 0, [])
    assert back.again == {some.run_id: some.deleted, rest.run_id: rest.deleted}
    assert some.deleted + rest.deleted == first.deleted
    assert str(back.problem) == f"{first.deleted} objects of run {first.run_id} did not come back"
    returned = undelete(cluster, some.run_id)
    assert (returned.restored, returned.problem) == (some.deleted, None)
    assert undelete(cluster, first.run_id).again == {rest.run_id: rest.deleted}


def test_what_a_later_run_removed_for_good_is_gone(any_store: S3Store) -> None:
    cluster, first = swept_and_taken_back(any_store)
    SweepRun(cluster).run(1)
    SweepRun(cluster, Sweep(purge_versions=True), run_id="20990101T000000Z-0123abcd").run(1)
    back = undelete(cluster, first.run_id)
    assert (back.restored, back.gone, back.again) == (0, first.deleted, {})


def test_what_is_gone_is_reported_though_its_marker_was_never_known(any_store: S3Store) -> None:
    """A marker is unknown after a second try, or while versioning is suspended."""
    cluster = a_cluster(any_store, "Enabled")
    garbage = sorted(garbage_of(there(any_store)))
    run = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ") + "-0123abcd"
    record = RunRecord(any_store, run, "local")
    objects = [Deletable(k, 1, 10) for k in garbage]
    kept = garbage[0]
    record.write(record.plan(objects), lambda: [RecordedObject.of(o, DELETED, now_ms=1) for o in objects])
    purged = [VersionedKey(k, v) for p in any_store.versions("level_zero/data/")
              for k, v in zip(p.keys, p.version_ids, strict=True) if k in garbage[1:]]  # fmt: skip
    any_store.delete_versions(purged)
    assert kept in there(any_store)  # it was brought back earlier, so no marker hides it
    back = undelete(cluster, run)
    assert (back.restored, back.gone, back.failures) == (0, len(garbage) - 1, [])


def test_after_an_undelete_the_run_that_deleted_an_object_last_is_named(any_store: S3Store) -> None:
    cluster, first = swept_and_taken_back(any_store)
    keys = sorted(garbage_of(there(any_store)))
    back = find_in_runs(cluster, keys[0])
    assert back is not None
    assert (back.run_id, back.status) == (first.run_id, "restored")
    assert "deleted it" in back.sentence
    assert back.sentence.endswith("and it exists again")
    some = SweepRun(cluster, Sweep(max_objects=3)).run(1)
    gone = sorted(set(keys) - there(any_store))
    assert len(gone) == some.deleted
    for key in gone:
        found = find_in_runs(cluster, key)
        assert found is not None
        assert (found.run_id, found.status) == (some.run_id, "deleted")
        assert f"l0gc undelete --run {some.run_id}" in who_deleted(cluster, key)
    left = find_in_runs(cluster, next(key for key in keys if key not in gone))
    assert left is not None
    assert (left.run_id, left.status) == (first.run_id, "restored")


def test_a_foreign_deletion_is_not_attributed_to_a_run(any_store: S3Store) -> None:
    """Another tool deletes an object that an undelete brought back."""
    cluster, _ = swept_and_taken_back(any_store)
    key = min(garbage_of(there(any_store)))
    any_store.delete([key])
    assert find_in_runs(cluster, key) is None
    assert who_deleted(cluster, key) == "no recorded run deleted it"


def test_an_object_purged_after_an_undelete_is_found_in_the_later_run(any_store: S3Store) -> None:
    cluster, first = swept_and_taken_back(any_store)
    key = min(garbage_of(there(any_store)))
    last = SweepRun(cluster, Sweep(purge_versions=True), run_id="20990101T000000Z-0123abcd").run(1)
    found = find_in_runs(cluster, key)
    assert found is not None
    assert (found.run_id, found.status, found.kept) == (last.run_id, "deleted", False)
    assert first.run_id != last.run_id
