"""No command writes to the logs of a cluster after a log went back, and no new command is forgotten (hazards 10 and
38).

A command's row in `COMMANDS` gives its effect on a cluster; arguments for those that need them are below.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

import l0gc as library
from l0gc.cli.main import CHANGES, GOES_ON, READS, effects
from l0gc.keys import ATTEMPTS, CONTROLLER_LOG, JOURNALS, PUBLISHED_WATERMARK
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store
from tests.cli.test_docs import LEAVES
from tests.support.cli import Ended, ended_here

FILE = "FILE"
"""Stands for a file of records that were never uploaded."""
EPOCH = "EPOCH"
"""Stands for the cluster epoch of the restored log."""

ARGUMENTS: dict[str, list[str]] = {
    "topic create": ["refused --partitions 1", "again --partitions 2 --journals 2 --retention 1d"],
    "topic alter": ["events --retention 1d", "--defaults --retention-bytes 1"],
    "topic delete": ["events --yes"],
    "topic describe": ["events"],
    "pin create": ["refused", "refused --level-one --ttl 1h"],
    "pin delete": ["held"],
    "table create": ["events --catalog lake"],
    "epoch advance": ["", "--expect EPOCH", "--above EPOCH", "--above EPOCH --close-unknown-topics"],
    "upload": [f"events {FILE}", f"events {FILE} --producer nightly", f"events {FILE} --producer new"],
    "reconcile": ["", "events"],
    "merge": ["--engine local", "--dry-run", "--engine spark"],
    "expire": ["", "--dry-run", "events"],
    "delete-records": [
        "events --all-partitions --before-offset -1 --yes",
        "events --partition 0 --before-offset 1 --dry-run",
    ],
    "give-up": ["events --partition 0 --offsets 0 --yes", "events --partition 0 --offsets 0-1 --force-readable --yes"],
    "housekeep": ["", "--barrier"],
    "compute-watermark": ["--engine local", "--no-scan --engine local", "--dry-run --engine local"],
    "sweep": ["--engine local", "--engine local --dry-run", "--engine local --max-objects 1"],
    "vacuum": ["--engine local --l1-grace 0s --orphan-age 0s", "--engine local --dry-run"],
    "gc": [
        "--engine local",
        "--engine local --dry-run",
        "--engine local --housekeep-barrier --no-reconcile --no-merge",
    ],
    "init": ["", "--shards 4"],  # checks the store, and finds the cluster already founded
    "pause": ["--why restored"],
    "undelete": ["--run 20260131T235959Z-0123abcd"],  # would bring objects back if needed; this run does not exist
    "producer describe": ["nightly"],
    "runs show": ["20260131T235959Z-0123abcd"],
    "runs find": ["level_zero/data/000/000000000000000001/0192a8b0-4ff2-4a53-9a1c-5a1c1de0c0de"],
    "read": ["events"],
    "report": [f"--output {FILE}.html"],
    "explain": [PUBLISHED_WATERMARK],
    "log show": ["--controller", "--journal 0"],
    "completion": ["bash"],
    "help": ["sweep"],
}
"""The arguments of commands that need some, or are also run with some."""

OF_THE_CONTROLLER = ["epoch advance", "pin delete"]
"""Commands that concern only the controller's log, and still run if only a journal was set back."""

ELSEWHERE = {
    "verify": "reports what is wrong here",
    "topic infer": "no record here is JSON; tests/streamlog/level_one/test_typed.py has it",
    "table sync": "there is no table here; tests/integrations/iceberg has it",
    "table drop": "there is no table here; tests/integrations/iceberg has it",
}
"""Commands that would have an effect but are not run here, each with the reason."""

EXPIRED_INTERVAL = "1s"
"""After this time an epoch is over, so that a tick is due for each command."""


def test_every_command_says_in_its_row_what_it_does() -> None:
    assert sorted(LEAVES) == sorted(effects())
    assert ARGUMENTS.keys() | ELSEWHERE.keys() <= effects().keys()


def commands(effect: str) -> dict[str, list[str]]:
    """Return the arguments of the commands with that effect."""
    names = (name for name, (does, _) in effects().items() if does == effect and name not in ELSEWHERE)
    return {name: ARGUMENTS.get(name, [""]) for name in names}


