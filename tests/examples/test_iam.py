"""The policies in examples/iam match the table of docs/work/operate-permissions.md, and suffice exactly for each role.

moto checks actions and resources. This module corrects it where it differs from AWS' documents: S3 checks a
DeleteObjects request by each of its keys, moto by the bucket; HeadBucket needs `s3:ListBucket`, in moto an action that
AWS does not have. moto's check of signatures is off, since it refuses `%7E` in a URL, which S3 takes for the `~` that
it is; the access key identifies the role.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import subprocess
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import boto3
import pyarrow as pa
import pytest
from botocore.exceptions import ClientError
from moto import settings as moto_settings
from moto.iam.access_control import IAMPolicy, PermissionResult, S3IAMRequest
from moto.s3.exceptions import BucketAccessDeniedError
from moto.s3.models import FakeBucket
from moto.s3.responses import ACTION_MAP, S3Response
from moto.server import ThreadedMotoServer
from pyspark.sql.types import BinaryType, StructField, StructType

from l0gc.cli.main import effects
from l0gc.collect.record import attempt_key
from l0gc.collect.vacuum import GARBAGE
from l0gc.integrations.spark.source import L0gcDataSource
from l0gc.keys import (
    ATTEMPTS,
    L1_DATA,
    RUNS,
    SCANS,
    KeyLayout,
    PartitionId,
    level_one,
)
from tests.examples.iam import FOLDER, PAGE, page, policies, written
from tests.flows.test_secrets import IN_ONE
from tests.support.cli import Ended, ended_here, l0gc_process

POLICIES = policies()

WRITES_L0 = ("uploader", "writer")
NOT_TRIED = {
    ("uploader", "s3:PutObject", "l0gc/controller/checkpoint/*"): "a writer takes a checkpoint after 200 entries",
    ("uploader", "s3:PutObject", "l0gc/journal/*/checkpoint/*"): "the same",
    ("writer", "s3:PutObject", "l0gc/controller/checkpoint/*"): "the same",
    ("writer", "s3:PutObject", "l0gc/journal/*/checkpoint/*"): "the same",
    ("administrator", "s3:PutObject", "l0gc/controller/checkpoint/*"): "the same",
    ("administrator", "s3:PutObject", "l0gc/journal/*/checkpoint/*"): "the same",
    ("pinner", "s3:PutObject", "l0gc/controller/checkpoint/*"): "the same",
    ("pinner", "s3:PutObject", "l0gc/journal/*/checkpoint/*"): "the same",
    ("expirer", "s3:PutObject", "l0gc/controller/log/*"): "a command ticks when an epoch is due",
    ("expirer", "s3:PutObject", "l0gc/controller/checkpoint/*"): "the same",
    ("expirer", "s3:PutObject", "l0gc/journal/*/checkpoint/*"): "the same",
    ("reconciler", "s3:PutObject", "l0gc/journal/*/checkpoint/*"): "the same",
    ("reconciler", "s3:GetObject", "level_one/*"): "there are few L1 objects, so none to merge",
    ("collector", "s3:GetObject", "level_one/*"): "the same",
    ("housekeeper", "s3:DeleteObject", "l0gc/controller/*"): "log entries are truncated when they are 15 minutes old",
    ("housekeeper", "s3:DeleteObject", "l0gc/journal/*"): "the same",
    ("collector", "s3:DeleteObject", "l0gc/controller/*"): "the same",
    ("collector", "s3:DeleteObject", "l0gc/journal/*"): "the same",
    ("collector", "s3:DeleteObject", "l0gc/watermarks/scans/*"): "scans are removed when there are very many",
    ("collector", "s3:DeleteObject", "level_one/data/*"): "a vacuum is not due",
    ("collector", "s3:DeleteObject", "l0gc/attempts/*"): "the same",
    ("vacuumer", "s3:PutObject", "l0gc/controller/checkpoint/*"): "a writer takes a checkpoint after 200 entries",
    ("vacuumer", "s3:PutObject", "l0gc/journal/*/checkpoint/*"): "the same",
    ("vacuumer", "s3:DeleteObject", "l0gc/runs/*"): "records are removed when they are 30 days old",
    ("vacuumer", "s3:DeleteObject", "l0gc/watermarks/scans/*"): "scans are removed when there are very many",
    ("vacuumer", "s3:DeleteObject", "l0gc/attempts/*"): "there is no job that this l0gc does not have",
    ("reconciler", "s3:AbortMultipartUpload", "level_one/data/*"): "for uploads that fail in the middle",
    ("collector", "s3:AbortMultipartUpload", "level_one/data/*"): "the same",
    ("vacuumer", "s3:AbortMultipartUpload", "level_one/data/*"): "there is no unfinished upload",
    ("reporter", "s3:GetObject", "level_zero/data/*"): "for when the object that holds M was written",
    ("sweeper", "s3:AbortMultipartUpload", "level_zero/data/*"): "there is no unfinished upload",
    ("collector", "s3:AbortMultipartUpload", "level_zero/data/*"): "the same",
    ("collector", "s3:DeleteObject", "l0gc/runs/*"): "records are removed when they are 30 days old",
}
"""Permissions that no command of the thorough test needs, and why the role has them all the same. See `planted` for
deletes.
"""


@dataclass
class Account:
    """A server that checks policies, a bucket, and a profile of credentials for each role."""

    endpoint: str
    bucket: str
    credentials: Path
    used: dict[str, set[tuple[str, str]]] = field(default_factory=lambda: defaultdict(set))

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_SHARED_CREDENTIALS_FILE": str(self.credentials),
            "L0GC_URL": f"s3://{self.bucket}/some/prefix",
        }

    def l0gc(self, role: str, *args: str, code: int = 0, stdin: bytes = b"") -> Ended:
        ended = l0gc_process(*args, "--profile", role, environment=self.environment, stdin=stdin)
        assert ended.code == code, (role, args, ended.stderr)
        return ended

    def client(self, role: str) -> Any:
        """Return a boto3 client with the credentials of the role's profile."""
        profiles = configparser.ConfigParser()
        profiles.read(self.credentials)
        return boto3.client(
            "s3",
            region_name="us-east-1",
            endpoint_url=self.endpoint,
            aws_access_key_id=profiles[role]["aws_access_key_id"],
            aws_secret_access_key=profiles[role]["aws_secret_access_key"],
        )


