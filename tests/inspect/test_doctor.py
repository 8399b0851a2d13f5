"""The doctor's checks: each names a fault with a remedy, and leaves nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import boto3
import pytest
from moto import mock_aws

from l0gc.collect.deletion import set_pause
from l0gc.collect.plan import UNKNOWN
from l0gc.collect.record import Attempt, write_attempt
from l0gc.errors import AccessDeniedError, UnsupportedFormatError
from l0gc.inspect import doctor
from l0gc.inspect.doctor import FAILURE, OK, WARNING, Check, guarded
from l0gc.keys import FORMAT, journal_log
from l0gc.runtime import Runtime
from l0gc.storage.bucket import LifecycleRule, lifecycle
from l0gc.storage.config import StoreConfig
from l0gc.storage.objectstore import DeleteFailure, PutResult
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.format import Format, encode_format, remember_etags, write_format
from tests.support.memory_store import (
    FakeClock,
    IgnoresConditionalCreate,
    MemoryStore,
    TakesPlainEtags,
    another_process,
    external_cluster,
    memory_cluster,
    publish_m,
    store_of,
)
from tests.support.verify import loaded_cluster


def by_name(checks: Iterator[Check]) -> dict[str, Check]:
    return {c.name: c for c in checks}


class Locked(MemoryStore):
    """A memory store whose conditional writes are safe for several threads."""

    def __init__(self) -> None:
        super().__init__()
        self._one = threading.Lock()

    def put_if_absent(self, key: str, body: bytes) -> PutResult:
        with self._one:
            return super().put_if_absent(key, body)

    def put_if_match(self, key: str, body: bytes, etag: str) -> PutResult:
        with self._one:
            return super().put_if_match(key, body, etag)


class LooksBeforeItWrites(Locked):
    """Checks the condition and then writes, like `rclone serve s3`: correct for one writer, wrong in a race."""

    def __init__(self) -> None:
        super().__init__()
        self._all = threading.Barrier(doctor.RACERS)
        self._others = threading.active_count()

    def put_if_absent(self, key: str, body: bytes) -> PutResult:
        if key not in self.objects and threading.active_count() >= self._others + doctor.RACERS:
            self._all.wait(120)
            return self.put(key, body)
        return super().put_if_absent(key, body)


class ReadOnly(MemoryStore):
    def put_if_absent(self, key: str, body: bytes) -> PutResult:
        raise AccessDeniedError(f"may not write {key}")


def test_an_unwritable_store_is_neither_fit_nor_unfit() -> None:
    (check,) = doctor.promises(ReadOnly(), Runtime())
    assert (check.name, check.status) == ("store", WARNING)
    assert "not tried" in check.text


class MayNotDelete(MemoryStore):
    def delete(self, keys: Sequence[str]) -> list[DeleteFailure]:
        return [DeleteFailure(k, "AccessDenied", "not allowed") for k in keys]


def test_a_missing_permission_to_delete_is_a_warning_that_names_it() -> None:
    (check,) = doctor.promises(MayNotDelete(), Runtime())
    assert (check.name, check.status) == ("store", WARNING)
    assert "allow s3:DeleteObject" in check.text


def test_a_fit_store_passes_and_nothing_is_left() -> None:
    store = Locked()
    checks = by_name(doctor.promises(store, Runtime()))
    assert {c.status for c in checks.values()} == {OK}
    assert set(checks) == {"store", "race"}
    assert store.objects == {}


def test_a_store_that_ignores_conditions_fails() -> None:
    store = IgnoresConditionalCreate()
    (check,) = doctor.promises(store, Runtime())
    assert (check.name, check.status) == ("store", FAILURE)
    assert "ignores conditional creates" in check.text
    assert store.objects == {}


def test_a_store_that_checks_before_it_writes_fails_in_the_race_alone() -> None:
    store = LooksBeforeItWrites()
    checks = by_name(doctor.promises(store, Runtime()))
    assert checks["store"].status == OK
    assert checks["race"].status == FAILURE
    assert "8 threads succeeded" in checks["race"].text
    assert store.objects == {}


class LockedWithPlainEtags(TakesPlainEtags, Locked):
    pass


def test_the_form_in_which_a_store_takes_etags_is_said() -> None:
    checks = by_name(doctor.promises(LockedWithPlainEtags(), Runtime()))
    assert {c.status for c in checks.values()} == {OK}
    assert "conditional replace (ETags without quotes)" in checks["store"].text


def test_a_changed_etag_form_is_reported_with_the_remedy() -> None:
    store = LockedWithPlainEtags()
    write_format(store)
    check = by_name(doctor.promises(store, Runtime()))["etags"]
    assert (check.status, check.remedy.split(":")[0]) == (FAILURE, "run l0gc init again")
    remember_etags(store, quoted=False)
    assert {c.status for c in doctor.promises(store, Runtime())} == {OK}


# -- lifecycle ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prefix", "does", "status"),
    [
        ("", "expires objects", FAILURE),
        ("c/level_zero/", "expires objects", FAILURE),
        ("c/l0gc/journal/", "expires objects", FAILURE),
        ("c/l0gc/runs/", "expires objects", OK),
        ("c/l0gc/watermarks/reports/", "expires objects", OK),
        ("c/l0gc/", "expires objects", FAILURE),
        ("other/", "expires objects", OK),
        ("c/", "moves objects to another storage class", WARNING),
        ("c/", "expires old versions", OK),
        ("c/", "removes delete markers", OK),
    ],
)
def test_a_rule_by_age_fights_l0gc_where_l0gc_needs_its_objects(prefix: str, does: str, status: str) -> None:
    rules = [LifecycleRule("r", prefix, frozenset({does}))]
    assert [c.status for c in doctor.check_lifecycle(rules, "c/", versioned=False)] == [status]


@pytest.mark.parametrize(
    ("rules", "bare"),
    [
        ([], ["level_zero/", "level_one/", "l0gc/"]),
        ([("", "both")], []),
        ([("c/", "both")], []),
        ([("c/level_zero/data/", "both"), ("c/l0gc/", "both")], ["level_zero/", "level_one/"]),
        ([("c/", "expires old versions")], ["level_zero/", "level_one/", "l0gc/"]),
        ([("c/", "expires old versions"), ("c/level_one/", "removes delete markers")], ["level_zero/", "l0gc/"]),
        ([("d/", "both")], ["level_zero/", "level_one/", "l0gc/"]),
    ],
)
def test_folders_whose_old_versions_no_rule_ends_are_named(rules: list[tuple[str, str]], bare: list[str]) -> None:
    both = frozenset({"expires old versions", "removes delete markers"})
    known = [LifecycleRule("r", prefix, both if does == "both" else frozenset({does})) for prefix, does in rules]
    assert by_name(doctor.check_lifecycle(known, "c/", versioned=False)).keys() == {"lifecycle"}
    check = by_name(doctor.check_lifecycle(known, "c/", versioned=True)).get("old versions")
    said = None if check is None else check.text.partition(" below ")[2].partition(", and the delete")[0]
    assert said == (", ".join(bare) or None)


# -- on moto --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def moto(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Store]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    with mock_aws():
        boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="bucket", ObjectLockEnabledForBucket=True)
        yield S3Store(StoreConfig("bucket", "c/", region="us-east-1"))


def test_the_settings_of_a_bucket_are_reported(moto: S3Store) -> None:
    client = moto.client
    client.put_object_lock_configuration(
        Bucket="bucket",
        ObjectLockConfiguration={
            "ObjectLockEnabled": "Enabled",
            "Rule": {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 3}},
        },
    )
    client.put_bucket_lifecycle_configuration(
        Bucket="bucket",
        LifecycleConfiguration={
            "Rules": [
                {"ID": "old", "Status": "Enabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 1}},
                {"ID": "off", "Status": "Disabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 1}},
            ]
        },
    )
    checks = by_name(doctor.settings(moto))
    assert (checks["versioning"].status, checks["old versions"].status) == (OK, WARNING)
    assert (checks["object lock"].status, checks["object lock"].text) == (WARNING, "GOVERNANCE, 3 days")
    assert checks["lifecycle"].status == FAILURE
    assert "rule old on the whole bucket" in checks["lifecycle"].text
    assert [r.name for r in lifecycle(moto)] == ["old"]


@pytest.mark.parametrize("may_ask", [True, False])
def test_a_delete_is_not_tried_where_it_would_leave_a_marker(
    moto: S3Store, monkeypatch: pytest.MonkeyPatch, may_ask: bool
) -> None:
    if not may_ask:
        monkeypatch.setattr(doctor, "versioning_of", lambda store: UNKNOWN)
    checks = by_name(doctor.permissions(moto, Runtime()))
    assert checks["delete"].status == WARNING
    assert checks["read"].status == checks["write"].status == checks["list"].status == OK
    assert moto.client.list_object_versions(Bucket="bucket").get("DeleteMarkers", []) == []


def test_a_refused_permission_names_the_folder_and_the_commands(moto: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    real = S3Store.put_if_match

    def refuse(self: S3Store, key: str, body: bytes, etag: str) -> PutResult:
        if key.startswith("level_one/"):
            raise AccessDeniedError("no")
        return real(self, key, body, etag)

    monkeypatch.setattr(S3Store, "put_if_match", refuse)
    check = by_name(doctor.permissions(moto, Runtime()))["write"]
    assert check.status == WARNING
    assert check.text == "refused at level_one/data/* (reconcile)"


@pytest.mark.parametrize("versioned", [True, False])
def test_a_store_that_ignores_conditions_is_left_as_it_was(
    endpoint: str, monkeypatch: pytest.MonkeyPatch, versioned: bool
) -> None:
    """In such a store a conditional write takes effect although it should fail, even in a cluster's bucket."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    store = S3Store(StoreConfig(f"versioned-{versioned}".lower(), "c/", endpoint, region="us-east-1"))
    store.create_bucket()
    if versioned:
        store.client.put_bucket_versioning(Bucket=store.config.bucket, VersioningConfiguration={"Status": "Enabled"})
    write_format(store)
    monkeypatch.setattr(S3Store, "put_if_match", lambda self, key, body, etag: self.put(key, body))
    monkeypatch.setattr(S3Store, "put_if_absent", lambda self, key, body: self.put(key, body))
    before = store.get(FORMAT)
    for check in (doctor.permissions, doctor.promises):
        list(check(store, Runtime()))
    assert store.get(FORMAT).body == before.body
    versions = store.client.list_object_versions(Bucket=store.config.bucket)
    assert [v["Key"] for v in versions["Versions"]] == [f"c/{FORMAT}"]
    assert versions.get("DeleteMarkers", []) == []


