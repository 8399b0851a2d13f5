"""No process that l0gc started outlives it. A stand-in for Spark behaves as Java does, and no Java is started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from l0gc.spark.gateway import signals_later, without_zips
from l0gc.storage.s3 import S3Store
from tests.support.cli import BIN, l0gc
from tests.support.processes import left_of, marked, new_mark

pytestmark = pytest.mark.weed

STARTING = "touch $STARTED; echo noise; echo noise >&2; sleep 1000 & wait"
"""A script that starts its own Java to find the settings, as spark-class does, and responds only to a kill."""
WAITING = "touch $STARTED; cat > /dev/null"
"""Java, which ends when its stdin does."""
WORKER = "import os, time; os.setpgid(0, 0); open(os.environ['STARTED'], 'w'); time.sleep(1000)"
WORKING = f'{sys.executable} -c "{WORKER}" & cat > /dev/null'
"""Java with a worker, which has its own process group, and is slow to notice that Java has ended."""
SLOW = "trap '' TERM; touch $STARTED; while :; do sleep 0.1; done"
"""Java on a busy machine, which takes longer to end than l0gc waits."""
ENDING = "echo noise; exit 0"

VERIFY = (*BIN, "verify", "--engine", "spark")

Start = Callable[..., tuple["subprocess.Popen[bytes]", dict[str, str]]]


@pytest.fixture
def start(store: S3Store, tmp_path: Path) -> Start:
    """Return a function that starts `l0gc verify`, or another line, in its own process group, and waits until this
    script runs as Spark.
    """
    l0gc("init", "--create-bucket", "--shards", "4")
    home, started = tmp_path / "spark", tmp_path / "started"
    (home / "bin").mkdir(parents=True)
    (home / "temporary").mkdir()

    def run(script: str, line: Sequence[str] = VERIFY) -> tuple[subprocess.Popen[bytes], dict[str, str]]:
        for name in ("spark-submit", "java"):
            (home / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
            (home / "bin" / name).chmod(0o700)
        mark = new_mark()
        places = {"SPARK_HOME": str(home), "JAVA_HOME": str(home), "TMPDIR": str(home / "temporary")}
        process = subprocess.Popen(
            line,
            env={**os.environ, **mark, **places, "STARTED": str(started)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        while script != ENDING and not started.exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        return process, mark

    return run


STUCK = """
import threading, time
from l0gc.cli import signals
from l0gc.spark.gateway import start_java
signals.listen()
threading.Thread(target=start_java, args=({}, "python"), kwargs={"verbose": False}, daemon=True).start()
while True:
    try:
        time.sleep(1000)
    except KeyboardInterrupt:
        continue
"""
"""A command in a call that no signal ends."""


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, *(pytest.param(n, marks=pytest.mark.thorough) for n in (signal.SIGINT, signal.SIGHUP))]
)
def test_a_signal_while_java_starts_ends_all_of_it_in_one_line(start: Start, tmp_path: Path, number: int) -> None:
    process, mark = start(STARTING)
    os.killpg(process.pid, number)
    out, err = process.communicate(timeout=200)
    assert (process.returncode, out) == (128 + number, b"")
    assert err.startswith(b"l0gc: stopped: ")
    assert err.count(b"\n") == 1
    assert marked(mark) == []
    assert list((tmp_path / "spark" / "temporary").iterdir()) == []


@pytest.mark.parametrize("line", [VERIFY, (sys.executable, "-c", STUCK)], ids=["Java", "the command"])
@pytest.mark.thorough
def test_what_ends_too_late_leaves_nothing(start: Start, tmp_path: Path, line: tuple[str, ...]) -> None:
    process, mark = start(SLOW, line)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=200)
    assert process.returncode == 130, err
    assert marked(mark) == []
    assert list((tmp_path / "spark" / "temporary").iterdir()) == []


def test_a_worker_that_is_left_by_java_is_ended_before_l0gc_ends(start: Start) -> None:
    process, mark = start(WORKING)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=200)
    assert (process.returncode, err.count(b"\n")) == (130, 1)
    assert marked(mark) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGABRT, marks=pytest.mark.thorough)])
def test_java_goes_though_l0gc_could_not_end_it(start: Start, number: int) -> None:
    process, mark = start(WAITING)
    os.kill(process.pid, number)
    process.communicate(timeout=200)
    assert left_of(mark) == []


def test_a_java_that_ends_at_once_is_a_sentence(start: Start) -> None:
    process, mark = start(ENDING)
    out, err = process.communicate(timeout=200)
    assert (process.returncode, out) == (2, b"")
    assert err.startswith(b"l0gc: Spark could not be started: ")
    assert b"its Java ended at once: noise" in err
    assert marked(mark) == []


def test_a_signal_waits_until_the_process_that_begins_is_known() -> None:
    done = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: done.append("answered"))
    try:
        with signals_later():
            signal.raise_signal(signal.SIGTERM)
            done.append("known")
        assert done == ["known", "answered"]
        signal.raise_signal(signal.SIGTERM)
        assert done[2:] == ["answered"]
    finally:
        signal.signal(signal.SIGTERM, before)


HOLDING = """\
import sys
from l0gc.spark.gateway import own_folder
print(own_folder("java"), flush=True)
sys.stdin.read()
"""


def test_the_next_process_removes_a_killed_ones_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def hold() -> tuple[subprocess.Popen[str], Path]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        process: subprocess.Popen[str] = subprocess.Popen([sys.executable, "-c", HOLDING], **pipes)  # type: ignore[call-overload]
        assert process.stdout is not None
        return process, Path(process.stdout.readline().strip())

    (killed, left), (fresh, new), (lives, held) = hold(), hold(), hold()
    for process in (killed, fresh):
        process.kill()
        process.communicate()
    (left / "work").mkdir()
    (tmp_path / "l0gc-java-link").symlink_to(tmp_path)
    (tmp_path / "l0gc-python-other").mkdir()
    for folder in (left, held, tmp_path, tmp_path / "l0gc-python-other"):
        os.utime(folder, (1, 1))
    last, own = hold()
    assert {f.name for f in tmp_path.iterdir()} == {
        new.name,
        held.name,
        own.name,
        "l0gc-java-link",
        "l0gc-python-other",
    }
    lives.communicate()
    last.communicate()
    assert not held.exists()


def test_no_program_is_written_where_none_may_run(monkeypatch: pytest.MonkeyPatch) -> None:
    without_zips.cache_clear()
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=os.ST_NOEXEC))
    assert without_zips() == sys.executable
    without_zips.cache_clear()
