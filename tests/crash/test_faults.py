"""Runs the whole loop through a proxy that makes requests fail: each job is repeated as cron would, and nothing is
lost.
"""

from __future__ import annotations

import random
import sys
import threading
from pathlib import Path

import pytest

from l0gc.embedded.seaweedfs import SeaweedFS
from l0gc.errors import L0gcError
from l0gc.storage.s3 import S3Store
from tests.support.cli import l0gc, l0gc_process
from tests.support.outcomes import Faults, Outcome
from tests.support.proxy import Proxy
from tests.support.spark import shared_spark

pytestmark = [pytest.mark.weed, pytest.mark.spark, pytest.mark.slow, pytest.mark.thorough, pytest.mark.timeout(600)]

PARTITIONS = 3
RATE = 0.04
OUTAGES = 0.06
TRIES = 20
DOCUMENTED = {1, 3, 4}
"""The exit codes with which a command may end if the store fails."""


class Cron:
    """Runs each command through the proxy until it succeeds, and counts how it ended."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self.ended: list[tuple[str, int, str]] = []

    def process(self, *args: str) -> bytes:
        """Run a command in its own process; return the stdout of its successful run."""
        for _ in range(TRIES):
            ended = l0gc_process(*args, environment={"AWS_ENDPOINT_URL_S3": self._proxy.endpoint_url})
            self._note(args[0], ended.code, ended.stderr)
            if ended.code == 0:
                return ended.stdout
        raise AssertionError(f"{args} failed {TRIES} times: {self.ended[-TRIES:]}")

    def here(self, *args: str) -> None:
        """Run a command that uses this process's Spark session."""
        for _ in range(TRIES):
            try:
                l0gc(*args, "--endpoint-url", self._proxy.endpoint_url)
            except L0gcError as e:
                self._note(args[0], e.exit_code, f"l0gc: {e}\n")
                continue
            return
        raise AssertionError(f"{args} failed {TRIES} times: {self.ended[-TRIES:]}")

    def _note(self, command: str, code: int, stderr: str) -> None:
        self.ended.append((command, code, stderr))
        assert code == 0 or code in DOCUMENTED, (command, code, stderr)
        lines = stderr.splitlines()
        assert all(line.startswith("l0gc: ") for line in lines), stderr
        assert "unexpected" not in stderr
        if code != 0:
            assert 1 <= len(lines) <= 2, stderr  # an upload notes what is committed before its error


def _lines(job: int) -> list[bytes]:
    """Return the records of one upload job; no two jobs have one in common."""
    chance = random.Random(job)
    return [f"{job}-{i:04}-{chance.getrandbits(64):x}".encode() for i in range(240)]


def _uploads(cron: Cron, jobs: list[int], scratch: Path) -> None:
    """Upload all jobs at once, each with its own producer."""
    errors: list[BaseException] = []

    def upload(job: int) -> None:
        file = scratch / f"{job}"
        file.write_bytes(b"".join(line + b"\n" for line in _lines(job)))
        try:
            cron.process("upload", "events", str(file), "--producer", f"job-{job}", "--batch-bytes", "4KiB")
        except AssertionError as e:
            errors.append(e)

    threads = [threading.Thread(target=upload, args=(job,)) for job in jobs]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert errors == []


def _check_records(jobs: list[int]) -> None:
    """Check that each job's records exist once, in order, and that there are no others."""
    for p in range(PARTITIONS):
        ended = l0gc_process("read", "events", "--partition", str(p))
        assert ended.code == 0, ended.stderr
        got = ended.stdout.splitlines()
        for job in jobs:
            mine = [line for line in got if line.startswith(f"{job}-".encode())]
            assert mine == _lines(job)[p::PARTITIONS]
        assert len(got) == sum(len(_lines(job)[p::PARTITIONS]) for job in jobs)


@pytest.mark.parametrize("seed", [1])
def test_the_loop_survives_a_store_that_fails(seed: int, weed: SeaweedFS, store: S3Store, tmp_path: Path) -> None:
    jobs = list(range(4))
    with shared_spark(), Proxy(weed.endpoint_url, Faults(seed, RATE, OUTAGES)) as proxy:
        cron = Cron(proxy)
        cron.process("init", "--create-bucket", "--shards", "4")
        cron.process("topic", "create", "events", "--partitions", str(PARTITIONS))
        cron.process("topic", "create", "spare", "--partitions", "1")
        for half in (jobs[:2], jobs[2:]):
            _uploads(cron, half, tmp_path)
            cron.here("reconcile")
            cron.process("housekeep", "--barrier")
            cron.here("compute-watermark")
            cron.process("sweep")
        read = cron.process("read", "events").splitlines()
        assert sorted(read) == sorted(line for job in jobs for line in _lines(job))
        proxy.settle()

        faults = {str(f): n for f, n in proxy.outcomes.items() if f is not Outcome.PASS}
        failed = [(command, code) for command, code, _ in cron.ended if code]
        sys.stdout.write(f"{len(proxy.requests)} requests; {faults}; commands that failed: {failed}\n")
        assert len(faults) == len(Faults.KINDS)

        _check_records(jobs)
        for job in jobs:
            again = l0gc("upload", "events", str(tmp_path / f"{job}"), "--producer", f"job-{job}")
            assert (again["records"], again["skipped"]) == (0, len(_lines(job)))
        assert l0gc("verify", "--deep")["findings"] == []
        for _ in range(2):
            l0gc("housekeep", "--barrier")
            l0gc("reconcile")
        l0gc("compute-watermark")
        l0gc("sweep")
        assert store.list("level_zero/").modified_ms == {}
        _check_records(jobs)