@pytest.fixture
def account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Account]:
    monkeypatch = pytest.MonkeyPatch()
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    account = Account(
        f"http://{host}:{port}", f"b-{uuid.uuid4().hex[:12]}", tmp_path_factory.mktemp("iam") / "credentials"
    )
    admin: dict[str, Any] = {
        "endpoint_url": account.endpoint,
        "region_name": "us-east-1",
        "aws_access_key_id": "admin",
        "aws_secret_access_key": "admin",
    }
    boto3.client("s3", **admin).create_bucket(Bucket=account.bucket)
    iam = boto3.client("iam", **admin)
    anything = [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]
    documents = {role: policy["Statement"] for role, policy in POLICIES.items()} | {"admin": anything}
    for role, statements in documents.items():
        text = json.dumps({"Version": "2012-10-17", "Statement": statements})
        text = text.replace("BUCKET", account.bucket).replace("PREFIX", "some/prefix")
        user = f"{role}-{account.bucket}"
        iam.create_user(UserName=user)
        iam.put_user_policy(UserName=user, PolicyName=role, PolicyDocument=text)
        key = iam.create_access_key(UserName=user)["AccessKey"]
        with account.credentials.open("a") as file:
            file.write(
                f"[{role}]\naws_access_key_id = {key['AccessKeyId']}\naws_secret_access_key = {key['SecretAccessKey']}\n"
            )
    monkeypatch.setitem(ACTION_MAP["BUCKET"]["HEAD"], "DEFAULT", "ListBucket")
    monkeypatch.setattr(S3IAMRequest, "check_signature", lambda self: None)
    _check_each_key(monkeypatch)
    _note_what_is_used(monkeypatch, account)
    monkeypatch.setattr(moto_settings, "INITIAL_NO_AUTH_ACTION_COUNT", 0)  # everything is checked from this line on
    try:
        yield account
    finally:
        monkeypatch.undo()
        server.stop()


