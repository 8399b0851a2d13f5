"""No command writes to the logs of a cluster whose controller log went back, and no new command is forgotten (hazard 10).

Every command of l0gc's is in one of the tables below: what is refused, what goes on, what only reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import msgspec
import pytest

import l0gc as library
from l0gc.cli.main import cli
from l0gc.keys import ATTEMPTS, CONTROLLER_LOG, JOURNALS, PUBLISHED_WATERMARK
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store
from tests.support.cli import Ended, ended_here

FILE = "FILE"
"""Stands for a file of records that nobody has uploaded."""
EPOCH = "EPOCH"
"""Stands for the cluster epoch that the restored log has."""

REFUSED: dict[str, list[str]] = {
    "topic create": ["refused --partitions 1", "again --partitions 2 --journals 2 --retention-ms 1d"],
    "topic alter": ["events --retention-ms 1d", "--defaults --retention-bytes 1"],
    "topic delete": ["events --yes"],
    "epoch advance": ["", "--expect EPOCH", "--above EPOCH", "--above EPOCH --close-unknown-topics"],
    "upload": [f"events {FILE}", f"events {FILE} --producer nightly", f"events {FILE} --producer new"],
    "reconcile": ["", "events"],
    "merge": ["--engine local", "--dry-run", "--engine spark"],
    "expire": ["", "--dry-run", "events"],
    "delete-records": ["events --before-offset -1", "events --partition 0 --before-offset 1 --dry-run"],
    "housekeep": ["", "--barrier"],
    "compute-watermark": ["--engine local", "--no-scan --engine local", "--dry-run --engine local"],
    "sweep": ["--engine local", "--engine local --dry-run", "--engine local --max-objects 1"],
    "vacuum": ["--engine local --l1-grace 0s --orphan-age 0s", "--engine local --dry-run"],
    "gc": ["--engine local", "--engine local --dry-run", "--engine local --barrier --no-reconcile"],
}
"""What changes the cluster or its data, with arguments. In a dry run it says that the run would be refused."""

GOES_ON: dict[str, list[str]] = {
    "init": ["", "--shards 4"],  # tries the store, and finds the cluster founded
    "doctor": [""],
    "pause": ["--why restored"],
    "undelete": ["--run 20260131T235959Z-0123abcd"],  # brings objects back, in case of need; there is no such run here
    "resume": [""],
}
"""What an operator needs meanwhile. It may write to the bucket, but not to a log."""

READS: dict[str, list[str]] = {
    "topic list": [""],
    "topic describe": ["events"],
    "epoch show": [""],
    "producer list": [""],
    "producer describe": ["nightly"],
    "runs list": [""],
    "runs show": ["20260131T235959Z-0123abcd"],
    "read": ["events"],
    "status": [""],
    "report": [f"--output {FILE}.html"],
    "explain": [PUBLISHED_WATERMARK],
    "log show": ["--controller", "--journal 0"],
    "config show": [""],
    "completion": ["bash"],
    "help": ["sweep"],
}
"""What writes nothing to the bucket."""

ELSEWHERE = {
    "verify": "reads, on Spark",
    "demo": "works on a server of its own",
    "server": "serves until it is stopped",
}
"""What is not run here, and why it need not be."""

EXPIRED_INTERVAL = "0.001"
"""Seconds after which an epoch is over, so that a tick is always due."""


def leaves(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[str]:
    """The names of all commands."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from leaves(command, (*path, name))
        else:
            yield " ".join((*path, name))


def test_every_command_is_in_one_of_the_tables() -> None:
    assert sorted(leaves(cli)) == sorted([*REFUSED, *GOES_ON, *READS, *ELSEWHERE])


