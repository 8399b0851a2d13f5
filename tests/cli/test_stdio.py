"""A full, closed or unread stdout, a full disk, and arguments that are not text: one sentence each."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from l0gc.cli import main as entry
from l0gc.storage.s3 import S3Store
from tests.support.cli import BIN, founded, l0gc, l0gc_process
from tests.support.tries import sampled

pytestmark = pytest.mark.weed

FULL = "l0gc: the command succeeded, but its result could not be written to stdout: No space left on device\n"
CLOSED = "l0gc: the command succeeded, but its result could not be written to stdout: it is closed\n"


def shell(redirection: str, *args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run a command as `l0gc ARGS REDIRECTION` in a shell."""
    return subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {redirection}', "sh", *BIN, *args], capture_output=True, input=stdin, check=False
    )


@pytest.fixture
def cluster(store: S3Store) -> None:
    founded()


@pytest.mark.parametrize("arguments", sampled([["status"], ["log", "show"]], [["status"]]))
def test_a_stdout_that_takes_nothing_is_one_sentence_and_1(cluster: None, arguments: list[str]) -> None:
    full, closed = shell(">/dev/full", *arguments), shell(">&-", *arguments)
    assert (full.returncode, closed.returncode) == (1, 1)
    if arguments[0] == "log":
        assert full.stderr.decode() == "l0gc: stdout could not be written: No space left on device\n"
        assert closed.stderr.decode() == "l0gc: stdout could not be written: it is closed\n"
    else:
        assert (full.stderr.decode(), closed.stderr.decode()) == (FULL, CLOSED)


@pytest.mark.parametrize("arguments", [["--help"], pytest.param(["status", "--help"], marks=pytest.mark.thorough)])
def test_so_it_is_for_help(arguments: list[str]) -> None:
    for redirection, why in ((">/dev/full", "No space left on device"), (">&-", "it is closed")):
        ended = shell(redirection, *arguments)
        assert (ended.returncode, ended.stderr.decode()) == (1, f"l0gc: stdout could not be written: {why}\n")


def test_a_failed_print_does_not_fail_the_job(cluster: None) -> None:
    assert shell(">/dev/full", "housekeep", "--barrier").returncode == 1
    status = l0gc("status")
    assert status["cluster_epoch"] == 2
    assert [a for a in status["attempts"] if not a["ok"]] == []


def test_a_reader_that_has_gone_is_141_and_no_word(cluster: None) -> None:
    r, w = os.pipe()
    os.close(r)
    ended = subprocess.run([*BIN, "status"], stdout=w, stderr=subprocess.PIPE, check=False)
    os.close(w)
    assert (ended.returncode, ended.stderr) == (141, b"")


def test_a_closed_stdin_is_a_sentence(cluster: None) -> None:
    ended = shell("<&-", "upload", "events", "-")
    assert (ended.returncode, ended.stderr.decode()) == (
        1,
        "l0gc: stdin is closed, and the command reads from it\n",
    )


def test_a_stderr_that_is_full_does_not_fail_the_job(cluster: None) -> None:
    assert shell("2>/dev/full", "housekeep", "--barrier", "-v").returncode == 0
    assert shell("2>/dev/full", "topic", "describe", "nosuch").returncode == 5
    assert l0gc("status")["cluster_epoch"] == 2


def test_a_closed_stderr_changes_nothing_but_that(cluster: None) -> None:
    ended = shell("2>&-", "topic", "describe", "nosuch")
    assert (ended.returncode, ended.stderr) == (5, b"")


WHY = 'l0gc: --why is empty: say why sweeps are paused, e.g. --why "restoring a backup"\n'
NO_TEXT = (
    (["pause", "--why", "caf\udce9"], "l0gc: --why is not UTF-8: caf\\xe9\n"),
    (["pause", "--why", ""], WHY),
    (["pause", "--why", " \n"], WHY),
    (["pause", "--why", "x", "--by", ""], "l0gc: --by is empty: say who pauses, or leave it out for user@host\n"),
    (["topic", "create", "\udcff", "--partitions", "1"], "l0gc: NAME is not UTF-8: \\xff\n"),
    (["upload", "events", "\udcff.ndjson"], "l0gc: cannot read \\xff.ndjson: No such file or directory\n"),
)


def test_an_argument_that_is_no_text_is_refused_by_name(
    cluster: None, run_here: Callable[..., tuple[int, str, str]]
) -> None:
    for arguments, said in NO_TEXT:
        if all(a.isascii() for a in arguments):
            assert run_here(*arguments) == (2, "", said)
        else:  # pytest keeps what is logged in this process, and its processes can only send each other text
            ended = subprocess.run([*BIN, *arguments], capture_output=True, text=True, check=False)
            assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", said)
    assert l0gc("status")["paused"] is None


def test_a_file_name_may_be_any_bytes(cluster: None, tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff.ndjson"
    Path(os.fsdecode(path)).write_bytes(b"one\n")
    ended = subprocess.run([*BIN, "upload", "events", path, "--producer", "p"], capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_a_full_disk_is_a_sentence_that_names_the_way_out(capfd: pytest.CaptureFixture[str]) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/tmp/l0gc-input-x")
    assert entry._of_this_machine(full) == (
        "no space left for /tmp/l0gc-input-x: free some, or set TMPDIR to a folder that has more"
    )
    none = FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")
    assert entry._of_this_machine(none) == (
        "no usable temporary directory found in ['/tmp']: set TMPDIR to a writable folder"
    )


def test_a_folder_for_temporary_files_that_takes_no_more_is_a_sentence(cluster: None) -> None:
    limited = ["/bin/sh", "-c", 'ulimit -f 64; exec "$@"', "sh", *BIN]
    ended = subprocess.run(
        [*limited, "upload", "events", "-", "--producer", "p"],
        input=b"x" * 70_000 + b"\n",
        capture_output=True,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith(b"l0gc: ")
    assert b"File too large" in ended.stderr
    assert ended.stderr.count(b"\n") == 1
    assert l0gc_process("read", "events").stdout == b""