@dataclass(frozen=True)
class Life:
    """A bucket's objects at its backup and at the end; the controller log's newest entry at the backup and the highest
    epoch.
    """

    backup: dict[str, bytes]
    end: dict[str, bytes]
    epoch: int
    highest: int


_LIVES: dict[bool, Life] = {}
"""The life in which M passed the epoch of the backup, and the one in which it did not: each runs once, and is copied.
"""


class Place:
    """A bucket of which a part was set back: the controller log, while M or only the published epoch is ahead of it, or
    all journals. `newest` is what that part held before.
    """

    def __init__(
        self, config: StoreConfig, scratch: Path, part: str = CONTROLLER_LOG, *, m_is_ahead: bool = True
    ) -> None:
        self._config = config
        self.store = S3Store(config)
        self.file = scratch / "records"
        self.file.write_bytes(b"1\n2\n3\n4\n")
        if m_is_ahead not in _LIVES:
            _LIVES[m_is_ahead] = self._live(m_is_ahead=m_is_ahead)
        else:
            self.store.create_bucket()
            self.restore("", _LIVES[m_is_ahead].end)
        life = _LIVES[m_is_ahead]
        self.epoch, self.highest = life.epoch, life.highest
        self.newest = {key: body for key, body in life.end.items() if key.startswith(part)}
        self.restore(part, {key: body for key, body in life.backup.items() if key.startswith(part)})
        self.file.write_bytes(b"of nobody\n")

    def _live(self, *, m_is_ahead: bool) -> Life:
        self.done("init", "--create-bucket", "--shards", "4", "--journals", "2")
        self.done("topic", "create", "events", "--partitions", "2", "--journals", "2")
        self.done("upload", "events", str(self.file), "--producer", "nightly")
        self.done("pin", "create", "held", "--level-one")
        backup = self._bodies("")
        epoch = self._newest_entry(CONTROLLER_LOG)
        for _ in range(4):
            self.done("epoch", "advance")
            self.done("upload", "events", str(self.file))
            if m_is_ahead:
                self._lift()  # unreconciled records hold M
        self.done("housekeep", "--barrier")
        self.done("compute-watermark", "--no-scan", "--engine", "local")
        return Life(backup, self._bodies(""), epoch, self._newest_entry(CONTROLLER_LOG))

    def restore(self, part: str, bodies: dict[str, bytes]) -> None:
        self.store.delete(list(self._bodies(part)))
        for key, body in bodies.items():
            self.store.put(key, body)

    def _newest_entry(self, log: str) -> int:
        return max(int(key[-20:]) for key in self._bodies(f"{log}log/"))

    def _lift(self) -> None:
        with library.open(self._config.url) as cluster:
            cluster.reconcile()

    def _bodies(self, prefix: str) -> dict[str, bytes]:
        return {key: self.store.get(key).body for page in self.store.scan(prefix) for key in page.keys}

    def done(self, *args: str) -> None:
        ended = ended_here(*args)
        assert ended.code == 0, ended.stderr

    def objects(self, *prefixes: str) -> dict[str, str]:
        """Return the objects below these prefixes, each with its ETag, except the notes of how a command last ended
        (status).
        """
        base = self._config.prefix
        listing = self.store.client.list_objects_v2(Bucket=self._config.bucket, Prefix=base)
        assert not listing["IsTruncated"]
        found = {o["Key"].removeprefix(base): o["ETag"] for o in listing["Contents"]}
        return {k: etag for k, etag in found.items() if k.startswith(prefixes) and not k.startswith(ATTEMPTS)}

    def runs(self, table: dict[str, list[str]]) -> Iterator[tuple[str, Ended]]:
        """Run the commands of a table, and yield how each ended."""
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
@pytest.mark.parametrize(
    ("place", "every"),
    [
        pytest.param(True, 9, id="M is ahead, a sample"),
        pytest.param(False, 15, id="the epoch is ahead, a sample", marks=pytest.mark.thorough),
        pytest.param(True, 1, id="M is ahead", marks=pytest.mark.thorough),
        pytest.param(False, 1, id="the epoch is ahead", marks=[pytest.mark.thorough, pytest.mark.release]),
    ],
    indirect=["place"],
)
def test_a_refused_command_leaves_the_bucket_unchanged(place: Place, every: int) -> None:
    """One check refuses both, and all commands pass it, so a sample of them suffices."""
    before = place.objects("")
    for name, ended in place.runs(dict([*commands(CHANGES).items()][::every])):
        assert ended.code == 4, (name, ended.stderr)
        assert ended.stdout == b"" or name.startswith("gc"), name  # gc names the steps that were refused
        said = ended.stderr.splitlines()
        assert said, name
        assert len(said) == 1 or name.startswith("gc"), name
        assert place.objects("") == before, name