class Place:
    """A bucket whose controller log was set back, while M or only the published cluster epoch is ahead of it."""

    def __init__(self, config: StoreConfig, scratch: Path, *, m_is_ahead: bool) -> None:
        self._config = config
        self.store = S3Store(config)
        self.file = scratch / "records"
        self.file.write_bytes(b"1\n2\n3\n4\n")
        self.done("init", "--create-bucket", "--shards", "4", "--journals", "2")
        self.done("topic", "create", "events", "--partitions", "2", "--journals", "2")
        self.done("upload", "events", str(self.file), "--producer", "nightly")
        backup = self._bodies(CONTROLLER_LOG)
        self.epoch = max(int(key[-20:]) for key in backup if "/log/" in key)
        for _ in range(4):
            self.done("epoch", "advance")
            self.done("upload", "events", str(self.file))
            if m_is_ahead:
                self._lift()  # what is unreconciled holds M
        self.done("housekeep", "--barrier")
        self.done("compute-watermark", "--no-scan", "--engine", "local")
        self.highest = max(int(key[-20:]) for key in self._bodies(f"{CONTROLLER_LOG}log/"))
        self.store.delete(list(self._bodies(CONTROLLER_LOG)))
        for key, body in backup.items():
            self.store.put(key, body)
        self.file.write_bytes(b"of nobody\n")

    def _lift(self) -> None:
        with library.open(self._config.url) as cluster:
            cluster.reconcile()

    def _bodies(self, prefix: str) -> dict[str, bytes]:
        return {key: self.store.get(key).body for page in self.store.scan(prefix) for key in page.keys}

    def done(self, *args: str) -> None:
        ended = ended_here(*args)
        assert ended.code == 0, ended.stderr

    def objects(self, *prefixes: str) -> dict[str, str]:
        """What lies below these prefixes, each with its ETag, but for the notes of how a command last ended (status)."""
        base = self._config.prefix
        listing = self.store.client.list_objects_v2(Bucket=self._config.bucket, Prefix=base)
        assert not listing["IsTruncated"]
        found = {o["Key"].removeprefix(base): o["ETag"] for o in listing["Contents"]}
        return {k: etag for k, etag in found.items() if k.startswith(prefixes) and not k.startswith(ATTEMPTS)}

    def runs(self, table: dict[str, list[str]]) -> Iterator[tuple[str, Ended]]:
        """Runs the commands of a table, and yields how each ended."""
        for command, invocations in table.items():
            for options in invocations:
                arguments = options.replace(FILE, str(self.file)).replace(EPOCH, str(self.epoch)).split()
                yield f"{command} {options}", ended_here(*command.split(), *arguments)


@pytest.fixture
def place(
    request: pytest.FixtureRequest, bucket: StoreConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Place:
    m_is_ahead = getattr(request, "param", True)
    found = Place(bucket, tmp_path, m_is_ahead=m_is_ahead)
    published = msgspec.json.decode(found.store.get(PUBLISHED_WATERMARK).body.split(b"\n")[0])
    assert found.epoch < published["cluster_epoch"]
    assert (found.epoch < published["watermark"]) == m_is_ahead
    monkeypatch.setenv("L0GC_EPOCH_INTERVAL", EXPIRED_INTERVAL)
    return found


@pytest.mark.weed
@pytest.mark.parametrize("place", [False, True], ids=["the epoch is ahead", "M is ahead"], indirect=True)
def test_a_refused_command_says_so_in_a_sentence_and_leaves_the_bucket_as_it_was(place: Place) -> None:
    before = place.objects("")
    for name, ended in place.runs(REFUSED):
        assert ended.code == 4, (name, ended.stderr)
        assert ended.stdout == b"" or name.startswith("gc"), name  # it names the steps that were refused
        said = ended.stderr.splitlines()
        assert said, name
        assert len(said) == 1 or name.startswith("gc"), name
        assert place.objects("") == before, name


@pytest.mark.weed
def test_what_goes_on_meanwhile_writes_to_no_log(place: Place) -> None:
    logs = (CONTROLLER_LOG, JOURNALS, PUBLISHED_WATERMARK)
    before = place.objects(*logs)
    for name, ended in place.runs(GOES_ON):
        # There is no such run to undelete, and doctor reports what is wrong.
        assert ended.code == {"undelete": 5, "doctor": 4}.get(name.split()[0], 0), (name, ended.stderr)
        assert place.objects(*logs) == before, name


@pytest.mark.weed
def test_what_reads_writes_nothing(place: Place) -> None:
    before = place.objects("")
    for name, ended in place.runs(READS):
        assert ended.code == (5 if name.startswith("runs show") else 0), (name, ended.stderr)
        assert place.objects("") == before, name


@pytest.mark.weed
def test_the_documented_way_out_is_not_refused(place: Place) -> None:
    highest = place.highest
    place.done("epoch", "advance", "--above", str(highest), "--close-unknown-topics")
    place.done("upload", "events", str(place.file))
    place.done("gc", "--engine", "local", "--barrier")