def _check_each_key(monkeypatch: pytest.MonkeyPatch) -> None:
    asking: ContextVar[Any] = ContextVar("asking", default=None)
    of_bucket, delete_keys = FakeBucket.get_permission, S3Response._bucket_response_delete_keys

    def each(self: Any, bucket_name: str, authenticated: bool = True) -> Any:
        before = asking.set(self)
        try:
            return delete_keys(self, bucket_name, authenticated=True)
        finally:
            asking.reset(before)

    def checked(self: Any, action: str, resource: str) -> Any:
        if asking.get() is not None:
            bucket, _, key = resource.removeprefix("arn:aws:s3:::").partition("/")
            try:
                asking.get()._authenticate_and_authorize_s3_action(bucket_name=bucket, key_name=key)
            except BucketAccessDeniedError:
                return PermissionResult.DENIED
        return of_bucket(self, action, resource)

    monkeypatch.setattr(S3Response, "_bucket_response_delete_keys", each)
    monkeypatch.setattr(FakeBucket, "get_permission", checked)


def _note_what_is_used(monkeypatch: pytest.MonkeyPatch, account: Account) -> None:
    check = S3IAMRequest.check_action_permitted

    def recorded(self: Any, resource: str) -> None:
        check(self, resource)
        role = self._access_key.arn.split("/")[-1].removesuffix(f"-{account.bucket}")
        account.used[role].add((self._action, resource))

    monkeypatch.setattr(S3IAMRequest, "check_action_permitted", recorded)


def test_policy_files_match_the_table_and_the_commands() -> None:
    text = PAGE.read_text()
    assert page(text) == text, "run: python -m tests.examples.iam"
    assert {role for _, role in effects().values()} - {""} <= set(POLICIES)
    expected = {name: written(policy) for name, policy in POLICIES.items()}
    assert {p.stem: p.read_text() for p in FOLDER.glob("*.json")} == expected, "run: python -m tests.examples.iam"


def test_only_collectors_can_delete_data_and_nobody_can_delete_versions() -> None:
    def may(policy: dict[str, Any], action: str, path: str) -> bool:
        answer = IAMPolicy(json.dumps(policy)).is_action_permitted(action, f"arn:aws:s3:::BUCKET/PREFIX/{path}")
        return answer is PermissionResult.PERMITTED

    key = "level_zero/data/000/000000000000000001/x"
    assert {n for n, p in POLICIES.items() if may(p, "s3:DeleteObject", key)} == {"sweeper", "collector"}
    path = "level_one/data/events-1/00000/000000000000000001/x"
    assert {n for n, p in POLICIES.items() if may(p, "s3:DeleteObject", path)} == {"vacuumer", "collector"}
    assert {n for n, p in POLICIES.items() if may(p, "s3:PutObject", key)} == {*WRITES_L0}
    assert {n for n, p in POLICIES.items() if may(p, "s3:DeleteObjectVersion", key)} == set()
    published = {n for n, p in POLICIES.items() if may(p, "s3:PutObject", "l0gc/watermarks/published.json")}
    assert published == {"computer", "collector", "pinner"}  # a pin raises what a computation must have seen


def planted(revision: int, name: str) -> dict[str, str]:
    """Return a key of garbage for each place that can have garbage."""
    partition = PartitionId("events", revision, 0)
    return {
        KeyLayout().data_prefix: KeyLayout(shards=4).format(0, 0, name),
        L1_DATA: level_one(partition, 0, 0, 9, name),
        RUNS: f"{RUNS}20200101T000000Z-0123abcd/run.json",
        ATTEMPTS: attempt_key("a-job-of-long-ago"),
        SCANS: f"{SCANS}{1:015}-{name}",
    }


