"""The sweep's command on a real server: what it may delete, how it is stopped, and what its record contains afterwards."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from l0gc.keys import RUNS, KeyLayout
from l0gc.storage.parallel import Parallel
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.watermark.publication import PublishedWatermark, publish
from tests.support.cli import BIN, Ended, ended_here, l0gc, start

pytestmark = pytest.mark.weed

SHARDS = 4
LAYOUT = KeyLayout(shards=SHARDS)
M = 2
MANY = 500


def a_bucket(store: S3Store, objects: int = 100) -> None:
    """Create a cluster with about `objects` objects at or below M = 2, and a tenth as many above it."""
    l0gc("init", "--create-bucket", "--shards", str(SHARDS))
    cluster = ClusterHandles(store)
    for _ in range(4):
        cluster.controller.advance()

    def put(n: int) -> None:
        epoch = n % (M + 1) if n < objects else M + 1
        store.put(LAYOUT.format(n % SHARDS, epoch, f"{n:08x}-0000-4000-8000-000000000000"), b"x" * 100)

    with Parallel(16, "fill") as threads:
        threads.map(put, range(objects + objects // 10))
    state = cluster.controller.snapshot()
    new = PublishedWatermark(state.cluster_id, M, state.epoch, 0, objects, objects * 100, objects + objects // 10)
    publish(store, cluster.runtime, new)


def level_zero(store: S3Store) -> set[str]:
    return {k for p in store.scan(LAYOUT.data_prefix) for k in p.keys}


def garbage(store: S3Store) -> set[str]:
    return {k for k in level_zero(store) if (p := LAYOUT.parse(k)) and p.epoch <= M}


def when_some_are_gone(store: S3Store, process: subprocess.Popen[bytes], of: int) -> None:
    deadline = time.monotonic() + 240
    while len(garbage(store)) == of:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def end(process: subprocess.Popen[bytes]) -> Ended:
    try:
        out, err = process.communicate(timeout=200)
    finally:
        process.kill()
        process.wait()
    return Ended(process.returncode, out, err.decode())


# -- signals --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(signal.SIGINT, 130, marks=pytest.mark.thorough), (signal.SIGTERM, 143)]
)
def test_a_signalled_sweep_is_completed_by_another(store: S3Store, number: signal.Signals, code: int) -> None:
    a_bucket(store, MANY)
    before = level_zero(store)
    process = start(["sweep", "--json", "--max-rate", "25"])
    when_some_are_gone(store, process, MANY)
    process.send_signal(number)
    ended = end(process)
    assert ended.code == code, ended.stderr
    gone = before - level_zero(store)
    assert ended.data["stopped"] is True
    assert 0 < ended.data["deleted"] == len(gone) < MANY
    assert "another sweep continues from there" in ended.stderr
    shown = l0gc("runs", "show", ended.data["run_id"])
    assert (shown["outcome"], shown["by_status"]["deleted"]) == ("stopped", len(gone))
    assert set(shown["by_status"]) <= {"deleted", "left"}
    assert l0gc("sweep")["deleted"] == MANY - len(gone)
    assert garbage(store) == set()


@pytest.mark.thorough
def test_the_record_of_a_killed_sweep_is_true(store: S3Store) -> None:
    a_bucket(store, MANY)
    process = start(["sweep", "--json", "--max-rate", "25"])
    when_some_are_gone(store, process, MANY)
    process.kill()
    ended = end(process)
    assert (ended.code, ended.stdout) == (-signal.SIGKILL, b"")
    gone = MANY - len(garbage(store))
    (run,) = l0gc("runs", "list")["runs"]
    assert (run["outcome"], run["deleted"]) == ("killed", None)
    shown = l0gc("runs", "show", run["run_id"])
    assert shown["by_status"] == {"deleted": gone, "left": MANY - gone}
    assert l0gc("sweep")["deleted"] == MANY - gone
    assert [r["outcome"] for r in l0gc("runs", "list")["runs"]] == ["killed", "done"]


@pytest.mark.thorough
def test_a_second_signal_ends_it_at_once(store: S3Store) -> None:
    a_bucket(store, MANY)
    process = start(["sweep", "--max-rate", "25"])
    when_some_are_gone(store, process, MANY)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    assert end(process).code in {-signal.SIGINT, 130}
    (run,) = l0gc("runs", "list")["runs"]
    assert l0gc("runs", "show", run["run_id"])["by_status"]["deleted"] == MANY - len(garbage(store))


# -- deletions ------------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_shards_and_limits_are_kept_and_a_dry_run_says_the_same(store: S3Store) -> None:
    a_bucket(store)
    varying = {"dry_run", "seconds", "run_id"}
    for options, deleted in [
        (["--shards", "001"], 25),
        (["--shards", "002-003", "--max-objects", "7"], 7),
        (["--max-objects", "10"], 10),
        (["--max-bytes", "555", "--max-objects", "6"], 5),
        ([], 53),
        ([], 0),
    ]:
        dry, done = l0gc("sweep", "--dry-run", *options), l0gc("sweep", *options)
        assert done["deleted"] == deleted
        assert {k: v for k, v in dry.items() if k not in varying} == {k: v for k, v in done.items() if k not in varying}
    assert garbage(store) == set()
    assert len(level_zero(store)) == 10
    before = set(store.list("l0gc/").modified_ms)
    idle = l0gc("sweep")
    assert (idle["deleted"], idle["requests"]["delete"]) == (0, 0)
    assert set(store.list("l0gc/").modified_ms) == before, "a sweep without garbage leaves no record"


@pytest.mark.thorough
def test_a_vacuum_removes_old_records_and_a_sweep_none(store: S3Store) -> None:
    a_bucket(store)
    first = l0gc("sweep", "--max-objects", "5")["run_id"]
    time.sleep(1.1)  # run ids hold whole seconds
    l0gc("sweep", "--max-objects", "5")
    assert l0gc("runs", "list")["total"] == 2
    l0gc("vacuum", "--keep-runs", "0s")
    assert not [k for k in store.list(RUNS).modified_ms if first in k]


@pytest.mark.thorough
def test_a_versioned_bucket_is_swept_taken_back_and_purged(store: S3Store) -> None:
    a_bucket(store)
    # Objects from before versioning come back, too: their version is called null.
    store.client.put_bucket_versioning(Bucket=store.config.bucket, VersioningConfiguration={"Status": "Enabled"})
    before = level_zero(store)
    ended = ended_here("sweep")
    assert "the bucket keeps versions" in ended.stdout.decode()
    run = re.search(r"undelete --run (\S+)", ended.stdout.decode())
    assert run is not None
    assert l0gc("undelete", "--run", run[1])["restored"] == 100
    assert level_zero(store) == before
    purged = l0gc("sweep", "--purge-versions")
    assert (purged["deleted"], purged["versioning"]) == (100, "enabled")
    left = {k for p in store.versions(LAYOUT.data_prefix) for k in p.keys}
    assert left == level_zero(store) == before - {k for k in before if (q := LAYOUT.parse(k)) and q.epoch <= M}
    refused = ended_here("undelete", "--run", purged["run_id"])
    assert (refused.code, "for good" in refused.stderr) == (2, True)
    assert ended_here("runs", "list").stdout.decode().count("deleted for good, with all versions") == 1
    assert [r["purge_versions"] for r in l0gc("runs", "list")["runs"]].count(True) == 1


# -- output ---------------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_progress_is_a_note_again_and_again_where_nobody_watches(store: S3Store) -> None:
    a_bucket(store)
    code = "import l0gc.cli.progress as p; p.NOTE_EVERY_S = 0.5; from l0gc.cli.main import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", code, "sweep", "--max-rate", "30"], capture_output=True, text=True, check=True
    )
    notes = [line for line in ended.stderr.splitlines() if "deleted," in line]
    assert notes
    assert re.fullmatch(r"l0gc: sweeping: [\d,]+ of 100 objects deleted, [\d.]+ \w+, shard 00\d(, .*)?", notes[0])
    assert "\x1b" not in ended.stderr
    quiet = ended_here("sweep")
    assert quiet.stderr == ""


@pytest.mark.thorough
def test_progress_fits_a_terminal_of_80_columns(store: S3Store, tmp_path: Path) -> None:
    import pty

    a_bucket(store, 300)
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"COLUMNS": "80", "LINES": "24", "TERM": "xterm"}
        os.execv(sys.executable, [*BIN, "sweep", "--max-rate", "100"])
    shown = b""
    while True:
        try:
            piece = os.read(terminal, 4096)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    os.waitpid(pid, 0)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    lines = [line for line in re.split(r"[\r\n]+", text) if "sweeping" in line]
    assert lines
    assert max(len(line) for line in lines) <= 80
    assert any("deleted" in line for line in lines)
    (tmp_path / "shown").write_text("\n".join(lines))


# -- single objects -------------------------------------------------------------------------------------------------------


def test_what_would_go_and_what_went_is_listed_object_by_object(store: S3Store, tmp_path: Path) -> None:
    a_bucket(store)
    before = sorted(garbage(store))
    dry = l0gc("sweep", "--dry-run", "--list", str(tmp_path / "list"))
    rows = [line.split("\t") for line in (tmp_path / "list").read_text().splitlines()]
    assert [r[0] for r in rows] == before
    assert {int(r[1]) for r in rows} == {0, 1, 2}
    assert {r[2] for r in rows} == {"100"}
    assert dry["deleted"] == len(rows)
    ended = ended_here("sweep", "--dry-run", "--list", "-")
    assert [line.split("\t")[0] for line in ended.stdout.decode().splitlines()] == before
    assert "would be deleted" in ended.stderr
    for wrong in (["--list", "-"], ["--dry-run", "--list", "-", "--json"]):
        assert ended_here("sweep", *wrong).code == 2
    run = l0gc("sweep")["run_id"]
    shown = ended_here("runs", "show", run, "--all").stdout.decode().splitlines()
    assert sorted(line.split("\t")[0] for line in shown if line.endswith("\tdeleted")) == before