@pytest.mark.parametrize(("behind_ms", "status"), [(0, OK), (-59_000, OK), (600_000, WARNING), (-600_000, WARNING)])
def test_a_clock_that_is_wrong_by_minutes_is_worth_a_warning(
    moto: S3Store, monkeypatch: pytest.MonkeyPatch, behind_ms: int, status: str
) -> None:
    clock = FakeClock()
    monkeypatch.setattr(S3Store, "now_ms", lambda self: clock.ms + behind_ms)
    check = by_name(doctor.reachable(moto, Runtime(clock)))["clock"]
    assert check.status == status
    assert status == OK or ("behind" if behind_ms > 0 else "ahead of") in check.text


# -- this machine --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.2" 2022-01-18', 17),
        ('java version "1.8.0_292"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("no such thing", None),
    ],
)
def test_javas_version_is_read_in_its_old_and_new_forms(text: str, version: int | None) -> None:
    assert doctor.java_version(text) == version


def a_java(folder: Path, text: str) -> None:
    (folder / "bin").mkdir()
    java = folder / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    java.chmod(0o755)


@pytest.mark.parametrize(
    ("text", "status"), [('openjdk version "17.0.2"', OK), ('java version "1.8.0"', WARNING), ("nonsense", WARNING)]
)
def test_an_old_java_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, status: str) -> None:
    a_java(tmp_path, text)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    (check,) = doctor.java()
    assert check.status == status