@pytest.mark.weed
def test_what_goes_on_meanwhile_writes_to_no_log(place: Place) -> None:
    logs = (CONTROLLER_LOG, JOURNALS, PUBLISHED_WATERMARK)
    before = place.objects(*logs)
    for name, ended in place.runs(commands(GOES_ON)):
        # The run of undelete does not exist, and doctor reports what is wrong.
        assert ended.code == {"undelete": 5, "doctor": 4}.get(name.split()[0], 0), (name, ended.stderr)
        assert place.objects(*logs) == before, name


@pytest.mark.weed
def test_a_command_that_reads_writes_nothing(place: Place) -> None:
    before = place.objects("")
    for name, ended in place.runs(commands(READS)):
        assert ended.code == (5 if name.startswith(("runs show", "runs find")) else 0), (name, ended.stderr)
        assert place.objects("") == before, name


@pytest.mark.weed
def test_the_documented_way_out_is_not_refused(place: Place) -> None:
    highest = place.highest
    place.done("epoch", "advance", "--above", str(highest), "--close-unknown-topics")
    place.done("upload", "events", str(place.file))
    place.done("gc", "--engine", "local", "--housekeep-barrier")


@pytest.fixture
def journals_set_back(bucket: StoreConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    found = Place(bucket, tmp_path, JOURNALS)
    monkeypatch.setenv("L0GC_EPOCH_INTERVAL", EXPIRED_INTERVAL)
    return found


@pytest.mark.weed
@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.thorough)])
def test_commands_that_write_are_refused_after_journals_were_set_back(journals_set_back: Place, every: int) -> None:
    place = journals_set_back
    before = place.objects("")
    of_journals = [(k, v) for k, v in commands(CHANGES).items() if k not in OF_THE_CONTROLLER]
    for name, ended in place.runs(dict(of_journals[::every])):
        assert ended.code == 4, (name, ended.stderr)
        assert "journal 0 ended at offset" in ended.stderr, name
        assert "l0gc help operate-logs" in ended.stderr, name
        assert place.objects("") == before, name
    for name, ended in place.runs(commands(READS)):
        assert ended.code == (5 if name.startswith(("runs show", "runs find")) else 0), (name, ended.stderr)
        assert place.objects("") == before, name


@pytest.mark.weed
def test_gc_on_older_journals_deletes_nothing(
    journals_set_back: Place,
) -> None:
    place = journals_set_back
    before = place.objects("level_zero/", "level_one/")
    for options in ("", "--vacuum-l1-grace 0s --vacuum-orphan-age 0s"):
        ended = ended_here("gc", "--engine", "local", *options.split())
        assert ended.code == 4, ended.stderr
    assert place.objects("level_zero/", "level_one/") == before
    place.restore(JOURNALS, place.newest)
    place.done("gc", "--engine", "local", "--vacuum-l1-grace", "0s", "--vacuum-orphan-age", "0s")
    read = ended_here("read", "events")
    assert sorted(read.stdout.split()) == sorted(b"1 2 3 4".split() * 5), read.stderr


@pytest.mark.weed
def test_an_older_journal_is_accepted_where_the_user_says_so(journals_set_back: Place) -> None:
    place = journals_set_back
    before = place.objects("")
    for options, said in (("0", "give --yes"), ("9 --yes", "journal 9 does not exist")):
        ended = ended_here("housekeep", "--accept-set-back", *options.split())
        assert (ended.code, said in ended.stderr) == (2, True), ended.stderr
        assert place.objects("") == before
    ended = ended_here("housekeep", "--accept-set-back", "0", "--yes")
    assert (ended.code, "journal 1 ended at offset" in ended.stderr) == (4, True), ended.stderr
    place.done("housekeep", "--accept-set-back", "1", "--yes")
    ended = ended_here("housekeep", "--accept-set-back", "1", "--yes")
    assert (ended.code, "journal 1 was not set back" in ended.stderr) == (2, True), ended.stderr
    place.done("upload", "events", str(place.file))
