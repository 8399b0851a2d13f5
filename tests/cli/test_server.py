"""`l0gc server` prints all that another terminal needs, and leaves nothing behind at its end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from l0gc.cli.demo import _OWN, _environment
from tests.embedded.test_seaweedfs import wait_until_dead
from tests.support.cli import BIN, ended_here, l0gc, l0gc_process

pytestmark = pytest.mark.weed
HOST = "127.0.0.1"


@contextmanager
def running(*args: str, tmp: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a server in its own process, with its temporary folders below `tmp`."""
    process = subprocess.Popen(
        [*BIN, "server", *args],
        env={**os.environ, "TMPDIR": str(tmp)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def read_exports(stdout: IO[str] | None) -> dict[str, str]:
    assert stdout is not None
    exports = {}
    for _ in range(6):
        words = stdout.readline().split()
        assert words[0] == "export"
        name, _, value = words[1].partition("=")
        exports[name] = value
    return exports


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGHUP, marks=pytest.mark.thorough)])
def test_the_printed_lines_suffice_for_a_client(tmp_path: Path, number: signal.Signals) -> None:
    with running(tmp=tmp_path) as process:
        exports = read_exports(process.stdout)
        assert exports["AWS_ENDPOINT_URL_S3"].startswith(f"http://{HOST}:")
        founded = ended_here("init", "--create-bucket", "--json", environment=exports)
        assert founded.code == 0, founded.stderr
        assert founded.data["created"]
        (folder,) = tmp_path.iterdir()
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (0, "")
    assert "Ctrl-C here ends it" in err
    assert err.splitlines()[-1].endswith("the S3 server has ended; its data is gone")
    assert not folder.exists()
    port = int(exports["AWS_ENDPOINT_URL_S3"].rpartition(":")[2])
    with socket.socket() as client, pytest.raises(ConnectionRefusedError):
        client.connect((HOST, port))


@pytest.mark.thorough
def test_a_directory_keeps_the_data_for_the_next_server(tmp_path: Path) -> None:
    data, scratch = tmp_path / "data", tmp_path / "scratch"
    scratch.mkdir()
    with socket.socket() as free:
        free.bind((HOST, 0))
        port = str(free.getsockname()[1])
    ids = []
    for _ in range(2):
        with running("--directory", str(data), "--port", port, tmp=scratch) as process:
            exports = read_exports(process.stdout)
            assert exports["AWS_ENDPOINT_URL_S3"] == f"http://{HOST}:{port}"
            ids.append(ended_here("init", "--create-bucket", "--json", environment=exports).data)
            process.send_signal(signal.SIGINT)
            assert f"its data is kept in {data}" in process.communicate(timeout=120)[1]
    assert [i["created"] for i in ids] == [True, False]
    assert ids[0]["cluster_id"] == ids[1]["cluster_id"]


def test_json_is_one_object_with_the_same_lines(tmp_path: Path) -> None:
    with running("--json", "--url", "s3://mine/here", tmp=tmp_path) as process:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        assert said["environment"]["AWS_ENDPOINT_URL_S3"] == said["endpoint_url"]
        assert said["environment"]["L0GC_URL"] == "s3://mine/here"
        os.kill(said["pid"], signal.SIGKILL)  # the server itself, not l0gc
        _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "ended unexpectedly" in err
    assert list(tmp_path.iterdir()) == []


def test_user_settings_do_not_reach_the_server_or_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "l0gc" / "config.toml"
    file.parent.mkdir()
    file.write_text('profile = "of-the-user"\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with running("--json", tmp=scratch) as process:
        assert process.stdout is not None
        exports = json.loads(process.stdout.readline())["environment"]
        assert exports["L0GC_CONFIG"] == os.devnull
        assert ended_here("init", "--create-bucket", environment=exports).code == 0
    with _environment(_OWN):
        assert l0gc("config", "show")["file"] == os.devnull


def test_a_killed_l0gc_takes_the_server_with_it(tmp_path: Path) -> None:
    with running("--json", tmp=tmp_path) as process:
        assert process.stdout is not None
        pid = json.loads(process.stdout.readline())["pid"]
        process.kill()
        assert wait_until_dead(pid)


def test_a_taken_port_and_a_file_as_folder_get_a_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        ended = l0gc_process("server", "--port", str(taken.getsockname()[1]))
    assert ended.code == 1
    assert "is not available" in ended.stderr
    file = tmp_path / "file"
    file.touch()
    ended = l0gc_process("server", "--directory", str(file))
    assert (ended.code, ended.stdout) == (2, b"")
    assert "is not a folder" in ended.stderr


def test_without_the_extra_the_sentence_names_it(tmp_path: Path) -> None:
    hide = "import l0gc.embedded.seaweedfs as s; s.Path = lambda *a: __import__('pathlib').Path('/nowhere/x')"
    code = f"{hide}\nfrom l0gc.cli.main import main\nmain()"
    ended = subprocess.run(
        [BIN[0], "-c", code, "server"],
        env={**os.environ, "PATH": tempfile.gettempdir()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert "pip install '.[server]' in a checkout" in ended.stderr