def test_without_java_the_commands_that_need_it_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    (check,) = doctor.java()
    assert check.status == WARNING
    assert "reconcile" in check.text
    assert "JAVA_HOME" in check.remedy


def test_spark_and_the_versions_are_reported() -> None:
    (spark,) = doctor.spark()
    (versions,) = doctor.versions()
    assert spark.status == versions.status == OK
    assert versions.text.startswith("l0gc ")


# -- the cluster ---------------------------------------------------------------------------------------------------------


def checks(cluster: ClusterHandles) -> dict[str, Check]:
    """Run the checks in another process, and check that they change nothing."""
    before = dict(store_of(cluster).objects)
    found = list(doctor.cluster(another_process(cluster)))
    assert store_of(cluster).objects == before
    return {c.name: c for c in found}


def failures(cluster: ClusterHandles) -> list[Check]:
    return [c for c in checks(cluster).values() if c.status == FAILURE]


def test_a_bucket_without_a_cluster_is_a_warning_with_the_way_out() -> None:
    (found,) = doctor.cluster(memory_cluster(bootstrap=False))
    assert (found.status, found.remedy) == (WARNING, "l0gc init")


def test_a_cluster_that_is_well_gives_four_lines() -> None:
    found = checks(loaded_cluster())
    assert {c.status for c in found.values()} == {OK}
    assert "epoch 1, 1 topic with 3 partitions, 4 shards" in found["cluster"].text
    assert found["journals"].text == "5 journals can be read, 1 in use"
    assert found["format"].text == "version 4, with quoted ETags"
    assert list(found) == ["cluster", "format", "journals", "watermark"]


