"""Ctrl-C, SIGTERM and SIGHUP at moments spread over the long commands, with the real Java."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from itertools import cycle
from pathlib import Path

import pytest

from l0gc.storage.s3 import S3Store
from tests.support.cli import l0gc, l0gc_process
from tests.support.processes import marked, new_mark

pytestmark = [pytest.mark.thorough, pytest.mark.slow, pytest.mark.spark, pytest.mark.weed]

BIN = [sys.executable, "-c", "from l0gc.cli.entry import main; main()"]
MOMENTS = 10
COMMANDS = (["compute-watermark"], ["reconcile"], ["gc"], ["verify", "--deep"])
NOTE = re.compile("l0gc: (computing M|[a-z]+ing)(:|$)")
"""Of a machine that takes longer than a minute for it."""
LINES = b"".join(b'{"user": %d, "text": "%s"}\n' % (i, b"x" * 60) for i in range(20_000))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_nothing_is_left_whenever_a_signal_comes(store: S3Store, tmp_path: Path, command: list[str]) -> None:
    l0gc("init", "--create-bucket", "--shards", "4")
    l0gc("topic", "create", "events", "--partitions", "4")
    began = time.monotonic()
    upload()
    assert subprocess.run([*BIN, *command], capture_output=True, check=False).returncode == 0
    seconds = time.monotonic() - began
    signals = cycle([signal.SIGINT, signal.SIGINT, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    ended = []
    for moment, number in zip(range(1, MOMENTS + 1), signals, strict=False):
        upload()
        temporary = tmp_path / str(moment)
        temporary.mkdir()
        ended.append(interrupted(command, 0.3 + seconds * moment / (MOMENTS + 1), number, temporary))
    assert sum(code != 0 for code in ended) >= MOMENTS // 2  # a run may end before its moment; most have not


def upload() -> None:
    assert l0gc_process("upload", "events", "-", "--batch-bytes", "64KiB", stdin=LINES).code == 0


def interrupted(command: list[str], after_s: float, number: signal.Signals, temporary: Path) -> int:
    """Run the command, send its group a signal, and check how it ended; returns its exit code."""
    mark = new_mark()
    process = subprocess.Popen(
        [*BIN, *command],
        env={**os.environ, **mark, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    time.sleep(after_s)
    if process.poll() is None:
        os.killpg(process.pid, number)
    _, err = process.communicate(timeout=120)  # its stdout is nobody else's: this would hang
    said = f"{command[0]} after {after_s:.1f} s, {number.name}: {process.returncode} {err.decode()}"
    assert process.returncode in (0, 128 + number), said
    lines = [line for line in err.decode().splitlines() if not NOTE.match(line)]
    assert len(lines) == (1 if process.returncode else 0), said
    assert all(line.startswith("l0gc: stopped: ") for line in lines), said
    assert marked(mark) == [], said
    assert list(temporary.iterdir()) == [], said
    return process.returncode