@pytest.mark.parametrize(
    "roles", [("sweeper", "vacuumer"), pytest.param(("collector", "collector"), marks=pytest.mark.thorough)]
)
def test_what_collects_may_delete_every_kind_of_garbage_wherever_it_lies(
    account: Account, roles: tuple[str, str]
) -> None:
    def done(role: str, command: str) -> dict[str, Any]:
        ended = ended_here(*command.split(), "--profile", role, "--json", environment=account.environment)
        assert ended.code == 0, (role, command, ended.stderr)
        return ended.data

    done("founder", "init --shards 4")
    revision = done("administrator", "topic create events --partitions 1")["revision"]
    for _ in range(3):
        done("administrator", "epoch advance")
    done("housekeeper", "housekeep --barrier")
    done("computer", "compute-watermark --engine local")
    keys = planted(revision, str(uuid.uuid4()))
    assert keys.keys() == {place for kind in GARBAGE.values() for place in kind.folders}
    for key in keys.values():
        account.client("admin").put_object(Bucket=account.bucket, Key=f"some/prefix/{key}", Body=b"{}")
    time.sleep(1.1)  # an attempt expires by its age, in whole seconds
    assert done(roles[0], "sweep --engine local")["deleted"] == 1
    assert done(roles[1], "vacuum --orphan-age 0s --keep-runs 0s --engine local")["failed"] == 0
    left = {key.removeprefix("some/prefix/") for key in listed(account)}
    assert not left & set(keys.values())


LOOKS = ("topic list", "pin list", "topic describe events", "epoch show", "producer describe p", "log show --journal 0")


