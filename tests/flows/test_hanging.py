"""A store that does not answer requests: a command ends in time at the first signal, and at once at the second."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from l0gc.embedded.seaweedfs import SeaweedFS
from l0gc.storage.config import StoreConfig
from tests.support.cli import founded, l0gc, l0gc_process, start
from tests.support.outcomes import HangAt, HangingFor, Passing
from tests.support.proxy import Proxy

pytestmark = [pytest.mark.weed, pytest.mark.thorough, pytest.mark.timeout(900)]

COMMANDS = {
    "gc": ["gc"],
    "reconcile": ["reconcile", "--engine", "local"],
    "compute-watermark": ["compute-watermark", "--engine", "local"],
    "status": ["status"],
    "verify": ["verify", "--deep", "--engine", "local"],
    "doctor": ["doctor"],
    "read": ["read", "events"],
}
WITHIN_S = 10.0
POINTS = 2


def stopped(
    args: list[str], weed: SeaweedFS, n: int, number: signal.Signals, *, again_s: float | None = None
) -> tuple[int, float, str]:
    """Send a signal while the command's n-th request hangs; return its exit code, how long it took, and its stderr."""
    behaviour = HangAt(n, after=False)
    with Proxy(weed.endpoint_url, behaviour) as proxy:
        process = start(args, {"AWS_ENDPOINT_URL": proxy.endpoint_url, "AWS_ENDPOINT_URL_S3": proxy.endpoint_url})
        while not behaviour.hung.wait(0.1) and process.poll() is None:
            pass
        time.sleep(0.5)
        began = time.monotonic()
        process.send_signal(number)
        if again_s is not None:
            time.sleep(again_s)
            process.send_signal(number)
        _, err = process.communicate(timeout=100)
        return process.returncode, time.monotonic() - began, err.decode()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_signal_ends_a_command_in_time_whichever_request_hangs(
    bucket: StoreConfig, weed: SeaweedFS, name: str, tmp_path: Path
) -> None:
    path = tmp_path / "records"
    path.write_bytes(b"a\nb\nc\n")
    founded()
    for _ in range(2):
        l0gc("upload", "events", str(path))
        l0gc("reconcile")
    l0gc("upload", "events", str(path))
    with Proxy(weed.endpoint_url, Passing()) as proxy:
        whole = l0gc_process(*COMMANDS[name], environment={"AWS_ENDPOINT_URL_S3": proxy.endpoint_url})
        assert whole.code in (0, 1), whole.stderr
        count = len(proxy.requests)
    l0gc("upload", "events", str(path))
    for at, number in zip(range(POINTS), (signal.SIGINT, signal.SIGTERM), strict=True):
        n = 1 + at * (count - 1) // POINTS
        code, took, said = stopped(COMMANDS[name], weed, n, number)
        assert (code, took < WITHIN_S) == (128 + number, True), f"request {n} of {count}, {took:.1f} s: {said}"
        assert "l0gc: stop" in said
    assert l0gc_process(*COMMANDS[name]).code == whole.code


def test_a_second_signal_ends_a_command_at_once(bucket: StoreConfig, weed: SeaweedFS, tmp_path: Path) -> None:
    path = tmp_path / "records"
    path.write_bytes(b"a\nb\nc\n")
    founded(partitions=40)
    l0gc("upload", "events", str(path))
    with Proxy(weed.endpoint_url, Passing()) as proxy:
        l0gc_process("verify", "--deep", environment={"AWS_ENDPOINT_URL_S3": proxy.endpoint_url})
        count = len(proxy.requests)
    code, took, said = stopped(["verify", "--deep"], weed, count, signal.SIGTERM, again_s=1.0)
    assert code in (-signal.SIGTERM, 128 + signal.SIGTERM)
    assert took < 3, said


@pytest.mark.parametrize(
    ("operation", "key"),
    [("GetObject", "l0gc/journal/"), ("PutObject", ""), ("ListObjectsV2", ""), ("DeleteObjects", ""), ("", "")],
)
def test_a_run_waits_for_a_silent_store_once(
    bucket: StoreConfig, weed: SeaweedFS, tmp_path: Path, operation: str, key: str
) -> None:
    """Whichever requests hang, the run ends with one sentence, and does not wait again for each step and journal."""
    path = tmp_path / "records"
    path.write_bytes(b"a\nb\nc\n" * 100)
    founded(partitions=8)
    for _ in range(3):
        l0gc("upload", "events", str(path))
        l0gc("epoch", "advance")
    with Proxy(weed.endpoint_url, HangingFor(operation, key and f"{bucket.prefix}{key}")) as proxy:
        began = time.monotonic()
        done = l0gc_process(
            "gc",
            "--store-timeout",
            "6s",
            environment={"AWS_ENDPOINT_URL_S3": proxy.endpoint_url, "AWS_ENDPOINT_URL": proxy.endpoint_url},
        )
        took = time.monotonic() - began
    assert done.code in (1, 3), done.stderr
    assert took < 25, done.stderr
    assert "check the network" in done.stderr or "whether it and the network are up" in done.stderr
    assert len(done.stderr.splitlines()) <= 4
    assert l0gc_process("gc").code == 0