def test_a_bucket_of_an_unknown_format_is_not_read_further() -> None:
    cluster = loaded_cluster()
    cluster.store.put(FORMAT, encode_format(Format(9, 9, 9)))
    (found,) = guarded("cluster", lambda: doctor.cluster(another_process(cluster)), "restore it")
    assert (found.status, found.exit_code) == (FAILURE, UnsupportedFormatError.exit_code)
    assert "supports format 4" in found.text


def test_a_journal_that_cannot_be_read_is_named_with_its_object() -> None:
    cluster = loaded_cluster()
    key = f"{journal_log(0)}log/{1:020}"
    cluster.store.put(key, b"{")
    found = checks(cluster)["damaged_journal"]
    assert (found.status, found.exit_code) == (FAILURE, 4)
    assert "journal 0 cannot be read" in found.text
    assert key in found.text


def test_a_failed_run_is_a_warning_until_the_next_succeeds() -> None:
    cluster = loaded_cluster()
    for _ in range(5):
        cluster.controller.advance()
    set_pause(cluster.store, "audit", "ann")
    assert {c.status for c in checks(cluster).values()} == {OK}
    write_attempt(cluster.store, Attempt("housekeep", 1, "no space left"))
    assert [name for name, c in checks(cluster).items() if c.status == WARNING] == ["housekeep_failed"]


def test_of_an_external_log_the_epoch_is_the_one_that_was_published() -> None:
    cluster = external_cluster()
    assert [c.status for c in checks(cluster).values()] == [OK] * 3
    publish_m(cluster, 40, 50)
    found = checks(cluster)
    assert "an external log, 4 shards" in found["cluster"].text
    assert (found["watermark"].status, found["watermark"].text) == (OK, "M = 40")