@contextmanager
def written_too_late(account: Account) -> Iterator[None]:
    """Act as Spark's sink does, as the writer: stage a record before the block, and commit it after the block."""
    rows = pa.RecordBatch.from_pydict({"value": pa.array([b"late"], pa.binary())})
    options = {"url": account.environment["L0GC_URL"], "topic": "events", "profile": "writer", "producerName": "s"}
    with mock.patch.dict(os.environ, account.environment):
        schema = StructType([StructField("value", BinaryType())])
        writer = L0gcDataSource({**options, "batchId": "1"}).writer(schema, False)
        staged = writer.write(iter([rows]))
        yield
        writer.commit([staged])


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_each_role_does_its_work_and_nobody_elses(account: Account, tmp_path: Path) -> None:
    run_in_one(
        account,
        "init --shards 4 --profile founder",
        "topic create events --partitions 2 --profile administrator",
        "epoch advance --profile administrator",
        "pin create kept --profile pinner",
        "pin delete kept --profile pinner",
    )
    upload = ["upload", "events", "-", "--epoch-interval", "0", "--producer", "p", "--json"]
    (written,) = account.l0gc("uploader", *upload, stdin=b"one\ntwo\n").data["objects"]
    assert account.l0gc("uploader", *upload, stdin=b"one\ntwo\n").data["skipped"] == 2
    assert account.l0gc("reader", "read", "events").stdout == b"one\ntwo\n"
    jobs = (
        "status --profile viewer",
        f"explain {written['key']} --profile viewer",
        *(f"{command} --profile viewer" for command in LOOKS),
        "reconcile --profile reconciler",
        "merge --profile reconciler",
        "housekeep --barrier --profile housekeeper",
        "housekeep --epoch-interval 0 --profile housekeeper",
        "compute-watermark --profile computer",
        "verify --deep --profile verifier",
    )
    run_in_one(account, *jobs)

    full = f"some/prefix/{written['key']}"
    for role in POLICIES.keys() - {"sweeper", "collector"}:
        client = account.client(role)
        with pytest.raises(ClientError, match="AccessDenied"):
            client.delete_object(Bucket=account.bucket, Key=full)
        reply = client.delete_objects(Bucket=account.bucket, Delete={"Objects": [{"Key": full}]})
        assert [e["Code"] for e in reply["Errors"]] == ["AccessDenied"]
    for role in ("uploader", "reader"):
        assert "refused access" in account.l0gc(role, "sweep", code=1).stderr
    assert account.l0gc("reader", "read", "events").stdout == b"one\ntwo\n"

    account.l0gc("pauser", "pause", "--why", "a test")
    account.l0gc("sweeper", "sweep", code=4)
    assert "still paused" in account.l0gc("sweeper", "resume", code=1).stderr
    examined = l0gc_process("doctor", "--profile", "sweeper", environment=account.environment).stdout.decode()
    assert "delete       refused at l0gc/" in examined
    account.l0gc("pauser", "resume")
    swept = account.l0gc("sweeper", "sweep", "--json")
    assert swept.data["deleted"] == 1
    assert swept.stderr == ""
    account.l0gc("sweeper", "runs", "show", swept.data["run_id"])
    assert account.l0gc("viewer", "status", "--json").data["runs"]
    assert account.l0gc("reporter", "report", "-o", str(tmp_path / "page.html"), "--json").data["runs_total"] == 1
    assert account.l0gc("reader", "read", "events").stdout == b"one\ntwo\n"  # the records are read from L1
    account.l0gc("uploader", "upload", "events", "-", "--producer", "q", stdin=b"three\n")
    run_in_one(account, "gc --housekeep-barrier --profile collector")
    assert account.l0gc("reader", "read", "events").stdout.count(b"\n") == 3
    assert not [k for k in listed(account) if "/level_zero/" in k]
    with written_too_late(account):
        for record in (b"four\n", b"five\n"):  # the journal's window is two epochs long
            account.l0gc("administrator", "epoch", "advance")
            account.l0gc("uploader", "upload", "events", "-", stdin=record)
    assert account.l0gc("reader", "read", "events").stdout.count(b"\n") == 6
    run_in_one(
        account,
        "topic alter events --retention 1h --profile administrator",
        "expire --profile expirer",
        "delete-records events --all-partitions --before-time 2020-01-01T00:00:00Z --profile expirer",
        "delete-records events --before-offset -1 --partition 0 --yes --profile expirer",
    )
    account.l0gc("uploader", "upload", "events", "-", "--partition", "0", stdin=b"lost\n")
    described = account.l0gc("viewer", "topic", "describe", "events", "--partition", "0", "--json").data
    lost = ("--partition", "0", "--offsets", str(described["offsets"][0]["next_offset"] - 1))
    account.l0gc("expirer", "give-up", "events", *lost, "--force-readable", "--yes")
    account.l0gc("administrator", "topic", "delete", "events", "--yes")
    run_in_one(account, *["epoch advance --profile administrator"] * 2)
    ages = ("--l1-grace", "0s", "--orphan-age", "0s")
    vacuumed = account.l0gc("vacuumer", "vacuum", *ages, "--max-delete-ratio", "1", "--json")
    assert vacuumed.data["objects"] > 0
    assert not [k for k in listed(account) if "/level_one/" in k]
    _nothing_is_granted_for_nothing(account)


def run_in_one(account: Account, *jobs: str) -> None:
    """Run commands in one process, which starts Python and Java once."""
    for_spark = {**os.environ, **account.environment}
    subprocess.run([sys.executable, "-c", IN_ONE, "\n".join(jobs)], env=for_spark, check=True, timeout=600)


def listed(account: Account) -> list[str]:
    page = account.client("verifier").list_objects_v2(Bucket=account.bucket)
    return [o["Key"] for o in page["Contents"]]


def _nothing_is_granted_for_nothing(account: Account) -> None:
    place = f"arn:aws:s3:::{account.bucket}/some/prefix/"
    idle = set()
    for role, policy in POLICIES.items():
        for statement in policy["Statement"]:
            action = statement["Action"]
            done = {r.removeprefix(place) for a, r in account.used[role] if a == action}
            for resource in statement["Resource"]:
                path = resource.removeprefix("arn:aws:s3:::BUCKET").removeprefix("/PREFIX/")
                pattern = re.compile(re.escape(path).replace(r"\*", ".*") if path else ".*")
                if not any(pattern.fullmatch(d) for d in done):
                    idle.add((role, action, path))
    assert idle == set(NOT_TRIED)
